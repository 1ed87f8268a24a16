"""Processes that search, below the worker.

Python's expressions can take time without end, and hold up every thread of their process: so each search has a process
to itself, which ends when its time is up, when nobody waits for the search any more, and with the worker. One that has
brought its search to an end is kept for the next, for a fork takes longer than most searches.
"""

from __future__ import annotations

import _thread
import os
import select

import processes
import search
import wire
from workspace import WorkspaceError

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    import signal
    from typing import Dict, List, Optional
else:
    import _signal as signal

#: Seconds above a search's own limit after which it is ended by force.
LATE = 5.0
#: Processes that are kept for the next searches.
KEPT = 2
#: Bytes of a result above which its process is not kept: it has grown.
GROWN = 1 << 20

_lock = _thread.allocate_lock()
#: The searches under way: number of the verb → its process, nothing before there is one.
_running: Dict[bytes, Optional[Searcher]] = {}
#: Those of them that are not wanted any more.
_stopped: Dict[bytes, bool] = {}
#: Which thread does which.
_numbers: Dict[int, bytes] = {}
_idle: List[Searcher] = []


def begin(number: bytes) -> None:
    """This thread is about to search under a number."""
    with _lock:
        _running[number] = None
        _numbers[_thread.get_ident()] = number


def stop(number: bytes) -> None:
    """Nobody waits for that search any more."""
    with _lock:
        if number in _running:
            _stopped[number] = True
            searcher = _running[number]
            if searcher is not None:
                searcher.kill()


def perform(folder: bytes, home: bytes, arguments: List[bytes]) -> List[bytes]:
    """One search with its arguments as they came; the fields of its result."""
    with _lock:
        number = _numbers.pop(_thread.get_ident(), b"")
    try:
        fields = _elsewhere(number, [folder, home, *arguments])
    except processes.NoProcess as error:
        if number:
            raise WorkspaceError("no process for the search could be started: %s; try it again" % error) from None
        fields = _here(folder, home, arguments)
    finally:
        with _lock:
            _running.pop(number, None)
            _stopped.pop(number, None)
    if fields[0] != b"ok":
        raise WorkspaceError(fields[1].decode("utf-8", "replace"))
    return fields[1:]


def _elsewhere(number: bytes, request: List[bytes]) -> List[bytes]:
    searcher = None
    while searcher is None:
        with _lock:
            if number in _stopped:
                raise WorkspaceError("the search was stopped")
            # Started under the lock: whoever stops the search finds it.
            searcher = _idle.pop() if _idle else Searcher()
            if number:
                _running[number] = searcher
        if not searcher.take(request):  # somebody killed it while nothing was to be done
            with _lock:
                _running.update({number: None} if number else {})
            searcher.end()
            searcher = None
    fields = None
    try:
        fields = searcher.answer()
    finally:
        with _lock:
            if number:
                _running[number] = None
            # Without a number this process does nothing else, and soon ends.
            is_kept = bool(number) and fields is not None and number not in _stopped and len(_idle) < KEPT
            is_kept = is_kept and sum(map(len, fields or ())) <= GROWN
            if is_kept:
                _idle.append(searcher)
        if not is_kept:
            searcher.end()
    return [b"error", _ENDED] if fields is None else fields


_ENDED = (
    b"the search did not come to an end on the target: it ran longer than %d s, or its process was killed; "
    b"narrow it by path or file_glob, or write the pattern more simply" % search.LIMIT
)


def _here(folder: bytes, home: bytes, arguments: List[bytes]) -> List[bytes]:
    """The same where no process can be started and this one does nothing else."""
    before = signal.getsignal(signal.SIGALRM)
    try:
        return search.answer(folder, home, arguments)
    finally:
        signal.signal(signal.SIGALRM, before)


class Searcher:
    """A process that does one search after another. `NoProcess`, or OSError: out of descriptors."""

    def __init__(self) -> None:
        theirs_in, self._requests = os.pipe()
        try:
            self._answers, theirs_out = os.pipe()
        except OSError:
            _close(theirs_in, self._requests)
            raise
        try:
            self._pid = processes.fork()
        except OSError:
            _close(self._requests, self._answers)
            raise
        else:
            if self._pid == 0:
                _serve(theirs_in, theirs_out)
        finally:
            _close(theirs_in, theirs_out)

    def take(self, request: List[bytes]) -> bool:
        """Hands it a search. False: it has ended."""
        view = memoryview(wire.pack(b"V", *request))
        try:
            os.kill(self._pid, signal.SIGCONT)  # a script may have stopped it while it was idle
            while view:
                view = view[os.write(self._requests, view) :]
        except OSError:
            return False
        return True

    def answer(self) -> Optional[List[bytes]]:
        """What it answers; nothing where that takes too long, or the process has ended."""
        left = search.LIMIT + LATE
        reader = wire.Reader()
        waiting = select.poll()
        waiting.register(self._answers, select.POLLIN)
        while True:
            while not waiting.poll(search.TICK * 1000):
                # Counted, not measured: what is paused does not grow old.
                left -= search.TICK
                if left <= 0:
                    return None
            data = os.read(self._answers, 1 << 18)
            if not data:
                return None
            for _, fields in reader.feed(data):
                return fields

    def kill(self) -> None:
        """Ends it, whatever it does."""
        os.kill(self._pid, signal.SIGKILL)

    def end(self) -> None:
        """Ends it for good; not to be used any more."""
        self.kill()
        os.waitpid(self._pid, 0)
        _close(self._requests, self._answers)


def _serve(requests: int, answers: int) -> None:
    """What the process does, until nobody is there to ask."""
    try:
        processes.close_all_but(0, 1, 2, requests, answers)
        reader = wire.Reader()
        data = os.read(requests, 1 << 18)
        while data:
            for _, (folder, home, *arguments) in reader.feed(data):
                view = memoryview(wire.pack(b"v", *search.answer(folder, home, arguments)))
                while view:
                    view = view[os.write(answers, view) :]
                __import__("re").purge()  # expressions are large, and seldom come again
            data = os.read(requests, 1 << 18)
    finally:
        os._exit(0)


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
