"""Images: built by looking at their commands, of which only FROM, ENV and WORKDIR mean something here."""

from __future__ import annotations

import asyncio
import secrets
import shlex
from typing import Any, AsyncIterator, BinaryIO

from faults import Faults
from grpclib import GRPCError, Status
from modal_proto import api_pb2

STATUS = api_pb2.GenericResult
#: Tags with this word are in no registry, those of this host need credentials.
MISSING = "no-such"
PRIVATE = "private.example/"


class Image:
    """One image and the log of its build."""

    def __init__(self, identity: str) -> None:
        self.id = identity
        self.tag = ""
        self.env: dict[str, str] = {}
        self.workdir = ""
        #: What was changed in the sandbox of which it is a snapshot.
        self.snapshot: BinaryIO | None = None
        self.result: api_pb2.GenericResult | None = None
        self.log: list[str] = []
        self.changed = asyncio.Condition()
        self.build: asyncio.Task[None] | None = None

    async def say(self, *lines: str, result: api_pb2.GenericResult | None = None) -> None:
        """More of its log, and the end of the build."""
        async with self.changed:
            self.log.extend(lines)
            self.result = result
            self.changed.notify_all()


class Images:
    """All that there are."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._all: dict[str, Image] = {}
        self._by_definition: dict[bytes, Image] = {}

    def get(self, identity: str) -> Image:
        """An image by its id, built or not."""
        found = self._all.get(identity)
        if found is None:
            raise GRPCError(Status.NOT_FOUND, "Image %s not found" % identity)
        return found

    def built(self, identity: str) -> Image:
        """One that a sandbox can start from."""
        image = self.get(identity)
        if image.result is None or image.result.status != STATUS.GENERIC_STATUS_SUCCESS:
            raise GRPCError(Status.FAILED_PRECONDITION, "Image %s is not built" % identity)
        return image

    def _new(self) -> Image:
        image = Image("im-" + secrets.token_hex(11))
        self._all[image.id] = image
        return image

    def keep(self, base: Image | None, snapshot: BinaryIO) -> Image:
        """A snapshot of a sandbox that was made from `base`."""
        image = self._new()
        if base is not None:
            image.tag, image.env, image.workdir = base.tag, dict(base.env), base.workdir
        image.snapshot = snapshot
        image.result = STATUS(status=STATUS.GENERIC_STATUS_SUCCESS)
        return image

    def named(self, tag: str) -> Image:
        """The image of a tag, there at once."""
        if MISSING in tag:
            raise GRPCError(Status.NOT_FOUND, "Image %s not found" % tag)
        image = self._new()
        image.tag = tag
        image.result = STATUS(status=STATUS.GENERIC_STATUS_SUCCESS)
        return image

    def get_or_create(self, definition: api_pb2.Image, again: bool, registry: dict[str, str] | None) -> Image:
        """Starts a build unless there is one; one that failed is tried again."""
        key = definition.SerializeToString(deterministic=True)
        image = self._by_definition.get(key)
        failed = image is not None and image.result is not None and image.result.status != STATUS.GENERIC_STATUS_SUCCESS
        if image is None or failed or again:
            image = self._by_definition[key] = self._new()
            for base in definition.base_images:
                below = self.get(base.image_id)
                image.tag, image.env, image.workdir = below.tag, dict(below.env), below.workdir
                image.snapshot = below.snapshot
            image.build = asyncio.ensure_future(self._build(image, [*definition.dockerfile_commands], registry))
        return image

    async def _build(self, image: Image, commands: list[str], registry: dict[str, str] | None) -> None:
        for command in commands:
            word, _, rest = command.strip().partition(" ")
            if word.upper() == "FROM" and not rest.strip().startswith("base"):
                image.tag = rest.split()[0]
            elif word.upper() == "WORKDIR":
                image.workdir = rest.strip()
            elif word.upper() == "ENV":
                for part in shlex.split(rest):
                    name, _, value = part.partition("=")
                    image.env[name] = value
        fault = self._faults.find("build", tag=image.tag)
        await image.say("Building image %s\n" % image.id, *("=> %s\n" % command for command in commands))
        problem = ""
        if MISSING in image.tag:
            problem = "manifest for %s not found: manifest unknown" % image.tag
        elif image.tag.startswith(PRIVATE) and not (registry and registry.get("REGISTRY_PASSWORD")):
            problem = "pull access denied for %s: unauthorized" % image.tag
        if fault is not None and fault["how"] == "failure":
            problem = fault["message"]
        elif fault is not None:
            for step in range(5):
                await image.say("step %d of 5\n" % (step + 1))
                await asyncio.sleep(fault["seconds"] / 5)
        else:
            await asyncio.sleep(0.01)
        if problem:
            text = "Image build for %s failed with the exception:\n%s" % (image.id, problem)
            failure = STATUS(status=STATUS.GENERIC_STATUS_FAILURE, exception=text)
            await image.say(problem + "\n", result=failure)
        else:
            done = STATUS(status=STATUS.GENERIC_STATUS_SUCCESS)
            await image.say("Built image %s\n" % image.id, result=done)

    async def join(self, image: Image, after: str, timeout: float) -> AsyncIterator[Any]:
        """The log from an entry on, then the result; neither end within the time nor a fault brings it."""
        number = int(after.split("-")[0]) if after else 0
        deadline = asyncio.get_running_loop().time() + (timeout or 55)
        silent = self._faults.find("build", tag=image.tag, how="no_result")
        while True:
            async with image.changed:
                while number >= len(image.log) and image.result is None:
                    left = deadline - asyncio.get_running_loop().time()
                    try:
                        await asyncio.wait_for(image.changed.wait(), max(left, 0.001))
                    except asyncio.TimeoutError:
                        return
                lines, result = image.log[number:], image.result
            for line in lines:
                number += 1
                yield api_pb2.ImageJoinStreamingResponse(
                    entry_id="%d-0" % number, task_logs=[api_pb2.TaskLogs(data=line)]
                )
            if silent is not None and lines:
                return
            if result is not None and number >= len(image.log):
                yield api_pb2.ImageJoinStreamingResponse(result=result, entry_id="%d-0" % number, eof=True)
                return
