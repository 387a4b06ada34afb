"""The push scan, spoken message by message over real sockets: credit, ends, heartbeats, refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
import trio

from scanner.data.table import TableDescription
from scanner.errors import StoreFailed
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.server.config import ScannerConfig
from scanner.server.scan.push import PushScan
from scanner.sources.kv import KvSource
from scanner.storage.interface import Mutation
from tests.support.conformance import open_virtual_items
from tests.support.rounds import counted_rounds
from tests.support.scans import (
    SCHEMA,
    RawScan,
    filled_store,
    mutations,
    open_scan,
    released,
    sample,
    serving,
    stored_digest,
)
from transport import CallFailed, StallReason
from transport.byte_streams import SocketBytes

if TYPE_CHECKING:
    from scanner.sources.interface import Batch
    from transport.protocol.stream import Buffer

pytestmark = pytest.mark.socket

ROWS = 3000
ROW_MESSAGE_BYTES = 600
"""More than a batch of one row takes, most of which is Arrow's description of the columns."""


async def test_a_scan_in_window_only_mode_delivers_everything() -> None:
    """A client that half-closes without a demand gets every row, held back by HTTP/2 alone."""
    store = filled_store(ROWS)
    async with serving(store) as (_, client):
        async with open_scan(client, window_only=True) as scan:
            await scan.receive_all()

    assert scan.log_offset == ROWS
    assert scan.table().equals(pa.Table.from_batches([sample(range(ROWS))]))
    assert scan.end is not None
    assert (scan.end.reason, scan.end.rows) == (pb.ScanEnd.REASON_EXHAUSTED, ROWS)
    assert scan.end.digest == stored_digest(store, range(ROWS))


async def receive_up_to(scan: RawScan, limit: int) -> None:
    """Receive until the credit is used up, or the end; what is past the limit is at most one row."""
    while scan.end is None and scan.received_bytes < limit:
        await scan.receive()
    if scan.received_bytes > limit:
        assert scan.batches[-1].num_rows == 1
        assert scan.received_bytes - scan.batch_sizes[-1] < limit


@pytest.mark.parametrize(("step", "rows"), [(1, 60), (700, 500), (5000, ROWS)])
async def test_what_is_sent_is_past_the_limit_by_less_than_a_row(step: int, rows: int) -> None:
    """A batch of several rows fits into the credit left; one row may overrun it, and then nothing more comes."""
    async with serving(filled_store(rows)) as (_, client):
        async with open_scan(client, credit=0) as scan:
            await scan.receive()
            limit = 0
            while scan.end is None:
                limit = max(limit, scan.received_bytes) + step
                await scan.demand(limit)
                await receive_up_to(scan, limit)
            await scan.receive_all()

    assert scan.rows == rows


async def test_nothing_is_sent_or_read_without_credit() -> None:
    """Before the first demand there is the start and then heartbeats that say what is waited for."""
    async with serving(filled_store(ROWS)) as (_, client):
        async with open_scan(client) as scan:
            await scan.receive()
            for _ in range(3):
                await scan.receive()

    assert scan.batches == []
    assert len(scan.heartbeats) == 3
    for heartbeat in scan.heartbeats:
        assert heartbeat.state == pb.Heartbeat.STATE_WAITING_CREDIT
        assert (heartbeat.high_watermark, heartbeat.rows) == (ROWS, 0)


async def test_demands_are_cumulative_and_idempotent() -> None:
    """A repeated or lower demand changes nothing; a higher one lets the difference out."""
    async with serving(filled_store(ROWS)) as (_, client):
        async with open_scan(client, credit=3000) as scan:
            await scan.demand(3000)
            await scan.demand(10)
            await scan.receive_credit(3000)
            assert 3000 <= scan.received_bytes < 3000 + ROW_MESSAGE_BYTES
            await scan.demand(6000)
            await scan.receive_credit(6000)
            assert 6000 <= scan.received_bytes < 6000 + ROW_MESSAGE_BYTES


async def test_a_new_scan_begins_soon_beside_many(
    mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its open to its first row the others take few steps, and not several rounds of one each.

    The clock stands still: a reader that a busy machine interrupts gives the others more rounds (`TurnDebt`).
    """
    steps = 0
    real_step = KvSource.step

    def step(source: KvSource, bytes_max: int | None = None) -> None:
        nonlocal steps
        steps += 1
        real_step(source, bytes_max)

    monkeypatch.setattr(KvSource, "step", step)
    config = ScannerConfig(block_rows_max=10)
    others = 24
    async with serving(filled_store(400), config=config) as (_, client), trio.open_nursery() as nursery:

        async def read(*, task_status: trio.TaskStatus[None]) -> None:
            async with open_scan(client, window_only=True) as scan:
                while not scan.batches:
                    await scan.receive()
                task_status.started()
                await scan.receive_all()

        for _ in range(others):
            await nursery.start(read)
        async with open_scan(client, window_only=True) as scan:
            before = steps
            while not scan.batches:
                await scan.receive()
            meanwhile = steps - before
        nursery.cancel_scope.cancel()

    assert meanwhile < others


async def test_a_demand_that_changes_nothing_wakes_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeated and lower demands leave the sending task alone; a higher one, a drain and the end wake it."""
    woken: list[int | None] = []

    def wake(push: PushScan) -> None:
        woken.append(push._stream.credit.limit)
        real_wake(push)

    real_wake = PushScan._wake
    monkeypatch.setattr(PushScan, "_wake", wake)
    async with serving(filled_store(ROWS)) as (_, client):
        async with open_scan(client, credit=700) as scan:
            for limit in (700, 10, 0, 700, 900, 900):
                await scan.demand(limit)
            await scan.drain()
            await scan.receive_all()
    assert woken == [700, 900, 900, 900]


async def test_little_is_read_for_little_credit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step for a few hundred bytes is a small one; a consumer that goes on taking gets larger ones."""
    asked: list[int | None] = []

    def step(source: KvSource, bytes_max: int | None = None) -> None:
        asked.append(bytes_max)
        real_step(source, 1000)

    real_step = KvSource.step
    monkeypatch.setattr(KvSource, "step", step)
    async with serving(filled_store(ROWS)) as (_, client):
        async with open_scan(client, credit=300) as scan:
            await scan.receive_credit(300)
            assert asked == [48 << 10]
            while scan.end is None and len(asked) < 4:
                await scan.demand(scan.received_bytes + 300)
                await scan.receive()
            await scan.demand(1 << 40)
            await scan.receive_all()
    assert asked[:4] == [48 << 10, 96 << 10, 192 << 10, 384 << 10]
    assert asked[-1] is not None
    assert asked[-1] >= 1 << 30


async def test_the_first_batch_fits_into_a_new_connection() -> None:
    """Which takes 65 535 octets, by HTTP/2 and on Linux by TCP: what is left of a batch waits for the second step."""
    config = ScannerConfig()
    async with (
        serving(filled_store(20_000), config=config) as (_, client),
        open_scan(client, window_only=True) as scan,
    ):
        await scan.receive_all()
        assert 16_384 < scan.batch_sizes[0] < 65_535 - 1000
        assert sum(scan.batch_sizes) > 5 * 65_535


async def test_the_first_batch_is_on_the_line_before_the_second_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """That one reads up to a whole block, which takes long. Tasks take turns by chance, so one scan proves nothing."""
    written = 0
    written_by_step: list[int] = []

    def write(stream: SocketBytes, buffers: list[Buffer]) -> list[Buffer]:
        nonlocal written
        left = real_write(stream, buffers)
        written += sum(map(len, buffers)) - sum(map(len, left))
        return left

    def step(source: KvSource, bytes_max: int | None = None) -> None:
        written_by_step.append(written)
        real_step(source, bytes_max)

    real_write, real_step = SocketBytes._write, KvSource.step
    monkeypatch.setattr(SocketBytes, "_write", write)
    monkeypatch.setattr(KvSource, "step", step)
    async with serving(filled_store(ROWS), config=ScannerConfig(block_rows_max=1000)) as (_, client):
        for _ in range(12):
            written_by_step.clear()
            async with open_scan(client, window_only=True) as scan:
                await scan.receive_all()
            first, second, *_ = written_by_step
            assert second - first >= scan.batch_sizes[0]


async def test_scans_that_read_at_the_same_time_take_smaller_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much room their consumers have; a scan that reads alone is not held back (the test before)."""
    asked: set[int | None] = set()

    def step(source: KvSource, bytes_max: int | None = None) -> None:
        asked.add(bytes_max)
        real_step(source, bytes_max)

    real_step = KvSource.step
    monkeypatch.setattr(KvSource, "step", step)
    config = ScannerConfig(block_rows_max=10)
    async with serving(filled_store(400), config=config) as (_, client), trio.open_nursery() as nursery:

        async def read() -> None:
            async with open_scan(client, window_only=True) as scan:
                await scan.receive_all()

        for _ in range(8):
            nursery.start_soon(read)
    assert 704 << 10 in asked


@pytest.mark.parametrize("rows_match", [True, False], ids=["batches", "steps"])
async def test_every_other_task_has_its_turn_between_two_steps(
    monkeypatch: pytest.MonkeyPatch, rows_match: bool
) -> None:
    """A scan that never has to wait, because nothing matches or all fits, leaves the loop between any two acts.

    A step with the first batch of what it read is one act, any further batch another.
    """
    seen: list[int] = []
    stepped = False

    def step(source: KvSource, bytes_max: int | None = None) -> None:
        nonlocal stepped
        stepped = True
        seen.append(rounds.count)
        real_step(source, bytes_max)

    def take(source: KvSource, payload_bytes_max: int, rows_max: int) -> Batch | None:
        nonlocal stepped
        if not stepped:
            seen.append(rounds.count)
        stepped = False
        return real_take(source, payload_bytes_max, rows_max)

    real_step, real_take = KvSource.step, KvSource.take
    monkeypatch.setattr(KvSource, "step", step)
    monkeypatch.setattr(KvSource, "take", take)
    less = pb.Predicate.OPERATOR_LESS
    where = pb.Predicate(column="id", operator=less, literals=[pb.Literal(integer=0)])
    query = pb.ScanQuery(table="items", filter=[] if rows_match else [where])
    async with serving(filled_store(ROWS)) as (_, client), counted_rounds() as rounds:
        async with open_scan(client, query=query, credit=1 << 40, batch_rows_max=50) as scan:
            await scan.receive_all()
    assert scan.rows == (ROWS if rows_match else 0)
    assert len(seen) > 5
    # Of two tasks that are due, either may be first: two acts may see the same turn, but not three.
    assert all(first < third for first, third in zip(seen, seen[2:], strict=False))


async def test_a_step_that_fails_keeps_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else no scan of the server would read on, ever."""
    step = PushScan._step_now
    failed: list[PushScan] = []

    def step_now(scan: PushScan) -> None:
        if not failed:
            assert scan._turns._taken
            failed.append(scan)
            raise StoreFailed("the disk refused")
        step(scan)

    monkeypatch.setattr(PushScan, "_step_now", step_now)
    async with serving(filled_store(ROWS)) as (_, client):
        async with open_scan(client, window_only=True) as broken:
            with pytest.raises(CallFailed, match="the disk refused"):
                await broken.receive_all()
        with trio.fail_after(20):
            async with open_scan(client, window_only=True) as scan:
                await scan.receive_all()
    assert (len(failed), scan.rows) == (1, ROWS)


async def test_long_keys_do_not_overrun_the_credit() -> None:
    """A token is as long as its row's key, which no batch knows before it is cut: there is room for the longest."""
    table = TableDescription(
        "words", pa.schema([pa.field("word", pa.string(), nullable=False), ("n", pa.int64())]), ("word",), 1
    )
    words = sorted({"a\0" * (7 * number % 90) + str(number) for number in range(300)})
    batch = pa.record_batch([words, list(range(len(words)))], schema=table.schema)
    store = filled_store(0, table)
    store.bucket("words", 0).commit([mutations(store, "words", batch)])
    async with serving(store) as (_, client):
        async with open_scan(client, query=pb.ScanQuery(table="words"), credit=0) as scan:
            await scan.receive()
            limit = 0
            while scan.end is None:
                limit = max(limit, scan.received_bytes) + 1500
                await scan.demand(limit)
                await receive_up_to(scan, limit)
            await scan.receive_all()
    assert scan.rows == len(words)
    assert any(each.num_rows > 1 for each in scan.batches)


async def test_later_writes_are_invisible() -> None:
    """A scan that waits for credit shows the bucket as of its open, and its heartbeats the present log end."""
    store = filled_store(ROWS)
    async with serving(store) as (_, client):
        async with open_scan(client) as scan:
            await scan.receive()
            key = store.key_codec("items").encode_batch(sample([5]))[0]
            store.bucket("items", 0).commit(
                [[*mutations(store, "items", sample([7, ROWS + 1])), Mutation(key, None)]]
            )
            while not scan.heartbeats or scan.heartbeats[-1].high_watermark == ROWS:
                await scan.receive()  # The first may have been on its way before the commit.
            await scan.demand(1 << 40)
            await scan.receive_all()

    assert scan.heartbeats[-1].high_watermark == ROWS + 4
    assert scan.table().equals(pa.Table.from_batches([sample(range(ROWS))]))


@pytest.mark.parametrize("limit", [0, 1, 499, 500, 501, ROWS])
async def test_a_row_limit_is_exact(limit: int) -> None:
    """Exactly as many rows as asked for come, across batches, and the end says why."""
    store = filled_store(ROWS)
    async with serving(store) as (_, client):
        async with open_scan(
            client, query=pb.ScanQuery(table="items", row_limit=limit), credit=1 << 40
        ) as scan:
            await scan.receive_all()

    assert scan.rows == limit
    assert scan.end is not None
    assert (scan.end.reason, scan.end.rows) == (pb.ScanEnd.REASON_LIMIT, limit)
    assert scan.end.digest == stored_digest(store, range(limit))


async def test_projection_filter_and_range_are_pushed_down() -> None:
    """Columns come in the asked order, rows as the filter and the key range have them."""
    store = filled_store(ROWS)
    codec = store.key_codec("items")
    query = pb.ScanQuery(
        table="items",
        columns=["price", "id"],
        filter=[
            pb.Predicate(
                column="sold", operator=pb.Predicate.OPERATOR_EQUAL, literals=[pb.Literal(boolean=True)]
            )
        ],
        range=pb.KeyRange(start=codec.encode([10]), end=codec.encode([15])),
    )
    async with serving(store) as (_, client):
        async with open_scan(client, query=query, window_only=True) as scan:
            await scan.receive_all()

    assert scan.schema == pa.schema([SCHEMA.field("price"), SCHEMA.field("id")])
    assert scan.table().to_pydict() == {"price": [2.5, 3.0, 3.5], "id": [10, 12, 14]}


async def test_batch_bounds_of_the_client_are_kept_and_clamped() -> None:
    """Batches keep to what the client asks for, and to what the server allows."""
    rows = 600  # More than a block.
    async with serving(filled_store(rows)) as (_, client):
        async with open_scan(client, window_only=True, batch_rows_max=7) as scan:
            await scan.receive_all()
        assert {each.num_rows for each in scan.batches[:-1]} <= {7, 500 % 7, *range(1, 7)}
        assert scan.rows == rows
        async with open_scan(client, window_only=True, batch_bytes_max=1) as scan:
            await scan.receive_all()
        assert {each.num_rows for each in scan.batches} == {1}
        async with open_scan(client, window_only=True, batch_bytes_max=2**32 - 1) as scan:
            await scan.receive_all()
        assert scan.rows == rows


async def test_a_drain_ends_early_and_cleanly() -> None:
    """What is ready goes out within the credit, then the end, with the digest of what was delivered."""
    store = filled_store(ROWS)
    async with serving(store) as (_, client):
        async with open_scan(client, credit=5000) as scan:
            await scan.receive_credit(5000)
            await scan.drain()
            await scan.receive_all()

    assert scan.end is not None
    assert scan.end.reason == pb.ScanEnd.REASON_DRAINED
    assert 0 < scan.end.rows == scan.rows < ROWS
    assert scan.received_bytes < 5000 + ROW_MESSAGE_BYTES
    assert scan.end.digest == stored_digest(store, range(scan.rows))


@pytest.mark.parametrize("drained", [False, True])
async def test_the_snapshot_of_a_drained_scan_waits_for_its_resume(drained: bool) -> None:
    """As that of one that was cut off: to rebuild the state takes the changelog. Who is through needs it no more."""
    async with serving(filled_store(ROWS)) as (server, client):
        async with open_scan(client, credit=5000 if drained else 1 << 30) as scan:
            if drained:
                await scan.receive_credit(5000)
                await scan.drain()
            await scan.receive_all()
        await released(server)
        assert server.statistics().snapshots_open == int(drained)


async def test_a_drain_before_any_credit_ends_at_once() -> None:
    """Nothing is ready, so nothing but the end comes."""
    async with serving(filled_store(ROWS)) as (_, client):
        async with open_scan(client) as scan:
            await scan.drain()
            await scan.receive_all()

    assert scan.end is not None
    assert (scan.end.reason, scan.end.rows, scan.rows) == (pb.ScanEnd.REASON_DRAINED, 0, 0)


async def test_half_closing_after_a_demand_ends_with_the_credit() -> None:
    """No more credit will come: when it is used up the scan is drained, not stuck."""
    async with serving(filled_store(ROWS)) as (server, client):
        async with open_scan(client, credit=4000) as scan:
            await scan.stream.send_end()
            await scan.receive_all()
        assert server.statistics().activity.scans_parked == 0  # It was at once.

    assert scan.end is not None
    assert scan.end.reason == pb.ScanEnd.REASON_DRAINED
    assert 4000 <= scan.received_bytes < 4000 + ROW_MESSAGE_BYTES
    assert scan.end.rows == scan.rows


async def test_a_slow_reader_may_demand_until_it_has_read_the_end(mock_clock: trio.testing.MockClock) -> None:
    """Of what waits at the client the server knows nothing: it waits twice as long as the client has let it wait."""
    rows, pauses_s = 60, iter((1.5, 2.5, 4.5, 8.5))
    async with serving(filled_store(rows)) as (_, client):
        async with open_scan(client, credit=1 << 20, batch_rows_max=rows // 2) as scan:
            await scan.receive()
            while scan.end is None:
                mock_clock.jump(next(pauses_s))
                await scan.demand((2 << 20) + scan.received_bytes)
                await trio.testing.wait_all_tasks_blocked(0.01)  # The server has it.
                await scan.receive()
            await scan.receive_all()

    assert scan.rows == scan.end.rows == rows


@pytest.mark.parametrize("drains", [False, True])
async def test_a_call_that_is_not_half_closed_ends_in_the_end(
    drains: bool, autojump_clock: trio.abc.Clock
) -> None:
    """Two seconds after its client said something, or a second after a drain began, with status OK.

    What the server has waited for meanwhile is its client, and not its own work.
    """
    async with open_virtual_items(5) as items:
        async with open_scan(items.raw, credit=1 << 20) as scan:
            responses = [await scan.stream.receive() for _ in ("started", "batch", "end")]
            began = trio.current_time()
            async with trio.open_nursery() as nursery:
                if drains:
                    nursery.start_soon(items.server.drain, 20.0)
                assert await scan.stream.receive() is None
                waited_s = trio.current_time() - began

    assert pb.ScanResponse.FromString(bytes(responses[-1])).end.rows == 5
    assert waited_s == pytest.approx(1.0 if drains else 2.0, abs=0.2)
    assert scan.stream.peer_stalls is not None
    assert scan.stream.peer_stalls.seconds(StallReason.PEER) == pytest.approx(waited_s, abs=0.2)


async def test_a_call_of_a_client_that_was_silent_for_long_ends_after_half_a_minute(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Not after twice as long as it was silent: it may be so for as long as it likes."""
    async with open_virtual_items(5) as items:
        async with open_scan(items.raw) as scan:
            await scan.stream.receive()
            autojump_clock.jump(100)
            await scan.demand(1 << 20)
            while (message := await scan.stream.receive()) is not None:
                if pb.ScanResponse.FromString(bytes(message)).HasField("end"):
                    ended = trio.current_time()
            assert trio.current_time() - ended == pytest.approx(30.0, abs=0.2)


async def test_an_ended_scan_that_is_not_half_closed_takes_no_room() -> None:
    """Only its call is left: another scan may be opened, and the same stream id replaces nothing."""
    async with serving(filled_store(5), ScannerConfig(scans_max=1)) as (server, client):
        async with open_scan(client, credit=1 << 20, stream_id=b"mine") as ended:
            while ended.end is None:
                await ended.receive()
            await released(server)
            async with open_scan(client, credit=1 << 20, stream_id=b"mine") as scan:
                await scan.receive_all()
            await ended.stream.send_end()
            await ended.receive_all()

    assert scan.rows == ended.rows == 5


async def test_a_filter_that_drops_everything_makes_visible_progress() -> None:
    """While nothing passes, heartbeats say that the scan is at work, and others get their turn."""
    config = ScannerConfig(block_rows_max=1, heartbeat_interval_s=0.001)
    nothing = pb.Predicate(column="id", operator=pb.Predicate.OPERATOR_LESS, literals=[pb.Literal(integer=0)])
    async with serving(filled_store(600), config) as (_, client):
        async with open_scan(
            client, query=pb.ScanQuery(table="items", filter=[nothing]), window_only=True
        ) as scan:
            await scan.receive_all()

    assert scan.end is not None
    assert (scan.end.reason, scan.rows) == (pb.ScanEnd.REASON_EXHAUSTED, 0)
    states = {each.state for each in scan.heartbeats}
    states.discard(
        pb.Heartbeat.STATE_WAITING_CREDIT
    )  # before the half-close arrived, which tells of window-only
    assert states == {pb.Heartbeat.STATE_SCANNING}
