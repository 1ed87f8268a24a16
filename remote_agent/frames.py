"""Frames between broker and relay: a header, a key, a payload (see the directory protocol)."""

from __future__ import annotations

import struct

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    from typing import Iterator, Tuple

    #: Kind, final, key, payload, offset.
    Frame = Tuple[bytes, bool, bytes, bytes, int]

HEADER = struct.Struct(">2sBBHIQ")
MAGIC = b"TF"
#: The largest payload of one frame.
PAYLOAD = 1 << 16
_SIZE = HEADER.size


def pack(kind: bytes, key: bytes = b"", payload: bytes = b"", offset: int = 0, final: bool = True) -> bytes:
    """One frame as bytes."""
    return HEADER.pack(MAGIC, kind[0], final, len(key), len(payload), offset) + key + payload


class Reader:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Takes bytes as they come and yields every frame that is complete. ValueError: they are no frames."""
        buffer = self._buffer
        buffer += data
        at = 0
        try:
            while len(buffer) - at >= _SIZE:
                magic, kind, final, key_size, size, offset = HEADER.unpack_from(buffer, at)
                if magic != MAGIC or size > PAYLOAD:
                    raise ValueError("the stream from the broker is out of step")
                start = at + _SIZE + key_size
                if len(buffer) < start + size:
                    return
                key = bytes(buffer[at + _SIZE : start])
                payload = bytes(buffer[start : start + size])
                at = start + size
                yield b"%c" % kind, final == 1, key, payload, offset
        finally:
            del buffer[:at]
