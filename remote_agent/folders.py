"""Folders of the session's own: where there is room for one, and how it is removed whole."""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    from typing import List, Optional


#: Bytes that must be free where a session's folder is made, unless all places are full.
ROOM = 1 << 20
#: What the names of files begin with that lie beside others while those are written (`aside`).
ASIDE = b".talaria-patch-"
#: The part of the session's folder in which each of these is noted, as a link to it.
NOTES = b"asides"


def is_full(base: bytes) -> bool:
    """Whether there is no room for a session's folder."""
    try:
        place = os.statvfs(base)
    except OSError:
        return False  # making the folder says more
    return place.f_bavail * place.f_frsize < ROOM


def remove(folders: List[bytes]) -> None:
    """Removes the session's folders. Nothing outside them: links are not followed."""
    for folder in folders:
        try:
            if os.lstat(folder).st_uid != os.geteuid():
                continue  # somebody took the name after a cell had removed ours
            _remove_noted(folder + b"/" + NOTES)
            for _, inner, files, fd in os.fwalk(folder, topdown=False):
                for name in files + inner:
                    _remove_one(name, fd)
        except OSError:
            pass
        _remove_one(folder, None)


def _remove_noted(notes: bytes) -> None:
    """Removes what lies beside other files, left by a process that was killed while it wrote them."""
    try:
        if not stat.S_ISDIR(os.lstat(notes).st_mode):
            return
        for name in os.listdir(notes):
            if name.startswith(ASIDE):
                path = os.readlink(notes + b"/" + name)
                if path.endswith(b"/" + name):
                    _remove_one(path, None)
    except OSError:
        pass  # there are none


def _remove_one(name: bytes, folder: Optional[int]) -> None:
    for remove_it in (os.unlink, os.rmdir):
        try:
            remove_it(name, dir_fd=folder)
            return
        except OSError:
            pass
