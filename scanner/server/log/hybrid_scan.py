"""A snapshot of a bucket, then its changelog from there, as one scan.

Invariants:

1. The rows of the state as of S come first, as inserts, then `SnapshotEnd(S)`, then every change from S on: no change
   is in both, none in neither.
2. The log is kept from S on before the first row goes out, and until the changes that follow were sent.
3. A token of the first half continues in the first half, one made behind the boundary in the second. There
   `SnapshotEnd` is sent again, so that a reader knows that its snapshot is complete.

This module knows no stream, and no call waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.sources.interface import EndReason

if TYPE_CHECKING:
    from scanner.server.log.log_scan import LogScan
    from scanner.server.scan.interface import BatchLimits
    from scanner.server.scan.kv_scan import KvScan
    from scanner.server.tables.open_scan import OpenScan
    from scanner.wire.batches import Parts
    from scanner.wire.queries import ScanQuery


class HybridScan:
    """One open scan: a `scanner.server.scan.interface.PushedScan`. Made by the opener.

    Args:
        snapshot: The first half; None: the scan is resumed behind it.
        changes: The second half; None: the scan is still in the first.
        snapshot_offset: S.
        cross: Makes the second half of the first, all of whose rows were taken, over the same `OpenScan`.
    """

    def __init__(
        self,
        snapshot: KvScan | None,
        changes: LogScan | None,
        snapshot_offset: int,
        cross: Callable[[KvScan], LogScan],
    ) -> None:
        half = snapshot or changes
        assert half is not None
        self._snapshot = snapshot
        self._half: KvScan | LogScan = half
        self._snapshot_offset = snapshot_offset
        self._cross = cross
        self._boundary_due = snapshot is None

    @property
    def query(self) -> ScanQuery:
        """What is delivered, with its columns."""
        return self._half.query

    @property
    def scan(self) -> OpenScan[Any]:
        """See `PushedScan`."""
        return self._half.scan

    @property
    def rows(self) -> int:
        """See `PushedScan`."""
        return self._half.rows

    @property
    def pending(self) -> bool:
        """See `PushedScan`."""
        return self._half.pending

    @property
    def waiting(self) -> bool:
        """See `PushedScan`."""
        return self._half.waiting

    @property
    def endless(self) -> bool:
        """See `PushedScan`."""
        return self._half.endless

    @property
    def end(self) -> EndReason | None:
        """See `PushedScan`; the end of the snapshot is not the scan's."""
        return None if self._crosses else self._half.end

    @property
    def steps_take_long(self) -> bool:
        """See `PushedScan`."""
        return self._half.steps_take_long

    def on_commit(self, callback: Callable[[], None]) -> Callable[[], None]:
        """See `PushedScan`."""
        return self._half.bucket.on_commit(callback)

    def step(self, bytes_max: int) -> None:
        """See `PushedScan`; behind the last row of the snapshot, go over to the changes."""
        if not self._crosses:
            self._half.step(bytes_max)
            return
        assert self._snapshot is not None
        self._half = self._cross(self._snapshot)
        self._snapshot = None
        self._boundary_due = True

    def notice(self) -> pb.ScanResponse | None:
        """See `PushedScan`: the boundary, once the scan is behind it, and what its half has to say."""
        if not self._boundary_due:
            return self._half.notice()
        self._boundary_due = False
        return pb.ScanResponse(snapshot_end=pb.SnapshotEnd(log_offset=self._snapshot_offset))

    def take(self, message_bytes_max: int, limits: BatchLimits) -> Parts:
        """See `PushedScan`."""
        return self._half.take(message_bytes_max, limits)

    def whole_bytes(self, limits: BatchLimits) -> int:
        """See `PushedScan`."""
        return self._half.whole_bytes(limits)

    def token(self) -> bytes:
        """See `PushedScan`."""
        return self._half.token()

    def started(self) -> pb.ScanStarted:
        """See `PushedScan`; its offset is the snapshot's, in either half."""
        started = self._half.started()
        started.log_offset = self._snapshot_offset
        started.schema_id = self._half.table.schema.schema_id_of(self._half.query)
        started.history = self._half.bucket.storage.lineage.history_of(self._snapshot_offset)
        return started

    def heartbeat(self) -> pb.Heartbeat:
        """See `PushedScan`."""
        heartbeat = self._half.heartbeat()
        heartbeat.schema_id = self._half.table.schema.row_codec.schema_id
        return heartbeat

    def ended(self, reason: EndReason) -> pb.ScanEnd:
        """See `PushedScan`."""
        return self._half.ended(reason)

    @property
    def _crosses(self) -> bool:
        """Whether the snapshot is complete, and its changes are next."""
        return self._snapshot is not None and self._snapshot.end is EndReason.EXHAUSTED
