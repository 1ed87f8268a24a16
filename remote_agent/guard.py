"""The guard: the process that outlives all others of a session and leaves nothing behind.

It starts the supervisor and then only watches: that the supervisor lives and is not stopped, and
that the broker is still there (here: that it holds the other end of fd 0). It writes nothing in normal
times.
"""

from __future__ import annotations

import os
import sys
import time

import folders
import processes
from pipe import Pipe
from supervisor import Supervisor
from watch import Watch

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    import signal
    from typing import List, Optional

    from kernels import Program
else:
    import _signal as signal

#: Seconds that the supervisor gets to clean up by itself once the broker is gone.
OWN_CLEANUP = 1.0


#: The longest path a Unix socket may have, with some room (108 on Linux, 104 elsewhere).
SOCKET_PATH = 100


def main(bases: List[bytes], name: bytes, program: Program) -> None:
    """Runs the session's guard; never returns.

    ``bases`` are folders in which the session's own may be made, best first.
    """
    # What the broker was started with beyond these is none of the scripts' business, and a pipe
    # among it would stay open as long as the session.
    processes.close_all_but(0, 1, 2)
    processes.new_session()
    processes.ignore_signals()
    processes.become_subreaper()
    processes.forbid_inspection()
    processes.wake_with_parent()
    # The supervisor holds the read end: end-of-file there means that the guard was killed.
    life, held = os.pipe()
    made = _make_folders(bases, name)
    guard = os.getpid()
    try:
        pid = processes.fork()
    except OSError as error:
        folders.remove(made)
        sys.exit(str(error))
    if pid == 0:
        os.close(held)
        code = 1
        try:
            code = Supervisor(Pipe(made), made, guard, life, program).run()
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)
    os.close(life)
    quiet = processes.null()
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    os.close(quiet)
    PipeWatch(pid).run()
    processes.kill_below(os.getpid())
    folders.remove(made)
    os._exit(0)


def _make_folders(bases: List[bytes], name: bytes) -> List[bytes]:
    """Makes the session's folder and says which (empty: none could be made).

    A second one follows where the first is too deep for a socket. Made here and not by the broker:
    from the first moment there is somebody who removes them.
    """
    made: List[bytes] = []
    for base in sorted(bases, key=folders.is_full):
        folder = base + b"/" + name
        if made and len(folder) + len(b"/rpc.sock") > SOCKET_PATH:
            continue
        try:
            os.mkdir(folder, 0o700)
        except OSError:
            continue
        made.append(folder)
        if len(folder) + len(b"/rpc.sock") <= SOCKET_PATH:
            break
    return made


class PipeWatch(Watch):
    """Sees to it that the supervisor goes when the broker does."""

    def __init__(self, pid: int) -> None:
        super().__init__(pid)
        self.poll.register(0, 0)  # only "the other end hung up"
        self._deadline: Optional[float] = None

    def judge(self) -> Optional[int]:
        """Kills the supervisor when it has not gone by itself."""
        if self._deadline is None:
            return None
        if time.monotonic() >= self._deadline:
            processes.signal_all([self.pid], signal.SIGKILL)
        return 50

    def hung_up(self, fd: int) -> None:
        """The broker has gone."""
        self.poll.unregister(fd)
        self._deadline = time.monotonic() + OWN_CLEANUP
