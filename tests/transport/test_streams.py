"""Stream objects over memory: misuse, credit, polling, and what is left of them."""

from __future__ import annotations

import gc
import weakref

import pytest
import trio
import trio.testing

from tests.support import wire
from tests.support.configs import TINY
from tests.support.faults import memory_pair, memory_server
from tests.transport.test_shell import check_echo, echo, send_much
from transport import (
    CallFailed,
    LocalProtocolError,
    ServerStream,
    StatusCode,
    StreamReset,
)


async def test_two_tasks_on_one_end_collide() -> None:
    """A second receiver, and a second sender, get BusyResourceError; the first goes on."""
    async with memory_pair({"/echo": echo}, TINY) as (client, *_):
        async with client.open_stream("/echo") as stream, trio.open_nursery() as nursery:
            nursery.start_soon(stream.receive)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(trio.BusyResourceError):
                await stream.receive()
            with pytest.raises(trio.WouldBlock):
                stream.receive_nowait()
            await stream.send(b"one")
        async with client.open_stream("/echo") as stream, trio.open_nursery() as nursery:
            nursery.start_soon(send_much, stream)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(trio.BusyResourceError):
                await stream.send(b"two")
            nursery.cancel_scope.cancel()


async def test_receive_nowait_gets_a_message_longer_than_the_window() -> None:
    """Polling alone lets a long message arrive."""

    async def send_long(stream: ServerStream) -> None:
        await stream.send(bytes(20_000))

    async with memory_pair({"/long": send_long}, TINY) as (client, *_):
        async with client.open_stream("/long") as stream:
            for _ in range(100):
                try:
                    message = stream.receive_nowait()
                except trio.WouldBlock:
                    await trio.testing.wait_all_tasks_blocked()
                else:
                    break
            assert len(message) == 20_000
            await trio.testing.wait_all_tasks_blocked()
            assert stream.receive_nowait() is None


async def test_credit_wakes_its_waiter_and_its_end_does_too() -> None:
    """A handler waits for credit, sends what is allowed, and counts it; a dead call ends a client's wait."""

    async def counted(stream: ServerStream) -> None:
        while (grant := await stream.receive()) is not None:
            stream.credit.raise_limit(int(grant))
            while stream.credit.available > 0:
                await stream.wait_credit()
                await stream.send_counted(bytes(60))
        stream.credit.remove_limit()
        await stream.wait_credit()
        raise CallFailed(StatusCode.OUT_OF_RANGE, str(stream.credit.sent))

    async with memory_pair({"/counted": counted}) as (client, *_):
        async with client.open_stream("/counted") as stream:
            for grant in (b"100", b"50", b"121"):
                await stream.send(grant)
            await stream.send_end()
            assert [len(await stream.receive()) for _ in range(3)] == [60, 60, 60]
            with pytest.raises(CallFailed, match="180"):
                await stream.receive()
        async with client.open_stream("/counted") as stream, trio.open_nursery() as nursery:

            async def wait() -> None:
                with pytest.raises(StreamReset):
                    await stream.wait_credit()

            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            stream.reset()


async def test_use_after_the_end_is_an_error() -> None:
    """After its half-close a client cannot send; after its block a stream is reset."""
    async with memory_pair({"/echo": echo}) as (client, *_):
        async with client.open_stream("/echo") as stream:
            await stream.send_end()
            await stream.send_end()
            with pytest.raises(LocalProtocolError):
                await stream.send(b"late")
        async with client.open_stream("/echo") as stream:
            pass
        assert stream.over
        with pytest.raises(StreamReset, match="by us"):
            await stream.receive()


async def test_a_call_that_is_left_ends_by_itself() -> None:
    """It is half-closed and not reset, and the client goes when its answer has ended."""
    half_closed, answer = trio.Event(), trio.Event()
    ended: list[bool] = []

    async def answer_late(stream: ServerStream) -> None:
        try:
            assert await stream.receive() is None
            half_closed.set()
            await answer.wait()
            ended.append(True)
        except BaseException:
            ended.append(False)
            raise

    async with (
        memory_pair({"/late": answer_late, "/echo": echo}) as (client, *_),
        trio.open_nursery() as nursery,
    ):
        async with client.open_stream("/late") as stream:
            stream.leave()
        await half_closed.wait()
        assert client.statistics().streams == 1
        await check_echo(client)
        nursery.start_soon(trio.testing.wait_all_tasks_blocked)
        answer.set()
    assert stream.over
    assert ended == [True]


async def test_a_call_that_is_left_may_take_ten_seconds(autojump_clock: trio.testing.MockClock) -> None:
    """A server that does not end it has it reset: it would count for ever among those that the server allows."""

    async def never(stream: ServerStream) -> None:
        try:
            await trio.sleep_forever()
        finally:
            cut.set()

    async with memory_pair({"/never": never}) as (client, *_):
        for said in (False, True):
            cut = trio.Event()
            async with client.open_stream("/never") as stream:
                if said:
                    stream.send_last(b"all")
                left_at = trio.current_time()
                stream.leave()
            await cut.wait()
            assert stream.over
            assert trio.current_time() == pytest.approx(left_at + 10)


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_call_that_is_left_takes_no_more_messages(
    at_once: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """It is reset then, at once: nobody would take them, and they would wait in the client's memory."""
    stopped = trio.Event()

    async def send_on(stream: ServerStream) -> None:
        try:
            if not at_once:
                assert await stream.receive() is None
            while True:
                await stream.send(bytes(100))
        finally:
            stopped.set()

    async with memory_pair({"/on": send_on}) as (client, *_):
        async with client.open_stream("/on") as stream:
            if at_once:
                await trio.testing.wait_all_tasks_blocked()
            left_at = trio.current_time()
            stream.leave()
        await stopped.wait()
        assert trio.current_time() == left_at
        assert stream.over
        assert client.statistics().streams == 0


async def test_nothing_is_left_behind() -> None:
    """After a connection is closed nothing of it can be reached."""
    cores = weakref.WeakSet[object]()

    async def remember(stream: ServerStream) -> None:
        cores.add(stream._driver.core)
        await stream.send(b"x")

    async with memory_pair({"/r": remember, "/echo": echo}) as (client, server, *_):
        cores.add(client._driver.core)
        with pytest.raises(CallFailed):
            await client.call("/none", b"")
        await client.call("/r", b"")
        await check_echo(client)
    assert server.statistics().connections == 0
    del client, server, _
    for _turn in range(3):
        await trio.testing.wait_all_tasks_blocked()
        gc.collect()
    assert len(cores) == 0


async def test_answers_that_may_be_lost_are_told() -> None:
    """A call that is reset before its answer is taken, or after it, and the end of the connection; no other end."""
    told: list[int | None] = []
    path = (":path", "/echo")
    small_window = wire.PREFACE + wire.settings((wire.INITIAL_WINDOW_SIZE, 0)) + wire.settings(ack=True)
    async with memory_server({"/echo": echo}) as memory:
        memory.server.on_answer_lost = lambda _connection_id, stream_id: told.append(stream_id)
        peer = memory.peer
        await peer.send(small_window)
        for stream_id in (1, 3, 5):
            await peer.send(
                wire.headers(stream_id, [*wire.REQUEST[:2], path, *wire.REQUEST[3:]]),
                wire.data(stream_id, wire.message(b"hello"), end=True),
            )
        await peer.send(wire.window_update(3, 100), wire.window_update(5, 100))
        frames = await peer.settle()
        assert sorted(frame.stream_id for frame in wire.only(frames, wire.DATA)) == [3, 5]
        assert told == []
        await peer.send(wire.reset(1))
        await peer.settle()
        assert told == [1]
        await peer.send(wire.reset(3))
        await peer.settle()
        assert told == [1, 3]
        await peer.stream.aclose()
        await memory.ended.wait()
        assert told == [1, 3, None]


@pytest.mark.parametrize(("asked", "given"), [(0, 1_000), (500, 1_000), (30_000, 30_000), (1 << 20, 65_535)])
async def test_a_call_may_have_a_wider_window(asked: int, given: int) -> None:
    """The server gets the window that was asked for, within those of the config and of its connection, and keeps it."""
    async with memory_pair({"/echo": echo}, client_config=TINY) as (client, server, *_):
        async with client.open_stream("/echo", window_bytes=asked) as stream:
            await trio.testing.wait_all_tasks_blocked()
            (call,) = server.running()
            assert call.statistics().send_window == given
            for _ in range(100):
                await stream.send(bytes(1_000))
                assert len(await stream.receive()) == 1_000
            await trio.testing.wait_all_tasks_blocked()
            assert given // 2 <= call.statistics().send_window <= given
