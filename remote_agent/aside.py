"""Files beside the one that is changed: what it will be, and what it was.

The twin of ``src/tools/local_files/aside.rs``, where it is said why; of the worker.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time

import folders

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    from typing import List, Optional, Tuple

#: How old, in seconds, one is at least that was left by a process that was killed.
LEFT_AFTER = 60.0
#: Names of a folder that are looked at.
SEEN_NAMES = 4096
#: How long another change of the same file is waited for.
PATIENCE = 2.0

#: The session's folder, where it is noted what lies beside other files; empty: nowhere.
_session = b""
#: The folder of notes, open.
_notes = -1
#: Whether the session has ended: what has not begun is not to begin.
_ending: List[bool] = []


def note_in(session: bytes) -> None:
    """Says which folder is the session's: what is found noted there at its end is removed."""
    global _session
    _session = session


def end() -> None:
    """The session has ended: changes that are only being made ready give up."""
    _ending.append(True)


def is_ending() -> bool:
    """Whether the session has ended."""
    return bool(_ending)


def name_in(folder: bytes) -> bytes:
    """A name for a file beside others, noted."""
    name = folders.ASIDE + os.urandom(16).hex().encode()
    path = os.path.join(folder, name)
    for is_last in (False, True):
        try:
            if _session:
                os.symlink(path, name, dir_fd=_open_notes(is_last))
            break
        except OSError:
            pass  # a script may have removed the folder
    return path


def _open_notes(anew: bool) -> int:
    global _notes
    if _notes < 0 or anew:
        folder = os.path.join(_session, folders.NOTES)
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            pass
        before, _notes = _notes, os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        if before >= 0:
            os.close(before)
    return _notes


def create(folder: bytes, mode: int) -> Tuple[bytes, int]:
    """An empty file beside, open and locked while it is needed."""
    path = name_in(folder)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    except OSError:
        remove(path)
        raise
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        pass
    return path, fd


def remove(path: Optional[bytes]) -> None:
    """Removes one, unless it was renamed, and what is noted of it."""
    if path is None:
        return
    try:
        os.unlink(path)
    except OSError:
        pass  # renamed, it is no longer there
    if _notes >= 0:
        try:
            os.unlink(os.path.basename(path), dir_fd=_notes)
        except OSError:
            pass  # it was removed before, or its folder was


def lock(fd: int) -> None:
    """Waits for whoever changes this file just now."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            # Without locks, that it is the same file and content has to do.
            if error.errno != errno.EWOULDBLOCK or time.monotonic() > end:
                return
        time.sleep(0.002)


def sweep(folder: bytes) -> None:
    """Removes what killed processes left beside the files of a folder."""
    try:
        with os.scandir(folder) as entries:
            left = [entry.path for _, entry in zip(range(SEEN_NAMES), entries) if entry.name.startswith(folders.ASIDE)]
    except OSError:
        return
    for path in left:
        if _is_left(path):
            try:
                os.unlink(path)
            except OSError:
                pass  # somebody else did


def _is_left(path: bytes) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if time.time() - os.fstat(fd).st_mtime <= LEFT_AFTER:
            return False
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
