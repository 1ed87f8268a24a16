"""The log of all calls that arrived, in the order in which they did."""

from __future__ import annotations

import time
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

#: The oldest are forgotten beyond so many.
KEPT = 200_000


class Call:
    """One attempt of one call."""

    def __init__(self, number: int, service: str, method: str, request: Any, metadata: dict[str, str]) -> None:
        self.number = number
        self.service = service
        self.method = method
        self.request = request
        self.metadata = metadata
        self.time = time.time()
        #: None while it goes on, then `OK`, the name of a status, or a number of HTTP.
        self.answer: str | None = None

    def shown(self) -> dict[str, Any]:
        """As the admin interface tells it: nothing is left out, so that a secret in the wrong place is seen."""
        request = self.request
        if isinstance(request, Message):
            request = MessageToDict(request, preserving_proto_field_name=True)
        return {
            "number": self.number,
            "service": self.service,
            "method": self.method,
            "request": request,
            "metadata": self.metadata,
            "time": self.time,
            "attempt": int(self.metadata.get("x-retry-attempt", 0)),
            "answer": self.answer,
        }


def _without_data(request: Any) -> Any:
    fields = {field.name: value for field, value in request.ListFields() if field.name != "data"}
    return type(request)(**fields)


class Calls:
    """All of them."""

    def __init__(self) -> None:
        self._kept: list[Call] = []
        self._number = 0

    def begin(self, service: str, method: str, request: Any, metadata: dict[str, str]) -> Call:
        """A call arrives."""
        if isinstance(getattr(request, "data", None), bytes):
            # Only how much was written, as a long session writes a lot.
            data, request = len(request.data), MessageToDict(_without_data(request), preserving_proto_field_name=True)
            request["data"] = data
        self._number += 1
        call = Call(self._number, service, method, request, metadata)
        self._kept.append(call)
        if len(self._kept) > KEPT:
            del self._kept[: KEPT // 10]
        return call

    def shown(self, method: str | None, since: int) -> list[dict[str, Any]]:
        """Those of a method, or all, after a number."""
        return [
            call.shown() for call in self._kept if call.number > since and (method is None or call.method == method)
        ]

    def forget(self) -> None:
        """An empty log; numbers go on."""
        self._kept.clear()
