"""Opens what a query asks for, as of now or as of an earlier log offset, and reopens it after a park.

Invariants:

1. From the moment at which it is opened a scan keeps the log from its offset on, so that it can be parked and reopened,
   and so can a scan that is continued with its token as long as the first one is open.
2. A scan delivers the columns that it began with, however often it is parked, and whatever is added to its table.

What it is read from is chosen in `scanner.server.scan.read_sources`, what a token continues is read in
`scanner.server.scan.resumes`. This module knows no wire beyond the query, and no stream.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING

from scanner.data.position import START, Position
from scanner.errors import TableNotFound
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.server.scan.kv_scan import KvScan
from scanner.server.scan.read_sources import ReadSource, ReadSources, Wanted
from scanner.server.scan.tokens import MODEL_PUSH
from scanner.wire.queries import ScanQuery, query_from_proto

if TYPE_CHECKING:
    from scanner.server.config import ScannerConfig
    from scanner.server.scan.tokens import Tokens
    from scanner.server.tables.catalog import Catalog
    from scanner.server.tables.open_scan import OpenScan
    from scanner.sources.kv import KvSource


class ScanOpener:
    """Opens scans of the rows of a bucket.

    Args:
        catalog: Table catalog of the server.
        config: Limits of the server.
        tokens: Makes the tokens of the scans.
    """

    def __init__(self, catalog: Catalog, config: ScannerConfig, tokens: Tokens) -> None:
        self._catalog = catalog
        self._config = config
        self._read_sources = ReadSources(config)
        self._tokens = tokens

    @property
    def image_cache_bytes(self) -> int:
        """What blocks of images take in memory that scans read again and again."""
        return self._read_sources.block_cache.size_bytes

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
        source: int = pb.SCAN_SOURCE_LIVE_KV,
        model: int = MODEL_PUSH,
        as_changes: bool = False,
    ) -> KvScan:
        """Open a bucket.

        Args:
            query: What to deliver.
            principal: Name of the caller.
            log_offset: What to show: the changes with a smaller offset. None: all of them.
            position: Where to begin.
            pin_log: Keep the log, so that the scan can be continued for as long as it is open.
            table_id: Of the table that `log_offset` is one of, where it may have been replaced since that was looked
                up; None: any table of the name.
            history: The history of the bucket that `log_offset` is of; None: any.
            source: Number of the wire's ScanSource, for the scan's tokens.
            model: `MODEL_PUSH`, or the number of the wire's PageModel, for the scan's tokens.
            as_changes: Deliver the rows as changes, whose columns the query may name, too.

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
        table = await self._catalog.table(query.table, query.table_id)
        if table_id is not None and table.table_id != table_id:
            raise TableNotFound(f"table {query.table!r} was dropped")
        bucket = await self._catalog.bucket(table, query.bucket)
        async with bucket.between_commits():
            if history is not None and log_offset is not None:
                storage = bucket.storage
                storage.lineage.require(history, log_offset, storage.log_end, "this scan")
            # No waiting from here on: the columns are those that the source reads.
            query = table.schema.resolve(query, changes=as_changes)
            wanted = Wanted(table, bucket, query, log_offset, position, as_changes)
            reading = self._read_sources.open(wanted)
            scan = bucket.admit(reading.source, reading.hold)
            # A checkpoint may be older than the log. Then there is nothing to keep.
            if pin_log and scan.source.log_offset >= bucket.storage.log_start:
                scan.pin = bucket.pins.pin(scan.source.log_offset, principal, "scan", scan.end)
        return self._opened(scan, wanted, reading.read_source, principal, source, model)

    def _opened(
        self,
        scan: OpenScan[KvSource],
        wanted: Wanted,
        read_source: ReadSource,
        principal: str,
        source: int,
        model: int,
    ) -> KvScan:
        opened = KvScan(
            scan,
            wanted.bucket,
            wanted.table,
            wanted.query,
            self._tokens.mint_of(wanted.query, principal),
            wanted.bucket.storage.lineage.history_of(scan.source.log_offset),
            read_source=read_source,
            source=source,
            model=model,
            as_changes=wanted.as_changes,
        )
        scan.reopener = functools.partial(self.reopen, opened)
        return opened

    async def open_held(
        self, query: ScanQuery, principal: str, *, log_offset: int, position: Position
    ) -> KvScan | None:
        """Open a bucket from the snapshot of `log_offset`, if that is open, for a page of model TOKEN.

        What is open can be read beside a commit, so none is waited for. The log is not kept.

        Args:
            query: What to deliver.
            principal: Name of the caller.
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
        table = await self._catalog.table(query.table, query.table_id)
        bucket = await self._catalog.bucket(table, query.bucket)
        bucket.check_served()
        wanted = Wanted(table, bucket, query, log_offset, position)
        reading = self._read_sources.open_held(wanted)
        if reading is None:
            return None
        scan = bucket.admit(reading.source, reading.hold)
        return self._opened(
            scan, wanted, reading.read_source, principal, pb.SCAN_SOURCE_LIVE_KV, pb.PAGE_MODEL_TOKEN
        )

    async def log_start(self, query: ScanQuery) -> int:
        """The oldest offset as of which the bucket of a query can be scanned, whatever else is gone.

        Raises:
            TableNotFound, BucketNotFound: There is none.
            ScannerError: Storage failed.

        Waits:
            The first time for storage.
        """
        table = await self._catalog.table(query.table, query.table_id)
        return (await self._catalog.bucket(table, query.bucket)).storage.log_start

    async def reopen(self, opened: KvScan) -> None:
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
            wanted = Wanted(
                opened.table, opened.bucket, query, parked.log_offset, parked.position, opened.as_changes
            )
            reading = self._read_sources.open(wanted)
            opened.scan.reopen(reading.source, reading.hold)
            opened.read_source = reading.read_source
