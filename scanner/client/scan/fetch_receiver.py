"""What the answers to fetches mean: changes of several buckets by long poll, checked, counted, and how to go on. Pure.

`scanner.client.scan.fetch` asks.

Invariants:

1. A bucket's changes follow each other: each batch begins where the one before it ended, whichever answer brought it.
2. The first request waits for nothing. Its answer says where each bucket begins and, where the scan is to end at the
   end of the log, where that is.
3. A bucket that brought something goes behind the others in the next request, so that none starves.
4. An answer that cannot be used changes nothing, so the same changes are asked for again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scanner.client.calls import require_about
from scanner.client.scan.sequence import no_rows, require_rows, require_schema
from scanner.errors import DataCorrupted
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.wire.arrow_ipc import decode_batch, verify_payload
from scanner.wire.batches import decode_fetched
from scanner.wire.statuses import from_detail

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Buffer

    from scanner.client.scan.statistics import BucketProgress
    from scanner.errors import ScannerError
    from scanner.wire.batches import ReceivedBucket, RowBatch


@dataclass(frozen=True, slots=True)
class FetchedRows:
    """What an answer brings of one bucket."""

    bucket: int
    batch: pa.RecordBatch
    """Perhaps without rows: then only the position moves."""
    size: int
    """Octets of the answer that brought it."""
    position: int | None
    """A commit's end; every change before it that passes has come with this or earlier. None: it is not known yet."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FetchOptions:
    """What every request says."""

    min_bytes: int
    """Arrow payload for which the server waits."""
    max_wait_s: float
    """The longest that it waits."""
    bucket_bytes: int
    """Arrow payload of one bucket in one answer."""


class FetchReceiver:
    """The requests of one scan, and what their answers mean.

    Args:
        what: Names the table in errors.
        query: What to deliver, with its columns.
        schema: What the batches must be.
        positions: Where each bucket begins and ends.
        progress: Counters to keep, by bucket.
        options: See there.
        stop_at_end: End each bucket where its log ends at the first answer.
        row_limit: Rows of each bucket at most; None: no limit.
    """

    def __init__(
        self,
        what: str,
        query: pb.ScanQuery,
        schema: pa.Schema,
        positions: Sequence[pb.FetchPosition],
        progress: Mapping[int, BucketProgress],
        options: FetchOptions,
        *,
        stop_at_end: bool,
        row_limit: int | None,
    ) -> None:
        self._what = what
        self._query = query
        self._schema = schema
        self._options = options
        self._buckets = [
            _Bucket(
                f"{what} bucket {position.bucket}",
                position,
                progress[position.bucket],
                stop_at_end=stop_at_end,
                filtered=bool(query.filter),
                rows_left=row_limit,
                nothing=no_rows(schema),
            )
            for position in positions
        ]
        """Those that have not ended, in the order of their turns."""

    @property
    def ended(self) -> bool:
        """Whether every bucket has come to its end."""
        return not self._buckets

    def next_request(self) -> pb.FetchLogRequest:
        """The request that fetches what comes next; the same again until an answer is received."""
        options, positions = self._options, [bucket.position for bucket in self._buckets]
        return pb.FetchLogRequest(
            query=self._query,
            positions=positions,
            min_bytes=options.min_bytes,
            max_wait_ms=round(options.max_wait_s * 1000) if all(each.begun for each in self._buckets) else 0,
            bucket_bytes_max=options.bucket_bytes,
            # A bucket without a history may be one of another table of this name by now.
            with_schema=not all(any(position.history) for position in positions),
        )

    def receive(self, message: Buffer) -> tuple[list[FetchedRows], ScannerError | None]:
        """Take the answer to `next_request`.

        Args:
            message: As received; batches are views of it and keep it alive.

        Returns:
            What it brings; and the first error of a bucket, which was not read on.

        Raises:
            DataCorrupted: It cannot be read, or fails a check.
            SchemaMismatch: The table was replaced by another meanwhile.
        """
        answer, received = decode_fetched(message)
        if self._query.HasField("table_id") and answer.HasField("table_id"):
            require_about(f"{self._what}: FetchLog", self._query.table_id, answer.table_id)
        if answer.arrow_schema:
            require_schema(self._what, answer.arrow_schema, self._schema)
        if [each.fields.bucket for each in received] != [each.position.bucket for each in self._buckets]:
            raise DataCorrupted(f"{self._what}: the answer to a fetch is of other buckets than its request")
        answered = list(zip(self._buckets, received, strict=True))
        decoded = [bucket.decode(each, self._schema) for bucket, each in answered]
        rows = []
        for (bucket, each), batches in zip(answered, decoded, strict=True):
            rows += bucket.advance(each, batches)
        errors = [each.fields.error for each in received if each.fields.HasField("error")]
        self._take_turns([bool(each.batches) for each in received])
        return rows, from_detail(f"{self._what}: {errors[0].message}", errors[0]) if errors else None

    def _take_turns(self, busy: Sequence[bool]) -> None:
        """Drop the buckets that have ended, and put those that brought something behind the others."""
        turns = sorted(zip(busy, self._buckets, strict=True), key=lambda turn: turn[0])
        self._buckets = [bucket for _, bucket in turns if not bucket.ended]


@dataclass(slots=True)
class _Bucket:
    """One bucket's changes, as far as they have come."""

    what: str
    position: pb.FetchPosition
    """What is asked for next."""
    progress: BucketProgress
    stop_at_end: bool
    filtered: bool
    rows_left: int | None
    nothing: pa.RecordBatch
    """Without rows, for when only the position moves."""
    bookmark: int | None = None
    """The newest one that was told."""
    begun: bool = False
    """Whether an answer has come."""

    @property
    def ended(self) -> bool:
        """Whether nothing more is wanted; the progress says why."""
        return self.progress.reason is not None

    def decode(self, received: ReceivedBucket, schema: pa.Schema) -> list[pa.RecordBatch]:
        """Check and read the bucket's part of an answer. Changes nothing.

        Raises:
            DataCorrupted: It fails a check.
        """
        fields, batches = received.fields, []
        if _unread(received):
            return []
        end = self._start(fields.start_offset)
        for batch in received.batches:
            if batch.changes.start != end or batch.changes.end <= end:
                raise DataCorrupted(
                    f"{self.what}: changes lost or repeated on the way: a batch covers"
                    f" [{batch.changes.start}, {batch.changes.end}), and changes up to {end} have come"
                )
            covered = batch.changes.end - end
            if batch.row_count > covered or (batch.row_count < covered and not self.filtered):
                raise DataCorrupted(
                    f"{self.what}: a batch that covers the changes [{end}, {batch.changes.end}) has"
                    f" {batch.row_count} rows"
                )
            end = batch.changes.end
            verify_payload(batch.payload, batch.crc32c)
            batches.append(require_rows(self.what, decode_batch(batch.payload, schema), batch.row_count))
        if fields.position > self._stop_offset:
            raise DataCorrupted(
                f"{self.what}: the server goes on at log offset {fields.position}, and was asked to stop at"
                f" {self.position.stop_offset}"
            )
        if fields.bookmark < (self.bookmark or 0):
            raise DataCorrupted(
                f"{self.what}: the server says that a commit ends at {fields.bookmark} where one has ended at"
                f" {self.bookmark}; the position would go back"
            )
        skipped = fields.position > end and not self.filtered
        if fields.position < end or skipped or fields.bookmark > fields.position:
            raise DataCorrupted(
                f"{self.what}: the server goes on at log offset {fields.position}, but changes up to {end} have come;"
                " some would be lost or come twice"
            )
        return batches

    @property
    def _stop_offset(self) -> float:
        """Behind which nothing is read; infinity: nowhere yet."""
        return self.position.stop_offset if self.position.HasField("stop_offset") else math.inf

    def _start(self, start_offset: int) -> int:
        """Where the changes of an answer begin that says that it begins there.

        Raises:
            DataCorrupted: It was asked to begin elsewhere.
        """
        if self.begun:
            return self.position.offset
        start = self.position.start
        if start.WhichOneof("start") == "offset" and start.offset != start_offset:
            raise DataCorrupted(
                f"{self.what}: the server begins at log offset {start_offset}, and was asked to begin at"
                f" {start.offset}; changes would be lost or come twice"
            )
        return start_offset

    def advance(self, received: ReceivedBucket, batches: Sequence[pa.RecordBatch]) -> list[FetchedRows]:
        """Take the bucket's part of an answer that was decoded."""
        if _unread(received):
            return []
        fields, progress = received.fields, self.progress
        if not self.begun:
            progress.log_offset = fields.start_offset
            if self.stop_at_end:
                self.position.stop_offset = fields.high_watermark
        self.begun = True
        progress.history = fields.history
        self.position.offset, self.position.history = fields.position, fields.history
        rows = []
        for sent, batch in zip(received.batches, batches, strict=True):
            progress.bytes_received += sent.message_bytes
            rows += self._within_limit(batch, sent)
        if self.rows_left == 0:
            progress.reason = "LIMIT"
            return rows
        if self.position.HasField("stop_offset") and fields.position >= self.position.stop_offset:
            progress.reason = "STOP_OFFSET"
        if fields.bookmark != self.bookmark:
            self.bookmark = fields.bookmark
            if not rows or rows[-1].position != fields.bookmark:
                rows.append(FetchedRows(self.position.bucket, self.nothing, 0, fields.bookmark))
        return rows

    def _within_limit(self, batch: pa.RecordBatch, sent: RowBatch) -> list[FetchedRows]:
        """A batch, as far as it is wanted; what the limit cuts does not bring what its position stands behind."""
        position = sent.changes.end if sent.changes.commit_end else None
        if self.rows_left is not None:
            if batch.num_rows > self.rows_left:
                batch, position = batch.slice(0, self.rows_left), None
            self.rows_left -= batch.num_rows
        if not batch.num_rows:
            return []
        return [FetchedRows(self.position.bucket, batch, sent.message_bytes, position)]


def _unread(received: ReceivedBucket) -> bool:
    """Whether the bucket could not be opened, so that its answer is nothing but an error."""
    return received.fields.HasField("error") and not received.fields.HasField("position")
