"""What all code of a process shares, put right before each cell: streams, signals, builtins."""

from __future__ import annotations

import builtins
import os as _shared_os
import sys
import types
from io import FileIO, TextIOWrapper

TYPE_CHECKING = False  # see `kernel`
if TYPE_CHECKING:
    from typing import Any, List

_signal: Any = __import__("_signal")
#: A copy: cells patch what they share with us, and not all of them put it back.
os: Any = types.SimpleNamespace(**vars(_shared_os))


class RawOutput(FileIO):
    """A standard descriptor that takes every write whole; `print` and `os.write` keep their order."""

    def write(self, data: Any) -> int:
        """Writes all of it: a signal may cut a large write to a pipe short."""
        written = super().write(data) or 0
        size = memoryview(data).nbytes
        if written < size:
            view = memoryview(data).cast("B")
            while written < size:
                written += super().write(view[written:]) or 0
        return size

    def seekable(self) -> bool:
        """Each cell has a pipe, whatever was here when the stream was made."""
        return False


class Streams:
    """The standard streams of all cells; made anew only when a cell has closed them."""

    def __init__(self) -> None:
        self._out = self._open(1, "<stdout>")
        self._err = self._open(2, "<stderr>")
        self._in = self._open_input()

    def restore(self) -> None:
        """Puts them in place for a cell."""
        if not _is_open(self._out):
            self._out = self._open(1, "<stdout>")
        if not _is_open(self._err):
            self._err = self._open(2, "<stderr>")
        if not _is_open(self._in):
            self._in = self._open_input()
        for stream in (self._out, self._err):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", newline="\n", write_through=True)
        sys.stdout = sys.__stdout__ = self._out  # type: ignore[misc]
        sys.stderr = sys.__stderr__ = self._err  # type: ignore[misc]
        sys.stdin = sys.__stdin__ = self._in  # type: ignore[misc]

    def flush(self) -> None:
        """Writes out what a cell's own replacements, and ours, still hold."""
        for stream in (sys.stdout, sys.stderr, self._out, self._err):
            try:
                stream.flush()
            except BaseException:  # a cell's stream may do anything
                pass

    def error(self) -> Any:
        """Where tracebacks go: the cell's own stderr if it still works, else ours."""
        return self._err

    @staticmethod
    def _open(fd: int, name: str) -> TextIOWrapper:
        raw = RawOutput(fd, "w", closefd=False)
        raw.name = name
        stream = TextIOWrapper(raw, "utf-8", "backslashreplace", "\n", write_through=True)  # type: ignore[type-var]
        stream.mode = "w"  # type: ignore[misc]
        return stream

    @staticmethod
    def _open_input() -> TextIOWrapper:
        stream = open(0, encoding="utf-8", errors="replace", closefd=False)
        stream.mode = "r"  # type: ignore[misc]
        return stream


def _is_open(stream: Any) -> bool:
    try:
        return not stream.closed
    except ValueError:  # detached
        return False


def unbuffer_c_output() -> None:
    """C code that prints through stdio must not keep its text back until the process ends."""
    try:
        ctypes: Any = __import__("_ctypes")

        class Int(ctypes._SimpleCData):  # type: ignore[misc]
            _type_ = "i"

        class Pointer(ctypes._SimpleCData):  # type: ignore[misc]
            _type_ = "P"

        class Size(ctypes._SimpleCData):  # type: ignore[misc]
            _type_ = "L"

        class Function(ctypes.CFuncPtr):  # type: ignore[misc]
            _flags_ = 1
            _restype_ = Int
            _argtypes_ = (Pointer, Pointer, Int, Size)

        library = ctypes.dlopen(None, 0)
        stdout = Pointer.from_address(ctypes.dlsym(library, "stdout"))
        unbuffered = 2  # _IONBF
        Function(ctypes.dlsym(library, "setvbuf"))(stdout.value, None, unbuffered, 0)
    except Exception:
        pass  # an interpreter without it: such output comes at the end


class Signals:
    """Signal handlers, timers and masks as an interpreter starts with them."""

    def __init__(self) -> None:
        self._initial = {}
        for number in range(1, _signal.NSIG):
            try:
                self._initial[number] = _signal.getsignal(number)
            except ValueError:
                pass
        self._mask: List[int] = list(_signal.pthread_sigmask(_signal.SIG_BLOCK, []))

    def restore(self) -> None:
        """Undoes what a cell changed."""
        _signal.set_wakeup_fd(-1)
        _signal.alarm(0)
        for timer in (_signal.ITIMER_REAL, _signal.ITIMER_VIRTUAL, _signal.ITIMER_PROF):
            _signal.setitimer(timer, 0)
        for number, handler in self._initial.items():
            if handler is not None and _signal.getsignal(number) is not handler:
                try:
                    _signal.signal(number, handler)
                except (OSError, ValueError):
                    pass
        _signal.pthread_sigmask(_signal.SIG_SETMASK, self._mask)


class Builtins:
    """The builtins that all code shares.

    What a cell puts in their place is state, as long as it can be called; else it is damage, of which
    not even a traceback could be shown.
    """

    def __init__(self) -> None:
        self._all = {name: value for name, value in vars(builtins).items() if callable(value)}

    def repair(self) -> None:
        """Puts back what no longer works."""
        shared = builtins.__dict__
        for name, value in self._all.items():
            if not callable(shared.get(name)):
                shared[name] = value
