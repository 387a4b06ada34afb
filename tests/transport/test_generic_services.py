"""Health and reflection at their edges: what is told when, and which files answer what."""

from __future__ import annotations

import pytest
import trio.testing
from google.protobuf import descriptor_pb2

import transport
from tests.support.faults import memory_pair
from transport import CallFailed, Client, StatusCode
from transport.proto.grpc.health.v1 import health_pb2 as pb
from transport.reflection import FileIndex

Response = pb.HealthCheckResponse
CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
REFLECT = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"


async def check(client: Client, service: str) -> int:
    """The status of a service now."""
    reply = await client.call(CHECK, pb.HealthCheckRequest(service=service).SerializeToString())
    return Response.FromString(bytes(reply)).status


async def test_status_of_each_service() -> None:
    """Every service is SERVING, until a drain makes all of them NOT_SERVING; others are not found."""
    health = transport.Health(["a.A", "b.B"])
    async with memory_pair(health.handlers()) as (client, *_):
        services = ("", "a.A", "b.B")
        assert {await check(client, name) for name in services} == {Response.SERVING}
        health.drain()
        assert {await check(client, name) for name in services} == {Response.NOT_SERVING}
        with pytest.raises(CallFailed) as caught:
            await check(client, "d.D")
        assert caught.value.status is StatusCode.NOT_FOUND


async def test_the_client_asks_for_health() -> None:
    """`check_health` says whether a service is SERVING; an unknown one, and an answer of another kind, are errors."""

    async def nonsense(_request: object, _stream: object) -> bytes:
        return b"\xff"

    health = transport.Health(["a.A"])
    async with memory_pair(health.handlers()) as (client, *_):
        assert await transport.check_health(client) is True
        health.drain()
        assert await transport.check_health(client, "a.A") is False
        with pytest.raises(CallFailed, match="is known here"):
            await transport.check_health(client, "d.D")
    async with memory_pair({CHECK: transport.unary(nonsense)}) as (client, *_):
        with pytest.raises(CallFailed, match="not a HealthCheckResponse"):
            await transport.check_health(client)


@pytest.mark.parametrize(
    ("service", "statuses"),
    [("a.A", [Response.SERVING, Response.NOT_SERVING]), ("new", [Response.SERVICE_UNKNOWN])],
)
async def test_watcher_gets_the_latest_status(service: str, statuses: list[int]) -> None:
    """A watch tells the status, and what it becomes when the server drains, which ends it."""
    health = transport.Health(["a.A"])
    async with memory_pair(health.handlers()) as (client, *_), client.open_stream(WATCH) as stream:
        await stream.send(pb.HealthCheckRequest(service=service).SerializeToString())
        told = [await stream.receive()]
        health.drain()
        with pytest.raises(CallFailed) as caught:
            while True:
                told.append(await stream.receive())
    assert caught.value.status is StatusCode.UNAVAILABLE
    assert [Response.FromString(bytes(each)).status for each in told] == statuses


@pytest.mark.parametrize("path", [CHECK, WATCH])
async def test_request_that_is_no_message(path: str) -> None:
    """Octets that cannot be read are INVALID_ARGUMENT; no request at all is UNIMPLEMENTED."""
    async with memory_pair(transport.Health([]).handlers()) as (client, *_):
        for messages, status in (([b"\xff"], StatusCode.INVALID_ARGUMENT), ([], StatusCode.UNIMPLEMENTED)):
            async with client.open_stream(path) as stream:
                for message in messages:
                    await stream.send(message)
                await stream.send_end()
                with pytest.raises(CallFailed) as caught:
                    await stream.receive()
            assert caught.value.status is status


@pytest.mark.parametrize("path", [CHECK, WATCH, REFLECT])
async def test_request_that_is_too_long(path: str) -> None:
    """Health is for everybody: nothing long is held for it, whether it comes with its call or later."""
    handlers = transport.Health([]).handlers()
    handlers |= transport.reflection_handlers(handlers, [])

    async def answer(message: bytes, waits: bool) -> StatusCode | None:
        async with memory_pair(handlers) as (client, *_), client.open_stream(path) as stream:
            if waits:
                await trio.testing.wait_all_tasks_blocked()
            await stream.send(message)
            try:
                await stream.receive()
            except CallFailed as failure:
                return failure.status
        return None

    for waits in (False, True):
        # Both kinds of requests have a text as their first field.
        for size, expected in ((4_000, False), (4_096, True)):
            message = pb.HealthCheckRequest(service="n" * size).SerializeToString()
            refused = await answer(message, waits) is StatusCode.RESOURCE_EXHAUSTED
            assert refused == expected


def file(name: str, *imports: str) -> descriptor_pb2.FileDescriptorProto:
    """A file with nothing in it."""
    return descriptor_pb2.FileDescriptorProto(name=name, package="p", dependency=imports)


def index(*files: descriptor_pb2.FileDescriptorProto) -> FileIndex:
    """An index of files."""
    return FileIndex(each.SerializeToString() for each in files)


def names(files: list[bytes] | None) -> list[str] | None:
    """What the files are called."""
    parse = descriptor_pb2.FileDescriptorProto.FromString
    return None if files is None else [parse(each).name for each in files]


def test_files_come_with_their_imports_once() -> None:
    """The file asked for always comes; what it imports, at any depth, only if it has not gone out before."""
    found = index(file("a", "b", "c"), file("b", "d"), file("c", "d"), file("d"))
    sent: set[str] = set()

    assert sorted(names(found.with_imports("b", sent)) or ()) == ["b", "d"]
    assert names(found.with_imports("a", sent)) == ["a", "c"]
    assert names(found.with_imports("a", sent)) == ["a"]
    assert found.with_imports("e", sent) is None


def test_everything_declared_is_found() -> None:
    """All names lead to their file: a value's is beside its enum's, as in C++."""
    declaring = file("a")
    outer = declaring.message_type.add(name="Outer")
    outer.field.add(name="field")
    outer.oneof_decl.add(name="choice")
    outer.nested_type.add(name="Inner").enum_type.add(name="Deep").value.add(name="DEEP")
    outer.extension.add(name="nested_extension", extendee=".p.Base", number=8)
    declaring.enum_type.add(name="Top").value.add(name="TOP")
    declaring.service.add(name="Service").method.add(name="Do")
    declaring.extension.add(name="extension", extendee=".p.Base", number=7)
    base = file("b")
    base.message_type.add(name="Base")
    found = index(declaring, base)

    symbols = ["Outer", "Outer.Inner", "Outer.Inner.Deep", "Top", "Service", "Service.Do", "extension"]
    symbols += ["Outer.nested_extension", "Outer.field", "Outer.choice", "Outer.Inner.DEEP", "TOP"]
    assert {found.declaring(f"p.{each}") for each in symbols} == {"a"}
    assert found.declaring("p.Base") == "b"
    assert found.declaring("Outer") is None
    assert (found.extending("p.Base", 7), found.extending("p.Base", 9)) == ("a", None)
    assert found.extension_numbers("p.Base") == [7, 8]
    assert found.extension_numbers("p.Outer") == []
    assert found.extension_numbers("p.None") is None


def test_what_is_missing_is_named() -> None:
    """An import, or a service, that no file declares is an error at the start, not at the first question."""
    with pytest.raises(ValueError, match="imported, and not among the files: x"):
        index(file("a", "x"))
    with pytest.raises(ValueError, match=r"no file declares the services p\.None"):
        transport.reflection_handlers(["/p.None/Do"], [])
