"""Opens a file for reading as UTF-8 text, whatever its encoding; refuses what is no text.

The twin of ``src/tools/local_files/source.rs``; of the worker.
"""

from __future__ import annotations

import codecs
import os
import stat

from workspace import WorkspaceError, failed, is_folder, is_regular, text

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    from typing import Callable, List, Optional, Tuple

#: Bytes by which a file is judged to be text.
SAMPLE = 8192
#: Bytes read at a time.
CHUNK = 256 * 1024

_STRANGE = bytes(
    code for code in range(0x80) if code < 8 or 0x0E <= code <= 0x1A or 0x1C <= code <= 0x1F or code == 0x7F
)
_KINDS = (
    (b"\x89PNG\r\n", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"%PDF-", "a PDF document"),
    (b"PK\x03\x04", "a ZIP archive (or a document or package in that format)"),
    (b"\x1f\x8b", "gzip data"),
    (b"BZh", "bzip2 data"),
    (b"\xfd7zXZ", "xz data"),
    (b"\x28\xb5\x2f\xfd", "zstd data"),
    (b"\x7fELF", "an ELF program or library"),
    (b"SQLite format 3\0", "an SQLite database"),
    (b"\xca\xfe\xba\xbe", "a Java class or Mach-O program"),
    (b"\xcf\xfa\xed\xfe", "a Mach-O program"),
    (b"\0asm", "a WebAssembly module"),
    (b"PAR1", "a Parquet table"),
    (b"RIFF", "a RIFF media file"),
)


class Source:
    """A text file, open: UTF-8, or what passes for it, a chunk at a time."""

    def __init__(self, fd: int, size: int, sample: bytes, decode: Optional[Decode] = None) -> None:
        #: Its size; 0 for many files of /proc that do hold something.
        self.size = size
        self._fd = fd
        self._sample = sample
        self._decode = decode
        self._rest = b""

    def chunk(self) -> bytes:
        """The next bytes; empty at the end."""
        if self._decode is None:
            return self._raw()
        while True:
            data = self._raw()
            decoded, used = self._decode(self._rest + data, not data)
            self._rest = (self._rest + data)[used:]
            if decoded or not data:
                return decoded

    def _raw(self) -> bytes:
        if self._sample:
            sample, self._sample = self._sample, b""
            return sample
        return os.read(self._fd, CHUNK)

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


if TYPE_CHECKING:
    #: UTF-8 of the bytes given, and how many of them are done with; the flag says that no more will come.
    Decode = Callable[[bytes, bool], Tuple[bytes, int]]


def open_text(path: bytes, exact: bool) -> Source:
    """A byte order mark is no part of the text, save in UTF-8 when it is wanted exactly as in the file:
    written back, it would be missed."""
    try:
        # Looked at before it is opened: opening some devices already does something.
        refuse_special(path, os.stat(path))
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        raise failed("read", path, error) from None
    try:
        status = os.fstat(fd)
        refuse_special(path, status)
        return _opened(path, fd, status.st_size, _sample(fd), exact)
    except BaseException as error:
        os.close(fd)
        if isinstance(error, OSError):
            raise failed("read", path, error) from None
        raise


def _opened(path: bytes, fd: int, size: int, sample: bytes, exact: bool) -> Source:
    if sample.startswith(b"\xff\xfe\0\0"):
        raise _binary(path, "UTF-32 text", size)
    if sample.startswith(b"\xff\xfe"):
        return Source(fd, size, sample[2:], lambda data, last: _utf16(codecs.utf_16_le_decode, data, last))
    if sample.startswith(b"\xfe\xff"):
        return Source(fd, size, sample[2:], lambda data, last: _utf16(codecs.utf_16_be_decode, data, last))
    if sample.startswith(b"\xef\xbb\xbf") and not exact:
        return Source(fd, size, sample[3:])
    kind = binary_kind(sample)
    if kind is not None:
        raise _binary(path, kind, size)
    return Source(fd, size, sample)


def _sample(fd: int) -> bytes:
    parts: List[bytes] = []
    have = 0
    while have < SAMPLE:  # files of /proc come in small pieces
        data = os.read(fd, SAMPLE - have)
        if not data:
            break
        parts.append(data)
        have += len(data)
    return b"".join(parts)


def refuse_special(path: bytes, status: os.stat_result) -> None:
    if is_regular(status):
        return
    if stat.S_ISDIR(status.st_mode):
        raise is_folder(path)
    if stat.S_ISFIFO(status.st_mode):
        what = "a named pipe"
    elif stat.S_ISSOCK(status.st_mode):
        what = "a socket"
    else:
        what = "a device"
    raise WorkspaceError(
        "%s is %s, not a file, and might never end; read it with terminal() and a timeout" % (text(path), what)
    )


def _binary(path: bytes, kind: str, size: int) -> WorkspaceError:
    return WorkspaceError(
        "%s is no text but %s (%d bytes); open it in Python or with terminal() instead" % (text(path), kind, size)
    )


def binary_kind(sample: bytes) -> Optional[str]:
    """What a file is that is no text, by its first bytes; None for text."""
    strange = len(sample) - len(sample.translate(None, _STRANGE))
    has_nul = b"\0" in sample
    for magic, kind in _KINDS:
        # A few letters are no proof where the rest is text.
        if sample.startswith(magic) and (strange or magic == b"%PDF-"):
            return kind
    if has_nul or strange * 10 > len(sample):
        return "binary data"
    return None


def _utf16(decode: Callable[[bytes, str, bool], Tuple[str, int]], data: bytes, last: bool) -> Tuple[bytes, int]:
    """Turns UTF-16 into UTF-8; what is no character becomes U+FFFD."""
    odd = len(data) % 2
    decoded, used = decode(data[: len(data) - odd], "surrogatepass", last)
    if last and odd:
        decoded += "\ufffd"
        used += 1
    try:
        return decoded.encode(), used
    except UnicodeEncodeError:
        whole = "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in decoded)
        return whole.encode(), used
