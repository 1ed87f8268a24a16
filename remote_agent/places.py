"""Where the session's directory is made: in memory, for a tool call is a few small files, what is large on a disk."""

from __future__ import annotations

import os

import directory
import folders

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    from typing import Dict, List

_MEMORY = (b"tmpfs", b"ramfs")
# Neither locks nor renames can be relied on there.
_REMOTE = (b"nfs", b"nfs4", b"cifs", b"smb3", b"smbfs", b"afs", b"fuse.sshfs")


class Unusable(Exception):
    """The directory could be made nowhere; the text says what was tried."""


def bases(wanted: List[bytes], home: bytes) -> List[bytes]:
    """Folders in which it may be made, best first."""
    memory = [os.environb.get(b"XDG_RUNTIME_DIR", b""), b"/dev/shm"]
    return [base for base in dict.fromkeys(wanted + memory + _fallback(home)) if base.startswith(b"/")]


def _fallback(home: bytes) -> List[bytes]:
    return [os.environb.get(b"TMPDIR", b""), b"/tmp", b"/var/tmp", home + b"/.cache", os.getcwdb()]


def make(session: bytes, wanted: List[bytes], home: bytes) -> List[bytes]:
    """Makes the session's directory: its path, and that of its folder on a disk, unless that is within it."""
    kinds = _file_systems()
    tried: List[str] = []
    for base in sorted(bases(wanted, home), key=folders.is_full):
        kind = _kind_of(base, kinds)
        if kind in _REMOTE:
            tried.append("%s (a network file system)" % os.fsdecode(base))
            continue
        path = base + b"/talaria-" + session
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            raise Unusable("%s exists already: the session was started before" % os.fsdecode(path)) from None
        except OSError as error:
            tried.append("%s (%s)" % (os.fsdecode(base), error.strerror))
            continue
        disk = _on_disk(session, _fallback(home), kinds) if kind in _MEMORY else b""
        made = [path, disk] if disk else [path]
        try:
            directory.make(path, disk, {})
            return made
        except OSError as error:
            folders.remove(made)
            tried.append("%s (%s)" % (os.fsdecode(base), error.strerror))
    raise Unusable(
        "no directory for the session could be made in any of %s; free space there, or set TMPDIR on the target to a "
        "folder that can be written" % ", ".join(tried)
    )


def _on_disk(session: bytes, bases: List[bytes], kinds: Dict[int, bytes]) -> bytes:
    if os.getpid() == 1:
        # With us the container ends, and nobody is left to clear up: its own disk goes with it, a mount does not.
        bases = sorted(bases, key=_is_mounted)
    for base in bases:
        if base.startswith(b"/") and _kind_of(base, kinds) not in _MEMORY + _REMOTE and not folders.is_full(base):
            path = base + b"/talaria-" + session + b"-disk"
            try:
                os.mkdir(path, 0o700)
                return path
            except OSError:
                pass
    return b""


def _is_mounted(base: bytes) -> bool:
    try:
        return os.stat(base).st_dev != os.stat("/").st_dev
    except OSError:
        return True


def _file_systems() -> Dict[int, bytes]:
    """The kinds of the file systems that are mounted, by device."""
    kinds: Dict[int, bytes] = {}
    try:
        with open("/proc/self/mountinfo", "rb") as file:
            for line in file:
                fields = line.split()
                major, minor = fields[2].split(b":")
                kinds[os.makedev(int(major), int(minor))] = fields[fields.index(b"-", 6) + 1]
    except (OSError, ValueError, IndexError):
        pass
    return kinds


def _kind_of(base: bytes, kinds: Dict[int, bytes]) -> bytes:
    try:
        return kinds.get(os.stat(base).st_dev, b"")
    except OSError:
        return b""
