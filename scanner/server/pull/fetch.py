"""The answer to one fetch of changes: filled with what is there, then with what is committed, up to its bounds.

Buckets are filled in the order in which they were asked for, each up to its own bound, until the answer is full. If
there are fewer bytes than asked for, a commit of one of the buckets wakes the answer; nothing is looked at meanwhile.

Invariants:

1. An answer exceeds its bounds by the rest of one row at most, and has at least one row if there is one in its time.
   So every answer to a position behind which there are changes moves it.
2. A block that fits is sent as its `LogBlocks` made it, encoded once for all fetches and tails that want the same.
3. `position` moves over changes that the filter drops, too.
4. What is wrong with one bucket is said of that bucket, and the answer goes out at once, with what the others have.

Kafka's `Fetch` is the model (KIP-74 for the bounds), but for its sessions, which save naming buckets that are idle.

This module knows no stream, no request and no query.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from scanner.errors import ScannerError
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.server.fairness import pass_turn
from scanner.wire.arrow_ipc import encode_rows
from scanner.wire.batches import FetchedBatch
from scanner.wire.statuses import message_and_detail

if TYPE_CHECKING:
    from scanner.server.tables.bucket import ServedBucket
    from scanner.server.tables.open_scan import OpenScan
    from scanner.sources.log import LogSource


@dataclass(frozen=True, kw_only=True, slots=True)
class FetchLimits:
    """What one answer keeps to."""

    bytes_min: int
    """Arrow payload for which it waits, 0 or more."""
    bytes_max: int
    """Arrow payload, above 0."""
    rows_max: int
    """Of a batch, above 0."""
    wait_s: float
    """The longest wait for `bytes_min`."""
    read_s: float
    """Time of reading after which it goes out as it is, so that a filter that drops everything does not outlast the
    patience of clients and proxies."""


@dataclass(slots=True)
class BucketFetch:
    """One bucket's part of an answer."""

    index: int
    bytes_max: int
    """Arrow payload, above 0."""
    bucket: ServedBucket | None = None
    scan: OpenScan[LogSource] | None = None
    """Not parked, as long as it is read; None: it could not be opened. To be closed by the one that opened it."""
    error: ScannerError | None = None
    batches: list[FetchedBatch] = field(default_factory=list)
    taken_bytes: int = 0

    @property
    def source(self) -> LogSource | None:
        """What may be read on; None: nothing."""
        if self.scan is None or self.scan.parked or self.error is not None:
            return None
        return self.scan.source

    def fail(self, error: ScannerError) -> None:
        """Take what is wrong with the bucket."""
        self.error = error.of_bucket(self.index)

    def step(self, bytes_max: int) -> None:
        """Read one more block.

        Args:
            bytes_max: Stored bytes that are enough where it is read for this answer alone, above 0.
        """
        source = self.source
        assert source is not None
        try:
            source.step(bytes_max)
        except ScannerError as error:
            self.fail(error)

    @property
    def capped(self) -> bool:
        """Whether what was read does not fit any more. The first batch always does: its block is cut."""
        source = self.source
        assert source is not None
        return bool(self.batches) and self.taken_bytes + source.pending_bytes > self.bytes_max

    def take(self, room_bytes: int, rows_max: int) -> int:
        """Take what was read, or as much of it as fits, but one row at least.

        Args:
            room_bytes: Of the whole answer, above 0.
            rows_max: Of a batch.

        Returns:
            Bytes taken, above 0.
        """
        source = self.source
        assert source is not None
        batch = source.take(min(room_bytes, self.bytes_max - self.taken_bytes), rows_max)
        assert batch is not None  # Something is pending.
        assert batch.changes is not None
        encoded = batch.encoded or encode_rows(batch.rows)
        self.batches.append(FetchedBatch(batch.rows.num_rows, encoded, batch.changes))
        self.taken_bytes += batch.payload_bytes
        return batch.payload_bytes

    def fields(self) -> pb.FetchedBucket:
        """The bucket's part of the answer, without its batches."""
        fields = pb.FetchedBucket(bucket=self.index)
        if self.bucket is not None and self.scan is not None:
            source, storage = self.scan.source, self.bucket.storage
            fields.start_offset = source.log_offset
            fields.position = source.next_offset
            fields.bookmark = source.bookmark
            fields.high_watermark = storage.log_end
            fields.history = storage.lineage.history_of(source.next_offset)
        if self.error is not None:
            message, detail = message_and_detail(self.error)
            fields.error.CopyFrom(
                pb.FetchError(
                    reason=detail.reason,
                    message=message,
                    oldest_offset=self.error.oldest_offset,
                    metadata=detail.metadata,
                )
            )
        return fields


class Fetch:
    """One answer.

    Args:
        parts: In the order of the request; open, or with their errors.
        limits: To be kept.
    """

    def __init__(self, parts: Sequence[BucketFetch], limits: FetchLimits) -> None:
        self._parts = parts
        self._limits = limits
        self._bytes = 0
        self._full = False
        """Whether nothing more is added."""
        self._due = False
        """Whether it goes out without waiting for more."""
        self._changed = trio.Event()

    async def fill(self) -> None:
        """Fill the answer.

        Waits:
            For commits, until there is enough or the time is over.

        Cancellation:
            What was read is lost, and nothing else: nothing is kept for an answer.
        """
        now = trio.current_time()
        wait_until, read_until = now + self._limits.wait_s, now + self._limits.read_s
        with ExitStack() as watching:
            for part in self._parts:
                if part.bucket is not None and part.scan is not None:
                    part.scan.when_ended(functools.partial(self._end, part))
                    watching.callback(part.bucket.on_commit(self._wake))
            while True:
                changed = self._changed
                await self._read(read_until)
                if self._complete or trio.current_time() >= wait_until:
                    return
                waits_from = trio.current_time()
                with trio.move_on_at(wait_until):
                    await changed.wait()
                read_until += trio.current_time() - waits_from  # Waiting is no reading.

    def finish(self) -> None:
        """Have it go out with what is there, without waiting for more."""
        self._due = True
        self._wake()

    def _end(self, part: BucketFetch, error: ScannerError) -> None:
        part.fail(error)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    @property
    def _complete(self) -> bool:
        """Whether it is no use to wait."""
        if self._due or self._bytes >= self._limits.bytes_min:
            return True
        sources = [part.source for part in self._parts]
        return None in sources or all(source is not None and source.end for source in sources)

    async def _read(self, read_until: float) -> None:
        """Fill it with what is there now."""
        for part in self._parts:
            while not self._full and self._advance(part):
                await pass_turn()
                if trio.current_time() >= read_until:
                    self._full = self._due = True

    def _advance(self, part: BucketFetch) -> bool:
        """Read a block of a bucket, or take what was read; whether there may be more to do."""
        source = part.source
        if source is None:
            return False
        room_bytes = self._limits.bytes_max - self._bytes
        if not source.pending_bytes:
            if source.wants_step:
                part.step(max(1, min(room_bytes, part.bytes_max)))
                return True
            return False
        if self._bytes and source.pending_bytes > room_bytes:
            self._full = self._due = True
            return False
        if part.capped:
            self._due = True
            return False
        self._bytes += part.take(room_bytes, self._limits.rows_max)
        return True
