"""A proxy that tunnels (CONNECT), and whom it leads where does not matter: what is behind it is on this machine.

So that whoever goes through it may call the stand-in by names that nobody can look up.
"""

from __future__ import annotations

import asyncio
import base64
from typing import Any


class Proxy:
    def __init__(self) -> None:
        self.port = 0
        #: `user:password`; None: everybody is let in.
        self.login: str | None = None
        #: The code that it answers with instead of a connection.
        self.refuses: int | None = None
        #: Where it was asked to connect to, and whether it did.
        self.asked: list[dict[str, Any]] = []
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Listens."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Listens no more."""
        if self._server is not None:
            self._server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._serve(reader, writer)
        except (OSError, ValueError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method, to, _ = (await reader.readline()).decode().split()
        login = None
        while (line := (await reader.readline()).decode().strip()) != "":
            name, _, value = line.partition(":")
            if name.lower() == "proxy-authorization":
                login = base64.b64decode(value.split()[1]).decode()
        code = self._judge(method, login)
        self.asked.append({"to": to, "login": login, "code": code})
        writer.write(b"HTTP/1.1 %d -\r\n\r\n" % code)
        await writer.drain()
        if code != 200:
            return
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", int(to.rpartition(":")[2]))
        try:
            await asyncio.gather(_carry(reader, there_writer), _carry(there_reader, writer))
        finally:
            there_writer.close()

    def _judge(self, method: str, login: str | None) -> int:
        if method != "CONNECT":
            return 405
        if self.login is not None and login != self.login:
            return 407
        return self.refuses or 200


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()
