"""Serves an object's methods as a service of gRPC: calls are logged, and faults strike here."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any, Awaitable, Callable, Sequence

from calls import Call, Calls
from faults import Fault, Faults
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpclib import GRPCError, Status
from grpclib.const import Cardinality, Handler
from grpclib.encoding.base import StatusDetailsCodecBase
from grpclib.server import Server, Stream
from h2.errors import ErrorCodes
from h2.exceptions import StreamClosedError
from modal_proto import api_pb2


class _Details(StatusDetailsCodecBase):
    """Details of a status, in the layout of google.rpc.Status."""

    def encode(self, status: Status, message: str | None, details: Any) -> bytes:
        packed = api_pb2.RPCStatus(code=status.value, message=message or "")
        for detail in details or []:
            packed.details.add().Pack(detail, type_url_prefix="type.modal.com/")
        return packed.SerializeToString()

    def decode(self, status: Status, message: str | None, data: bytes) -> Any:
        raise NotImplementedError


def unattended(work: asyncio.Future[Any]) -> None:
    """Its failure is told to whoever waits for it; when nobody does any more, it is nobody's."""
    work.add_done_callback(lambda done: done.cancelled() or done.exception())


class Lost(Exception):
    """The call is over without an answer."""


class Context:
    """What a method is told about its call."""

    def __init__(self, call: Call, stream: Stream[Any, Any], faults: Faults) -> None:
        self.call = call
        self.metadata = call.metadata
        self.faults = faults
        #: The task that a worker's token is for.
        self.task = ""
        self._stream = stream

    async def break_off(self, how: str) -> None:
        """Ends the call as a network or a worker would. Always raises."""
        # A break throws away what the other side has received and not yet looked at: let it look, or an endless row of
        # breaks would make no progress.
        await asyncio.sleep(0.01)
        if how == "disconnect":
            self._stream._stream._transport.abort()
        elif how.partition(":")[0] == "reset":
            await self._stream._stream.reset(ErrorCodes[how.partition(":")[2] or "INTERNAL_ERROR"])
            self._stream._cancel_done = True
        else:
            raise GRPCError(Status[how], "injected")
        raise Lost(how)


def _failure(fault: Fault) -> GRPCError:
    details: Sequence[Message] | None = None
    if fault["retry_after"] is not None:
        details = [api_pb2.RPCRetryPolicy(retry_after_secs=fault["retry_after"])]
    return GRPCError(Status[fault["code"]], fault["message"], details)


class Service:
    """One of the two services. Methods of `implementation` are named as the calls are; the others are UNIMPLEMENTED.

    A method takes the request (of a stream of requests the iterator) and the context, and gives the answer or, for a
    stream of answers, gives an asynchronous generator.
    """

    def __init__(self, name: str, descriptor: ServiceDescriptor, implementation: Any, calls: Calls, faults: Faults):
        self._name = name
        self._descriptor = descriptor
        self._implementation = implementation
        self._calls = calls
        self._faults = faults

    def __mapping__(self) -> dict[str, Handler]:
        """What grpclib asks a service for."""
        found = {}
        for method in self._descriptor.methods:
            path = "/%s/%s" % (self._descriptor.full_name, method.name)
            cardinality = {
                (False, False): Cardinality.UNARY_UNARY,
                (False, True): Cardinality.UNARY_STREAM,
                (True, False): Cardinality.STREAM_UNARY,
                (True, True): Cardinality.STREAM_STREAM,
            }[method.client_streaming, method.server_streaming]
            found[path] = Handler(
                self._handler(method),
                cardinality,
                GetMessageClass(method.input_type),
                GetMessageClass(method.output_type),
            )
        return found

    def _handler(self, method: MethodDescriptor) -> Callable[[Stream[Any, Any]], Awaitable[None]]:
        work = getattr(self._implementation, method.name, None)

        async def handle(stream: Stream[Any, Any]) -> None:
            request: Any = stream if method.client_streaming else await stream.recv_message()
            logged = None if method.client_streaming else request
            metadata = {key: str(value) for key, value in (stream.metadata or {}).items()}
            call = self._calls.begin(self._name, method.name, logged, metadata)
            context = Context(call, stream, self._faults)
            try:
                await self._answer(method, work, request, context, stream)
                call.answer = "OK"
            except GRPCError as error:
                call.answer = error.status.name
                raise
            except Lost:
                call.answer = "LOST"
            except asyncio.TimeoutError:
                call.answer = "DEADLINE_EXCEEDED"
                raise
            except asyncio.CancelledError:
                call.answer = "CANCELLED"
                raise
            except StreamClosedError:  # the caller went while the answer was on its way
                call.answer = "CANCELLED"
                raise asyncio.CancelledError

        return handle

    async def _answer(
        self, method: MethodDescriptor, work: Any, request: Any, context: Context, stream: Stream[Any, Any]
    ) -> None:
        fault = self._faults.find("status", method=method.name)
        if fault is not None:
            raise _failure(fault)
        if work is None:
            raise GRPCError(Status.UNIMPLEMENTED, "the stand-in does not know %s" % method.name)
        self._implementation.authorize(method.name, context)
        if method.server_streaming:
            if self._faults.quirk("headers_first"):
                await stream.send_initial_metadata()
            async with aclosing(work(request, context)) as answers:
                async for answer in answers:
                    await stream.send_message(answer)
        else:
            answer = await work(request, context)
        late = self._faults.find("late", method=method.name)
        if late is not None:
            await asyncio.sleep(late["seconds"])
        lost = self._faults.find("lost", method=method.name)
        if lost is not None:
            await context.break_off(lost["how"])
        if not method.server_streaming:
            await stream.send_message(answer)


def protocol(service: Service) -> Callable[[], Any]:
    """Makes the protocol of a new connection."""
    server = Server([service], status_details_codec=_Details(), codec=None)
    return server._protocol_factory
