"""Loads the bundle, inside the one line that the broker starts, with its ``r`` (read exactly n bytes of fd 0).

Bundle: 8 digits length and the configuration, ``NAME=VALUE`` entries separated by NUL; 8 digits length and the
modules, each its name, NUL, the length of its source, NUL, the source; all of them as ``zlib`` packs them where the
configuration has ``compressed``.

Compiling the modules takes longer than all the rest of a start. So each process compiles only what it imports;
and with a ``cache`` in the configuration compiled code is kept there, one file for each bundle and version of
Python. What others can write is not read.
"""

from __future__ import annotations

import marshal
import os
import sys
from _frozen_importlib import ModuleSpec  # type: ignore[import-not-found]

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    from typing import Any, Dict, List

KERNEL = ("surroundings", "cell_sources", "kernel")  # run in a process of their own
WORKER = (
    "worker",
    "workspace",
    "rights",
    "text_file",
    "page",
    "aside",
    "whole_file",
    "changes",
    "search",
    "searchers",
    "search_globs",
    "search_walk",
    "search_lines",
)  # wanted only when a file is read or written


def read(size: int) -> bytes:
    """Exactly so many bytes of the bundle."""
    parts = []
    while size > 0:
        parts.append(os.read(0, size))
        if not parts[-1]:
            sys.exit("the broker hung up before its program was whole")
        size -= len(parts[-1])
    return b"".join(parts)


class Modules:
    """The modules of the bundle, each compiled when it is wanted first."""

    def __init__(self, texts: bytes) -> None:
        self.sources: Dict[str, bytes] = {}
        self.compiled: Dict[str, Any] = {}
        at = 0
        while at < len(texts):
            end = texts.index(b"\0", at)
            start = texts.index(b"\0", end + 1) + 1
            size = int(texts[end + 1 : start - 1])
            self.sources[texts[at:end].decode("ascii")] = texts[start : start + size]
            at = start + size

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Finds them for `import`."""
        loader: Any = self
        return ModuleSpec(name, loader) if name in self.sources and name not in KERNEL else None

    def create_module(self, spec: Any) -> None:
        """They are modules like others."""

    def exec_module(self, module: Any) -> None:
        """Runs one."""
        exec(self.code(module.__name__), module.__dict__)

    def code(self, name: str) -> Any:
        """The compiled code of one."""
        if name not in self.compiled:
            label = "<talaria kernel>" if name in KERNEL else "<talaria " + name + ">"
            self.compiled[name] = compile(self.sources[name], label, "exec", 0, True)
        return self.compiled[name]

    def program(self) -> Any:
        """Those of the kernel: name, source, and a function that gives the code."""
        return [(name, self.sources[name], lambda name=name: self.code(name)) for name in KERNEL]

    def use_cache(self, path: bytes) -> None:
        """Takes the compiled code from a file, or keeps it there."""
        path += b"-%x" % sys.hexversion
        names = [name for name in self.sources if name not in WORKER]
        found = cached(path)
        if found is not None and list(found) == names:
            self.compiled = found
        else:
            keep(path, {name: self.code(name) for name in names})


def cached(path: bytes) -> Any:
    """The cached code, or None."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            found = os.fstat(fd)
            if found.st_uid == os.geteuid() and not found.st_mode & 0o022:
                code = marshal.loads(file.read())
                return code if isinstance(code, dict) else None
    except (OSError, EOFError, ValueError, TypeError):
        pass
    return None


def keep(path: bytes, code: Any) -> None:
    """Caches code, if that can be done."""
    aside = path + b".%d" % os.getpid()
    try:
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(marshal.dumps(code))
        os.rename(aside, path)
    except OSError:
        try:
            os.unlink(aside)
        except OSError:
            pass


# What would be closed to ourselves is of no use, whatever start-up files say.
os.umask(os.umask(0o777) & ~0o700)
r = globals()["r"]
configuration: Dict[str, List[bytes]] = {}
for entry in read(int(r(8))).split(b"\0"):
    name, _, value = entry.partition(b"=")
    configuration.setdefault(name.decode("ascii"), []).append(value)
texts = read(int(r(8)))
if "compressed" in configuration:
    try:
        import zlib
    except ImportError:
        # Few are built without. A frame of the relay's (`frames.py`), which is not here yet: `E`, with a key.
        os.write(1, b"TFE\1\0\4" + bytes(12) + b"zlib")
        os._exit(1)
    texts = zlib.decompress(texts)
modules = Modules(texts)
sys.meta_path.insert(0, modules)  # type: ignore[arg-type]
if configuration["mode"] == [b"pipe"]:
    if configuration["cache"] != [b""]:
        modules.use_cache(configuration["cache"][0])
    __import__("guard").main(configuration["base"], configuration["session"][0], modules.program())
elif configuration["mode"] == [b"directory"]:
    __import__("detached").main(configuration, modules)
else:
    __import__("alone").main(configuration, modules)
