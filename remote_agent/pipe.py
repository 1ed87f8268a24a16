"""The local conduit: commands arrive on fd 0, events leave on fd 1, and the end of either is the broker's."""

from __future__ import annotations

import os

import folders
import wire

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    from typing import List, Optional

    from event_loop import Abandon, Loop, Obey

#: Bytes waiting for the broker above which nothing more is read from the kernel and the jobs.
BACKLOG = 1 << 20


class Pipe:
    """The supervisor's standard streams."""

    deadline: Optional[float] = None

    def __init__(self, made: List[bytes]) -> None:
        self._made = made
        self._reader = wire.Reader()
        self._outbox = bytearray()
        self._behind = False

    def begin(self, loop: Loop, obey: Obey, abandon: Abandon) -> None:
        """Begins to hand commands to ``obey``; ``abandon`` is called when the broker is gone."""
        self._loop, self._obey, self._abandon = loop, obey, abandon
        os.set_blocking(0, False)
        os.set_blocking(1, False)
        loop.watch(0, self._readable)

    def send(self, message: bytes, droppable: bool) -> bool:
        """Queues an event."""
        self._outbox += message
        if not self._behind:
            self._flush()
        return True

    def settle(self, is_busy: bool) -> None:
        """Events have left already."""

    def expired(self) -> None:
        """Nothing is waited for."""

    def answer(self, call: bytes, body: bytes) -> bool:
        """Calls go to the broker by a socket, and so do their answers."""
        return False

    def call_back(self, call: bytes) -> None:
        """None was answered here."""

    def kernel_gone(self) -> None:
        """Calls travel through a socket: nothing is left of them."""

    def end(self, why: bytes) -> None:
        """Removes the session's folders."""
        folders.remove(self._made)

    def _flush(self) -> None:
        try:
            while self._outbox:
                del self._outbox[: os.write(1, self._outbox[:65536])]
        except BlockingIOError:
            pass
        except OSError:
            self._outbox.clear()  # the broker is gone; fd 0 says so too
        self._behind = len(self._outbox) > BACKLOG
        self._loop.hold(self._behind)
        self._loop.watch_writable(1, bool(self._outbox), self._flush)

    def _readable(self) -> None:
        try:
            data = os.read(0, 1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._abandon(b"the broker has gone")
        for kind, fields in self._reader.feed(data):
            self._obey(kind, fields)
