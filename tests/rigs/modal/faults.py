"""What goes wrong on request. A fault is a JSON object; the list that is active is replaced as a whole.

| `fault` | what happens | keys |
| --- | --- | --- |
| `cut` | a stream breaks after that many bytes | `stream` (`stdout`, `stderr`, `stdin`), `after`, `how` |
| `pieces` | output comes in messages of so many bytes at most | `stream` (`stdout`, `stderr`), `size` |
| `lost` | the work is done, the answer never arrives | `method`, `how` |
| `late` | the answer takes longer | `method`, `seconds` |
| `status` | nothing is done, the call fails | `method`, `code`, `message`, `retry_after` |
| `jwt` | tokens are valid for so long | `of` (`auth`, `router`, `both`), `seconds` |
| `task_id` | ids of tasks come late, in the newer generation also access to the worker | `of` (`older`), `seconds` |
| `build` | a build is `slow`, logs `no_result` at its end, or is a `failure` | `tag`, `how`, `seconds`, `message` |
| `down` | nobody listens | `which` (`control`, `router`, `gateway`, `all`) |
| `silent` | connections stay, but nothing arrives any more, either way | `which` |
| `quirk` | no fault: what a server may do as well, see `QUIRKS` | `name` |
| `page` | lists of sandboxes come in pages of so many | `size` |

All: `count` (how often; without it always), `skip` (so many are let through first). `how` of `cut` and `lost`: `reset`
(the stream is reset, with INTERNAL_ERROR; `reset:CANCEL` with another code of HTTP/2), `disconnect` (the connection
breaks, with all that is on it), or the name of a status; only after a status is it certain that what was sent before
arrived. `method` and `tag` may hold wildcards; the gateway's methods are
`gateway.create`, `gateway.start`, `gateway.poll`, `gateway.cancel` and `gateway.terminate`, whose `code` is a number.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from grpclib import Status
from h2.errors import ErrorCodes

#: Keys by kind, with what they are when they are not given; `...` must be given.
KINDS: dict[str, dict[str, Any]] = {
    "cut": {"stream": ..., "after": ..., "how": "reset"},
    "pieces": {"stream": ..., "size": ...},
    "lost": {"method": ..., "how": "disconnect"},
    "late": {"method": ..., "seconds": ...},
    "status": {"method": ..., "code": ..., "message": "injected", "retry_after": None},
    "jwt": {"of": "both", "seconds": ...},
    "task_id": {"of": "older", "seconds": ...},
    "build": {"tag": "*", "how": ..., "seconds": 0.5, "message": "Image build failed"},
    "down": {"which": "all"},
    "silent": {"which": "all"},
    "page": {"size": ...},
    "quirk": {"name": ...},
}


#: What other servers may do otherwise, where nothing says how it must be.
QUIRKS = {
    "headers_first": "the headers of a stream of answers come before there is an answer",
    "output_ends_with_process": "streams of output end with the process, whoever still holds them open",
    "image_at_once": "an image is built before its id is told",
    "no_expiry": "tokens do not say how long they are valid",
}
#: How a call may break.
WAYS = [
    "disconnect",
    "reset",
    *("reset:" + code.name for code in ErrorCodes),
    *(status.name for status in Status),
]


class BadFault(Exception):
    """What was posted is no list of faults; the text says why."""


class Fault:
    """One that is active."""

    def __init__(self, given: Any) -> None:
        if not isinstance(given, dict) or given.get("fault") not in KINDS:
            raise BadFault("%r: `fault` must be one of %s" % (given, ", ".join(KINDS)))
        self.kind: str = given["fault"]
        keys = KINDS[self.kind]
        unknown = set(given) - set(keys) - {"fault", "count", "skip"}
        missing = [key for key, default in keys.items() if default is ... and key not in given]
        if unknown or missing:
            raise BadFault("%r: unknown %s, missing %s" % (given, sorted(unknown), missing))
        self._keys = {**keys, **given}
        how = str(self._keys.get("how"))
        if self.kind == "quirk" and self["name"] not in QUIRKS:
            raise BadFault("%r: `name` must be one of %s" % (given, ", ".join(QUIRKS)))
        if self.kind in ("cut", "lost") and how not in WAYS:
            raise BadFault("%r: `how` must be one of %s" % (given, ", ".join(WAYS)))
        self.count: int | None = given.get("count")
        self.skip: int = given.get("skip", 0)

    def __getitem__(self, key: str) -> Any:
        return self._keys[key]

    def fits(self, subject: dict[str, str]) -> bool:
        """Whether it is about this method, stream, tag …"""
        return all(fnmatchcase(value, str(self._keys[key])) for key, value in subject.items())


class Faults:
    """All that are active."""

    def __init__(self) -> None:
        self._active: list[Fault] = []

    def replace(self, given: Any) -> None:
        """From now on these."""
        if not isinstance(given, list):
            raise BadFault("a list of faults is expected")
        self._active = [Fault(one) for one in given]

    def find(self, kind: str, **subject: str) -> Fault | None:
        """One that strikes now; it is counted."""
        for fault in self._active:
            if fault.kind != kind or not fault.fits(subject):
                continue
            if fault.skip > 0:
                fault.skip -= 1
            elif fault.count is None:
                return fault
            elif fault.count > 0:
                fault.count -= 1
                return fault
        return None

    def quirk(self, name: str) -> bool:
        """Whether it is done so."""
        return self.find("quirk", name=name) is not None

    def strikes(self, kind: str, which: str) -> bool:
        """Whether an endpoint is down or silent; not counted."""
        return any(fault.kind == kind and fault["which"] in (which, "all") for fault in self._active)
