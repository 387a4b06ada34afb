"""The network of the simulation: streams by trio's own measure, and what its faults do."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from bench.simulation.network import Connection, Fault, FaultPlan, Network
from bench.simulation.pipes import Line, Pipe, PipeEnd

Ends = tuple[PipeEnd, PipeEnd]


def connection(fault: FaultPlan | None = None, **line: float) -> Connection:
    return Connection("somebody", Line(**line), fault, lambda _connection, _fault: None)  # type: ignore[arg-type]


async def make_ends() -> Ends:
    there = connection()
    return there.client_end, there.server_end


async def make_clogged_ends() -> Ends:
    there = connection(buffer_bytes=1_000)
    with trio.move_on_after(0.001):
        await there.client_end.send_all(bytes(5_000))
    with trio.move_on_after(0.001):
        await there.server_end.send_all(bytes(5_000))
    return there.client_end, there.server_end


async def test_ends_are_streams(autojump_clock: trio.testing.MockClock) -> None:
    """A connection passes trio's checks of a stream that can be closed by half."""
    await trio.testing.check_half_closeable_stream(make_ends, make_clogged_ends)


async def test_full_pipe_holds_its_sender() -> None:
    """A sender waits while as much is under way as fits, and goes on when some of it was read."""
    there = connection(buffer_bytes=100)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(there.client_end.send_all, bytes(150))
        await trio.testing.wait_all_tasks_blocked()
        assert len(nursery.child_tasks) == 1
        assert len(await there.server_end.receive_some()) == 100
        await trio.testing.wait_all_tasks_blocked()
        assert not nursery.child_tasks


async def test_latency_is_virtual_time(autojump_clock: trio.testing.MockClock) -> None:
    """What is sent arrives later by the latency of the line."""
    there = connection(latency_s=0.25)
    await there.client_end.send_all(b"hello")
    assert await there.server_end.receive_some() == b"hello"
    assert trio.current_time() == pytest.approx(0.25)


async def test_reset_breaks_both_ends_at_its_octet() -> None:
    """A reset at octet 3 delivers two octets and the third, and nothing more to anybody."""
    there = connection(FaultPlan(fault=Fault.RESET, to_client=False, at=3))
    await there.client_end.send_all(b"hello")
    assert await there.server_end.receive_some() == b"hel"
    assert there.struck is Fault.RESET
    for end in (there.client_end, there.server_end):
        with pytest.raises(trio.BrokenResourceError):
            await end.receive_some()
        with pytest.raises(trio.BrokenResourceError):
            await end.send_all(b"more")


async def test_cut_is_an_orderly_end_for_both() -> None:
    """A cut shows both readers an end, in the middle of what was sent."""
    there = connection(FaultPlan(fault=Fault.CUT, at=2))
    await there.server_end.send_all(b"hello")
    assert await there.client_end.receive_some() == b"he"
    assert await there.client_end.receive_some() == b""
    assert await there.server_end.receive_some() == b""
    with pytest.raises(trio.BrokenResourceError):
        await there.client_end.send_all(b"more")


async def test_silence_tells_nobody(autojump_clock: trio.testing.MockClock) -> None:
    """After silence nothing arrives, not even the end; writes succeed until the buffer is full."""
    there = connection(FaultPlan(fault=Fault.SILENCE, at=1), buffer_bytes=10)
    await there.server_end.send_all(b"ab")
    assert await there.client_end.receive_some() == b"a"
    await there.client_end.send_all(b"12345")
    await there.server_end.aclose()
    with trio.move_on_after(100) as waited:
        await there.client_end.receive_some()
    assert waited.cancelled_caught


async def test_clog_delays_one_direction(autojump_clock: trio.testing.MockClock) -> None:
    """A clog holds back what comes after its octet, for its time, and only that way."""
    there = connection(FaultPlan(fault=Fault.CLOG, at=1, clog_s=3.0))
    await there.server_end.send_all(b"ab")
    assert await there.client_end.receive_some() == b"a"
    await there.client_end.send_all(b"x")
    assert await there.server_end.receive_some() == b"x"
    assert await there.client_end.receive_some() == b"b"
    assert trio.current_time() == pytest.approx(3.0)


async def test_nobody_listens() -> None:
    """Before the server listens, and after it has gone, a connection is refused."""
    network = Network(lambda _connection, _fault: None)
    with pytest.raises(OSError, match="refused"):
        await network.dial("early", Line())
    listener = network.listen()
    stream = await network.dial("in time", Line())
    accepted = await listener.accept()
    await stream.send_all(b"hello")
    assert await accepted.receive_some() == b"hello"
    await listener.aclose()
    with pytest.raises(OSError, match="refused"):
        await network.dial("late", Line())


async def test_end_of_the_server_resets_everybody() -> None:
    """`reset_all` breaks the connections that there are, from both sides."""
    network = Network(lambda _connection, _fault: None)
    network.listen()
    stream = await network.dial("somebody", Line())
    network.reset_all()
    with pytest.raises(trio.BrokenResourceError):
        await stream.receive_some()


def test_pipe_is_not_shared() -> None:
    """A connection has a pipe for each direction."""
    there = connection()
    assert isinstance(there._to_client, Pipe)
    assert there._to_client is not there._to_server
