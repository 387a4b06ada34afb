"""`grpc.health.v1`: whether a server and each of its services take calls. Load balancers and orchestrators ask it.

The whole server is the service with the empty name. Everything is SERVING until the server drains. Then everything is
NOT_SERVING, and watches end, since an open watch would hold up the drain.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeVar

import trio
from google.protobuf.message import DecodeError, Message

from transport.client import Client
from transport.errors import CallFailed, StatusCode
from transport.proto.grpc.health.v1 import health_pb2 as pb
from transport.server import Handler, only_request, unary
from transport.stream import ServerStream

WHOLE_SERVER: Final = ""
_PREFIX: Final = "/grpc.health.v1.Health/"
REQUEST_BYTES_MAX: Final = 4096
"""Of a generic service: a request names a service, a file or a symbol. A watch is for everybody, and holds it."""
_Request = TypeVar("_Request", bound=Message)


class Health:
    """The health service of one server.

    Args:
        services: Full names of the services whose health can be asked for, beside the whole server's.
    """

    def __init__(self, services: Iterable[str]) -> None:
        self._services = (WHOLE_SERVER, *services)
        self._draining = trio.Event()

    def handlers(self) -> dict[str, Handler]:
        """The handler of every call, by path; to be served beside the others."""
        handlers = {"Check": unary(self._check), "List": unary(self._list), "Watch": self._watch}
        return {_PREFIX + name: of_short_requests(handler) for name, handler in handlers.items()}

    def drain(self) -> None:
        """Set everything to NOT_SERVING for good; watchers get that, and their calls end with UNAVAILABLE."""
        self._draining.set()

    def _answer(self, service: str) -> pb.HealthCheckResponse:
        response = pb.HealthCheckResponse
        if service not in self._services:
            return response(status=response.SERVICE_UNKNOWN)
        return response(status=response.NOT_SERVING if self._draining.is_set() else response.SERVING)

    async def _check(self, request: Any, _stream: ServerStream) -> bytes:
        service = parse(pb.HealthCheckRequest, request).service
        if service not in self._services:
            raise CallFailed(StatusCode.NOT_FOUND, f"no service {service[:200]!r} is known here")
        return self._answer(service).SerializeToString()

    async def _list(self, _request: Any, _stream: ServerStream) -> bytes:
        statuses = {service: self._answer(service) for service in self._services}
        return pb.HealthListResponse(statuses=statuses).SerializeToString()

    async def _watch(self, stream: ServerStream) -> None:
        service = parse(pb.HealthCheckRequest, await only_request(stream)).service
        answer = self._answer(service)
        await stream.send(answer.SerializeToString())
        await self._draining.wait()
        if self._answer(service) != answer:
            await stream.send(self._answer(service).SerializeToString())
        raise CallFailed(StatusCode.UNAVAILABLE, "the server is draining")


async def check_health(client: Client, service: str = WHOLE_SERVER) -> bool:
    """Ask a server whether a service takes calls.

    Args:
        client: Connected to it.
        service: Full name; `WHOLE_SERVER` for the server itself.

    Returns:
        Whether it is SERVING.

    Raises:
        CallFailed: NOT_FOUND, the server has no such service; or another status, as for any call.
        TransportError: See `Client.call`.

    Cancellation:
        The call is reset.
    """
    answer = await client.call(_PREFIX + "Check", pb.HealthCheckRequest(service=service).SerializeToString())
    try:
        status = pb.HealthCheckResponse.FromString(bytes(answer)).status
    except DecodeError as error:
        raise CallFailed(StatusCode.INTERNAL, "the answer is not a HealthCheckResponse") from error
    return status == pb.HealthCheckResponse.SERVING


def of_short_requests(handler: Handler) -> Handler:
    """A handler that takes no requests of more than `REQUEST_BYTES_MAX`."""

    async def handle(stream: ServerStream) -> None:
        stream.limit_messages(REQUEST_BYTES_MAX)
        await handler(stream)

    return handle


def parse(kind: type[_Request], octets: Any) -> _Request:
    """Read a request of a generic service.

    Raises:
        CallFailed: INVALID_ARGUMENT, as for every request that is not a message of its type (docs/errors.md).
    """
    try:
        return kind.FromString(bytes(octets))
    except (DecodeError, UnicodeDecodeError) as error:  # The latter for text, by protobuf in pure Python.
        message = f"the request is not a {kind.DESCRIPTOR.full_name}"
        raise CallFailed(StatusCode.INVALID_ARGUMENT, message) from error
