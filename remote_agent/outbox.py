"""What the relay has to say: small frames first, then those that take turns, as far as the window lets it."""

from __future__ import annotations

import os
import select
import time
from _collections import deque  # type: ignore[import-not-found]

import frames

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    from typing import Deque, Optional, Protocol

    class Source(Protocol):
        """Something large, or without an end, that is said piece by piece."""

        def frame(self, limit: int) -> bytes:
            """The next frame, or nothing."""

        def is_done(self) -> bool:
            """Whether that was all for now."""


#: Bytes of output that are made ready at a time.
READY = 1 << 17
#: Seconds that a frame nobody is in a hurry for waits for company: each write wakes the broker.
COMPANY = 0.005


class Outbox:
    """Frames on their way to fd 1."""

    def __init__(self, window: int, poll: select.poll) -> None:
        #: Whether something was said that the broker waits for: of the log, or a call.
        self.spoke = False
        self._window = max(window, 2 * READY)
        self._poll = poll
        self._small: Deque[bytes] = deque()
        self._turns: Deque[Source] = deque()
        self._unhurried = bytearray()
        self._company = 0.0
        self._out = bytearray()
        self._blocked = False
        self._said = 0
        self._consumed = 0

    def __len__(self) -> int:
        """Bytes that are ready and were not taken yet."""
        return len(self._out)

    def say(self, frame: bytes) -> None:
        """Adds a small frame."""
        self._small.append(frame)

    def say_soon(self, frame: bytes) -> None:
        """Adds a small frame that may wait for company."""
        if not self._unhurried:
            self._company = time.monotonic() + COMPANY
        self._unhurried += frame

    def take_turns(self, source: Source, first: bool = False) -> None:
        """Adds a source, unless it has a turn already; it leaves when it is done."""
        if source not in self._turns:
            if first:
                self._turns.appendleft(source)
            else:
                self._turns.append(source)

    def say_last(self, frame: bytes) -> None:
        """Adds the last frame of all, whatever the window says."""
        self._out += self._unhurried + frame
        self._unhurried.clear()

    def consumed(self, count: int) -> None:
        """Is told how many bytes the broker has consumed in all."""
        self._consumed = max(self._consumed, count)

    def is_empty(self) -> bool:
        """Whether nothing is left to be made ready."""
        return not self._small and not self._turns

    def due(self) -> Optional[float]:
        """When `fill` has to be called."""
        return self._company if self._unhurried else None

    def clear(self) -> None:
        """Nobody is left to hear it."""
        self._out.clear()

    def fill(self) -> bool:
        """Makes frames ready. Whether that was all there is, or all that the window lets us."""
        if self._unhurried and time.monotonic() >= self._company:
            self._small.append(bytes(self._unhurried))
            self._unhurried.clear()
        while len(self._out) < READY:
            room = self._window - (self._said - self._consumed)
            if self._small:
                if len(self._small[0]) > room:
                    return True
                self._emit(self._small.popleft(), room)
            elif self._turns:
                if room < frames.PAYLOAD + 1024:
                    return True
                source = self._turns.popleft()
                frame = source.frame(frames.PAYLOAD)
                if not source.is_done():
                    self._turns.append(source)
                if frame:
                    self.spoke = True
                    self._emit(frame, room)
                    if len(frame) < frames.PAYLOAD:
                        self.write()  # before asking whether there is more
            else:
                return True
        return False

    def _emit(self, frame: bytes, room: int) -> None:
        if self._unhurried and len(self._unhurried) + len(frame) <= room:
            frame = bytes(self._unhurried) + frame
            self._unhurried.clear()
        self._out += frame
        self._said += len(frame)

    def write(self) -> None:
        """Writes what fd 1 takes now."""
        try:
            while self._out:
                del self._out[: os.write(1, self._out)]
        except BlockingIOError:
            pass
        if bool(self._out) != self._blocked:
            self._blocked = not self._blocked
            if self._blocked:
                self._poll.register(1, select.POLLOUT)
            else:
                self._poll.unregister(1)
