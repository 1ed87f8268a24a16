"""Sandboxes: isolated processes with a life of their own, and the commands that are run inside."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import socket
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL
from dataclasses import dataclass, field
from pipes import Input, Output, pipe
from typing import Any, BinaryIO, Callable

import isolation
from modal_proto import api_pb2

STATUS = api_pb2.GenericResult
#: How an end is told, by the word that the admin interface has for it: status; exit code and text (inferred).
ENDS = {
    "timeout": (STATUS.GENERIC_STATUS_TIMEOUT, 124, "Sandbox reached its timeout"),
    "idle": (STATUS.GENERIC_STATUS_IDLE_TIMEOUT, 137, "Sandbox was idle for too long"),
    "oom": (STATUS.GENERIC_STATUS_KERNEL_OOM_KILL, 137, "Sandbox ran out of memory"),
    "evicted": (STATUS.GENERIC_STATUS_MEMORY_MANAGER_EVICTION, 137, "Sandbox was evicted for its use of memory"),
    "terminated": (STATUS.GENERIC_STATUS_TERMINATED, 137, ""),
    "worker": (STATUS.GENERIC_STATUS_INTERNAL_FAILURE, 137, "Worker was lost"),
}
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
AGENT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "agent.py")
SO_SNDBUFFORCE = 32
#: No message to the agent is longer: arguments have 64 KiB, the rest is environment.
PACKET = 4 << 20
ISOLATED = isolation.possible()
HOME = "/root" if ISOLATED else os.path.expanduser("~")


class SandboxGone(Exception):
    """The sandbox has ended, or ends while it was asked for something."""


class CannotStart(Exception):
    """A command or a sandbox cannot be started; the text says why."""


@dataclass
class Definition:
    """What a sandbox is made from."""

    args: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    workdir: str = ""
    timeout: float = 300
    idle_timeout: float | None = None
    blocked: bool = False
    snapshot: BinaryIO | None = None
    #: Streams of output end with their process.
    output_ends: bool = False
    visible: list[str] = field(default_factory=list)
    python: str = ""


class Exec:
    """A command inside."""

    def __init__(self, number: int, stdin: Input, stdout: Output, stderr: Output) -> None:
        self.number = number
        self.stdin = stdin
        self.stdout = stdout
        self.stderr = stderr
        #: Exit code, or the negative number of the signal.
        self.status: int | None = None
        self.timed_out = False
        #: It, or the end of its output, was lost with its sandbox.
        self.lost = False
        self.started: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.done = asyncio.Event()
        self._deadline: asyncio.TimerHandle | None = None

    def finish(self, status: int) -> None:
        """It has ended. What it left in its pipes is still read."""
        if self._deadline is not None:
            self._deadline.cancel()
        self.status = 137 if self.timed_out else status
        self.stdin.close()
        self.done.set()

    def limit(self, seconds: float, kill: Callable[[], None]) -> None:
        """It is killed so many seconds from now."""

        def expire() -> None:
            self.timed_out = True
            kill()

        self._deadline = asyncio.get_running_loop().call_later(seconds, expire)


class Sandbox:
    """One sandbox. Its first process is the agent, which starts everything else."""

    def __init__(self, identity: str, task: str, definition: Definition) -> None:
        self.id = identity
        self.task = task
        self.definition = definition
        self.pid = 0
        self.created = time.time()
        self.result: api_pb2.GenericResult | None = None
        self.ended = asyncio.Event()
        self.execs: dict[str, asyncio.Future[Exec]] = {}
        self.entrypoint: Exec | None = None
        self._running: dict[int, Exec] = {}
        self._number = 0
        self._active = time.monotonic()
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._up = False
        self._saved: asyncio.Future[str] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._link: socket.socket | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._ending: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        return self.result is None

    async def start(self) -> None:
        """Brings it up, entrypoint included."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            try:
                end.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, PACKET)
            except PermissionError:  # without root, as much as everybody may have
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PACKET)
        ours.setblocking(False)
        self._link = ours
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-S", AGENT, str(theirs.fileno()), pass_fds=[theirs.fileno()], stdin=DEVNULL
            )
        self._loop.add_reader(ours, self._heard)
        settings = {
            "isolated": ISOLATED,
            "blocked": self.definition.blocked,
            "hostname": "modal",
            "visible": self.definition.visible,
            "python": self.definition.python,
        }
        snapshot = self.definition.snapshot
        if snapshot is not None:
            snapshot.seek(0)
        self._send(settings, [snapshot.fileno()] if snapshot is not None else [])
        await self._ready
        self._timers.append(self._loop.call_later(self.definition.timeout, self.end_soon, "timeout"))
        self._active = time.monotonic()
        if self.definition.idle_timeout:
            self._look_for_idleness()
        if self.definition.args:
            self.entrypoint = await self.run(self.definition.args, {}, "", entrypoint=True)

    def _look_for_idleness(self) -> None:
        limit = self.definition.idle_timeout
        if not self.alive or not limit:
            return
        if any(run is not self.entrypoint for run in self._running.values()):
            self._active = time.monotonic()
        left = self._active + limit - time.monotonic()
        if left <= 0:
            self.end_soon("idle")
        else:
            self._timers[1:] = [self._loop.call_later(min(left, 0.2), self._look_for_idleness)]

    def _send(self, message: dict[str, Any], descriptors: list[int]) -> None:
        if self._link is None:
            raise SandboxGone(self.id)
        try:
            socket.send_fds(self._link, [json.dumps(message, ensure_ascii=False).encode()], descriptors)
        except OSError as error:
            if error.errno == errno.EMSGSIZE:
                raise CannotStart("arguments and environment are too large")
            raise SandboxGone(self.id)

    def _heard(self) -> None:
        assert self._link is not None
        try:
            packet = self._link.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if not packet:
            self._loop.remove_reader(self._link)
            if not self._ready.done():
                self._ready.set_exception(CannotStart("the sandbox ended while it was started"))
            self.end_soon("worker")
            return
        message = json.loads(packet)
        kind = message["op"]
        if kind in ("pid", "ready"):
            # Both are told, by the first process and by the one that made it, in any order.
            self._up = self._up or kind == "ready"
            self.pid = message.get("pid", self.pid)
            if self._up and self.pid and not self._ready.done():
                self._ready.set_result(None)
        elif kind == "broken" and not self._ready.done():
            self._ready.set_exception(CannotStart(message["reason"]))
        elif kind == "saved" and self._saved is not None:
            self._saved.set_result(message["error"])
        elif "number" in message and message["number"] in self._running:
            self._heard_of(self._running[message["number"]], message)

    def _heard_of(self, run: Exec, message: dict[str, Any]) -> None:
        if message["op"] == "started":
            if not run.started.done():
                run.started.set_result(message["pid"])
            return
        del self._running[run.number]
        if message["op"] == "failed":
            if not run.started.done():
                run.started.set_exception(CannotStart(message["reason"]))
            return
        self._active = time.monotonic()
        run.finish(message["status"])
        if self.definition.output_ends:
            run.stdout.finish()
            run.stderr.finish()
        if run is self.entrypoint:
            self._entrypoint_ended(message["status"])

    def _entrypoint_ended(self, status: int) -> None:
        code = status if status >= 0 else 128 - status
        result = api_pb2.GenericResult(
            status=STATUS.GENERIC_STATUS_FAILURE if code else STATUS.GENERIC_STATUS_SUCCESS, exitcode=code
        )
        self._ending = self._ending or asyncio.ensure_future(self._end(result))

    async def run(
        self,
        args: list[str],
        env: dict[str, str],
        workdir: str,
        *,
        stdout: bool = True,
        stderr: bool = True,
        merged: bool = False,
        timeout: float | None = None,
        entrypoint: bool = False,
    ) -> Exec:
        """Starts a command. `merged`: both streams of output are one."""
        if not self.alive:
            raise SandboxGone(self.id)
        given: list[int] = []

        def stream(wanted: bool) -> Output:
            if not wanted:
                given.append(os.open(os.devnull, os.O_WRONLY))
                return Output(None)
            reader, writer = pipe()
            given.append(writer)
            return Output(reader)

        reader, writer = pipe()
        given.append(reader)
        self._number += 1
        started = Exec(self._number, Input(writer), stream(stdout), Output(None) if merged else stream(stderr))
        self._running[started.number] = started
        if entrypoint:
            self.entrypoint = started
        message = {
            "op": "start",
            "number": started.number,
            "args": args,
            "env": self.environment(env),
            "cwd": workdir or self.definition.workdir or "/",
        }
        try:
            self._send(message, given if len(given) == 3 else [*given, given[1]])
            if timeout:
                started.limit(timeout, lambda: self.kill(started))
            await started.started
        except BaseException as error:
            # Not forgotten when it is the caller who gave up: it may still start, and then it runs.
            if not isinstance(error, asyncio.CancelledError):
                self._running.pop(started.number, None)
            for output in (started.stdout, started.stderr):
                output.close()
            started.stdin.close()
            raise
        finally:
            for descriptor in given:
                os.close(descriptor)
        return started

    def environment(self, more: dict[str, str]) -> dict[str, str]:
        """What a command inside finds."""
        python = self.definition.python
        first = ["/run/python" if ISOLATED else os.path.dirname(python)] if python else []
        found = {
            "PATH": ":".join([*first, PATH]),
            "HOME": HOME,
            "MODAL_SANDBOX_ID": self.id,
            "MODAL_TASK_ID": self.task,
        }
        return {**found, **self.definition.env, **more}

    def kill(self, run: Exec, which: int = signal.SIGKILL) -> None:
        """Signals the command's process group."""
        if run.status is None and self.alive:
            self._send({"op": "kill", "number": run.number, "signal": int(which)}, [])

    def touch(self) -> None:
        """Somebody does something with it."""
        self._active = time.monotonic()

    async def snapshot(self) -> BinaryIO:
        """An archive of everything that was changed in its file system."""
        kept = tempfile.TemporaryFile()
        while self._saved is not None:
            await asyncio.wait([self._saved])
        self._saved = self._loop.create_future()
        try:
            self._send({"op": "save"}, [kept.fileno()])
            error = await self._saved
        finally:
            self._saved = None
        if error:
            raise CannotStart(error)
        return kept

    def end_soon(self, how: str) -> asyncio.Task[None]:
        """Ends it; the first reason is the one that is told."""
        if self._ending is None:
            status, code, text = ENDS[how]
            result = api_pb2.GenericResult(status=status, exitcode=code, exception=text)
            self._ending = asyncio.ensure_future(self._end(result))
        return self._ending

    async def _end(self, result: api_pb2.GenericResult) -> None:
        self.result = result
        for timer in self._timers:
            timer.cancel()
        if ISOLATED and self.pid and self._process is not None and self._process.returncode is None:
            os.kill(self.pid, signal.SIGKILL)
        if self._link is not None:
            self._loop.remove_reader(self._link)
            self._link.close()
            self._link = None
        if self._process is not None:
            await self._process.wait()
        if self._saved is not None and not self._saved.done():
            self._saved.set_result("the sandbox ended")
        for run in [*self._running.values()]:
            if not run.started.done():
                run.started.set_exception(SandboxGone(self.id))
            run.lost = True
            run.finish(-int(signal.SIGKILL))
        self._running.clear()
        for started in self.execs.values():
            # Nobody can ask for it any more.
            if started.done() and not started.cancelled() and started.exception() is None:
                run = started.result()
                run.lost |= not (run.stdout.ended and run.stderr.ended)
                run.stdout.close()
                run.stderr.close()
        self.execs.clear()
        self.ended.set()
