"""The page maker: how much it reads, when it stops, and what the page says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from scanner.data.position import START, Position
from scanner.data.rows import RowCodec
from scanner.errors import TableNotFound
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.server.config import ScannerConfig
from scanner.server.pull.pages import Page, make_page, sealed
from scanner.server.tables.bucket import ServedBucket
from scanner.sources.kv import KvSource
from scanner.storage.interface import Rows
from scanner.tasks import inline
from scanner.wire.batches import decode_scan_page
from scanner.wire.queries import ScanQuery
from tests.support.scans import description, filled_store, stored_digest

if TYPE_CHECKING:
    from scanner.server.tables.open_scan import OpenScan
    from scanner.storage.interface import BucketScan

ROWS = 2_000
CONFIG = ScannerConfig(block_rows_max=500, session_page_time_max_s=10.0, session_page_bytes_max=20_000)


class CountedScan:
    """A scan that counts the rows that it was read for; `before` is called with every read."""

    def __init__(self, scan: BucketScan, before: Callable[[int], Rows | None]) -> None:
        self._scan = scan
        self._before = before
        self.log_offset = scan.log_offset
        self.reads = 0
        self.rows = 0

    def read(self, rows_max: int, bytes_max: int) -> Rows:
        """Read on."""
        self.reads += 1
        answer = self._before(self.reads)
        if answer is None:
            answer = self._scan.read(rows_max, bytes_max)
            self.rows += len(answer.rows)
        return answer

    def close(self) -> None:
        """Let go."""
        self._scan.close()


def nothing_before(_reads: int) -> Rows | None:
    """Every read is the bucket's."""
    return None


@asynccontextmanager
async def opened(
    before: Callable[[int], Rows | None] = nothing_before,
    position: Position = START,
    query: ScanQuery | None = None,
) -> AsyncIterator[tuple[OpenScan[KvSource], CountedScan]]:
    """A scan of the sample table."""
    store, table = filled_store(ROWS), description()
    query = query or ScanQuery(table="items")
    async with trio.open_nursery() as nursery:
        bucket = ServedBucket(store.bucket("items", 0), CONFIG, nursery, inline)
        counted = CountedScan(bucket.storage.open_snapshot().scan(position.remaining(query.range)), before)
        source = KvSource(
            counted,
            table,
            RowCodec(table.schema),
            query,
            position=position,
            block_rows_max=CONFIG.block_rows_max,
            block_bytes_max=CONFIG.block_bytes_max,
        )
        scan = bucket.admit(source)
        yield scan, counted
        scan.close()


async def make(
    scan: OpenScan[KvSource], size_bytes: int, *, keeps_rest: bool
) -> tuple[pb.ScanPageResponse, Page]:
    """One page."""
    fields = pb.ScanPageResponse()
    payload = await make_page(CONFIG, scan, fields, size_bytes, keeps_rest=keeps_rest)
    return fields, sealed(fields, payload)


@pytest.mark.parametrize("size_bytes", [1, 300, 2_000, 10_000, 1 << 20])
async def test_page_reads_little_more_than_it_takes(size_bytes: int) -> None:
    """Where the rest is thrown away, no more than a fraction is read in vain; where it is kept, whole blocks are."""
    async with opened() as (scan, counted):
        fields, page = await make(scan, size_bytes, keeps_rest=False)
        # A page of the smallest sizes is mostly Arrow's own octets, and what was read for it a few rows.
        assert counted.rows <= 1.3 * fields.row_count + 20
        received = decode_scan_page(b"".join(page.parts))
        assert 0 < len(received.payload) <= max(min(size_bytes, CONFIG.session_page_bytes_max), 600)
    async with opened() as (scan, counted):
        kept, _ = await make(scan, size_bytes, keeps_rest=True)
        assert counted.rows % CONFIG.block_rows_max == 0
        assert kept.row_count == pytest.approx(fields.row_count, rel=0.1)


async def test_pages_from_positions_make_the_scan() -> None:
    """A scan that begins anew behind each page delivers rows, ordinals and digest of one that never did."""
    position, seen, last = START, 0, False
    while not last:
        async with opened(position=position) as (scan, _):
            fields, page = await make(scan, 7_000, keeps_rest=False)
            assert fields.row_ordinal == seen
            seen += fields.row_count
            position, last = scan.source.position, page.last
            assert fields.HasField("rows") == fields.HasField("digest") == last
    assert (fields.rows, fields.digest) == (ROWS, stored_digest(filled_store(0), range(ROWS)))


async def test_time_is_over(mock_clock: trio.testing.MockClock) -> None:
    """A page is sent with what was found when its time is over."""

    def before(reads: int) -> None:
        mock_clock.jump(6.0)

    async with opened(before) as (scan, counted):
        fields, page = await make(scan, 20_000, keeps_rest=False)
        assert (counted.reads, page.last) == (2, False)
        assert fields.row_count == counted.rows > 0


async def test_page_moves_on_however_long_it_takes(mock_clock: trio.testing.MockClock) -> None:
    """What has to be done before the first row is done, or the next page would do it again, for ever."""

    def before(reads: int) -> Rows | None:
        mock_clock.jump(11.0)
        return Rows([], lambda rows: [], unfinished=True) if reads <= 5 else None

    nothing = ScanQuery(table="items", columns=("id",))
    async with opened(before, query=nothing) as (scan, counted):
        fields, page = await make(scan, 1, keeps_rest=False)
        assert (counted.reads, fields.row_count, page.last) == (6, 1, False)
        assert scan.source.position != START


async def test_bucket_ends_the_scan() -> None:
    """The page of a bucket that is retired meanwhile fails with its reason."""
    async with opened() as (scan, _):
        reason = TableNotFound("table 'items' was dropped")

        async def retire() -> None:
            scan.end(reason)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(retire)
            with pytest.raises(TableNotFound, match="dropped"):
                await make(scan, 20_000, keeps_rest=False)


async def test_the_disk_is_read_behind_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the next step would wait for is read outside of it, where other tasks go on meanwhile."""
    fetched: list[int] = []
    async with opened() as (scan, counted):
        monkeypatch.setattr(KvSource, "fetch", property(lambda _: lambda: fetched.append(counted.reads)))
        await make(scan, 20_000, keeps_rest=True)
        assert fetched == list(range(1, counted.reads + 1)) != []


async def test_cancelled_page_can_be_made_again() -> None:
    """What was read for a page that nobody waits for any more is part of the next."""
    async with opened() as (scan, _):
        with trio.CancelScope() as scope:
            scope.cancel()
            await make(scan, 20_000, keeps_rest=True)
        fields, _ = await make(scan, 20_000, keeps_rest=True)
        assert fields.row_ordinal == 0
