"""A clock of the kernel's that wakes this process, should a script have stopped it, whoever else is there to do so."""

from __future__ import annotations

import struct

import processes

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    import signal
    from typing import Any, Callable, Optional
else:
    import _signal as signal

_CLOCK_MONOTONIC = 1
#: Where glibc before 2.34 has timers.
_OLD_HOME = "librt.so.1"
#: struct sigevent: a value, the signal, how it is sent (SIGEV_SIGNAL), and room for more.
_EVENT = struct.Struct("Pii48x")
#: struct itimerspec: the interval (none), and the time until it goes off; seconds and nanoseconds each.
_TIME = struct.Struct("llll")


class Alarm:
    """Goes off when it was not put off for a while, and continues the process.

    To a process that runs SIGCONT means nothing. A fork has no part in it.
    """

    def __init__(self) -> None:
        self._timer: Any = None
        self._set: Optional[Callable[..., int]] = None
        create = processes.c_function("timer_create", _OLD_HOME)
        if create is None:
            return
        try:
            ctypes: Any = __import__("_ctypes")

            class Pointer(ctypes._SimpleCData):  # type: ignore[misc]
                _type_ = "P"

            timer = Pointer()
            if create(_CLOCK_MONOTONIC, _EVENT.pack(0, signal.SIGCONT, 0), ctypes.byref(timer)) == 0:
                self._timer, self._set = timer, processes.c_function("timer_settime", _OLD_HOME)
        except Exception:
            pass  # not everywhere: others wake us

    def put_off(self, seconds: float) -> None:
        """Has it go off after that time, unless it is put off again."""
        if self._set is not None:
            whole = int(seconds)
            self._set(self._timer, 0, _TIME.pack(0, 0, whole, int((seconds - whole) * 1e9) + 1), None)
