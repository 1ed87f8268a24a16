"""Prices, and a bug among them."""

from __future__ import annotations


def total(prices: list[float]) -> float:
    """The sum."""
    return sum(prices)


def discounted(price: float, percent: float) -> float:
    """The price less a discount: wrong, and a test says so."""
    return price - percent
