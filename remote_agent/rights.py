"""What this user may not do, and whose homes there are.

The twin of ``src/tools/local_files/rights.rs``; of the worker.
"""

from __future__ import annotations

import os

from workspace import parent, text

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    from typing import List, Optional


def denied(verb: str, path: bytes) -> str:
    """Why a path may not be read, written, searched or listed, and what to do."""
    above: List[bytes] = []
    folder = parent(path)
    while folder is not None:
        above.insert(0, folder)
        folder = parent(folder)
    closed = [folder for folder in above if os.path.isdir(folder) and not _may(folder, os.X_OK)]
    there = [folder for folder in above if os.path.isdir(folder)]
    if closed:
        to = "enter the folder " + _described(closed[0])
    elif not os.path.lexists(path) and there:
        to = "make anything in the folder " + _described(there[-1])
    elif verb != "write" or not _may(path, os.W_OK):
        to = "%s it (%s)" % (verb, _owner(path))
    elif above:
        to = "change what is in the folder " + _described(above[-1])
    else:
        to = "%s it" % verb
    return "this user has no right to %s; choose another place, or see to the rights with terminal()" % to


def _may(path: bytes, mode: int) -> bool:
    return os.access(path, mode, effective_ids=True)


def _described(folder: bytes) -> str:
    return "%s (%s)" % (text(folder), _owner(folder))


def _owner(path: bytes) -> str:
    try:
        found = os.stat(path)
    except OSError:
        return "whose rights cannot be seen"
    return "mode %o, of user %d" % (found.st_mode & 0o7777, found.st_uid)


def home_of(user: bytes) -> Optional[bytes]:
    """The home of another account."""
    try:
        home: str = __import__("pwd").getpwnam(os.fsdecode(user)).pw_dir
    except (ImportError, KeyError, ValueError):
        return None
    return os.fsencode(home) if home.startswith("/") else None
