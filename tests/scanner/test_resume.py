"""Push scans that are cut and go on by themselves, against a server that plays what it is told, on a virtual clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
import trio
import trio.testing

from scanner.client.table import Table
from scanner.data.table import TableDescription
from scanner.errors import (
    ERRORS,
    DataCorrupted,
    Draining,
    OffsetOutOfRange,
    ResumeTokenInvalid,
    ScanIncomplete,
    ScannerError,
    SchemaMismatch,
    ServerUnavailable,
    SnapshotLost,
    StoreClosed,
    TooManyScans,
)
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.wire import methods
from tests.support.faults import FaultyStream
from tests.support.hosts import (
    MemoryHost,
    Script,
    Step,
    connected_to,
    hang,
    read_keys,
    reset,
    scripted_table,
    settle,
)
from tests.support.push_messages import DIGEST, LOG_OFFSET, SCHEMA, end, heartbeat, rows, started
from transport import TransportConfig

if TYPE_CHECKING:
    from scanner.client.scan.scan import Scan
    from scanner.client.scan.statistics import ScanStatistics
    from transport import ServerStream

WHOLE = [started(), rows(0, [0, 1], token=b"2"), rows(2, [2, 3], token=b"4"), end(4)]
FIRST_HALF = WHOLE[:2]
SECOND_HALF = [started(row_ordinal=2), *WHOLE[2:]]
RETRIABLE = [row.exception for row in ERRORS if row.retriable]
TERMINAL = [row.exception for row in ERRORS if not row.retriable]


async def failure_of(scan: Scan) -> tuple[ScannerError, list[int], ScanStatistics]:
    """The error that a scan fails with, the keys that came before it, and what it did. Polling again raises again."""
    keys: list[int] = []
    async with scan.execute() as batches:
        with pytest.raises(ScannerError) as caught:
            async for batch in batches:
                keys += batch["k"].to_pylist()
        with pytest.raises(type(caught.value)):
            await anext(batches)
    return caught.value, keys, batches.statistics()


class Cut:
    """A step that needs the host, which is there only later."""

    def __init__(self) -> None:
        self.host: MemoryHost | None = None

    async def __call__(self, _stream: ServerStream) -> None:
        """Let everything sent arrive, then cut the connection."""
        assert self.host is not None
        await settle()
        self.host.cut()


async def test_an_uncut_scan_opens_one_stream(autojump_clock: trio.testing.MockClock) -> None:
    """Without a cut there is one request and no resume."""
    script = Script(WHOLE)
    async with scripted_table(script) as (table, _):
        keys, statistics = await read_keys(table.new_scan())
    assert keys == [0, 1, 2, 3]
    assert (statistics.requests, statistics.resumes) == (1, 0)


@pytest.mark.parametrize("kind", RETRIABLE, ids=lambda kind: kind.reason)
async def test_every_retriable_status_is_resumed(
    kind: type[ScannerError], autojump_clock: trio.testing.MockClock
) -> None:
    """What the error table calls retriable goes on behind the last row, with the token that came with it."""
    script = Script([*FIRST_HALF, kind("why")], SECOND_HALF)
    async with scripted_table(script) as (table, _):
        keys, statistics = await read_keys(table.new_scan())
    assert keys == [0, 1, 2, 3]
    assert statistics.digest is not None
    assert (statistics.requests, statistics.resumes, statistics.buckets[0].resumes) == (2, 1, 1)
    assert statistics.buckets[0].digest == DIGEST
    first, second = script.opens
    assert (first.resume_token, second.resume_token) == (b"", b"2")
    assert not second.HasField("as_of")
    assert (first.query, first.source) == (second.query, second.source)


@pytest.mark.parametrize("cut", ["reset", "end of the stream", "drained", "connection"])
async def test_every_cut_is_resumed(cut: str, autojump_clock: trio.testing.MockClock) -> None:
    """A reset, a stream that ends too early, a server that drains, a lost connection: no row lost, none repeated."""
    cutting = Cut()
    steps: dict[str, list[Step]] = {
        "reset": [reset],
        "end of the stream": [],
        "drained": [end(2, pb.ScanEnd.REASON_DRAINED, token=b"2")],
        "connection": [cutting],
    }
    script = Script([*FIRST_HALF, *steps[cut]], SECOND_HALF)
    async with scripted_table(script) as (table, host):
        cutting.host = host
        keys, statistics = await read_keys(table.new_scan())
        assert len(host.dialled_at) == (2 if cut == "connection" else 1)
    assert keys == [0, 1, 2, 3]
    assert statistics.resumes == 1
    assert [each.resume_token for each in script.opens] == [b"", b"2"]


@pytest.mark.parametrize(
    ("kind", "says"),
    [(None, "cut off"), (ScanIncomplete, "after 2 rows"), (Draining, "after 2 rows"), (TooManyScans, "full")],
)
async def test_without_retries_errors_come_at_once(
    kind: type[ScannerError] | None, says: str, autojump_clock: trio.testing.MockClock
) -> None:
    """retries=0, of the client or of the scan: the failure as it is, and no second request."""
    last: dict[type[ScannerError] | None, list[Step]] = {
        None: [reset],
        ScanIncomplete: [],
        Draining: [end(2, pb.ScanEnd.REASON_DRAINED, token=b"2")],
        TooManyScans: [TooManyScans("full")],
    }
    for client_retries, scan_retries in ((0, None), (8, 0)):
        script = Script([*FIRST_HALF, *last[kind]])
        async with scripted_table(script, client_retries) as (table, _):
            scan = table.new_scan()
            scan = scan if scan_retries is None else scan.with_retries(scan_retries)
            error, keys, _ = await failure_of(scan)
        assert isinstance(error, kind or ScanIncomplete)
        assert says in error.message
        assert "attempts" not in error.message
        assert set(keys) <= {0, 1}
        assert len(script.opens) == 1
    assert trio.current_time() == 0


async def test_a_scan_may_have_retries_that_its_client_has_not(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The scan's own number wins over the client's."""
    async with scripted_table(Script([*FIRST_HALF, reset], SECOND_HALF), retries=0) as (table, _):
        keys, _ = await read_keys(table.new_scan().with_retries(1))
    assert keys == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", TERMINAL, ids=lambda kind: kind.reason)
async def test_every_other_status_is_terminal(
    kind: type[ScannerError], autojump_clock: trio.testing.MockClock
) -> None:
    """What trying again cannot help fails the scan at once, at its opening and after a resume."""
    for script in (
        Script([kind("why", oldest_offset=5)]),
        Script([*FIRST_HALF, reset], [kind("why", oldest_offset=5)]),
    ):
        async with scripted_table(script) as (table, _):
            error, _, _ = await failure_of(table.new_scan())
        assert type(error) is kind
        assert (error.message, error.oldest_offset) == ("why", 5)
    assert len(script.opens) == 2


async def test_the_newest_token_wins_but_none_that_is_ahead(autojump_clock: trio.testing.MockClock) -> None:
    """Heartbeats move the token; an error's counts only if nothing was dropped in front of it."""
    ahead = StoreClosed("closed", resume_token=b"far ahead", metadata={"rows": "3"})
    level = StoreClosed("closed", resume_token=b"2++", metadata={"rows": "2"})
    script = Script(
        [*FIRST_HALF, heartbeat(b"2+"), heartbeat(), ahead],
        [started(row_ordinal=2), level],
        SECOND_HALF,
    )
    async with scripted_table(script) as (table, _):
        keys, _ = await read_keys(table.new_scan())
    assert keys == [0, 1, 2, 3]
    assert [each.resume_token for each in script.opens[1:]] == [b"2+", b"2++"]


@pytest.mark.parametrize(("heartbeat_interval_ms", "patience_s"), [(0, 65), (5_000, 65), (100_000, 305)])
async def test_silence_is_a_cut(
    heartbeat_interval_ms: int, patience_s: float, autojump_clock: trio.testing.MockClock
) -> None:
    """Behind a line that lives but brings nothing, no heartbeat either, a scan goes on over another stream."""
    beating = started(heartbeat_interval_ms=heartbeat_interval_ms)
    script = Script([beating, WHOLE[1], heartbeat(b"2"), hang], SECOND_HALF)
    async with scripted_table(script) as (table, _):
        began = trio.current_time()
        keys, statistics = await read_keys(table.new_scan())
        assert patience_s <= trio.current_time() - began < patience_s + 1
    assert (keys, statistics.resumes) == ([0, 1, 2, 3], 1)


async def test_a_message_that_arrives_slowly_is_no_silence(autojump_clock: trio.testing.MockClock) -> None:
    """Over a slow line a batch takes minutes, and comes as it is."""
    dialled: list[FaultyStream] = []

    async def slow_down(_stream: ServerStream) -> None:
        await settle()
        dialled[-1].read_s = 25.0

    class Host(MemoryHost):
        async def dial(self) -> trio.abc.HalfCloseableStream:
            dialled.append(FaultyStream(await super().dial(), read_bytes=50))
            return dialled[-1]

    script = Script([*FIRST_HALF, slow_down, *WHOLE[2:]])
    async with trio.open_nursery() as nursery:
        host = Host(nursery, {methods.SCAN: script}, TransportConfig(ping_interval_s=0))
        async with connected_to(host) as connection:
            table = Table(connection, TableDescription("t", SCHEMA, ("k",), 1), 0)
            keys, statistics = await read_keys(table.new_scan())
        assert trio.current_time() > 100
        nursery.cancel_scope.cancel()
    assert (keys, statistics.requests) == ([0, 1, 2, 3], 1)


async def test_nothing_received_means_opened_anew(autojump_clock: trio.testing.MockClock) -> None:
    """Before the start nothing is fixed: the second stream asks for what the first one did, under the same id.

    A server that is away, or refuses, is no reason to ask for smaller batches.
    """
    script = Script([reset], [StoreClosed("closed")], [started(log_offset=30), *WHOLE[1:]])
    async with scripted_table(script) as (table, _):
        keys, statistics = await read_keys(table.new_scan())
    assert keys == [0, 1, 2, 3]
    assert (statistics.requests, statistics.resumes) == (3, 0)
    assert script.opens[0] == script.opens[1] == script.opens[2]
    assert len(script.opens[0].stream_id) == 16
    assert statistics.buckets[0].log_offset == 30


async def test_batches_shrink_with_cuts_and_grow_with_success(autojump_clock: trio.testing.MockClock) -> None:
    """A stream that is cut before its first batch makes the next ask for half, one that brings many for double."""

    def many(first: int) -> list[bytes]:
        return [rows(row, [row], token=b"%d" % (row + 1)) for row in range(first, first + 16)]

    script = Script(
        [started(), reset],
        [started(), reset],
        [started(), reset],
        [started(), reset],
        [StoreClosed("away")],
        [started(), *many(0), hang],
        [started(row_ordinal=16), *many(16), hang],
        [started(row_ordinal=32), end(32)],
    )
    async with scripted_table(script) as (table, _):
        keys, _ = await read_keys(table.new_scan())
    assert keys == list(range(32))
    asked = [each.batch_bytes_max >> 10 for each in script.opens]
    assert asked == [0, 0, 1024, 512, 256, 256, 512, 1024]


async def test_two_scans_have_ids_of_their_own(autojump_clock: trio.testing.MockClock) -> None:
    """Scans of one principal never replace each other, also not those of clients with the same seed."""
    ids = set()
    for _ in range(2):
        script = Script(WHOLE, WHOLE)
        async with scripted_table(script, seed=1) as (table, _):
            await read_keys(table.new_scan())
            await read_keys(table.new_scan())
        ids |= {each.stream_id for each in script.opens}
    assert len(ids) == 4


async def test_started_and_no_more_means_the_same_offset(autojump_clock: trio.testing.MockClock) -> None:
    """A scan that knows its offset and has no token yet is opened as of that offset."""
    script = Script([started(), reset], WHOLE)
    async with scripted_table(script) as (table, _):
        keys, statistics = await read_keys(table.new_scan())
    assert keys == [0, 1, 2, 3]
    assert (script.opens[1].as_of, script.opens[1].resume_token) == (LOG_OFFSET, b"")
    assert statistics.resumes == 1


async def test_time_travel_stays_where_it_is(autojump_clock: trio.testing.MockClock) -> None:
    """A scan as of an offset asks for it until there is a token, which then says it."""
    script = Script([reset], [started(), reset], [*FIRST_HALF, reset], SECOND_HALF)
    async with scripted_table(script) as (table, _):
        await read_keys(table.new_scan().as_of({0: LOG_OFFSET}))
    assert [each.HasField("as_of") for each in script.opens] == [True, True, True, False]
    assert {each.as_of for each in script.opens[:3]} == {LOG_OFFSET}


@pytest.mark.parametrize(
    ("second", "kind", "says"),
    [
        ([started(log_offset=18, row_ordinal=2)], DataCorrupted, "rows of two states would be mixed"),
        ([started(row_ordinal=0)], DataCorrupted, "goes on at row 0, but 2 rows arrived"),
        ([started(row_ordinal=3)], DataCorrupted, "goes on at row 3, but 2 rows arrived"),
        ([started(row_ordinal=2), rows(0, [0, 1])], DataCorrupted, "lost or repeated"),
        ([started(row_ordinal=2), rows(2, [2], crc32c=1)], DataCorrupted, "damaged"),
        ([started(row_ordinal=2), end(2 + 1)], DataCorrupted, "2 rows arrived, but the server sent 3"),
        ([rows(2, [2, 3])], DataCorrupted, "before the start"),
        ([ResumeTokenInvalid("no")], ResumeTokenInvalid, "no"),
        ([SnapshotLost("gone", oldest_offset=20)], SnapshotLost, "gone"),
        ([OffsetOutOfRange("gone")], OffsetOutOfRange, "gone"),
    ],
    ids=str,
)
async def test_wrong_resumes_are_found_out(
    second: Sequence[Step], kind: type[ScannerError], says: str, autojump_clock: trio.testing.MockClock
) -> None:
    """A server that goes on with another state, other rows or not at all fails the scan, after rows that are right."""
    script = Script([*FIRST_HALF, reset], [*second, hang])
    async with scripted_table(script) as (table, _):
        error, keys, _ = await failure_of(table.new_scan())
    assert type(error) is kind
    assert says in error.message
    assert set(keys) <= {0, 1}
    assert len(script.opens) == 2


async def test_a_table_that_was_replaced_is_no_resume(autojump_clock: trio.testing.MockClock) -> None:
    """Another schema after a cut is another table."""
    script = Script([*FIRST_HALF, reset], [started(pa.schema([("k", pa.string())]), row_ordinal=2), hang])
    async with scripted_table(script) as (table, _):
        error, _, _ = await failure_of(table.new_scan())
    assert isinstance(error, SchemaMismatch)


async def test_a_server_without_tokens_cannot_be_resumed(autojump_clock: trio.testing.MockClock) -> None:
    """After rows without a token the failure surfaces as it is: going on would repeat them."""
    script = Script([started(), rows(0, [0, 1], token=b"2"), rows(2, [2]), settle, StoreClosed("closed")])
    async with scripted_table(script) as (table, _):
        error, _, _ = await failure_of(table.new_scan())
    assert isinstance(error, StoreClosed)
    assert error.message == "closed"
    assert len(script.opens) == 1


async def test_attempts_run_out(autojump_clock: trio.testing.MockClock) -> None:
    """After retries + 1 attempts without progress the last error surfaces, saying so; rows from before are right."""
    refused: list[Step] = [started(row_ordinal=2), TooManyScans("full")]
    script = Script([*FIRST_HALF, reset], *3 * [refused])
    async with scripted_table(script, retries=3) as (table, _):
        error, keys, statistics = await failure_of(table.new_scan())
    assert isinstance(error, TooManyScans)
    assert error.message == "full (after 4 attempts without progress)"
    assert set(keys) <= {0, 1}
    assert (statistics.requests, statistics.digest) == (4, None)


async def test_a_server_that_stays_away(autojump_clock: trio.testing.MockClock) -> None:
    """Nobody answers any more: ServerUnavailable after all attempts, each of which tried to connect once."""
    vanishing = Cut()
    script = Script([*FIRST_HALF, vanishing, hang])
    async with scripted_table(script, retries=5) as (table, host):
        vanishing.host, host.refusals = host, 1000
        error, _, statistics = await failure_of(table.new_scan())
        assert len(host.dialled_at) == 1 + 5
    assert isinstance(error, ServerUnavailable)
    assert "no weir server answers at memory:1" in error.message
    assert "after 6 attempts" in error.message
    assert statistics.requests == 1
    assert 0 < trio.current_time() <= 0.1 + 0.2 + 0.4 + 0.8 + 1.6


async def test_progress_starts_the_count_anew(autojump_clock: trio.testing.MockClock) -> None:
    """A line that cuts every stream after one batch is survived with one retry; so is a filter that drops much."""
    streams: list[list[Step]] = [
        [started(row_ordinal=n), rows(n, [n], token=b"%d" % (n + 1)), reset] for n in range(20)
    ]
    streams += [[started(row_ordinal=20), heartbeat(b"%d+" % n), reset] for n in range(5)]
    script = Script(*streams, [started(row_ordinal=20), end(20)])
    async with scripted_table(script, retries=1) as (table, _):
        keys, statistics = await read_keys(table.new_scan())
    assert keys == list(range(20))
    assert statistics.resumes == 25
    assert script.opens[-1].resume_token == b"4+"


async def test_a_consumer_that_is_waited_for_is_no_failure(autojump_clock: trio.testing.MockClock) -> None:
    """While the consumer holds the whole window, the stream may be cut as often as it likes."""
    waiting = heartbeat(b"", pb.Heartbeat.STATE_WAITING_CREDIT)
    cut: list[Step] = [started(row_ordinal=2), waiting, reset]
    script = Script([*FIRST_HALF, reset], *10 * [cut], SECOND_HALF)
    async with scripted_table(script, retries=1) as (table, _):
        async with table.new_scan().with_credit(1).execute() as batches:
            await script.wait_opened(11)
            assert [key async for batch in batches for key in batch["k"].to_pylist()] == [0, 1, 2, 3]
    assert batches.statistics().resumes == 11


@pytest.mark.parametrize(
    "idle",
    [rows(2, [], token=b"2"), heartbeat(b"2", pb.Heartbeat.STATE_WAITING_CREDIT), heartbeat(b"2")],
    ids=["batches without rows", "a wait for credit that is there", "heartbeats"],
)
async def test_a_server_that_only_looks_busy_runs_out_of_attempts(
    idle: bytes, autojump_clock: trio.testing.MockClock
) -> None:
    """What brings no row and no further position is no progress, however often it comes."""
    cut: list[Step] = [started(row_ordinal=2), idle, reset]
    script = Script([*FIRST_HALF, reset], *3 * [cut])
    async with scripted_table(script, retries=3) as (table, _):
        error, _, _ = await failure_of(table.new_scan())
    assert isinstance(error, ScanIncomplete)
    assert "after 4 attempts without progress" in error.message


async def test_an_end_for_an_unknown_reason_is_typed(autojump_clock: trio.testing.MockClock) -> None:
    """A server of another version, or a lying one, cannot bring anything but a ScannerError out of the client."""
    script = Script([*FIRST_HALF, end(2, 99)])  # type: ignore[arg-type]  # No reason has that number.
    async with scripted_table(script) as (table, _):
        error, _, _ = await failure_of(table.new_scan())
    assert isinstance(error, DataCorrupted)
    assert "reason 99" in error.message
