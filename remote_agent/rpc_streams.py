"""Tool calls of a script whose process stands alone: a part of `hermes_tools` where its own streams are all that leads
to the broker (`alone_cell.py`).

What stands before the first section serves only those who read this file alone.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from hermes_runtime import _Failed, _Library


# --- the streams ------------------------------------------------------------------------

#: Set in the one process that has them.
_HOME: Callable[[bytes], bytes] | None = None


def _needed() -> Any:
    """What this way to the broker takes of the standard library: nothing."""


def _exchange(library: _Library, body: bytes) -> bytes:
    """Sends one request and returns its answer; no call runs twice."""
    if _HOME is None:
        raise _Failed(
            "tools can be called only from the script's own process here: the place allows so few processes that the "
            "script runs alone. Call the tool in the script and pass its result on."
        )
    return _HOME(body)


def _settle() -> None:
    """Of calls that have been answered nothing is left here."""


def _close_all() -> None:
    global _HOME
    _HOME = None
