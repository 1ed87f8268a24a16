"""The log of a session's events, as the supervisor writes it: one stream of bytes in files named by their offset.

What waits for the broker lies in memory (`out/`) as long as it is little, on a disk (`disk/`) beyond that, and
when neither has room, in the `reserve`.
"""

from __future__ import annotations

import os
import struct

import directory

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    from typing import List, Tuple

#: Bytes of one file.
SEGMENT = 1 << 18
#: Bytes that may wait in memory.
IN_MEMORY = 1 << 18
#: Files without acknowledgement that are held open, to be made anew should the directory be removed.
HELD = 64

RESERVE_HEADER = struct.Struct(">QI")


class EventLog:
    """Appends events. The number `acked` says how far the broker has them."""

    def __init__(self, folder: directory.Directory) -> None:
        self._folder = folder
        #: Bytes that were accepted in all.
        self.end = 0
        self._pending = b""  # what has no room anywhere yet
        self._segments: List[Tuple[int, int]] = []  # offset and descriptor, the last one being written
        self._size = 0  # of the last one
        self._open = False
        self._reserve: Tuple[int, bytes] = (0, b"")  # what lies in the reserve, and its offset

    def append(self, message: bytes, droppable: bool) -> bool:
        """Adds an event. Only one that may be dropped is refused, when there is no room."""
        written = 0 if self._pending else self._write(message, self.end)
        if written == 0 and droppable and message:
            return False
        self.end += len(message)
        if written < len(message):
            self._pending += message[written:]
            self.retry()
        return True

    def retry(self) -> bool:
        """Finds room for what waits. Whether some was found."""
        waiting = len(self._pending)
        if waiting:
            at = self.end - len(self._pending)
            self._pending = self._pending[self._write(self._pending, at) :]
        if self._pending and self._is_reserve_free():
            body = self._pending[: directory.RESERVE - RESERVE_HEADER.size]
            if self._fill_reserve(self.end - len(self._pending), body):
                self._pending = self._pending[len(body) :]
                self._open = False  # what follows begins a file of its own
        return len(self._pending) < waiting

    def _is_reserve_free(self) -> bool:
        at, body = self._reserve
        return self._folder.number(b"acked") >= at + len(body)

    def _fill_reserve(self, at: int, body: bytes) -> bool:
        try:
            fd = os.open(self._folder.at(b"reserve"), os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            os.pwrite(fd, body, RESERVE_HEADER.size)
            os.pwrite(fd, RESERVE_HEADER.pack(at, len(body)), 0)
        except OSError:
            return False
        finally:
            os.close(fd)
        self._reserve = (at, body)
        return True

    def _write(self, data: bytes, at: int) -> int:
        written = 0
        while written < len(data):
            count = self._extend(data[written : written + SEGMENT], at + written)
            if not count:
                break
            written += count
        return written

    def _extend(self, data: bytes, at: int) -> int:
        if self._open and self._size < SEGMENT:
            count = _try_write(self._segments[-1][1], data[: SEGMENT - self._size])
            if count:
                self._size += count
                return count
        places = [b"out", b"disk"]
        if at - self._folder.number(b"acked") > IN_MEMORY:
            places.reverse()
        for place in places:
            path = self._folder.at(place + b"/%016x" % at)
            try:
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            except OSError:
                continue
            count = _try_write(fd, data)
            if count:
                self._begin(at, fd, count)
                return count
            os.close(fd)
            directory.unlink(path)
        return 0

    def _begin(self, at: int, fd: int, size: int) -> None:
        self._segments.append((at, fd))
        self._size = size
        self._open = True
        acked = self._folder.number(b"acked")
        while len(self._segments) > 1 and (self._segments[1][0] <= acked or len(self._segments) > HELD):
            os.close(self._segments.pop(0)[1])

    def make_again(self) -> None:
        """Puts what the broker does not have yet into a directory that was made anew. OSError: there is no room."""
        acked = self._folder.number(b"acked")
        for number, (at, fd) in enumerate(self._segments):
            last = number == len(self._segments) - 1
            if (last or self._segments[number + 1][0] > acked) and not self._is_there(at):
                path = self._folder.at(b"out/%016x" % at)
                directory.put(path, os.pread(fd, os.fstat(fd).st_size, 0))
                again = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
                os.lseek(again, 0, os.SEEK_END)
                os.dup2(again, fd, inheritable=False)
                os.close(again)
        if not self._is_reserve_free():
            self._fill_reserve(*self._reserve)

    def _is_there(self, at: int) -> bool:
        return any(os.path.lexists(self._folder.at(place + b"/%016x" % at)) for place in (b"out", b"disk"))


def _try_write(fd: int, data: bytes) -> int:
    try:
        return os.write(fd, data)
    except OSError:  # full, over a quota, or broken: other places are tried
        return 0
