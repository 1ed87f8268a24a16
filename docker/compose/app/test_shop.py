import os

import shop


def test_orders_are_kept():
    assert shop.order(7, "lamp") == "OK"
    assert shop.ordered(7) == "lamp"


def test_prices_are_kept():
    assert shop.set_price("lamp", 30) == "OK"
    assert shop.price("lamp") == 30


def test_the_rig_has_its_secrets():
    assert os.environ["SECRET_KEY"].startswith("s3cret")
    assert os.environ["POSTGRES_PASSWORD"] == "postgres"
