from prices import discounted, total


def test_total():
    assert total([1.0, 2.5]) == 3.5


def test_total_of_nothing():
    assert total([]) == 0


def test_discounted():
    assert discounted(200, 10) == 180
