"""Messages between broker and supervisor, and between supervisor and kernel.

One message: 4 bytes big-endian length of what follows, 1 byte kind, then fields, each 4 bytes
big-endian length and its bytes. The receiver's half of this lives in ``src/socket_rpc/frame.rs``.
"""

from __future__ import annotations

import struct

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    from typing import Dict, Iterator, List, Tuple

    Message = Tuple[bytes, List[bytes]]

LENGTH = struct.Struct(">I")
#: Larger than any cell, stub or environment that a broker sends.
MAX_MESSAGE = 1 << 30


def pack(kind: bytes, *fields: bytes) -> bytes:
    """One message as bytes."""
    parts = [kind]
    for field in fields:
        parts.append(LENGTH.pack(len(field)))
        parts.append(field)
    body = b"".join(parts)
    return LENGTH.pack(len(body)) + body


def number(value: float) -> bytes:
    """A number as a field."""
    return repr(value).encode("ascii")


def unpack_variables(field: bytes) -> Dict[bytes, bytes]:
    """Environment variables: ``NAME=VALUE``, separated by NUL."""
    variables = {}
    for entry in field.split(b"\0"):
        name, separator, value = entry.partition(b"=")
        if separator and name:
            variables[name] = value
    return variables


class Reader:
    """Cuts a stream of bytes into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """Takes bytes as they come and yields every message that is complete."""
        self._buffer += data
        while len(self._buffer) >= 4:
            (size,) = LENGTH.unpack_from(self._buffer)
            if not 1 <= size <= MAX_MESSAGE:
                raise ValueError("a message of %d bytes" % size)
            if len(self._buffer) < 4 + size:
                return
            body = bytes(self._buffer[4 : 4 + size])
            del self._buffer[: 4 + size]
            yield self._split(body)

    @staticmethod
    def _split(body: bytes) -> Message:
        fields = []
        at = 1
        while at < len(body):
            (size,) = LENGTH.unpack_from(body, at)
            at += 4
            fields.append(body[at : at + size])
            at += size
        return body[:1], fields
