"""Scans as users make them: through the product's client, which reconnects and resumes by itself."""

from __future__ import annotations

import dataclasses
import math
import zlib
from typing import TYPE_CHECKING, Final, cast

import trio

import scanner
from bench.simulation.history import BucketRecord, History, ScanRecord
from bench.simulation.scan_queries import describe
from bench.simulation.tables import rows_of
from bench.simulation.workload import Behaviour, State
from scanner.data.changes import LOG_OFFSET

if TYPE_CHECKING:
    import pyarrow as pa

    from bench.simulation.tables import Row, Rows
    from bench.simulation.tails import Following

FOLLOW_S: Final = 1.0
"""How often a tail looks whether it has everything."""


class ProductScan:
    """One scan.

    Args:
        record: What its consumer sees goes here.
        rows: Of the table.
        history: Told of batches, ends and errors.
        following: Tells when a tail that has no end has everything.
        lease: What keeps the state that it is to show, if that is what it is to show.
    """

    def __init__(
        self,
        record: ScanRecord,
        rows: Rows,
        history: History,
        following: Following,
        lease: scanner.Lease | None = None,
    ) -> None:
        self._record = record
        self._task = record.task
        self._rows = rows
        self._history = history
        self._following = following
        self._lease = lease
        self._batches = 0
        self._returned = False
        self._resumes_before = 0
        self._came_at: dict[int, float] = {}
        """By bucket, when rows of it came last."""
        self._asked_at: dict[int, float] = {}
        """By bucket, when these were asked for, at the earliest: when those before them came."""

    async def run(self, table: scanner.Table) -> None:
        """Scan; errors are recorded."""
        task, record = self._task, self._record
        scan = self._build(table)
        if task.behaviour is Behaviour.CANCELLED:
            with trio.move_on_after(task.pause_s) as scope:
                await self._read(scan)
            record.left |= scope.cancelled_caught
        else:
            await self._read(scan)
        if record.left and task.behaviour is Behaviour.EARLY and task.tail is not None:
            await self._return(scan)

    def _build(self, table: scanner.Table) -> scanner.Scan:
        task = self._task
        scan = describe(table.new_scan(), task).with_mode(task.mode).with_retries(task.retries)
        scan = (
            scan.with_credit(task.credit_bytes)
            .with_page_depth(task.page_depth)
            .with_page_bytes(task.page_bytes)
        )
        if task.resume_every_batches is not None and task.mode is scanner.ScanMode.PUSH:
            scan = scan.resume_every_batches(task.resume_every_batches)
        if task.state is State.PAST:
            scan = scan.as_of({bucket: self._record.promised[bucket] for bucket in scan.plan.buckets})
        elif task.state is State.CHECKPOINT:
            scan = scan.with_source(scanner.ScanSource.SNAPSHOT)
        elif self._lease is not None:
            scan = scan.with_lease(self._lease)
        if task.tail is not None and task.mode is scanner.ScanMode.FETCH:
            scan = scan.with_min_bytes(task.tail.min_bytes).with_max_wait(task.tail.max_wait_s)
        if self._record.bounds is not None:
            scan = scan.start_at(self._record.bounds.start).stop_at(self._record.bounds.stop)
        return scan

    async def _read(self, scan: scanner.Scan) -> None:
        record = self._record
        async with scan.execute() as batches:
            try:
                while (batch := await self._next(batches)) is not None:
                    self._take(batch, batches)
                    if await self._leave_or_pause():
                        record.left = True
                        return
                if not record.left:
                    record.ended = True
                    self._take_positions(batches)
                    await self._ask_again(batches, None)
            except scanner.ScannerError as error:
                await self._ask_again(batches, type(error))
                raise
            finally:
                self._take_statistics(batches.statistics())

    async def _next(self, batches: scanner.Batches) -> pa.RecordBatch | None:
        """The next batch, or None at the end; a poll that times out neither loses nor repeats anything.

        A tail without an end is left when it has everything.
        """
        timeout_s = math.inf if self._task.tail is None else FOLLOW_S
        if self._task.behaviour is Behaviour.POLLING:
            timeout_s = self._task.pause_s
        while True:
            with trio.move_on_after(timeout_s):
                return await anext(batches, None)
            await trio.lowlevel.checkpoint()
            self._take_positions(batches)
            if self._following.has_all(self._record):
                self._record.left = True
                self._history.add(self._record.who, "has_all")
                return None

    async def _ask_again(self, batches: scanner.Batches, error: type[Exception] | None) -> None:
        """What a scan has come to it has come to for ever: the end, or the same error."""
        try:
            again = await anext(batches, None)
        except scanner.ScannerError as same:
            if type(same) is not error:
                self._record.found.append(("justified", f"{error}, and asked again {type(same)}"))
        else:
            if error is not None or again is not None:
                self._record.found.append(("complete", f"{error or 'the end'}, and asked again {again}"))

    def _take(self, batch: pa.RecordBatch, batches: scanner.Batches) -> None:
        rows = rows_of(batch)
        self._batches += 1
        self._record.rows += rows
        assert batches.bucket is not None
        self._asked_at[batches.bucket] = self._came_at.get(batches.bucket, self._record.opened_at_s)
        self._came_at[batches.bucket] = trio.current_time()
        if self._task.tail is not None:
            self._record.changes.setdefault(batches.bucket, []).extend(rows)
            self._take_positions(batches)
        fingerprint = zlib.crc32(repr(rows).encode())
        self._history.add(self._record.who, "batch", rows=batch.num_rows, fingerprint=fingerprint)

    def _take_positions(self, batches: scanner.Batches) -> None:
        if self._task.tail is None:
            return
        if not self._returned:
            for each in batches.statistics().buckets:
                self._record.buckets[each.bucket] = BucketRecord(each.log_offset)
        for bucket, offset in batches.positions.items():
            self._record.bookmark(bucket, offset)

    async def _leave_or_pause(self) -> bool:
        task, batches = self._task, self._batches
        if task.behaviour is Behaviour.EARLY and batches > task.turn_at and not self._returned:
            return True
        if task.behaviour is Behaviour.SLOW:
            await trio.sleep(task.pause_s)
        if task.behaviour is Behaviour.STALLED and batches == task.turn_at + 1:
            self._history.add(self._record.who, "stalls", seconds=task.pause_s)
            await trio.sleep(task.pause_s)
        return False

    async def _return(self, scan: scanner.Scan) -> None:
        """Go on with a tail that was left, from its positions: what came of the commits behind them comes again."""
        record = self._record
        positions = {bucket: record.reached(bucket) for bucket in scan.plan.buckets}
        if min(positions.values()) < 0 or self._task.row_limit is not None:
            return
        self._history.add(record.who, "returns", positions=tuple(positions.items()))
        at = record.columns(self._rows).index(LOG_OFFSET)
        kept: dict[int, int] = {}
        dropped: dict[int, list[Row]] = {}
        for bucket, rows in record.changes.items():
            known = [row for row in rows if row[at] is None or cast("int", row[at]) < positions[bucket]]
            kept[bucket], dropped[bucket] = len(known), rows[len(known) :]
            record.changes[bucket] = known
        record.left, self._returned, self._resumes_before = False, True, record.resumes + 1
        await self._read(self._from_log(scan).start_at(positions))
        for bucket, rows in dropped.items():
            again = record.changes[bucket][kept[bucket] :]
            if again[: len(rows)] != rows[: len(again)]:
                record.found.append(("resumable", f"bucket {bucket}: other changes came after a return"))

    @staticmethod
    def _from_log(scan: scanner.Scan) -> scanner.Scan:
        """The same scan without its snapshot."""
        return scan._derive(dataclasses.replace(scan.plan, source=scanner.ScanSource.LOG, as_of=None))

    def _take_statistics(self, statistics: scanner.ScanStatistics) -> None:
        record = self._record
        record.resumes = self._resumes_before + statistics.resumes
        record.skipped = statistics.buckets_skipped
        record.overrun_bytes = max(record.overrun_bytes, statistics.overrun_bytes)
        now = trio.current_time()
        for each in statistics.buckets:
            if not self._returned:
                record.buckets[each.bucket] = BucketRecord(
                    each.log_offset, each.digest, each.reason, each.key_range
                )
            if each.reason is None:
                waited_s = now - self._asked_at.get(each.bucket, record.opened_at_s)
                record.waited_s = max(record.waited_s, waited_s)
