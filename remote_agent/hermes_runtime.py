"""The tools that this script may call; each call is answered by the broker.

The file has two parts. This first one carries calls to the broker and keeps track of the
cell that each call belongs to; it is the same in every session. The functions after the
marker near the end are generated from the tools that the session allows.

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

_TOKEN = ""  # put in when the file is generated
_LIMIT = 64 * 1024 * 1024  # bytes of UTF-8 text in one argument
_FRAME_LIMIT = 6 * _LIMIT + 1024 * 1024  # JSON writes one control character as six bytes
_MAX_DEPTH = 100  # the broker's JSON reader stops at 128
_MAX_IDLE = 64  # connections kept for the next calls
_SMALL = 64 * 1024  # up to here header and body go out in one write

# Taken now: a script may patch or delete these later.
_fstat, _dup, _close_fd, _fspath = _os.fstat, _os.dup, _os.close, _os.fspath
_get_ident = _thread.get_ident


# --- which cell a call belongs to -------------------------------------------------------


class _State:
    """What must outlive a reload of this module: whose process this is, and the cell."""

    def __init__(self) -> None:
        self.is_kernel = False
        self.after_import: dict[str, Callable[[Any], None]] = {}
        self.cell: _ContextVar[int | None] = _ContextVar("hermes_cell", default=None)
        self.thread = _thread._local()


def _kept_state() -> _State:
    for finder in _sys.meta_path:
        state = getattr(finder, "hermes_state", None)
        if state is not None:
            return state  # type: ignore[no-any-return]
    return _State()


_STATE = _kept_state()
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
            import _socket
            import json

        self.socket = _socket
        self.json_decoder = json.decoder
        encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)
        self.encode = encoder.encode
        self.decode = json.JSONDecoder().decode
        self.decode_lenient = json.JSONDecoder(strict=False).decode
        self.detect_encoding = json.detect_encoding
        self.peek = _socket.MSG_PEEK | _socket.MSG_DONTWAIT


_LOADED: _Library | None = None


def _library() -> _Library:
    global _LOADED
    if _LOADED is None:
        with _LOCK:
            if _LOADED is None:
                _LOADED = _Library()
    return _LOADED


# --- connections ------------------------------------------------------------------------

_ADDRESS = _os.environ.get("HERMES_RPC_SOCKET")
_IDLE: list[_Connection] = []
_OPEN: set[_Connection] = set()


class _Connection:
    """One connection to the broker, used by one call at a time."""

    __slots__ = ("identity", "sock")

    def __init__(self, library: _Library) -> None:
        self.sock = _dial(library.socket)
        status = _fstat(self.sock.fileno())
        self.identity = (status.st_dev, status.st_ino)
        _OPEN.add(self)

    def is_ours(self) -> bool:
        """Whether the descriptor is still our socket, and not closed or reused by the script."""
        try:
            status = _fstat(self.sock.fileno())
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self.identity

    def is_usable(self, peek: int) -> bool:
        if not self.is_ours():
            return False
        try:
            self.sock.recv(1, peek)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False  # the broker hung up, or sent what nobody asked for

    def send(self, body: bytes) -> None:
        header = len(body).to_bytes(4, "big")
        if len(body) <= _SMALL:
            self.sock.sendall(header + body)
        else:
            self.sock.sendall(header)
            self.sock.sendall(body)

    def receive(self) -> bytes | bytearray:
        data: bytes = self.sock.recv(16384)
        while 0 < len(data) < 4:
            more = self.sock.recv(16384)
            data = data + more if more else b""
        if not data:
            raise EOFError
        size = int.from_bytes(data[:4], "big")
        have = len(data) - 4
        if have == size:
            return data[4:]
        if have > size:
            raise OSError("more bytes than the answer holds")
        body = bytearray(size)
        body[:have] = data[4:]
        with memoryview(body) as view:
            while have < size:
                count = self.sock.recv_into(view[have:])
                if not count:
                    raise EOFError
                have += count
        return body

    def close(self) -> None:
        _OPEN.discard(self)
        if self.is_ours():
            self.sock.close()
        else:
            self.sock.detach()  # the number may belong to a file of the script by now


def _dial(socket: Any) -> Any:
    address = _ADDRESS or _os.environ.get("HERMES_RPC_SOCKET")
    if not address:
        raise ConnectionError(
            "hermes_tools cannot reach the broker: HERMES_RPC_SOCKET is not set. Call tools from "
            "a script that the broker runs, and pass its environment on to child processes."
        )
    where: tuple[str, int] | str
    try:
        if address.startswith("tcp:"):
            host, _, port = address[4:].rpartition(":")
            family, where = socket.AF_INET, (host, int(port))
        else:
            family, where = socket.AF_UNIX, address
        sock = _above_stdio(socket, socket.socket(family, socket.SOCK_STREAM, 0))
        try:
            sock.settimeout(None)  # socket.setdefaulttimeout() of the script is not for us
            if family == socket.AF_INET:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.connect(where)
        except BaseException:
            sock.close()
            raise
        return sock
    except (OSError, ValueError, OverflowError) as error:
        raise ConnectionError(
            f"hermes_tools cannot reach the broker at {address}: {error}. "
            "It has ended or closed this session; run the script again in a new one."
        ) from None


def _above_stdio(socket: Any, sock: Any) -> Any:
    """Keeps 0, 1 and 2 free of our sockets when the script has closed them."""
    low: list[int] = []
    if sock.fileno() < 3:
        family, kind, fd = sock.family, sock.type, sock.detach()
        while fd < 3:
            low.append(fd)
            fd = _dup(fd)
        for number in low:
            _close_fd(number)
        sock = socket.socket(family, kind, 0, fd)
    return sock


def _exchange(library: _Library, body: bytes) -> bytes | bytearray:
    """Sends one request and returns its answer; a request is never completed twice.

    A request whose last byte was not accepted cannot have run, for the broker runs none before
    it is whole: only then another connection is tried, and only if this one had been idle.
    """
    while True:
        connection: _Connection | None = None
        try:
            try:
                connection = _IDLE.pop()
                idle = True
                if not connection.is_usable(library.peek):
                    connection.close()
                    continue
            except IndexError:
                connection = _Connection(library)
                idle = False
            try:
                connection.send(body)
            except OSError as error:
                connection.close()
                if idle:
                    continue
                raise ConnectionError(
                    f"the broker hung up while a tool call was sent ({error}); the call did not "
                    "run. The session has ended; run the script again in a new one."
                ) from None
            try:
                answer = connection.receive()
            except (OSError, EOFError) as error:
                connection.close()
                reason = str(error) or "the connection was closed"
                raise ConnectionError(
                    f"the broker went away before it answered a tool call ({reason}); "
                    "whether the call ran is not known."
                ) from None
        except BaseException:
            if connection is not None and connection in _OPEN:
                connection.close()
            raise
        if len(_IDLE) < _MAX_IDLE:
            _IDLE.append(connection)
        else:
            connection.close()
        return answer


def _after_fork() -> None:
    """A child must not speak on its parent's connections, nor keep them open."""
    global _LOCK
    _LOCK = _thread.RLock()
    _STATE.is_kernel = False
    for connection in list(_OPEN):
        connection.close()
    _OPEN.clear()
    _IDLE.clear()


# --- calls ------------------------------------------------------------------------------


def _call(name: str, arguments: dict[str, Any]) -> Any:
    """Calls a tool by name: what every function below does. A failure is a dict with `error`."""
    library = _LOADED or _library()
    if not isinstance(arguments, dict):
        kind = type(arguments).__name__
        return {"error": f"{name!a} was called with {kind} for arguments: pass a dict."}
    try:
        text = library.encode([_TOKEN, _current_cell(), name, arguments])
        body = text.encode()
    except Exception as error:  # noqa: BLE001 - whatever an object raises is the answer
        return {"error": _why_not_sent(library, name, arguments, error)}
    if len(body) > _LIMIT or text.count("[") + text.count("{") > _MAX_DEPTH:
        problem = _too_much(name, arguments, len(body))
        if problem is not None:
            return {"error": problem}
    answer = _exchange(library, body)
    try:
        return library.decode(str(answer, "utf-8"))
    except RecursionError:
        return {"error": f"the result of {name} is nested too deeply to be read here; the tool ran. Ask it for less."}
    except (ValueError, SystemError) as error:
        raise ConnectionError(f"the broker's answer to {name} cannot be read: {error}") from None


def _plain(value: Any) -> Any:
    """What JSON does not know: paths and whole numbers of other libraries pass as their like."""
    kind = type(value)
    if hasattr(kind, "__fspath__"):
        value = _fspath(value)
        if isinstance(value, str):
            return value
    elif hasattr(kind, "__index__"):
        return value.__index__()
    if isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError("bytes are no text: decode them first, for instance .decode('utf-8')")
    if isinstance(value, (set, frozenset)):
        raise TypeError("a set has no order: pass a list, for instance sorted(...)")
    raise TypeError(f"an object of type {kind.__name__} is no JSON value: pass text, a number or a list")


def _why_not_sent(library: _Library, name: Any, arguments: dict[str, Any], error: Exception) -> str:
    where = f"a value given to {name!a}"
    for key, value in arguments.items():
        try:
            library.encode({key: value}).encode()
        except Exception as found:  # noqa: BLE001 - as above
            where, error = f"argument {key!a} of {name!a}", found
            break
    if isinstance(error, UnicodeEncodeError):
        why = (
            f"a lone surrogate (U+{ord(error.object[error.start]):04X}) is no character: make the "
            "text valid first, for instance text.encode('utf-8', 'replace').decode()"
        )
    elif isinstance(error, RecursionError):
        why = f"it is nested too deeply: at most {_MAX_DEPTH} levels pass"
    elif "Circular" in str(error):
        why = "it contains itself: pass a copy without the cycle"
    elif "Out of range float" in str(error):
        why = "NaN and infinity are no JSON numbers: pass None or text instead"
    else:
        why = str(error) or type(error).__name__
    return f"{where} cannot be sent: {why}."


def _too_much(name: str, arguments: dict[str, Any], frame: int) -> str | None:
    for key, value in arguments.items():
        size, depth = _measure(value)
        if size > _LIMIT:
            return (
                f"argument {key!a} of {name!a} is {size:,} bytes of text; the limit is 64 MiB "
                f"({_LIMIT:,} bytes): pass it in parts."
            )
        if depth > _MAX_DEPTH:
            return f"argument {key!a} of {name!a} is nested {depth} levels deep; the limit is {_MAX_DEPTH}."
    if frame > _FRAME_LIMIT:
        return (
            f"the arguments of {name!a} are {frame:,} bytes in all; each may hold 64 MiB of text, "
            f"all together {_FRAME_LIMIT:,} bytes: pass them in parts."
        )
    return None


def _measure(value: Any) -> tuple[int, int]:
    """Bytes of UTF-8 text in a JSON value, not counting what JSON adds, and its depth."""
    size = deepest = 0
    pending = [(value, 1)]
    while pending:
        item, depth = pending.pop()
        if isinstance(item, str):
            size += len(item) if item.isascii() else len(item.encode())
        elif isinstance(item, dict):
            deepest = max(deepest, depth)
            for key, inner in item.items():
                pending += ((key, depth + 1), (inner, depth + 1))
        elif isinstance(item, (list, tuple)):
            deepest = max(deepest, depth)
            pending += [(inner, depth + 1) for inner in item]
        else:
            size += len(str(item))
    return size, deepest


# --- helpers ----------------------------------------------------------------------------


def json_parse(text: str | bytes) -> Any:
    """Parses JSON text, forgiving a byte order mark and raw control characters inside strings.

    Raises ValueError when the text is no JSON even so.
    """
    library = _library()
    if isinstance(text, (bytes, bytearray)):
        text = text.decode(library.detect_encoding(bytes(text)), "surrogatepass")
    if not isinstance(text, str):
        raise TypeError(f"json_parse takes text, not {type(text).__name__}; a tool's result is a dict already")
    text = text.lstrip("\ufeff")
    if _sys.modules.get("json.decoder") is library.json_decoder:
        return library.decode_lenient(text)
    with _StdlibView():  # the C parser looks there for the error that it raises
        _sys.modules["json.decoder"] = library.json_decoder
        return library.decode_lenient(text)


def shell_quote(s: Any) -> str:
    """Quotes a value so that a shell takes it as one word."""
    if isinstance(s, (bytes, bytearray)):
        raise TypeError("shell_quote takes text: decode the bytes first")
    text = str(s)
    plain = "@%+=:,./-_"
    if text and text.isascii() and all(c.isalnum() or c in plain for c in text):
        return text
    return "'" + text.replace("'", "'\"'\"'") + "'"


def retry(fn: Callable[[], Any], max_attempts: int = 3, delay: float = 2) -> Any:
    """Calls `fn` until it raises nothing, at most `max_attempts` times, and returns its result.

    Waits `delay` seconds after the first failure and twice as long after each further one;
    the last error is raised again.
    """
    import time

    if max_attempts < 1:
        raise ValueError("retry needs max_attempts of at least 1")
    for attempt in range(1, max_attempts):
        try:
            return fn()
        except Exception:  # noqa: BLE001 - the last one is raised
            time.sleep(delay * 2 ** (attempt - 1))
    return fn()


# --- the generated part -----------------------------------------------------------------

_HELPERS = ("json_parse", "shell_quote", "retry")
_GENERATED: tuple[str, ...] = ()
__all__ = list(_HELPERS)


_IMPORT_FROM: int | None = None


def _import_from() -> int:
    global _IMPORT_FROM
    if _IMPORT_FROM is None:
        with _StdlibView():
            from opcode import opmap
        _IMPORT_FROM = opmap["IMPORT_FROM"]
    return _IMPORT_FROM


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    available = ", ".join(_GENERATED) or "none"
    message = f"{name} is not available in scripts; available: {available}"
    # `from hermes_tools import x` would replace an AttributeError by one without these names.
    frame = _sys._getframe(1)
    if frame.f_code.co_code[frame.f_lasti] == _import_from():
        raise ImportError(message, name=__name__, path=globals().get("__file__"))
    raise AttributeError(message)


if hasattr(_os, "register_at_fork"):
    _os.register_at_fork(after_in_child=_after_fork)
_install()
