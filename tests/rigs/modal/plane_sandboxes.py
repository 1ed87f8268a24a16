"""The control plane's calls about sandboxes, of both generations: those that end in `V2` are the newer."""

from __future__ import annotations

import asyncio
import re
from typing import Any, AsyncIterator, Awaitable, Callable, TypeVar

from google.protobuf.empty_pb2 import Empty
from grpclib import GRPCError, Status
from modal_proto import api_pb2
from sandboxes import CannotStart, Definition, Sandbox
from serving import Context, unattended
from world import Owned, World, identity

Answer = TypeVar("Answer")

#: Arguments together, in bytes.
ARGUMENTS = 65_536
DEFAULT_TIMEOUT, LONGEST_TIMEOUT = 300, 24 * 3600
#: Broad and narrow regions, and those of the clouds (inferred).
REGION = re.compile(r"(us|eu|ap|uk|ca|me|sa|af|mx|jp|au)(-[a-z]+)*(-?\d+)?")
GPUS = {"T4", "L4", "A10", "A10G", "L40S", "A100", "A100-40GB", "A100-80GB", "H100", "H100!", "H200", "B200", "ANY"}
NAME = re.compile(r"[a-zA-Z0-9._-]{1,64}")
#: Type of the client in JavaScript, which insists on the text `https://` and then speaks plaintext to this machine.
JAVASCRIPT = "8"


class SandboxCalls:
    """Methods are named as the calls are."""

    def __init__(self, world: World) -> None:
        self._world = world
        #: What was done under an idempotency key.
        self._done: dict[str, asyncio.Future[Any]] = {}
        self._background: set[asyncio.Task[None]] = set()

    async def _once(self, context: Context, work: Callable[[], Awaitable[Answer]]) -> Answer:
        """Does it once however often it is asked for, and to the end also when the caller goes (inferred)."""
        key = context.metadata.get("x-idempotency-key")
        if key is None:
            return await work()
        found = self._done.get(key)
        if found is None or (found.done() and (found.cancelled() or found.exception() is not None)):
            found = self._done[key] = asyncio.ensure_future(work())
            unattended(found)
        answer: Answer = await asyncio.shield(found)
        return answer

    def _refuse(self, app: str, wanted: api_pb2.Sandbox, newer: bool) -> None:
        """Raises when such a sandbox cannot be."""

        def bad(text: str, status: Status = Status.INVALID_ARGUMENT) -> GRPCError:
            return GRPCError(status, text)

        if wanted.volume_mounts or wanted.cloud_bucket_mounts or wanted.nfs_mounts or wanted.mount_ids:
            raise bad("the stand-in mounts nothing", Status.UNIMPLEMENTED)
        if wanted.HasField("pty_info") and wanted.pty_info.enabled or wanted.open_ports.ports:
            raise bad("the stand-in has neither terminals nor tunnels", Status.UNIMPLEMENTED)
        if app not in self._world.apps.values():
            raise bad("App %s not found" % app, Status.NOT_FOUND)
        if sum(len(arg.encode()) for arg in wanted.entrypoint_args) > ARGUMENTS:
            raise bad("Total length of arguments cannot exceed %d bytes" % ARGUMENTS)
        if wanted.timeout_secs > LONGEST_TIMEOUT:
            raise bad("timeout must be at most %d seconds" % LONGEST_TIMEOUT)
        if wanted.workdir and not wanted.workdir.startswith("/"):
            raise bad("workdir must be an absolute path")
        for region in wanted.scheduler_placement.regions:
            if not REGION.fullmatch(region):
                raise bad("Invalid region: '%s'" % region)
        resources = wanted.resources
        gpu = resources.gpu_config.gpu_type
        if gpu and newer:
            raise bad("GPUs are not supported by V2 Sandboxes")
        if gpu and gpu.upper() not in GPUS:
            raise bad("Invalid GPU type: '%s'" % gpu)
        if resources.milli_cpu > 64_000 or resources.memory_mb > 344_064:
            raise bad("resources exceed what one worker has", Status.RESOURCE_EXHAUSTED)
        if wanted.name:
            if not NAME.fullmatch(wanted.name):
                raise bad("Invalid Sandbox name: '%s'" % wanted.name)
            if self._alive(app, wanted.name) is not None:
                raise bad("Sandbox with name '%s' already exists" % wanted.name, Status.ALREADY_EXISTS)

    def _alive(self, app: str, name: str) -> Owned | None:
        for owned in self._world.sandboxes.values():
            if owned.app == app and owned.name == name and owned.sandbox.alive:
                return owned
        return None

    def _new(self, request: Any, newer: bool) -> Owned:
        wanted = request.definition
        self._refuse(request.app_id, wanted, newer)
        image = self._world.images.built(wanted.image_id)
        sources = request.secret_sources if newer else []
        env = {**image.env, **self._world.environment_of(sources, wanted.secret_ids)}
        definition = Definition(
            args=[*wanted.entrypoint_args],
            env=env,
            workdir=wanted.workdir or image.workdir,
            timeout=wanted.timeout_secs or DEFAULT_TIMEOUT,
            idle_timeout=wanted.idle_timeout_secs if wanted.HasField("idle_timeout_secs") else None,
            blocked=wanted.network_access.network_access_type == api_pb2.NetworkAccess.BLOCKED,
            snapshot=image.snapshot,
            visible=self._world.visible,
            output_ends=self._world.faults.quirk("output_ends_with_process"),
            python=self._world.python,
        )
        # Ids of the older kind have 22 letters and digits; tasks of the newer kind end in V.
        names = (identity("sb", 26), identity("ta", 22) + "V") if newer else (identity("sb"), identity("ta", 22) + "a")
        owned = Owned(Sandbox(*names, definition), request.app_id, wanted, newer)
        owned.tags = {tag.tag_name: tag.tag_value for tag in request.tags}
        self._world.sandboxes[owned.sandbox.id] = self._world.tasks[owned.sandbox.task] = owned
        return owned

    @staticmethod
    async def _start(owned: Owned) -> None:
        try:
            await owned.sandbox.start()
        except CannotStart as error:
            await owned.sandbox.end_soon("worker")
            raise GRPCError(Status.INTERNAL, "Sandbox could not be started: %s" % error)

    async def SandboxCreateV2(
        self, request: api_pb2.SandboxCreateV2Request, context: Context
    ) -> api_pb2.SandboxCreateV2Response:
        async def create() -> api_pb2.SandboxCreateV2Response:
            owned = self._new(request, newer=True)
            late = self._world.faults.find("task_id", of="newer")
            if late is not None:
                self._later(owned, late["seconds"])
                return api_pb2.SandboxCreateV2Response(
                    sandbox_id=owned.sandbox.id, metadata=self._metadata(owned), sandbox_token=_sandbox_token(owned)
                )
            await self._start(owned)
            owned.scheduled.set()
            url, jwt = self._access(owned, context)
            return api_pb2.SandboxCreateV2Response(
                sandbox_id=owned.sandbox.id,
                task_id=owned.sandbox.task,
                metadata=self._metadata(owned),
                command_router_access=api_pb2.CommandRouterAccess(url=url, jwt=jwt),
                sandbox_token=_sandbox_token(owned),
            )

        return await self._once(context, create)

    async def SandboxCreate(
        self, request: api_pb2.SandboxCreateRequest, context: Context
    ) -> api_pb2.SandboxCreateResponse:
        async def create() -> api_pb2.SandboxCreateResponse:
            owned = self._new(request, newer=False)
            fault = self._world.faults.find("task_id", of="older")
            self._later(owned, fault["seconds"] if fault is not None else 0)
            return api_pb2.SandboxCreateResponse(sandbox_id=owned.sandbox.id, metadata=self._metadata(owned))

        return await self._once(context, create)

    def _later(self, owned: Owned, seconds: float) -> None:
        """Starts it so many seconds from now."""

        async def schedule() -> None:
            await asyncio.sleep(seconds)
            if owned.sandbox.alive:
                await self._start(owned)
                owned.scheduled.set()

        task = asyncio.ensure_future(schedule())
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        unattended(task)

    def _access(self, owned: Owned, context: Context) -> tuple[str, str]:
        url, jwt = self._world.access(owned)
        if context.metadata.get("x-modal-client-type") == JAVASCRIPT:
            url = url.replace("http://", "https://")
        return url, jwt

    @staticmethod
    def _metadata(owned: Owned) -> api_pb2.SandboxHandleMetadata:
        return api_pb2.SandboxHandleMetadata(result=owned.sandbox.result, app_id=owned.app)

    async def SandboxGetTaskId(
        self, request: api_pb2.SandboxGetTaskIdRequest, context: Context
    ) -> api_pb2.SandboxGetTaskIdResponse:
        owned = self._world.sandbox(request.sandbox_id)
        if request.timeout or request.wait_until_ready:
            events = [asyncio.ensure_future(event.wait()) for event in (owned.scheduled, owned.sandbox.ended)]
            await asyncio.wait(events, timeout=request.timeout or 55, return_when=asyncio.FIRST_COMPLETED)
            for event in events:
                event.cancel()
        return api_pb2.SandboxGetTaskIdResponse(
            task_id=owned.sandbox.task if owned.scheduled.is_set() else None, task_result=owned.sandbox.result
        )

    SandboxGetTaskIdV2 = SandboxGetTaskId

    async def TaskGetCommandRouterAccess(
        self, request: api_pb2.TaskGetCommandRouterAccessRequest, context: Context
    ) -> api_pb2.TaskGetCommandRouterAccessResponse:
        url, jwt = self._access(self._task(request.task_id), context)
        return api_pb2.TaskGetCommandRouterAccessResponse(url=url, jwt=jwt)

    async def SandboxGetCommandRouterAccess(
        self, request: api_pb2.SandboxGetCommandRouterAccessRequest, context: Context
    ) -> api_pb2.SandboxGetCommandRouterAccessResponse:
        by_task = request.WhichOneof("target") == "task_id"
        owned = self._task(request.task_id) if by_task else self._world.sandbox(request.sandbox_id)
        url, jwt = self._access(owned, context)
        return api_pb2.SandboxGetCommandRouterAccessResponse(url=url, jwt=jwt)

    def _task(self, identity: str) -> Owned:
        found = self._world.tasks.get(identity)
        if found is None:
            raise GRPCError(Status.NOT_FOUND, "Task %s not found" % identity)
        return found

    async def SandboxWait(self, request: api_pb2.SandboxWaitRequest, context: Context) -> api_pb2.SandboxWaitResponse:
        owned = self._world.sandbox(request.sandbox_id)
        if request.timeout > 0:
            try:
                await asyncio.wait_for(owned.sandbox.ended.wait(), request.timeout)
            except asyncio.TimeoutError:
                pass
        result = owned.sandbox.result if owned.sandbox.ended.is_set() else None
        return api_pb2.SandboxWaitResponse(result=result, metadata=self._metadata(owned))

    SandboxWaitV2 = SandboxWait

    async def SandboxTerminate(
        self, request: api_pb2.SandboxTerminateRequest, context: Context
    ) -> api_pb2.SandboxTerminateResponse:
        owned = self._world.sandbox(request.sandbox_id)
        existing = owned.sandbox.result
        await asyncio.shield(owned.sandbox.end_soon("terminated"))
        return api_pb2.SandboxTerminateResponse(existing_result=existing)

    SandboxTerminateV2 = SandboxTerminate

    async def SandboxTagsGet(
        self, request: api_pb2.SandboxTagsGetRequest, context: Context
    ) -> api_pb2.SandboxTagsGetResponse:
        tags = self._world.sandbox(request.sandbox_id).tags
        return api_pb2.SandboxTagsGetResponse(tags=_tags(tags))

    SandboxTagsGetV2 = SandboxTagsGet

    async def SandboxTagsSet(self, request: api_pb2.SandboxTagsSetRequest, context: Context) -> Any:
        owned = self._world.sandbox(request.sandbox_id)
        owned.tags = {tag.tag_name: tag.tag_value for tag in request.tags}
        return Empty()

    SandboxTagsSetV2 = SandboxTagsSet

    async def SandboxGetFromName(
        self, request: api_pb2.SandboxGetFromNameRequest, context: Context
    ) -> api_pb2.SandboxGetFromNameResponse:
        environment = self._world.environment(request.environment_name)
        app = self._world.apps.get((environment, request.app_name), "")
        owned = self._alive(app, request.sandbox_name)
        if owned is None and request.include_terminated:
            everyone = self._world.sandboxes.values()
            named = [one for one in everyone if (one.app, one.name) == (app, request.sandbox_name)]
            owned = named[-1] if named else None
        if owned is None:
            raise GRPCError(Status.NOT_FOUND, "Sandbox with name '%s' not found" % request.sandbox_name)
        return api_pb2.SandboxGetFromNameResponse(sandbox_id=owned.sandbox.id, metadata=self._metadata(owned))

    SandboxGetFromNameV2 = SandboxGetFromName

    async def SandboxGetLogs(
        self, request: api_pb2.SandboxGetLogsRequest, context: Context
    ) -> AsyncIterator[api_pb2.TaskLogsBatch]:
        """Output of an entrypoint of the older generation; an entry's id is the offset behind it."""
        owned = self._world.sandbox(request.sandbox_id)
        await owned.scheduled.wait()
        run = owned.sandbox.entrypoint
        offset = int(request.last_entry_id or 0)
        while run is not None:
            first = request.file_descriptor != api_pb2.FILE_DESCRIPTOR_STDERR
            data = await (run.stdout if first else run.stderr).read(offset)
            if not data:
                break
            offset += len(data)
            item = api_pb2.TaskLogs(data=data.decode("utf-8", "replace"), file_descriptor=request.file_descriptor)
            yield api_pb2.TaskLogsBatch(entry_id=str(offset), items=[item])
        if run is None:
            await owned.sandbox.ended.wait()
        yield api_pb2.TaskLogsBatch(entry_id=str(offset), eof=True)

    async def SandboxStdinWrite(
        self, request: api_pb2.SandboxStdinWriteRequest, context: Context
    ) -> api_pb2.SandboxStdinWriteResponse:
        owned = self._world.sandbox(request.sandbox_id)
        await owned.scheduled.wait()
        run = owned.sandbox.entrypoint
        if run is None or run.stdin.closed:
            raise GRPCError(Status.FAILED_PRECONDITION, "stdin is closed")
        if request.index > owned.stdin_index:
            owned.stdin_index = request.index
            await run.stdin.write(run.stdin.written, request.input, request.eof)
        return api_pb2.SandboxStdinWriteResponse()

    async def SandboxList(self, request: api_pb2.SandboxListRequest, context: Context) -> api_pb2.SandboxListResponse:
        return self._list(request, newer=False)

    async def SandboxListV2(self, request: api_pb2.SandboxListRequest, context: Context) -> api_pb2.SandboxListResponse:
        return self._list(request, newer=True)

    def _list(self, request: api_pb2.SandboxListRequest, newer: bool) -> api_pb2.SandboxListResponse:
        """Newest first, a page at a time; the newer call knows both generations."""
        wanted = {tag.tag_name: tag.tag_value for tag in request.tags}
        if request.app_id:
            apps = {request.app_id}
        else:
            environment = self._world.environment(request.environment_name)
            apps = {app for (where, _), app in self._world.apps.items() if where == environment}
        found = [
            owned
            for owned in self._world.sandboxes.values()
            if owned.app in apps
            and (newer or not owned.newer)
            and (owned.sandbox.alive or request.include_finished)
            and wanted.items() <= owned.tags.items()
            and (not request.before_timestamp or owned.created < request.before_timestamp)
        ]
        found.sort(key=lambda owned: -owned.created)
        fault = self._world.faults.find("page")
        return api_pb2.SandboxListResponse(
            sandboxes=[
                api_pb2.SandboxInfo(
                    id=owned.sandbox.id,
                    created_at=owned.created,
                    task_info=api_pb2.TaskInfo(
                        id=owned.sandbox.task, result=owned.sandbox.result, started_at=owned.created
                    ),
                    app_id=owned.app,
                    tags=_tags(owned.tags),
                    name=owned.name,
                    image_id=owned.definition.image_id,
                    metadata=self._metadata(owned),
                )
                for owned in found[: fault["size"] if fault else 100]
            ]
        )


def _sandbox_token(owned: Owned) -> str:
    return "sandbox-token-" + owned.sandbox.id


def _tags(tags: dict[str, str]) -> list[api_pb2.SandboxTag]:
    return [api_pb2.SandboxTag(tag_name=name, tag_value=value) for name, value in tags.items()]
