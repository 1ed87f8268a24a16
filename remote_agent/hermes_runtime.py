"""The tools that this script may call; each call is answered by the broker.

The functions after the marker near the end are generated from the tools that the session allows.
What stands before it keeps track of the cell that each call belongs to, and carries calls to the
broker by the one way that this session has.

It runs early inside the kernel and again in every child process that imports it, beside a
project that may shadow the standard library. So it imports nothing on load that the
interpreter has not loaded anyway, and takes what the first call needs from the genuine
standard library, leaving the project's own modules as they were.
"""

from __future__ import annotations

import _frozen_importlib as _bootstrap
import _frozen_importlib_external as _external
import _thread
import builtins as _builtins
import os as _os
import sys as _sys
from _contextvars import ContextVar as _ContextVar

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from hermes_calls import _plain
    from rpc_socket import _close_all, _needed, _settle

_TOKEN = ""  # put in when the file is generated
_LIMIT = 64 * 1024 * 1024  # bytes of UTF-8 text in one argument
_FRAME_LIMIT = 6 * _LIMIT + 1024 * 1024  # JSON writes one control character as six bytes
_MAX_DEPTH = 100  # the broker's JSON reader stops at 128
_MAX_IDLE = 64  # ways to the broker that are kept for the next calls

# Taken now: a script may patch or delete these later.
_fstat, _dup, _close_fd, _fspath = _os.fstat, _os.dup, _os.close, _os.fspath
_get_ident = _thread.get_ident


# --- which cell a call belongs to -------------------------------------------------------


class _State:
    """What must outlive a reload of this module: whose process this is, the cell, and ways to the broker."""

    def __init__(self) -> None:
        self.is_kernel = False
        self.after_import: dict[str, Callable[[Any], None]] = {}
        self.cell: _ContextVar[int | None] = _ContextVar("hermes_cell", default=None)
        self.thread = _thread._local()
        self.idle: list[Any] = []  # those that the next calls take
        self.open: set[Any] = set()  # these and those under way


def _kept_state() -> _State:
    for finder in _sys.meta_path:
        state = getattr(finder, "hermes_state", None)
        if state is not None:
            return state  # type: ignore[no-any-return]
    return _State()


_STATE: _State = _kept_state()
_CELL = _STATE.cell


def _current_cell() -> int:
    """The cell that the running code acts for; 0 has no authority."""
    cell = _CELL.get()
    if cell is None:
        cell = getattr(_STATE.thread, "cell", None)
    if cell is not None:
        return cell
    if _STATE.is_kernel:
        return 0  # nobody handed this thread out: it must not borrow the cell that runs now
    try:
        return int(_os.environ.get("HERMES_RPC_CELL", "0"))
    except ValueError:
        return 0


def _enter_cell(number: int) -> None:
    """Called by the kernel in its main thread before each cell, and with 0 after it."""
    _CELL.set(number)
    _STATE.thread.cell = number
    if not number:
        _settle()


class _Carried:
    """A work item that acts for the cell that handed it out, wherever it runs."""

    __slots__ = ("cell", "function")

    def __init__(self, cell: int, function: Callable[..., Any]) -> None:
        self.cell = cell
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        token = _CELL.set(self.cell)
        try:
            return self.function(*args, **kwargs)
        finally:
            _CELL.reset(token)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.cell, self.function)

    def __repr__(self) -> str:
        return repr(self.function)


class _ThreadMain(_Carried):
    """The function of a new thread: also code in an empty context acts for its cell."""

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        _STATE.thread.cell = self.cell
        return super().__call__(*args, **kwargs)


# module -> (attribute, position and name of the function that is handed out)
_PATCHES: dict[str, tuple[tuple[str, int, str], ...]] = {
    "_thread": (
        ("start_new_thread", 0, "function"),
        ("start_new", 0, "function"),
        ("start_joinable_thread", 0, "function"),
    ),
    "threading": (
        ("_start_new_thread", 0, "function"),
        ("_start_joinable_thread", 0, "function"),
    ),
    "concurrent.futures.thread": (("ThreadPoolExecutor.submit", 1, "fn"),),
    "concurrent.futures.process": (("ProcessPoolExecutor.submit", 1, "fn"),),
    "multiprocessing.pool": (
        ("Pool.apply_async", 1, "func"),
        ("Pool.map", 1, "func"),
        ("Pool.map_async", 1, "func"),
        ("Pool.starmap", 1, "func"),
        ("Pool.starmap_async", 1, "func"),
        ("Pool.imap", 1, "func"),
        ("Pool.imap_unordered", 1, "func"),
    ),
}


def _carrying(original: Callable[..., Any], position: int, keyword: str) -> Callable[..., Any]:
    """Wraps a function that hands out work so that the work takes the cell along."""
    carrier = _ThreadMain if position == 0 else _Carried

    def hand_out(*args: Any, **kwargs: Any) -> Any:
        if len(args) > position:
            if callable(args[position]):
                item = carrier(_current_cell(), args[position])
                args = (*args[:position], item, *args[position + 1 :])
        elif callable(kwargs.get(keyword)):
            kwargs[keyword] = carrier(_current_cell(), kwargs[keyword])
        return original(*args, **kwargs)

    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        try:
            setattr(hand_out, name, getattr(original, name))
        except (AttributeError, TypeError):
            pass
    hand_out.__wrapped__ = original  # type: ignore[attr-defined]
    hand_out.hermes_carrying = True  # type: ignore[attr-defined]
    return hand_out


def _patch(module: Any) -> None:
    """Patches one module; again after a reload of it or of this one."""
    for path, position, keyword in _PATCHES.get(getattr(module, "__name__", ""), ()):
        owner_name, _, name = path.rpartition(".")
        owner = getattr(module, owner_name, None) if owner_name else module
        original = getattr(owner, name, None)
        while getattr(original, "hermes_carrying", False):
            original = original.__wrapped__  # type: ignore[union-attr]
        if callable(original):
            setattr(owner, name, _carrying(original, position, keyword))


def _is_awaited(name: str) -> bool:
    """Whether somebody wants a look at this module once it is loaded."""
    return name in _PATCHES or name in _STATE.after_import


class _PatchOnImport:
    """A finder that finds nothing itself, but has a look at some modules once they are loaded."""

    hermes_state = _STATE

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if not _is_awaited(name):
            return None
        for finder in _sys.meta_path:
            if getattr(finder, "hermes_state", None) is not None:
                continue  # this one, or the one of an earlier load of this module
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find else None
            if spec is not None:
                if spec.loader is not None and not isinstance(spec.loader, type):
                    self.look_after(spec.loader)
                return spec
        return None

    @staticmethod
    def look_after(loader: Any) -> None:
        def exec_module(module: Any) -> None:
            vars(loader).pop("exec_module", None)
            loader.exec_module(module)
            _look_at(module)

        try:
            loader.exec_module = exec_module
        except AttributeError:
            pass  # a loader without a __dict__: its module stays as it is


def _look_at(module: Any) -> None:
    _patch(module)
    hook = _STATE.after_import.get(getattr(module, "__name__", ""))
    if hook is not None:
        hook(module)


def _install(is_kernel: bool = False, after_import: dict[str, Callable[[Any], None]] | None = None) -> None:
    """Makes new threads and work items carry their cell.

    The kernel calls it with True, and may name functions that are to be called with a module
    each time that it has been loaded, or at once if it is loaded already.
    """
    _STATE.is_kernel = _STATE.is_kernel or is_kernel
    _STATE.after_import.update(after_import or {})
    others = [f for f in _sys.meta_path if getattr(f, "hermes_state", None) is None]
    _sys.meta_path[:] = [_PatchOnImport(), *others]
    for name in (*_PATCHES, *(after_import or ())):
        module = _sys.modules.get(name)
        if module is not None:
            _look_at(module)


# --- the genuine standard library -------------------------------------------------------

_LOCK = _thread.RLock()


def _stdlib_folders() -> list[str]:
    folder = _os.path.dirname(_os.__file__)
    folders = [folder, _os.path.join(folder, "lib-dynload")]
    name = "python{}.{}".format(*_sys.version_info)
    for lib in ("lib", getattr(_sys, "platlibdir", "lib")):
        platform = _os.path.join(_sys.base_exec_prefix, lib, name)
        folders += [platform, _os.path.join(platform, "lib-dynload")]
    return list(dict.fromkeys(folders))


_STDLIB = _stdlib_folders()


def _is_stdlib_file(origin: Any) -> bool:
    if origin in ("built-in", "frozen"):
        return True
    if not isinstance(origin, str):
        return False
    for folder in _STDLIB:
        if origin.startswith(folder + _os.sep):
            first = origin[len(folder) + 1 :].split(_os.sep, 1)[0]
            if first not in ("site-packages", "dist-packages"):
                return True
    return False


def _is_genuine(module: Any) -> bool:
    try:  # not getattr: a lazy module would load itself
        attributes = object.__getattribute__(module, "__dict__")
    except AttributeError:
        return False
    spec = attributes.get("__spec__")
    if getattr(spec, "loader", None) in (_bootstrap.BuiltinImporter, _bootstrap.FrozenImporter):
        return True  # Python 3.8 knows no origin of modules that were there before the import system
    return _is_stdlib_file(getattr(spec, "origin", None) or attributes.get("__file__"))


_NEEDED = (_sys, _builtins, _os, _thread, _external)


class _StdlibView:
    """Inside, what this thread imports is the standard library's, whatever the project shadows.

    On leaving, modules of the project are where they were, and a name that the project
    shadows without having imported it yet is free for it again.
    """

    def __enter__(self) -> None:
        _LOCK.acquire()
        for needed in _NEEDED:  # without them an import after sys.modules.clear() breaks
            _sys.modules.setdefault(needed.__name__, needed)
        self.thread = _get_ident()
        self.displaced: dict[str, Any] = {}
        known: dict[str, bool] = {}
        for name, module in list(_sys.modules.items()):
            if name == "__main__" or name.startswith("hermes_tools") or _is_genuine(module):
                continue
            top = name.partition(".")[0]
            if top not in known:
                known[top] = top in _sys.builtin_module_names or self.in_stdlib(top)
            if known[top]:
                self.displaced[name] = _sys.modules.pop(name)
        self.before = set(_sys.modules)
        _sys.meta_path.insert(0, self)

    def __exit__(self, *_: object) -> None:
        try:
            _sys.meta_path[:] = [finder for finder in _sys.meta_path if finder is not self]
            shadowed: dict[str, bool] = dict.fromkeys(self.displaced, True)
            for name in set(_sys.modules) - self.before:
                top = name.partition(".")[0]
                if top not in shadowed:
                    spec = None
                    if top not in _sys.builtin_module_names:
                        spec = _external.PathFinder.find_spec(top)
                    shadowed[top] = spec is not None and not _is_stdlib_file(spec.origin)
                if shadowed[top]:
                    _sys.modules.pop(name, None)
            _sys.modules.update(self.displaced)
        finally:
            _LOCK.release()

    @staticmethod
    def in_stdlib(top: str) -> bool:
        spec = _external.PathFinder.find_spec(top, _STDLIB)
        return spec is not None and spec.loader is not None

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if _get_ident() != self.thread or name in _sys.builtin_module_names:
            return None
        spec = _external.PathFinder.find_spec(name, _STDLIB if path is None else path, target)
        if spec is not None and spec.loader is not None and _is_awaited(name):
            _PatchOnImport.look_after(spec.loader)
        return spec


class _Library:
    """What calls need of the standard library, loaded at the first one."""

    def __init__(self) -> None:
        with _StdlibView():
            import json

            # Where the first import of `json` was broken off, the second one leaves its parts out.
            self.json_decoder = getattr(json, "decoder", None) or _sys.modules["json.decoder"]
            self.needed = _needed()
        encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)
        self.encode = encoder.encode
        self.decode = json.JSONDecoder().decode
        self.decode_lenient = json.JSONDecoder(strict=False).decode
        self.detect_encoding = json.detect_encoding


_LOADED: _Library | None = None


def _library() -> _Library:
    global _LOADED
    if _LOADED is None:
        with _LOCK:
            if _LOADED is None:
                _LOADED = _Library()
    return _LOADED


class _Failed(Exception):
    """The call failed, and the broker is still there: the sentence is its result."""


def _pass_on(error: OSError) -> None:
    """Raises again what came out of a signal handler of the script: errors of the system have a number."""
    if error.errno is None:
        raise error


def _after_fork() -> None:
    """A child must not speak on its parent's ways to the broker, nor keep them open."""
    global _LOCK
    _LOCK = _thread.RLock()
    _STATE.is_kernel = False
    _close_all()
