"""`FetchLog` of `weir.v1.Scanner`: one call, one answer with the changes behind the positions that it names.

Invariants:

1. Nothing is left behind when a call has ended, however it did. So a call may be made any number of times.
2. What is wrong with the request as a whole fails the call; what is wrong with one bucket stands in its part.

Answers are filled in `scanner.server.pull.fetch`.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from scanner.data.keys import KeyRange
from scanner.data.table import BUCKETS_MAX
from scanner.errors import ArgumentInvalid, ScannerError, TooManyScans
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.server.auth.access import Right, authorize
from scanner.server.counters import HolderKind
from scanner.server.fairness import pass_turn_among
from scanner.server.pull.fetch import BucketFetch, Fetch, FetchLimits
from scanner.server.services.scans import holder_of
from scanner.wire.arrow_ipc import encode_schema
from scanner.wire.batches import encode_fetched
from scanner.wire.queries import parse_request, query_from_proto
from transport import only_request

if TYPE_CHECKING:
    from scanner.server.config import ScannerConfig
    from scanner.server.log.opener import FetchedChanges, LogOpener
    from scanner.server.tables.bucket import ServedBucket
    from scanner.server.tables.catalog import Catalog
    from scanner.wire.queries import ScanQuery
    from transport import ServerStream

_MIN_BYTES: Final = 1
_MAX_WAIT_MS: Final = 500


class FetchService:
    """Serves `FetchLog`.

    Args:
        catalog: Table catalog.
        logs: Opens changelogs.
        config: Bounds of answers.
    """

    def __init__(self, catalog: Catalog, logs: LogOpener, config: ScannerConfig) -> None:
        self._catalog = catalog
        self._logs = logs
        self._config = config
        self.fetches_open = 0
        """Calls that run."""
        self._filling: set[Fetch] = set()
        self._drains = False

    def drain(self) -> None:
        """Have no call wait for changes any more, those to come included: each answers with what is there."""
        self._drains = True
        for fetch in self._filling:
            fetch.finish()

    async def call(self, stream: ServerStream) -> None:
        """Handle one call.

        Raises:
            ScannerError: The call was refused.
            TransportError: The stream or the connection is gone.
        """
        message = await only_request(stream)
        request = parse_request(pb.FetchLogRequest, message, self._config.unary_request_bytes_max)
        query = query_from_proto(
            request.query,
            predicates_max=self._config.filter_predicates_max,
            literals_max=self._config.filter_literals_max,
        )
        _check(request, query)
        authorize(stream, Right.READ, query.table, lasting=True)
        if self.fetches_open >= self._config.scans_max:
            raise TooManyScans(
                f"{self.fetches_open} fetches run on this server, and no more are allowed; try again later"
            )
        self.fetches_open += 1
        try:
            await self._answer(stream, request, query)
        finally:
            self.fetches_open -= 1

    async def _answer(self, stream: ServerStream, request: pb.FetchLogRequest, query: ScanQuery) -> None:
        changes = await self._logs.resolve(query)
        table = changes.table
        if len(request.positions) > table.description.buckets:
            raise ArgumentInvalid(
                f"{len(request.positions)} positions, but table {query.table!r} has {table.description.buckets} buckets"
            )
        schema = b""
        with ExitStack() as opened:
            bytes_max = request.bucket_bytes_max or self._config.fetch_bucket_bytes
            parts = [BucketFetch(each.bucket, each.bytes_max or bytes_max) for each in request.positions]
            # All of them first: a drop that keeps one waiting waits for scans that are open.
            for number, part in enumerate(parts):
                try:
                    part.bucket = await self._catalog.bucket(table, part.index)
                except ScannerError as error:
                    part.fail(error)
                await pass_turn_among(number)
            for number, (part, position) in enumerate(zip(parts, request.positions, strict=True)):
                if part.bucket is not None:
                    await self._open(stream, opened, changes, part, part.bucket, position)
                await pass_turn_among(number)
            await self._fill(Fetch(parts, self._limits(request)))
            if request.with_schema:
                schema = encode_schema(changes.schema)
            fields = pb.FetchLogResponse(arrow_schema=schema, table_id=table.table_id)
            answer = encode_fetched(fields, [(part.fields(), part.batches) for part in parts])
        # A client that takes its time holds nothing but its answer.
        await stream.send(*answer)

    async def _fill(self, fetch: Fetch) -> None:
        if self._drains:
            fetch.finish()
        self._filling.add(fetch)
        try:
            await fetch.fill()
        finally:
            self._filling.discard(fetch)

    async def _open(
        self,
        stream: ServerStream,
        opened: ExitStack,
        changes: FetchedChanges,
        part: BucketFetch,
        bucket: ServedBucket,
        position: pb.FetchPosition,
    ) -> None:
        try:
            part.scan = await self._logs.open_fetch(changes, bucket, position)
        except ScannerError as error:
            part.fail(error)
        else:
            opened.callback(part.scan.close)
            part.scan.holder = holder_of(stream, HolderKind.PAGE, pb.SCAN_SOURCE_LOG)

    def _limits(self, request: pb.FetchLogRequest) -> FetchLimits:
        config = self._config
        wait_ms = request.max_wait_ms if request.HasField("max_wait_ms") else _MAX_WAIT_MS
        return FetchLimits(
            bytes_min=request.min_bytes if request.HasField("min_bytes") else _MIN_BYTES,
            bytes_max=min(request.bytes_max or config.fetch_bytes_max, config.fetch_bytes_max),
            rows_max=config.batch_rows_max,
            wait_s=min(wait_ms / 1000, config.fetch_wait_max_s),
            read_s=config.session_page_time_max_s,
        )


def _check(request: pb.FetchLogRequest, query: ScanQuery) -> None:
    """Refuse what makes no sense.

    Raises:
        ArgumentInvalid: It does not.
    """
    if query.bucket or query.row_limit is not None or query.range != KeyRange():
        raise ArgumentInvalid("the query of a fetch has no bucket, no range and no row_limit")
    if not request.positions:
        raise ArgumentInvalid("a fetch needs a position")
    if len(request.positions) > BUCKETS_MAX:  # Before each is looked at: a request holds two million.
        raise ArgumentInvalid(
            f"{len(request.positions)} positions, but a table has {BUCKETS_MAX} buckets at most"
        )
    bucket, times = Counter(position.bucket for position in request.positions).most_common(1)[0]
    if times > 1:
        raise ArgumentInvalid(f"a fetch names bucket {bucket} more than once")
