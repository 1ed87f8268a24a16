"""Tool calls as the relay carries them: requests that stubs leave in `rpc/`, answers that it puts beside them."""

from __future__ import annotations

import os

import directory
import frames

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Tuple

#: The largest request: 64 MiB of text, as JSON writes it at worst, and a little more.
LIMIT = 6 * (64 << 20) + (1 << 20)
_HEX = frozenset(b"0123456789abcdef")


def is_call(name: bytes) -> bool:
    """Whether a name is that of a call: CLIENT-SEQ."""
    return len(name) > 17 and name[16] == 45 and _HEX.issuperset(name[:16]) and name[17:].isdigit() and len(name) < 40


def answer_here(folder: directory.Directory, call: bytes, body: bytes) -> bool:
    """Puts a short answer of the supervisor's own beside its request. Whether the request was there."""
    request = folder.at(b"rpc/req_" + call)
    if not os.path.lexists(request):
        return False
    directory.put(folder.at(b"rpc/res_" + call), body)
    _remove(request)
    directory.unlink(folder.at(b"disk/req_" + call))
    return True


def call_back(folder: directory.Directory, call: bytes) -> None:
    """Rings the client of a call that was answered; what was put there for one that is dead goes."""
    bell = b"rpc/bell_" + call[:16]
    if not folder.ring(bell):
        for name in (b"rpc/res_" + call, b"disk/res_" + call, bell):
            directory.unlink(folder.at(name))


class Large:
    """A request above one frame, on its way piece by piece."""

    def __init__(self, call: bytes, fd: int, size: int, have: int) -> None:
        self._call = call
        self._fd = fd
        self._size = size
        self._at = min(have, size)

    def frame(self, limit: int) -> bytes:
        """The next piece."""
        data = os.pread(self._fd, min(limit, self._size - self._at), self._at)
        offset = self._at
        self._at += len(data)
        final = self._at >= self._size or not data
        if final:
            os.close(self._fd)
            self._fd = -1
        return frames.pack(b"Q", self._call, data, offset, final)

    def is_done(self) -> bool:
        """Whether that was all."""
        return self._fd < 0


class Requests:
    """What is known of the calls in `rpc/` on this link."""

    def __init__(self, folder: directory.Directory, have: Dict[bytes, int]) -> None:
        self._folder = folder
        self._have = have
        self._known: Dict[bytes, bool] = {}  # whether the request lies in `disk`

    def open_calls(self) -> int:
        """Calls without an answer."""
        return len(self._known)

    def scan(self) -> List[bytes]:
        """The calls that were not sent on this link."""
        found = []
        for name in directory.names(self._folder.at(b"rpc")):
            if name.startswith(b"req_") and name[4:] not in self._known and is_call(name[4:]):
                found.append(name[4:])
        return found

    def take(self, call: bytes) -> Tuple[bytes, Optional[Large]]:
        """A call's frame, or what gives its frames; neither when there is nothing to send."""
        if call in self._known:
            return b"", None
        have = self._have.pop(call, 0)
        try:
            fd, size = directory.open_old(self._folder.at(b"rpc/req_" + call), LIMIT)
            data = os.read(fd, frames.PAYLOAD) if size <= frames.PAYLOAD else b""
            large = data == directory.ELSEWHERE
            if large:
                os.close(fd)
                fd, size = directory.open_old(self._folder.at(b"disk/req_" + call), LIMIT)
        except FileNotFoundError:
            return b"", None  # it was taken back
        except directory.Refused as refused:
            self._known[call] = True
            self.answer(call, b'{"error": "the request cannot be read: %s"}' % str(refused).encode(), b"")
            return b"", None
        self._known[call] = large
        if size <= frames.PAYLOAD and not large:
            os.close(fd)
            return frames.pack(b"Q", call, data), None
        return b"", Large(call, fd, size, have)

    def answer(self, call: bytes, body: bytes, blob: bytes) -> bool:
        """Puts an answer beside its request and rings; ``blob`` is the file that holds it, if it is large.

        Whether the request was there. OSError: not even an empty file has room, or the blob is not there.
        """
        folder = self._folder
        large = self._known.pop(call, True)
        request, answer = folder.at(b"rpc/req_" + call), folder.at(b"rpc/res_" + call)
        if not os.path.lexists(request):
            # Nobody waits any more, or it was answered before: an answer that is there may yet be read.
            directory.unlink(blob)
            return False
        moved = folder.at(b"disk/res_" + call)
        # A relay before us may have died when it had moved it.
        if blob and not os.path.lexists(blob) and not os.path.lexists(moved):
            raise OSError("its body is not there")
        try:
            if blob and os.path.lexists(blob):
                os.rename(blob, moved)
            directory.put(answer, directory.ELSEWHERE if blob else body)
        except FileNotFoundError:
            raise
        except OSError:
            directory.unlink(moved)
            directory.put(answer, b"")
        # The client does not wait for what is left to do; it removes the request too, should we die before.
        call_back(folder, call)
        _remove(request)
        if large:
            directory.unlink(folder.at(b"disk/req_" + call))
        return True

    def is_open(self, call: bytes) -> bool:
        """Whether a request lies there."""
        return os.path.lexists(self._folder.at(b"rpc/req_" + call))

    def forget(self) -> None:
        """The directory was made anew: requests that lie there again were written again."""
        self._known.clear()


def _remove(path: bytes) -> None:
    """Removes a request, whatever it is."""
    if not directory.unlink(path):
        try:
            os.rmdir(path)
        except OSError:
            pass
