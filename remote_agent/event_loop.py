"""The supervisor's event loop: one thread, descriptors that never block, one stream of events to the broker."""

from __future__ import annotations

import select

import wire

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    from typing import Callable, Dict, List, Optional, Protocol, Set

    Obey = Callable[[bytes, List[bytes]], None]
    Abandon = Callable[[bytes], None]

    class Conduit(Protocol):
        """How a supervisor's commands arrive and its events leave."""

        #: When `expired` wants to be called.
        deadline: Optional[float]

        def begin(self, loop: Loop, obey: Obey, abandon: Abandon) -> None:
            """Begins to hand over commands. ``abandon`` is called, with the reason, when nobody is left to serve."""

        def send(self, message: bytes, droppable: bool) -> bool:
            """Takes an event. False: it was one that may be dropped, and there is no room for it."""

        def settle(self, is_busy: bool) -> None:
            """Called before each wait; busy: something of the broker's is under way."""

        def expired(self) -> None:
            """The deadline has come."""

        def answer(self, call: bytes, body: bytes) -> bool:
            """Puts the answer to a tool call in its place. False: the broker has to give it."""

        def call_back(self, call: bytes) -> None:
            """Tells whoever made that call that it has been answered."""

        def kernel_gone(self) -> None:
            """A kernel and all of its processes have ended."""

        def end(self, why: bytes) -> None:
            """The session has ended, and nothing of it runs. An empty reason: the guard will say it."""


#: The longest that one wait may take: `poll` counts milliseconds in an int.
LONGEST_WAIT = 3600.0
#: Events that may be dropped where there is no room for them: output of cells and jobs.
OUTPUT = b"Oo"


class Loop:
    """Who is called when a descriptor is ready."""

    def __init__(self, conduit: Conduit) -> None:
        self._conduit = conduit
        self._poll = select.poll()
        self._read: Dict[int, Callable[[], None]] = {}
        self._write: Dict[int, Callable[[], None]] = {}
        self._bulk: Set[int] = set()
        self._held = False
        self._later: List[Callable[[], None]] = []

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

    def send(self, kind: bytes, *fields: bytes) -> bool:
        """Queues an event for the broker. False: it was output, and there is no room for it."""
        return self._conduit.send(wire.pack(kind, *fields), kind in OUTPUT)

    def offer(self, kind: bytes, *fields: bytes) -> bool:
        """The same for an event that another one can stand for: False where there is no room for it."""
        return self._conduit.send(wire.pack(kind, *fields), True)

    def later(self, work: Callable[[], None]) -> None:
        """Does something once, when all that others wait for has been done."""
        self._later.append(work)

    def hold(self, held: bool) -> None:
        """Stops reading output while the broker is behind."""
        if held != self._held:
            self._held = held
            for fd in self._bulk:
                self._update(fd)

    def turn(self, timeout: Optional[float]) -> None:
        """Waits for descriptors and serves them."""
        while self._later:
            self._later.pop()()
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
        if fd in self._read and not (self._held and fd in self._bulk):
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
