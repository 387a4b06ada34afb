"""Calls that take one request, and get two."""

from __future__ import annotations

import pytest
import trio

import transport
from tests.scanner.wire.test_methods import MODULES
from tests.support.scans import filled_store, serving
from transport import CallFailed, StatusCode
from transport.proto.grpc.health.v1 import health_pb2

PATHS = [
    f"/{service.full_name}/{method.name}"
    for module in (*MODULES, health_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
    if not method.client_streaming
]


async def answer_to_two(client: transport.Client, path: str) -> CallFailed:
    """How a call ends whose requests, both empty, come at once."""
    async with client.open_stream(path) as stream:
        stream.send_at_once(b"")
        stream.send_at_once(b"")
        await stream.send_end()
        with pytest.raises(CallFailed) as caught:
            await stream.receive()
    return caught.value


async def test_a_second_request_is_refused_by_every_call_that_takes_one() -> None:
    """With gRPC's status for it, before anything is done: whoever sent it has meant something by it."""
    async with serving(filled_store(1)) as (_server, client):
        for path in PATHS:
            with trio.fail_after(100):
                failed = await answer_to_two(client, path)
            assert failed.status is StatusCode.UNIMPLEMENTED, path
            assert failed.message == f"{path} takes one request, and more came; nothing was done"
