"""The session's directory D: its files, bells, numbers and locks, as each of our processes uses them.

The rules are those of the directory protocol: write aside, rename, ring; drain the own bell, then look.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
import sys

import processes

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    import signal
    from typing import Any, Dict, List, Optional, Tuple
else:
    import _signal as signal

#: Bytes of `lock`, one for each role.
SUPERVISOR, GUARD, RELAY = 0, 1, 2
#: Files that hold one number each.
NUMBERS = (b"lease", b"taken", b"acked")
#: Room for events when the disk is full.
RESERVE = 1 << 16
#: Room for a few words (`fence`, `ended`): they must be written also when the disk is full.
WORDS = 256
#: Bytes of a message for which there is room in a link.
SHORT = 60
#: An unread bell of this size may have lost hints: it takes a page at least.
FULL_BELL = 2048
#: What stands in a request or an answer whose content lies in `disk` under the same name.
ELSEWHERE = b"@"

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OLD = os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_NUMBER = struct.Struct(">Q")
_USER = os.geteuid()
# struct flock, for which the library has no name.
_FLOCK = struct.Struct("qqihh" if sys.platform == "darwin" or "bsd" in sys.platform else "hhqqi4x")


class Refused(Exception):
    """A file of somebody else's making that is not used; the text says why."""


def put(path: bytes, data: bytes, below: Optional[int] = None) -> None:
    """Makes a file under its name at once and whole, in a folder that is open where one is given.

    OSError: it could not be, and nothing is left.
    """
    folder, slash, name = path.rpartition(b"/")
    aside = folder + slash + b"~" + name
    try:
        fd = os.open(aside, _NEW, 0o600, dir_fd=below)
    except FileExistsError:  # left by a process that was killed
        os.unlink(aside, dir_fd=below)
        fd = os.open(aside, _NEW, 0o600, dir_fd=below)
    try:
        try:
            write_all(fd, data)
        finally:
            os.close(fd)
        os.rename(aside, path, src_dir_fd=below, dst_dir_fd=below)
    except OSError:
        unlink(aside, below)
        raise


def write_all(fd: int, data: bytes) -> None:
    """Writes all of it to a file."""
    written = os.write(fd, data)
    while written < len(data):
        written += os.write(fd, data[written : written + (1 << 20)])


def open_old(path: bytes, limit: int, access: int = os.O_RDONLY) -> Tuple[int, int]:
    """Opens a regular file of ours: its descriptor and size. FileNotFoundError, or `Refused`."""
    try:
        fd = os.open(path, _OLD | access)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Refused("it cannot be opened: %s" % error.strerror) from None
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != _USER:
        why = "it is no regular file of the user's own"
    elif found.st_size > limit:
        why = "it holds %d bytes, and the limit is %d" % (found.st_size, limit)
    else:
        return fd, found.st_size
    os.close(fd)
    raise Refused(why)


def read(path: bytes, limit: int) -> Optional[bytes]:
    """The content of a regular file of ours; None when it is not there. `Refused`."""
    try:
        fd, size = open_old(path, limit)
    except FileNotFoundError:
        return None
    try:
        data = os.read(fd, size + 1)
        while len(data) > size:  # it has grown meanwhile
            more = os.read(fd, 1 << 20)
            if not more:
                break
            data += more
        return data
    finally:
        os.close(fd)


def put_short(path: bytes, data: bytes) -> None:
    """Makes a few bytes that need no room: the target of a link. OSError: there is none even for that."""
    os.symlink(b"=" + data.hex().encode("ascii"), path)


def short(path: bytes) -> Optional[bytes]:
    """What was made so; None when there is no such thing."""
    try:
        mark, text = os.readlink(path)[:1], os.readlink(path)[1:]
        return bytes.fromhex(text.decode("ascii")) if mark == b"=" and os.lstat(path).st_uid == _USER else None
    except (OSError, ValueError):
        return None


def put_words(path: bytes, words: bytes) -> None:
    """Writes a few words into a file that has room for them."""
    fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.pwrite(fd, words[:WORDS].ljust(WORDS), 0)
    finally:
        os.close(fd)


def words(path: bytes) -> Optional[bytes]:
    """What was written so; None when it is not there."""
    try:
        found = read(path, WORDS)
    except Refused as refused:
        return str(refused).encode()
    return None if found is None else found.strip()


def unlink(path: bytes, below: Optional[int] = None) -> bool:
    """Removes a file, from a folder that is open where one is given. Whether it was there."""
    try:
        os.unlink(path, dir_fd=below)
        return True
    except OSError:
        return False


def names(folder: bytes) -> List[bytes]:
    """What is in a folder."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def ring(bell: int, text: bytes = b"!") -> bool:
    """Rings an open bell. Whether somebody listens."""
    try:
        os.write(bell, text)
    except BlockingIOError:
        pass  # it is full, so it rings
    except OSError:
        return False
    return True


def drain(bell: int) -> bytes:
    """What lies in the own bell."""
    try:
        return os.read(bell, 1 << 16)
    except BlockingIOError:
        return b""


class Directory:
    """D as one process sees it. It holds one descriptor of `lock`, for closing any would free its locks."""

    def __init__(self, path: bytes) -> None:
        self.path = path
        self._lock = -1
        self._disk = -1
        self._numbers: Dict[bytes, int] = {}
        self._bells: Dict[bytes, int] = {}
        self.open()

    def at(self, name: bytes) -> bytes:
        """The path of a file in D."""
        return self.path + b"/" + name

    def open(self) -> None:
        """Opens what is kept open, now or anew. OSError: it is not there, or not ours. Locks are not taken."""
        check_ours(self.path)
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        opened: List[int] = []
        try:
            for name in (b"lock",) + NUMBERS:
                opened.append(os.open(self.at(name), flags))
        except OSError:
            for fd in opened:
                os.close(fd)
            raise
        self._close()
        self._lock = opened[0]
        self._numbers = dict(zip(NUMBERS, opened[1:]))

    def _close(self) -> None:
        for fd in [self._lock] + list(self._numbers.values()) + list(self._bells.values()):
            if fd >= 0:
                os.close(fd)
        self._bells.clear()

    def _opened(self) -> int:
        """A descriptor of the folder itself: something else may be put in its place at any time. OSError: it was."""
        below = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            _check_ours(os.fstat(below), self.path)
        except OSError:
            os.close(below)
            raise
        return below

    def put(self, name: bytes, data: bytes) -> None:
        """Makes a file in D, and in nothing else that bears its name. OSError."""
        below = self._opened()
        try:
            put(name, data, below)
        finally:
            os.close(below)

    def is_gone(self) -> bool:
        """Whether it was removed, or replaced, since it was opened."""
        return os.fstat(self._lock).st_nlink == 0

    def number(self, name: bytes) -> int:
        """The number in a file."""
        data = os.pread(self._numbers[name], 8, 0)
        return _NUMBER.unpack(data)[0] if len(data) == 8 else 0  # type: ignore[no-any-return]

    def set_number(self, name: bytes, value: int) -> None:
        """Writes it in place: there is room for it, whatever else is full."""
        os.pwrite(self._numbers[name], _NUMBER.pack(value), 0)

    # --- locks -------------------------------------------------------------------------

    def lock(self, byte: int) -> bool:
        """Takes a byte of the lock for this process, if it is free."""
        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
            return True
        except OSError:
            return False

    def hold_disk(self) -> None:
        """Shows by a lock that the folder on a disk is in use: it may outlive a directory in memory."""
        try:
            if self._disk >= 0 and os.fstat(self._disk).st_nlink:
                return
            fd = os.open(self.at(b"disk/lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            if self._disk >= 0:
                os.close(self._disk)
            self._disk = fd
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError:
            pass  # there is no folder just now, or no room

    def unlock(self, byte: int) -> None:
        """Gives it back."""
        fcntl.lockf(self._lock, fcntl.LOCK_UN, 1, byte)

    def holder(self, byte: int) -> int:
        """The process that holds a byte of the lock; 0: none, or this one."""
        kind, pid = _locked(self._lock, byte, 1)
        return 0 if kind == fcntl.F_UNLCK else pid

    def wake_others(self) -> None:
        """Wakes the other processes of the session, should a script have stopped them, or be about to.

        To one that runs SIGCONT means nothing, so none is looked at first: that costs more.
        """
        holders = [self.holder(byte) for byte in (SUPERVISOR, GUARD, RELAY)]
        processes.signal_all([pid for pid in holders if pid > 0], signal.SIGCONT)

    # --- bells -------------------------------------------------------------------------

    @staticmethod
    def is_bell_gone(bell: int) -> bool:
        """Whether a bell that is listened at was removed: nobody finds it any more."""
        return os.fstat(bell).st_nlink == 0

    def listen(self, name: bytes) -> int:
        """Makes a bell if it is not there, and opens it to be rung."""
        below = self._opened()
        try:
            try:
                os.mkfifo(name, 0o600, dir_fd=below)
            except FileExistsError:
                pass
            fd = os.open(name, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=below)
        finally:
            os.close(below)
        _check_bell(fd)
        return fd

    def ring(self, name: bytes, text: bytes = b"!") -> bool:
        """Rings a bell. Whether somebody listens."""
        for fresh in (False, True):
            fd = -1 if fresh else self._bells.get(name, -1)
            if fd < 0:
                try:
                    fd = os.open(self.at(name), os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
                    _check_bell(fd)
                except OSError:
                    return False
                self._keep_bell(name, fd)
            if ring(fd, text):
                return True
            self.forget_bell(name)  # nobody listens at this one; it may have been made anew
        return False

    def forget_bell(self, name: bytes) -> None:
        """Closes a bell that is rung no more."""
        fd = self.take_bell(name)
        if fd >= 0:
            os.close(fd)

    def take_bell(self, name: bytes) -> int:
        """Gives up a bell that was rung before: its descriptor, or -1."""
        return self._bells.pop(name, -1)

    def _keep_bell(self, name: bytes, fd: int) -> None:
        while len(self._bells) > 200:
            self.forget_bell(next(iter(self._bells)))
        self._bells[name] = fd


def _locked(fd: int, start: int, length: int) -> Tuple[int, int]:
    """Kind and holder of a lock in this part of a file. A holder in another container has the number 0."""
    if _FLOCK.format[0] == "q":
        found: Any = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, _FLOCK.pack(start, length, 0, fcntl.F_WRLCK, 0)))
        return int(found[3]), int(found[2])
    found = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, 0, start, length, 0)))
    return int(found[0]), int(found[4])


def is_in_use(lock: bytes) -> bool:
    """Whether another process holds any byte of this lock file of ours. OSError, `Refused`: there is none."""
    fd = open_old(lock, 0, os.O_RDWR)[0]
    try:
        return _locked(fd, 0, 0)[0] != fcntl.F_UNLCK
    finally:
        os.close(fd)


def check_ours(folder: bytes) -> None:
    """Raises OSError unless it is a folder of ours, and no link to one."""
    _check_ours(os.lstat(folder), folder)


def _check_ours(found: os.stat_result, folder: bytes) -> None:
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != _USER:
        raise PermissionError(errno.EPERM, "it is no directory of the user's own", os.fsdecode(folder))


def _check_bell(fd: int) -> None:
    found = os.fstat(fd)
    if not stat.S_ISFIFO(found.st_mode) or found.st_uid != _USER:
        os.close(fd)
        raise OSError(errno.EINVAL, "it is no FIFO of the user's own")


def make(path: bytes, disk: bytes, numbers: Dict[bytes, int]) -> None:
    """Makes D, or what is missing of it. OSError: it cannot be made here.

    ``disk`` is the folder for what is large, outside of D; empty: one in D.
    """
    _make_folder(path)
    # From here on by its descriptor: something else may be put in its place at any time.
    below = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _check_ours(os.fstat(below), path)
        _fill(below, path, disk, numbers)
    finally:
        os.close(below)


def _fill(below: int, path: bytes, disk: bytes, numbers: Dict[bytes, int]) -> None:
    for name in (b"in", b"out", b"rpc"):
        _make_folder(name, below)
    if disk:
        _make_folder(disk)
        try:
            os.symlink(disk, b"disk", dir_fd=below)
        except FileExistsError:
            pass
    else:
        _make_folder(b"disk", below)
    _make_file(b"lock", b"", below)
    for name in NUMBERS:
        _make_file(name, _NUMBER.pack(numbers.get(name, 0)), below)
    _make_file(b"reserve", bytes(RESERVE), below)
    for name in (b"fence", b"~ended"):
        _make_file(name, b" " * WORDS, below)
    for name in (b"bell.s", b"bell.r"):
        try:
            os.mkfifo(name, 0o600, dir_fd=below)
        except FileExistsError:
            pass
        except OSError as error:
            raise OSError(error.errno, "it takes no FIFO: %s" % (error.strerror or "?").lower(), path) from None


def _make_folder(path: bytes, below: Optional[int] = None) -> None:
    try:
        os.mkdir(path, 0o700, dir_fd=below)
    except FileExistsError:
        _check_ours(os.lstat(path, dir_fd=below), path)


def _make_file(name: bytes, data: bytes, below: int) -> None:
    try:
        os.lstat(name, dir_fd=below)
    except FileNotFoundError:
        put(name, data, below)
