"""Lines of one file that match, on a target; of the worker.

The twin of ``src/tools/local_files/search/lines.rs`` and of what its libraries do. A file is searched as a whole, or
in blocks of whole lines, and lines are looked at only where something matches.
"""

from __future__ import annotations

import codecs
import os
import re

import page
import text_file

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    from typing import Any, Callable, Iterator, List, Optional, Pattern, Tuple

#: Bytes that are searched at once, and those that most files do not have.
BLOCK = 8 << 20
SMALL = 1 << 16
#: The longest line that is searched.
LONGEST_LINE = 256 << 20
#: Characters of a line that are told, and how many of them before the match.
LINE_CHARACTERS = 2000
LEAD_CHARACTERS = 500


class LineTooLong(Exception):
    """A file with a line that is not searched."""


class FileLines:
    """What a file holds: see `Lines.search`."""

    def __init__(self) -> None:
        #: How many lines match.
        self.count = 0
        #: Number, text, and whether it matches: of the first that match, and those around them.
        self.lines: List[Tuple[int, bytes, bool]] = []
        #: It is no text: none of its lines counts.
        self.is_binary = False


class Lines:
    """Searches files one after another."""

    def __init__(self, ascii: str, unicode: str, literal: bytes, context: int, begin: Callable[[], None]) -> None:
        self._ascii = re.compile(ascii.encode("ascii"), re.MULTILINE)
        self._unicode = unicode
        self._characters: Optional[Pattern[str]] = None
        self._literal = literal
        self._context = context
        #: Called before each block.
        self._begin = begin

    def search(self, path: bytes, wanted: int) -> FileLines:
        """Counts the lines that match and keeps the first `wanted` of them. OSError, LineTooLong."""
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            found = FileLines()
            taking = _Taking(found, wanted, self._context)
            for block in _blocks(fd):
                if b"\0" in block:
                    found = FileLines()
                    found.is_binary = True
                    break
                self._begin()
                if self._literal and self._literal not in block:
                    taking.pass_over(block)
                elif not self._unicode or block.isascii():
                    taking.block(self._ascii, block, b"\n")
                else:
                    if self._characters is None:
                        self._characters = re.compile(self._unicode, re.MULTILINE)
                    taking.block(self._characters, block.decode("utf-8", "surrogateescape"), "\n")
            return found
        finally:
            os.close(fd)


def _blocks(fd: int) -> Iterator[bytes]:
    """A file's text in blocks of whole lines: UTF-8, or what passes for it."""
    data = os.read(fd, SMALL)
    if data.startswith(b"\xef\xbb\xbf"):
        data = data[3:]
    elif data.startswith((b"\xff\xfe", b"\xfe\xff")):
        yield from _of_utf16(fd, data)
        return
    rest = b""
    size = SMALL if len(data) < SMALL else BLOCK
    while data:
        more = os.read(fd, size)
        size = BLOCK
        if not more:
            yield rest + data if rest else data
            return
        end = data.rfind(b"\n") + 1
        if end:
            yield rest + data[:end]
            rest = data[end:]
        elif b"\0" in data:
            yield data
            return
        else:
            rest += data
            if len(rest) > LONGEST_LINE:
                raise LineTooLong
        data = more


def _of_utf16(fd: int, data: bytes) -> Iterator[bytes]:
    decode = codecs.utf_16_le_decode if data.startswith(b"\xff\xfe") else codecs.utf_16_be_decode
    source = text_file.Source(fd, 0, data[2:], lambda data, last: text_file._utf16(decode, data, last))
    rest: List[bytes] = []
    size = 0
    while True:
        text = source.chunk()
        end = text.rfind(b"\n") + 1
        size += len(text)
        if text and (not end or size < BLOCK):
            rest.append(text)
            if size > LONGEST_LINE:
                raise LineTooLong
            continue
        if rest or text:
            yield b"".join((*rest, text[:end] if text else b""))
        if not text:
            return
        rest, size = [text[end:]], len(text) - end


class _Taking:
    """Takes what is wanted of a file out of its blocks."""

    def __init__(self, found: FileLines, wanted: int, context: int) -> None:
        self._found = found
        self._wanted = wanted
        self._context = context
        #: Lines in earlier blocks.
        self._passed = 0
        #: The last line that was taken, and the last that is wanted after a match.
        self._taken = 0
        self._until = 0
        #: The last lines of earlier blocks, the last one first; and the block before, which they do not have yet.
        self._before: List[bytes] = []
        self._last: Optional[Tuple[Any, Any]] = None

    def pass_over(self, block: bytes) -> None:
        """A block in which nothing matches."""
        self._remember()
        if self._context:
            self._take_after(block, b"\n", 0, self._passed + 1, self._until + 1)
        self._last = (block, b"\n")

    def block(self, pattern: Pattern[Any], text: Any, newline: Any) -> None:
        """A block, as bytes or as characters."""
        self._remember()
        found, search = self._found, pattern.search
        at, number, size = 0, self._passed + 1, len(text)
        place, of_place = 0, number  # where the line with that number begins
        while at < size:
            match = search(text, at)
            if match is None or match.start() == size and text[-1:] == newline:
                break
            start = match.start()
            found.count += 1
            end = text.find(newline, start)
            end = size if end < 0 else end
            if found.count <= self._wanted:
                begin = text.rfind(newline, 0, start) + 1
                number = of_place + text.count(newline, place, begin)
                if self._context:
                    self._take_after(text, newline, place, of_place, number)
                    self._take_before(text, newline, begin, number)
                self._take(number, text[begin:end], start - begin)
                place, of_place = begin, number
            at = end + 1
        if self._context:
            self._take_after(text, newline, place, of_place, self._until + 1)
        self._last = (text, newline)

    def _remember(self) -> None:
        """Keeps of the block before, now that there is another, what is needed with this one."""
        if self._last is not None:
            text, newline = self._last
            self._last = None
            self._passed += text.count(newline)
            lines: List[bytes] = []
            begin = len(text)
            while begin > 0 and len(lines) < self._context:
                end = begin - 1 if text[begin - 1 : begin] == newline else begin
                begin = text.rfind(newline, 0, end) + 1
                lines.append(_raw(text[begin:end]))
            self._before = (lines + self._before)[: self._context]

    def _take(self, number: int, line: Any, start: int) -> None:
        whole = _raw(line)
        lead = len(_raw(line[:start])) if len(whole) > LINE_CHARACTERS else 0
        self._found.lines.append((number, told(_without_end(whole), lead), True))
        self._taken = number
        self._until = number + self._context

    def _take_after(self, text: Any, newline: Any, place: int, number: int, before: int) -> None:
        """Lines that are wanted after a match, from the one on that begins at a place."""
        last = min(self._until, before - 1)
        while number <= last and place < len(text):
            end = text.find(newline, place)
            end = len(text) if end < 0 else end
            if number > self._taken:
                self._found.lines.append((number, told(_without_end(_raw(text[place:end])), 0), False))
                self._taken = number
            place, number = end + 1, number + 1

    def _take_before(self, text: Any, newline: Any, begin: int, number: int) -> None:
        """Lines before the one that begins there."""
        lines: List[bytes] = []
        while begin > 0 and len(lines) < self._context and number - len(lines) - 1 > self._taken:
            end = begin - 1
            begin = text.rfind(newline, 0, end) + 1
            lines.append(_raw(text[begin:end]))
        for line in self._before:
            if len(lines) >= self._context or number - len(lines) - 1 <= self._taken:
                break
            lines.append(line)
        for distance in range(len(lines), 0, -1):
            line = told(_without_end(lines[distance - 1]), 0)
            self._found.lines.append((number - distance, line, False))


def _raw(text: Any) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")


def _without_end(line: bytes) -> bytes:
    return line[:-1] if line.endswith(b"\r") else line


def told(line: bytes, start: int) -> bytes:
    """A line as it is told; where it is long, the part around a match that begins at a byte of it."""
    shown = page.decoded(line)
    if len(shown) <= LINE_CHARACTERS:
        return shown
    text = shown.decode()
    if len(text) <= LINE_CHARACTERS:
        return shown
    at = len(page.decoded(line[:start]).decode())
    begin = min(max(at - LEAD_CHARACTERS, 0), len(text) - LINE_CHARACTERS)
    after = len(text) - LINE_CHARACTERS - begin
    part = text[begin : begin + LINE_CHARACTERS]
    if begin:
        part = "[%d characters left out]\u2026%s" % (begin, part)
    if after:
        part = "%s\u2026[%d characters left out]" % (part, after)
    return part.encode()
