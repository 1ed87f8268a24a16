"""The control plane, `modal.client.ModalClient`: apps, images and secrets here, sandboxes in `plane_sandboxes`."""

from __future__ import annotations

import asyncio
from typing import Any, AsyncIterator

from google.protobuf.empty_pb2 import Empty
from grpclib import GRPCError, Status
from modal_proto import api_pb2
from plane_sandboxes import SandboxCalls
from serving import Context
from world import World, identity

IF_MISSING = api_pb2.OBJECT_CREATION_TYPE_CREATE_IF_MISSING
BUILDER_VERSION = "2025.06"


class Plane(SandboxCalls):
    """Methods are named as the calls are."""

    def __init__(self, world: World, token: tuple[str, str] | None) -> None:
        super().__init__(world)
        self._token = token

    def authorize(self, method: str, context: Context) -> None:
        """Checks the token, and the JWT where the newer generation wants one."""
        given = context.metadata.get("x-modal-token-id"), context.metadata.get("x-modal-token-secret")
        if not all(given):
            raise GRPCError(Status.UNAUTHENTICATED, "Token missing. Could not authenticate client.")
        if self._token is not None and given != self._token:
            raise GRPCError(Status.UNAUTHENTICATED, "Token ID is malformed or invalid.")
        if "x-modal-client-version" not in context.metadata or "x-modal-client-type" not in context.metadata:
            raise GRPCError(Status.INVALID_ARGUMENT, "client version and type are missing")
        if method.startswith("Sandbox") and (method.endswith("V2") or method == "SandboxGetCommandRouterAccess"):
            self._world.tokens.check("auth", context.metadata.get("x-modal-auth-token", ""))

    async def ClientHello(self, request: Any, context: Context) -> api_pb2.ClientHelloResponse:
        return api_pb2.ClientHelloResponse(image_builder_version=BUILDER_VERSION)

    async def AuthTokenGet(self, request: Any, context: Context) -> api_pb2.AuthTokenGetResponse:
        return api_pb2.AuthTokenGetResponse(token=self._world.tokens.make("auth"))

    async def EnvironmentGetOrCreate(
        self, request: api_pb2.EnvironmentGetOrCreateRequest, context: Context
    ) -> api_pb2.EnvironmentGetOrCreateResponse:
        if request.object_creation_type == IF_MISSING:
            self._world.environments.add(request.deployment_name)
        name = self._world.environment(request.deployment_name)
        settings = api_pb2.EnvironmentSettings(image_builder_version=BUILDER_VERSION)
        return api_pb2.EnvironmentGetOrCreateResponse(
            environment_id="en-" + name, metadata=api_pb2.EnvironmentMetadata(name=name, settings=settings)
        )

    async def AppGetOrCreate(
        self, request: api_pb2.AppGetOrCreateRequest, context: Context
    ) -> api_pb2.AppGetOrCreateResponse:
        environment = self._world.environment(request.environment_name)
        key = environment, request.app_name
        if key not in self._world.apps:
            if request.object_creation_type != IF_MISSING:
                raise GRPCError(Status.NOT_FOUND, "App '%s' not found in environment '%s'" % key[::-1])
            self._world.apps[key] = identity("ap")
        metadata = api_pb2.AppHandleMetadata(
            description=request.app_name, app_id=self._world.apps[key], environment_name=environment
        )
        return api_pb2.AppGetOrCreateResponse(app_id=self._world.apps[key], handle_metadata=metadata)

    async def ImageGetOrCreate(
        self, request: api_pb2.ImageGetOrCreateRequest, context: Context
    ) -> api_pb2.ImageGetOrCreateResponse:
        if request.app_id not in self._world.apps.values():
            raise GRPCError(Status.NOT_FOUND, "App %s not found" % request.app_id)
        secret = request.image.image_registry_config.secret_id
        registry = self._world.secret(secret) if secret else None
        image = self._world.images.get_or_create(request.image, request.force_build or request.ignore_cache, registry)
        if image.build is not None and self._world.faults.quirk("image_at_once"):
            await asyncio.wait([image.build])
        return api_pb2.ImageGetOrCreateResponse(image_id=image.id, result=image.result)

    def ImageJoinStreaming(
        self, request: api_pb2.ImageJoinStreamingRequest, context: Context
    ) -> AsyncIterator[api_pb2.ImageJoinStreamingResponse]:
        image = self._world.images.get(request.image_id)
        return self._world.images.join(image, request.last_entry_id, request.timeout)

    async def ImageFromId(self, request: api_pb2.ImageFromIdRequest, context: Context) -> api_pb2.ImageFromIdResponse:
        return api_pb2.ImageFromIdResponse(image_id=self._world.images.get(request.image_id).id)

    async def SecretGetOrCreate(
        self, request: api_pb2.SecretGetOrCreateRequest, context: Context
    ) -> api_pb2.SecretGetOrCreateResponse:
        async def create() -> api_pb2.SecretGetOrCreateResponse:
            world = self._world
            key = world.environment(request.environment_name), request.deployment_name
            if request.deployment_name and key in world.named_secrets:
                secret = world.named_secrets[key]
            elif request.deployment_name and request.object_creation_type == 0:
                raise GRPCError(Status.NOT_FOUND, "Secret '%s' not found" % request.deployment_name)
            else:
                secret = identity("st")
                world.secrets[secret] = dict(request.env_dict)
                if request.deployment_name:
                    world.named_secrets[key] = secret
            held = world.secrets[secret]
            missing = [name for name in request.required_keys if name not in held]
            if missing:
                raise GRPCError(Status.NOT_FOUND, "Secret is missing key(s): %s" % ", ".join(missing))
            metadata = api_pb2.SecretMetadata(name=request.deployment_name, keys=sorted(held))
            return api_pb2.SecretGetOrCreateResponse(secret_id=secret, metadata=metadata)

        return await self._once(context, create)

    async def SecretGetInfo(
        self, request: api_pb2.SecretGetInfoRequest, context: Context
    ) -> api_pb2.SecretGetInfoResponse:
        held = self._world.secret(request.secret_id)
        return api_pb2.SecretGetInfoResponse(metadata=api_pb2.SecretMetadata(keys=sorted(held)))

    async def AppHeartbeat(self, request: Any, context: Context) -> Any:
        await asyncio.sleep(0)
        return Empty()
