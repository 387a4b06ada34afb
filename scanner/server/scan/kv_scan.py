"""A scan of the rows of a bucket as of one log offset: what holds it open, and makes its messages and tokens.

Invariants:

1. What it shows never changes, whatever it is read from and however often it is parked.
2. A token continues it right behind the rows that were taken; where nothing is left to take, behind those that were
   read.

This module knows no stream, and not how a read source is chosen.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.server.scan.interface import SourceScan
from scanner.server.scan.tokens import TOKEN_OVERHEAD_BYTES, TokenState
from scanner.sources.kv import KvSource
from scanner.wire.arrow_ipc import encode_rows, encode_schema
from scanner.wire.batches import encode_row_batch, row_batch_overhead

if TYPE_CHECKING:
    from scanner.server.scan.interface import BatchLimits
    from scanner.server.scan.read_sources import ReadSource
    from scanner.sources.interface import EndReason
    from scanner.wire.batches import Parts


@dataclass(slots=True)
class KvScan(SourceScan[KvSource]):
    """One open scan: a `scanner.server.scan.interface.PushedScan`. Made by the opener.

    The pull models read `scan` page by page instead, and take the tokens.
    """

    read_source: ReadSource
    """What it is read from now; a reopened scan may have another one."""
    source: int
    """Number of the wire's ScanSource, for the tokens."""
    model: int
    """`MODEL_PUSH`, or a number of the wire's PageModel, for the tokens."""
    snapshot_id: int = 0
    """TOKEN pages: names the snapshot that the server keeps between them, for the tokens; 0: none. HYBRID: where the
    changes end (`scanner.server.scan.tokens.stop_id`)."""
    as_changes: bool = False
    """Its rows have the columns of a change."""
    _told: ReadSource | None = field(default=None, init=False)
    """What the client was told that it is read from; None: nothing yet."""

    @property
    def log_offset(self) -> int:
        """What it is as of, parked or not."""
        return self.scan.source.log_offset

    @property
    def waiting(self) -> bool:
        """See `PushedScan`; a state has an end."""
        return False

    @property
    def endless(self) -> bool:
        """See `PushedScan`; a state has an end."""
        return False

    @property
    def steps_take_long(self) -> bool:
        """See `PushedScan`."""
        return True

    def on_commit(self, callback: Callable[[], None]) -> Callable[[], None]:
        """See `PushedScan`; no commit matters."""
        return lambda: None

    def notice(self) -> pb.ScanResponse | None:
        """See `PushedScan`: it was parked, and goes on from something else."""
        if self.read_source is self._told:
            return None
        heartbeat = self.heartbeat()
        heartbeat.state = pb.Heartbeat.STATE_SCANNING
        return pb.ScanResponse(heartbeat=heartbeat)

    def step(self, bytes_max: int) -> None:
        """See `PushedScan`."""
        self.scan.source.step(bytes_max)

    def take(self, message_bytes_max: int, limits: BatchLimits) -> Parts:
        """See `PushedScan`."""
        source = self.scan.source
        overhead = _overhead_bytes(source.key_bytes_max, limits)
        batch = source.take(min(limits.payload_bytes_max, message_bytes_max - overhead), limits.rows_max)
        assert batch is not None  # Something is pending.
        encoded, activity = batch.encoded, self.bucket.activity
        if encoded is None:
            encoded = encode_rows(batch.rows)
            activity.payload_bytes_encoded += encoded.payload.size
        else:
            activity.payload_bytes_reused += encoded.payload.size
        return encode_row_batch(
            batch.row_ordinal, batch.rows.num_rows, encoded.crc32c, encoded.payload, self.token()
        )

    def whole_bytes(self, limits: BatchLimits) -> int:
        """See `PushedScan`; a block of an image is."""
        source = self.scan.source
        payload = source.whole_bytes(limits.rows_max)
        if not payload or payload > limits.payload_bytes_max:
            return 0
        return payload + _overhead_bytes(source.key_bytes_max, limits)

    def token(self) -> bytes:
        """See `PushedScan`; takes a few tens of microseconds."""
        return self.mint.token(
            TokenState(
                table_id=self.table.table_id,
                bucket=self.query.bucket,
                source=self.source,
                model=self.model,
                log_offset=self.log_offset,
                position=self.scan.source.position,
                history=self.history,
                snapshot_id=self.snapshot_id,
            )
        )

    def started(self) -> pb.ScanStarted:
        """See `PushedScan`."""
        source = self.scan.source
        self._told = self.read_source
        return pb.ScanStarted(
            arrow_schema=encode_schema(source.schema),
            log_offset=source.log_offset,
            row_ordinal=source.rows,
            history=self.history,
            read_source=self.read_source.on_wire,
            scanned=self.scanned(),
            resume_token=self.token(),
        )

    def heartbeat(self) -> pb.Heartbeat:
        """See `PushedScan`."""
        self._told = self.read_source
        return pb.Heartbeat(
            resume_token=self.token(),
            high_watermark=self.bucket.storage.log_end,
            rows=self.rows,
            read_source=self.read_source.on_wire,
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
        )


@functools.lru_cache(maxsize=64)
def _overhead_bytes(key_bytes_max: int, limits: BatchLimits) -> int:
    """What a batch's message takes beside its payload, at most: the key in its token is known only after the cut."""
    token_max = TOKEN_OVERHEAD_BYTES + key_bytes_max
    return row_batch_overhead(limits.rows_max, limits.payload_bytes_max, token_max)
