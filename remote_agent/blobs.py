"""Large bodies on their way to a command or an answer: they come in pieces, and lie in `disk/`."""

from __future__ import annotations

import os

import directory

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    from typing import Dict, List, Tuple

_PREFIX, _PART = b"blob_", b".part"


class Blobs:
    """The bodies that have come, whole or in part."""

    def __init__(self, folder: directory.Directory) -> None:
        self._folder = folder
        self._open: Dict[bytes, int] = {}

    def survey(self) -> Tuple[Dict[str, int], List[str]]:
        """How much there is of each, and which are complete."""
        sizes: Dict[str, int] = {}
        complete = []
        for name in directory.names(self._folder.at(b"disk")):
            if name.startswith(_PREFIX):
                identity = os.fsdecode(name[len(_PREFIX) :])
                whole = not name.endswith(_PART)
                if not whole:
                    identity = identity[: -len(_PART)]
                else:
                    complete.append(identity)
                try:
                    size = os.lstat(self._folder.at(b"disk/" + name)).st_size
                except OSError:
                    continue
                sizes[identity] = max(size, sizes.get(identity, 0))
        return sizes, complete

    def path(self, identity: bytes) -> bytes:
        """Where a complete one lies. ValueError: it cannot be one of ours."""
        if not identity or len(identity) > 100 or not identity.replace(b"-", b"").replace(b"_", b"").isalnum():
            raise ValueError("the broker named a body that cannot be")
        return self._folder.at(b"disk/" + _PREFIX + identity)

    def add(self, identity: bytes, data: bytes, offset: int, final: bool) -> Tuple[int, bool]:
        """Adds a piece. How many bytes there are now, and whether that is all."""
        path = self.path(identity)
        fd = self._open.get(identity, -1)
        if fd < 0:
            if os.path.lexists(path):
                return os.lstat(path).st_size, True
            fd = os.open(path + _PART, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            self._open[identity] = fd
        size = os.fstat(fd).st_size
        if not offset <= size <= offset + len(data):
            return size, False  # the broker sees where it has to go on
        if size < offset + len(data):
            os.lseek(fd, size, os.SEEK_SET)
            directory.write_all(fd, data[size - offset :])
            size = offset + len(data)
        if final:
            os.rename(path + _PART, path)
            os.close(self._open.pop(identity))
        return size, final

    def move(self, identity: bytes, path: bytes) -> None:
        """Gives a complete one its place."""
        if not (os.path.lexists(path) and not os.path.lexists(self.path(identity))):
            os.rename(self.path(identity), path)

    def drop(self, identity: bytes) -> None:
        """Forgets one, whole or in part."""
        fd = self._open.pop(identity, -1)
        if fd >= 0:
            os.close(fd)
        directory.unlink(self.path(identity) + _PART)
        directory.unlink(self.path(identity))

    def forget(self) -> None:
        """The directory was made anew: what was open is no part of it."""
        for fd in self._open.values():
            os.close(fd)
        self._open.clear()
