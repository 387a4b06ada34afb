"""Stall attribution on running calls: what each end books, that it adds up to wall time, and what trailers tell."""

from __future__ import annotations

import contextlib
import math
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from tests.support import wire
from tests.support.faults import FaultyStream, memory_pair, memory_server
from transport import (
    CallFailed,
    Client,
    ConnectionLost,
    Handler,
    Server,
    ServerStream,
    StallReason,
    StallTimes,
    StatusCode,
    Stream,
    TransportConfig,
)

ROOMY = TransportConfig(send_buffer_bytes=2_000, ping_interval_s=0, send_timeout_s=1_000)
NARROW = replace(ROOMY, stream_window_bytes=1_000)
MESSAGE = bytes(500)


def rounded(times: StallTimes | None) -> dict[str, float]:
    """Seconds by label, without zeros."""
    assert times is not None
    return {name: round(value, 6) for name, value in times.to_dict().items() if round(value, 6)}


async def flood(stream: ServerStream) -> None:
    """Ten messages, more than any buffer of these tests holds."""
    await stream.receive()
    for _ in range(10):
        await stream.send(MESSAGE)


async def drained(stream: Stream) -> None:
    """Take every message to the end."""
    while await stream.receive() is not None:
        pass


def only(server: Server) -> ServerStream:
    """The server's end of the one call."""
    (stream,) = server.running()
    return stream


@contextlib.asynccontextmanager
async def pair(
    clock: trio.testing.MockClock, handlers: Mapping[str, Handler], config: TransportConfig | None = None
) -> AsyncIterator[tuple[Client, Server, FaultyStream]]:
    """A client and a server over memory, and the server's stream. Time stands still until the block ends."""
    async with memory_pair(handlers, config) as (client, server, _, theirs):
        yield client, server, theirs
        theirs.unclog()
        clock.autojump_threshold = 0  # a goodbye may have to be given up


async def later(clock: trio.testing.MockClock, seconds: float) -> None:
    """Let everything happen that can, then time go by."""
    await trio.testing.wait_all_tasks_blocked()
    clock.jump(seconds)


async def test_a_client_that_does_not_take_its_messages(mock_clock: trio.testing.MockClock) -> None:
    """The server waits for the stream's window; the client's own account says that its consumer is slow."""
    async with pair(mock_clock, {"/flood": flood}, NARROW) as (client, server, _):
        async with client.open_stream("/flood") as stream:
            await stream.send(b"")
            await later(mock_clock, 3)
            statistics = only(server).statistics()
            assert statistics.stall is StallReason.STREAM_WINDOW
            assert (statistics.age_s, statistics.send_window) == (3, 0)
            assert rounded(statistics.stalls) == {"stream_window": 3}
            assert rounded(stream.stalls()) == {"consumer": 3}
            await drained(stream)
            assert rounded(stream.peer_stalls) == {"stream_window": 3}
            assert rounded(stream.stalls()) == {"consumer": 3}
        assert rounded(server.statistics().totals.stalls) == {"stream_window": 3}


async def test_a_network_that_takes_nothing(mock_clock: trio.testing.MockClock) -> None:
    """With open windows, octets that do not go out wait for the socket; the client waits for its peer."""
    async with pair(mock_clock, {"/flood": flood}, ROOMY) as (client, server, theirs):
        async with client.open_stream("/flood") as stream:
            await stream.send(b"")
            theirs.clog()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(drained, stream)
                await later(mock_clock, 5)
                assert only(server).stall is StallReason.SOCKET
                theirs.unclog()
            assert rounded(stream.peer_stalls) == {"socket": 5}
            assert rounded(stream.stalls()) == {"peer": 5}


async def test_a_connection_window_that_is_used_up(mock_clock: trio.testing.MockClock) -> None:
    """What the connection's window held up is told apart from the socket's part, in the trailers, too."""
    big = bytes(60_000)

    async def send_two(stream: ServerStream) -> None:
        for _ in range(3):
            await stream.send(big)

    async with memory_server({"/test.Test/Method": send_two}, ROOMY) as memory:
        window = wire.settings((wire.INITIAL_WINDOW_SIZE, 1 << 20))
        await memory.peer.send(wire.PREFACE, window, wire.settings(ack=True), wire.headers(1))
        await later(mock_clock, 4)
        stream = only(memory.server)
        assert stream.stall is StallReason.CONNECTION_WINDOW
        assert stream.statistics().connection_send_window == 0
        await memory.peer.send(wire.window_update(0, 1 << 20))
        await memory.peer.settle()
        assert rounded(stream.stalls()) == {"connection_window": 4}
        mock_clock.autojump_threshold = 0


async def test_waits_that_only_the_handler_knows(mock_clock: trio.testing.MockClock) -> None:
    """Credit and storage are named by the handler; listening beside the work is no stall."""
    granted, read = trio.Event(), trio.Event()

    async def scan(stream: ServerStream) -> None:
        async with trio.open_nursery() as nursery:

            async def listen() -> None:
                await stream.receive(attributed=False)

            nursery.start_soon(listen)
            await stream.wait_credit()
            with stream.blocked_on(StallReason.STORAGE):
                await read.wait()
            await granted.wait()
            nursery.cancel_scope.cancel()
        await stream.send(b"done")

    async with pair(mock_clock, {"/scan": scan}) as (client, server, _):
        async with client.open_stream("/scan") as stream:
            await later(mock_clock, 1)
            only(server).credit.raise_limit(10)
            await later(mock_clock, 2)
            read.set()
            await later(mock_clock, 4)
            granted.set()
            await drained(stream)
            assert rounded(stream.peer_stalls) == {"credit": 1, "storage": 2, "running": 4}


async def test_a_server_that_waits_for_its_client(mock_clock: trio.testing.MockClock) -> None:
    """Waiting for a request is the peer's time, at the server as at the client."""
    async with pair(mock_clock, {"/flood": flood}, ROOMY) as (client, *_):
        async with client.open_stream("/flood") as stream:
            await later(mock_clock, 6)
            await stream.send(b"")
            await drained(stream)
            assert rounded(stream.peer_stalls) == {"peer": 6}
            assert rounded(stream.stalls()) == {"running": 6}


async def test_a_wait_for_the_client_that_is_given_up(mock_clock: trio.testing.MockClock) -> None:
    """It was the peer's time up to there, though nothing came."""
    given_up = trio.CancelScope()

    async def wait(stream: ServerStream) -> None:
        with given_up:
            await stream.receive()

    async with pair(mock_clock, {"/wait": wait}) as (client, *_):
        async with client.open_stream("/wait") as stream:
            await later(mock_clock, 3)
            given_up.cancel()
            await drained(stream)
            assert rounded(stream.peer_stalls) == {"peer": 3}


async def test_the_time_to_send_the_rest_counts(mock_clock: trio.testing.MockClock) -> None:
    """A handler that has returned leaves octets behind; until they are out the stream goes on waiting."""

    async def leave(stream: ServerStream) -> None:
        await stream.send(bytes(1_500))

    async with pair(mock_clock, {"/leave": leave}, NARROW) as (client, server, _):
        async with client.open_stream("/leave") as stream:
            await later(mock_clock, 7)
            assert only(server).stall is StallReason.STREAM_WINDOW
            await drained(stream)
            assert rounded(stream.peer_stalls) == {"stream_window": 7}


async def test_a_failed_call_tells_as_well(mock_clock: trio.testing.MockClock) -> None:
    """Trailers without an answer before them carry the account, too."""
    refused = trio.Event()

    async def refuse(_stream: ServerStream) -> None:
        await refused.wait()
        raise CallFailed(StatusCode.NOT_FOUND, "no")

    async with pair(mock_clock, {"/refuse": refuse}) as (client, *_):
        async with client.open_stream("/refuse") as stream, trio.open_nursery() as nursery:

            async def receive() -> None:
                with pytest.raises(CallFailed):
                    await stream.receive()

            nursery.start_soon(receive)
            await later(mock_clock, 2)
            refused.set()
        assert rounded(stream.peer_stalls) == {"running": 2}
        assert rounded(stream.stalls()) == {"peer": 2}


async def test_a_call_that_is_cut_off_stops_counting(mock_clock: trio.testing.MockClock) -> None:
    """A reset ends both accounts at its moment."""
    async with pair(mock_clock, {"/flood": flood}, NARROW) as (client, server, _):
        async with client.open_stream("/flood") as stream:
            await stream.send(b"")
            await later(mock_clock, 3)
            theirs = only(server)
        await later(mock_clock, 10)
        assert rounded(stream.stalls()) == {"consumer": 3}
        assert rounded(theirs.stalls()) == {"stream_window": 3}
        assert theirs.statistics().age_s == 3


@pytest.mark.parametrize("end", ["theirs", "failed write", "ours"])
async def test_a_call_that_ends_with_its_connection_counts_up_to_then(
    end: str, mock_clock: trio.testing.MockClock
) -> None:
    """However long both were silent before: nobody had told the core the time since."""

    async def silent(_stream: ServerStream) -> None:
        await trio.sleep_forever()

    async with memory_pair({"/silent": silent}, ROOMY) as (client, _, ours, theirs):
        async with client.open_stream("/silent") as stream, trio.open_nursery() as nursery:

            async def receive() -> None:
                with pytest.raises(ConnectionLost):
                    await stream.receive()

            nursery.start_soon(receive)
            await trio.testing.wait_all_tasks_blocked()
            if end == "failed write":
                ours.clog()
                await stream.send(MESSAGE)
            await later(mock_clock, 9)
            if end == "theirs":
                nursery.start_soon(theirs.aclose)
            elif end == "failed write":
                assert isinstance(ours.inner, trio.StapledStream)
                await ours.inner.send_stream.aclose()
                ours.unclog()
            else:
                client._driver.close()
        mock_clock.autojump_threshold = 0
        assert stream.statistics().age_s == 9
        assert stream.stalls().total_s == 9


script = st.lists(
    st.tuples(st.sampled_from(["send", "take", "clog", "unclog", "credit", "nothing"]), st.integers(0, 5)),
    max_size=15,
)


@given(script=script, narrow=st.booleans())
def test_every_account_adds_up_to_wall_time(script: list[tuple[str, int]], narrow: bool) -> None:
    """Over any course of a call, each end's times add up to the call's age, at each moment and at its end."""
    clock = trio.testing.MockClock()

    async def serve_some(stream: ServerStream) -> None:
        while await stream.receive() is not None:
            await stream.wait_credit()
            with stream.blocked_on(StallReason.STORAGE):
                await trio.lowlevel.checkpoint()
            await stream.send_counted(bytes(1_500))

    async def main() -> None:
        config = NARROW if narrow else ROOMY
        async with pair(clock, {"/some": serve_some}, config) as (client, server, theirs):
            async with client.open_stream("/some") as stream:
                opened_at = trio.current_time()
                await trio.testing.wait_all_tasks_blocked()
                ours = only(server)
                for step, seconds in script:
                    if step == "send":
                        with trio.move_on_after(0):
                            await stream.send(b"more")
                    elif step == "take":
                        with trio.move_on_after(0):
                            await stream.receive()
                    elif step == "credit":
                        ours.credit.raise_limit(ours.credit.sent + 2_000)
                    elif step in {"clog", "unclog"}:
                        getattr(theirs, step)()
                    await later(clock, seconds)
                    for end in (stream, ours):
                        age_s = trio.current_time() - opened_at
                        assert math.isclose(end.stalls().total_s, age_s, abs_tol=1e-6)
                        assert math.isclose(end.statistics().age_s, age_s, abs_tol=1e-6)

    trio.run(main, clock=clock)
