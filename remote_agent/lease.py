"""How long a session lives without a sign of its broker, and how it comes to its end."""

from __future__ import annotations

import os
import time

import directory
import fence
import folders

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    from typing import List

#: Seconds between two looks at the counter, and where it is calm.
LOOK, CALM_LOOK = 4.0, 12.0
#: The same while nobody has given a sign yet.
FIRST_LOOK = 0.25
#: Seconds beyond a look that is due after which the kernel wakes who should have looked.
STOPPED = 1.0
#: Seconds in which the first relay must have begun.
UNCLAIMED = 4.0
#: Seconds that a relay gets to carry the rest of the log when the session has ended, and in all.
FAREWELL, LONGEST_FAREWELL = 2.0, 10.0
#: Seconds in which one has to come, where none is there just then: it may be looked at now and then only.
NEXT_LOOK = 2.0


#: What is said of a session that nobody wanted any more, and of one that nobody wanted in the end.
RAN_OUT = b"its lease ran out: for too long nothing was heard of the broker"
GIVEN_UP = b"the broker was gone before it had begun"


class Lease:
    """Runs out when the counter has stood still for too long, in time that this process has lived through.

    A look charges at most two looks' worth: what a pause, SIGSTOP or a step of the clock took is nobody's fault.
    Before the first sign it is over as soon as the first relay is gone.
    """

    def __init__(self, first: float, whole: float) -> None:
        #: Why it is over.
        self.why = b""
        #: Nothing is under way that could do harm, or the other of us looks more often meanwhile.
        self.calm = False
        self._interval = max(0.02, min(LOOK, first / 8, whole / 8))
        self._calm_interval = max(0.02, min(CALM_LOOK, whole / 8))
        self._whole = whole
        self._left = min(first, whole)
        self._counter = 0
        self._alone = 0.0
        self._had_relay = False
        self._looked = time.monotonic()

    @property
    def has_begun(self) -> bool:
        """Whether the broker has given a sign."""
        return self._counter > 0

    @property
    def interval(self) -> float:
        """Seconds until the next look."""
        if not self.has_begun:
            return min(self._interval, FIRST_LOOK)
        return self._calm_interval if self.calm else self._interval

    def is_over(self, folder: directory.Directory) -> bool:
        """One look."""
        now = time.monotonic()
        charged = max(0.0, min(now - self._looked, 2 * self.interval))
        self._looked = now
        counter = folder.number(b"lease")
        if counter != self._counter:
            self._counter = counter
            self._left = self._whole
        else:
            self._left -= charged
        if self._left <= 0:
            self.why = RAN_OUT
        elif counter == 0 and self._is_given_up(folder, charged):
            self.why = GIVEN_UP
        else:
            self.why = b""
        return self.why != b""

    def _is_given_up(self, folder: directory.Directory, charged: float) -> bool:
        """Whether the relay of the link that made the session has gone, or never came."""
        if folder.holder(directory.RELAY):
            self._had_relay = True
            return False
        self._alone += charged
        return self._had_relay or self._alone >= UNCLAIMED


def seize(folder: directory.Directory, lease: Lease) -> bool:
    """Shuts the relay out when the lease is over, looks once more, and says so. Whether it is over."""
    for _ in range(200):
        if os.path.lexists(folder.at(b"ended")):
            return True
        if folder.lock(directory.RELAY):
            break
        relay = folder.holder(directory.RELAY)
        if relay in (folder.holder(directory.GUARD), folder.holder(directory.SUPERVISOR)):
            return False  # the other of us is at it
        if relay:
            _kill(relay)
        time.sleep(0.01)
    if lease.is_over(folder):
        # Before anything is killed: a relay that comes now must not take us for one that hangs.
        say_ended(folder, lease.why)
        return True
    folder.unlock(directory.RELAY)
    return False


def say_ended(folder: directory.Directory, why: bytes) -> None:
    """Writes why the session ended, unless somebody has."""
    try:
        directory.check_ours(folder.path)  # a script may have put another in its place
        if not os.path.lexists(folder.at(b"ended")):
            directory.put_words(folder.at(b"~ended"), why)
            os.rename(folder.at(b"~ended"), folder.at(b"ended"))
    except OSError:
        pass  # it was said before, or the directory is gone: both tell the relay


def take_leave(folder: directory.Directory, why: bytes, made: List[bytes]) -> None:
    """The session has ended and nothing of it runs: tells the relay, waits for it a while, removes what was made."""
    say_ended(folder, why)
    folder.ring(b"bell.r")
    begun = moved = time.monotonic()
    acked = folder.number(b"acked")
    patience = NEXT_LOOK
    while not os.path.lexists(folder.at(fence.HEARD)) and time.monotonic() < min(
        moved + patience, begun + LONGEST_FAREWELL
    ):
        patience = FAREWELL if folder.holder(directory.RELAY) else NEXT_LOOK
        time.sleep(0.005)
        if folder.number(b"acked") != acked:
            acked, moved = folder.number(b"acked"), time.monotonic()
    folders.remove(made)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, 9)
    except OSError:
        pass
