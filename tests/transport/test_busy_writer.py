"""Time is kept whatever the writer is at: it always has more to write, or one write that takes for ever."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from tests.support import wire
from tests.support.configs import TINY
from tests.support.faults import MemoryServer, memory_pair, memory_server
from tests.transport.test_liveness import GOODBYE_S, pass_time
from transport import ConnectionLost, Handler, ServerStream
from transport.protocol.small_frames import HOLD_S

WRITE_S = 0.05
CONFIG = dataclasses.replace(
    TINY,
    handshake_timeout_s=5,
    ping_interval_s=8,
    ping_timeout_s=4,
    first_message_timeout_s=6,
    idle_timeout_s=7,
)
WIDE = wire.settings((wire.INITIAL_WINDOW_SIZE, 2**31 - 1)) + wire.window_update(0, 2**31 - 1 - 65_535)
BUSY, BLOCKED = "busy", "blocked"
both = pytest.mark.parametrize("writer", [BUSY, BLOCKED])


async def flood(stream: ServerStream) -> None:
    while True:
        await stream.send(bytes(1_000))


async def reply(stream: ServerStream) -> None:
    await stream.receive()
    await stream.send(bytes(100_000))


async def wait(stream: ServerStream) -> None:
    await stream.receive()
    await trio.sleep_forever()


HANDLERS = {"/test.Test/Method": flood, "/reply": reply, "/wait": wait}


def call(stream_id: int, path: str) -> bytes:
    """HEADERS that open a call."""
    return wire.headers(stream_id, [(n, path if n == ":path" else v) for n, v in wire.REQUEST])


@asynccontextmanager
async def working(
    writer: str, hello: bytes = wire.CLIENT_HELLO, handlers: Mapping[str, Handler] = HANDLERS
) -> AsyncIterator[MemoryServer]:
    """A server whose writer has, and will have, something to write: DATA of stream 1, which takes all that comes."""
    async with memory_server(handlers, CONFIG) as memory:
        memory.theirs.send_s = WRITE_S
        await memory.peer.send(hello, WIDE, wire.headers(1), wire.data(1, wire.message(b"")))
        await pass_time(1)
        assert memory.theirs.sent_bytes > 10_000
        if writer == BLOCKED:
            memory.theirs.clog()
        yield memory


@asynccontextmanager
async def ends_within(memory: MemoryServer, least_s: float, limit_s: float) -> AsyncIterator[None]:
    """The connection ends in this time, its goodbye included."""
    start = trio.current_time()
    yield
    with trio.fail_after(start + limit_s + GOODBYE_S + 1 - trio.current_time()):
        await memory.ended.wait()
    assert trio.current_time() - start >= least_s


async def test_missing_settings_end_a_blocked_connection(autojump_clock: trio.testing.MockClock) -> None:
    """A peer that neither reads our SETTINGS nor sends its own is given up after the handshake's time."""
    async with memory_server(HANDLERS, CONFIG) as memory:
        memory.theirs.clog()
        async with ends_within(memory, 5, 5):
            await memory.peer.send(wire.PREFACE)


@both
async def test_settings_without_acknowledgement_end_it(
    autojump_clock: trio.testing.MockClock, writer: str
) -> None:
    """A peer that never acknowledges our SETTINGS is given up, though there is much to send to it."""
    async with working(writer, wire.PREFACE + wire.settings()) as memory:
        async with ends_within(memory, 3, 4):
            await memory.peer.send(wire.ping())


@both
async def test_unfinished_header_block_ends_it(autojump_clock: trio.testing.MockClock, writer: str) -> None:
    """A header block that is not completed ends the connection in its time."""
    async with working(writer) as memory:
        async with ends_within(memory, 5, 5):
            await memory.peer.send(wire.headers(3, end_headers=False))


@both
async def test_silent_peer_is_given_up(autojump_clock: trio.testing.MockClock, writer: str) -> None:
    """A peer that says nothing is asked, and given up if it stays silent."""
    async with working(writer) as memory:
        async with ends_within(memory, 11, 12):
            await pass_time(7.9)
            frames = await memory.peer.settle()
        assert wire.only(frames + await memory.peer.settle(), wire.PING) or writer == BLOCKED


async def test_connection_without_calls_ends_though_its_last_answer_is_not_read(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The idle time runs while the writer is blocked by a peer that answers nothing but takes its time."""
    async with working(BLOCKED) as memory:
        await memory.peer.send(wire.reset(1))
        await pass_time(1)
        async with ends_within(memory, 7 + 5, 7 + 5):
            for _ in range(5):
                await memory.peer.send(wire.ping())  # alive
                await pass_time(2)


@both
async def test_call_without_a_message_is_ended(autojump_clock: trio.testing.MockClock, writer: str) -> None:
    """A call that says nothing is answered, and its handler stopped, beside a steady download."""
    stopped = trio.Event()

    async def wait(_stream: ServerStream) -> None:
        try:
            await trio.sleep_forever()
        finally:
            stopped.set()

    async with working(writer, handlers={**HANDLERS, "/wait": wait}) as memory:
        await memory.peer.send(call(3, "/wait"))
        await pass_time(5)
        await memory.peer.send(wire.ping())
        assert not stopped.is_set()
        with trio.fail_after(1.25 * 6 - 5):
            await stopped.wait()
        memory.theirs.unclog()
        await pass_time(0.2)
        (answer,) = wire.only(await memory.peer.settle(), wire.HEADERS, 3)
        assert answer.flags & wire.END_STREAM


async def test_small_window_of_a_stream_is_used_beside_another(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A small window is held for a moment only, however much another stream has to send."""
    async with working(BUSY) as memory:
        narrow = wire.settings((wire.INITIAL_WINDOW_SIZE, 3_000))
        await memory.peer.send(narrow, wire.window_update(1, 2**30), call(3, "/reply"))
        await memory.peer.send(wire.data(3, wire.message(b""), end=True))
        await pass_time(3)
        before = wire.only(await memory.peer.settle(), wire.DATA, 3)
        assert sum(len(frame.payload) for frame in before) == 3_000
        await memory.peer.send(wire.window_update(3, 10))
        await pass_time(HOLD_S + 4 * WRITE_S)
        frames = await memory.peer.settle()
        assert [len(frame.payload) for frame in wire.only(frames, wire.DATA, 3)] == [10]
        assert wire.only(frames, wire.DATA, 1)


async def test_small_window_of_the_connection_is_used_beside_replies(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The connection's small window is held for a moment only, though the writer has PINGs to answer all the time."""
    async with memory_server(HANDLERS, CONFIG) as memory:
        memory.theirs.send_s = WRITE_S
        await memory.peer.send(wire.CLIENT_HELLO, wire.headers(1), wire.window_update(1, 2**30))
        await pass_time(10)
        frames = await memory.peer.settle()
        assert sum(len(frame.payload) for frame in wire.only(frames, wire.DATA)) == 65_535
        await memory.peer.send(wire.window_update(0, 10))
        for _ in range(10):
            await memory.peer.send(wire.ping())
            await pass_time(0.8 * WRITE_S)
        frames = await memory.peer.settle()
        assert [len(frame.payload) for frame in wire.only(frames, wire.DATA)] == [10]


async def test_client_gives_a_silent_server_up_while_it_sends(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A call into a line that takes nothing any more ends when the server has been silent for too long."""
    async with memory_pair(HANDLERS, CONFIG) as (client, _, ours, theirs):
        async with client.open_stream("/wait") as stream:
            await stream.send(b"")
            await pass_time(1)
            ours.clog()
            theirs.clog()
            start = trio.current_time()
            with pytest.raises(ConnectionLost, match="silent for"):
                while True:
                    await stream.send(bytes(1_000))
            assert trio.current_time() - start < 8 + 4 + 1
