"""Who may be the relay: one at a time, the one of the latest link."""

from __future__ import annotations

import os
import time

import directory

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    from typing import Optional, Tuple

#: Seconds that a relay gets between taking the lock and saying who it is.
TAKING_OVER = 1.0
#: Seconds in which the one before must be gone.
LIMIT = 5.0


#: A name of `ended` from when on the broker has been told.
HEARD = b"heard"


class Fenced(Exception):
    """Another relay has the right of way; the text says which."""


class Ended(Exception):
    """The session has ended; the text says why."""


def take_over(folder: directory.Directory, owner: bytes, link: int) -> None:
    """Makes this process the relay. `Fenced`, `Ended`."""
    begun = time.monotonic()
    while True:
        raise_if_ended(folder)
        latest = _give_way(folder, owner, link)
        if folder.lock(directory.RELAY):
            break
        holder = folder.holder(directory.RELAY)
        passed = time.monotonic() - begun
        if holder and (latest == holder or passed > TAKING_OVER):
            try:
                os.kill(holder, 9)
            except OSError:
                pass  # it has ended
        if passed > LIMIT:
            raise Fenced("the relay before this one (process %d) cannot be ended" % holder)
        time.sleep(0.001)
    _give_way(folder, owner, link)
    directory.put_words(folder.at(b"fence"), b"%s %d %d" % (owner, link, os.getpid()))


def _give_way(folder: directory.Directory, owner: bytes, link: int) -> Optional[int]:
    """The process of the latest relay, where that is one before this."""
    found = _latest(folder)
    if found is None:
        return None
    if found[0] == owner and found[1] >= link and found[2] != os.getpid():
        raise Fenced("link %d of the same broker has taken over from link %d" % (found[1], link))
    return found[2]


def _latest(folder: directory.Directory) -> Optional[Tuple[bytes, int, int]]:
    try:
        owner, link, pid = (directory.words(folder.at(b"fence")) or b"").split()
        return owner, int(link), int(pid)
    except ValueError:
        return None


def raise_if_ended(folder: directory.Directory) -> None:
    """Raises `Ended` when somebody has said so."""
    why = directory.words(folder.at(b"ended"))
    if why is not None:
        raise Ended(why.decode("utf-8", "replace"))


def hear(folder: directory.Directory) -> None:
    """Says that the broker has been told of the end. Where there is no room for that it shows in time."""
    try:
        os.link(folder.at(b"ended"), folder.at(HEARD))
    except OSError:
        pass


def is_orphaned(folder: directory.Directory) -> bool:
    """Whether neither supervisor nor guard live."""
    return not folder.holder(directory.SUPERVISOR) and not folder.holder(directory.GUARD)


def sweep(path: bytes, limit: float = 10.0) -> None:
    """Kills what bears the mark of a session whose own processes were killed, and removes its directory."""
    import folders

    # What cells start bears it; what commands start has a reaper above it, which ends with the supervisor.
    mark = b"HERMES_RPC_DIR=%s/rpc" % path
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        found = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _bears(pid, mark)]
        for pid in found:
            for number in (19, 9):  # stopped first: it may be starting others
                try:
                    os.kill(pid, number)
                except OSError:
                    pass
        if not found:
            break
        time.sleep(0.01)
    name = path.rpartition(b"/")[2]
    try:
        disk = os.readlink(path + b"/disk")
    except OSError:
        disk = b""  # it is a folder within
    # A script may have made the link point to what is another session's.
    folders.remove([path, disk] if disk.rpartition(b"/")[2] == name + b"-disk" else [path])


def _bears(pid: int, mark: bytes) -> bool:
    if pid == os.getpid():
        return False
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            return mark in file.read().split(b"\0")
    except OSError:
        return False
