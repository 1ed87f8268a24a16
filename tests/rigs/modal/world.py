"""What an account has: apps, secrets, images, sandboxes; and the tokens with which all of it is asked for."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import os
import secrets
import string
import time
from typing import Any

from endpoints import Endpoint
from faults import Faults
from grpclib import GRPCError, Status
from images import Images
from modal_proto import api_pb2
from sandboxes import Sandbox

ALPHANUMERIC = string.ascii_letters + string.digits
#: How long tokens are valid unless a fault says otherwise (inferred).
TOKEN_SECONDS = 20 * 60


def identity(prefix: str, length: int = 22) -> str:
    """A new id of the usual shape."""
    return prefix + "-" + "".join(secrets.choice(ALPHANUMERIC) for _ in range(length))


class Tokens:
    """Makes and checks JWTs."""

    def __init__(self, faults: Faults) -> None:
        self._key = os.urandom(32)
        self._faults = faults

    def make(self, kind: str, subject: str = "") -> str:
        """A token of a kind, `auth` or `router`, for a subject."""
        fault = self._faults.find("jwt", of=kind) or self._faults.find("jwt", of="both")
        expiry = time.time() + (fault["seconds"] if fault else TOKEN_SECONDS)
        # Something that is new each time, as a renewed token differs from the one before.
        claims = {"kind": kind, "sub": subject, "exp": expiry, "jti": secrets.token_hex(8)}
        if self._faults.quirk("no_expiry"):
            del claims["exp"]
        parts = [{"alg": "HS256", "typ": "JWT"}, claims]
        text = ".".join(_encoded(json.dumps(part).encode()) for part in parts)
        return text + "." + self._signature(text)

    def _signature(self, text: str) -> str:
        return _encoded(hmac.new(self._key, text.encode(), hashlib.sha256).digest())

    def check(self, kind: str, token: str) -> str:
        """Gives the subject."""
        text, _, signature = token.rpartition(".")
        if not text or not hmac.compare_digest(signature, self._signature(text)):
            raise GRPCError(Status.UNAUTHENTICATED, "invalid token")
        payload = text.split(".")[1]
        claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        if claims["kind"] != kind:
            raise GRPCError(Status.UNAUTHENTICATED, "token is for something else")
        if claims.get("exp", time.time() + 1) <= time.time():
            raise GRPCError(Status.UNAUTHENTICATED, "token has expired")
        return str(claims["sub"])


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Owned:
    """A sandbox with what the control plane knows of it."""

    def __init__(self, sandbox: Sandbox, app: str, definition: api_pb2.Sandbox, newer: bool) -> None:
        self.sandbox = sandbox
        self.app = app
        self.definition = definition
        self.newer = newer
        self.name = definition.name
        self.tags: dict[str, str] = {}
        #: The last message into the entrypoint's stdin, of the older generation.
        self.stdin_index = 0
        #: Set when the older generation's task id is told.
        self.scheduled = asyncio.Event()

    @property
    def created(self) -> float:
        return self.sandbox.created

    def shown(self) -> dict[str, Any]:
        """As the admin interface tells it."""
        result, sandbox = self.sandbox.result, self.sandbox
        definition = self.definition
        return {
            "id": sandbox.id,
            "task": sandbox.task,
            "app": self.app,
            "name": self.name,
            "tags": self.tags,
            "pid": sandbox.pid,
            "alive": sandbox.alive,
            "newer": self.newer,
            "created": sandbox.created,
            "image": definition.image_id,
            "workdir": definition.workdir,
            "timeout": definition.timeout_secs,
            "idle_timeout": definition.idle_timeout_secs if definition.HasField("idle_timeout_secs") else None,
            "cpu": definition.resources.milli_cpu / 1000,
            "memory": definition.resources.memory_mb,
            "gpu": definition.resources.gpu_config.gpu_type,
            "regions": [*definition.scheduler_placement.regions],
            "blocked": definition.network_access.network_access_type == api_pb2.NetworkAccess.BLOCKED,
            "result": None
            if result is None
            else {
                "status": api_pb2.GenericResult.GenericStatus.Name(result.status)[len("GENERIC_STATUS_") :],
                "exitcode": result.exitcode,
                "exception": result.exception,
            },
        }


class World:
    """Everything of one stand-in."""

    def __init__(self, faults: Faults, visible: list[str], python: str) -> None:
        self.faults = faults
        self.visible = visible
        self.python = python
        self.tokens = Tokens(faults)
        self.images = Images(faults)
        self.environments = {"main", "dev"}
        #: App ids by environment and name.
        self.apps: dict[tuple[str, str], str] = {}
        self.secrets: dict[str, dict[str, str]] = {}
        #: Ids of secrets that have a name, by environment and name.
        self.named_secrets: dict[tuple[str, str], str] = {}
        self.sandboxes: dict[str, Owned] = {}
        self.tasks: dict[str, Owned] = {}
        self.router: Endpoint | None = None

    def environment(self, name: str) -> str:
        """The environment that is meant; without a name the first."""
        name = name or "main"
        if name not in self.environments:
            raise GRPCError(Status.NOT_FOUND, "environment '%s' not found" % name)
        return name

    def sandbox(self, identity: str) -> Owned:
        """A sandbox by its id."""
        found = self.sandboxes.get(identity)
        if found is None:
            raise GRPCError(Status.NOT_FOUND, "Sandbox with ID %s not found" % identity)
        return found

    def access(self, owned: Owned) -> tuple[str, str]:
        """URL and token for the worker of a sandbox."""
        if not owned.sandbox.alive:
            raise GRPCError(Status.FAILED_PRECONDITION, "Sandbox has already finished")
        assert self.router is not None
        return self.router.url, self.tokens.make("router", owned.sandbox.task)

    def environment_of(self, sources: Any, ids: Any) -> dict[str, str]:
        """What secrets hold, later ones over earlier."""
        found: dict[str, str] = {}
        for secret in ids:
            found.update(self.secret(secret))
        for source in sources:
            inline = source.WhichOneof("source") == "env"
            found.update(source.env.contents if inline else self.secret(source.secret_id))
        return found

    def secret(self, identity: str) -> dict[str, str]:
        """A secret by its id."""
        if identity not in self.secrets:
            raise GRPCError(Status.NOT_FOUND, "Secret %s not found" % identity)
        return self.secrets[identity]

    async def end(self) -> None:
        """Nothing is left."""
        endings = [owned.sandbox.end_soon("terminated") for owned in self.sandboxes.values()]
        if endings:
            await asyncio.wait(endings)
