"""Ports that are listened on, with a line of any length behind them, and that can vanish, break and move."""

from __future__ import annotations

import asyncio
from collections import deque
from ssl import SSLContext
from typing import Any, Callable

#: How often a silent endpoint looks whether it still is.
LOOK = 0.02


class Line:
    """How long everything takes, in seconds one way; may change at any time."""

    def __init__(self, delay: float) -> None:
        self.delay = delay


class _Queue:
    """One direction of one connection: pieces arrive later, in order, however many are under way."""

    def __init__(self, endpoint: Endpoint, deliver: Callable[[Any], None]) -> None:
        self._endpoint = endpoint
        self._deliver = deliver
        self._under_way: deque[tuple[float, Any]] = deque()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def put(self, piece: Any) -> None:
        delay = self._endpoint.line.delay
        if delay <= 0 and not self._under_way and not self._endpoint.silent:
            self._deliver(piece)
            return
        self._under_way.append((self._loop.time() + delay, piece))
        if self._timer is None:
            self._timer = self._loop.call_at(self._under_way[0][0], self._due)

    def _due(self) -> None:
        self._timer = None
        if self._endpoint.silent:
            self._timer = self._loop.call_later(LOOK, self._due)
            return
        # Timers have a resolution: what is due within it is due.
        now = self._loop.time() + 0.0005
        while self._under_way and self._under_way[0][0] <= now:
            self._deliver(self._under_way.popleft()[1])
        if self._under_way:
            self._timer = self._loop.call_at(self._under_way[0][0], self._due)

    def drop(self) -> None:
        self._under_way.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Outward(asyncio.Transport):
    """What the protocol writes to."""

    def __init__(self, transport: asyncio.Transport, endpoint: Endpoint) -> None:
        super().__init__()
        self._transport = transport
        self._closing = False
        self._queue = _Queue(endpoint, self._write)

    def _write(self, piece: bytes | None) -> None:
        if piece is None:
            self._transport.close()
        elif not self._transport.is_closing():
            self._transport.write(piece)

    def write(self, data: Any) -> None:
        self._queue.put(bytes(data))

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._queue.put(None)

    def abort(self) -> None:
        """Breaks off: what is under way never arrives."""
        self._closing = True
        self._queue.drop()
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._closing or self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()


class _Inward(asyncio.Protocol):
    """What the socket's transport calls."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._protocol: Any = endpoint.protocol()
        self.outward: _Outward | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.outward = _Outward(transport, self._endpoint)
        self._queue = _Queue(self._endpoint, self._received)
        self._endpoint.connections.add(self)
        self._protocol.connection_made(self.outward)

    def _received(self, piece: bytes | None) -> None:
        if piece is not None:
            self._protocol.data_received(piece)
        elif not self._protocol.eof_received() and self.outward is not None:
            self.outward.close()

    def data_received(self, data: bytes) -> None:
        self._queue.put(data)

    def eof_received(self) -> bool:
        self._queue.put(None)
        # An encrypted connection cannot stay half open.
        return self._endpoint.encryption is None

    def connection_lost(self, error: Exception | None) -> None:
        self._endpoint.connections.discard(self)
        self._queue.drop()
        self._protocol.connection_lost(error)

    def go_away(self) -> None:
        """Says GOAWAY and hangs up."""
        assert self.outward is not None
        self._protocol.connection._connection.close_connection()
        self._protocol.connection.flush()
        self.outward.close()

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()


class Endpoint:
    """A port on 127.0.0.1 that the kernel chose."""

    def __init__(
        self, protocol: Callable[[], Any], line: Line, encryption: SSLContext | None = None, host: str = "127.0.0.1"
    ) -> None:
        self.protocol = protocol
        self.line = line
        self.encryption = encryption
        self._host = host
        self.port = 0
        #: Connections stay, but nothing arrives any more, either way.
        self.silent = False
        self.connections: set[_Inward] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """Where it is called."""
        return "%s://%s:%d" % ("https" if self.encryption else "http", self._host, self.port)

    async def open(self) -> None:
        """Listens, on the port of the time before if there was one."""
        if self._server is None:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(lambda: _Inward(self), "127.0.0.1", self.port, ssl=self.encryption)
            self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Nobody listens any more, and what was connected breaks off."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.disconnect()

    def disconnect(self) -> None:
        """Breaks all connections off."""
        for connection in [*self.connections]:
            if connection.outward is not None:
                connection.outward.abort()

    def go_away(self) -> None:
        """Tells all that are connected to connect anew, as a server that is replaced does (HTTP/2 only)."""
        for connection in [*self.connections]:
            connection.go_away()

    async def move(self) -> None:
        """Another port; the old one is dead."""
        self.close()
        self.port = 0
        await self.open()
