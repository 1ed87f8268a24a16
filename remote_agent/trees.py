"""Process trees, and the reaper that keeps one together.

A reaper is a small fork between the supervisor and one main process (the kernel, or a job's shell).
It is a subreaper, so whatever the main process starts stays below it, also after ``setsid`` and a
double fork: "kill it" means everything below the reaper.
"""

from __future__ import annotations

import os
import select
import time

import processes

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    import signal
    import socket
    from typing import Callable, Mapping, NoReturn, Optional, Sequence, Set, Tuple
else:
    import _signal as signal
    import _socket as socket

#: Seconds between SIGTERM and SIGKILL.
GRACE = 5.0
#: Seconds that a reaper gets for its own work before the supervisor does it.
REAPER_LATE = 1.0

#: Reapers of processes that are ours and no work of a script's.
own_reapers: Set[int] = set()

_EVENTS = {b"P": "main", b"S": "status", b"E": "failed"}


class Tree:
    """The supervisor's view of a reaper and what is below it.

    ``control`` becomes readable when there is an event.
    """

    def __init__(self, pid: int, control: socket.socket) -> None:
        self.pid = pid
        self.control = control
        #: When the reaper counts as lost: it was told to end the tree and has not.
        self.deadline: Optional[float] = None

    def remaining(self) -> int:
        """What is left below this process once the tree is gone: background children of jobs, and their reapers."""
        try:
            os.waitpid(self.pid, 0)  # its end of the control closes a moment before it can be collected
        except ChildProcessError:
            pass
        return 0 if processes.nothing_below() else len(processes.descendants(os.getpid(), own_reapers))

    def terminate(self) -> None:
        """SIGTERM to everything, SIGKILL after the grace."""
        self._order(b"t", GRACE)

    def kill(self) -> None:
        """SIGKILL to everything."""
        self._order(b"k", 0.0)

    def expired(self) -> None:
        """The reaper does not do its work: the tree is ended over its head."""
        self.deadline = None
        processes.kill_tree(self.pid)

    def receive(self) -> Tuple[str, bytes]:
        """The next event: ``main`` pid, ``status``, ``failed`` text, ``gone``, or ``none`` for now."""
        try:
            event = self.control.recv(4096)
        except BlockingIOError:
            return "none", b""
        except OSError:
            return "gone", b""
        return _EVENTS.get(event[:1], "gone"), event[1:]

    def _order(self, order: bytes, grace: float) -> None:
        due = time.monotonic() + grace + REAPER_LATE
        self.deadline = due if self.deadline is None else min(due, self.deadline)
        processes.signal_all([self.pid], signal.SIGCONT)
        try:
            self.control.send(order)
        except OSError:
            pass  # the reaper is gone, so is its tree


def spawn(
    argv: Sequence[bytes],
    environment: Mapping[bytes, bytes],
    folder: bytes,
    stdio: Tuple[int, int, int],
    keep: Sequence[int] = (),
    outlived: bool = False,
    apart: bytes = b"",
) -> Tree:
    """Starts ``argv`` under a reaper of its own, in its own process session.

    It starts in ``folder``; with ``apart`` in that one, though only if ``folder`` can be entered.

    ``keep`` are descriptors that the main process inherits under the same numbers. The reaper stays until it is told
    to end the tree, or its supervisor is gone; with ``outlived`` it leaves when main process and all below have ended.
    """
    folders = [folder, apart or folder]
    return _under_reaper(lambda control: _become(argv, environment, folders, stdio, keep, control), outlived, False)


def spawn_own(run: Callable[[], None], *keep: int) -> Tree:
    """Runs a function of ours, with these descriptors, in a process under a reaper of its own.

    It is no work of the script's: it does not count as left of the session, and goes on when it is stopped.
    """
    tree = _under_reaper(lambda _: _run_alone(run, keep), False, True)
    own_reapers.add(tree.pid)
    return tree


def _under_reaper(start: Callable[[socket.socket], NoReturn], outlived: bool, own: bool) -> Tree:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        pid = processes.fork()
    except OSError:
        ours.close()
        theirs.close()
        raise
    if pid:
        theirs.close()
        ours.setblocking(False)
        return Tree(pid, ours)
    try:
        ours.close()
        processes.new_session()
        processes.become_subreaper()
        try:
            main = processes.fork()
        except OSError as error:
            theirs.send(b"E" + str(error).encode("utf-8", "backslashreplace"))
            os._exit(1)
        if main == 0:
            start(theirs)
        theirs.send(b"P%d" % main)
        processes.close_all_but(theirs.fileno())
        _Reaper(main, theirs, outlived, own).run()
    finally:
        os._exit(0)


def _run_alone(run: Callable[[], None], keep: Sequence[int]) -> NoReturn:
    try:
        processes.new_session()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        quiet = processes.null()
        for fd in (0, 1, 2):
            os.dup2(quiet, fd)
        processes.close_all_but(0, 1, 2, *keep)
        os.chdir("/")
        run()
    finally:
        os._exit(0)


def _become(
    argv: Sequence[bytes],
    environment: Mapping[bytes, bytes],
    folders: Sequence[bytes],
    stdio: Tuple[int, int, int],
    keep: Sequence[int],
    control: socket.socket,
) -> NoReturn:
    try:
        processes.new_session()
        # Above the standard three first: a pipe end may itself be 0, 1 or 2.
        lifted = [os.dup(fd) for fd in stdio]
        for target, fd in enumerate(lifted):
            os.dup2(fd, target)
        for fd in keep:
            os.set_inheritable(fd, True)
        _default_signals()
        for folder in folders:
            try:
                os.chdir(folder)
            except OSError as error:
                text = "the working directory cannot be entered: %s" % error.strerror
                raise OSError(error.errno, text, os.fsdecode(folder)) from None
        os.execve(argv[0], list(argv), environment)
    except OSError as error:
        control.send(b"E" + str(error).encode("utf-8", "backslashreplace"))
    finally:
        os._exit(127)


def _default_signals() -> None:
    for number in range(1, signal.NSIG):
        try:
            if signal.getsignal(number) is not signal.SIG_DFL:
                signal.signal(number, signal.SIG_DFL)
        except (OSError, ValueError):
            pass
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


class _Reaper:
    def __init__(self, main: int, control: socket.socket, outlived: bool, own: bool) -> None:
        self.main = main
        self.control = control
        self.outlived = outlived
        self.woken = [main] if own else []
        #: Whether the supervisor is gone, and the main process, which is ours, has a while to come to its end.
        self.leaving = False
        self.main_ended = False
        self.deadline: Optional[float] = None

    def run(self) -> None:
        wake = processes.wake_on_child()
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        poll.register(self.control, select.POLLIN)
        while True:
            for pid, status in processes.reap(self.woken):
                self._ended(pid, status)
            if self.leaving and self.main_ended:
                self.deadline = time.monotonic()
            if self.deadline is None and self.main_ended and self.outlived and processes.nothing_below():
                return
            if self.deadline is not None:
                # Not before the last child is collected: how the main process ended must be told.
                if processes.nothing_below():
                    return
                if time.monotonic() >= self.deadline:
                    processes.kill_below(os.getpid(), self._ended)
                    return
            for fd, _ in poll.poll(None if self.deadline is None else 20):
                if fd == wake:
                    processes.drain(wake)
                else:
                    order = self.control.recv(1)
                    if not order:
                        poll.unregister(self.control)
                    self._order(order)

    def _ended(self, pid: int, status: int) -> None:
        if pid == self.main:
            self.main_ended = True
            try:
                self.control.send(b"S%d" % status)
            except OSError:
                pass  # the supervisor is gone

    def _order(self, order: bytes) -> None:
        now = time.monotonic()
        if order == b"t":
            if self.deadline is None:
                try:
                    os.killpg(self.main, signal.SIGTERM)
                except OSError:
                    pass
                pids = processes.descendants(os.getpid())
                processes.signal_all([pid for pid in pids if not _in_group(pid, self.main)], signal.SIGTERM)
                processes.signal_all(pids, signal.SIGCONT)
                self.deadline = now + GRACE
        elif not order and self.woken:
            processes.signal_all(self.woken, signal.SIGCONT)
            self.leaving, self.deadline = True, now + GRACE
        else:  # "k", or the supervisor is gone
            self.deadline = now


def _in_group(pid: int, group: int) -> bool:
    try:
        return os.getpgid(pid) == group
    except OSError:
        return False
