"""Opens scans of a bucket's changelog, from a bookmark or behind a snapshot, and continues them.

Invariants:

1. From the moment at which it is opened a scan keeps the log from where it begins, within what its principal may keep.
   A scan that begins with a snapshot as of S keeps it from S on.
2. Scans of one bucket that want the same columns and filter share what is read (`scanner.sources.log_blocks`).
3. A scan delivers the columns that it began with, however often it is parked or resumed, and whatever is added to its
   table.

This module knows no stream.
"""

from __future__ import annotations

import functools
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from scanner.data.changes import change_schema
from scanner.data.filters import Filter
from scanner.data.position import START, Position
from scanner.errors import ArgumentInvalid
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.server.log.bounds import (
    Stop,
    last_entry_end,
    require_entry_end,
    require_in_log,
    require_stop_kept,
    said_of_bucket,
    start_offset,
)
from scanner.server.log.hybrid_scan import HybridScan
from scanner.server.log.log_scan import LogScan
from scanner.server.scan.resumes import require_history
from scanner.server.scan.tokens import fingerprint, stop_id, stop_of
from scanner.sources.log import LogSource
from scanner.sources.log_blocks import LogBlocks, RingBudget

if TYPE_CHECKING:
    import pyarrow as pa

    from scanner.errors import ScannerError
    from scanner.server.config import ScannerConfig
    from scanner.server.scan.kv_scan import KvScan
    from scanner.server.scan.opener import ScanOpener
    from scanner.server.scan.tokens import Tokens, TokenState
    from scanner.server.tables.bucket import ServedBucket
    from scanner.server.tables.catalog import Catalog, ServedTable
    from scanner.server.tables.open_scan import OpenScan
    from scanner.wire.queries import ScanQuery

_RESUMED = "the resume token"
_FETCHED_BLOCKS_MAX: Final = 4
"""Columns and filters of one bucket whose newest changes are kept between fetches; the rings' budget holds for them."""
_KEPT_LITERALS_BYTES_MAX: Final = 16 * 1024
"""What the literals of a filter that is kept with them take: no budget holds for it."""
_VALUE_BYTES: Final = 16
"""Of a literal that is neither text nor octets, about."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is to be opened, but for where it begins."""

    table: ServedTable
    bucket: ServedBucket
    query: ScanQuery
    """With its columns."""
    stop_offset: int | None
    principal: str = ""
    source: int = pb.SCAN_SOURCE_LOG
    snapshot_offset: int = 0


@dataclass(frozen=True, slots=True)
class FetchedChanges:
    """What a fetch wants of a table, the same of each of its buckets. Made by `LogOpener.resolve`."""

    table: ServedTable
    query: ScanQuery
    """With its columns."""
    schema: pa.Schema
    """Of the query's columns."""
    row_filter: Filter
    """That of the query, for all of its buckets."""
    fingerprint: bytes
    """Of the query."""
    is_small: bool
    """Whether its filter takes so little memory that it may be kept for the next fetch."""


class LogOpener:
    """Opens scans of changelogs.

    Args:
        catalog: Table catalog of the server.
        config: Limits of the server.
        tokens: Makes the tokens of the scans.
        snapshots: Opens the snapshots that changes follow.
        now_us: Tells the time, microseconds since 1970 UTC.
    """

    def __init__(
        self,
        catalog: Catalog,
        config: ScannerConfig,
        tokens: Tokens,
        snapshots: ScanOpener,
        now_us: Callable[[], int],
    ) -> None:
        self._catalog = catalog
        self._config = config
        self._tokens = tokens
        self._snapshots = snapshots
        self._now_us = now_us
        self._rings = RingBudget(config.log_rings_bytes)
        self._blocks: weakref.WeakKeyDictionary[
            ServedBucket, weakref.WeakValueDictionary[tuple[int, bytes], LogBlocks]
        ] = weakref.WeakKeyDictionary()
        """By bucket; then by how often its storage was opened anew, and by columns and filter."""
        self._filters: weakref.WeakValueDictionary[tuple[int, bytes], Filter] = weakref.WeakValueDictionary()
        """By table and query: to bind thousands of literals takes long, and those of many buckets are the same."""
        self._fetched: dict[ServedBucket, deque[LogBlocks]] = {}
        """What fetches wanted lately, until the table is dropped: between two of them nobody else may keep it."""

    async def open(self, query: ScanQuery, principal: str, start: pb.LogStart, stop: Stop) -> LogScan:
        """Open a changelog.

        Args:
            query: What to deliver; its columns may be those of a change, too.
            principal: Name of the caller.
            start: Where to begin.
            stop: Where to end.

        Raises:
            TableNotFound, BucketNotFound, ColumnNotFound, ArgumentInvalid: The query or a bound does not fit.
            OffsetOutOfRange: The log does not have that offset, not any more, or not yet.
            ScannerError: Storage failed.

        Waits:
            For the commit that runs now, if one does, and the first time for storage.

        Cancellation:
            No effect: nothing is open.
        """
        _require_all_keys(query)
        table = await self._catalog.table(query.table, query.table_id)
        bucket = await self._catalog.bucket(table, query.bucket)
        now_us = self._now_us()
        await bucket.wait_stamped_before(start.timestamp_us)
        async with bucket.between_commits():
            query = table.schema.resolve(query, changes=True)
            with said_of_bucket(query.bucket):
                offset = start_offset(bucket.storage, start, now_us)
                stop_offset = stop.resolve(bucket.storage, offset)
            return self._admit(_Wanted(table, bucket, query, stop_offset, principal), offset, START)

    async def resume(self, query: ScanQuery, principal: str, state: TokenState) -> LogScan:
        """Go on with a changelog.

        Args:
            query: What the scan delivers, with its columns.
            principal: Name of the caller.
            state: What its token says.

        Raises:
            OffsetOutOfRange: Retention has passed the token's position.
            SnapshotLost: The token, or where it says that the scan ends, is of another history of the bucket.
            ScannerError: As `open`.

        Waits:
            As `open`.

        Cancellation:
            No effect: nothing is open.
        """
        table = await self._catalog.table(query.table, query.table_id)
        bucket = await self._catalog.bucket(table, query.bucket)
        async with bucket.between_commits():
            storage = bucket.storage
            storage.lineage.require(state.history, state.next_offset, storage.log_end, _RESUMED)
            require_stop_kept(storage, state.stop_offset)
            if state.next_offset < storage.log_start:
                # What reading would say, before the stream has begun.
                with said_of_bucket(query.bucket):
                    require_entry_end(storage, state.next_offset, "the position of the resume token")
            wanted = _Wanted(
                table, bucket, query, state.stop_offset, principal, state.source, state.log_offset
            )
            return self._admit(wanted, state.next_offset, state.position)

    async def open_hybrid(
        self,
        query: ScanQuery,
        principal: str,
        stop: Stop,
        *,
        as_of: int | None,
        history: bytes | None,
    ) -> HybridScan:
        """Open a snapshot with its changes behind it.

        Args:
            query: What to deliver; its columns may be those of a change, too.
            principal: Name of the caller.
            stop: Where the changes end.
            as_of: An entry's end: what the snapshot is as of. None: now, or the stop if the log is past it.
            history: The history of the bucket that `as_of` is of; None: any.

        Raises:
            SnapshotLost: The log does not reach back to `as_of`, or to a stop that it is past.
            TooManyScans: There is no room for another snapshot.
            ScannerError: As `open`.

        Waits:
            As `open`.

        Cancellation:
            No effect: nothing is open.
        """
        _require_all_keys(query)
        snapshot = await self._snapshots.open(
            query,
            principal,
            log_offset=as_of if as_of is not None else await self._stop_reached(query, stop),
            history=history,
            source=pb.SCAN_SOURCE_HYBRID,
            as_changes=True,
        )
        try:
            storage, offset = snapshot.bucket.storage, snapshot.log_offset
            with said_of_bucket(query.bucket):
                require_entry_end(storage, offset, "the snapshot's offset" if as_of is None else "as_of")
                snapshot.snapshot_id = stop_id(stop.resolve(storage, offset))
        except BaseException:
            snapshot.scan.close()
            raise
        return self._hybrid(snapshot, None, offset, principal)

    async def resume_hybrid(self, query: ScanQuery, principal: str, state: TokenState) -> HybridScan:
        """Go on with a snapshot, or with the changes behind it.

        Args:
            query: What the scan delivers, with its columns.
            principal: Name of the caller.
            state: What its token says.

        Raises:
            SnapshotLost, OffsetOutOfRange, ScannerError: As `resume` and `open_hybrid`.

        Waits:
            As `open`.

        Cancellation:
            No effect: nothing is open.
        """
        if state.next_offset:
            changes = await self.resume(query, principal, state)
            return self._hybrid(None, changes, state.log_offset, principal)
        snapshot = await self._snapshots.open(
            query,
            principal,
            log_offset=state.log_offset,
            position=state.position,
            history=state.history,
            source=pb.SCAN_SOURCE_HYBRID,
            as_changes=True,
        )
        try:
            # The snapshot may outlive the changes that follow it.
            with said_of_bucket(query.bucket):
                require_entry_end(snapshot.bucket.storage, state.log_offset, "the snapshot's offset")
            require_stop_kept(snapshot.bucket.storage, state.stop_offset)
        except BaseException:
            snapshot.scan.close()
            raise
        snapshot.snapshot_id = state.snapshot_id
        return self._hybrid(snapshot, None, state.log_offset, principal)

    async def resolve(self, query: ScanQuery) -> FetchedChanges:
        """Look up the table of a fetch, and check what is asked for of it.

        Args:
            query: What to deliver; its columns may be those of a change, too.

        Raises:
            TableNotFound, ColumnNotFound, ArgumentInvalid: The query does not fit.

        Waits:
            The first time for storage.
        """
        _require_all_keys(query)
        table = await self._catalog.table(query.table, query.table_id)
        query = table.schema.resolve(query, changes=True)
        schema, name = change_schema(table.description, query.columns), fingerprint(query)
        is_small = _literals_bytes(query) <= _KEPT_LITERALS_BYTES_MAX
        return FetchedChanges(table, query, schema, self._filter_of(table, query, name), name, is_small)

    async def open_fetch(
        self, changes: FetchedChanges, bucket: ServedBucket, position: pb.FetchPosition
    ) -> OpenScan[LogSource]:
        """Open a bucket's changelog for one answer, which keeps nothing of the log.

        Args:
            changes: Of `resolve`.
            bucket: Of its table.
            position: Where to go on, or to begin; it may be inside a commit.

        Returns:
            Its changes, to be closed.

        Raises:
            SnapshotLost: The position is of another history of the bucket.
            ScannerError: As `open`.

        Waits:
            For storage, if it was closed; for the commit that runs now, if a time is asked for.

        Cancellation:
            No effect: nothing is open.
        """
        now_us = self._now_us()
        await bucket.wait_stamped_before(position.start.timestamp_us)
        async with bucket.beside_commits():
            storage = bucket.storage
            if position.WhichOneof("at") == "offset":
                offset = position.offset
                require_history(position.history)
                if position.history:
                    storage.lineage.require(position.history, offset, storage.log_end, "the position")
                require_in_log(storage, offset, "the position")
            else:
                offset = start_offset(storage, position.start, now_us)
            stop = Stop(position.stop_offset if position.HasField("stop_offset") else None)
            stop_offset = stop.resolve(storage, offset)
            wanted = _Wanted(changes.table, bucket, changes.query, stop_offset)
            scan = bucket.admit(self._source(wanted, offset, START, changes=changes))
        if changes.is_small:
            self._keep(changes.table, bucket, scan.source.blocks)
        return scan

    def _keep(self, table: ServedTable, bucket: ServedBucket, blocks: LogBlocks) -> None:
        """Keep for the next fetch what one has wanted."""
        recent = self._fetched.get(bucket)
        if recent is None:
            recent = self._fetched[bucket] = deque(maxlen=_FETCHED_BLOCKS_MAX)
            # Not by weak references: what was wanted of a bucket knows its table, and so the bucket.
            table.when_dropped.append(functools.partial(self._forget, bucket))
        if blocks not in recent:
            recent.append(blocks)

    async def _stop_reached(self, query: ScanQuery, stop: Stop) -> int | None:
        """A stop that the log already has, which the snapshot is then as of; None: none, or not yet.

        What is written between the call that told a client the end of the log and the one that scans up to it would
        be in a snapshot as of now.
        """
        if stop.offset is None:
            return None
        table = await self._catalog.table(query.table, query.table_id)
        bucket = await self._catalog.bucket(table, query.bucket)
        async with bucket.between_commits():
            storage = bucket.storage
            with said_of_bucket(query.bucket):
                return stop.resolve(storage, storage.log_start)

    def _forget(self, bucket: ServedBucket, error: ScannerError) -> None:
        """Its table was dropped."""
        self._fetched.pop(bucket, None)

    def _hybrid(
        self, snapshot: KvScan | None, changes: LogScan | None, offset: int, principal: str
    ) -> HybridScan:
        return HybridScan(snapshot, changes, offset, functools.partial(self._cross, principal))

    def _cross(self, principal: str, snapshot: KvScan) -> LogScan:
        """The changes behind a snapshot whose rows were all taken; its pin is theirs."""
        scan: OpenScan[Any] = snapshot.scan
        wanted = _Wanted(
            snapshot.table,
            snapshot.bucket,
            snapshot.query,
            stop_of(snapshot.snapshot_id),
            principal,
            pb.SCAN_SOURCE_HYBRID,
            snapshot.log_offset,
        )
        source = self._source(wanted, snapshot.log_offset, scan.source.position)
        scan.finish()
        scan.reopen(source, None)
        return self._log_scan(scan, wanted)

    def _admit(self, wanted: _Wanted, offset: int, position: Position) -> LogScan:
        bucket = wanted.bucket
        scan = bucket.admit(self._source(wanted, offset, position))
        scan.pin = bucket.pins.pin(offset, wanted.principal, "scan of the changelog", scan.end)
        return self._log_scan(scan, wanted)

    def _log_scan(self, scan: OpenScan[LogSource], wanted: _Wanted) -> LogScan:
        opened = LogScan(
            scan,
            wanted.bucket,
            wanted.table,
            wanted.query,
            self._tokens.mint_of(wanted.query, wanted.principal),
            history=wanted.bucket.storage.lineage.history_of(scan.source.next_offset),
            stop_offset=wanted.stop_offset,
            source=wanted.source,
            snapshot_offset=wanted.snapshot_offset,
        )
        scan.reopener = functools.partial(self._reopen, opened)
        return opened

    async def _reopen(self, opened: LogScan) -> None:
        """Go on with a parked scan, from its position."""
        parked = opened.scan.source
        async with opened.bucket.between_commits():
            storage = opened.bucket.storage
            storage.lineage.require(opened.history, parked.next_offset, storage.log_end, "this scan")
            require_in_log(storage, parked.next_offset, "the position of this scan")
            source = self._source(opened, parked.next_offset, parked.position, covered=parked.covered)
            opened.scan.reopen(source, None)

    def _source(
        self,
        of: _Wanted | LogScan,
        offset: int,
        position: Position,
        *,
        covered: int | None = None,
        changes: FetchedChanges | None = None,
    ) -> LogSource:
        """Read what is wanted from an offset on; `changes`: it is this."""
        table, bucket = of.table, of.bucket
        name = changes.fingerprint if changes else fingerprint(replace(of.query, row_limit=None))
        shared = self._blocks.setdefault(bucket, weakref.WeakValueDictionary())
        key = (bucket.storage_openings, name)
        blocks = shared.get(key)
        if blocks is None:
            blocks = LogBlocks(
                bucket.storage,
                changes.schema if changes else change_schema(table.description, of.query.columns),
                changes.row_filter if changes else self._filter_of(table, of.query, name),
                lambda: table.schema.row_codec,
                ring_bytes_max=self._config.log_ring_bytes,
                budget=self._rings,
                on_decode=bucket.activity.count_log_block,
            )
            shared[key] = blocks
        return LogSource(
            blocks,
            offset,
            stop_offset=of.stop_offset,
            bookmark=last_entry_end(bucket.storage, offset),
            covered=covered,
            row_limit=of.query.row_limit,
            position=position,
        )

    def _filter_of(self, table: ServedTable, query: ScanQuery, name: bytes) -> Filter:
        """The filter of a query of this fingerprint."""
        found = self._filters.get((table.table_id, name))
        if found is None:
            found = Filter(query.predicates, table.description.schema)
            self._filters[table.table_id, name] = found
        return found


def _literals_bytes(query: ScanQuery) -> int:
    """What the literals of a filter take, about."""
    leaves = (leaf for predicate in query.predicates for leaf in predicate.leaves())
    values = (value for leaf in leaves for value in leaf.literals)
    return sum(len(value) if isinstance(value, str | bytes) else _VALUE_BYTES for value in values)


def _require_all_keys(query: ScanQuery) -> None:
    if query.range.start or query.range.end:
        raise ArgumentInvalid("a key range goes with the rows of a table, not with its changelog")
