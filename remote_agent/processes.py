"""Process trees: what is below a process, how it is killed, and the reaper that keeps a tree together.

A reaper is a small fork between the supervisor and one main process (the kernel, or a job's shell).
It is a subreaper, so whatever the main process starts stays below it, also after ``setsid`` and a
double fork: "kill it" means everything below the reaper.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    import socket
    from typing import Any, Callable, Collection, Dict, List, Mapping, NoReturn, Optional, Sequence, Set, Tuple
else:
    # Every session pays for what is imported before its kernel starts: `typing`, and the Python
    # halves of `signal` and `socket` with their enums, took longer than all the rest.
    import _signal as signal
    import _socket as socket

#: Seconds between SIGTERM and SIGKILL.
GRACE = 5.0
#: Seconds after which a kill walk gives up on processes that do not die (uninterruptible sleep).
WALK_LIMIT = 10.0
#: Seconds that a reaper gets for its own work before the supervisor does it.
REAPER_LATE = 1.0

#: More than a supervisor ever holds open.
_MAX_DESCRIPTORS = 4096

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36


def c_function(name: str, *libraries: str) -> Optional[Callable[..., int]]:
    """A function of the C library, or of others, that takes ints and pointers and returns an int; None without it."""
    # `_ctypes` alone costs a quarter of `ctypes`; every start of a session pays for it.
    try:
        ctypes: Any = __import__("_ctypes")

        class CInt(ctypes._SimpleCData):  # type: ignore[misc]
            _type_ = "i"

        class Function(ctypes.CFuncPtr):  # type: ignore[misc]
            _flags_ = 1  # FUNCFLAG_CDECL
            _restype_ = CInt

    except Exception:
        try:
            function: Callable[..., int] = getattr(__import__("ctypes").CDLL(None), name)
            return function
        except Exception:
            return None
    for library in (None,) + libraries:
        try:
            return Function(ctypes.dlsym(ctypes.dlopen(library, 0), name))
        except Exception:
            pass  # the next may have it
    return None


_prctl = c_function("prctl")


def become_subreaper() -> None:
    """Makes orphans among the descendants climb to this process instead of to PID 1."""
    if _prctl is not None:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def forbid_inspection() -> None:
    """Hides memory and environment of this process from other processes of the same user."""
    if _prctl is not None:
        _prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def wake_with_parent() -> None:
    """Continues this process, should it be stopped, when its parent ends.

    The signal follows the thread that started us, which may end earlier; to a process that runs it
    means nothing.
    """
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGCONT, 0, 0, 0)


class NoProcess(OSError):
    """A fork that failed; the text says why, and what to do."""

    def __str__(self) -> str:
        return self.strerror or "no process can be started"


def fork() -> int:
    """As `os.fork`. `NoProcess`."""
    try:
        return os.fork()
    except OSError as error:
        raise NoProcess(error.errno, __import__("scarce").why(error)) from None


def new_session() -> None:
    """Leaves the session and the process group of whoever started us. Where that is forbidden nothing depends on it:
    trees are held together by their reapers."""
    for leave in (os.setsid, lambda: os.setpgid(0, 0)):
        try:
            leave()
            return
        except OSError:
            pass


def close_all_but(*keep: int) -> None:
    """Closes every descriptor but these."""
    try:
        highest = max(int(entry) for entry in os.listdir("/proc/self/fd"))
    except (OSError, ValueError):
        # The list is closed to a process that forbids inspection, and elsewhere there is none.
        highest = _MAX_DESCRIPTORS
    low = 0
    for fd in sorted(keep):
        if low < fd:  # an empty range from 0 on counts as "all" in some versions
            os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, highest + 1)


def make_folder(path: bytes) -> None:
    """Makes a folder below the session's own, and that one too, should a cell have removed them.

    A link in its place goes; what another user put there is not used (an OSError).
    """
    for folder in (os.path.dirname(path), path):
        try:
            os.mkdir(folder, 0o700)
            continue
        except FileExistsError:
            found = os.lstat(folder)
        if not stat.S_ISDIR(found.st_mode):
            os.unlink(folder)
            os.mkdir(folder, 0o700)
        elif found.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "it belongs to another user", os.fsdecode(folder))


def ignore_signals() -> None:
    """A cell may signal whatever runs as its user; only SIGKILL and SIGSTOP get through to us."""
    for number in range(1, signal.NSIG):
        if number not in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD):
            try:
                signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError):
                pass


def _default_signals() -> None:
    for number in range(1, signal.NSIG):
        try:
            if signal.getsignal(number) is not signal.SIG_DFL:
                signal.signal(number, signal.SIG_DFL)
        except (OSError, ValueError):
            pass
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


#: Reapers of processes that are ours and no work of a script's.
own_reapers: Set[int] = set()


def descendants(root: int, besides: Collection[int] = ()) -> List[int]:
    """All living processes below ``root``, parents before children; not some of them and what is below those."""
    below: Dict[int, List[int]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open("/proc/" + entry + "/stat", "rb") as file:
                fields = file.read().rsplit(b")", 1)[1].split()
        except (OSError, IndexError):
            continue
        if fields[0] not in (b"Z", b"X"):
            below.setdefault(int(fields[1]), []).append(int(entry))
    found: List[int] = []
    queue = [root]
    while queue:
        children = [pid for pid in below.get(queue.pop(), ()) if pid not in besides]
        found.extend(children)
        queue.extend(children)
    return found


def signal_all(pids: Sequence[int], number: int) -> None:
    """Signals each process that still exists."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            pass


def reap(wake: Sequence[int] = ()) -> List[Tuple[int, int]]:
    """Collects every child that has ended: (pid, wait status). Those of ``wake`` that were stopped go on."""
    ended: List[Tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        if not os.WIFSTOPPED(status):
            ended.append((pid, status))
        elif pid in wake:
            signal_all([pid], signal.SIGCONT)


def nothing_below() -> bool:
    """Whether nothing is left below this process, a subreaper. False where only ended children are.

    Exact, and without a walk of /proc: who has descendants has a child, for orphans climb up.
    """
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def kill_below(
    root: int, ended: Callable[[int, int], None] = lambda pid, status: None, spared: Sequence[int] = ()
) -> bool:
    """Kills everything below ``root`` (this process or one above nothing of ours), but for some processes and what is
    below those; True when nothing else is left.

    Stopped first and killed after, so that a fork bomb stands still while it is taken down. ``ended``
    is told of every child of this process that is collected meanwhile.
    """
    if root == os.getpid() and nothing_below():
        return True
    deadline = time.monotonic() + WALK_LIMIT
    pause = 0.001
    while True:
        pids = descendants(root, spared)
        signal_all(pids, signal.SIGSTOP)
        signal_all(pids, signal.SIGKILL)
        # After the signals: a number that is collected may already be another process's.
        if root == os.getpid():
            for pid, status in reap():
                ended(pid, status)
        if not pids:
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(pause * 2, 0.02)


def kill_tree(pid: int) -> None:
    """Kills a process that is no child of a reaper any more, and everything below it."""
    signal_all([pid], signal.SIGSTOP)
    kill_below(pid)
    signal_all([pid], signal.SIGKILL)


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
        return 0 if nothing_below() else len(descendants(os.getpid(), own_reapers))

    def terminate(self) -> None:
        """SIGTERM to everything, SIGKILL after the grace."""
        self._order(b"t", GRACE)

    def kill(self) -> None:
        """SIGKILL to everything."""
        self._order(b"k", 0.0)

    def expired(self) -> None:
        """The reaper does not do its work: the tree is ended over its head."""
        self.deadline = None
        kill_tree(self.pid)

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
        signal_all([self.pid], signal.SIGCONT)
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
        pid = fork()
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
        new_session()
        become_subreaper()
        try:
            main = fork()
        except OSError as error:
            theirs.send(b"E" + str(error).encode("utf-8", "backslashreplace"))
            os._exit(1)
        if main == 0:
            start(theirs)
        theirs.send(b"P%d" % main)
        close_all_but(theirs.fileno())
        _Reaper(main, theirs, outlived, own).run()
    finally:
        os._exit(0)


def _run_alone(run: Callable[[], None], keep: Sequence[int]) -> NoReturn:
    try:
        new_session()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        quiet = null()
        for fd in (0, 1, 2):
            os.dup2(quiet, fd)
        close_all_but(0, 1, 2, *keep)
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
        new_session()
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


class _Reaper:
    def __init__(self, main: int, control: socket.socket, outlived: bool, own: bool) -> None:
        self.main = main
        self.control = control
        self.outlived = outlived
        self.woken = [main] if own else []
        self.main_ended = False
        self.deadline: Optional[float] = None

    def run(self) -> None:
        wake = wake_on_child()
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        poll.register(self.control, select.POLLIN)
        while True:
            for pid, status in reap(self.woken):
                self._ended(pid, status)
            if self.deadline is None and self.main_ended and self.outlived and nothing_below():
                return
            if self.deadline is not None:
                # Not before the last child is collected: how the main process ended must be told.
                if nothing_below():
                    return
                if time.monotonic() >= self.deadline:
                    kill_below(os.getpid(), self._ended)
                    return
            for fd, _ in poll.poll(None if self.deadline is None else 20):
                if fd == wake:
                    drain(wake)
                else:
                    self._order(self.control.recv(1))

    def _ended(self, pid: int, status: int) -> None:
        if pid == self.main:
            self.main_ended = True
            self.control.send(b"S%d" % status)

    def _order(self, order: bytes) -> None:
        now = time.monotonic()
        if order == b"t":
            if self.deadline is None:
                try:
                    os.killpg(self.main, signal.SIGTERM)
                except OSError:
                    pass
                pids = descendants(os.getpid())
                signal_all([pid for pid in pids if not _in_group(pid, self.main)], signal.SIGTERM)
                signal_all(pids, signal.SIGCONT)
                self.deadline = now + GRACE
        else:  # "k", or the supervisor is gone
            self.deadline = now


def _in_group(pid: int, group: int) -> bool:
    try:
        return os.getpgid(pid) == group
    except OSError:
        return False


def wake_on_child() -> int:
    """A descriptor that can be read when a child has ended or stopped; see `drain`."""
    wake, waker = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(waker, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    return wake


def drain(fd: int) -> None:
    """Empties a wake-up pipe."""
    try:
        os.read(fd, 4096)
    except BlockingIOError:
        pass


def null() -> int:
    """A descriptor on /dev/null, open for both directions."""
    return os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)


def report(text: str) -> None:
    """One line for the broker's log."""
    try:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        pass
