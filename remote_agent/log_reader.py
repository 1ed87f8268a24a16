"""The log of a session's events, as the relay reads it: see `event_log` for the writer."""

from __future__ import annotations

import os
import struct

import directory

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    from typing import List, Tuple

_RESERVE_HEADER = struct.Struct(">QI")
#: No file of the log is larger.
_LARGEST = 1 << 30


class LogReader:
    """Reads on from an offset, and removes what the broker has."""

    def __init__(self, folder: directory.Directory, offset: int) -> None:
        self._folder = folder
        #: The offset of the next byte.
        self.at = offset
        #: Whether the last bytes came from the reserve.
        self.from_reserve = False
        self._fd = -1
        self._start = 0
        self._reserve = -1
        self._known: List[Tuple[int, bytes]] = []
        self.look_again()

    def look_again(self) -> None:
        """Finds the files anew: the directory was made anew, or the relay has only begun."""
        self._close()
        if self._reserve >= 0:
            os.close(self._reserve)
        try:
            self._reserve, _ = directory.open_old(self._folder.at(b"reserve"), directory.RESERVE)
        except (FileNotFoundError, directory.Refused):
            self._reserve = -1
        found = {}
        for place in (b"disk", b"out"):
            for name in directory.names(self._folder.at(place)):
                if len(name) == 16:
                    try:
                        found[int(name, 16)] = self._folder.at(place + b"/" + name)
                    except ValueError:
                        pass
        self._known = sorted(found.items())
        for start, path in reversed(self._known):
            if start <= self.at:
                self._open(start, path)
                break

    def read(self, limit: int) -> bytes:
        """The next bytes; empty when there are no more for now."""
        while True:
            if self._fd >= 0:
                data = os.pread(self._fd, limit, self.at - self._start)
                if data:
                    self.at += len(data)
                    self.from_reserve = False
                    return data
            if not self._next():
                return self._read_reserve(limit)

    def acknowledge(self, offset: int) -> None:
        """Removes files whose every byte the broker has. Never the last one: it may be written still."""
        while len(self._known) > 1 and self._known[1][0] <= offset and self._known[1][0] <= self.at:
            directory.unlink(self._known.pop(0)[1])

    def _next(self) -> bool:
        name = b"/%016x" % self.at
        for place in (b"out", b"disk"):
            path = self._folder.at(place + name)
            if (self._fd < 0 or self._start != self.at) and self._open(self.at, path):
                if not self._known or self._known[-1][0] < self.at:
                    self._known.append((self.at, path))
                return True
        return False

    def _open(self, start: int, path: bytes) -> bool:
        try:
            fd, size = directory.open_old(path, _LARGEST)
        except (FileNotFoundError, directory.Refused):
            return False
        if start == self.at and size == 0:
            os.close(fd)  # nothing in it yet: it may be given up for another of the same name
            return False
        self._close()
        self._fd, self._start = fd, start
        return True

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read_reserve(self, limit: int) -> bytes:
        header = os.pread(self._reserve, _RESERVE_HEADER.size, 0) if self._reserve >= 0 else b""
        if len(header) == _RESERVE_HEADER.size:
            start, size = _RESERVE_HEADER.unpack(header)
            if start <= self.at < start + size:
                skipped = self.at - start
                body = os.pread(self._reserve, min(limit, size - skipped), _RESERVE_HEADER.size + skipped)
                self.at += len(body)
                self.from_reserve = True
                return body
        return b""
