"""What scripts call: the last fixed part of `hermes_tools`.

What stands before the first section serves only those who read this file alone.
"""

from __future__ import annotations

import os as _os
import sys as _sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from hermes_runtime import (
        _FRAME_LIMIT,
        _LIMIT,
        _LOADED,
        _MAX_DEPTH,
        _TOKEN,
        _after_fork,
        _current_cell,
        _Failed,
        _fspath,
        _install,
        _Library,
        _library,
        _StdlibView,
    )
    from rpc_socket import _exchange


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
    try:
        answer = _exchange(library, body)
    except _Failed as failure:
        return {"error": str(failure)}
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
    for place, value in [
        *((f"argument {key!a} of {name!a}", {key: value}) for key, value in arguments.items()),
        (f"the name {name!a}", name),
    ]:
        try:
            library.encode(value).encode()
        except Exception as found:  # noqa: BLE001 - as above
            where, error = place, found
            break
    else:
        raise error  # there is nothing wrong with them: it came out of a signal handler of the script
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
