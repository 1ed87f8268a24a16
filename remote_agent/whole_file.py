"""Writes a file whole or not at all.

The twin of ``src/tools/local_files/write.rs``; of the worker.
"""

from __future__ import annotations

import errno
import os
import stat

import aside
from workspace import (
    MAX_LINKS,
    Refusal,
    WorkspaceError,
    canonical,
    failed,
    file_name,
    is_folder,
    is_regular,
    parent,
    text,
)

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    from typing import List, Optional

#: The folder takes no new file, or the file is a mount of its own: it is written in place.
_IN_PLACE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY)


def write(path: bytes, content: bytes, protected: List[bytes]) -> List[bytes]:
    """Writes it: bytes written, the resolved path, the folders that had to be made, outermost first."""
    if path.endswith(b"/"):
        raise WorkspaceError("%s is the name of a folder; add a file name" % text(path))
    try:
        target = behind_links(path)
        # The name as given too: it may itself be a link, as dotfiles often are.
        _refuse_protected(path, os.path.normpath(path), protected)
        _refuse_protected(path, os.path.realpath(target), protected)
        existing: Optional[os.stat_result] = None
        try:
            existing = os.stat(target)
        except FileNotFoundError:
            pass
    except OSError as error:
        raise _failed(path, error) from None
    if existing is not None and stat.S_ISDIR(existing.st_mode):
        raise is_folder(target)
    above, name = parent(target), file_name(target)
    if above is None or name is None:
        raise WorkspaceError("%s is no name of a file" % text(path))
    made: List[bytes] = []
    try:
        make_folders(above, made)
        _put(target, content, existing)
    except OSError as error:
        for folder in reversed(made):
            try:
                os.rmdir(folder)  # one that is in use by now may stay
            except OSError:
                pass
        raise _failed(path, error) from None
    real = canonical(above)
    resolved = target if real is None else os.path.join(real, name)
    return [b"%d" % len(content), text(resolved).encode(), *(text(folder).encode() for folder in made)]


def _refuse_protected(path: bytes, real: bytes, patterns: List[bytes]) -> None:
    """The patterns are those of `src/tools/protected.rs`: the last that fits decides."""
    fitting = [pattern for pattern in patterns if _fits(real, pattern[1:] if pattern[:1] == b"!" else pattern)]
    if fitting and fitting[-1][:1] != b"!":
        raise WorkspaceError(
            "%s is protected: it decides who gets into the account or what each login runs, or is this broker's own; "
            "if it is really meant, write it with terminal() or Python, or set code_execution.protect_files to false"
            % text(path)
        )


def _fits(path: bytes, pattern: bytes) -> bool:
    if pattern.endswith(b"*"):
        return path.startswith(pattern[:-1]) and b"/" not in path[len(pattern) - 1 :]
    if pattern.endswith(b"/"):
        return path == pattern[:-1] or path.startswith(pattern)
    return path == pattern


def _failed(path: bytes, error: OSError) -> WorkspaceError:
    if error.errno == errno.ENOENT:
        # The file need not exist; so it is its folder that takes none.
        return WorkspaceError("cannot write %s: %s" % (text(path), without_place(path)))
    return failed("write", path, error)


def without_place(path: bytes) -> str:
    """Why nothing can be made under a name: its folder is not there, or is none in which anything is made."""
    folder = parent(path)
    if folder is not None and os.path.isdir(folder):
        return "nothing can be made in %s, which is no folder on a disk; choose another place" % text(folder)
    return "its folder has just gone; make it again, or choose another place"


def one_name(links: int) -> None:
    """A file that has several names changes under all of them when it is written in place."""
    if links > 1:
        raise Refusal(
            "its folder takes no new file, and it has %d names (hard links), under all of which it would change; "
            "use terminal() or Python if that is meant" % links
        )


def behind_links(path: bytes) -> bytes:
    """The file that is meant when the path is a symlink; it need not exist."""
    for _ in range(MAX_LINKS):
        try:
            if not stat.S_ISLNK(os.lstat(path).st_mode):
                return path
        except OSError:
            return path
        path = os.path.join(parent(path) or b"/", os.readlink(path))
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def make_folders(folder: bytes, made: List[bytes]) -> None:
    """Makes the folders that are missing and notes each."""
    missing: List[bytes] = []
    step: Optional[bytes] = folder
    while step is not None:
        try:
            if not stat.S_ISDIR(os.stat(step).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            break
        except FileNotFoundError:
            missing.append(step)
            step = parent(step)
    for step in reversed(missing):
        try:
            os.mkdir(step)
            made.append(step)
        except OSError as error:
            # Somebody else made it meanwhile, or it is `missing/..`, which exists by now.
            if os.path.isdir(step):
                continue
            if error.errno == errno.ENOENT:
                raise Refusal(without_place(step)) from None
            raise


def _put(target: bytes, content: bytes, existing: Optional[os.stat_result]) -> None:
    if existing is None:
        _replace(target, content, None)
    elif is_regular(existing):
        check_right(target)
        try:
            _replace(target, content, stat.S_IMODE(existing.st_mode))
        except OSError as error:
            if error.errno not in _IN_PLACE:
                raise
            one_name(existing.st_nlink)
            overwrite(target, content)
    else:
        _pour(target, content, existing.st_mode)


def check_right(target: bytes) -> None:
    """A file may be replaced by who may not write it: that would be more than its mode allows."""
    if not os.access(target, os.W_OK, effective_ids=True):
        read_only = os.statvfs(target).f_flag & os.ST_RDONLY
        number = errno.EROFS if read_only else errno.EACCES
        raise OSError(number, os.strerror(number))


def _replace(target: bytes, content: bytes, mode: Optional[int]) -> None:
    """Writes aside in the same folder, then renames over the target."""
    # A new file gets what the umask leaves; an existing one may be private, so nobody else may look
    # into the copy before it has the same bits.
    beside, fd = aside.create(parent(target) or b"/", 0o666 if mode is None else 0o600)
    try:
        try:
            write_all(fd, content)
            if mode is not None:
                os.fchmod(fd, mode)
            os.rename(beside, target)
        finally:
            os.close(fd)
    finally:
        aside.remove(beside)


def overwrite(target: bytes, content: bytes) -> None:
    """Writes in place, having first made sure that the disk has the room."""
    fd = os.open(target, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        before = os.fstat(fd).st_size
        reserve = getattr(os, "posix_fallocate", None)  # not on every system
        try:
            if content and reserve is not None:
                reserve(fd, 0, len(content))
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                os.ftruncate(fd, before)
                raise
        write_all(fd, content)
        os.ftruncate(fd, len(content))
    finally:
        os.close(fd)


def _pour(target: bytes, content: bytes, mode: int) -> None:
    """Writes into a device or pipe, such as /dev/null, without ever waiting for it."""
    if stat.S_ISSOCK(mode):
        raise Refusal("it is a socket, not a file; connect to it in Python")
    try:
        fd = os.open(target, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        if stat.S_ISFIFO(mode):
            raise Refusal(
                "it is a named pipe that nobody reads; start its reader first, or write to it with terminal() and a "
                "timeout"
            ) from None
        raise Refusal("it is a device that is not there") from None
    written = 0
    try:
        while written < len(content):
            written += os.write(fd, memoryview(content)[written:])
    except BlockingIOError:
        raise Refusal(
            "it is no file but takes what is written bit by bit, and has taken %d of %d bytes; write to it with "
            "terminal() and a timeout" % (written, len(content))
        ) from None
    finally:
        os.close(fd)


def write_all(fd: int, content: bytes) -> None:
    with memoryview(content) as view:
        written = 0
        while written < len(content):
            written += os.write(fd, view[written:])
