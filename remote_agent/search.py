"""Searches of scripts on this target, as `search_files` has them; each in a process that does nothing else meanwhile.

The twin of ``src/tools/local_files/search.rs``: the same files, lines, order and sentences.
"""

from __future__ import annotations

import os
import stat
import time

import search_globs
import search_lines
import search_walk
import text_file
import workspace
from workspace import WorkspaceError

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    import signal
    from typing import Any, List, Tuple
else:
    import _signal as signal

#: Seconds that a search may take, and seconds of the processor's for one block of a file.
LIMIT = 60.0
BLOCK_LIMIT = 10.0
#: Seconds between looks at the time; what is longer was a pause, and is charged as two.
TICK = 0.25

# As in `src/tools/search_files/request.rs`.
MOST_RESULTS = 1_000_000
MOST_WARNINGS = 20
PAGE_BYTES = 32 << 20
RESULT_BYTES = 64


class TimeIsUp(Exception):
    """Raised wherever the search is; what is searched at that moment."""


def answer(folder: bytes, home: bytes, arguments: List[bytes]) -> List[bytes]:
    """One search with its arguments as they came: `ok` and the fields of its result, or `error` and a sentence."""
    clock = _Clock()
    try:
        clock.start()
        return [b"ok", *_Search(folder, home, arguments, clock).run()]
    except WorkspaceError as error:
        sentence = str(error)
    except TimeIsUp:
        sentence = clock.complaint()
    except MemoryError:
        sentence = "there is not enough memory for this search on the target; narrow it by path or file_glob"
    except Exception as error:
        sentence = "the search failed (%s: %s); search in Python instead" % (type(error).__name__, error)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return [b"error", sentence.encode("utf-8", "backslashreplace")]


class _Clock:
    """Ends a search whose time is up: signals are looked at within an expression too."""

    def __init__(self) -> None:
        self._left = LIMIT
        self._last = time.monotonic()
        self._end_of_block = float("inf")
        #: What is searched.
        self.place = ""

    def start(self) -> None:
        """Begins to look at the time."""
        signal.signal(signal.SIGALRM, self._look)
        signal.setitimer(signal.ITIMER_REAL, TICK, TICK)

    def block(self) -> None:
        """The next block of a file is begun."""
        self._end_of_block = time.process_time() + BLOCK_LIMIT

    def _look(self, *_: Any) -> None:
        now = time.monotonic()
        self._left -= min(now - self._last, 2 * TICK)
        self._last = now
        if self._left <= 0 or time.process_time() > self._end_of_block:
            raise TimeIsUp

    def complaint(self) -> str:
        """What to do about it."""
        if self._left > 0:
            return (
                "searching %s took more than %d s of the processor and was stopped: Python searches on this "
                "target, and may try repetitions within repetitions, as in (a+)+b, without end; write the pattern "
                "more simply, or leave "
                "the file out with file_glob" % (self.place, BLOCK_LIMIT)
            )
        return (
            "the search took longer than %d s on the target and was stopped (at %s); narrow it by path or file_glob"
            % (LIMIT, self.place or "its beginning")
        )


class _Search:
    def __init__(self, folder: bytes, home: bytes, arguments: List[bytes], clock: _Clock) -> None:
        given, self._told, wanted, unicode, self._literal, context, offset, limit, *globs = arguments
        self._clock = clock
        self._wanted, self._unicode = wanted.decode(), unicode.decode()
        self._context, self._offset, self._limit = int(context), int(offset), int(limit)
        self._need = min(self._offset + self._limit, MOST_RESULTS)
        path = workspace.resolve(folder, home, given)
        self._find(path)
        self._globs = search_globs.overrides(globs)
        self._prefix = _prefix(folder, path, given, self._is_folder)
        self._total = self._searched = self._binary = 0
        self._entries: List[bytes] = []
        self._shown = 0
        self._room = PAGE_BYTES
        self._is_full = False
        self._warnings: List[str] = []

    def _find(self, path: bytes) -> None:
        """Finds the place, or says why it cannot be searched."""
        try:
            mode = os.stat(path).st_mode
            self._root = os.path.realpath(path)
            self._is_folder = stat.S_ISDIR(mode)
            if self._is_folder:
                os.scandir(self._root).close()
                odd = search_walk.odd_rules_above(self._root)
                if odd:
                    raise WorkspaceError(_odd(path, odd))
        except OSError as error:
            raise workspace.failed("search", path, error) from None
        if not self._is_folder and not stat.S_ISREG(mode):
            fifo, sock = stat.S_ISFIFO(mode), stat.S_ISSOCK(mode)
            what = "a named pipe" if fifo else "a socket" if sock else "a device"
            raise WorkspaceError(
                "%s is %s, neither file nor folder; read it with terminal() and a timeout"
                % (workspace.text(path), what)
            )

    def run(self) -> List[bytes]:
        """The fields of the result."""
        if self._told == b"names":
            of = self._names()
        elif self._is_folder:
            of = self._below()
        else:
            of = self._one()
        more = self._is_full or (self._shown > 0 and self._offset + self._shown < of)
        passed_over = misfit = b""
        if self._is_folder and not self._searched + self._binary:
            passed_over, misfit = search_walk.examples(self._root, self._globs)
        warnings = sorted(set(self._warnings))
        told = [warning.encode("utf-8", "backslashreplace") for warning in warnings[:MOST_WARNINGS]]
        numbers = (self._total, more, self._searched, self._binary, len(warnings) - len(told), len(told), self._shown)
        return [
            b" ".join(b"%d" % number for number in numbers),
            self._path(passed_over) if passed_over else b"",
            self._path(misfit) if misfit else b"",
            *told,
            *self._entries,
        ]

    def _path(self, below: bytes) -> bytes:
        return self._prefix + below.decode("utf-8", "replace").encode()

    def _walk(self) -> search_walk.Walk:
        return search_walk.Walk(self._root, self._globs, True, self._warn)

    def _warn(self, below: bytes, error: Exception) -> None:
        if isinstance(error, search_walk.OddRules):
            self._warnings.append(_odd(self._path(below), error.args[0]))
            return
        # What has gone since its folder was read is not there.
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
            shown = workspace.text(self._path(below))
            if isinstance(error, PermissionError):
                self._warnings.append("cannot search %s: this user has no right to" % shown)
            else:
                self._warnings.append(str(workspace.failed("search", self._path(below), error)))

    def _put(self, size: int, fields: List[bytes]) -> None:
        """Puts a result on the page, if it still fits."""
        if self._is_full or self._shown >= self._limit or (size > self._room and self._shown):
            self._is_full = True
            return
        self._room -= size
        self._shown += 1
        self._entries += fields

    def _lines(self) -> search_lines.Lines:
        context = self._context if self._told == b"lines" else 0
        return search_lines.Lines(self._wanted, self._unicode, self._literal, context, self._clock.block)

    def _one(self) -> int:
        self._clock.place = workspace.text(self._root)
        try:
            found = self._lines().search(self._root, self._need if self._told == b"lines" else 0)
        except OSError as error:
            raise workspace.failed("search", self._root, error) from None
        except search_lines.LineTooLong:
            raise _too_long(self._root) from None
        if found.is_binary:
            raise _binary(self._root)
        self._searched = 1
        self._take(self._prefix, found, 0)
        return self._total if self._told == b"lines" else int(found.count > 0)

    def _below(self) -> int:
        lines = self._lines()
        files = results = 0
        for below, entry in self._walk().files():
            path = self._path(below)
            self._clock.place = path.decode()
            wanted = max(self._need - results, 0) if self._told == b"lines" else 0
            try:
                found = lines.search(entry.path, wanted)
            except OSError as error:
                self._warn(below, error)
                continue
            except search_lines.LineTooLong:
                self._warnings.append(str(_too_long(path)))
                continue
            self._searched += 1
            self._binary += found.is_binary
            if found.count:
                self._take(path, found, results)
                results += min(found.count, wanted) if self._told == b"lines" else 1
                files += 1
        return self._total if self._told == b"lines" else files

    def _take(self, path: bytes, found: search_lines.FileLines, before: int) -> None:
        """Takes what was found in a file, which is not the first: so many results were before."""
        if not found.count:
            return
        self._total += 1 if self._told == b"files" else found.count
        if self._told != b"lines":
            if before >= self._offset and before < self._need:
                self._put(len(path) + RESULT_BYTES, [path, b"%d" % found.count])
            return
        for place, (number, content, matches) in enumerate(found.lines):
            if not matches:
                continue
            before += 1
            if before <= self._offset or self._is_full:
                continue
            around = _near(found.lines, place, -1, self._context), _near(found.lines, place, 1, self._context)
            size = sum(len(line) + 4 for lines in around for line in lines)
            counts = [b"%d %d %d" % (number, len(around[0]), len(around[1]))]
            size += len(path) + len(content) + RESULT_BYTES
            self._put(size, [path, *counts, content, *around[0][::-1], *around[1]])

    def _names(self) -> int:
        if not self._is_folder:
            raise WorkspaceError(
                "%s is a file, and names are searched below a folder; give the folder as path"
                % workspace.text(self._root)
            )
        wanted = search_globs.overrides([self._wanted.encode()])
        found: List[Tuple[int, List[bytes], bytes]] = []
        for below, entry in self._walk().files():
            self._searched += 1
            if not search_globs.is_out(wanted, below, entry.name, False):
                try:
                    changed = entry.stat(follow_symlinks=False).st_mtime_ns
                except OSError:
                    changed = 0
                found.append((-changed, below.split(b"/"), below))
        found.sort()
        self._total = len(found)
        for _, _, below in found[self._offset : self._need]:
            path = self._path(below)
            self._put(len(path) + RESULT_BYTES, [path])
        return self._total


def _near(lines: List[Tuple[int, bytes, bool]], place: int, step: int, context: int) -> List[bytes]:
    """Texts of lines before or after one, the nearest first."""
    found = []
    at = place + step
    while 0 <= at < len(lines) and abs(lines[at][0] - lines[place][0]) <= context:
        found.append(lines[at][1])
        at += step
    return found


def _odd(path: bytes, rules: bytes) -> str:
    shown = workspace.text(path).rstrip("/") or "."
    return "cannot search %s: %s is a pipe or a device, not an ignore file; remove it" % (shown, workspace.text(rules))


def _too_long(path: bytes) -> WorkspaceError:
    return WorkspaceError(
        "cannot search %s: it holds a line of more than %d MiB"
        % (workspace.text(path), search_lines.LONGEST_LINE >> 20)
    )


def _binary(path: bytes) -> WorkspaceError:
    """Says that a file is no text, which is known already."""
    size, sample = 0, b""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            sample = file.read(text_file.SAMPLE)
    except OSError:
        pass  # without a sample it is binary data all the same
    return text_file._binary(path, text_file.binary_kind(sample) or "binary data", size)


def _prefix(folder: bytes, path: bytes, given: bytes, is_folder: bool) -> bytes:
    """What stands before the paths of results: they start at the working directory where that is above, else as
    given."""
    parts = [part for part in path.split(b"/") if part not in (b"", b".")]
    above = [part for part in folder.split(b"/") if part not in (b"", b".")]
    prefix = given
    if parts[: len(above)] == above and b".." not in parts:
        prefix = b"/".join(parts[len(above) :])
    if is_folder and prefix and not prefix.endswith(b"/"):
        prefix += b"/"
    return prefix.decode("utf-8", "replace").encode()
