"""What arrives of one bucket's push scan, over as many streams as it takes: checked, counted, and how to go on. Pure.

`scanner.client.scan.push` runs it.

Invariants:

1. A batch reaches the consumer only if its ordinal continues the one before, on whatever stream that came, and its
   checksum is right.
2. Data ends with `ScanEnd`, a reason that means the end, and a matching total of rows, and with nothing else: whatever
   else ends a stream is a failure.
3. All streams show the bucket as of one log offset, and each goes on exactly behind the last row that arrived; a
   server that does otherwise is found out by what it says at the start. So it is from the first `ScanStarted` on: the
   user can know that state by then (`statistics()`, `resume_position()`). If it is gone the scan fails, though no row
   has come. An older server sends no token with it: then a scan of a checkpoint begins anew until a row has come.
4. What arrived and was not consumed is at most the window and what the server may overrun it by, over all streams:
   credit is granted on consumption, in message bytes, and a server that ignores it is cut off.
5. Only what moves the scan counts as progress: rows, another position, or a wait for credit that we do owe. So a server
   that only looks busy does not have its streams opened again for ever.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from scanner.client.scan.columns import AskedColumns, as_asked
from scanner.client.scan.resume_position import BucketPosition
from scanner.client.scan.sequence import RowSequence, no_rows, require_bucket, require_rows, require_schema
from scanner.data.changes import COMMIT_TIMESTAMP
from scanner.errors import DataCorrupted, Draining, InternalError, ScanIncomplete, ScannerError
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.wire.arrow_ipc import decode_batch
from scanner.wire.batches import RowBatch, decode_scan_response
from transport import FlowControlViolation, StallTimes

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Buffer

    from scanner.client.scan.statistics import BucketProgress
    from transport import ReceiveCredit


_COMPLETE: Final = {pb.ScanEnd.REASON_EXHAUSTED: "EXHAUSTED", pb.ScanEnd.REASON_LIMIT: "LIMIT"}
"""The reasons that mean the end of a scan without changes."""
_COMPLETE_WITH_CHANGES: Final = {
    pb.ScanEnd.REASON_STOP_OFFSET: "STOP_OFFSET",
    pb.ScanEnd.REASON_LIMIT: "LIMIT",
}
"""Those that mean the end of one with changes."""
_TIMES_US: Final = range(-62_135_596_800_000_000, 253_402_300_800_000_000)
"""Those that a `datetime` has, the years 1 to 9999, in microseconds since 1970."""
_CHANGES: Final = (pb.SCAN_SOURCE_LOG, pb.SCAN_SOURCE_HYBRID)


class ReceiverState(enum.Enum):
    """Where the newest stream of a push scan is."""

    OPENING = "opening"
    """`ScanStarted` has not come."""
    SCANNING = "scanning"
    ENDED = "ended"
    """`ScanEnd` came, it is the scan's, and its total is right."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """What one response brings to the consumer."""

    batch: pa.RecordBatch
    """Perhaps without rows: then only the position moves."""
    size: int
    """Message bytes that it costs until it is consumed."""
    position: int | None = None
    """LOG and HYBRID: a commit's end; every change before it that passes has come with this or earlier. None: unknown
    yet, inside a commit, or in the snapshot."""
    snapshot_end: int | None = None
    """HYBRID: the snapshot is complete, and this is the offset that it is as of."""
    commit_time_floor_us: int | None = None
    """LOG and HYBRID: every change committed at this time or before it that passes has come with this or earlier, in
    microseconds since 1970 UTC. None: nothing new is known."""
    behind: BucketPosition | None = None
    """Where the scan stands behind this; None: source LOG."""


class PushReceiver:
    """What the responses of one bucket's push scan mean.

    Args:
        what: Names the scan in errors, e.g. `orders bucket 2`.
        schema: What the batches must be.
        credit: Fresh; the message bytes that may wait for the consumer.
        progress: Counters to keep.
        on_advance: Called whenever something brought the scan on, or showed that it waits for nobody but us.
        columns: Which ones are asked for; None: those of the query.
    """

    def __init__(
        self,
        what: str,
        schema: pa.Schema,
        credit: ReceiveCredit,
        progress: BucketProgress,
        on_advance: Callable[[], None] = lambda: None,
        columns: AskedColumns | None = None,
    ) -> None:
        self._what = what
        self._schema = schema
        self._progress = progress
        self._on_advance = on_advance
        self.columns = columns or as_asked()
        """Which ones the newest stream was asked for."""
        self._sequence = RowSequence(what)
        self._token = b""
        self._row_limit: int | None = None
        self._stop_offset: int | None = None
        """Where the scan is to stop; None: wherever the server says."""
        self._log_offset: int | None = None
        """What every further stream must be as of."""
        self._history = b""
        """The history that the offset is of, as the server names it; empty: it has not said."""
        self._of_history = False
        """Whether a history was asked for. Which one is the server's to check: later ones than the offset's own hold
        that state, too. An older server, which does not check, names none."""
        self._schema_id: int | None = None
        """The table's schema whose columns come; None: the server has not said."""
        self._source: int = pb.SCAN_SOURCE_LIVE_KV
        self._query = pb.ScanQuery()
        """What is asked for."""
        self._group_epoch = 0
        self._changes_end = 0
        """Where the changes that came end."""
        self._behind_snapshot = False
        """HYBRID: `SnapshotEnd` has come."""
        self._in_log = False
        """Whether changes come, and not rows of a state."""
        self._commit_times = _CommitTimes(what, schema)
        self._filtered = False
        self._fresh = True
        """Whether the newest stream has brought no changes yet."""
        self.credit = credit
        """The consumer's ledger of this bucket: one window, over all streams."""
        self.heartbeat_s = 0.0
        """How often the server says something at least, as it promised; 0: it has not said."""
        self.state = ReceiverState.OPENING
        self.server_stalls: StallTimes | None = None
        """The server's account of the newest stream, if its end has told it."""

    @property
    def resumable(self) -> bool:
        """Whether the scan can go on after what arrived; not so if the server makes no tokens."""
        return bool(self._token) or not self._sequence.rows

    def go_on_at(self, at: BucketPosition) -> None:
        """Go on where another scan stood, before the first stream begins."""
        self._token, self._sequence.rows = at.token, at.rows
        self._log_offset, self._history = at.log_offset, at.history
        self._changes_end, self._behind_snapshot = at.changes_end, at.behind_snapshot
        if at.commit_time_floor_us is not None:
            self._commit_times.raise_floor(at.commit_time_floor_us)

    def begin_stream(self, scan_open: pb.ScanOpen) -> pb.ScanOpen:
        """Begin another stream, the first one included.

        Args:
            scan_open: What to ask for in the first place; not changed.

        Returns:
            What to ask for now: to go on behind what arrived, in the same state.
        """
        self.state, self.server_stalls = ReceiverState.OPENING, None
        self.credit.begin_stream()
        self._source, self._query = scan_open.source, scan_open.query
        self._in_log = self._source == pb.SCAN_SOURCE_LOG or self._behind_snapshot
        self._group_epoch = scan_open.group_epoch
        self._filtered = bool(scan_open.query.filter)
        self._fresh = True
        self._stop_offset = None
        if scan_open.HasField("stop_offset") and not scan_open.stop_at_end:
            self._stop_offset = scan_open.stop_offset
        self._row_limit = scan_open.query.row_limit if scan_open.query.HasField("row_limit") else None
        request = pb.ScanOpen()
        request.CopyFrom(scan_open)
        if not self._token:
            self.columns.open_anew()
        self.columns.put_into(request.query)
        if self._token:
            request.resume_token = self._token
            request.ClearField("as_of")
            request.ClearField("as_of_history")
        # Begun, and without a token: an older server sends none before the first row.
        elif self._log_offset is not None and request.source == pb.SCAN_SOURCE_LOG:
            request.log_start.offset = self._log_offset
        elif self._log_offset is not None and request.source != pb.SCAN_SOURCE_SNAPSHOT:
            request.as_of = self._log_offset
            request.as_of_history = self._history or request.as_of_history
        else:
            self._log_offset = _asked_for(request)
        self._of_history = bool(request.as_of_history)
        return request

    def receive(self, message: Buffer) -> Arrival | None:
        """Take one response.

        Args:
            message: As received; a batch is a view of it and keeps it alive.

        Returns:
            What the consumer gets; None: nothing.

        Raises:
            DataCorrupted: The response cannot be read, is out of turn, or fails a check.
            SchemaMismatch: The table was replaced by another meanwhile.
            InternalError: The server sent past the credit.
            Draining: The server ended the scan before its end.
        """
        response = decode_scan_response(message)
        if self.state is ReceiverState.ENDED:
            raise DataCorrupted(f"{self._what}: the server sent more after the end of the scan")
        if isinstance(response, RowBatch):
            return self._batch(response)
        kind = response.WhichOneof("response")
        if kind == "started":
            self._started(response.started)
        elif kind == "heartbeat":
            return self._heartbeat(response.heartbeat)
        elif kind == "end":
            return self._end(response.end)
        elif kind == "snapshot_end":
            return self._snapshot_end(response.snapshot_end)
        # Kinds that this version does not know are for others.
        return None

    def take_failure(self, error: ScannerError) -> bool:
        """Take what ended a stream, or kept the next one from beginning.

        Its token counts only if it stands where we do: a server that fails may drop what it has queued, and its token
        would then be ahead of what arrived.

        Returns:
            Whether it ended a stream that had begun. A second failure in a row did not.
        """
        began = self.state is ReceiverState.SCANNING
        if began:
            self.state = ReceiverState.OPENING
        token = error.resume_token
        if token and token != self._token and error.metadata.get("rows") == str(self._sequence.rows):
            self._token = token
            self._on_advance()
        return began

    def end_of_stream(self) -> None:
        """Take the end of the stream.

        Raises:
            ScanIncomplete: It came without the scan's explicit end.
        """
        if self.state is not ReceiverState.ENDED:
            raise ScanIncomplete(
                f"{self._what}: the stream ended without the end of the scan, after {self._sequence.rows} rows",
                resume_token=self._token or None,
            )

    def _started(self, started: pb.ScanStarted) -> None:
        if self.state is not ReceiverState.OPENING:
            raise DataCorrupted(f"{self._what}: the server started the scan twice")
        require_bucket(self._what, started, self._query)
        self._schema = require_schema(self._what, started.arrow_schema, self._schema)
        self.columns.opened()
        if self._source == pb.SCAN_SOURCE_LOG:
            self._log_started(started)
        elif self._log_offset is not None and started.log_offset != self._log_offset:
            raise DataCorrupted(
                f"{self._what}: the server reads the state as of log offset {started.log_offset},"
                f" but the scan is as of {self._log_offset}; rows of two states would be mixed"
            )
        if started.history != (self._history or started.history) or (
            self._of_history and not started.history
        ):
            raise DataCorrupted(
                f"{self._what}: the server reads another history of the bucket than the one that the scan began with;"
                " rows of two states would be mixed"
            )
        if started.row_ordinal != self._sequence.rows:
            raise DataCorrupted(
                f"{self._what}: the server goes on at row {started.row_ordinal}, but {self._sequence.rows} rows arrived"
            )
        if self._progress.log_offset is not None:
            self._progress.resumes += 1
        self._log_offset = self._progress.log_offset = started.log_offset
        self._history = self._progress.history = started.history
        if not self._token:
            self._progress.begun = self._begun(started)
        # That is no progress: a server may start a scan again and again.
        self._token = started.resume_token or self._token
        self._progress.add_read_source(started.read_source)
        self.heartbeat_s = started.heartbeat_interval_ms / 1000
        if started.HasField("schema_id"):
            self._see_schema(started.schema_id)
        self.state = ReceiverState.SCANNING

    def _begun(self, started: pb.ScanStarted) -> BucketPosition | None:
        """Where the scan stands before its first row; None: only a token can name a checkpoint, and there is none."""
        if self._source == pb.SCAN_SOURCE_SNAPSHOT and not started.resume_token:
            return None
        return BucketPosition(
            log_offset=started.log_offset, history=started.history, token=started.resume_token
        )

    def _see_schema(self, schema_id: int) -> None:
        """The table has this schema now; the first one seen is the scan's."""
        if self._schema_id is None:
            self._schema_id = schema_id
        elif schema_id > self._schema_id:
            self._progress.schema_outdated = True

    def _log_started(self, started: pb.ScanStarted) -> None:
        """A scan of the log goes on where the one before it stood, or behind changes that do not pass."""
        if not self._token and self._log_offset not in (None, started.log_offset):
            raise DataCorrupted(
                f"{self._what}: the server begins at log offset {started.log_offset}, and was asked to begin at"
                f" {self._log_offset}; changes would be lost or come twice"
            )
        skipped = started.log_offset > self._changes_end and not self._filtered
        if self._token and (started.log_offset < self._changes_end or skipped):
            raise DataCorrupted(
                f"{self._what}: the server goes on at log offset {started.log_offset}, but changes up to"
                f" {self._changes_end} have come; some would be lost or come twice"
            )
        self._changes_end = started.log_offset
        # What it shows is known by offset; the history may be a newer one by now.
        self._history = b""

    def _batch(self, batch: RowBatch) -> Arrival:
        if self.state is not ReceiverState.SCANNING:
            raise DataCorrupted(f"{self._what}: rows came before the start of the scan")
        size = batch.message_bytes
        try:
            self.credit.receive(size, batch.row_count)
        except FlowControlViolation as error:
            raise InternalError(f"{self._what}: the server sent past the credit: {error}") from error
        finally:
            self._progress.bytes_received += size
            self._progress.overrun_bytes = self.credit.overrun_bytes
        self._sequence.accept(
            ordinal=batch.row_ordinal, count=batch.row_count, crc32c=batch.crc32c, payload=batch.payload
        )
        rows = require_rows(self._what, decode_batch(batch.payload, self._schema), batch.row_count)
        self._require_epoch(batch.group_epoch)
        position = self._take_changes(batch)
        floor_us = self._commit_times.take(rows, position is not None) if batch.changes.end else None
        further = batch.row_count > 0 or batch.resume_token != self._token
        # A batch without a token makes the one before useless: it would bring these rows again.
        self._token = batch.resume_token
        if further:
            self._on_advance()
        return Arrival(rows, size, position, None, floor_us, self._behind())

    def _require_epoch(self, epoch: int) -> None:
        if epoch != self._group_epoch:
            raise DataCorrupted(
                f"{self._what}: the server sent what is for epoch {epoch} of a reader group, and this scan is for"
                f" {self._group_epoch}"
            )

    def _take_changes(self, batch: RowBatch) -> int | None:
        """Check that a batch's changes follow those that came; its position, if it has one."""
        start, end, commit_end = batch.changes
        if not self._in_log:
            if end:
                raise DataCorrupted(f"{self._what}: changes [{start}, {end}) in a scan of a state")
            return None
        # Batches cover the changes that do not pass, too. A resumed scan may begin behind some of them.
        skipped = start > self._changes_end and not (self._filtered and self._fresh)
        if skipped or end <= self._changes_end:
            raise DataCorrupted(
                f"{self._what}: changes lost or repeated on the way: a batch covers [{start}, {end}), and changes up"
                f" to {self._changes_end} have come"
            )
        if batch.row_count > end - start or (batch.row_count < end - start and not self._filtered):
            raise DataCorrupted(
                f"{self._what}: a batch that covers the changes [{start}, {end}) has {batch.row_count} rows"
            )
        self._changes_end, self._fresh = end, False
        return end if commit_end else None

    def _snapshot_end(self, boundary: pb.SnapshotEnd) -> Arrival | None:
        if self._source != pb.SCAN_SOURCE_HYBRID:
            raise DataCorrupted(f"{self._what}: a snapshot's end in a scan that has none")
        if self.state is not ReceiverState.SCANNING or boundary.log_offset != self._log_offset:
            raise DataCorrupted(
                f"{self._what}: the end of a snapshot as of {boundary.log_offset},"
                f" in a scan as of {self._log_offset}"
            )
        if self._behind_snapshot:
            return None  # Said again on a further stream.
        self._behind_snapshot = self._in_log = True
        self._changes_end = boundary.log_offset
        self._on_advance()
        return self._without_rows(boundary.log_offset, boundary.log_offset)

    def _without_rows(
        self, position: int | None, snapshot_end: int | None = None, commit_time_floor_us: int | None = None
    ) -> Arrival:
        return Arrival(no_rows(self._schema), 0, position, snapshot_end, commit_time_floor_us, self._behind())

    def _behind(self) -> BucketPosition | None:
        """Where the scan stands now; None: a scan of the changes alone stands at a commit's end."""
        if self._source == pb.SCAN_SOURCE_LOG:
            return None
        assert self._log_offset is not None  # It has started.
        ended = self.state is ReceiverState.ENDED
        return BucketPosition(
            log_offset=self._log_offset,
            history=self._history,
            token=b"" if ended else self._token,
            rows=self._sequence.rows,
            changes_end=self._changes_end,
            behind_snapshot=self._behind_snapshot,
            reason=self._progress.reason,
            digest=self._progress.digest or 0,
            stored_bytes=self._progress.stored_bytes or 0,
        )

    def _heartbeat(self, heartbeat: pb.Heartbeat) -> Arrival | None:
        if self.state is not ReceiverState.SCANNING:
            return None  # It says that the server lives, and no more.
        self._progress.add_read_source(heartbeat.read_source)
        if heartbeat.HasField("schema_id"):
            self._see_schema(heartbeat.schema_id)
        further = bool(heartbeat.resume_token) and heartbeat.resume_token != self._token
        if further:
            self._token = heartbeat.resume_token
        # A grant may still be on its way to a server that says it waits; then rows will tell.
        waiting = heartbeat.state == pb.Heartbeat.STATE_WAITING_DATA
        if further or waiting or (heartbeat.state == pb.Heartbeat.STATE_WAITING_CREDIT and self.credit.spent):
            self._on_advance()
        moves = further and self._source != pb.SCAN_SOURCE_LOG
        if not heartbeat.HasField("position") or not self._in_log:
            return self._without_rows(None) if moves else None
        self._require_epoch(heartbeat.group_epoch)
        self._require_all_came(heartbeat.position, heartbeat.rows)
        position: int | None = None
        if heartbeat.position > self._changes_end:
            position = self._changes_end = heartbeat.position
        floor_us: int | None = None
        if heartbeat.HasField("commit_time_floor_us"):
            floor_us = self._commit_times.raise_floor(heartbeat.commit_time_floor_us)
        if position is None and floor_us is None and not moves:
            return None
        return self._without_rows(position, None, floor_us)

    def _require_all_came(self, position: int, rows: int) -> None:
        """Check that what the server says that it has delivered up to a position is what has come.

        Without a filter every change is in a batch, so the position is not behind the last of them.
        """
        if rows != self._sequence.rows or (position > self._changes_end and not self._filtered):
            raise DataCorrupted(
                f"{self._what}: changes lost on the way: the server says that {rows} rows went out up to log offset"
                f" {position}, and {self._sequence.rows} have come, up to {self._changes_end}"
            )

    def _end(self, end: pb.ScanEnd) -> Arrival | None:
        if self.state is not ReceiverState.SCANNING:
            raise DataCorrupted(f"{self._what}: the end came before the start of the scan")
        if end.stalls:
            self.server_stalls = StallTimes.decode_untrusted(end.stalls.encode())
        self._sequence.finish(end.rows)
        if end.reason == pb.ScanEnd.REASON_DRAINED:
            # It is no end of ours, though we may have half-closed the stream: there are more rows.
            self._token = end.resume_token or self._token
            raise Draining(
                f"{self._what}: the server ended the scan early, after {end.rows} rows",
                resume_token=self._token or None,
            )
        complete = _COMPLETE_WITH_CHANGES if self._source in _CHANGES else _COMPLETE
        if end.reason not in complete or (
            end.reason == pb.ScanEnd.REASON_LIMIT and end.rows != self._row_limit
        ):
            raise DataCorrupted(
                f"{self._what}: the server ended the scan after {end.rows} rows for reason {end.reason}, which"
                " is no end of this scan"
            )
        if end.reason == pb.ScanEnd.REASON_STOP_OFFSET:
            self._require_stop(end)
        self._progress.digest, self._progress.stored_bytes = end.digest, end.stored_bytes
        self._progress.reason = complete[end.reason]
        self.state = ReceiverState.ENDED
        if self._in_log and end.HasField("end_offset") and end.end_offset >= self._changes_end:
            return self._without_rows(end.end_offset)
        return None if self._source == pb.SCAN_SOURCE_LOG else self._without_rows(None)

    def _require_stop(self, end: pb.ScanEnd) -> None:
        """Check that a scan which came to its stop was to stop there, and that all changes before it came."""
        if not self._in_log:
            raise DataCorrupted(f"{self._what}: the scan came to its stop before the end of its snapshot")
        if self._stop_offset not in (None, end.end_offset) or end.end_offset < self._changes_end:
            raise DataCorrupted(
                f"{self._what}: the server ended the scan at log offset {end.end_offset}; it was to stop at"
                f" {self._stop_offset}, and changes up to {self._changes_end} have come"
            )
        self._require_all_came(end.end_offset, end.rows)


class _CommitTimes:
    """Up to which commit time all changes that pass have come. Commit times grow from commit to commit of a bucket.

    Args:
        what: Names the scan in errors.
        schema: Of its batches. Without `_commit_timestamp` heartbeats alone tell.
    """

    def __init__(self, what: str, schema: pa.Schema) -> None:
        self._what = what
        self._column = schema.get_field_index(COMMIT_TIMESTAMP)
        self._newest_us: int | None = None
        """Of the last change that came."""
        self._floor_us = _TIMES_US.start

    def take(self, rows: pa.RecordBatch, commit_end: bool) -> int | None:
        """Take the changes of a batch; whether they end a commit. Returns the floor if it has risen."""
        if self._column < 0:
            return None
        if rows.num_rows:
            self._newest_us = rows.column(self._column)[-1].value
        if self._newest_us is None:
            return None
        return self.raise_floor(self._newest_us if commit_end else self._newest_us - 1)

    def raise_floor(self, floor_us: int) -> int | None:
        """Take a floor; returns it if it is higher than those before.

        Raises:
            DataCorrupted: It is no time that Python can tell.
        """
        if floor_us not in _TIMES_US:
            raise DataCorrupted(f"{self._what}: {floor_us} us since 1970 is no time of a commit")
        if floor_us <= self._floor_us:
            return None
        self._floor_us = floor_us
        return floor_us


def _asked_for(request: pb.ScanOpen) -> int | None:
    """What the first stream must be as of, or begin at; None: that is not said."""
    if request.log_start.WhichOneof("start") == "offset":
        return request.log_start.offset
    return request.as_of if request.HasField("as_of") else None
