"""Processes: what is below one and how it is killed, and what a process of ours does with itself."""

from __future__ import annotations

import errno
import os
import stat
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import Any, Callable, Collection, Dict, List, Optional, Sequence, Tuple
else:
    # Every session pays for what is imported before its kernel starts: `typing`, and the Python
    # halves of `signal` and `socket` with their enums, took longer than all the rest.
    import _signal as signal

#: Seconds after which a kill walk gives up on processes that do not die (uninterruptible sleep).
WALK_LIMIT = 10.0
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


def withdraw(*keep: int) -> None:
    """Lets go of all descriptors but these, and of the working directory: nobody is to wait for us."""
    quiet = null()
    for target in (0, 1, 2):
        os.dup2(quiet, target)
    close_all_but(0, 1, 2, *keep)
    os.chdir("/")


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
