"""The end of a drain, for calls that do not end by themselves, and goodbyes that must not kill what runs."""

from __future__ import annotations

import pytest
import trio
import trio.testing

import transport
from tests.support import wire
from tests.support.faults import RawPeer, memory_pair, memory_server
from tests.transport.test_shell import echo
from transport import (
    CallFailed,
    Client,
    ErrorCode,
    ServerStream,
    StatusCode,
    StreamRefused,
    TransportConfig,
    connect_stream,
)

LAST_WORD = CallFailed(StatusCode.UNAVAILABLE, "not any longer", b"details")


async def receive_to_the_end(client: Client, path: str) -> tuple[list[bytes], CallFailed | None]:
    """All messages of a call, and the status that it failed with."""
    received: list[bytes] = []
    async with client.open_stream(path) as stream:
        try:
            while (message := await stream.receive()) is not None:
                received.append(bytes(message))
        except CallFailed as failure:
            return received, failure
    return received, None


async def test_a_peer_that_is_not_there_is_no_call(autojump_clock: trio.testing.MockClock) -> None:
    """It answers no PING, so the drain takes its time; all calls, of which there were none, ended by themselves."""
    async with memory_server({}) as memory:
        await memory.peer.send(wire.CLIENT_HELLO)
        await memory.peer.settle()
        assert await memory.server.drain(10)
        assert trio.current_time() == 10


async def test_calls_that_do_not_end_get_the_last_word(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """At the limit a running call ends with the status given; its handler is cancelled, and nothing is logged."""
    ended: list[str] = []

    async def wait(stream: ServerStream) -> None:
        try:
            await stream.send(b"one")
            await trio.sleep_forever()
        finally:
            ended.append(stream.path)

    async with memory_pair({"/wait": wait}) as (client, server, *_):
        results: list[tuple[list[bytes], CallFailed | None]] = []

        async def call() -> None:
            results.append(await receive_to_the_end(client, "/wait"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await trio.testing.wait_all_tasks_blocked()
            start = trio.current_time()
            assert not await server.drain(7, lambda _: LAST_WORD)
            assert trio.current_time() - start == pytest.approx(7 - 2 * 0.7)
        assert server.statistics().connections == 0
    ((received, failure),) = results
    assert received == [b"one"]
    assert failure is not None
    assert (failure.status, failure.message, failure.details) == (
        LAST_WORD.status,
        "not any longer",
        b"details",
    )
    assert ended == ["/wait"]
    assert not caplog.records


async def test_busy_handler_is_stopped_between_messages(autojump_clock: trio.testing.MockClock) -> None:
    """A handler that sends all the time is stopped; what it sent before the status arrives whole and in order."""

    async def count(stream: ServerStream) -> None:
        at = 0
        while True:
            await stream.send(b"%d" % at)
            at += 1
            await trio.lowlevel.checkpoint()
            if not at % 1_000:
                with trio.move_on_after(1):
                    await trio.sleep_forever()

    async with memory_pair({"/count": count}) as (client, server, *_):
        results: list[tuple[list[bytes], CallFailed | None]] = []

        async def call() -> None:
            results.append(await receive_to_the_end(client, "/count"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await trio.testing.wait_all_tasks_blocked()
            assert not await server.drain(2.5)
    ((received, failure),) = results
    assert received == [b"%d" % at for at in range(len(received))]
    assert len(received) >= 1_000
    assert failure is not None
    assert failure.status is StatusCode.UNAVAILABLE


async def test_consumer_that_stands_still_is_told_too(autojump_clock: trio.testing.MockClock) -> None:
    """A status needs no window: a client that reads nothing finds it after what had reached it before."""

    async def flood(stream: ServerStream) -> None:
        while True:
            await stream.send(bytes(400))

    config = TransportConfig(stream_window_bytes=1_000, send_buffer_bytes=5_000)
    async with (
        memory_pair({"/flood": flood}, config) as (client, server, *_),
        client.open_stream("/flood") as stream,
    ):
        await trio.testing.wait_all_tasks_blocked()
        start = trio.current_time()
        assert not await server.drain(3, lambda _: LAST_WORD)
        assert trio.current_time() - start == pytest.approx(3 - 0.3)
        assert [len(await stream.receive()) for _ in range(2)] == [400, 400]
        with pytest.raises(CallFailed, match="not any longer"):
            await stream.receive()


async def test_complete_answer_is_never_cut_short(autojump_clock: trio.testing.MockClock) -> None:
    """An answer with status OK that waits for window at the limit is not shortened: it is whole, or an error."""

    async def answer(stream: ServerStream) -> None:
        for _ in range(5):
            await stream.send(bytes(400))

    config = TransportConfig(stream_window_bytes=1_000, send_buffer_bytes=5_000)
    async with (
        memory_pair({"/answer": answer}, config) as (client, server, *_),
        client.open_stream("/answer") as stream,
    ):
        await trio.testing.wait_all_tasks_blocked()
        assert not await server.drain(3, lambda _: LAST_WORD)
        for _ in range(5):
            assert len(await stream.receive()) == 400
        assert await stream.receive() is None


@pytest.mark.parametrize("code", [ErrorCode.NO_ERROR, ErrorCode.INTERNAL_ERROR])
async def test_goodbye_of_a_client_ends_no_call(code: ErrorCode) -> None:
    """A client's GOAWAY leaves the calls that it has and opens: a server opens none that it could refuse."""
    async with memory_server({"/test.Test/Method": echo}) as memory:
        peer = memory.peer
        await peer.send(wire.CLIENT_HELLO, wire.headers(1))
        await peer.send(wire.goaway(0, code))
        await peer.settle()
        assert memory.server.statistics().streams == 1
        await peer.send(wire.headers(3), wire.data(3, wire.message(b"later"), end=True))
        frames = await peer.settle()
        assert b"".join(frame.payload for frame in wire.only(frames, wire.DATA, 3)) == wire.message(b"later")
        await peer.send(wire.data(1, wire.message(b"still here")), wire.data(1, end=True))
        frames = await peer.settle()
        assert b"".join(frame.payload for frame in wire.only(frames, wire.DATA, 1)) == wire.message(
            b"still here"
        )
        assert wire.only(frames, wire.HEADERS, 1)[-1].flags & wire.END_STREAM
        assert not wire.only(frames, wire.RST_STREAM)
        assert peer.closed == (code != ErrorCode.NO_ERROR)  # who failed has no more to ask
        if not peer.closed:
            await peer.send(wire.headers(5), wire.data(5, wire.message(b"much later"), end=True))
            assert wire.only(await peer.settle(), wire.HEADERS, 5)[-1].flags & wire.END_STREAM
        await peer.stream.aclose()
        await memory.ended.wait()


async def test_goodbye_of_a_server_ends_no_call_that_it_took() -> None:
    """After GOAWAY the calls up to its number go on to their end; those above are refused, so they can be repeated."""
    ours, theirs = trio.testing.memory_stream_pair()
    peer = RawPeer(theirs)
    async with connect_stream(ours) as client:
        await peer.send(wire.SERVER_HELLO)
        async with client.open_stream("/x") as taken, client.open_stream("/x") as refused:
            await peer.send(wire.goaway(2**31 - 1), wire.goaway(1))
            with pytest.raises(StreamRefused):
                await refused.receive()
            await peer.send(wire.headers(1, wire.RESPONSE), wire.data(1, wire.message(b"answer")))
            assert await taken.receive() == b"answer"
            await taken.send(b"more")
            await peer.send(wire.headers(1, wire.TRAILERS, end=True))
            assert await taken.receive() is None
        await peer.stream.aclose()


@pytest.mark.socket
async def test_drain_over_sockets_closes_the_door_first() -> None:
    """While a running call goes on, nobody can connect any more, and the connection takes no new call."""
    go = trio.Event()

    async def wait(stream: ServerStream) -> None:
        await stream.send(b"started")
        await go.wait()
        await stream.send(b"finished")

    async with transport.serve({"/wait": wait}) as server, trio.open_nursery() as nursery:
        async with (
            transport.connect(server.host, server.port) as client,
            client.open_stream("/wait") as stream,
        ):
            assert await stream.receive() == b"started"
            drained: list[bool] = []

            async def drain() -> None:
                drained.append(await server.drain(60))

            nursery.start_soon(drain)
            with trio.fail_after(100):
                while client.alive:
                    await trio.testing.wait_all_tasks_blocked(0.01)
            with pytest.raises(StreamRefused):
                await client.call("/wait", b"")
            with pytest.raises(transport.ConnectionLost, match="refused"):
                async with transport.connect(server.host, server.port):
                    pass
            go.set()
            assert await stream.receive() == b"finished"
            assert await stream.receive() is None
    assert drained == [True]
