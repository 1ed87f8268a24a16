"""The gateway, plain HTTP: commands one at a time, their output merged and told at the end only.

Shapes are those that its client reads. Inferred: a command that is sent while another runs is queued; one that ran to
its end is `completed` whatever its exit code, `failed` is one that could not be started; the answer to a start is the
final one where the command takes no longer than a moment; of a sandbox that has ended nothing is found.
"""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass, field
from pipes import StdinClosed
from typing import Any, BinaryIO

from calls import Calls
from faults import Faults
from grpclib import GRPCError
from modal_proto import api_pb2
from sandboxes import HOME, CannotStart, Definition, Exec, Sandbox, SandboxGone
from world import Owned, World, identity

from web import Answer, Broken, Request

#: A command that ends within so many seconds is answered at once.
MOMENT = 0.05
FINAL = {"completed", "failed", "cancelled", "timeout"}


class Refused(Exception):
    """An answer that is an error."""

    def __init__(self, code: int, word: str, text: str, retry_after: float | None = None) -> None:
        super().__init__(text)
        headers = {} if retry_after is None else {"retry-after": "%g" % retry_after}
        self.answer = Answer({"error": text, "code": word}, code, headers)


@dataclass
class Command:
    """One exec."""

    id: str
    status: str = "queued"
    returncode: int | None = None
    output: str = ""
    run: Exec | None = None
    cancelled: bool = False
    task: asyncio.Task[None] | None = None

    def shown(self) -> dict[str, Any]:
        told: dict[str, Any] = {"status": self.status, "execId": self.id}
        if self.status in FINAL:
            told.update(output=self.output, returncode=self.returncode)
        return told


@dataclass
class Place:
    """A sandbox of the gateway."""

    sandbox: Sandbox
    cwd: str
    key: str | None
    commands: dict[str, Command] = field(default_factory=dict)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class Gateway:
    def __init__(self, world: World, calls: Calls, faults: Faults, token: str) -> None:
        self._world = world
        self._calls = calls
        self._faults = faults
        self._token = token
        self._places: dict[str, Place] = {}
        self._created: dict[str, asyncio.Future[str]] = {}
        #: File systems that persist, by logical key.
        self._kept: dict[str, BinaryIO] = {}

    async def handle(self, request: Request) -> Answer:
        """Answers one request."""
        match request.method, request.path.strip("/").split("/"):
            case "POST", ["v1", "sandboxes"]:
                name, work = "create", self._create(request)
            case "POST", ["v1", "sandboxes", sandbox, "execs"]:
                name, work = "start", self._start(sandbox, request)
            case "GET", ["v1", "sandboxes", sandbox, "execs", command]:
                name, work = "poll", self._poll(sandbox, command)
            case "POST", ["v1", "sandboxes", sandbox, "execs", command, "cancel"]:
                name, work = "cancel", self._cancel(sandbox, command)
            case "POST", ["v1", "sandboxes", sandbox, "terminate"]:
                name, work = "terminate", self._terminate(sandbox, request)
            case _:
                return Answer({"error": "not found", "code": "not_found"}, 404)
        method = "gateway." + name
        call = self._calls.begin("gateway", method, {"path": request.path, "body": request.body}, request.headers)
        try:
            answer = await self._faulty(method, request, work)
        except Refused as refused:
            answer = refused.answer
        except (CannotStart, SandboxGone) as error:
            answer = Answer({"error": str(error), "code": "internal"}, 500)
        except Broken:
            call.answer = "LOST"
            raise
        finally:
            work.close()
        call.answer = str(answer.code)
        return answer

    async def _faulty(self, method: str, request: Request, work: Any) -> Answer:
        fault = self._faults.find("status", method=method)
        if fault is not None:
            raise Refused(fault["code"], "injected", fault["message"], fault["retry_after"])
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token or (self._token and token != self._token):
            raise Refused(401, "unauthorized", "missing or invalid token")
        answer: Answer = await work
        late = self._faults.find("late", method=method)
        if late is not None:
            await asyncio.sleep(late["seconds"])
        if self._faults.find("lost", method=method) is not None:
            raise Broken
        return answer

    async def _create(self, request: Request) -> Answer:
        key = request.headers.get("x-idempotency-key", identity("key"))
        if key not in self._created or (self._created[key].done() and self._created[key].exception() is not None):
            self._created[key] = asyncio.ensure_future(self._make(request.body or {}))
        return Answer({"id": await asyncio.shield(self._created[key])})

    async def _make(self, body: dict[str, Any]) -> str:
        if not body.get("image"):
            raise Refused(400, "bad_request", "image is required")
        try:
            image = self._world.images.named(body["image"])
        except GRPCError as error:
            raise Refused(422, "image_not_found", str(error.message))
        key = body.get("logicalKey") if body.get("persistentFilesystem") else None
        idle = body.get("idleTimeoutMs")
        definition = Definition(
            timeout=body.get("timeoutMs", 3_600_000) / 1000,
            idle_timeout=idle / 1000 if idle else None,
            snapshot=self._kept.get(key) if key else None,
            visible=self._world.visible,
            python=self._world.python,
        )
        sandbox = Sandbox(identity("gw"), identity("ta"), definition)
        asked = api_pb2.Resources(milli_cpu=int(body.get("cpu", 0) * 1000), memory_mb=int(body.get("memoryMiB", 0)))
        shape = api_pb2.Sandbox(image_id=image.id, timeout_secs=int(definition.timeout), resources=asked)
        owned = Owned(sandbox, "gateway", shape, newer=True)
        owned.tags = {"logicalKey": str(body.get("logicalKey") or "")}
        self._world.sandboxes[sandbox.id] = owned
        try:
            await sandbox.start()
        except CannotStart as error:
            raise Refused(500, "create_failed", str(error))
        self._places[sandbox.id] = Place(sandbox, body.get("cwd") or HOME, key)
        return sandbox.id

    def _place(self, sandbox: str) -> Place:
        place = self._places.get(sandbox)
        if place is None or not place.sandbox.alive:
            raise Refused(404, "sandbox_not_found", "sandbox %s not found" % sandbox)
        return place

    async def _start(self, sandbox: str, request: Request) -> Answer:
        place, body = self._place(sandbox), request.body or {}
        identifier, text = body.get("execId"), body.get("command")
        if not identifier or not isinstance(text, str):
            raise Refused(400, "bad_request", "execId and command are required")
        command = place.commands.get(identifier)
        if command is None:
            command = place.commands[identifier] = Command(identifier)
            command.task = asyncio.ensure_future(self._run(place, command, body))
        assert command.task is not None
        await asyncio.wait([command.task], timeout=MOMENT)
        return Answer(command.shown())

    async def _run(self, place: Place, command: Command, body: dict[str, Any]) -> None:
        async with place.turn:
            if command.cancelled:
                command.status, command.returncode = "cancelled", 130
                return
            timeout = body.get("timeoutMs")
            try:
                run = command.run = await place.sandbox.run(
                    ["bash", "-c", body["command"]],
                    {},
                    body.get("cwd") or place.cwd,
                    merged=True,
                    timeout=timeout / 1000 if timeout else None,
                )
            except (CannotStart, SandboxGone) as error:
                command.status, command.returncode, command.output = "failed", 1, str(error)
                return
            command.status = "running"
            writing = asyncio.ensure_future(_feed(run, body.get("stdinData")))
            if command.cancelled:
                place.sandbox.kill(run, signal.SIGKILL)
            await run.done.wait()
            writing.cancel()
            # What it left behind may hold the pipe open: its output so far is its output.
            await asyncio.wait([asyncio.ensure_future(_whole(run))], timeout=0.2)
            command.output = run.stdout.so_far().decode("utf-8", "replace")
            if command.cancelled:
                command.status, command.returncode = "cancelled", 130
            elif run.timed_out:
                command.status, command.returncode = "timeout", 124
            else:
                status = run.status or 0
                command.status, command.returncode = "completed", status if status >= 0 else 128 - status

    async def _poll(self, sandbox: str, identifier: str) -> Answer:
        return Answer(self._command(sandbox, identifier).shown())

    def _command(self, sandbox: str, identifier: str) -> Command:
        command = self._place(sandbox).commands.get(identifier)
        if command is None:
            raise Refused(404, "exec_not_found", "exec %s not found" % identifier)
        return command

    async def _cancel(self, sandbox: str, identifier: str) -> Answer:
        command = self._command(sandbox, identifier)
        if command.status not in FINAL:
            command.cancelled = True
            if command.run is not None:
                self._place(sandbox).sandbox.kill(command.run, signal.SIGKILL)
        return Answer(command.shown())

    async def _terminate(self, sandbox: str, request: Request) -> Answer:
        place = self._place(sandbox)
        if (request.body or {}).get("snapshotBeforeTerminate") and place.key:
            self._kept[place.key] = await place.sandbox.snapshot()
        await asyncio.shield(place.sandbox.end_soon("terminated"))
        return Answer({"id": sandbox, "status": "terminated"})


async def _feed(run: Exec, data: str | None) -> None:
    try:
        await run.stdin.write(0, (data or "").encode(), True)
    except StdinClosed:
        pass


async def _whole(run: Exec) -> None:
    while await run.stdout.read(run.stdout.size):
        pass
