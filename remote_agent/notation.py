"""JSON by the interpreter's own accelerator: the library's module takes longer to load than a start should."""

from __future__ import annotations

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    from typing import Any


def words(name: bytes) -> str:
    """A path or a variable as both sides write it, whatever the locale is here."""
    return name.decode("utf-8", "surrogateescape")


def text(value: Any) -> str:
    """JSON of plain values, in ASCII alone."""
    if isinstance(value, str):
        return _quote(value)
    if isinstance(value, dict):
        return "{%s}" % ",".join(_quote(str(key)) + ":" + text(inner) for key, inner in value.items())
    if isinstance(value, (list, tuple)):
        return "[%s]" % ",".join(text(inner) for inner in value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return "null" if value is None else "%d" % value


def parse(data: bytes) -> Any:
    """The value of compact JSON. ValueError: it is none."""
    try:
        from _json import make_scanner
    except ImportError:
        import json

        return json.loads(data)
    try:
        scanner: Any = make_scanner
        value, _ = scanner(_Context)(data.decode("utf-8"), 0)
    except StopIteration:
        raise ValueError("no JSON") from None
    return value


class _Context:
    """What the accelerator asks the decoder for."""

    strict = False
    object_hook = object_pairs_hook = None
    parse_float, parse_int = float, int
    parse_constant = float
    memo: Any = {}


def _quote(value: str) -> str:
    try:
        from _json import encode_basestring_ascii
    except ImportError:
        from json.encoder import encode_basestring_ascii
    return str(encode_basestring_ascii(value))
