"""Scans as users make them: through the product's client, which reconnects and resumes by itself."""

from __future__ import annotations

import math
import zlib
from typing import TYPE_CHECKING

import trio

import scanner
from bench.simulation.history import BucketRecord, History, ScanRecord
from bench.simulation.scan_queries import describe
from bench.simulation.tables import rows_of
from bench.simulation.workload import Behaviour, State

if TYPE_CHECKING:
    import pyarrow as pa


class ProductScan:
    """One scan.

    Args:
        record: What its consumer sees goes here.
        history: Told of batches, ends and errors.
        lease: What keeps the state that it is to show, if that is what it is to show.
    """

    def __init__(
        self,
        record: ScanRecord,
        history: History,
        lease: scanner.Lease | None = None,
    ) -> None:
        self._record = record
        self._task = record.task
        self._history = history
        self._lease = lease
        self._batches = 0

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
        return scan

    async def _read(self, scan: scanner.Scan) -> None:
        record = self._record
        async with scan.execute() as batches:
            try:
                while (batch := await self._next(batches)) is not None:
                    self._take(batch)
                    if await self._leave_or_pause():
                        record.left = True
                        return
                record.ended = True
                await self._ask_again(batches, None)
            except scanner.ScannerError as error:
                await self._ask_again(batches, type(error))
                raise
            finally:
                self._take_statistics(batches.statistics())

    async def _next(self, batches: scanner.Batches) -> pa.RecordBatch | None:
        """The next batch, or None at the end; a poll that times out neither loses nor repeats anything."""
        timeout_s = self._task.pause_s if self._task.behaviour is Behaviour.POLLING else math.inf
        while True:
            with trio.move_on_after(timeout_s):
                return await anext(batches, None)
            await trio.lowlevel.checkpoint()

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

    def _take(self, batch: pa.RecordBatch) -> None:
        rows = rows_of(batch)
        self._batches += 1
        self._record.rows += rows
        fingerprint = zlib.crc32(repr(rows).encode())
        self._history.add(self._record.who, "batch", rows=batch.num_rows, fingerprint=fingerprint)

    async def _leave_or_pause(self) -> bool:
        task, batches = self._task, self._batches
        if task.behaviour is Behaviour.EARLY and batches > task.turn_at:
            return True
        if task.behaviour is Behaviour.SLOW:
            await trio.sleep(task.pause_s)
        if task.behaviour is Behaviour.STALLED and batches == task.turn_at + 1:
            self._history.add(self._record.who, "stalls", seconds=task.pause_s)
            await trio.sleep(task.pause_s)
        return False

    def _take_statistics(self, statistics: scanner.ScanStatistics) -> None:
        record = self._record
        record.resumes = statistics.resumes
        record.overrun_bytes = statistics.overrun_bytes
        for each in statistics.buckets:
            record.buckets[each.bucket] = BucketRecord(each.log_offset, each.digest, each.reason)
