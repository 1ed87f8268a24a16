"""Runs the cases of a script one after the other: all, or those that its command line names."""

from __future__ import annotations

import sys
import time
import traceback
from typing import Callable

import isolation

_CASES: list[Callable[[], None]] = []
#: Those that need namespaces.
_ISOLATED: set[str] = set()


def case(function: Callable[[], None]) -> Callable[[], None]:
    """Makes a case of a function; what it raises is its failure."""
    _CASES.append(function)
    return function


def isolated(function: Callable[[], None]) -> Callable[[], None]:
    """A case that needs a sandbox with a file system and processes of its own, which it takes root to make."""
    _ISOLATED.add(function.__name__)
    return case(function)


def run(after_each: Callable[[], None]) -> int:
    """How many failed, as the exit code of the script."""
    wanted, failed = sys.argv[1:], 0
    names = {function.__name__ for function in _CASES}
    for name in wanted:
        if name not in names:
            print("there is no case %s" % name, file=sys.stderr)
            return 2
    apart = isolation.possible()
    for function in _CASES:
        if wanted and function.__name__ not in wanted:
            continue
        if not apart and function.__name__ in _ISOLATED:
            print("SKIPPED as no namespaces can be made here: %s" % function.__name__)
            continue
        start, word = time.monotonic(), "ok"
        try:
            function()
        except Exception:
            failed += 1
            word = "FAILED"
            traceback.print_exc()
        print("%-7s %5.1f s  %s" % (word, time.monotonic() - start, function.__name__), flush=True)
        after_each()
    return 1 if failed else 0
