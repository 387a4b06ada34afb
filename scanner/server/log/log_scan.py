"""A scan of a bucket's changelog: what holds it open, and makes its messages and tokens.

Invariants:

1. A token continues the scan right behind the changes that were taken, inside a commit, too; where nothing is left to
   take, behind those that were read.
2. A heartbeat's position is an entry's end, and every change before it that passes was sent before the heartbeat.
3. A heartbeat names a commit-time floor only where everything was delivered: whatever is committed at or behind its
   position has a later time.
4. The log is kept from the position on for as long as the scan is open, parked or not, within what its principal may
   keep.

This module knows no stream, and no call waits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.server.scan.interface import SourceScan
from scanner.server.scan.tokens import MODEL_PUSH, TOKEN_OVERHEAD_BYTES, TokenState, stop_id
from scanner.sources.log import LogSource
from scanner.wire.arrow_ipc import encode_rows, encode_schema
from scanner.wire.batches import ANY_CHANGES, ANY_GROUP_EPOCH, encode_row_batch, row_batch_overhead

if TYPE_CHECKING:
    from scanner.server.scan.interface import BatchLimits
    from scanner.sources.interface import EndReason
    from scanner.wire.batches import Parts


@dataclass(slots=True)
class LogScan(SourceScan[LogSource]):
    """One open scan of a changelog: a `scanner.server.scan.interface.PushedScan`. Made by the opener."""

    stop_offset: int | None
    """Where it ends; None: nowhere."""
    source: int = pb.SCAN_SOURCE_LOG
    """Number of the wire's ScanSource, for the tokens."""
    snapshot_offset: int = 0
    """HYBRID: what its snapshot is as of."""
    group_epoch: int = 0
    """Of the reader group's assignment that it is for; 0: it is of no group."""
    _schema_told: int = field(init=False)
    """The newest schema of the table that its client knows of."""

    def __post_init__(self) -> None:
        self._schema_told = self.table.schema.schema_id_of(self.query)

    @property
    def waiting(self) -> bool:
        """See `PushedScan`."""
        source = self.scan.source
        return not (self.scan.parked or self.pending or source.wants_step) and source.end is None

    @property
    def endless(self) -> bool:
        """See `PushedScan`."""
        return self.stop_offset is None

    @property
    def steps_take_long(self) -> bool:
        """See `PushedScan`: most are of blocks that another tail has read."""
        return False

    def on_commit(self, callback: Callable[[], None]) -> Callable[[], None]:
        """See `PushedScan`."""
        return self.bucket.on_commit(callback)

    def step(self, bytes_max: int) -> None:
        """See `PushedScan`."""
        self.scan.source.step(bytes_max)
        self._moved()

    def notice(self) -> pb.ScanResponse | None:
        """See `PushedScan`: columns were added, which the scan does not deliver."""
        newest = self.table.schema.row_codec.schema_id
        if newest <= self._schema_told:
            return None
        self._schema_told = newest
        heartbeat = self.heartbeat()
        heartbeat.state = pb.Heartbeat.STATE_WAITING_DATA if self.waiting else pb.Heartbeat.STATE_SCANNING
        return pb.ScanResponse(heartbeat=heartbeat)

    def take(self, message_bytes_max: int, limits: BatchLimits) -> Parts:
        """See `PushedScan`."""
        source = self.scan.source
        overhead = _overhead_bytes(limits, of_group=self.group_epoch > 0)
        payload_max = min(limits.payload_bytes_max, message_bytes_max - overhead)
        batch = source.take(payload_max, limits.rows_max)
        assert batch is not None  # Something is pending.
        assert batch.changes is not None
        encoded = batch.encoded or encode_rows(batch.rows)
        self._moved()
        return encode_row_batch(
            batch.row_ordinal,
            batch.rows.num_rows,
            encoded.crc32c,
            encoded.payload,
            self.token(),
            batch.changes,
            self.group_epoch,
        )

    def whole_bytes(self, limits: BatchLimits) -> int:
        """See `PushedScan`; a change is not kept waiting."""
        return 0

    def token(self) -> bytes:
        """See `PushedScan`; takes a few microseconds."""
        source = self.scan.source
        return self.mint.token(
            TokenState(
                table_id=self.table.table_id,
                bucket=self.query.bucket,
                source=self.source,
                model=MODEL_PUSH,
                log_offset=self.snapshot_offset,
                position=source.position,
                history=self.history,
                next_offset=source.next_offset,
                snapshot_id=stop_id(self.stop_offset),
            )
        )

    def started(self) -> pb.ScanStarted:
        """See `PushedScan`; its offset is the one at which the scan begins."""
        source = self.scan.source
        return pb.ScanStarted(
            arrow_schema=encode_schema(source.schema),
            log_offset=source.next_offset,
            row_ordinal=source.rows,
            history=self.history,
            schema_id=self.table.schema.schema_id_of(self.query),
            scanned=self.scanned(),
            resume_token=self.token(),
        )

    def heartbeat(self) -> pb.Heartbeat:
        """See `PushedScan`."""
        # Before the log's end is read: a commit that becomes durable in between is later than this.
        floor_us = self.bucket.commit_time_floor_us
        position, log_end = self.scan.source.bookmark, self.bucket.storage.log_end
        return pb.Heartbeat(
            resume_token=self.token(),
            high_watermark=log_end,
            rows=self.rows,
            group_epoch=self.group_epoch,
            position=position,
            commit_time_floor_us=floor_us if floor_us and position == log_end else None,
            schema_id=self.table.schema.row_codec.schema_id,
        )

    def ended(self, reason: EndReason) -> pb.ScanEnd:
        """See `PushedScan`."""
        source = self.scan.source
        return pb.ScanEnd(
            reason=reason.value,
            rows=source.rows,
            digest=source.digest,
            resume_token=self.token(),
            stored_bytes=source.stored_bytes,
            end_offset=source.bookmark,
        )

    def _moved(self) -> None:
        """Need the log from the new position on, and remember of which history that is."""
        offset = self.scan.source.next_offset
        if self.scan.pin is not None:
            self.scan.pin.advance(offset)
        self.history = self.bucket.storage.lineage.history_of(offset)


@functools.lru_cache(maxsize=64)
def _overhead_bytes(limits: BatchLimits, *, of_group: bool) -> int:
    """What a batch's message takes beside its payload, at most."""
    return row_batch_overhead(
        limits.rows_max,
        limits.payload_bytes_max,
        TOKEN_OVERHEAD_BYTES,
        ANY_CHANGES,
        ANY_GROUP_EPOCH if of_group else 0,
    )
