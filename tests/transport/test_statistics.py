"""A server's counters: they add up over what runs and what has ended, and only grow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio
import trio.testing

from tests.support import wire
from tests.support.faults import memory_pair, memory_server
from tests.transport.test_shell import check_echo, echo

if TYPE_CHECKING:
    from transport import ServerStream


async def test_totals_survive_streams_and_connections() -> None:
    """What a stream and its connection counted stays counted when they are gone."""
    async with memory_pair({"/echo": echo}) as (client, server, *_):
        await check_echo(client)
        async with client.open_stream("/echo") as stream:
            await stream.send(b"once")
            await stream.receive()
            running = server.statistics()
            assert (running.streams, running.totals.streams) == (1, 2)
        await trio.testing.wait_all_tasks_blocked()
        ended = server.statistics()
        assert (ended.streams, ended.totals.streams) == (0, 2)
        assert ended.totals.messages_sent == running.totals.messages_sent > 0
        assert ended.totals.stalls.total_s >= running.totals.stalls.total_s
        await server.drain(60)
    after = server.statistics()
    assert (after.connections, after.totals.connections) == (0, 1)
    assert after.totals.bytes_sent >= ended.totals.bytes_sent > 0
    assert after.totals.goaways_sent == 2


async def test_streams_are_counted_by_what_holds_them_up() -> None:
    """Every running call has one reason; the credit that is left is added up over those that have a limit."""

    async def wait_credit(stream: ServerStream) -> None:
        stream.credit.raise_limit(100)
        await stream.send_counted(bytes(40))
        stream.credit.claim(60)
        await stream.wait_credit()

    async with memory_pair({"/credit": wait_credit, "/echo": echo}) as (client, server, *_):
        async with client.open_stream("/credit") as held, client.open_stream("/echo") as idle:
            await idle.send(b"a")
            await held.receive()
            await trio.testing.wait_all_tasks_blocked()
            now = server.statistics()
            assert {reason: count for reason, count in now.stalled.items() if count} == {
                "credit": 1,
                "peer": 1,
            }
            assert now.credit_bytes == 0
            credit = next(each for each in server.running() if each.path == "/credit").statistics()
            assert (credit.credit_limit, credit.credit_sent) == (100, 100)
            assert (credit.connection_id, credit.stream_id) == (1, 1)


async def test_pings_are_counted_one_by_one() -> None:
    """As many as came, and none of their answers."""
    async with memory_server({"/echo": echo}) as memory:
        await memory.peer.send(wire.CLIENT_HELLO, *[wire.ping()] * 3)
        await memory.peer.settle()
        assert memory.server.statistics().totals.pings_received == 3


async def test_a_connection_that_breaks_a_budget_is_counted_by_its_kind() -> None:
    """A flood is told by the frames it was made of, another violation by its error code."""
    async with memory_server({"/echo": echo}) as memory:
        await memory.peer.send(wire.CLIENT_HELLO, *[wire.ping()] * 1000)
        await memory.peer.settle()
        await memory.peer.stream.aclose()
        await memory.ended.wait()
        totals = memory.server.statistics().totals
        assert dict(totals.refusals) == {"ping": 1}
        assert totals.goaways_sent == 1
        assert totals.pings_received > 100
    async with memory_server({"/echo": echo}) as memory:
        await memory.peer.send(wire.CLIENT_HELLO, wire.window_update(0, 0))
        await memory.peer.settle()
        await memory.peer.stream.aclose()
        await memory.ended.wait()
        assert dict(memory.server.statistics().totals.refusals) == {"protocol_error": 1}


async def test_the_last_frames_are_counted() -> None:
    """The octets that a server has sent, the GOAWAY by which it ends a connection among them, are what came."""
    async with memory_server({}) as memory:
        await memory.peer.send(wire.CLIENT_HELLO, wire.window_update(0, 0))
        came = sum(len(frame.payload) + 9 for frame in await memory.peer.settle())
        await memory.peer.stream.aclose()
        await memory.ended.wait()
        assert memory.server.statistics().totals.bytes_sent == came


async def test_a_peer_that_says_goodbye_is_no_refusal() -> None:
    """An ordinary end counts a GOAWAY received, and nothing else."""
    async with memory_server({"/echo": echo}) as memory:
        await memory.peer.send(wire.CLIENT_HELLO, wire.goaway(0))
        await memory.peer.settle()
        await memory.peer.stream.aclose()
        await memory.ended.wait()
        totals = memory.server.statistics().totals
        assert (totals.goaways_received, dict(totals.refusals)) == (1, {})
