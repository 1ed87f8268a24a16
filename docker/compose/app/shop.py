"""A shop that keeps its orders in a database and its prices in a cache."""

import os
import socket
from urllib.parse import urlsplit


def ask(url, line):
    """Sends one line to a service, and returns the line that it answers."""
    place = urlsplit(url)
    with socket.create_connection((place.hostname, place.port), timeout=10) as connection:
        login = "LOGIN %s\n" % place.password if place.password else ""
        connection.sendall((login + line + "\n").encode())
        connection.shutdown(socket.SHUT_WR)
        return connection.makefile().read().splitlines()[-1]


def order(number, item):
    return ask(os.environ["DATABASE_URL"], "SET order:%d %s" % (number, item))


def ordered(number):
    return ask(os.environ["DATABASE_URL"], "GET order:%d" % number)


def set_price(item, price):
    return ask(os.environ["CACHE_URL"], "SET price:%s %d" % (item, price))


def price(item):
    return int(ask(os.environ["CACHE_URL"], "GET price:%s" % item))
