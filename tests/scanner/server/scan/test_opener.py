"""Read sources: what a scan as of an offset is read from, in which order, and what it holds meanwhile."""

from __future__ import annotations

import copy

import pyarrow as pa
import pytest

from scanner.errors import (
    ColumnNotFound,
    OffsetOutOfRange,
    SlowConsumer,
    SnapshotLost,
    TooManyScans,
)
from scanner.server.config import ScannerConfig
from scanner.server.scan.read_sources import ReadSource
from scanner.wire.queries import ScanQuery
from tests.support.opening import QUERY, ROWS, opening, read, resume
from tests.support.scans import sample, stored_digest


async def test_the_state_of_now_is_read_from_a_snapshot_of_now() -> None:
    """As of now, and as of an offset that is the log's end, a new snapshot is what was asked for."""
    async with opening() as at:
        first = await at.opener.open(QUERY, "ann")
        first.scan.close()
        second = await at.opener.open(QUERY, "ann", log_offset=ROWS)
        assert (first.read_source, second.read_source) == (ReadSource.NOW, ReadSource.NOW)
        assert read(second.scan.source) == list(range(ROWS))
        assert at.catalog.activity.scans_resumed == {"now": 1}
        second.scan.close()


async def test_the_log_is_kept_from_the_offset_on_also_where_it_begins_there() -> None:
    """Behind it nothing is left of it yet: what is written next is what a scan that is parked has to undo."""
    async with opening() as at:
        at.storage.truncate_log(ROWS)
        opened = await at.opener.open(QUERY, "ann")
        assert (await at.served()).pins.oldest() == ROWS
        opened.scan.close()


async def test_a_scan_of_what_a_failed_disk_has_lost_does_not_go_on() -> None:
    """Storage was opened anew, and what was written since is of another history: its rows would be of two states."""
    async with opening() as at:
        kept = copy.deepcopy(at.storage.contents)
        at.write(range(50, 150))
        opened = await at.opener.open(QUERY, "ann")
        assert read(opened.scan.source, 100) == list(range(100))
        served = await at.served()
        at.storage.contents = kept
        async with served._commits:
            await served._reopen(writable=True)
        at.write(range(100, 250))
        assert opened.scan.parked
        with pytest.raises(SnapshotLost, match="this scan"):
            await at.opener.reopen(opened)
        opened.scan.close()


async def test_each_start_of_reading_is_counted_as_a_seek() -> None:
    """A scan and each resume of it place an iterator once; batches go on where the last one ended."""
    async with opening() as at:
        first = await at.opener.open(QUERY, "ann")
        read(first.scan.source, 100)
        second = await resume(at, first.token())
        read(second.scan.source)
        assert at.catalog.activity.freeze().seeks == 2
        first.scan.close()
        second.scan.close()


async def test_a_snapshot_that_is_open_is_shared() -> None:
    """While another scan reads the state, or it lingers, a resume shares its snapshot, and nothing is rebuilt."""
    async with opening() as at:
        first = await at.opener.open(QUERY, "ann")
        assert read(first.scan.source, 100) == list(range(100))
        at.write(range(50, 150))
        second = await resume(at, first.token())
        assert second.read_source == ReadSource.SNAPSHOT
        assert at.storage.open_iterators <= 3  # one snapshot, and the scans over it
        first.scan.close(linger=True)
        second.scan.close(linger=True)
        third = await resume(at, first.token())
        assert third.read_source == ReadSource.SNAPSHOT
        assert read(third.scan.source) == list(range(100, ROWS))
        assert third.scan.source.digest == stored_digest(at.store, range(ROWS))
        third.scan.close()


async def test_without_the_snapshot_the_changes_since_are_undone() -> None:
    """Without the snapshot the state is rebuilt: rows that changed, went and came since are as they were."""
    async with opening() as at:
        first = await at.opener.open(QUERY, "ann")
        read(first.scan.source, 100)
        first.scan.close()
        at.write(range(50, 150))
        at.delete(200)
        at.write([1000])
        second = await resume(at, first.token())
        assert second.read_source == ReadSource.AS_OF
        assert read(second.scan.source) == list(range(100, ROWS))
        assert (second.scan.source.rows, second.log_offset) == (ROWS, ROWS)
        assert second.scan.source.digest == stored_digest(at.store, range(ROWS))
        second.scan.close()


async def test_an_emptied_registry_changes_no_row() -> None:
    """When what lingered is gone, the next read source gives the same rows and digest."""
    async with opening() as at:
        first = await at.opener.open(QUERY, "ann")
        read(first.scan.source, 170)
        first.scan.close(linger=True)
        at.write(range(0, ROWS, 7))
        (await at.served()).snapshots.clear()
        second = await resume(at, first.token())
        assert second.read_source == ReadSource.AS_OF
        assert read(second.scan.source) == list(range(170, ROWS))
        assert second.scan.source.digest == stored_digest(at.store, range(ROWS))
        second.scan.close()


async def test_a_state_that_is_lost_is_said_to_be_lost() -> None:
    """When the log was cut past the offset there is no read source: the error names what can be read instead."""
    async with opening() as at:
        first = await at.opener.open(QUERY, "ann")
        read(first.scan.source, 10)
        first.scan.close()
        at.write(range(5))
        at.storage.truncate_log(ROWS + 4)
        with pytest.raises(SnapshotLost, match=str(ROWS + 4)) as caught:
            await resume(at, first.token())
        assert caught.value.oldest_offset == ROWS + 4
        assert at.storage.open_iterators == 1  # of now: it lingers


async def test_an_offset_of_the_future_is_out_of_range() -> None:
    """There is no such state yet; the error names the log's range."""
    async with opening() as at:
        at.storage.truncate_log(7)
        with pytest.raises(OffsetOutOfRange, match=rf"\[7, {ROWS}\).*as of {ROWS + 1}"):
            await at.opener.open(QUERY, "ann", log_offset=ROWS + 1)


async def test_time_travel() -> None:
    """Every offset that a commit ended at shows what was there at that time, offset 0 nothing."""
    async with opening() as at:
        at.delete(3)
        at.write([1000])
        expected = {
            0: [],
            ROWS: list(range(ROWS)),
            ROWS + 1: [*range(3), *range(4, ROWS)],
            ROWS + 2: [*range(3), *range(4, ROWS), 1000],
        }
        for offset, ids in expected.items():
            opened = await at.opener.open(QUERY, "ann", log_offset=offset)
            assert read(opened.scan.source) == ids
            opened.scan.close()


async def test_a_parked_scan_holds_nothing_but_the_log() -> None:
    """Parked, it has no iterator and no rows; it keeps the log from its offset on, and reopens as it was."""
    async with opening() as at:
        opened = await at.opener.open(QUERY, "ann")
        served = await at.served()
        read(opened.scan.source, 120)
        opened.scan.source.step()
        opened.scan.park()
        assert (at.storage.open_iterators, served.snapshots.lingering) == (0, ())
        assert (opened.scan.parked, opened.scan.source.pending_bytes) == (True, 0)
        assert served.pins.oldest() == ROWS
        at.write(range(0, ROWS, 3))
        await at.opener.reopen(opened)
        assert (opened.read_source, opened.scan.parked) == (ReadSource.AS_OF, False)
        assert read(opened.scan.source) == list(range(120, ROWS))
        assert opened.scan.source.digest == stored_digest(at.store, range(ROWS))
        opened.scan.close()
        assert at.catalog.activity.scans_parked == 1
        assert at.catalog.activity.scans_resumed == {"as_of": 1}


async def test_a_parked_scan_keeps_its_columns() -> None:
    """A column that is added while it is parked is not in what it delivers afterwards, nor in what its token gives."""
    async with opening() as at:
        opened = await at.opener.open(QUERY, "ann")
        schema = opened.scan.source.schema
        first = read(opened.scan.source, 120)
        opened.scan.park()
        await at.catalog.add_column("items", pa.field("colour", pa.string()))
        await at.opener.reopen(opened)
        assert opened.scan.source.schema == schema
        assert read(opened.scan.source) == list(range(len(first), ROWS))
        resumed = await resume(at, opened.token())
        assert resumed.scan.source.schema == schema
        fresh = await at.opener.open(QUERY, "ann")
        assert fresh.scan.source.schema.names == [*schema.names, "colour"]
        for each in (opened, resumed, fresh):
            each.scan.close()


async def test_parking_leaves_the_snapshot_to_others() -> None:
    """Who shares a snapshot with a scan that parks reads on, and the parked one finds it again."""
    async with opening() as at:
        one, two = await at.opener.open(QUERY, "ann"), await at.opener.open(QUERY, "bob")
        at.write([5])
        one.scan.park()
        assert read(two.scan.source) == list(range(ROWS))
        await at.opener.reopen(one)
        assert one.read_source == ReadSource.SNAPSHOT
        one.scan.close()
        two.scan.close()


async def test_a_parked_scan_whose_log_was_cut_is_lost() -> None:
    """Cutting in spite of the pin is the operator's choice; the scan then says what happened."""
    async with opening() as at:
        opened = await at.opener.open(QUERY, "ann")
        opened.scan.park()
        at.write([5])
        at.storage.truncate_log(ROWS + 2)
        with pytest.raises(SnapshotLost):
            await at.opener.reopen(opened)
        assert opened.scan.parked
        opened.scan.close()


async def test_a_step_reads_what_it_is_asked_for() -> None:
    """For a small credit a small block is decoded; without a bound, or with a large one, the configured block."""
    async with opening() as at:
        opened = await at.opener.open(QUERY, "ann")
        source = opened.scan.source
        taken = []
        for bytes_max in (1, 200, 1 << 30, None):
            source.step(bytes_max)
            batch = source.take(1 << 30, 1 << 20)
            assert batch is not None
            taken.append(batch.rows.num_rows)
        opened.scan.close()
    assert taken[0] == 1
    assert 1 < taken[1] < 20
    assert taken[2:] == [50, 50]


async def test_no_room_for_a_snapshot_leaves_a_scan_parked() -> None:
    """Refused by the cap, it stays as it was and may try again."""
    async with opening(ScannerConfig(snapshots_max=1)) as at:
        parked = await at.opener.open(QUERY, "ann")
        parked.scan.park()
        at.write([5])
        other = await at.opener.open(QUERY, "bob")
        at.write([5])
        with pytest.raises(TooManyScans):
            await at.opener.reopen(parked)
        other.scan.close()
        await at.opener.reopen(parked)
        assert read(parked.scan.source) == list(range(ROWS))
        parked.scan.close()


async def test_every_open_scan_keeps_its_log() -> None:
    """The log is pinned from the oldest scan on, whoever has it; closing the scan lets go of it."""
    async with opening() as at:
        served = await at.served()
        old = await at.opener.open(QUERY, "ann", log_offset=50)
        new = await at.opener.open(QUERY, "bob")
        unpinned = await at.opener.open(QUERY, "bob", log_offset=10, pin_log=False)
        assert served.pins.oldest_by_principal() == {"ann": 50, "bob": ROWS}
        old.scan.close()
        assert served.pins.oldest() == ROWS
        pin = served.pins.longest_of("bob")
        assert pin is not None
        pin.end(SlowConsumer("enough"))
        assert isinstance(new.scan.ended_by, SlowConsumer)
        new.scan.close()
        unpinned.scan.close()


async def test_a_query_that_does_not_fit_holds_nothing() -> None:
    """An unknown column is refused, and neither snapshot nor pin is left; what it would have read may linger."""
    async with opening() as at:
        with pytest.raises(ColumnNotFound):
            await at.opener.open(ScanQuery(table="items", columns=("colour",)), "ann")
        assert list(at.catalog.open_scans()) == []


async def test_a_scan_that_cannot_be_opened_holds_no_snapshot() -> None:
    """Refused a hundred times for a lost state, scans leave room for the one snapshot that a server may have."""
    async with opening(ScannerConfig(snapshots_max=1, snapshot_linger_s=0)) as at:
        at.write([5])
        at.storage.truncate_log(ROWS + 2)
        for _ in range(100):
            with pytest.raises(SnapshotLost):
                await at.opener.open(QUERY, "ann", log_offset=ROWS)
            assert at.catalog.snapshots.snapshots_open == 0
        at.write([5])
        opened = await at.opener.open(QUERY, "ann")
        assert read(opened.scan.source) == list(range(ROWS))
        opened.scan.close()


async def test_reading_as_of_gives_arrow_like_any_scan() -> None:
    """What is rebuilt has the same schema and cells as what was there."""
    async with opening() as at:
        opened = await at.opener.open(QUERY, "ann")
        at.write(range(ROWS))
        rebuilt = await at.opener.open(QUERY, "ann", log_offset=ROWS)
        opened.scan.close()
        batches = []
        while rebuilt.scan.source.end is None:
            batch = rebuilt.scan.source.take(1 << 30, 1 << 20)
            if batch is None:
                rebuilt.scan.source.step()
            else:
                batches.append(batch.rows)
        rebuilt.scan.close()
    assert pa.Table.from_batches(batches).equals(pa.Table.from_batches([sample(range(ROWS))]))
