"""Tool calls over a socket: a part of `hermes_tools` where the broker runs on this machine.

What stands before the first section serves only those who read this file alone.
"""

from __future__ import annotations

import os as _os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hermes_runtime import _MAX_IDLE, _STATE, _close_fd, _dup, _Failed, _fstat, _Library, _pass_on


# --- connections ------------------------------------------------------------------------

_ADDRESS = _os.environ.get("HERMES_RPC_SOCKET")
_SMALL = 64 * 1024  # up to here header and body go out in one write
_IDLE: list[_Connection] = _STATE.idle
_OPEN: set[_Connection] = _STATE.open


def _needed() -> Any:
    """What this way to the broker takes of the standard library."""
    import _socket

    return _socket


class _Connection:
    """One connection to the broker, used by one call at a time."""

    __slots__ = ("identity", "sock")

    def __init__(self, library: _Library) -> None:
        self.sock = _dial(library.needed)
        status = _fstat(self.sock.fileno())
        self.identity = (status.st_dev, status.st_ino)
        _OPEN.add(self)

    def is_ours(self) -> bool:
        """Whether the descriptor is still our socket, and not closed or reused by the script."""
        try:
            status = _fstat(self.sock.fileno())
        except OSError as error:
            _pass_on(error)
            return False
        return (status.st_dev, status.st_ino) == self.identity

    def is_usable(self, socket: Any) -> bool:
        if not self.is_ours():
            return False
        try:
            self.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError as error:
            _pass_on(error)
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
            raise EOFError("more bytes than the answer holds")
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
        if isinstance(error, OSError):
            import errno

            _pass_on(error)
            if error.errno in (errno.EMFILE, errno.ENFILE):
                why = f"the call was not sent and did not run ({error}): close files that are no longer needed."
                raise _Failed(why) from None
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
                if not connection.is_usable(library.needed):
                    connection.close()
                    continue
            except IndexError:
                connection = _Connection(library)
                idle = False
            try:
                connection.send(body)
            except OSError as error:
                connection.close()
                _pass_on(error)
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
                if isinstance(error, OSError):
                    _pass_on(error)
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


def _settle() -> None:
    """Of calls that have been answered nothing is left here."""


def _close_all() -> None:
    for connection in list(_OPEN):
        connection.close()
    _OPEN.clear()
    _IDLE.clear()
