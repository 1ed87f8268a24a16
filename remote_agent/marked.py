"""Messages of a process to the broker between the bytes of its own output: each piece begins with a mark that only the
two know, and is small enough to stay in one piece on a pipe.
"""

from __future__ import annotations

import _thread
import os as _shared_os
import types

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    from typing import Any

#: A copy: cells patch what they share with us.
os: Any = types.SimpleNamespace(**vars(_shared_os))
#: With mark and header less than what a pipe takes at once.
_ROOM = 4000


class Marked:
    """The way out: a piece is the mark, its kind, whether it is the last of its message, its length (2 bytes), and so
    many bytes.
    """

    def __init__(self, fd: int, mark: bytes) -> None:
        self._fd = fd
        self._mark = mark
        self._turn = _thread.allocate_lock()

    def say(self, kind: bytes, body: bytes, name: bytes = b"") -> None:
        """Sends one message. ``name`` stands before the bytes of each piece."""
        room = _ROOM - len(name)
        pieces = range(0, len(body), room) or (0,)
        with self._turn:
            for at in pieces:
                piece = name + body[at : at + room]
                last = b"\1" if at + room >= len(body) else b"\0"
                self._write(self._mark + kind + last + len(piece).to_bytes(2, "big") + piece)

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._fd, data) :]
