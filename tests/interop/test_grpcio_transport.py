"""The stock grpcio, on both sides: what it does, we understand, and the budgets do not mind it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent import futures
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio
import pytest
import trio

import transport
from tests.support.certificates import authority, client_tls, server_files, server_tls
from tests.support.configs import TINY
from transport import CallFailed, ServerStream, StatusCode, TransportConfig

pytestmark = pytest.mark.socket

T = TypeVar("T")
MIB = 1 << 20
UNBOUNDED = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


def octets(value: bytes) -> bytes:
    """Neither serialise nor parse."""
    return value


# ------------------------------------------------------------------ grpcio calls us


async def echo(stream: ServerStream) -> None:
    while (message := await stream.receive()) is not None:
        await stream.send(message)


async def much(stream: ServerStream) -> None:
    count = int(bytes(await stream.receive()))
    block = bytes(MIB)
    for _ in range(count):
        await stream.send(block)


async def reverse(request: Any, _stream: ServerStream) -> bytes:
    return bytes(request)[::-1]


async def mirror(_request: Any, stream: ServerStream) -> bytes:
    return repr([entry for entry in stream.metadata if entry[0].startswith("x-")]).encode()


async def fail(_request: Any, _stream: ServerStream) -> bytes:
    raise CallFailed(StatusCode.FAILED_PRECONDITION, "pas prêt: 100%", b"\x08\x09details")


class Waiting:
    """A handler that waits until its call is over, and tells."""

    def __init__(self) -> None:
        self.started = trio.Event()
        self.ended = trio.Event()

    async def __call__(self, stream: ServerStream) -> None:
        self.started.set()
        try:
            await trio.sleep_forever()
        finally:
            self.ended.set()


@contextlib.asynccontextmanager
async def our_server(
    config: TransportConfig | None = None,
) -> AsyncIterator[tuple[transport.Server, Waiting]]:
    waiting = Waiting()
    handlers: dict[str, transport.Handler] = {
        "/t.T/Echo": echo,
        "/t.T/Much": much,
        "/t.T/Reverse": transport.unary(reverse),
        "/t.T/Mirror": transport.unary(mirror),
        "/t.T/Fail": transport.unary(fail),
        "/t.T/Wait": waiting,
    }
    async with transport.serve(handlers, config=config) as server:
        yield server, waiting


async def with_channel(
    server: transport.Server, work: Callable[[grpc.Channel], T], *options: tuple[str, int]
) -> T:
    """Run blocking work with a stock channel in a thread."""

    def run() -> T:
        with grpc.insecure_channel(f"{server.host}:{server.port}", options=options) as channel:
            return work(channel)

    return await trio.to_thread.run_sync(run)


def unary(channel: grpc.Channel, method: str) -> Any:
    return channel.unary_unary(f"/t.T/{method}", request_serializer=octets, response_deserializer=octets)


def streaming(channel: grpc.Channel, method: str) -> Any:
    return channel.stream_stream(f"/t.T/{method}", request_serializer=octets, response_deserializer=octets)


def status_of(call: Callable[[], object]) -> Any:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value


async def test_unary_calls_of_all_sizes() -> None:
    """Requests and replies from nothing to megabytes."""

    def work(channel: grpc.Channel) -> None:
        for size in (0, 1, 5, 16_384, 65_535, 65_536, 3 * MIB):
            request = bytes(at % 251 for at in range(min(size, 1_000))) + bytes(max(0, size - 1_000))
            assert unary(channel, "Reverse")(request, timeout=100) == request[::-1]

    async with our_server() as (server, _):
        await with_channel(server, work)


async def test_statuses_and_metadata() -> None:
    """Status, message and details arrive, metadata too, text and binary; unknown methods are UNIMPLEMENTED."""

    def work(channel: grpc.Channel) -> None:
        error = status_of(lambda: unary(channel, "Fail")(b"", timeout=100))
        assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert error.details() == "pas prêt: 100%"
        assert ("grpc-status-details-bin", b"\x08\x09details") in error.trailing_metadata()
        metadata = (("x-text", "a b"), ("x-blob-bin", b"\0\xff\0"))
        assert unary(channel, "Mirror")(b"", metadata=metadata, timeout=100) == repr(list(metadata)).encode()
        assert (
            status_of(lambda: unary(channel, "None")(b"", timeout=100)).code()
            is grpc.StatusCode.UNIMPLEMENTED
        )

    async with our_server() as (server, _):
        await with_channel(server, work)


async def test_slow_reader_of_much_data() -> None:
    """64 MiB to a reader that stops in the middle: we hold one send buffer, others are served, all arrives."""
    half, go_on = threading.Event(), threading.Event()

    def read(channel: grpc.Channel) -> int:
        method = channel.unary_stream("/t.T/Much", request_serializer=octets, response_deserializer=octets)
        total = 0
        for number, block in enumerate(method(b"64", timeout=100)):
            total += len(block)
            if number == 8:
                half.set()
                assert go_on.wait(100)
        return total

    async with our_server() as (server, _), trio.open_nursery() as nursery:
        totals: list[int] = []

        async def run() -> None:
            totals.append(await with_channel(server, read))

        nursery.start_soon(run)
        assert await trio.to_thread.run_sync(half.wait, 100)
        assert server.statistics().unsent_bytes <= 2 * MIB + 10
        assert (
            await with_channel(server, lambda channel: unary(channel, "Reverse")(b"ab", timeout=100)) == b"ba"
        )
        go_on.set()
    assert totals == [64 * MIB]


async def test_bidirectional_echo() -> None:
    """Ping-pong, and all requests at once, with the default config and with tiny bounds."""

    def work(channel: grpc.Channel) -> None:
        messages = [bytes([at % 256]) * (at * 37) for at in range(200)]
        assert list(streaming(channel, "Echo")(iter(messages), timeout=100)) == messages

    for config in (TransportConfig(), TINY):
        async with our_server(config) as (server, _):
            await with_channel(server, work)


async def test_deadline_and_cancel_reach_the_handler() -> None:
    """A deadline of grpcio, and a cancelled call, end the handler."""
    async with our_server() as (server, waiting):

        def deadline(channel: grpc.Channel) -> None:
            timeout = 0.2
            while not waiting.started.is_set():  # On a busy machine a call may end before it has left.
                timeout *= 2
                error = status_of(partial(unary(channel, "Wait"), b"", timeout=timeout))
                assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED

        await with_channel(server, deadline)
        with trio.fail_after(100):
            await waiting.ended.wait()
            while server.statistics().streams:
                await trio.lowlevel.checkpoint()
        waiting.started, waiting.ended = trio.Event(), trio.Event()
        started = threading.Event()

        def cancel(channel: grpc.Channel) -> None:
            call = unary(channel, "Wait").future(b"")
            assert started.wait(100)
            call.cancel()
            assert call.cancelled()
            trio.from_thread.run(waiting.ended.wait)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(with_channel, server, cancel)
            await waiting.started.wait()
            started.set()
        assert server.statistics().streams == 0


async def test_messages_over_the_limits() -> None:
    """Our limit answers RESOURCE_EXHAUSTED, grpcio's own limit cancels; the channel lives on."""

    def work(channel: grpc.Channel) -> None:
        error = status_of(lambda: unary(channel, "Reverse")(bytes(200_000), timeout=100))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "100000" in (error.details() or "")
        error = status_of(lambda: unary(channel, "Reverse")(bytes(90_000), timeout=100))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert unary(channel, "Reverse")(b"ab", timeout=100) == b"ba"

    async with our_server(TransportConfig(message_bytes_max=100_000)) as (server, _):
        await with_channel(server, work, ("grpc.max_receive_message_length", 50_000))


async def test_a_connection_too_many_fails_its_call() -> None:
    """With our words, and not when the call's time is over."""
    alone = ("grpc.use_local_subchannel_pool", 1)

    def work(channel: grpc.Channel) -> None:
        assert unary(channel, "Reverse")(b"ab", timeout=100) == b"ba"
        with grpc.insecure_channel(where, options=[alone]) as other:
            error = status_of(lambda: unary(other, "Reverse")(b"ab", timeout=100))
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            assert "too many connections" in (error.details() or "")

    async with our_server(TransportConfig(connections_max=1)) as (server, _):
        where = f"{server.host}:{server.port}"
        await with_channel(server, work, alone)


async def test_compression_is_declined() -> None:
    """A compressed request is answered by UNIMPLEMENTED."""

    def work(channel: grpc.Channel) -> None:
        call = unary(channel, "Reverse")
        error = status_of(lambda: call(b"a" * 1_000, timeout=100, compression=grpc.Compression.Gzip))
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED

    async with our_server() as (server, _):
        await with_channel(server, work)


async def test_asyncio_client() -> None:
    """grpc.aio: a hundred calls at once, a stream both ways, and a cancelled one."""

    def run(target: str) -> None:
        async def main() -> None:
            async with grpc.aio.insecure_channel(target) as channel:
                reverse_call: Any = channel.unary_unary("/t.T/Reverse")
                replies = await asyncio.gather(*(reverse_call(b"%d" % at, timeout=100) for at in range(100)))
                assert replies == [str(at).encode()[::-1] for at in range(100)]
                call: Any = channel.stream_stream("/t.T/Echo")(timeout=100)
                for at in range(20):
                    await call.write(bytes([at]) * 10_000)
                    assert await call.read() == bytes([at]) * 10_000
                await call.done_writing()
                assert await call.read() is grpc.aio.EOF
                call = channel.stream_stream("/t.T/Echo")()
                await call.write(b"x")
                assert await call.read() == b"x"
                call.cancel()

        asyncio.run(main())

    async with our_server() as (server, _):
        await trio.to_thread.run_sync(run, f"{server.host}:{server.port}")


async def test_drain_with_a_channel_that_stays() -> None:
    """Grpcio answers our goodbye; a drain with an idle channel ends at once."""
    ready, done = threading.Event(), threading.Event()

    def work(channel: grpc.Channel) -> None:
        assert unary(channel, "Reverse")(b"ab", timeout=100) == b"ba"
        ready.set()
        assert done.wait(100)

    async with our_server() as (server, _), trio.open_nursery() as nursery:
        nursery.start_soon(with_channel, server, work)
        assert await trio.to_thread.run_sync(ready.wait, 100)
        with trio.fail_after(100):
            assert await server.drain(100)
        done.set()


# ------------------------------------------------------------------ we call grpcio


class Service(grpc.GenericRpcHandler):
    """A stock server's methods."""

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """Find a method by its path."""
        return {
            "/t.T/Reverse": grpc.unary_unary_rpc_method_handler(lambda request, _: request[::-1]),
            "/t.T/Much": grpc.unary_stream_rpc_method_handler(self.much),
            "/t.T/Echo": grpc.stream_stream_rpc_method_handler(lambda requests, _: requests),
            "/t.T/Fail": grpc.unary_unary_rpc_method_handler(self.fail),
            "/t.T/Wait": grpc.unary_unary_rpc_method_handler(self.wait),
            "/t.T/Early": grpc.stream_stream_rpc_method_handler(lambda _requests, _: iter([b"early"])),
        }.get(details.method)

    def much(self, request: bytes, _context: grpc.ServicerContext) -> Iterator[bytes]:
        """Many blocks."""
        for _ in range(int(request)):
            yield bytes(MIB)

    def fail(self, _request: bytes, context: grpc.ServicerContext) -> bytes:
        """A status with everything."""
        context.set_trailing_metadata((("grpc-status-details-bin", b"\x01\x02"),))
        context.abort(grpc.StatusCode.OUT_OF_RANGE, "trop loin: é")
        raise AssertionError

    def wait(self, _request: bytes, context: grpc.ServicerContext) -> bytes:
        """Until the call is over."""
        over = threading.Event()
        context.add_callback(over.set)
        over.wait(100)
        return b""


@contextlib.asynccontextmanager
async def their_server(credentials: grpc.ServerCredentials | None = None) -> AsyncIterator[int]:
    server = grpc.server(futures.ThreadPoolExecutor(8), handlers=[Service()], options=UNBOUNDED)
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    try:
        yield port
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(lambda: server.stop(None).wait())


@pytest.mark.parametrize("config", [TransportConfig(), TINY], ids=["default", "tiny"])
async def test_our_client_calls_a_stock_server(config: TransportConfig) -> None:
    """Unary, streams, statuses, deadlines and cancellation against grpcio's server."""
    async with their_server() as port, transport.connect("127.0.0.1", port, config=config) as client:
        for size in (0, 1, 1_000, 60_000):
            request = bytes(at % 256 for at in range(size))
            assert bytes(await client.call("/t.T/Reverse", request)) == request[::-1]
        with pytest.raises(CallFailed, match="OUT_OF_RANGE: trop loin: é") as caught:
            await client.call("/t.T/Fail", b"")
        assert caught.value.details == b"\x01\x02"
        with pytest.raises(CallFailed, match="UNIMPLEMENTED"):
            await client.call("/t.T/None", b"")
        with pytest.raises(CallFailed, match="DEADLINE_EXCEEDED"):
            await client.call("/t.T/Wait", b"", timeout_s=0.2)
        async with client.open_stream("/t.T/Echo") as stream:
            for at in range(50):
                await stream.send(bytes([at]) * 300)
                assert bytes(await stream.receive()) == bytes([at]) * 300
            await stream.send_end()
            assert await stream.receive() is None
        for _ in range(20):  # answered before our end: the stock server resets the rest
            async with client.open_stream("/t.T/Early") as stream:
                assert bytes(await stream.receive()) == b"early"
                assert await stream.receive() is None
        assert client.alive


async def test_our_client_reads_much_from_a_stock_server() -> None:
    """64 MiB arrive in the memory that we allocated; a call left in the middle does not hurt the next."""
    made: list[bytearray] = []

    def allocate(size: int) -> bytearray:
        made.append(bytearray(size))
        return made[-1]

    async with their_server() as port, transport.connect("127.0.0.1", port, allocate=allocate) as client:
        async with client.open_stream("/t.T/Much") as stream:
            await stream.send(b"64")
            await stream.send_end()
            assert len(await stream.receive()) == MIB
        async with client.open_stream("/t.T/Much") as stream:
            await stream.send(b"64")
            await stream.send_end()
            total = 0
            while (message := await stream.receive()) is not None:
                assert any(message is one for one in made[-3:])
                total += len(message)
        assert total == 64 * MIB


# ------------------------------------------------------------------ through TLS

LARGE = (64 * 1024, MIB, 3 * MIB + 1, 16 * MIB)


async def test_large_messages_of_a_stock_client_through_tls(tmp_path: Path) -> None:
    """Grpcio's secure channel sends and receives messages of many records, many of them at once."""

    def work(target: str) -> None:
        credentials = grpc.ssl_channel_credentials(authority("test").cert_pem.bytes())
        with grpc.secure_channel(target, credentials, options=UNBOUNDED) as channel:
            messages = [random.Random(size).randbytes(size) for size in LARGE]
            with futures.ThreadPoolExecutor(4) as pool:
                for echoed in pool.map(
                    lambda _: list(streaming(channel, "Echo")(iter(messages), timeout=100)), range(4)
                ):
                    assert echoed == messages

    async with transport.serve({"/t.T/Echo": echo}, ssl_context=server_tls(tmp_path)) as server:
        await trio.to_thread.run_sync(work, f"{server.host}:{server.port}")


async def test_large_messages_of_a_stock_server_through_tls(tmp_path: Path) -> None:
    """Our client sends messages of many records to grpcio's secure port, and gets them back."""
    made = server_files(tmp_path)
    credentials = grpc.ssl_server_credentials([(made.key.read_bytes(), made.certificate.read_bytes())])
    async with (
        their_server(credentials) as port,
        transport.connect("127.0.0.1", port, ssl_context=client_tls(tmp_path)) as client,
        client.open_stream("/t.T/Echo") as stream,
    ):
        for size in LARGE:
            message = random.Random(size).randbytes(size)
            await stream.send(message)
            assert await stream.receive() == message
