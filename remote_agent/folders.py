"""Folders of the session's own: where there is room for one, and how it is removed whole."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    from typing import List, Optional


#: Bytes that must be free where a session's folder is made, unless all places are full.
ROOM = 1 << 20


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
            for _, inner, files, fd in os.fwalk(folder, topdown=False):
                for name in files + inner:
                    _remove_one(name, fd)
        except OSError:
            pass
        _remove_one(folder, None)


def _remove_one(name: bytes, folder: Optional[int]) -> None:
    for remove_it in (os.unlink, os.rmdir):
        try:
            remove_it(name, dir_fd=folder)
            return
        except OSError:
            pass
