"""The supervisor's event loop: one thread, descriptors that never block, one stream to the broker."""

from __future__ import annotations

import os
import select

import wire

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    from typing import Callable, Dict, Optional, Set

#: The longest that one wait may take: `poll` counts milliseconds in an int.
LONGEST_WAIT = 3600.0
#: Bytes waiting for the broker above which nothing more is read from the kernel and the jobs.
BACKLOG = 1 << 20


class Loop:
    """Who is called when a descriptor is ready, and what waits for the broker."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._read: Dict[int, Callable[[], None]] = {}
        self._write: Dict[int, Callable[[], None]] = {}
        self._bulk: Set[int] = set()
        self._outbox = bytearray()
        self._blocked = False

    def watch(self, fd: int, ready: Callable[[], None], bulk: bool = False) -> None:
        """Calls ``ready`` when fd can be read. Bulk is not read while the broker is behind."""
        self._read[fd] = ready
        if bulk:
            self._bulk.add(fd)
        self._update(fd)

    def watch_writable(self, fd: int, wanted: bool, ready: Callable[[], None]) -> None:
        """Calls ``ready`` when fd can be written, as long as that is wanted."""
        if wanted != (fd in self._write):
            if wanted:
                self._write[fd] = ready
            else:
                del self._write[fd]
            self._update(fd)

    def unwatch(self, fd: int) -> None:
        """Forgets a descriptor that is about to be closed."""
        self._read.pop(fd, None)
        self._write.pop(fd, None)
        self._bulk.discard(fd)
        self._update(fd)

    def send(self, kind: bytes, *fields: bytes) -> None:
        """Queues a message for the broker."""
        self._outbox += wire.pack(kind, *fields)
        if not self._blocked:
            self.flush()

    def flush(self) -> None:
        """Writes what the broker takes now."""
        try:
            while self._outbox:
                del self._outbox[: os.write(1, self._outbox[:65536])]
        except BlockingIOError:
            pass
        except OSError:
            self._outbox.clear()  # the broker is gone; fd 0 says so too
        behind = len(self._outbox) > BACKLOG
        if behind != self._blocked:
            self._blocked = behind
            for fd in self._bulk:
                self._update(fd)
        self.watch_writable(1, bool(self._outbox), self.flush)

    def turn(self, timeout: Optional[float]) -> None:
        """Waits for descriptors and serves them."""
        wait = None if timeout is None else max(0, int(min(timeout, LONGEST_WAIT) * 1000) + 1)
        for fd, events in self._poll.poll(wait):
            if events & select.POLLOUT and fd in self._write:
                self._write[fd]()
            if events & ~select.POLLOUT:
                if fd in self._read:
                    self._read[fd]()
                elif fd in self._write:
                    self._write[fd]()

    def _update(self, fd: int) -> None:
        events = 0
        if fd in self._read and not (self._blocked and fd in self._bulk):
            events |= select.POLLIN
        if fd in self._write:
            events |= select.POLLOUT
        if events:
            self._poll.register(fd, events)
        else:
            try:
                self._poll.unregister(fd)
            except KeyError:
                pass
