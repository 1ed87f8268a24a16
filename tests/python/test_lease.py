"""The lease in time that a test makes: what a process has not lived through is not charged to the broker."""

import pytest
from target_side import load

lease = load("lease")
directory = load("directory")


class Folder:
    """A directory of which only the counter and the relay are of interest."""

    def __init__(self):
        self.counter = 0
        self.relay = 7

    def number(self, name):
        assert name == b"lease"
        return self.counter

    def holder(self, byte):
        assert byte == directory.RELAY
        return self.relay


class Clock:
    """Stands in for `time`; a clock of the wall that steps must not be asked."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(lease, "time", made)
    return made


def looks(term, folder, clock, seconds, step):
    """How many looks of so many seconds it takes until the lease is over; at most as many as fit."""
    for count in range(1, int(seconds / step) + 1):
        clock.now += step
        if term.is_over(folder):
            return count
    return None


def test_the_lease_runs_out_in_its_time(clock):
    term, folder = lease.Lease(10.0, 60.0), Folder()
    folder.counter = 1
    assert not term.is_over(folder)
    assert looks(term, folder, clock, 59.0, term.interval) is None
    assert looks(term, folder, clock, 10.0, term.interval) is not None
    assert term.why == lease.RAN_OUT


def test_every_sign_renews_it(clock):
    term, folder = lease.Lease(10.0, 60.0), Folder()
    for _ in range(100):
        folder.counter += 1
        assert not term.is_over(folder)
        assert looks(term, folder, clock, 50.0, term.interval) is None


@pytest.mark.parametrize("gap", [1e3, 1e6, 1e9])
def test_a_gap_of_any_length_costs_two_looks(clock, gap):
    term, folder = lease.Lease(10.0, 60.0), Folder()
    folder.counter = 1
    assert not term.is_over(folder)
    interval = term.interval
    for _ in range(10):
        clock.now += gap
        assert not term.is_over(folder)
    assert looks(term, folder, clock, 60.0, interval) == 60.0 / interval - 20


def test_a_gap_before_the_first_sign_costs_no_more(clock):
    term, folder = lease.Lease(10.0, 60.0), Folder()
    for _ in range(10):
        clock.now += 1e6
        assert not term.is_over(folder)


def test_a_clock_that_goes_back_gives_no_time(clock):
    term, folder = lease.Lease(10.0, 60.0), Folder()
    folder.counter = 1
    assert not term.is_over(folder)
    for _ in range(200):
        clock.now -= 1e6
        term.is_over(folder)
        clock.now += 1e6 + term.interval
        if term.is_over(folder):
            return
    raise AssertionError("it never runs out")
