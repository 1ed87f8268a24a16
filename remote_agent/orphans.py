"""Sessions whose processes were all killed at once, with their container or machine: what they left is removed by the
next session of the same user.
"""

from __future__ import annotations

import os
import time

import directory
import fence
import folders

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    from typing import List

#: Seconds in which nothing was written there.
AGE = 600.0
#: Seconds that processes of such a session get to die.
LIMIT = 1.0
_HEX = frozenset(b"0123456789abcdef")


def sweep(bases: List[bytes], besides: List[bytes]) -> None:
    """Removes directories of sessions, and their folders on a disk, that nobody holds and nobody has written to for
    long. Not ``besides``: who opens a lock file of its own and closes it has lost its locks.
    """
    for base in bases:
        for name in directory.names(base):
            path = base + b"/" + name
            if _is_ours(name) and path not in besides and _is_orphaned(path):
                if name.endswith(b"-disk"):
                    folders.remove([path])
                else:
                    fence.sweep(path, LIMIT)


def _is_ours(name: bytes) -> bool:
    """Whether a name is one that we give: of a session's directory, or its folder on a disk."""
    session, rest = name[8:40], name[40:]
    return name.startswith(b"talaria-") and len(session) == 32 and _HEX.issuperset(session) and rest in (b"", b"-disk")


def _is_orphaned(path: bytes) -> bool:
    try:
        directory.check_ours(path)
        written = max(_written(path), _written(path + b"/lock"), _written(path + b"/lease"))
        return time.time() - written > AGE and not directory.is_in_use(path + b"/lock")
    except (OSError, directory.Refused):
        return False  # it is another's, or no directory of a session, or gone


def _written(path: bytes) -> float:
    try:
        return os.lstat(path).st_mtime
    except FileNotFoundError:
        return 0.0
