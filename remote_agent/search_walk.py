"""Which files a search looks at: those that ripgrep would; of the worker.

The twin of ``src/tools/local_files/search/place.rs`` and of what its libraries do.
"""

from __future__ import annotations

import os
import stat

import search_globs
from search_globs import LEFT_OUT, NOTHING, Rules

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    from typing import Callable, Iterator, List, Optional, Set, Tuple

    Entry = os.DirEntry[bytes]

#: Entries that are looked at for an example, where nothing was found to search.
EXAMPLE_SEARCH = 10_000
#: Names of ignore files, the strongest first.
RULES = (b".rgignore", b".ignore", b".gitignore")
_OF_GIT = (2, 3)
#: Folders whose files the kernel makes up as they are read: nobody who searches a whole machine means these.
OF_THE_KERNEL = (b"/proc", b"/sys")


class OddRules(Exception):
    """An ignore file that is none, and would be waited for where one is read."""


class Level:
    """A folder above what is looked at, and the rules that stand in it."""

    def __init__(self, folder: bytes, above: Optional[Level]) -> None:
        self.above = above
        #: How much of a path below it is its own.
        self.length = len(folder) + (folder != b"/")
        #: Of `RULES`, and of the repository's `info/exclude`.
        self.rules: List[Optional[Rules]] = [None] * 4
        self.has_git = False
        #: All rules that hold below it, those first that decide first.
        self.all: List[Tuple[Rules, int]] = []

    def is_needed(self) -> bool:
        """Whether it changes anything; it is complete then."""
        found: List[List[Tuple[Rules, int]]] = [[] for _ in self.rules]
        level: Optional[Level] = self
        saw_git = False
        while level is not None:
            for kind, rules in enumerate(level.rules):
                if rules and not (saw_git and kind in _OF_GIT):
                    found[kind].append((rules, level.length))
            saw_git = saw_git or level.has_git
            level = level.above
        self.all = [rules for kind in found for rules in kind]
        return self.has_git or any(self.rules)


class Walk:
    """A way through the files below a folder, in the order of their paths."""

    def __init__(
        self, root: bytes, globs: Optional[Rules], heeds: bool, failed: Callable[[bytes, Exception], None]
    ) -> None:
        self.root = root
        self._globs = globs
        self._heeds = heeds
        self._failed = failed
        self._length = len(root) + (root != b"/")
        self._own = (b"/proc/%d" % os.getpid(), b"/proc/%d" % os.getppid(), *OF_THE_KERNEL)
        self._needs_git = _is_in_repository(root)
        #: Entries that were come by.
        self.seen = 1
        #: Leaves out further entries: path, whether it is a folder.
        self.leaves_out: Callable[[bytes, bytes, bool], bool] = lambda path, name, is_folder: False

    def files(self) -> Iterator[Tuple[bytes, Entry]]:
        """All files: the path below the root, and the entry."""
        level = self._levels_above() if self._heeds else None
        open_folders = [self._entries(self.root, level)]
        while open_folders:
            for entry, level in open_folders[-1]:
                if entry.is_dir(follow_symlinks=False):
                    open_folders.append(self._entries(entry.path, level))
                    break
                yield entry.path[self._length :], entry
            else:
                open_folders.pop()

    def _entries(self, folder: bytes, above: Optional[Level]) -> Iterator[Tuple[Entry, Optional[Level]]]:
        """Folders and files in a folder that are to be looked at, with the rules that hold below them."""
        try:
            with os.scandir(folder) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError as error:
            self._failed(folder[self._length :], error)
            return
        level = above
        if self._heeds:
            names = {entry.name for entry in entries}
            odd = odd_rules(folder, names)
            if odd:
                self._failed(folder[self._length :], OddRules(odd))
                return
            level = self._level(folder, names, above)
        for entry in entries:
            try:
                is_folder = entry.is_dir(follow_symlinks=False)
                if not is_folder and not entry.is_file(follow_symlinks=False):
                    continue
            except OSError:
                continue
            if self._heeds and _is_left_out(level, entry, is_folder):
                continue
            if is_folder and (entry.path in self._own or _is_of_session(entry.name)):
                continue
            path = entry.path[self._length :]
            if self._globs is not None and search_globs.is_out(self._globs, path, entry.name, is_folder):
                continue
            if self.leaves_out(path, entry.name, is_folder):
                continue
            self.seen += 1
            yield entry, level

    def _levels_above(self) -> Optional[Level]:
        folders = []
        folder = self.root
        while folder != b"/":
            folder = os.path.dirname(folder)
            folders.append(folder)
        level = None
        for folder in reversed(folders):
            level = self._level(folder, None, level)
        return level

    def _level(self, folder: bytes, names: Optional[Set[bytes]], above: Optional[Level]) -> Optional[Level]:
        level = Level(folder, above)
        for kind, name in enumerate(RULES):
            if names is None or name in names:
                level.rules[kind] = _read(os.path.join(folder, name))
        if names is None or b".git" in names:
            git = os.path.join(folder, b".git")
            if os.path.exists(git):
                level.has_git = self._needs_git
                level.rules[3] = _read_exclude(git)
        if self._needs_git and (names is None or b".jj" in names):
            level.has_git = level.has_git or os.path.exists(os.path.join(folder, b".jj"))
        return level if level.is_needed() else above


def odd_rules(folder: bytes, names: Optional[Set[bytes]] = None) -> bytes:
    """An ignore file in a folder that is a pipe or a device; empty where there is none."""
    for name in (*RULES, b".git/info/exclude"):
        if names is None or name in names or (name not in RULES and b".git" in names):
            try:
                mode = os.stat(os.path.join(folder, name)).st_mode
            except OSError:
                continue
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                return name
    return b""


def odd_rules_above(root: bytes) -> bytes:
    """The same in a folder or one above: its path."""
    folder = root
    while True:
        name = odd_rules(folder)
        if name or folder == b"/":
            return os.path.join(folder, name) if name else b""
        folder = os.path.dirname(folder)


def _is_left_out(level: Optional[Level], entry: Entry, is_folder: bool) -> bool:
    """Whether rules leave an entry out, or it is hidden and they do not want it."""
    name = entry.name
    if level is not None:
        path = entry.path
        for rules, length in level.all:
            said = rules.says(path[length:], name, is_folder)
            if said != NOTHING:
                return said == LEFT_OUT
    return name.startswith(b".")


def _read(path: bytes) -> Optional[Rules]:
    """The rules of an ignore file; None without any."""
    data = _content(path)
    return (search_globs.read_rules(data) or None) if data else None


def _content(path: bytes) -> bytes:
    """What a file holds; nothing of what cannot be read or has nothing to give now."""
    parts = []
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        while True:
            data = os.read(fd, 1 << 20)
            if not data:
                break
            parts.append(data)
    except OSError:
        return b""
    finally:
        os.close(fd)
    return b"".join(parts)


def _read_exclude(git: bytes) -> Optional[Rules]:
    """The repository's own rules; of a work tree, those of its repository."""
    if not os.path.isfile(git):
        return _read(os.path.join(git, b"info/exclude"))
    real = _first_line(git)
    if not real.startswith(b"gitdir: "):
        return None
    real = real[len(b"gitdir: ") :]
    common = _first_line(os.path.join(real, b"commondir"))
    if not common:
        return None
    if common.startswith(b"."):
        common = os.path.join(real, common)
    return _read(os.path.join(common, b"info/exclude"))


def _first_line(path: bytes) -> bytes:
    line, end, _ = _content(path).partition(b"\n")
    return line[:-1] if end and line.endswith(b"\r") else line


def _is_in_repository(root: bytes) -> bool:
    """Whether rules of git hold there only within a repository: outside of any, they hold without one."""
    folder = root
    while True:
        if any(os.path.exists(os.path.join(folder, name)) for name in (b".git", b".jj")):
            return True
        if folder == b"/":
            return False
        folder = os.path.dirname(folder)


def _is_of_session(name: bytes) -> bool:
    """Whether a folder with this name is that of a session."""
    if not name.startswith(b"talaria-"):
        return False
    number = name[8:-5] if name.endswith(b"-disk") else name[8:]
    return len(number) == 32 and all(letter in b"0123456789abcdefABCDEF" for letter in number)


def examples(root: bytes, globs: Rules) -> Tuple[bytes, bytes]:
    """A file that would be looked at if it were not hidden or ignored, and one that would be if it also had
    another name; empty where there is none."""

    def ignore(path: bytes, error: Exception) -> None:
        pass

    about_rules = (b".git", *RULES)
    walk = Walk(root, globs, False, ignore)
    walk.leaves_out = lambda path, name, is_folder: name in about_rules
    for path, _ in walk.files():
        if walk.seen > EXAMPLE_SEARCH:
            break
        return path, b""
    walk = Walk(root, None, True, ignore)
    walk.leaves_out = lambda path, name, is_folder: (
        name in about_rules or (is_folder and search_globs.is_out(globs, path, name, True))
    )
    for path, entry in walk.files():
        if walk.seen > EXAMPLE_SEARCH:
            break
        if search_globs.is_out(globs, path, entry.name, False):
            return b"", path
    return b"", b""
