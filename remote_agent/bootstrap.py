"""Loads the bundle, inside the one line that the broker starts, with its ``r`` (read exactly n bytes of fd 0).

Bundle: 8 digits length and the path of a cache (empty: none); 4 digits count; per module 4 digits
length of the name, name, 8 digits length, source. Then 8 digits length and, separated by NUL, the
name of the session's folder and the folders in which it may be made.

Compiling the modules takes longer than all the rest of a start, so the compiled code is kept beside
the user's other caches, one file for each bundle and version of Python. What others can write is not
read.
"""

from __future__ import annotations

import marshal
import os
import sys

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    from typing import Any

KERNEL = ("surroundings", "cell_sources", "kernel")  # run in a process of their own

r = globals()["r"]
cache = r(int(r(8)))
sources = []
for _ in range(int(r(4))):
    name = r(int(r(4))).decode("ascii")
    sources.append((name, r(int(r(8)))))


def label(name: str) -> str:
    """What tracebacks call a module."""
    return "<talaria kernel>" if name in KERNEL else "<talaria " + name + ">"


def read(path: bytes) -> Any:
    """The cached code, or None."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            found = os.fstat(fd)
            if found.st_uid == os.geteuid() and not found.st_mode & 0o022:
                code = marshal.loads(file.read())
                return code if [name for name, _ in code] == [name for name, _ in sources] else None
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


if cache:
    cache += b"-%x" % sys.hexversion
compiled = read(cache) if cache else None
if compiled is None:
    compiled = [(name, compile(text, label(name), "exec", 0, True)) for name, text in sources]
    if cache:
        keep(cache, compiled)
program = []
for (name, text), (_, code) in zip(sources, compiled):
    if name in KERNEL:
        program.append((name, text, code))
    else:
        module = type(sys)(name)
        sys.modules[name] = module
        exec(code, module.__dict__)
name, *bases = r(int(r(8))).split(b"\0")
sys.modules["guard"].main(bases, name, program)
