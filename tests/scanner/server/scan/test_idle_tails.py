"""The one timer of the idle tails: who is woken when, and what leaves in one write."""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import trio
import trio.testing

import transport
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.server.config import ScannerConfig
from scanner.server.log.log_scan import LogScan
from scanner.server.scan.idle_tails import IdleTails
from scanner.server.server import open_server
from tests.support.scans import RawScan, filled_store, open_scan, sample, write, write_request
from transport import TransportConfig

INTERVAL_S = 30.0
ROUND_S = INTERVAL_S / 10


@dataclass(eq=False)
class Tail:
    """A scan that sends its heartbeat at once."""

    sent_at: float
    beats: list[float] = field(default_factory=list)

    def beat(self) -> None:
        """Note when it was woken."""
        self.sent_at = trio.current_time()
        self.beats.append(self.sent_at)


class Floor:
    """Notes when it is asked for."""

    def __init__(self) -> None:
        self.asked_at: list[float] = []
        self.ages: set[int] = set()

    async def refresh(self, age_us_max: int) -> None:
        """It is durable at once."""
        self.asked_at.append(trio.current_time())
        self.ages.add(age_us_max)
        await trio.lowlevel.checkpoint()


async def pass_time(clock: trio.testing.MockClock, seconds: int) -> None:
    """Let time pass, and everybody do what is due."""
    for _ in range(seconds):
        clock.jump(1.0)
        await trio.testing.wait_all_tasks_blocked()


async def test_tails_that_are_over_are_not_held(
    mock_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """By the timer that has woken them, though no other tail is due ever after: with them goes their connection."""
    tails = IdleTails(INTERVAL_S, Floor().refresh)
    nursery.start_soon(tails.run)
    await trio.testing.wait_all_tasks_blocked()
    idle = [Tail(trio.current_time()) for _ in range(2)]
    with tails.idle(1, idle[0]), tails.idle(1, idle[1]):
        await pass_time(mock_clock, 30)
    assert [len(tail.beats) for tail in idle] == [1, 1]
    over = [weakref.ref(tail) for tail in idle]
    idle.clear()
    assert [tail() for tail in over] == [None, None]


async def test_no_idle_tail_is_silent_for_longer_than_its_interval(
    mock_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """Wherever in a round it began; early by less than a round; and with those of its connection from then on."""
    floor = Floor()
    tails = IdleTails(INTERVAL_S, floor.refresh)
    nursery.start_soon(tails.run)
    await trio.testing.wait_all_tasks_blocked()
    begun = trio.current_time()
    first, second = Tail(begun), Tail(begun + 3.0)
    other = Tail(begun + 25.0)
    with tails.idle(1, first):
        await pass_time(mock_clock, 3)
        with tails.idle(1, second):
            await pass_time(mock_clock, 22)
            with tails.idle(2, other):
                await pass_time(mock_clock, 200)
    for tail, start in ((first, 0.0), (second, 3.0), (other, 25.0)):
        gaps = [later - earlier for earlier, later in itertools.pairwise([begun + start, *tail.beats])]
        assert INTERVAL_S - ROUND_S < gaps[0] <= INTERVAL_S
        assert len(gaps) > 5
        assert {round(gap, 6) for gap in gaps[1:]} == {INTERVAL_S}
    assert floor.asked_at == sorted({*first.beats, *second.beats, *other.beats}), (
        "once in a round, and for somebody"
    )
    assert floor.ages == {3_000_000}
    asked = len(floor.asked_at)
    await pass_time(mock_clock, 100)
    assert len(floor.asked_at) == asked, "nobody is idle"
    nursery.cancel_scope.cancel()


class CountingStream(trio.abc.Stream):
    """Counts what is written at once."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self.writes = 0

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Write, and count it."""
        self.writes += 1
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        """As the stream."""
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """As the stream."""
        return await self._stream.receive_some(max_bytes)

    async def aclose(self) -> None:
        """As the stream."""
        await self._stream.aclose()


class OneConnection(trio.abc.Listener[trio.abc.Stream]):
    """Accepts one connection, and no other."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._streams = [stream]

    async def accept(self) -> trio.abc.Stream:
        """The connection; then wait for ever."""
        if not self._streams:
            await trio.Event().wait()
        await trio.lowlevel.checkpoint()
        return self._streams.pop()

    async def aclose(self) -> None:
        """Nothing is open."""
        await trio.lowlevel.checkpoint()


@contextlib.contextmanager
def counted(stream: CountingStream) -> Iterator[list[int]]:
    """How many writes there were in the block."""
    found: list[int] = []
    before = stream.writes
    yield found
    found.append(stream.writes - before)


@pytest.mark.parametrize("count", [2, 40])
async def test_heartbeats_of_a_connection_leave_in_one_write(
    mock_clock: trio.testing.MockClock, nursery: trio.Nursery, count: int
) -> None:
    """However many tails there are; each says that it waits, and up to where everything was delivered."""
    near, far = trio.testing.memory_stream_pair()
    line = CountingStream(far)
    quiet = TransportConfig(ping_interval_s=900.0, idle_timeout_s=0.0)
    config = ScannerConfig(tail_heartbeat_interval_s=INTERVAL_S)
    async with (
        open_server(filled_store(3), config=config, listener=OneConnection(line), transport_config=quiet),
        transport.connect_stream(near, config=quiet) as client,
        contextlib.AsyncExitStack() as stack,
    ):
        latest = pb.LogStart(latest=True)
        scans: list[RawScan] = []
        for _ in range(count):
            opening = open_scan(client, source=pb.SCAN_SOURCE_LOG, log_start=latest, credit=1 << 40)
            scans.append(await stack.enter_async_context(opening))
            await scans[-1].receive()
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(2):
            with counted(line) as writes:
                async with trio.open_nursery() as receiving:
                    for scan in scans:
                        receiving.start_soon(scan.receive)
                    while receiving.child_tasks:
                        await trio.testing.wait_all_tasks_blocked()
                        mock_clock.jump(1.0)
            assert writes == [1]
        assert all(len(scan.heartbeats) == 2 for scan in scans)
        beats = [beat for scan in scans for beat in scan.heartbeats]
        assert {(beat.state, beat.position) for beat in beats} == {(pb.Heartbeat.STATE_WAITING_DATA, 3)}
        assert len({scan.heartbeats[-1].commit_time_floor_us for scan in scans}) == 1
    nursery.cancel_scope.cancel()


async def test_a_tail_whose_window_is_shut_is_told_nothing_and_parked(
    mock_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """One heartbeat waits for the peer's window, and no more; and the tail goes on when the peer reads again."""
    near, far = trio.testing.memory_stream_pair()
    quiet = TransportConfig(ping_interval_s=900.0, idle_timeout_s=0.0)
    narrow = TransportConfig(ping_interval_s=900.0, idle_timeout_s=0.0, stream_window_bytes=50)
    config = ScannerConfig(tail_heartbeat_interval_s=INTERVAL_S, park_after_s=60.0)
    store = filled_store(3)
    async with (
        open_server(store, config=config, listener=OneConnection(far), transport_config=quiet) as server,
        transport.connect_stream(near, config=narrow) as client,
        open_scan(
            client, source=pb.SCAN_SOURCE_LOG, log_start=pb.LogStart(latest=True), credit=1 << 40
        ) as scan,
    ):
        await scan.receive()
        await pass_time(mock_clock, 300)
        assert 0 < server.statistics().transport.unsent_bytes < 500
        assert server.statistics().scans_parked == 1
        await write(client, write_request(sample([7])))
        with trio.fail_after(1000):
            while not scan.batches:
                await scan.receive()
        assert len(scan.heartbeats) == 2, "the one that waited, and one when it went on"
        assert server.statistics().scans_parked == 0
    nursery.cancel_scope.cancel()


async def test_a_heartbeat_that_cannot_be_made_fails_its_own_scan(
    mock_clock: trio.testing.MockClock, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All tails have one timer, and the others of them go on."""
    near, far = trio.testing.memory_stream_pair()
    quiet = TransportConfig(ping_interval_s=900.0, idle_timeout_s=0.0)
    config = ScannerConfig(tail_heartbeat_interval_s=INTERVAL_S)
    latest = pb.LogStart(latest=True)
    heartbeat = LogScan.heartbeat

    def fail_first(scan: LogScan) -> pb.Heartbeat:
        if scan.query.predicates:
            raise RuntimeError("no heartbeat")
        return heartbeat(scan)

    monkeypatch.setattr(LogScan, "heartbeat", fail_first)
    never = pb.Predicate(column="id", operator=pb.Predicate.OPERATOR_LESS, literals=[pb.Literal(integer=0)])
    filtered = pb.ScanQuery(table="items", filter=[never])
    async with (
        open_server(filled_store(3), config=config, listener=OneConnection(far), transport_config=quiet),
        transport.connect_stream(near, config=quiet) as client,
        open_scan(
            client, query=filtered, source=pb.SCAN_SOURCE_LOG, log_start=latest, credit=1 << 40
        ) as failing,
        open_scan(client, source=pb.SCAN_SOURCE_LOG, log_start=latest, credit=1 << 40) as other,
    ):
        await failing.receive()
        await other.receive()
        await pass_time(mock_clock, 100)
        with pytest.raises(transport.CallFailed, match="RuntimeError"):
            await failing.receive()
        for _ in range(3):
            await other.receive()
        assert len(other.heartbeats) == 3
    nursery.cancel_scope.cancel()
