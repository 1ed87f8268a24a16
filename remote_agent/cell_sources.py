"""The text of cells: for tracebacks, for `inspect`, and on disk."""

from __future__ import annotations

import _ast
import sys
from io import BytesIO

from surroundings import os

TYPE_CHECKING = False  # see `kernel`
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional

COMPILE_ONLY_AST = 0x400
ALLOW_TOP_LEVEL_AWAIT = 0x2000


class Sources:
    """The text of every cell, so that tracebacks and `inspect.getsource` find it."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._texts: Dict[str, bytes] = {}
        #: Within it imports are the standard library's, whatever the project shadows.
        self.view: Callable[[], Any]

    def add(self, name: str, source: bytes) -> str:
        """Keeps a cell's source and gives the file name it runs under."""
        path = self._folder + "/" + name
        self._texts[path] = source
        try:
            make_folder(self._folder)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                while source:
                    source = source[os.write(fd, source) :]
            finally:
                os.close(fd)
        except OSError:
            pass  # `linecache` is given the text below
        if sys.modules.get("linecache") is not None:
            self._fill(sys.modules["linecache"], path)
        return path

    def __contains__(self, path: str) -> bool:
        return path in self._texts

    def fill(self, linecache: Any) -> None:
        """Gives `linecache` all cells: their files may be gone by the time they are asked for."""
        for path in self._texts:
            self._fill(linecache, path)

    def _fill(self, linecache: Any, path: str) -> None:
        try:
            lines = self._text(path).split("\n")
            linecache.cache[path] = (len(self._texts[path]), None, [line + "\n" for line in lines], path)
        except BaseException:  # cosmetics; a cell may have broken any of it
            pass

    def _text(self, path: str) -> str:
        text = self._texts[path]
        encoding = "utf-8"
        if b"coding" in text[:400]:
            with self.view():
                import tokenize

            encoding = tokenize.detect_encoding(BytesIO(text).readline)[0]
        return text.decode(encoding, "replace").lstrip("\ufeff").replace("\r\n", "\n").replace("\r", "\n")

    def find_classes(self, inspect: Any) -> None:
        """Lets `inspect` find classes of all cells; it knows only the file of their module."""
        getfile = inspect.getfile

        def getfile_of_cells(thing: Any) -> Any:
            if isinstance(thing, type) and thing.__module__ == "__main__":
                path = self._cell_of(thing)
                if path is not None:
                    return path
            return getfile(thing)

        getfile_of_cells.__wrapped__ = getfile  # type: ignore[attr-defined]
        inspect.getfile = getfile_of_cells

    def _cell_of(self, thing: type) -> Optional[str]:
        for member in list(vars(thing).values()):
            path = getattr(getattr(member, "__code__", None), "co_filename", None)
            if path in self._texts and member.__qualname__ == thing.__qualname__ + "." + member.__name__:
                return str(path)
        # Without a method nothing says where it comes from: the latest cell that defines its name.
        for path in reversed(list(self._texts)):
            if ("class " + thing.__name__).encode() in self._texts[path]:
                tree = compile(self._text(path), path, "exec", ALLOW_TOP_LEVEL_AWAIT | COMPILE_ONLY_AST, True)
                if _defines(tree, thing.__qualname__.split(".")):
                    return path
        return None


def _defines(tree: Any, names: List[str]) -> bool:
    """Whether a syntax tree defines a class of this path of names."""
    queue = list(getattr(tree, "body", ()))
    while queue:
        node = queue.pop()
        if isinstance(node, (_ast.ClassDef, _ast.FunctionDef, _ast.AsyncFunctionDef)):
            rest = names[1:] if isinstance(node, _ast.ClassDef) else names[2:]  # "f.<locals>.Class"
            if node.name == names[0] and (not rest or _defines(node, rest)):
                return True
        else:
            for block in ("body", "orelse", "finalbody", "handlers"):
                queue += getattr(node, block, ())
    return False


FILE_TYPE, FOLDER = 0o170000, 0o040000  # of a file's mode


def make_folder(path: str) -> None:
    """Makes a folder of the session's own again, should a cell have removed it.

    A link in its place goes; what another user put there is not used (an OSError).
    """
    for folder in (path.rpartition("/")[0], path):
        try:
            found = os.lstat(folder)
        except OSError:
            os.mkdir(folder, 0o700)
            continue
        if found.st_mode & FILE_TYPE != FOLDER:
            os.unlink(folder)
            os.mkdir(folder, 0o700)
        elif found.st_uid != os.geteuid():
            raise PermissionError(folder)
