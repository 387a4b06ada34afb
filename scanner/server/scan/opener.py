"""Opens what a query asks for, as of now or as of an earlier log offset, and continues it: the ladder.

A scan as of S is read from, in this order:

1. the snapshot of S, if it is open (another scan reads it, or it lingers), or if S is now;
2. a snapshot of now, with the changes since S undone (`AsOfScan`), as far back as the changelog goes;
3. nothing: SNAPSHOT_LOST, with the oldest offset that can still be had.

Invariants:

1. What is opened as of S shows S. No rung ever stands in for another state.
2. From the moment at which it is opened a scan keeps the log from S on, so that it can be parked and reopened, and so
   can a scan that is continued with its token as long as the first one is open.
3. A token is looked at by itself, before anything of storage is. Only for one of ours whose query names no columns is
   the table asked: it tells which ones it had.
4. A scan delivers the columns that it began with, however often it is parked or resumed, and whatever is added.

This module knows no wire beyond the query, and no stream.
"""

from __future__ import annotations

import enum
import functools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from scanner.data.position import START, Position
from scanner.errors import ArgumentInvalid, OffsetOutOfRange, ResumeTokenInvalid, TableNotFound
from scanner.server.scan.tokens import TokenState
from scanner.sources.as_of import AsOfScan
from scanner.sources.kv import KvSource
from scanner.sources.overlay import OverlayLimits
from scanner.storage.lineage import HISTORY_BYTES
from scanner.wire.queries import ScanQuery, query_from_proto

if TYPE_CHECKING:
    from scanner.proto.weir.v1 import scanner_pb2 as pb
    from scanner.server.config import ScannerConfig
    from scanner.server.scan.tokens import TokenMint, Tokens
    from scanner.server.tables.bucket import OpenScan, ServedBucket
    from scanner.server.tables.catalog import Catalog, ServedTable
    from scanner.server.tables.snapshots import SnapshotHold
    from scanner.storage.interface import BucketScan


class Rung(enum.StrEnum):
    """What a scan is read from."""

    NOW = "now"
    """A snapshot of now, which is S."""
    SNAPSHOT = "snapshot"
    """The snapshot of S, which was open."""
    AS_OF = "as_of"
    """A snapshot of now, with the changes since S undone."""


@dataclass(slots=True)
class Opened:
    """A scan, and what it takes to continue it."""

    scan: OpenScan[KvSource]
    """To be closed by whoever opened it."""
    bucket: ServedBucket
    table: ServedTable
    query: ScanQuery
    rung: str
    """What it is read from: a `Rung`; another one after it was reopened, perhaps."""
    mint: TokenMint = field(repr=False)
    """Makes its tokens."""
    history: bytes
    """The history of the bucket that its state is of."""

    @property
    def log_offset(self) -> int:
        """What it is as of, parked or not."""
        return self.scan.source.log_offset

    def token(self, source: int, model: int, snapshot_id: int = 0) -> bytes:
        """Continues the scan where it stands.

        Args:
            source: Number of the wire's ScanSource.
            model: `MODEL_PUSH`, or a number of the wire's PageModel.
            snapshot_id: What the server keeps for the next page; 0: nothing.
        """
        return self.mint.token(
            TokenState(
                table_id=self.table.table_id,
                bucket=self.query.bucket,
                source=source,
                model=model,
                log_offset=self.log_offset,
                position=self.scan.source.position,
                history=self.history,
                snapshot_id=snapshot_id,
            )
        )


@dataclass(frozen=True, slots=True)
class _Reading:
    source: KvSource
    hold: SnapshotHold
    rung: Rung


class ScanOpener:
    """Opens the source that a query asks for, and reads and makes the tokens that continue it.

    Args:
        catalog: Of the server.
        config: Of the server.
        tokens: Of the data directory.
    """

    def __init__(self, catalog: Catalog, config: ScannerConfig, tokens: Tokens) -> None:
        self._catalog = catalog
        self._config = config
        self._limits = OverlayLimits(
            bytes_max=config.overlay_bytes_max, spill_bytes_max=config.overlay_spill_bytes_max
        )
        self.tokens = tokens

    def read_query(self, message: pb.ScanQuery) -> ScanQuery:
        """Read a peer's query.

        Raises:
            ArgumentInvalid: It makes no sense, or is larger than the config allows.
        """
        return query_from_proto(
            message,
            predicates_max=self._config.filter_predicates_max,
            literals_max=self._config.filter_literals_max,
        )

    async def open(
        self,
        query: ScanQuery,
        principal: str,
        *,
        log_offset: int | None = None,
        position: Position = START,
        pin_log: bool = True,
        table_id: int | None = None,
        history: bytes | None = None,
    ) -> Opened:
        """Open a bucket.

        Args:
            query: What to deliver.
            principal: Name of who asks.
            log_offset: What to show: the changes with a smaller offset. None: all there are now.
            position: Where to begin.
            pin_log: Keep the log, so that the scan can be continued for as long as it is open.
            table_id: Of the table that `log_offset` is one of, where others had their turn since that was looked up;
                None: whichever has the name.
            history: The history of the bucket that `log_offset` is of; None: whichever it is.

        Raises:
            TableNotFound, BucketNotFound, ColumnNotFound, ArgumentInvalid: The query does not fit the tables.
            SnapshotLost: The log does not reach back to `log_offset` any more, or the offset is of another history.
            OffsetOutOfRange: `log_offset` is past the end of the log.
            TooManyScans: There is no room for another snapshot.
            ScannerError: Storage failed.

        Waits:
            For the commit that runs now, if one does, and the first time for storage.

        Cancellation:
            No effect: nothing is open.
        """
        table = await self._catalog.table(query.table)
        if table_id is not None and table.table_id != table_id:
            raise TableNotFound(f"table {query.table!r} was dropped")
        bucket = await self._catalog.bucket(table, query.bucket)
        async with bucket.between_commits():
            if history is not None and log_offset is not None:
                storage = bucket.storage
                storage.lineage.require(history, log_offset, storage.log_end, "this scan")
            # No waiting from here on: the columns are those that the source reads.
            query = table.schema.resolve(query)
            reading = self._read(table, bucket, query, log_offset, position)
            scan = bucket.admit(reading.source, reading.hold)
            # A checkpoint may be older than the log. Then there is nothing to keep.
            if pin_log and scan.source.log_offset >= bucket.storage.log_start:
                scan.pin = bucket.pins.pin(scan.source.log_offset, principal, "scan", scan.end)
        return self._opened(scan, bucket, table, query, reading.rung, principal)

    def _opened(
        self,
        scan: OpenScan[KvSource],
        bucket: ServedBucket,
        table: ServedTable,
        query: ScanQuery,
        rung: str,
        principal: str,
    ) -> Opened:
        history = bucket.storage.lineage.history_of(scan.source.log_offset)
        mint = self.tokens.mint_of(query, principal)
        opened = Opened(scan, bucket, table, query, rung, mint, history)
        scan.continue_parked = functools.partial(self.reopen, opened)
        return opened

    async def open_held(
        self, query: ScanQuery, principal: str, *, log_offset: int, position: Position
    ) -> Opened | None:
        """Open a bucket from the snapshot of `log_offset`, if it is open: the first rung of the ladder and no other.

        What is open can be read beside a commit, so none is waited for. The log is not kept.

        Args:
            query: What to deliver.
            principal: Name of who asks.
            log_offset: What to show.
            position: Where to begin.

        Returns:
            The scan; None: that snapshot is not open, or not any more.

        Raises:
            TableNotFound, BucketNotFound, ColumnNotFound, ArgumentInvalid: The query does not fit the tables.
            ScannerError: Storage failed, or the bucket is retired.

        Waits:
            The first time for storage.

        Cancellation:
            No effect: nothing is open.
        """
        table = await self._catalog.table(query.table)
        bucket = await self._catalog.bucket(table, query.bucket)
        bucket.check_served()
        hold = bucket.snapshots.acquire(log_offset)
        if hold is None:
            return None
        reading = self._read_from(hold, Rung.SNAPSHOT, table, bucket, query, log_offset, position)
        scan = bucket.admit(reading.source, reading.hold)
        opened = self._opened(scan, bucket, table, query, reading.rung, principal)
        scan.continue_parked = None  # Another rung would stand in for the snapshot.
        return opened

    async def log_start(self, query: ScanQuery) -> int:
        """The oldest offset as of which the bucket of a query can be scanned, whatever else is gone.

        Raises:
            TableNotFound, BucketNotFound: There is none.
            ScannerError: Storage failed.

        Waits:
            The first time for storage.
        """
        table = await self._catalog.table(query.table)
        return (await self._catalog.bucket(table, query.bucket)).storage.log_start

    async def reopen(self, opened: Opened) -> None:
        """Go on with a parked scan: as of the same offset, from its position.

        Raises:
            SnapshotLost: The log does not reach back any more, only where it was truncated in spite of the pin; or what
                the scan shows was lost.
            TooManyScans: There is no room for another snapshot now; the scan stays parked.
            ScannerError: Storage failed.

        Waits:
            As `open`.

        Cancellation:
            The scan stays parked.
        """
        parked = opened.scan.source
        # All columns are those that the scan began with.
        query = replace(opened.query, columns=tuple(parked.schema.names))
        async with opened.bucket.between_commits():
            # Storage may have been opened anew since, and have lost changes that were not durable after all.
            storage = opened.bucket.storage
            storage.lineage.require(opened.history, parked.log_offset, storage.log_end, "this scan")
            reading = self._read(opened.table, opened.bucket, query, parked.log_offset, parked.position)
            opened.scan.reopen(reading.source, reading.hold)
            opened.rung = reading.rung

    async def read_token(
        self, token: bytes, query: ScanQuery, principal: str, *, source: int, model: int
    ) -> tuple[TokenState, ScanQuery]:
        """Read a token that a client brought.

        Args:
            token: From the peer.
            query: What the peer asks for now.
            principal: Name of who the peer is.
            source: Number of the wire's ScanSource that it asks for.
            model: `MODEL_PUSH`, or the number of the wire's PageModel that it asks for.

        Returns:
            What the token says; and the query with the columns that the scan began with.

        Raises:
            ResumeTokenInvalid: It is damaged, or was made for another query, bucket, table, source, model or principal.
            SnapshotLost: It is right, and of another history of the bucket.
            TableNotFound: It is right, and the table is gone.

        Waits:
            For the catalog and the bucket, once the token has been found to be one of ours.
        """
        try:
            state = self.tokens.read(token, query, principal)
        except ResumeTokenInvalid:
            if query.columns or not self.tokens.made(token, principal):
                raise
            state, query = self._read_older(token, query, principal, await self._catalog.table(query.table))
        if state.bucket != query.bucket:
            raise ResumeTokenInvalid(
                f"the resume token is of bucket {state.bucket}, not {query.bucket}; bring it to its own"
            )
        table = await self._catalog.table(query.table)
        state.require(table_id=table.table_id, source=source, model=model)
        storage = (await self._catalog.bucket(table, state.bucket)).storage
        newest = max(state.log_offset, state.next_offset)
        storage.lineage.require(state.history, newest, storage.log_end, "the resume token")
        return state, query if query.columns else replace(query, columns=table.schema.first_columns)

    def _read_older(
        self, token: bytes, query: ScanQuery, principal: str, table: ServedTable
    ) -> tuple[TokenState, ScanQuery]:
        """Read the token of a scan of all columns, when the table has had columns added."""
        refusal: ResumeTokenInvalid | None = None
        for resolved in table.schema.resolutions(query):
            try:
                return self.tokens.read(token, resolved, principal), resolved
            except ResumeTokenInvalid as error:
                refusal = error
        assert refusal is not None  # There is one resolution at least.
        raise refusal

    def _read(
        self,
        table: ServedTable,
        bucket: ServedBucket,
        query: ScanQuery,
        log_offset: int | None,
        position: Position,
    ) -> _Reading:
        """Climb the ladder, between two commits."""
        storage = bucket.storage
        if log_offset is not None and log_offset > storage.log_end:
            raise OffsetOutOfRange(
                f"the changelog of table {query.table!r}, bucket {query.bucket} is [{storage.log_start},"
                f" {storage.log_end}): there is no state as of {log_offset} yet",
                oldest_offset=storage.log_start,
            )
        held = None if log_offset is None else bucket.snapshots.acquire(log_offset)
        hold = held or bucket.snapshots.current()
        rung = Rung.NOW if held is None else Rung.SNAPSHOT
        return self._read_from(hold, rung, table, bucket, query, log_offset, position)

    def _read_from(
        self,
        hold: SnapshotHold,
        rung: Rung,
        table: ServedTable,
        bucket: ServedBucket,
        query: ScanQuery,
        log_offset: int | None,
        position: Position,
    ) -> _Reading:
        """Make a source that reads what is held; to undo changes, between two commits."""
        try:
            key_range = position.remaining(query.range)
            scan: BucketScan = hold.snapshot.scan(key_range)
            bucket.activity.seeks += 1
            if log_offset is not None and hold.log_offset != log_offset:
                scan = AsOfScan(bucket.storage, scan, log_offset, key_range, self._limits)
                rung = Rung.AS_OF
            schema = table.schema
            source = KvSource(
                scan,
                schema.description,
                schema.row_codec,
                query,
                position=position,
                block_rows_max=self._config.block_rows_max,
                block_bytes_max=self._config.block_bytes_max,
            )
        except BaseException:
            hold.release()
            raise
        if log_offset is not None:
            bucket.activity.scans_resumed[rung] += 1
        return _Reading(source, hold, rung)


def require_history(history: bytes, *, as_of: bool) -> None:
    """Check the history that a peer names for `as_of`; empty: none.

    Raises:
        ArgumentInvalid: It is none, or there is no offset that it could be of.
    """
    if history and len(history) != HISTORY_BYTES:
        raise ArgumentInvalid(f"a history has {HISTORY_BYTES} bytes, not {len(history)}")
    if history and not as_of:
        raise ArgumentInvalid("as_of_history goes with as_of")


def offset_to_resume(state: TokenState, as_of: int | None) -> int:
    """The offset that a token names, if it is also the one that was asked for.

    Raises:
        ArgumentInvalid: Another one was asked for.
    """
    if as_of is not None and as_of != state.log_offset:
        raise ArgumentInvalid(
            f"the resume token is of a scan as of {state.log_offset}, not {as_of}; leave as_of away"
        )
    return state.log_offset
