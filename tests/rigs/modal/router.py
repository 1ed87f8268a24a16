"""The worker's service, `modal.task_command_router.TaskCommandRouter`: commands in a sandbox and their streams."""

from __future__ import annotations

import asyncio
from pipes import CHUNK, BeyondEnd, Input, Output, StdinClosed
from typing import Any, AsyncIterator

from grpclib import GRPCError, Status
from modal_proto import task_command_router_pb2 as pb
from plane_sandboxes import ARGUMENTS
from sandboxes import CannotStart, Exec, Sandbox, SandboxGone
from serving import Context, unattended
from world import Owned, World

#: A worker answers a wait after so many seconds at the latest.
LONGEST_WAIT = 60


class Router:
    """Methods are named as the calls are."""

    def __init__(self, world: World) -> None:
        self._world = world
        #: The one call that may stream into a process' stdin.
        self._writers: dict[Input, asyncio.Task[Any]] = {}
        self._snapshots: dict[str, asyncio.Future[str]] = {}

    def authorize(self, method: str, context: Context) -> None:
        """Checks the JWT."""
        scheme, _, token = context.metadata.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            raise GRPCError(Status.UNAUTHENTICATED, "no bearer token")
        context.task = self._world.tokens.check("router", token)

    def _owned(self, task: str, context: Context) -> Owned:
        """The sandbox of a task, for as long as it lives."""
        owned = self._world.tasks.get(task)
        if owned is None or not owned.sandbox.alive:
            raise GRPCError(Status.NOT_FOUND, "task %s not found" % task)
        if context.task != task:
            raise GRPCError(Status.PERMISSION_DENIED, "the token is for another task")
        return owned

    async def _exec(self, task: str, identity: str, context: Context) -> tuple[Sandbox, Exec]:
        sandbox = self._owned(task, context).sandbox
        found = sandbox.execs.get(identity)
        if found is None:
            raise GRPCError(Status.NOT_FOUND, "exec %s not found" % identity)
        return sandbox, await asyncio.shield(found)

    async def TaskExecStart(self, request: pb.TaskExecStartRequest, context: Context) -> pb.TaskExecStartResponse:
        sandbox = self._owned(request.task_id, context).sandbox
        if not request.exec_id or not request.command_args:
            raise GRPCError(Status.INVALID_ARGUMENT, "exec_id and command_args are required")
        if request.HasField("pty_info") or request.container_id:
            raise GRPCError(Status.UNIMPLEMENTED, "the stand-in has neither terminals nor sidecars")
        if sum(len(arg.encode()) for arg in request.command_args) > ARGUMENTS:
            raise GRPCError(Status.INVALID_ARGUMENT, "arguments exceed %d bytes" % ARGUMENTS)
        if request.exec_id not in sandbox.execs:
            env = self._world.environment_of(request.secret_sources, request.secret_ids)
            sandbox.execs[request.exec_id] = asyncio.ensure_future(
                sandbox.run(
                    [*request.command_args],
                    {**env, **request.env},
                    request.workdir,
                    stdout=request.stdout_config == pb.TASK_EXEC_STDOUT_CONFIG_PIPE,
                    stderr=request.stderr_config == pb.TASK_EXEC_STDERR_CONFIG_PIPE,
                    timeout=request.timeout_secs if request.HasField("timeout_secs") else None,
                )
            )
            unattended(sandbox.execs[request.exec_id])
        try:
            await asyncio.shield(sandbox.execs[request.exec_id])
        except CannotStart as error:
            raise GRPCError(Status.INVALID_ARGUMENT, "failed to start the command: %s" % error)
        except SandboxGone:
            raise GRPCError(Status.NOT_FOUND, "task %s not found" % request.task_id)
        return pb.TaskExecStartResponse()

    async def TaskExecStdioRead(
        self, request: pb.TaskExecStdioReadRequest, context: Context
    ) -> AsyncIterator[pb.TaskExecStdioReadResponse]:
        sandbox, run = await self._exec(request.task_id, request.exec_id, context)
        first = request.file_descriptor == pb.TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDOUT
        output, name = (run.stdout, "stdout") if first else (run.stderr, "stderr")
        async for data in self._output(output, name, request.offset, context):
            yield pb.TaskExecStdioReadResponse(data=data)
        if not sandbox.alive:
            await sandbox.ended.wait()
        if run.lost:
            raise GRPCError(Status.NOT_FOUND, "task %s not found" % request.task_id)

    async def _output(self, output: Output, name: str, offset: int, context: Context) -> AsyncIterator[bytes]:
        cut = self._world.faults.find("cut", stream=name)
        left = cut["after"] if cut is not None else None
        pieces = self._world.faults.find("pieces", stream=name)
        most = pieces["size"] if pieces is not None else CHUNK
        while left is None or left > 0:
            data = await output.read(offset, most if left is None else min(left, most))
            if not data:
                return
            offset += len(data)
            if left is not None:
                left -= len(data)
            yield data
        if cut is not None:
            await context.break_off(cut["how"])

    async def _write(self, stdin: Input, offset: int, data: bytes, eof: bool) -> None:
        try:
            await stdin.write(offset, data, eof)
        except StdinClosed as error:
            raise GRPCError(Status.FAILED_PRECONDITION, str(error))
        except BeyondEnd as error:
            raise GRPCError(Status.OUT_OF_RANGE, str(error))

    async def TaskExecStdinWrite(
        self, request: pb.TaskExecStdinWriteRequest, context: Context
    ) -> pb.TaskExecStdinWriteResponse:
        sandbox, run = await self._exec(request.task_id, request.exec_id, context)
        sandbox.touch()
        await self._write(run.stdin, request.offset, request.data, request.eof)
        return pb.TaskExecStdinWriteResponse()

    async def TaskExecStdinWriteStream(self, requests: Any, context: Context) -> pb.TaskExecStdinWriteStreamResponse:
        opening = await requests.recv_message()
        if opening is None or opening.WhichOneof("payload") != "start":
            raise GRPCError(Status.INVALID_ARGUMENT, "a stream of stdin begins with `start`")
        start = context.call.request = opening.start
        sandbox, run = await self._exec(start.task_id, start.exec_id, context)
        stdin = run.stdin
        await self._evict(stdin)
        task = asyncio.current_task()
        assert task is not None
        self._writers[stdin] = task
        try:
            await self._stream(requests, stdin, start.offset, sandbox, context)
        except asyncio.CancelledError:
            if self._writers.get(stdin) is not task:
                raise GRPCError(Status.ABORTED, "another stream of stdin took over")
            raise
        finally:
            if self._writers.get(stdin) is task:
                del self._writers[stdin]
        return pb.TaskExecStdinWriteStreamResponse()

    async def _stream(self, requests: Any, stdin: Input, offset: int, sandbox: Sandbox, context: Context) -> None:
        cut = self._world.faults.find("cut", stream="stdin")
        left = cut["after"] if cut is not None else None
        while True:
            message = await requests.recv_message()
            if message is None:
                # Only `end` closes stdin: a stream that just stops may be resumed.
                raise GRPCError(Status.CANCELLED, "the stream of stdin stopped without `end`")
            kind = message.WhichOneof("payload")
            if kind == "end":
                await self._write(stdin, offset, b"", True)
                return
            if kind != "data":
                raise GRPCError(Status.INVALID_ARGUMENT, "`data` or `end` is expected")
            sandbox.touch()
            data = message.data if left is None else message.data[:left]
            await self._write(stdin, offset, data, False)
            offset += len(data)
            if cut is not None and left is not None:
                left -= len(data)
                if left <= 0:
                    await context.break_off(cut["how"])

    async def _evict(self, stdin: Input) -> None:
        task = self._writers.pop(stdin, None)
        if task is not None:
            task.cancel()
            await asyncio.wait([task], timeout=1)

    async def TaskExecStdinStatus(
        self, request: pb.TaskExecStdinStatusRequest, context: Context
    ) -> pb.TaskExecStdinStatusResponse:
        _, run = await self._exec(request.task_id, request.exec_id, context)
        await self._evict(run.stdin)
        return pb.TaskExecStdinStatusResponse(num_bytes_written=run.stdin.written, closed=run.stdin.closed)

    async def TaskExecWait(self, request: pb.TaskExecWaitRequest, context: Context) -> pb.TaskExecWaitResponse:
        sandbox, run = await self._exec(request.task_id, request.exec_id, context)
        try:
            await asyncio.wait_for(run.done.wait(), LONGEST_WAIT)
        except asyncio.TimeoutError:
            raise GRPCError(Status.DEADLINE_EXCEEDED, "the command still runs")
        if not sandbox.alive:
            raise GRPCError(Status.NOT_FOUND, "task %s not found" % request.task_id)
        return pb.TaskExecWaitResponse(**_status(run))

    async def TaskExecPoll(self, request: pb.TaskExecPollRequest, context: Context) -> pb.TaskExecPollResponse:
        _, run = await self._exec(request.task_id, request.exec_id, context)
        return pb.TaskExecPollResponse(**_status(run))

    async def SandboxStdinWriteV2(
        self, request: pb.SandboxStdinWriteV2Request, context: Context
    ) -> pb.SandboxStdinWriteV2Response:
        run = self._entrypoint(request.task_id, context)
        await self._write(run.stdin, request.offset, request.data, request.eof)
        return pb.SandboxStdinWriteV2Response()

    async def SandboxStdioReadV2(
        self, request: pb.SandboxStdioReadV2Request, context: Context
    ) -> AsyncIterator[pb.SandboxStdioReadV2Response]:
        run = self._entrypoint(request.task_id, context)
        first = request.file_descriptor == pb.SANDBOX_STDIO_FILE_DESCRIPTOR_STDOUT
        output, name = (run.stdout, "stdout") if first else (run.stderr, "stderr")
        offset = request.offset
        async for data in self._output(output, name, offset, context):
            yield pb.SandboxStdioReadV2Response(data=data, starting_offset=offset)
            offset += len(data)

    def _entrypoint(self, task: str, context: Context) -> Exec:
        """Also when it has ended: its output is still read."""
        owned = self._world.tasks.get(task)
        if owned is None or owned.sandbox.entrypoint is None:
            raise GRPCError(Status.NOT_FOUND, "task %s has no entrypoint" % task)
        if context.task != task:
            raise GRPCError(Status.PERMISSION_DENIED, "the token is for another task")
        return owned.sandbox.entrypoint

    async def SandboxWaitUntilReady(
        self, request: pb.SandboxWaitUntilReadyTcrRequest, context: Context
    ) -> pb.SandboxWaitUntilReadyTcrResponse:
        owned = self._owned(request.task_id, context)
        return pb.SandboxWaitUntilReadyTcrResponse(ready_at=owned.created)

    async def TaskSnapshotFilesystem(
        self, request: pb.TaskSnapshotFilesystemRequest, context: Context
    ) -> pb.TaskSnapshotFilesystemResponse:
        owned = self._owned(request.task_id, context)
        found = self._snapshots.get(request.snapshot_id)
        if found is None:
            found = self._snapshots[request.snapshot_id] = asyncio.ensure_future(self._snapshot(owned))
        try:
            image = await asyncio.shield(found)
        except (CannotStart, SandboxGone) as error:
            raise GRPCError(Status.INTERNAL, "snapshot failed: %s" % error)
        return pb.TaskSnapshotFilesystemResponse(image_id=image)

    async def _snapshot(self, owned: Owned) -> str:
        archive = await owned.sandbox.snapshot()
        return self._world.images.keep(self._world.images.get(owned.definition.image_id), archive).id


def _status(run: Exec) -> dict[str, int]:
    if run.status is None:
        return {}
    return {"code": run.status} if run.status >= 0 else {"signal": -run.status}
