"""What the control groups say that this process is in: limits, and how often memory ran out. Version 1 and 2."""

from __future__ import annotations

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    from typing import List, Optional

_ROOT = b"/sys/fs/cgroup"
#: What version 1 calls a limit that is none: the largest number of whole pages.
_UNLIMITED = 1 << 60


def least(controller: bytes, names: List[bytes]) -> Optional[int]:
    """The least limit that any of the groups sets, in files of one of these names."""
    found = [read(place + b"/" + name).strip() for place in places(controller) for name in names]
    limits = [int(text) for text in found if text.isdigit() and int(text) < _UNLIMITED]
    return min(limits) if limits else None


def kills() -> int:
    """How often a process was killed because memory ran out, in the nearest group that counts."""
    for place in places(b"memory"):
        for name in (b"memory.events", b"memory.oom_control"):
            for line in read(place + b"/" + name).split(b"\n"):
                word, _, count = line.partition(b" ")
                if word == b"oom_kill" and count.isdigit():
                    return int(count)
    return 0


def out_of_memory() -> bytes:
    """What it means that memory ran out here."""
    limit = least(b"memory", [b"memory.max", b"memory.limit_in_bytes"])
    if limit is None:
        return b"memory ran out there"
    return b"memory ran out: the limit there is %d MiB; use less, or raise it" % (limit >> 20)


def places(controller: bytes) -> List[bytes]:
    """The folders of the groups, the nearest first."""
    found: List[bytes] = []
    for line in read(b"/proc/self/cgroup").split(b"\n"):
        _, _, rest = line.partition(b":")
        controllers, _, path = rest.partition(b":")
        if controller in controllers.split(b",") or (not controllers and path):
            root = _ROOT + b"/" + controller if controllers else _ROOT
            # Inside a container the path is often that of the host, and the group itself stands at the root.
            while True:
                found.append(root + path.rstrip(b"/"))
                if path in (b"", b"/"):
                    break
                path = path.rpartition(b"/")[0]
    return found


def read(path: bytes) -> bytes:
    """A file of the system; nothing where there is none."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
