"""A small broker, the ways on which calls reach it, and scripts that call.

`TALARIA_TEST_PYTHONS` (paths, separated as in PATH) adds interpreters to the one that runs
the tests.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

REMOTE_AGENT = Path(__file__).parents[2] / "remote_agent"
PYTHONS = [sys.executable, *filter(None, os.environ.get("TALARIA_TEST_PYTHONS", "").split(":"))]
GENERATED = '''

# --- tools ---

_GENERATED = ("echo",)
__all__ = ["echo", "json_parse", "shell_quote", "retry"]


def echo(value: int | str = None) -> dict:
    """Sends a value back."""
    return _call("echo", {"value": value})
'''
KERNEL = "import hermes_tools as h\nh._install(True)\nh._enter_cell(1)\nfrom hermes_tools import echo\n"


def stub(way: str) -> str:
    """The module as `src/tools/stub.rs` puts it together."""
    text = (REMOTE_AGENT / "hermes_runtime.py").read_text().replace('_TOKEN = ""', '_TOKEN = "secret"', 1)
    for part in (way, "hermes_calls"):
        source = (REMOTE_AGENT / (part + ".py")).read_text()
        text += "\n" + source[source.index("\n# --- ") :]
    return text + GENERATED


class HangUp(Exception):
    """The broker goes away instead of answering."""


class Broker:
    """Answers each request with the request itself; some tools misbehave on purpose."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.connections = 0

    def answer(self, body: bytes) -> bytes:
        request = json.loads(body)
        self.requests.append(request)
        token, cell, tool, arguments = request
        answer: Any = {"token": token, "cell": cell, "arguments": arguments}
        if tool == "vanish":
            raise HangUp
        if tool == "garbage":
            return b"{nonsense"
        if tool == "deep":
            return b"[" * 100_000 + b"]" * 100_000
        if tool == "size":
            answer = "x" * arguments["n"]
        if tool == "length":
            answer = {k: len(v) for k, v in arguments.items()}
        if tool == "sleep":
            time.sleep(arguments["s"])
        return json.dumps(answer).encode()


class SocketWay:
    """Listens on a socket."""

    module = "rpc_socket"

    def __init__(self, broker: Broker, listener: socket.socket, address: str) -> None:
        self.broker, self.listener = broker, listener
        self.variables = {"HERMES_RPC_SOCKET": address}
        threading.Thread(target=self.accept, daemon=True).start()

    @classmethod
    def start(cls, folder: Path, broker: Broker) -> SocketWay:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(folder / "s"))
        listener.listen(64)
        return cls(broker, listener, str(folder / "s"))

    def close(self) -> None:
        self.listener.close()

    def accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self.listener.accept()
                self.broker.connections += 1
                threading.Thread(target=self.serve, args=(peer,), daemon=True).start()

    def serve(self, peer: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError, HangUp), peer:
            while True:
                request = self.take(peer, int.from_bytes(self.take(peer, 4), "big"))
                body = self.broker.answer(request)
                if b'"drip"' in request:
                    for byte in len(body).to_bytes(4, "big") + body:
                        peer.sendall(bytes([byte]))
                        time.sleep(0.001)
                else:
                    peer.sendall(len(body).to_bytes(4, "big") + body)
                if b'"hang_up"' in request:
                    return

    @staticmethod
    def take(peer: socket.socket, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            more = peer.recv(min(size - len(data), 1 << 20))
            if not more:
                raise EOFError
            data += more
        return bytes(data)


class DirectoryWay:
    """A relay and its broker in one, on a directory as docs/protocol.md has it."""

    module = "rpc_directory"
    #: What is larger goes by `disk/`.
    INLINE = 256 * 1024

    def __init__(self, folder: Path, broker: Broker) -> None:
        self.broker = broker
        self.top = folder / "d"
        self.rpc = self.top / "rpc"
        self.variables = {"HERMES_RPC_DIR": str(self.rpc)}
        self.rings_clients = True
        self.has_room = True
        #: Called with a call's ID before its answer is written; False: it is not written.
        self.before: Any = lambda call: True
        self.heard = b""
        self.seen: list[str] = []
        self.clients: set[str] = set()
        self.closed = False
        self.make()
        self.thread = threading.Thread(target=self.serve, daemon=True)

    @classmethod
    def start(cls, folder: Path, broker: Broker) -> DirectoryWay:
        way = cls(folder, broker)
        way.thread.start()
        return way

    def make(self) -> None:
        self.top.mkdir(0o700)
        self.rpc.mkdir(0o700)
        (self.top / "disk").mkdir(0o700)
        os.mkfifo(self.top / "bell.r", 0o600)
        self.bell = os.open(self.top / "bell.r", os.O_RDWR | os.O_NONBLOCK)

    def close(self) -> None:
        self.closed = True
        if self.thread.is_alive():
            self.thread.join()

    def names(self) -> list[str]:
        return sorted(os.listdir(self.rpc)) + sorted(os.listdir(self.top / "disk"))

    def serve(self) -> None:
        while not self.closed:
            # Its number may be beyond what `select` takes.
            poll = select.poll()
            poll.register(self.bell, select.POLLIN)
            if poll.poll(300):
                self.heard += os.read(self.bell, 65536)
            with contextlib.suppress(FileNotFoundError):
                self.look()

    def look(self) -> None:
        for name in os.listdir(self.rpc):
            call = name[4:]
            if name.startswith("req_") and call not in self.seen:
                self.seen.append(call)
                client = call.partition("-")[0]
                self.broker.connections += client not in self.clients
                self.clients.add(client)
                threading.Thread(target=self.serve_call, args=(call,), daemon=True).start()

    def serve_call(self, call: str) -> None:
        with contextlib.suppress(HangUp, FileNotFoundError):
            request = self.path("req_", call)
            assert request.stat().st_mode & 0o7777 == 0o600
            body = request.read_bytes()
            if body == b"@":
                body = self.path("req_", call, True).read_bytes()
                assert len(body) > self.INLINE
            answer = self.broker.answer(body)
            if self.before(call):
                self.settle(call, answer)

    def path(self, kind: str, call: str, on_disk: bool = False) -> Path:
        return self.top / ("disk" if on_disk else "rpc") / (kind + call)

    def settle(self, call: str, answer: bytes) -> None:
        if not self.path("req_", call).exists():
            return
        if len(answer) > self.INLINE:
            self.put("res_", call, answer, True)
            answer = b"@"
        self.put("res_", call, answer if self.has_room else b"")
        for on_disk in (False, True):
            with contextlib.suppress(FileNotFoundError):
                self.path("req_", call, on_disk).unlink()
        if self.rings_clients:
            self.ring(call)

    def put(self, kind: str, call: str, data: bytes, on_disk: bool = False) -> None:
        aside = self.path(".aside_", call, on_disk)
        aside.write_bytes(data)
        aside.rename(self.path(kind, call, on_disk))

    def ring(self, call: str) -> None:
        try:
            fd = os.open(self.path("bell_", call.partition("-")[0]), os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno in (errno.ENXIO, errno.ENOENT):  # nobody waits any more
                with contextlib.suppress(FileNotFoundError):
                    self.path("res_", call).unlink()
            return
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(fd, b"a")
        os.close(fd)


class Rig:
    """A folder with the module and a project, and scripts that run there."""

    def __init__(self, python: str, folder: Path, way: Any) -> None:
        self.python, self.folder, self.way, self.broker = python, folder, way, way.broker
        self.project = folder / "project"
        self.project.mkdir()
        (folder / "hermes_tools.py").write_text(stub(way.module))

    def start(self, script: str, *, kernel: bool = True, **env: str) -> subprocess.Popen[str]:
        (self.folder / "cell.py").write_text((KERNEL if kernel else "") + textwrap.dedent(script))
        path = os.pathsep.join((str(self.folder), str(self.project)))
        return subprocess.Popen(
            [self.python, "-W", "error", str(self.folder / "cell.py")],
            cwd=self.project,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": path,
                "HERMES_RPC_CELL": "7",
                **self.way.variables,
                **env,
            },
        )

    def end(self, process: subprocess.Popen[str]) -> str:
        try:
            out, err = process.communicate(timeout=120)  # bounds a hang
        finally:
            process.kill()
        assert process.returncode == 0, err
        assert not err, err
        return out.strip()

    def run(self, script: str, *, kernel: bool = True, **env: str) -> str:
        return self.end(self.start(script, kernel=kernel, **env))
