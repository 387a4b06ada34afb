"""Push scans driven message by message, by a client that uses every freedom that the protocol gives it.

It repeats its demands and sends lower ones, stalls, drains and goes on, comes back with the newest token or with an old
one, on the same connection or another, under its old stream id or a new one. What it has seen it holds against what it
sees: rows that come a second time must be the same, and no batch may come past the credit.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, cast

import trio

import transport
from bench.simulation.history import Bookmark, BucketRecord, History, ScanRecord
from bench.simulation.tables import rows_of
from bench.simulation.tails import SOURCES, Following
from bench.simulation.workload import RETRIES, Behaviour, State
from scanner.client.arguments import microseconds
from scanner.client.failures import as_scanner_error
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.tasks import bare
from scanner.wire import methods
from scanner.wire.arrow_ipc import decode_batch, decode_schema, verify_payload
from scanner.wire.batches import RowBatch, decode_scan_response

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Buffer

    from scanner.errors import ScannerError

BACKOFF_S_MAX = 0.5
STARVED_S = (0.0, 0.0, 0.0, 0.01, 0.4)
"""How long it may take a consumer without credit to grant some."""
REWINDS_MAX = 3
"""Old tokens that one scan goes back to."""


class RawScan:
    """One scan of one bucket.

    Args:
        record: What is seen goes here.
        history: Told of batches, cuts, ends and errors.
        rng: Of this scanner.
        dial: Makes a connection.
        query: What to scan.
        config: Of its ends of connections.
        following: Tells when a tail that has no end has everything.
    """

    def __init__(
        self,
        record: ScanRecord,
        history: History,
        rng: random.Random,
        dial: Callable[[], Awaitable[trio.abc.Stream]],
        query: pb.ScanQuery,
        config: transport.TransportConfig,
        following: Following,
    ) -> None:
        self._record = record
        self._task = record.task
        self._history = history
        self._rng = rng
        self._dial = dial
        self._query = query
        self._config = config
        self._following = following
        self._over = False
        self._tokens: list[tuple[int, bytes]] = []
        """Those got so far, and the ordinals that they go on from; ascending."""
        self._rewinds_left = REWINDS_MAX
        self._stream_id = b"" if rng.random() < 0.5 else rng.randbytes(8)
        self._source = pb.SCAN_SOURCE_LIVE_KV
        if record.task.state is State.CHECKPOINT:
            self._source = pb.SCAN_SOURCE_SNAPSHOT
        if record.task.tail is not None:
            self._source = SOURCES[record.task.tail.source]
        self._batches = 0
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Nothing was delivered, so nothing is lost by a scan of another state."""
        record, bucket = self._record, self._query.bucket
        record.buckets[bucket] = BucketRecord()
        record.changes[bucket] = record.rows
        record.bookmarks.clear()

    async def run(self) -> None:
        """Scan; errors are recorded."""
        if self._task.behaviour is Behaviour.CANCELLED:
            with trio.move_on_after(self._task.pause_s) as scope:
                await self._connect_until_over()
            self._record.left |= scope.cancelled_caught
        else:
            await self._connect_until_over()

    async def _connect_until_over(self) -> None:
        attempts_left, reached = RETRIES, -1
        while not self._over:
            try:
                stream = await self._dial()
                async with bare(transport.connect_stream(stream, config=self._config)) as client:
                    while not self._over:
                        await self._open_stream(client)
            except (OSError, transport.TransportError) as error:
                attempts_left = attempts_left - 1 if len(self._record.rows) <= reached else RETRIES
                reached = max(reached, len(self._record.rows))
                if not attempts_left or not self._may_go_on(error):
                    self._record.error = _scanner_error(error)
                    return
                await trio.sleep(self._rng.uniform(0, BACKOFF_S_MAX))

    def _may_go_on(self, error: Exception) -> bool:
        failure = _scanner_error(error)
        self._history.add(self._record.who, "cut_off", error=type(failure).__name__)
        return failure.retriable

    async def _open_stream(self, client: transport.Client) -> None:
        """One call, from a token on, until it ends."""
        ordinal, token = self._choose_token()
        async with client.open_stream(methods.SCAN) as stream:
            opening = pb.ScanOpen(
                stream_id=self._stream_id,
                source=self._source,
                query=self._query,
                batch_bytes_max=self._task.batch_bytes_max,
                batch_rows_max=self._task.batch_rows_max,
                resume_token=token,
                as_of=self._record.promised.get(self._query.bucket),
            )
            self._set_bounds(opening)
            await stream.send(pb.ScanRequest(open=opening).SerializeToString())
            call = _Call(self, stream, ordinal)
            if token:
                self._record.resumes += 1
                self._record.rewound_to = None if token is self._tokens[-1][1] else ordinal
                self._history.add(self._record.who, "resumes", ordinal=ordinal, of=len(self._record.rows))
            self._over = await call.run()

    def _set_bounds(self, opening: pb.ScanOpen) -> None:
        """Say where a tail begins and ends; its token knows that better."""
        bounds = self._record.bounds
        if bounds is None or opening.resume_token:
            return
        match bounds.start if self._source == pb.SCAN_SOURCE_LOG else None:
            case dict(offsets):
                opening.log_start.offset = offsets[self._query.bucket]
            case datetime.datetime() as time:
                opening.log_start.timestamp_us = microseconds(time)
            case "latest":
                opening.log_start.latest = True
        match bounds.stop:
            case dict(offsets):
                opening.stop_offset = offsets[self._query.bucket]
            case "end":
                opening.stop_at_end = True

    def _choose_token(self) -> tuple[int, bytes]:
        if not self._tokens:
            self._begin_anew()
            return 0, b""
        if self._rewinds_left and self._rng.random() < 0.3:
            self._rewinds_left -= 1
            return self._rng.choice(self._tokens)
        return self._tokens[-1]

    # Called by a call.

    def got_token(self, ordinal: int, token: bytes) -> None:
        """Remember where one can go on."""
        if not token:
            self._record.found.append(("resumable", f"no token comes with row {ordinal}"))
        elif not self._tokens or ordinal >= self._tokens[-1][0]:
            self._tokens.append((ordinal, token))

    def got_rows(self, ordinal: int, batch: pa.RecordBatch) -> None:
        """Take rows; those that came before must be the same."""
        record, rows = self._record, rows_of(batch)
        seen = record.rows[ordinal : ordinal + len(rows)]
        if rows[: len(seen)] != seen:
            record.found.append(("resumable", f"rows {ordinal} on differ when they are asked for again"))
        record.rows += rows[len(seen) :]
        if ordinal + len(rows) >= len(record.rows):
            record.rewound_to = None

    def got_position(self, ordinal: int, offset: int) -> None:
        """Take a position, with so many rows; whoever has none of them again was told it before."""
        record = self._record
        furthest = max((each.offset for each in record.bookmarks), default=0)
        if ordinal >= len(record.rows) and offset >= furthest:
            record.rewound_to = None  # No row may be left to come.
        record.bookmarks.append(Bookmark(self._query.bucket, ordinal, offset))

    def has_all(self) -> bool:
        """Whether this is a tail that may be left."""
        if not self._following.has_all(self._record):
            return False
        self._record.left = True
        self._history.add(self._record.who, "has_all")
        return True

    def got_offset(self, log_offset: int) -> None:
        """Take the state that the scan shows, which never changes; of a LOG where it begins, which is told first."""
        told = self._record.buckets[self._query.bucket]
        if told.log_offset is not None and self._source == pb.SCAN_SOURCE_LOG:
            return
        if told.log_offset is not None and told.log_offset != log_offset:
            found = f"a scan as of {told.log_offset} went on as of {log_offset}"
            self._record.found.append(("isolated", found))
        told.log_offset = log_offset

    async def pause(self) -> bool:
        """Do after a batch what the task says; whether to leave."""
        task = self._task
        self._batches += 1
        if task.behaviour is Behaviour.EARLY and self._batches > task.turn_at:
            self._record.left = True
            return True
        if task.behaviour is Behaviour.SLOW:
            await trio.sleep(task.pause_s)
        if task.behaviour is Behaviour.STALLED and self._batches == task.turn_at + 1:
            self._history.add(self._record.who, "stalls", seconds=task.pause_s)
            await trio.sleep(task.pause_s)
        return False


class _Call:
    """One stream of a scan."""

    def __init__(self, scan: RawScan, stream: transport.Stream, ordinal: int) -> None:
        self._scan = scan
        self._record, self._task, self._rng = scan._record, scan._task, scan._rng
        self._stream = stream
        self._ordinal = ordinal
        self._schema: pa.Schema | None = None
        self._received_bytes = 0
        self._limit = 0
        self._drain_at = self._rng.randrange(20)
        """Messages until it asks for an early end."""
        self._left = False
        self._demand_at: float | None = None
        """With the credit used up: when there will be more."""

    async def run(self) -> bool:
        """Receive until the stream ends; whether the scan is over."""
        if self._task.window_only:
            await self._stream.send_end()
        else:
            await self._demand(self._task.credit_bytes)
        end: pb.ScanEnd | None = None
        while not self._left and (message := await self._receive()) is not None:
            response = decode_scan_response(message)
            if isinstance(response, RowBatch):
                await self._batch(response)
            elif response.HasField("started"):
                self._started(response.started)
            elif response.HasField("heartbeat"):
                self._heartbeat(response.heartbeat)
            elif response.HasField("snapshot_end"):
                self._snapshot_end(response.snapshot_end)
            elif response.HasField("end"):
                end = response.end
                await self._say(None)
            if end is None and not self._left:
                self._left = self._scan.has_all()
        if self._left:
            return True
        return self._ended(end)

    async def _receive(self) -> Buffer | None:
        """Receive; with the credit used up let some time pass, in which no batch may come, before there is more."""
        if self._task.window_only or self._received_bytes < self._limit:
            return cast("Buffer | None", await self._stream.receive())
        if self._demand_at is None:
            self._demand_at = trio.current_time() + self._rng.choice(STARVED_S)
        with trio.move_on_at(self._demand_at):
            return cast("Buffer | None", await self._stream.receive())
        self._demand_at = None
        await self._demand(self._received_bytes + self._task.credit_bytes)
        return cast("Buffer | None", await self._stream.receive())

    def _started(self, started: pb.ScanStarted) -> None:
        self._schema = decode_schema(started.arrow_schema)
        self._scan.got_offset(started.log_offset)
        if started.row_ordinal != self._ordinal:
            found = f"a token of row {self._ordinal} goes on from row {started.row_ordinal}"
            self._record.found.append(("resumable", found))
        self._scan.got_token(started.row_ordinal, started.resume_token)

    def _heartbeat(self, heartbeat: pb.Heartbeat) -> None:
        self._scan._history.add(self._record.who, "heartbeat", state=heartbeat.state, rows=heartbeat.rows)
        if heartbeat.rows != self._ordinal:
            found = f"a heartbeat says {heartbeat.rows} rows, delivered were {self._ordinal}"
            self._record.found.append(("resumable", found))
        self._scan.got_token(heartbeat.rows, heartbeat.resume_token)
        if heartbeat.HasField("position"):
            self._scan.got_position(heartbeat.rows, heartbeat.position)

    def _snapshot_end(self, boundary: pb.SnapshotEnd) -> None:
        told = self._record.buckets[self._scan._query.bucket]
        if boundary.log_offset != told.log_offset:
            found = f"the snapshot as of {told.log_offset} ends as one as of {boundary.log_offset}"
            self._record.found.append(("isolated", found))
        self._scan.got_position(self._ordinal, boundary.log_offset)

    async def _batch(self, batch: RowBatch) -> None:
        assert self._schema is not None, "rows came before the start of the scan"
        verify_payload(batch.payload, batch.crc32c)
        self._check_credit(batch)
        self._received_bytes += batch.message_bytes
        if batch.row_ordinal != self._ordinal:
            found = f"row {self._ordinal} is due, the batch begins with row {batch.row_ordinal}"
            self._record.found.append(("complete", found))
        rows = decode_batch(batch.payload, self._schema)
        self._scan.got_rows(self._ordinal, rows)
        self._scan._history.add(
            self._record.who, "batch", ordinal=batch.row_ordinal, rows=rows.num_rows, crc32c=batch.crc32c
        )
        self._ordinal += rows.num_rows
        if batch.changes.commit_end:
            self._scan.got_position(self._ordinal, batch.changes.end)
        self._scan.got_token(self._ordinal, batch.resume_token)
        self._left = await self._scan.pause()
        if not self._left and not self._task.window_only:
            await self._ask_for_more()

    def _check_credit(self, batch: RowBatch) -> None:
        """A batch goes out while sent < limit, and one of more than one row fits; the limit is our highest."""
        if self._task.window_only:
            return
        before, after = self._received_bytes, self._received_bytes + batch.message_bytes
        if before >= self._limit or (after > self._limit and batch.row_count > 1):
            found = f"{batch.row_count} rows up to byte {after}, allowed were {self._limit}"
            self._record.found.append(("bounded", found))

    async def _ask_for_more(self) -> None:
        self._drain_at -= 1
        if not self._drain_at:
            self._scan._history.add(self._record.who, "drains")
            await self._say(pb.ScanRequest(drain=pb.Drain()))
        chance = self._rng.random()
        if chance < 0.2:  # again what was said, and less
            for limit in (self._limit, max(0, self._limit - 100)):
                await self._say(pb.ScanRequest(demand=pb.Demand(bytes_limit=limit)))
            self._scan._history.add(self._record.who, "repeats_demand")
        if chance > 0.5:
            await self._demand(self._received_bytes + self._task.credit_bytes)

    async def _demand(self, limit: int) -> None:
        self._limit = max(limit, self._limit)
        await self._say(pb.ScanRequest(demand=pb.Demand(bytes_limit=limit)))

    async def _say(self, request: pb.ScanRequest | None) -> None:
        """Send, or half-close; that the call is over already is told by what it receives."""
        try:
            if request is None:
                await self._stream.send_end()
            else:
                await self._stream.send(request.SerializeToString())
        except transport.TransportError:
            await trio.lowlevel.checkpoint()

    def _ended(self, end: pb.ScanEnd | None) -> bool:
        if end is None:
            raise transport.StreamReset(transport.ErrorCode.NO_ERROR)
        if end.rows != self._ordinal:
            self._record.found.append(
                ("complete", f"{end.rows} rows say the end, delivered were {self._ordinal}")
            )
        reason = pb.ScanEnd.Reason.Name(end.reason).removeprefix("REASON_")
        self._scan._history.add(self._record.who, "end", reason=reason, rows=end.rows, digest=end.digest)
        if self._task.tail is not None and end.HasField("end_offset"):
            self._scan.got_position(self._ordinal, end.end_offset)
        if reason == "DRAINED":
            self._scan.got_token(self._ordinal, end.resume_token)
            return False
        told = self._record.buckets[self._scan._query.bucket]
        told.digest, told.reason = end.digest, reason
        self._record.ended = True
        return True


def _scanner_error(error: Exception) -> ScannerError:
    if isinstance(error, OSError):
        error = transport.ConnectionLost(str(error))
    assert isinstance(error, transport.TransportError)
    return as_scanner_error(error, "the scan")
