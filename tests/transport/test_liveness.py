"""Dead, slow and idle are three things: a dead peer is released in time, a slow one never, an idle one politely."""

from __future__ import annotations

import pytest
import trio
import trio.testing

import transport
from tests.support import wire
from tests.support.faults import memory_pair, memory_server
from tests.transport.test_shell import check_echo, echo
from transport import ConnectionLost, ServerStream, TransportConfig
from transport.byte_streams import StreamBytes
from transport.errors import ErrorCode
from transport.protocol.liveness import Acknowledged

IDLE = TransportConfig(idle_timeout_s=100)
GOODBYE_S = 2.0


def alive(client: transport.Client) -> bool:
    """Whether new calls can be made, now; asked anew each time."""
    return client.alive


async def pass_time(seconds: float) -> None:
    """Let a virtual clock run."""
    with trio.move_on_after(seconds):
        await trio.sleep_forever()


async def test_idle_connection_is_drained(autojump_clock: trio.testing.MockClock) -> None:
    """Without a call for `idle_timeout_s` a connection ends with a GOAWAY, keepalive answered or not."""
    async with memory_pair({"/echo": echo}, IDLE) as (client, server, *_):
        await check_echo(client)
        await pass_time(99)
        assert alive(client)
        await pass_time(2)
        assert not alive(client)
        assert server.statistics().connections == 0
        with pytest.raises(ConnectionLost, match="NO_ERROR"):
            await client.call("/echo", b"")


async def test_idle_clock_starts_with_the_end_of_the_last_call(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A connection with a call is not idle, however quiet; its time runs from the end of the call."""
    ended = trio.Event()

    async def wait(stream: ServerStream) -> None:
        await stream.send(b"started")
        await ended.wait()

    async with memory_pair({"/wait": wait, "/echo": echo}, IDLE) as (client, server, *_):
        async with client.open_stream("/wait") as stream:
            await stream.send(b"wait")
            assert await stream.receive() == b"started"
            await pass_time(1_000)
            ended.set()
            assert await stream.receive() is None
        await pass_time(75)
        assert alive(client)
        await check_echo(client)
        await pass_time(75)
        assert alive(client)
        await pass_time(26)
        assert not alive(client)
        assert server.statistics().connections == 0


async def test_idle_clock_needs_no_keepalive(autojump_clock: trio.testing.MockClock) -> None:
    """Where nothing is heard since the end of a call, the idle limit counts from that end."""
    config = TransportConfig(idle_timeout_s=100, ping_interval_s=0)
    ended = trio.Event()

    async def wait(_stream: ServerStream) -> None:
        await ended.wait()

    async with memory_pair({"/wait": wait}, config) as (client, *_):
        async with client.open_stream("/wait") as stream:
            await stream.send(b"wait")
            await pass_time(1_000)
            ended.set()
            assert await stream.receive() is None
        await pass_time(99)
        assert alive(client)
        await pass_time(2)
        assert not alive(client)


async def test_idle_timeout_can_be_switched_off(autojump_clock: trio.testing.MockClock) -> None:
    """0 keeps an idle connection for ever."""
    config = TransportConfig(
        idle_timeout_s=0, ping_interval_s=100
    )  # By default two thousand PINGs pass meanwhile.
    async with memory_pair({"/echo": echo}, config) as (client, *_):
        await pass_time(10_000)
        await check_echo(client)


async def test_idle_peer_that_does_not_go_is_cut_off(autojump_clock: trio.testing.MockClock) -> None:
    """A client that stays after the goodbye, without calls, has the handshake's time to go."""
    config = TransportConfig(idle_timeout_s=100, ping_interval_s=0, handshake_timeout_s=10)
    async with memory_server({}, config) as memory:
        await memory.peer.send(wire.CLIENT_HELLO)
        await memory.peer.settle()
        await pass_time(101)
        frames = await memory.peer.settle()
        assert [frame.number for frame in wire.only(frames, wire.GOAWAY)] == [2**31 - 1]
        assert not memory.ended.is_set()
        start = trio.current_time()
        with trio.fail_after(10 + GOODBYE_S):
            await memory.ended.wait()
        assert trio.current_time() - start > 5
        assert wire.only(await memory.peer.settle(), wire.GOAWAY)[0].code == ErrorCode.NO_ERROR


async def test_stalled_consumer_is_not_dead(autojump_clock: trio.testing.MockClock) -> None:
    """A client that reads nothing for an hour answers every PING, and then gets every message."""
    count = 200

    async def flood(stream: ServerStream) -> None:
        for at in range(count):
            await stream.send(at.to_bytes(2, "big") * 500)

    config = TransportConfig(idle_timeout_s=100, stream_window_bytes=5_000, send_buffer_bytes=5_000)
    async with memory_pair({"/flood": flood}, config) as (client, server, *_):
        async with client.open_stream("/flood") as stream:
            await stream.send(b"flood")
            await pass_time(3_600)
            assert server.statistics().connections == 1
            assert server.statistics().unsent_bytes > 0
            for at in range(count):
                assert await stream.receive() == at.to_bytes(2, "big") * 500
            assert await stream.receive() is None


async def test_a_loop_that_was_held_up_gives_no_peer_up(mock_clock: trio.testing.MockClock) -> None:
    """An answer that came while nothing ran is read before the peer is judged, whichever task has its turn first."""
    config = TransportConfig(ping_interval_s=20, ping_timeout_s=10, idle_timeout_s=0)
    async with memory_server({}, config) as memory:
        await memory.peer.send(wire.CLIENT_HELLO)
        await memory.peer.settle()
        for _ in range(30):  # The order of the tasks is drawn.
            mock_clock.jump(20)
            [ping] = wire.only(await memory.peer.settle(), wire.PING)
            await memory.peer.send(wire.ping(ping.payload, ack=True))
            mock_clock.jump(11)
            await memory.peer.settle()
            assert not memory.ended.is_set()


async def test_a_loop_that_was_held_up_ends_no_write(mock_clock: trio.testing.MockClock) -> None:
    """A peer that read while nothing ran has taken something, whichever task has its turn first."""
    config = TransportConfig(ping_interval_s=20, ping_timeout_s=200, send_timeout_s=60, idle_timeout_s=0)
    async with memory_server({}, config) as memory:
        await memory.peer.send(wire.CLIENT_HELLO)
        await memory.peer.settle()
        for _ in range(30):  # The order of the tasks is drawn.
            memory.theirs.clog()
            mock_clock.jump(20)
            assert wire.only(await memory.peer.settle(), wire.PING) == []
            memory.theirs.unclog()
            mock_clock.jump(61)
            [ping] = wire.only(await memory.peer.settle(), wire.PING)
            await memory.peer.send(wire.ping(ping.payload, ack=True))
            await memory.peer.settle()
            assert not memory.ended.is_set()


async def test_a_slow_line_gives_no_peer_up(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that answers nothing lives as long as its system takes what was written before the PING."""
    monkeypatch.setattr(
        StreamBytes, "acknowledged", lambda _: Acknowledged(int(min(trio.current_time(), 100)), more=True)
    )
    async with memory_server({"/test.Test/Method": echo}) as memory:
        await memory.peer.send(wire.CLIENT_HELLO + wire.headers(1))
        await pass_time(100)
        assert not memory.ended.is_set()
        await pass_time(20)
        assert memory.ended.is_set()


@pytest.mark.socket
async def test_silent_socket_is_released_in_time() -> None:
    """A peer whose host died mid-call costs nothing after `ping_interval_s` + `ping_timeout_s`, goodbye included."""
    config = TransportConfig(ping_interval_s=0.2, ping_timeout_s=0.2)
    released = trio.Event()
    started = trio.Event()

    async def wait(_stream: ServerStream) -> None:
        started.set()
        try:
            await trio.sleep_forever()
        finally:
            released.set()

    async with transport.serve({"/test.Test/Method": wait}, config=config) as server:
        start = trio.current_time()
        async with await trio.open_tcp_stream(server.host, server.port) as silent:
            await silent.send_all(wire.CLIENT_HELLO + wire.headers(1))
            await started.wait()
            await released.wait()
            assert trio.current_time() - start > 0.3  # how soon is for the tests of the virtual clock
            assert server.statistics().streams == 0


@pytest.mark.socket
async def test_slow_socket_is_kept() -> None:
    """A client whose consumer stands still, over a socket, outlives many keepalives and loses nothing."""
    config = TransportConfig(ping_interval_s=0.02, ping_timeout_s=100, stream_window_bytes=1_000)
    size = 100_000

    async def flood(stream: ServerStream) -> None:
        await stream.send(bytes(size))

    async with (
        transport.serve({"/flood": flood}, config=config) as server,
        transport.connect(
            server.host, server.port, config=TransportConfig(stream_window_bytes=1_000)
        ) as client,
        client.open_stream("/flood") as stream,
    ):
        with trio.fail_after(100):
            while client.statistics().bytes_received < 1_100 + 20 * 17:  # headers, the window, and 20 PINGs
                await trio.testing.wait_all_tasks_blocked(0.01)
        assert server.statistics().streams == 1
        assert len(await stream.receive()) == size
        assert await stream.receive() is None


async def test_call_without_a_message_stops_its_handler(autojump_clock: trio.testing.MockClock) -> None:
    """A handler that does not listen is stopped when its client has said nothing for too long."""
    config = TransportConfig(first_message_timeout_s=8, ping_interval_s=0)
    stopped = trio.Event()

    async def pour(stream: ServerStream) -> None:
        try:
            while True:
                await stream.send(bytes(10_000))  # past the client's window, until there is no room
        finally:
            stopped.set()

    async with memory_server({"/test.Test/Method": pour}, config) as memory:
        await memory.peer.send(wire.CLIENT_HELLO, wire.headers(1))
        start = trio.current_time()
        with trio.fail_after(100):
            await stopped.wait()
        assert 8 <= trio.current_time() - start < 9
        await memory.peer.send(wire.window_update(0, 1 << 30), wire.window_update(1, 1 << 30))
        frames = await memory.peer.settle()
        assert wire.only(frames, wire.HEADERS, 1)[-1].flags & wire.END_STREAM
