"""Cuts one page out of a text that is read as a stream.

The twin of ``src/tools/local_files/page.rs``; of the worker.
"""

from __future__ import annotations

from workspace import WorkspaceError, quoted

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    from typing import List, Optional, Tuple

    from text_file import Source

    #: A line, and a byte inside it when an earlier page ended there.
    Start = Tuple[int, int]

MIB = 1024 * 1024
#: Bytes of content on one page: of raw text what a result may hold, less room for the other fields; of numbered lines.
RAW_LIMIT, NUMBERED_LIMIT = 64 * MIB - 64 * 1024, MIB
#: A file of more bytes is not read on to its end only to count its lines.
COUNTED_LIMIT = 256 * MIB
#: The smallest room in which a line is begun.
LEAST_ROOM = 16
#: More than the number of a line, its bar and its end take.
_PREFIX = 32
_LARGEST = (1 << 64) - 1


def parse_start(offset: str) -> Start:
    """Where a page starts, as the script gave it."""
    line, colon, byte = offset.partition(":")
    start = (_whole(line), _whole(byte if colon else "0"))
    if start[0] is None or start[1] is None or start[0] == 0:
        raise WorkspaceError(
            "offset %s is neither a line number from 1 on nor the next_offset of an earlier page" % quoted(offset)
        )
    return start[0], start[1]


def _whole(digits: str) -> Optional[int]:
    digits = digits[1:] if digits[:1] == "+" else digits
    if not (digits.isascii() and digits.isdigit()):
        return None
    number = int(digits)
    return number if number <= _LARGEST else None


def read(source: Source, start: Start, limit: int, raw: bool, content: int, counted: int) -> List[bytes]:
    """Reads at most ``limit`` lines, ``content`` bytes of them: content, total lines, size, next offset."""
    stream = Counted(source)
    stream.skip_lines(start[0] - 1)
    stream.skip_in_line(start[1])
    cut = Cut(start, raw, content)
    more = False
    while stream.fill():
        if cut.lines == limit or not cut.take(stream, limit):
            more = True
            break
    at_end = not more or (source.size <= counted and stream.run_to_end(counted))
    return [
        b"".join(cut.parts),
        b"%d" % stream.lines() if at_end else b"",
        b"%d" % (source.size or stream.bytes),
        cut.at() if more else b"",
    ]


class Counted:
    """A text as a stream, in which what has passed is counted."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._chunk = b""
        self._at = 0
        self._newlines = 0
        self._last = b"\n"
        self.bytes = 0

    def fill(self) -> bool:
        """Whether there is more."""
        if self._at == len(self._chunk):
            self._chunk, self._at = self._source.chunk(), 0
        return bool(self._chunk)

    def lines(self) -> int:
        """Lines that have passed."""
        return self._newlines + (self._last != b"\n")

    def take(self, size: int, newlines: int = -1) -> bytes:
        """The next bytes of the chunk at hand; counting their lines takes long, so who knows the number says it."""
        data = self._chunk[self._at : self._at + size]
        if data:
            self._newlines += data.count(b"\n") if newlines < 0 else newlines
            self.bytes += len(data)
            self._last = data[-1:]
            self._at += len(data)
        return data

    def take_line(self, most: int) -> bytes:
        """The rest of a line with its end, as far as it is no longer than that."""
        parts: List[bytes] = []
        while most and self.fill():
            end = self._chunk.find(b"\n", self._at, self._at + most) + 1
            part = self.take((end or len(self._chunk)) - self._at if end else most)
            parts.append(part)
            if end:
                break
            most -= len(part)
        return b"".join(parts)

    def skip_lines(self, count: int) -> None:
        """Passes over so many lines, or to the end."""
        while count and self.fill():
            end, passed = self._end_of_lines(count)
            self.take(end - self._at)
            count -= passed

    def skip_in_line(self, size: int) -> None:
        """Passes over so many bytes, but not beyond the end of the line."""
        while size and self.fill():
            end = self._chunk.find(b"\n", self._at, self._at + size) + 1
            passed = self.take(end - self._at if end else size)
            size = 0 if end else size - len(passed)

    def run_to_end(self, most: int) -> bool:
        """Reads on, only counting; False when there is more than should be counted."""
        while self.bytes <= most:
            if not self.fill():
                return True
            self.take(len(self._chunk))
        return False

    def whole_lines(self, count: int) -> bytes:
        """So many lines, or as many of them as lie whole in the chunk at hand; they are not taken yet."""
        few = count < len(self._chunk) - self._at
        end = self._end_of_lines(count)[0] if few else len(self._chunk)
        return self._chunk[self._at : self._chunk.rfind(b"\n", self._at, end) + 1]

    def _end_of_lines(self, count: int) -> Tuple[int, int]:
        """Where the chunk's next lines end, and how many they are; with the count not reached, its last part too."""
        low, chunk = self._at, self._chunk
        found = chunk.count(b"\n", low)
        if found < count:
            return len(chunk), found
        passed, high = 0, len(chunk)
        while high - low > 1:  # between them lies the end of the last line
            middle = (low + high) // 2
            here = chunk.count(b"\n", low, middle)
            if passed + here < count:
                passed, low = passed + here, middle
            else:
                high = middle
        return high, count


class Cut:
    """A page in the making."""

    def __init__(self, start: Start, raw: bool, cap: int) -> None:
        self.parts: List[bytes] = []
        self.lines = 0
        self._line, self._byte = start
        self._raw = raw
        self._cap = cap
        self._size = 0
        self._alone = 0  # lines that are known to need a look each

    def at(self) -> bytes:
        """What comes next."""
        return b"%d:%d" % (self._line, self._byte) if self._byte else b"%d" % self._line

    def take(self, stream: Counted, limit: int) -> bool:
        """Puts the next lines on the page; False when it is full with them or without them."""
        if not self._alone:
            self._alone = self._take_many(stream, limit)
            if not self._alone:
                return True
        self._alone -= 1
        return self._take_line(stream)

    def _take_many(self, stream: Counted, limit: int) -> int:
        """Many lines at once, where they surely fit and all is UTF-8. Else how many are to be looked at one by one."""
        lines = stream.whole_lines(limit - self.lines)
        rows = lines[:-1].split(b"\n")
        if not lines or self._size + len(lines) + (len(rows) + 1) * _PREFIX > self._cap:
            return len(rows)
        try:
            lines.decode()
        except UnicodeDecodeError:
            return len(rows)
        stream.take(len(lines), len(rows))
        if self._raw:
            self._put(lines)
        else:
            if b"\r" in lines:
                rows = [row[:-1] if row.endswith(b"\r") else row for row in rows]
            numbered = [b"%d|%s" % row for row in enumerate(rows, self._line)]
            self._put((b"\n" if self.lines else b"") + b"\n".join(numbered))
        self._passed(len(rows))
        return 0

    def _take_line(self, stream: Counted) -> bool:
        prefix = b""
        if not self._raw:
            prefix = b"%s%d|" % (b"\n" if self.lines else b"", self._line)
        room = max(self._cap - self._size - len(prefix), 0)
        if room < LEAST_ROOM and self.lines:
            return False
        room = max(room, LEAST_ROOM)
        line = stream.take_line(room + 1)
        whole = line.endswith(b"\n") or not stream.fill()
        shown = decoded(self._without_end(line))
        if whole and len(shown) <= room:
            self._put(prefix + shown)
            self._passed(1)
            return True
        if not self.lines:
            cut = piece(line, room)
            self._put(prefix + decoded(cut))
            self._byte += len(cut)
        return False

    def _without_end(self, line: bytes) -> bytes:
        """The line as it is shown: numbered lines are without their ends."""
        if self._raw or not line.endswith(b"\n"):
            return line
        return line[:-2] if line.endswith(b"\r\n") else line[:-1]

    def _put(self, data: bytes) -> None:
        self.parts.append(data)
        self._size += len(data)

    def _passed(self, count: int) -> None:
        self.lines += count
        self._line += count
        self._byte = 0


def piece(line: bytes, room: int) -> bytes:
    """The first part of a line that is longer than the room, cut between characters."""
    end = min(room, len(line))
    while end > max(room - 4, 0) and end < len(line) and line[end] & 0xC0 == 0x80:
        end -= 1
    cut = line[:end]
    try:
        cut.decode()
        return cut
    except UnicodeDecodeError:
        # Every byte of what is no UTF-8 may become two or three.
        return cut[: end // 3]


def decoded(line: bytes) -> bytes:
    """UTF-8 as it is; a line with no sign of UTF-8 is Latin-1; a damaged one has replacements."""
    try:
        line.decode()
        return line
    except UnicodeDecodeError:
        replaced = line.decode("utf-8", "replace")
    if all(c == "\ufffd" or c.isascii() for c in replaced):
        return line.decode("latin-1").encode()
    return replaced.encode()
