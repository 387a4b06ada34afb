"""Scanners: each makes its scans, one after the other or all at once over one client, and tells how they ended."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING

import trio

import scanner
from bench.simulation.excuses import excuse
from bench.simulation.history import History, ScanRecord
from bench.simulation.product_scan import ProductScan
from bench.simulation.raw_scan import RawScan
from bench.simulation.scan_queries import query_of
from bench.simulation.tables import TABLE
from bench.simulation.tails import Following, choose_bounds
from bench.simulation.workload import Client, ScannerTask, ScanTask, State, TailTask

if TYPE_CHECKING:
    from bench.simulation.connections import Connections
    from bench.simulation.model import Model
    from bench.simulation.serving import Serving
    from bench.simulation.workload import Workload

CHECKPOINT_CHANCE = 0.8
"""That who scans a checkpoint makes one before."""
LEASE_S = 120.0
"""Longer than anything here keeps a client from renewing."""


class Scanner:
    """One of those who scan.

    Args:
        who: For the history.
        workload: Of the run.
        connections: Its way to the server.
        serving: Knows how far back the logs reach.
        history: Told of everything.
        model: Knows which offsets there are to scan as of.
        rng: Of this scanner.
        following: Tells when a tail that has no end has everything.
    """

    def __init__(
        self,
        who: str,
        workload: Workload,
        connections: Connections,
        serving: Serving,
        history: History,
        model: Model,
        rng: random.Random,
        following: Following,
    ) -> None:
        self._who = who
        self._workload = workload
        self._connections = connections
        self._serving = serving
        self._history = history
        self._model = model
        self._rng = rng
        self._following = following

    async def run(self, task: ScannerTask) -> None:
        """Make all scans."""
        if not task.at_once:
            for each in task.scans:
                await trio.sleep(each.after_s)
                await self._scan(each, None)
            return
        async with self._connections.client() as client, trio.open_nursery() as nursery:
            for each in task.scans:
                nursery.start_soon(self._scan, each, client)

    async def _scan(self, task: ScanTask, client: scanner.Client | None) -> None:
        record, history = ScanRecord(self._who, task, trio.current_time()), self._history
        if task.state is State.PAST:
            record.promised = self._earlier()
        source = task.mode.value
        if task.tail is not None:
            record.bounds = choose_bounds(task, record.promised, self._model, self._serving, self._rng)
            source = "fetch" if task.mode is scanner.ScanMode.FETCH else task.tail.source.value
        history.scans.append(record)
        history.add(record.who, "scans", mode=source, client=task.client.value, state=task.state.value)
        disturbances, restarts = history.disturbances(self._who), history.restarts
        try:
            await self._scan_by(record, client)
        except scanner.ScannerError as error:
            record.error = error
        record.closed_at_s = trio.current_time()
        if record.error is not None:
            disturbed = history.disturbances(self._who) > disturbances
            record.excused = excuse(
                record,
                self._workload,
                self._serving,
                disturbed=disturbed,
                restarted=history.restarts > restarts,
            )
        self._tell_end(record)

    async def _scan_by(self, record: ScanRecord, client: scanner.Client | None) -> None:
        if record.task.state is State.CHECKPOINT and self._rng.random() < CHECKPOINT_CHANCE:
            async with self._connections.client() as admin:
                await self._connections.again(lambda: admin.checkpoint(TABLE))
        if record.task.client is Client.RAW:
            query = query_of(self._workload.rows.description, record.task)
            config = self._workload.transport_config
            scan = RawScan(
                record, self._history, self._rng, self._connections.dial, query, config, self._following
            )
            await scan.run()
        elif client is not None:
            await self._scan_product(record, client)
        else:
            async with self._connections.client() as own:
                await self._scan_product(record, own)

    async def _scan_product(self, record: ScanRecord, client: scanner.Client) -> None:
        table = await self._connections.again(lambda: client.table(TABLE))
        if record.task.state is not State.LEASE:
            await self._product_scan(record).run(table)
            return
        state = self._rng.choice(tuple(scanner.LeaseState))
        record.asked_for_existing = state is scanner.LeaseState.NEWEST_EXISTING
        target = scanner.LeaseTarget(TABLE, state=state)
        lease = await self._connections.again(lambda: client.acquire_lease(target, ttl_s=LEASE_S))
        async with lease:
            record.promised = {each.bucket: each.log_offset for each in lease.buckets}
            self._history.add(record.who, "leased", offsets=tuple(record.promised.items()))
            await trio.sleep(self._rng.choice((0.0, 1.0)))
            try:
                await self._product_scan(record, lease).run(table)
            except scanner.SnapshotLost:
                # That is right once the lease has ended, which a renewal says, and which needs a reason of its own.
                await self._connections.again(lease.renew)
                raise

    def _product_scan(self, record: ScanRecord, lease: scanner.Lease | None = None) -> ProductScan:
        rows = self._workload.rows
        return ProductScan(record, rows, self._history, self._following, lease)

    def _earlier(self) -> Mapping[int, int]:
        """A state of each bucket's past that the log still reaches back to."""
        as_of = {}
        for bucket in range(self._workload.rows.description.buckets):
            start = self._serving.log_start(bucket)
            known = [offset for offset in self._model.offsets(bucket) if offset >= start]
            as_of[bucket] = self._rng.choice(known or [start])
        return as_of

    def _tell_end(self, record: ScanRecord) -> None:
        what = "ended" if record.ended else "left" if record.left else "failed"
        error = None if record.error is None else type(record.error).__name__
        offsets = {bucket: told.log_offset for bucket, told in record.buckets.items()}
        rows, history = len(record.rows), self._history
        history.add(record.who, what, rows=rows, offsets=offsets, resumes=record.resumes, error=error)
        if record.task.tail is not None:
            self._tell_tail(record, record.task.tail)
        elif record.ended:
            who = "raw" if record.task.client is Client.RAW else record.task.mode.value
            history.counts[f"ended {who}"] += 1
            history.counts[f"ended as of {record.task.state.value}"] += 1
            history.counts["ended after resumes"] += bool(record.resumes)
        if error is not None:
            history.counts[f"error {error}"] += 1
        history.counts["resumes by clients"] += record.resumes

    def _tell_tail(self, record: ScanRecord, tail: TailTask) -> None:
        counts, source = self._history.counts, tail.source.value
        if record.task.mode is scanner.ScanMode.FETCH:
            counts["fetch by product"] += record.error is None
            counts["fetch ended after resumes"] += record.error is None and bool(
                record.resumes and record.rows
            )
        counts[f"{source} by {record.task.client.value}"] += record.error is None
        counts[f"{source} ended after resumes"] += record.ended and bool(record.resumes)
        if tail.source is scanner.ScanSource.LOG:
            counts[f"log from {tail.start.value}"] += bool(record.bookmarks)
