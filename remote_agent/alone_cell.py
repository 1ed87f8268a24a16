"""A cell in a process that stands alone: its standard streams are all that leads to the broker.

Executed after the kernel's modules, in the interpreter of the cells. Its output is that of the process; calls and the
result go between, marked (`marked.py`); answers come on what was its standard input: 8 bytes name of the call, 4 bytes
length, the answer. The end of that input is the end of the process and of its group: `alone.py` has arranged it.
"""

from __future__ import annotations

import _thread
import atexit
import fcntl
import select
import sys

from marked import Marked
from surroundings import os, unbuffer_c_output

import kernel

TYPE_CHECKING = False  # see `kernel`
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Set

#: Seconds after which a call that waits looks whether it is its turn to read.
_LOOK = 1.0
_KILL = 9


class Home:
    """The broker, at the other end of the streams. Calls of several threads run side by side."""

    def __init__(self, source: int, way: Marked) -> None:
        self._source = source
        self._way = way
        self._flags = fcntl.fcntl(source, fcntl.F_GETFL)
        self._buffer = bytearray()
        self._number = 0
        self._open: Set[bytes] = set()  # asked and not answered, whether or not somebody still waits
        self._waiting: Dict[bytes, Any] = {}
        self._answers: Dict[bytes, bytes] = {}
        self._counting = _thread.allocate_lock()
        self._reading = _thread.allocate_lock()

    def exchange(self, body: bytes) -> bytes:
        """Sends one request and returns its answer."""
        turn = _thread.allocate_lock()
        turn.acquire()
        with self._counting:
            self._number += 1
            call = self._number.to_bytes(8, "big")
            if not self._open:
                self._end_with_input(False)  # what comes now is an answer
            self._open.add(call)
            self._waiting[call] = turn
        try:
            self._way.say(b"Q", body, call)
            while call not in self._answers:
                if not self._reading.acquire(False):
                    turn.acquire(True, _LOOK)
                    continue
                try:
                    if call not in self._answers:
                        self._take()
                finally:
                    self._reading.release()
            return self._answers.pop(call)
        finally:
            with self._counting:
                self._waiting.pop(call, None)
                self._answers.pop(call, None)
                if not self._open:
                    self._end_with_input(True)
                # Whoever waits still may have to read now.
                for other in self._waiting.values():
                    _wake(other)

    def _take(self) -> None:
        """Reads one answer, for whoever waits for it."""
        have = self._buffer
        while len(have) < 12 or len(have) < 12 + int.from_bytes(have[8:12], "big"):
            data = os.read(self._source, 1 << 18)
            if not data:
                _end()  # the broker has hung up
            have += data
        call, end = bytes(have[:8]), 12 + int.from_bytes(have[8:12], "big")
        answer = bytes(have[12:end])
        del have[:end]
        with self._counting:
            self._open.discard(call)
            if call in self._waiting:
                self._answers[call] = answer
                _wake(self._waiting[call])

    def _end_with_input(self, does: bool) -> None:
        """Whether the kernel's signal comes with whatever happens to the input."""
        flags = self._flags | os.O_ASYNC if does else self._flags & ~os.O_ASYNC
        fcntl.fcntl(self._source, fcntl.F_SETFL, flags)
        # It may have ended in the meantime.
        if does and select.select([self._source], [], [], 0)[0]:
            _end()


def _wake(turn: Any) -> None:
    try:
        turn.release()
    except RuntimeError:
        pass  # it is awake


def _end() -> None:
    """Ends this process and what it started."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, _KILL)
    os.kill(os.getpid(), _KILL)


def main(order: bytes) -> None:
    """Runs the one cell that this process is for. Never returns."""
    parts: List[List[bytes]] = []
    while order:
        size = 4 + int.from_bytes(order[:4], "big")
        parts.append(kernel.unpack(order[4:size])[1])
        order = order[size:]
    (source, sink, mark), boot, cell = parts
    for fd in (int(source), int(sink)):
        os.set_inheritable(fd, False)
    way = Marked(int(sink), mark)
    home = Home(int(source), way)
    kernel.settle()
    unbuffer_c_output()
    runner = kernel.Kernel(boot, home.exchange)
    way.say(b"B", b"%d" % os.getpid())
    result = runner.run(cell)
    way.say(b"D", kernel.pack(b"D", *result.fields()))
    try:
        run: Callable[[], None] = atexit._run_exitfuncs  # type: ignore[attr-defined]
        run()
    finally:
        _end()


if "ORDER" in globals():
    for name in ("kernel", "cell_sources", "surroundings", "marked", "alone_cell"):
        del sys.modules[name]  # a project may have modules of these names
    main(globals()["ORDER"])
