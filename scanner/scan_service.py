"""The push side of `weir.v1.Scanner`: opens scans and gives each its stream.

Opening is shared with the pull models: one place decides what a query may ask for and how its source is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scanner.access import Right, authorize, principal_of
from scanner.activity import Activity, Holder, HolderKind
from scanner.ended_scans import recorded
from scanner.errors import (
    ArgumentInvalid,
    ResumeTokenInvalid,
    ScanIncomplete,
    SourceUnsupported,
    TooManyScans,
)
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.push import PushLimits, PushScan
from scanner.query import ScanQuery, parse_request, query_from_proto
from scanner.sources.live_kv import LiveKvSource
from transport import StallReason

if TYPE_CHECKING:
    from scanner.buckets import OpenScan, ServedBucket
    from scanner.catalog import Catalog
    from scanner.config import ScannerConfig
    from scanner.storage.interface import Bucket
    from transport import ServerStream

_STREAM_ID_BYTES_MAX = 64


@dataclass(frozen=True, slots=True)
class Opened:
    """A scan and its bucket."""

    scan: OpenScan[LiveKvSource]
    """To be closed by whoever opened it."""
    bucket: ServedBucket


class ScanOpener:
    """Opens the source that a query asks for.

    Args:
        catalog: Of the server.
        config: Of the server.
    """

    def __init__(self, catalog: Catalog, config: ScannerConfig) -> None:
        self._catalog = catalog
        self._config = config

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

    async def open_live_kv(self, query: ScanQuery) -> Opened:
        """Open a bucket as of now.

        Raises:
            TableNotFound, BucketNotFound, ColumnNotFound, ArgumentInvalid: The query does not fit the tables.
            ScannerError: Storage failed.

        Waits:
            For the commit that runs now, if one does, and the first time for storage.

        Cancellation:
            No effect: nothing is open.
        """
        table = await self._catalog.table(query.table)
        bucket = await self._catalog.bucket(table, query.bucket)

        def make(storage: Bucket) -> LiveKvSource:
            return LiveKvSource(
                storage,
                table.description,
                table.row_codec,
                query,
                block_rows_max=self._config.block_rows_max,
                block_bytes_max=self._config.block_bytes_max,
            )

        return Opened(await bucket.open_scan(make), bucket)


def holder_of(stream: ServerStream, kind: HolderKind) -> Holder:
    """Who keeps a scan of the live table open.

    Args:
        stream: The call that opens it.
        kind: What keeps it open from then on.
    """
    return Holder(
        kind,
        pb.ScanSource.Name(pb.SCAN_SOURCE_LIVE_KV).removeprefix("SCAN_SOURCE_"),
        stream.connection_id,
        stream.stream_id,
        stream.peer,
        principal_of(stream).name,
    )


class ScanService:
    """Serves `Scan`.

    Args:
        opener: Makes the sources.
        config: Of the server.
        activity: Counts the scans.
    """

    def __init__(self, opener: ScanOpener, config: ScannerConfig, activity: Activity | None = None) -> None:
        self._opener = opener
        self._activity = activity or Activity()
        self._config = config
        self._named: dict[tuple[str, bytes], PushScan] = {}
        """By the principal's name and the stream id."""
        self._opened = 0
        self.overrun_bytes = 0
        """The furthest that a push scan that has ended was past its credit, in message bytes."""

    @property
    def scans_open(self) -> int:
        """Push scans that run."""
        return self._opened

    async def scan(self, stream: ServerStream) -> None:
        """Handle one call.

        Raises:
            ScannerError: The scan was refused, or failed.
            TransportError: The stream or the connection is gone.
        """
        request = await self._receive_open(stream)
        self._check(request)
        query = self._opener.read_query(request.query)
        authorize(stream, Right.READ, query.table)
        if self._opened >= self._config.scans_max:
            raise TooManyScans(
                f"{self._opened} scans are open on this server, and no more are allowed; try again later"
            )
        self._opened += 1
        try:
            with stream.blocked_on(StallReason.STORAGE):
                opened = await self._opener.open_live_kv(query)
            opened.scan.holder = holder_of(stream, HolderKind.STREAM)
            try:
                await self._run(stream, request, query, opened)
            finally:
                opened.scan.close()
        finally:
            self._opened -= 1

    async def _receive_open(self, stream: ServerStream) -> pb.ScanOpen:
        message = await stream.receive()
        if message is None:
            raise ArgumentInvalid("the stream ended before its scan was opened")
        request = parse_request(pb.ScanRequest, message)
        kind = request.WhichOneof("request")
        if kind != "open":
            raise ArgumentInvalid(f"the first message of a scan is its open, not {kind or 'an empty one'}")
        return request.open

    @staticmethod
    def _check(request: pb.ScanOpen) -> None:
        if request.source == pb.SCAN_SOURCE_UNSPECIFIED:
            raise ArgumentInvalid("the scan names no source")
        if request.source != pb.SCAN_SOURCE_LIVE_KV:
            known = pb.ScanSource.DESCRIPTOR.values_by_number.get(request.source)
            name = known.name if known is not None else str(request.source)
            raise SourceUnsupported(f"this server cannot scan {name}; it has SCAN_SOURCE_LIVE_KV")
        if request.resume_token:
            raise ResumeTokenInvalid("this server did not make that resume token: it makes none")
        if len(request.stream_id) > _STREAM_ID_BYTES_MAX:
            raise ArgumentInvalid(
                f"the stream id has {len(request.stream_id)} bytes; {_STREAM_ID_BYTES_MAX} are allowed"
            )

    async def _run(
        self, stream: ServerStream, request: pb.ScanOpen, query: ScanQuery, opened: Opened
    ) -> None:
        config = self._config
        limits = PushLimits(
            payload_bytes_max=min(request.batch_bytes_max or config.batch_bytes, config.batch_bytes_max),
            rows_max=min(request.batch_rows_max or config.batch_rows_max, config.batch_rows_max),
            heartbeat_interval_s=config.heartbeat_interval_s,
        )
        push = PushScan(stream, opened.scan, opened.bucket, limits)
        name = (principal_of(stream).name, request.stream_id)
        if request.stream_id:
            dead = self._named.get(name)
            if dead is not None:
                dead.stop(ScanIncomplete("the stream was replaced by a newer one of the same stream id"))
            self._named[name] = push
        holder = opened.scan.holder or holder_of(stream, HolderKind.STREAM)
        try:
            with recorded(self._activity, stream, query, holder, push):
                await push.run()
        finally:
            self.overrun_bytes = max(self.overrun_bytes, stream.credit.overrun_bytes)
            if self._named.get(name) is push:
                del self._named[name]
