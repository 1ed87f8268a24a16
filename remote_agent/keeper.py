"""The guard of a session whose messages travel through a directory: it watches the supervisor and the lease, and
removes what is left. As PID 1 it also ends the session when the container is to end.
"""

from __future__ import annotations

import os
import time

import directory
import folders
import frames
import processes
import trees
from alarm import Alarm
from lease import STOPPED, Lease, seize, take_leave
from watch import Watch

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    import signal
    from typing import List, NoReturn, Optional, Tuple
else:
    import _signal as signal

#: Seconds that the supervisor gets to end the session, once it has to: changes of files that have begun come to their
#: end, or are taken back. Less than the ten that engines leave a container.
_END_LIMIT = trees.GRACE + 1.0
#: Signals that end the session when the guard is PID 1: what engines send to a container.
_END = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)


def guard(
    pid: int, made: List[bytes], bases: List[bytes], terms: Tuple[float, float], relay: int, held: int
) -> NoReturn:
    """Guards the session to its end.

    ``pid`` is its supervisor, ``made`` its directory and its folder on a disk, ``bases`` where others may lie,
    ``terms`` those of the lease, ``relay`` the first relay, should it be our child, ``held`` what shows the supervisor
    that we live.
    """
    # The stream of a relay that is our child does not end with it, but with us.
    stream = os.dup(1) if relay else -1
    processes.withdraw(held, stream)
    own = os.getpid()
    folder = directory.Directory(made[0])
    folder.lock(directory.GUARD)
    watch = LeaseWatch(pid, held, folder, Lease(*terms), made, bases)
    watch.relay, watch.stream = relay, stream
    status = watch.run()
    _settle(made[0])
    processes.kill_below(own, spared=[relay])
    take_leave(folder, watch.why or _how(status), made)
    processes.kill_below(own)
    os._exit(0)


def _settle(session: bytes) -> None:
    """Whatever became of the supervisor: changes of files that have begun come to their end, or are taken back."""
    end = time.monotonic() + trees.GRACE
    while time.monotonic() < end:
        try:
            if not os.listdir(os.path.join(session, folders.NOTES)):
                return
        except OSError:
            return
        time.sleep(0.005)


def _how(status: Optional[int]) -> bytes:
    if status == 0:
        return b"it was closed"
    if status is None:
        return b"the process that runs it is gone"
    if status & 0x7F == signal.SIGKILL:
        return b"the process that runs it was killed"
    if status & 0x7F:
        name = signal.strsignal(status & 0x7F) or "?"
        return b"the process that runs it was ended by signal %d (%s)" % (status & 0x7F, name.encode())
    return b"the process that runs it exited with %d" % (status >> 8)


class LeaseWatch(Watch):
    """Sees to it that the supervisor goes when nothing is heard of the broker."""

    def __init__(
        self,
        pid: int,
        held: int,
        folder: directory.Directory,
        lease: Lease,
        made: List[bytes],
        bases: List[bytes],
    ) -> None:
        super().__init__(pid)
        #: Why it had to go, where it was our doing.
        self.why = b""
        #: The end of the supervisor's pipe by which it is told, and when it must have gone.
        self._held = held
        self._deadline: Optional[float] = None
        self._folder = folder
        self._lease = lease
        self._lease.calm = True  # the supervisor knows when more is needed
        self._alarm = Alarm()
        self._made, self._bases = made, bases
        #: The first relay, should it be our child, and the stream that it carries.
        self.relay, self.stream = 0, -1
        self._due = time.monotonic()
        if os.getpid() == 1:
            for number in _END:
                signal.signal(number, self._asked)

    def judge(self) -> Optional[int]:
        """Looks at the lease every few seconds."""
        now = time.monotonic()
        if not self.why and now >= self._due:
            self._look()
            self._due = now + self._lease.interval
        if self.why:
            self._end(now)
            self._due = now + 0.05
        return max(0, int((self._due - now) * 1000) + 1)

    def _end(self, now: float) -> None:
        """Has the supervisor end the session; one that does not is killed."""
        if self._deadline is None:
            self._deadline = now + _END_LIMIT
            try:
                os.write(self._held, self.why)
            except OSError:
                pass  # it has just gone
            processes.signal_all([self.pid], signal.SIGCONT)
        elif now >= self._deadline:
            processes.signal_all([self.pid], signal.SIGKILL)

    def _look(self) -> None:
        self._alarm.put_off(self._lease.interval + STOPPED)
        if self._folder.is_gone():
            try:
                self._folder.open()
                self._folder.lock(directory.GUARD)
            except OSError:
                pass  # the supervisor is to make it anew
        self._folder.wake_others()
        if self._lease.is_over(self._folder) and seize(self._folder, self._lease):
            self.why = self._lease.why
        elif self._bases and self._lease.has_begun:
            import orphans  # the start is not to wait for it

            orphans.sweep(self._bases, self._made)
            self._bases = []

    def other_ended(self, pid: int) -> None:
        """Tells the broker that the relay has ended, and lets go of its stream."""
        if pid == self.relay and self.stream >= 0:
            try:
                os.write(self.stream, frames.pack(b"E", b"", b"the relay has ended"))
            except OSError:
                pass  # nobody reads it, and the broker notices the silence
            os.close(self.stream)
            self.stream = -1

    def _asked(self, number: int, frame: object) -> None:
        self.why = b"the container was asked to stop"
