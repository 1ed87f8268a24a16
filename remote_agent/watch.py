"""How a guard watches the supervisor, its child: that it lives, and that it is not stopped."""

from __future__ import annotations

import os
import select

import processes

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    import signal
    from typing import Optional
else:
    import _signal as signal

#: Times that a stopped supervisor is woken before it counts as lost.
WAKE_LIMIT = 50


class Watch:
    """Watches the supervisor until it is gone."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.poll = select.poll()
        self._wake = processes.wake_on_child()
        self._woken = 0
        self.poll.register(self._wake, select.POLLIN)

    def run(self) -> Optional[int]:
        """Returns when the supervisor is gone: its wait status, where it is known."""
        while True:
            status = self._collect()
            if status is not None or self.pid == 0:
                return status
            for fd, _ in self.poll.poll(self.judge()):
                if fd == self._wake:
                    processes.drain(fd)
                else:
                    self.hung_up(fd)

    def judge(self) -> Optional[int]:
        """Decides whether the supervisor has to go. Milliseconds until it wants to be asked again."""
        return None

    def hung_up(self, fd: int) -> None:
        """Is told that nobody holds the other end of a descriptor."""

    def other_ended(self, pid: int) -> None:
        """Is told that another child has ended."""

    def _collect(self) -> Optional[int]:
        while True:
            try:
                ended, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                self.pid = 0
                return None
            if ended == 0:
                return None
            if ended == self.pid:
                if not os.WIFSTOPPED(status):
                    return status
                self._woken += 1
                processes.signal_all([ended], signal.SIGCONT if self._woken < WAKE_LIMIT else signal.SIGKILL)
            elif not os.WIFSTOPPED(status):
                self.other_ended(ended)
