"""How connections begin and end: handshake, drain, dead peers, peers that do not read, do not close, or break rules."""

from __future__ import annotations

import errno
import logging
import re
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from bench.simulation.network import Network
from bench.simulation.pipes import Line
from tests.support import wire
from tests.support.certificates import server_tls
from tests.support.configs import TINY
from tests.support.faults import RawPeer, memory_pair, memory_server
from tests.transport.test_shell import check_echo, echo
from transport import (
    CallFailed,
    ConnectionLost,
    Server,
    ServerStream,
    StatusCode,
    StreamRefused,
    StreamUnprocessed,
    TransportConfig,
    connect,
    connect_stream,
    serve,
    unary,
)
from transport.errors import ErrorCode
from transport.log_rate import LineRate, RatedLog
from transport.protocol.connection import ConnectionCore


async def wait_for_ever(stream: ServerStream) -> None:
    await stream.send(b"started")
    await trio.sleep_forever()


async def test_drain_lets_running_calls_finish() -> None:
    """Draining refuses new calls, answers the running one, and ends the connection of a client that stays."""
    async with memory_pair({"/echo": echo}) as (client, server, *_), trio.open_nursery() as nursery:
        async with client.open_stream("/echo") as stream:
            await stream.send(b"before")
            assert await stream.receive() == b"before"
            drained: list[bool] = []

            async def drain() -> None:
                drained.append(await server.drain(60))

            nursery.start_soon(drain)
            await trio.testing.wait_all_tasks_blocked()
            assert not client.alive
            with pytest.raises(StreamRefused):
                await client.call("/echo", b"")
            await stream.send(b"after")
            assert await stream.receive() == b"after"
            assert drained == []
            await stream.send_end()
            assert await stream.receive() is None
        await trio.testing.wait_all_tasks_blocked()
        assert drained == [True]
        with pytest.raises(ConnectionLost, match="NO_ERROR"):
            await client.call("/echo", b"")


async def test_a_message_without_memory_for_it_ends_its_connection_alone() -> None:
    """Where a client has no memory for what comes, its call says so; what is around the connection goes on."""

    def allocate(size: int) -> bytearray:
        raise MemoryError(f"malloc of size {size} failed")

    async with (
        serve({"/echo": echo}) as server,
        connect(server.host, server.port, allocate=allocate) as client,
        client.open_stream("/echo") as stream,
    ):
        await stream.send(bytes(TransportConfig().write_bytes_max))
        with pytest.raises(ConnectionLost, match="no memory"):
            await stream.receive()
        assert not client.alive
        async with connect(server.host, server.port) as another:
            await check_echo(another)


@pytest.mark.parametrize("calls", [1, 2], ids=["by its caller", "by the writer"])
@pytest.mark.parametrize("at_client", [True, False], ids=["client", "server"])
async def test_octets_without_memory_for_them_end_their_connection(
    at_client: bool,
    calls: int,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Nothing goes on behind octets that either end has no memory for; the call waited for ever."""
    short = False
    data_to_send = ConnectionCore.data_to_send

    def take(core: ConnectionCore, size: int) -> list[Any]:
        taken = data_to_send(core, size)
        if taken and short and core.client is at_client:
            raise MemoryError
        return taken

    async def answer(_request: bytes, _stream: ServerStream) -> bytes:
        nonlocal short
        short = True
        return b""

    monkeypatch.setattr(ConnectionCore, "data_to_send", take)
    async with memory_pair({"/call": unary(answer)}) as (client, *_), AsyncExitStack() as others:
        for _ in range(calls - 1):
            await others.enter_async_context(client.open_stream("/call"))
        await trio.testing.wait_all_tasks_blocked()
        short = at_client
        with trio.fail_after(1_000), pytest.raises(ConnectionLost):
            await client.call("/call", b"")


async def test_drain_ends_an_idle_connection() -> None:
    """An idle client that keeps its connection does not hold a drain up."""
    async with memory_pair({"/echo": echo}) as (client, server, *_):
        await check_echo(client)
        assert await server.drain(60)
        assert server.statistics().connections == 0
        assert not client.alive


async def test_drain_gives_up_in_time(autojump_clock: trio.testing.MockClock) -> None:
    """A call that does not end, and a peer that does not answer, hold a drain for four fifths of its limit."""
    async with memory_pair({"/wait": wait_for_ever}) as (client, server, *_):
        async with client.open_stream("/wait") as stream:
            assert await stream.receive() == b"started"
            start = trio.current_time()
            assert not await server.drain(7)
            assert trio.current_time() - start == pytest.approx(0.8 * 7)


async def test_drain_is_two_goaways_around_a_round_trip() -> None:
    """A request that crosses the first GOAWAY is taken, one that comes behind its acknowledgement is refused."""
    async with memory_server({"/test.Test/Method": echo}) as memory, trio.open_nursery() as nursery:
        peer = memory.peer
        await peer.send(wire.CLIENT_HELLO, wire.headers(1, end=True))
        await peer.settle()
        nursery.start_soon(memory.server.drain, 60)
        frames = await peer.settle()
        assert [frame.number for frame in wire.only(frames, wire.GOAWAY)] == [2**31 - 1]
        closed = [peer.closed]
        ping = wire.only(frames, wire.PING)[0]
        await peer.send(wire.headers(3), wire.ping(ping.payload, ack=True), wire.headers(5))
        frames = await peer.settle()
        assert [frame.number for frame in wire.only(frames, wire.GOAWAY)] == [3]
        assert wire.only(frames, wire.RST_STREAM, 5)[0].code == ErrorCode.REFUSED_STREAM
        closed.append(peer.closed)
        await peer.send(wire.data(3, wire.message(b"taken"), end=True))
        frames = await peer.settle()
        assert wire.only(frames, wire.DATA, 3)[0].payload == wire.message(b"taken")
        assert [*closed, peer.closed] == [False, False, True]
        await peer.stream.aclose()


async def test_connection_accepted_during_a_drain_is_drained() -> None:
    """A connection whose handshake ends after the drain began says goodbye at once."""
    server = Server({"/echo": echo}, TransportConfig())
    assert await server.drain(1)
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.handle_connection, theirs)
        peer = RawPeer(ours)
        await peer.send(wire.CLIENT_HELLO)
        assert wire.only(await peer.settle(), wire.GOAWAY)
        nursery.cancel_scope.cancel()


async def test_silent_server_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    """A server that falls silent is dead after the PING's timeout; who waits for it is told."""
    ours, theirs = trio.testing.memory_stream_pair()
    peer = RawPeer(theirs)
    config = TransportConfig(ping_interval_s=20, ping_timeout_s=10)
    await peer.send(wire.SERVER_HELLO)
    async with connect_stream(ours, config=config) as client, client.open_stream("/x") as stream:
        start = trio.current_time()
        with pytest.raises(ConnectionLost, match="silent for 30 s"):
            await stream.receive()
        assert trio.current_time() - start == pytest.approx(30)
        with pytest.raises(ConnectionLost, match="silent"):
            await client.call("/x", b"")


async def test_silent_client_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    """A server gives up a client that does not answer its PING, and cancels its calls."""
    async with memory_server({"/wait": wait_for_ever}) as memory:
        peer = memory.peer
        await peer.send(
            wire.CLIENT_HELLO, wire.headers(1, [*wire.REQUEST[:2], (":path", "/wait"), *wire.REQUEST[3:]])
        )
        await peer.settle()
        assert memory.server.statistics().streams == 1
        start = trio.current_time()
        with trio.fail_after(40):
            await memory.ended.wait()
        assert 30 <= trio.current_time() - start < 35
        assert memory.server.statistics().streams == 0
        kinds = [frame.kind for frame in await peer.settle()]
        assert kinds == [wire.PING, wire.GOAWAY]


@pytest.mark.parametrize("hello", [b"", wire.PREFACE, wire.PREFACE + wire.settings()])
async def test_slow_handshake_is_ended(hello: bytes, autojump_clock: trio.testing.MockClock) -> None:
    """A client that does not complete the handshake is closed after its limit, even if it does not close."""
    async with memory_server({}) as memory:
        await memory.peer.send(hello)
        with trio.fail_after(TransportConfig().handshake_timeout_s + 3):
            await memory.ended.wait()


async def test_header_block_deadline_is_kept_without_pings(autojump_clock: trio.testing.MockClock) -> None:
    """A header block that never ends is noticed although nothing else would wake the connection."""
    async with memory_server({}, TransportConfig(ping_interval_s=0)) as memory:
        peer = memory.peer
        await peer.send(wire.CLIENT_HELLO)
        await peer.settle()
        await peer.send(wire.headers(1, end_headers=False))
        with trio.fail_after(12):
            await peer.stream.receive_some(1 << 16)


async def test_opener_is_told_when_the_server_goes_before_its_settings() -> None:
    """A call that waits for the server's SETTINGS fails when the server closes, or breaks the rules, instead."""
    for octets in (b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", wire.ping()):
        ours, theirs = trio.testing.memory_stream_pair()
        async with connect_stream(ours) as client, trio.open_nursery() as nursery:

            async def call(client: object = client) -> None:
                with pytest.raises(ConnectionLost):
                    await client.call("/x", b"")  # type: ignore[attr-defined]

            nursery.start_soon(call)
            await trio.testing.wait_all_tasks_blocked()
            if octets:
                await theirs.send_all(octets)
            await theirs.aclose()


async def test_openers_are_told_of_goaway() -> None:
    """A call that waits for a free stream is refused when the server says goodbye."""
    ours, theirs = trio.testing.memory_stream_pair()
    peer = RawPeer(theirs)
    async with connect_stream(ours) as client, trio.open_nursery() as nursery:
        await peer.send(wire.settings((wire.MAX_CONCURRENT_STREAMS, 0)), wire.settings(ack=True))

        async def call() -> None:
            with pytest.raises(StreamRefused):
                await client.call("/x", b"")

        nursery.start_soon(call)
        await trio.testing.wait_all_tasks_blocked()
        await peer.send(wire.goaway(0))
        await peer.stream.aclose()


async def test_openers_share_the_servers_limit() -> None:
    """More calls than the server allows at once all succeed, one after another."""
    config = TransportConfig(streams_max=2)
    async with memory_pair({"/echo": echo}, config) as (client, *_), trio.open_nursery() as nursery:
        for _ in range(30):
            nursery.start_soon(check_echo, client)


async def test_openers_whose_line_stands_are_told(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A call that waits for calls which do not end goes on waiting, and the log says so, once."""
    config = TransportConfig(streams_max=1)
    async with (
        memory_pair({"/wait": wait_for_ever}, config) as (client, *_),
        client.open_stream("/wait") as stream,
    ):
        await stream.send(b"")
        assert await stream.receive() == b"started"
        for waited_s, lines in ((29, 0), (100, 1), (100, 1)):
            with trio.move_on_after(waited_s) as scope:
                await client.call("/wait", b"")
            assert scope.cancelled_caught
            assert ["allows 1 at once" in each.getMessage() for each in caplog.records] == [True] * lines


@pytest.mark.parametrize("_again", range(8))  # trio runs tasks that wake together in either order
async def test_openers_have_their_turns_in_order(_again: int) -> None:
    """Calls that wait for the server's limit are opened first come, first served, whoever gives up or comes late."""
    config = TransportConfig(streams_max=1)
    opened: list[int] = []
    async with memory_pair({"/echo": echo}, config) as (client, *_), trio.open_nursery() as nursery:
        scopes = [trio.CancelScope() for _ in range(6)]

        async def call(number: int) -> None:
            with scopes[number]:
                async with client.open_stream("/echo") as stream:
                    opened.append(number)
                    await stream.send_end()
                    assert await stream.receive() is None

        async with client.open_stream("/echo") as first:
            for number in range(5):
                nursery.start_soon(call, number)
                await trio.testing.wait_all_tasks_blocked()
            scopes[0].cancel()
            scopes[2].cancel()
            await trio.testing.wait_all_tasks_blocked()
            await first.send_end()
            assert await first.receive() is None
            nursery.start_soon(call, 5)
    assert opened == [1, 3, 4, 5]


async def test_client_that_does_not_read_is_cut_off(autojump_clock: trio.testing.MockClock) -> None:
    """A write of which nothing is taken for `send_timeout_s` ends the connection and its handlers."""
    async with memory_server({}, TransportConfig(send_timeout_s=30, ping_interval_s=0)) as memory:
        await memory.peer.send(wire.CLIENT_HELLO)
        await memory.peer.settle()
        memory.theirs.clog()
        await memory.peer.send(wire.ping())
        start = trio.current_time()
        await memory.ended.wait()
        assert 30 <= trio.current_time() - start < 35


async def test_rule_breaker_that_neither_reads_nor_closes_is_cut_off(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """After a violation a connection is gone within seconds, though the writer is stuck in a write."""
    async with memory_server({}) as memory:
        await memory.peer.send(wire.CLIENT_HELLO)
        await memory.peer.settle()
        memory.theirs.clog()
        await memory.peer.send(wire.ping())
        await trio.testing.wait_all_tasks_blocked()
        await memory.peer.send(wire.data(0, b"violation"))
        start = trio.current_time()
        await memory.ended.wait()
        assert trio.current_time() - start < 5


async def test_goodbye_is_told_and_bounded(autojump_clock: trio.testing.MockClock) -> None:
    """A client that breaks a rule gets its GOAWAY, and does not hold the connection by not closing."""
    async with memory_server({}) as memory:
        peer = memory.peer
        await peer.send(wire.CLIENT_HELLO, wire.window_update(0, 0))
        frames = await peer.settle()
        assert wire.only(frames, wire.GOAWAY)[0].code == ErrorCode.PROTOCOL_ERROR
        with trio.fail_after(5):
            await memory.ended.wait()


async def test_server_ends_with_a_client_that_says_goodbye() -> None:
    """A client that has failed, and has no calls, is not waited for, though its stream cannot be half-closed."""
    async with memory_server({"/echo": echo}) as memory:
        peer = memory.peer
        await peer.send(wire.CLIENT_HELLO)
        await peer.settle()
        await peer.send(wire.goaway(0, ErrorCode.INTERNAL_ERROR))
        await peer.settle()
        assert peer.closed
        await peer.stream.aclose()
        await memory.ended.wait()


async def test_closing_while_calls_run() -> None:
    """A client that leaves its block with a call open on the other side takes the handler with it."""
    ended = trio.Event()

    async def wait(stream: ServerStream) -> None:
        try:
            await wait_for_ever(stream)
        finally:
            ended.set()

    async with trio.open_nursery() as nursery:
        async with memory_pair({"/wait": wait}) as (client, *_):

            async def call() -> None:
                async with client.open_stream("/wait") as stream:
                    assert await stream.receive() == b"started"
                    with pytest.raises(ConnectionLost):
                        await stream.receive()

            nursery.start_soon(call)
            await trio.testing.wait_all_tasks_blocked()
        await ended.wait()


async def test_cancel_while_goodbye() -> None:
    """Cancelling a client that waits for its server to close ends it at once."""
    ours, theirs = trio.testing.memory_stream_pair()
    with trio.move_on_after(30) as scope:
        async with connect_stream(ours) as client:
            assert client.alive
            await theirs.send_all(wire.SERVER_HELLO)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    await theirs.aclose()
    assert scope.cancelled_caught


async def test_cancelled_calls_count_until_they_have_stopped() -> None:
    """Handlers that are slow to stop after a reset use up the limit: calls opened in their place wait, not refused."""
    release = trio.Event()
    begun = running = 0

    async def stubborn(_stream: ServerStream) -> None:
        nonlocal begun, running
        begun += 1
        running += 1
        with trio.CancelScope(shield=True):
            await release.wait()
        running -= 1

    config = TransportConfig(streams_max=3)
    path = [*wire.REQUEST[:2], (":path", "/stubborn"), *wire.REQUEST[3:]]
    async with memory_server({"/stubborn": stubborn}, config) as memory:
        peer = memory.peer
        await peer.send(wire.CLIENT_HELLO)
        for stream_id in range(1, 41, 2):
            await peer.send(wire.headers(stream_id, path))
            await trio.testing.wait_all_tasks_blocked()
            await peer.send(wire.reset(stream_id))
        await peer.send(*(wire.headers(stream_id, path) for stream_id in (41, 43, 45)))
        frames = await peer.settle()
        while_held = begun, running
        release.set()
        ended = await peer.settle()
        assert while_held == (3, 3)
        assert not wire.only(frames, wire.GOAWAY) + wire.only(frames, wire.RST_STREAM)
        assert {frame.stream_id for frame in wire.only(ended, wire.HEADERS)} == {41, 43, 45}
        assert (begun, running) == (6, 0)


async def test_a_handler_that_does_not_listen_stops_when_a_message_is_refused() -> None:
    """Its call has ended then, and who only waits to send would never learn of it: it would count for ever."""
    running = 0

    async def deaf(stream: ServerStream) -> None:
        nonlocal running
        running += 1
        try:
            await wait_for_ever(stream)
        finally:
            running -= 1

    async with memory_server({"/test.Test/Method": deaf}) as memory:
        peer = memory.peer
        await peer.send(wire.CLIENT_HELLO, wire.headers(1))
        await peer.settle()
        assert running == 1
        await peer.send(wire.data(1, b"\x01\x00\x00\x00\x01x"), wire.reset(1))
        await peer.settle()
        assert running == 0


async def test_deadline_of_the_request_is_kept_by_the_server(autojump_clock: trio.testing.MockClock) -> None:
    """grpc-timeout ends a call at the server, whatever the client does."""
    async with memory_server({"/test.Test/Method": wait_for_ever}) as memory:
        peer = memory.peer
        await peer.send(wire.CLIENT_HELLO, wire.headers(1, [*wire.REQUEST, ("grpc-timeout", "1500m")]))
        await peer.settle()
        assert memory.server.statistics().streams == 1
        with trio.move_on_after(2):
            await trio.sleep_forever()
        assert memory.server.statistics().streams == 0
        frames = await peer.settle()
        assert [bool(frame.flags & wire.END_STREAM) for frame in wire.only(frames, wire.HEADERS, 1)] == [True]


async def test_exception_in_the_block_comes_out_as_itself() -> None:
    """What a client's block raises is not wrapped, and the connection is closed."""
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(Server({}, TINY).handle_connection, theirs))
        with pytest.raises(CallFailed, match="mine"):
            async with connect_stream(ours):
                raise CallFailed(StatusCode.ABORTED, "mine")


class FullListener(trio.abc.Listener[trio.abc.Stream]):
    """One that has no descriptors left."""

    def __init__(self) -> None:
        self.refusals = 0
        self.refused_often = trio.Event()

    async def accept(self) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        self.refusals += 1
        if self.refusals == 20:
            self.refused_often.set()
        raise OSError(errno.EMFILE, "Too many open files")

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


async def test_want_of_descriptors_is_one_line(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections that cannot be accepted are tried again, and logged now and then, without a traceback."""
    (now_and_then,) = logging.getLogger("trio.serve_listeners").filters
    # Another test of this process may have been told a moment ago.
    monkeypatch.setattr(now_and_then, "_rate", LineRate())
    listener = FullListener()
    async with serve({}, listener=listener):
        await listener.refused_often.wait()
    (line,) = (each for each in caplog.records if each.name == "trio.serve_listeners")
    assert "EMFILE" in line.getMessage()
    assert line.exc_info is None


async def test_a_connection_too_many_is_told_so_behind_its_first_call(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Its call was not processed, and it takes nobody's room while its end is waited for. The log has a line.

    Of many that are turned away it has one in ten seconds.
    """
    caplog.set_level(logging.INFO, "weir.transport")
    network = Network(lambda _connection, _fault: None)
    config = TransportConfig(connections_max=1)
    async with serve({"/echo": echo}, listener=network.listen(), config=config) as server:
        async with connect_stream(await network.dial("first", Line())) as first:
            await check_echo(first)
            async with connect_stream(await network.dial("second", Line())) as second:
                with pytest.raises(StreamUnprocessed, match="too many connections"):
                    await second.call("/echo", b"")
            idle = await network.dial("third", Line())
            silent = [await network.dial("more", Line()) for _ in range(200)]
        async with connect_stream(await network.dial("fourth", Line())) as fourth:
            await check_echo(fourth)
        # Neither reads nor closes: told in time, and closed; of many at once some without a word.
        assert b"".join([octets async for octets in idle]) == wire.settings() + wire.goaway(
            0, ErrorCode.ENHANCE_YOUR_CALM, b"too many connections"
        )
        assert await silent[-1].receive_some() == b""
        assert server.admission.turned_away == 202
        autojump_clock.jump(10)
        async with connect_stream(await network.dial("fifth", Line())):
            await network.dial("sixth", Line())
            await network.dial("seventh", Line())
            await trio.testing.wait_all_tasks_blocked()
    lines = [line for line in caplog.messages if "turned away" in line]
    assert lines == [
        f"connection of memory turned away: too many connections{more}"
        for more in ("", "; 201 more like it since the last line")
    ]


async def test_a_broken_rule_has_a_line_now_and_then(
    mock_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """However often clients break one, the log has one line in ten seconds; another rule has its own."""
    caplog.set_level(logging.INFO, "weir.transport")
    network = Network(lambda _connection, _fault: None)

    async def break_a_rule(octets: bytes) -> None:
        async with await network.dial("one", Line()) as connection:
            await connection.send_all(wire.PREFACE + wire.settings() + octets)
            while await connection.receive_some():
                pass
        await trio.testing.wait_all_tasks_blocked()

    async with serve({}, listener=network.listen()):
        for _ in range(3):
            await break_a_rule(wire.data(0, b"of no stream"))
        await break_a_rule(wire.ping(b"short"))
        mock_clock.jump(10)
        await break_a_rule(wire.data(0, b"of no stream"))
    lines = [line.removeprefix("connection of memory ended: ") for line in caplog.messages]
    data, ping, again = lines
    assert ping != data
    assert again == f"{data}; 2 more like it since the last line"


async def test_plaintext_at_a_tls_port_has_a_line_now_and_then(
    tmp_path: Path, mock_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Handshakes that fail, and requests in HTTP/1, are logged so, too."""
    caplog.set_level(logging.INFO, "weir.transport")

    async def ask(server: Server) -> None:
        async with await trio.open_tcp_stream(server.host, server.port) as raw:
            await raw.send_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            while await raw.receive_some():
                pass
        await trio.testing.wait_all_tasks_blocked()  # The server may write its line behind its last octet.

    for tls in (server_tls(tmp_path), None):
        async with serve({}, ssl_context=tls) as server:
            for _ in range(3):
                await ask(server)
            mock_clock.jump(10)
            await ask(server)
    assert [re.sub(r"127.0.0.1:\d+", "PEER", line) for line in caplog.messages] == [
        "TLS handshake with PEER failed: the peer does not speak TLS",
        "TLS handshake with PEER failed: the peer does not speak TLS; 2 more like it since the last line",
        "connection of PEER refused: its client speaks HTTP/1",
        "connection of PEER refused: its client speaks HTTP/1; 2 more like it since the last line",
    ]


def test_a_clock_that_is_set_back_silences_no_line() -> None:
    """Lines of trio have the machine's time, which may jump by years."""
    rate = LineRate()
    assert [rate.due(now) for now in (5000.0, 5009.0, 100.0, 109.0, 110.0)] == [
        True,
        False,
        True,
        False,
        True,
    ]
    assert rate.take_unwritten() == 2


def test_lines_of_many_kinds_are_one_kind(caplog: pytest.LogCaptureFixture) -> None:
    """A peer that brings about ever new reasons fills neither the log nor the memory; numbers make no new kind."""
    caplog.set_level(logging.INFO, "weir.transport")
    log = RatedLog(logging.getLogger("weir.transport"))
    for number in range(1000):
        log.info(0, "connection of %s ended", "peer", "x" * number)
        log.info(0, "connection of %s ended", "peer", f"stream {number}")
    assert len(caplog.messages) == 65
    assert len([line for line in caplog.messages if "stream" in line]) == 1
    log.info(9.9, "connection of %s ended", "peer", "x" * 1000)
    assert len(caplog.messages) == 65
    log.info(10, "connection of %s ended", "peer", "x" * 1001)
    assert caplog.messages[-1].endswith("; 937 more like it since the last line")


async def test_a_connection_too_many_that_sends_much_is_turned_away_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """No honest client sends so much before it hears of a server's windows, and reading it is work."""
    network = Network(lambda _connection, _fault: None)
    config = TransportConfig(connections_max=1)
    async with serve({"/echo": echo}, listener=network.listen(), config=config):
        await network.dial("first", Line())
        flooding = await network.dial("flooding", Line())
        began = trio.current_time()
        with pytest.raises(trio.BrokenResourceError):
            for _ in range(100):
                await flooding.send_all(bytes(64 * 1024))
        assert trio.current_time() == began
