"""The conduit through the session's directory: commands lie in `in/`, events go to the log."""

from __future__ import annotations

import os
import time

import directory
import lease
import requests
import wire
from alarm import Alarm
from event_log import EventLog

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    from typing import List, Optional

    from event_loop import Abandon, Loop, Obey

#: Bytes without acknowledgement above which no more output is read, as long as the link moves.
BACKLOG = 1 << 18
#: Seconds without a sign after which the link counts as down, and all is spooled.
STILL = 1.0
#: Seconds after which the session ends, should the directory be gone and not to be made anew: before a relay gives it
#: up, for then the broker takes the session for ended. And the seconds between two attempts.
AWAY, RETRY = 2.5, 0.25
#: The largest command.
_LARGEST = wire.MAX_MESSAGE + 4


class Spool:
    """The supervisor's side of the directory."""

    def __init__(self, made: List[bytes], term: lease.Lease) -> None:
        self._made = made
        self._path = made[0]
        self._disk = made[1] if len(made) > 1 else b""
        self._lease = term
        self._code: Optional[bytes] = None
        self._said = False
        self._rang = False
        self._acked = 0
        self._moved = 0.0
        self._over = False
        self._away = 0.0
        self._taken = 0
        self.deadline: Optional[float] = 0.0

    def begin(self, loop: Loop, obey: Obey, abandon: Abandon) -> None:
        """Begins to hand commands to ``obey``; ``abandon`` is called when the lease is over."""
        self._loop, self._obey, self._abandon = loop, obey, abandon
        self._alarm = Alarm()
        self._folder = directory.Directory(self._path)
        self._log = EventLog(self._folder)
        self._listen()

    def _listen(self) -> None:
        self._folder.lock(directory.SUPERVISOR)
        self._bell = self._folder.listen(b"bell.s")
        self._loop.watch(self._bell, self._rung)

    def send(self, message: bytes, droppable: bool) -> bool:
        """Appends an event to the log."""
        taken = self._log.append(message, droppable)
        self._said = self._said or taken
        if not droppable:
            # What was waited for is told of at once. Output is not: more of it may follow.
            self._rang = True
            self._folder.ring(b"bell.r", b"o\n")
        return taken

    def settle(self, is_busy: bool) -> None:
        """Tells the relay of new events, and sees how far the broker is behind."""
        if is_busy == self._lease.calm:
            self._lease.calm = not is_busy
            if is_busy:  # what runs may do harm: from now on it is looked at more often
                self._plan()
        if self._said:
            self._said = False
            if self._folder.is_gone():
                self._rang = False
                if not self._make_again():
                    self.deadline = min(self.deadline or 0.0, time.monotonic() + RETRY)
            if not self._rang:
                self._folder.ring(b"bell.r", b"o\n")
            self._rang = False
        self._loop.hold(self._is_behind())

    def _is_behind(self) -> bool:
        """Whether the broker has to catch up first: the link moves, and much is under way."""
        if self._log.end - self._acked > BACKLOG:
            acked = self._folder.number(b"acked")
            if acked != self._acked:
                self._acked, self._moved = acked, time.monotonic()
        if self._log.end - self._acked <= BACKLOG:
            self._over = False
            return False
        if not self._over:
            self._over, self._moved = True, time.monotonic()
        now = time.monotonic()
        if now >= self._moved + STILL:
            return False
        self.deadline = min(self.deadline or 0.0, now + STILL / 10)
        return True

    def expired(self) -> None:
        """Looks at the lease, and at what nobody may have rung for."""
        self._plan()
        self._folder.wake_others()
        if self._folder.number(b"taken") != self._taken:
            self._folder.set_number(b"taken", self._taken)  # a script wrote into it
        if self._lease.is_over(self._folder) and lease.seize(self._folder, self._lease):
            self._abandon(self._lease.why)
        if self._code is None:
            try:
                self._code = directory.read(self._folder.at(b"code"), 1 << 24)
            except directory.Refused:
                pass
        if self._is_whole() or self._make_again():
            self._away = 0.0
        else:
            # Counted, for time in which we were stopped is not charged.
            self._away += RETRY
            self.deadline = time.monotonic() + min(RETRY, self._lease.interval)
            if self._away >= AWAY:
                self._abandon(b"its directory was removed, and could not be made anew")
        self._folder.hold_disk()
        self._look()

    def _plan(self) -> None:
        """Says when the next look is due, and sees to it that there is one."""
        self.deadline = time.monotonic() + self._lease.interval
        self._alarm.put_off(self._lease.interval + lease.STOPPED)

    def _is_whole(self) -> bool:
        parts = (b"in", b"out", b"rpc", b"disk")
        if self._folder.is_bell_gone(self._bell):
            return False
        return not self._folder.is_gone() and all(os.path.isdir(self._folder.at(name)) for name in parts)

    def answer(self, call: bytes, body: bytes) -> bool:
        """Puts the answer to a call beside its request. False: the request is not there, or there is no room."""
        try:
            return requests.answer_here(self._folder, call, body)
        except OSError:
            return False

    def call_back(self, call: bytes) -> None:
        """Rings the client of a call."""
        requests.call_back(self._folder, call)

    def kernel_gone(self) -> None:
        """Removes what the kernel's processes left of their calls."""
        for name in directory.names(self._folder.at(b"rpc")):
            directory.unlink(self._folder.at(b"rpc/" + name))
        for name in directory.names(self._folder.at(b"disk")):
            if name.startswith((b"req_", b"res_")):
                directory.unlink(self._folder.at(b"disk/" + name))

    def end(self, why: bytes) -> None:
        """Removes the directory, unless the guard will."""
        if why:
            lease.take_leave(self._folder, why, self._made)

    def _rung(self) -> None:
        directory.drain(self._bell)
        self._look()

    def _look(self) -> None:
        if self._folder.is_gone() and not self._make_again():
            return
        self._said = self._log.retry() or self._said
        while True:
            command = self._next_command()
            if command is None:
                return
            try:
                for kind, fields in wire.Reader().feed(command):
                    self._obey(kind, fields)
            except (ValueError, IndexError):
                pass  # not of the broker's making

    def _next_command(self) -> Optional[bytes]:
        name = b"in/%d" % (self._taken + 1)
        path, large = self._folder.at(name), self._folder.at(b"disk/in_%d" % (self._taken + 1))
        try:
            command = directory.read(path, _LARGEST)
            if command == b"":
                command = directory.read(large, _LARGEST) or b""
                directory.unlink(large)
        except directory.Refused:
            command = directory.short(path)
            directory.unlink(path)
        if command is not None:
            self._taken += 1
            self._folder.set_number(b"taken", self._taken)
            directory.unlink(path)
        return command

    def _make_again(self) -> bool:
        """Makes the directory anew, or what is missing of it: a script removed it. Whether it is there again."""
        numbers = {name: self._folder.number(name) for name in directory.NUMBERS}
        relay = -1
        try:
            directory.make(self._path, self._disk, numbers)
            if self._code is not None:
                self._folder.put(b"code", self._code)
            relay = self._folder.take_bell(b"bell.r")
            self._folder.open()
            self._loop.unwatch(self._bell)
            os.close(self._bell)
            self._listen()
            self._log.make_again()
            return True
        except OSError:
            return False  # tried again with the next look
        finally:
            if relay >= 0:
                # Nobody knows of the new bell yet; the relay still listens at the old one.
                directory.ring(relay)
                os.close(relay)
