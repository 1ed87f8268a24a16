"""Just enough of an HTTP/1.1 server for JSON."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any, Awaitable, Callable
from urllib.parse import parse_qsl, urlsplit


class Broken(Exception):
    """The connection breaks off instead of an answer."""


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


@dataclass
class Answer:
    body: Any
    code: int = 200
    headers: dict[str, str] = field(default_factory=dict)


Handle = Callable[[Request], Awaitable[Answer]]


def protocol(handle: Handle) -> Callable[[], asyncio.Protocol]:
    """Makes the protocol of a new connection."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await _exchange(handle, reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, ValueError):
            pass
        except Broken:
            writer.transport.abort()
        finally:
            writer.close()

    def make() -> asyncio.Protocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(limit=1 << 20), connected)

    return make


async def _exchange(handle: Handle, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """One request and its answer. False: it was the last."""
    first = await reader.readline()
    if not first.strip():
        return False
    method, target, _ = first.decode().split()
    headers = {}
    while (line := (await reader.readline()).strip()) != b"":
        name, _, value = line.decode().partition(":")
        headers[name.lower()] = value.strip()
    raw = await reader.readexactly(int(headers.get("content-length", 0)))
    parts = urlsplit(target)
    try:
        body = json.loads(raw) if raw else None
        answer = await handle(Request(method, parts.path, dict(parse_qsl(parts.query)), headers, body))
    except json.JSONDecodeError:
        answer = Answer({"error": "the body is no JSON", "code": "bad_request"}, 400)
    data = json.dumps(answer.body).encode()
    lines = ["HTTP/1.1 %d -" % answer.code, "content-type: application/json", "content-length: %d" % len(data)]
    lines += ["%s: %s" % pair for pair in answer.headers.items()]
    writer.write("\r\n".join([*lines, "", ""]).encode() + data)
    await writer.drain()
    return headers.get("connection", "").lower() != "close"
