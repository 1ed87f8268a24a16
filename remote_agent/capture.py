"""One output pipe of a cell or a job: forwarded up to a cap, then counted, with the tail kept.

What finds no room on its way counts as beyond the cap, and all that follows it.
"""

from __future__ import annotations

import fcntl
import os
import sys
import termios

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    from typing import Callable, List, Tuple

    from event_loop import Loop

#: Bytes read at a time, and so the largest output message.
CHUNK = 1 << 16
#: Bytes of the tail that are kept beyond the cap.
TAIL = 1 << 16


_spare: List[Tuple[int, int]] = []


def _pipe() -> Tuple[int, int]:
    read, write = os.pipe()
    # `Capture.finish` may have taken what a poll had announced.
    os.set_blocking(read, False)
    return read, write


def prepare(pipes: int) -> None:
    """Has pipes at hand: made while nobody waits, for the next cell, which says so where there are no descriptors."""
    while len(_spare) < pipes:
        try:
            _spare.append(_pipe())
        except OSError:
            return


class Capture:
    """Owns a pipe. The writing end goes to the process; what it writes goes to ``forward``."""

    def __init__(self, loop: Loop, cap: int, forward: Callable[[bytes], bool]) -> None:
        self.skipped = 0
        self._loop = loop
        self._room = cap
        self._forward = forward
        self._tail = bytearray()
        self._over = False
        self._read, self.write_end = _spare.pop() if _spare else _pipe()
        loop.watch(self._read, self._readable, bulk=True)

    def close_write_end(self) -> None:
        """Our copy of the writing end, once the process has its own."""
        if self.write_end >= 0:
            os.close(self.write_end)
            self.write_end = -1

    def tail(self) -> bytes:
        """The last bytes of what was skipped."""
        return bytes(self._tail[-TAIL:])

    def finish(self) -> None:
        """Takes exactly what is in the pipe now.

        "Until it is empty" would never end with a child that goes on writing. Whoever holds the pipe
        still may write on (its output is discarded) instead of being killed by SIGPIPE.
        """
        self.close_write_end()
        if self._read >= 0:
            size = bytearray(4)
            fcntl.ioctl(self._read, termios.FIONREAD, size)
            left = int.from_bytes(size, sys.byteorder)
            while left > 0:
                try:
                    data = os.read(self._read, min(left, CHUNK))
                except BlockingIOError:
                    break
                if not data:
                    break
                left -= len(data)
                self._take(data)
        self._over = True

    def _readable(self) -> None:
        if self._read < 0:
            return
        try:
            data = os.read(self._read, CHUNK)
        except BlockingIOError:
            return
        if data:
            self._take(data)
        else:
            self._loop.unwatch(self._read)
            os.close(self._read)
            self._read = -1

    def _take(self, data: bytes) -> None:
        if self._over:
            return
        if self._room:
            now = data[: self._room]
            if self._forward(now):
                self._room -= len(now)
                data = data[len(now) :]
            else:
                self._room = 0
        if data:
            self.skipped += len(data)
            self._tail += data
            if len(self._tail) > 4 * TAIL:
                del self._tail[:-TAIL]
