"""Visitors: short calls of every kind beside the scans, many of them to a table that comes and goes.

That table, `PASSING`, has the same columns and keys as the one of the run. It is created, written, read and dropped by
whoever comes first, so each call may find it gone, and nothing else wrong with it. What a call was told is judged as it
comes, against the model of the table that it was about; names say as what, as in `bench.simulation.validators`.
"""

from __future__ import annotations

import datetime
import math
import random
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import trio

import scanner
from bench.simulation.excuses import FEW, MANY_BYTES, taken_away
from bench.simulation.serving import EPOCH_US, clock_us
from bench.simulation.storage import REFUSED
from bench.simulation.tables import PASSING, TABLE, Row, rows_of
from bench.simulation.workload import VISITS_OF_PASSING
from scanner import LeaseState, ScanMode, ScanSource

if TYPE_CHECKING:
    import pyarrow as pa

    from bench.simulation.connections import Connections
    from bench.simulation.history import History
    from bench.simulation.model import Model
    from bench.simulation.serving import Serving
    from bench.simulation.workload import VisitorTask, Workload

PATIENCE_S: Final = 250.0
"""Virtual time within which a call comes to an end, whatever happens to it."""
GROUP: Final = "visitors"
WHILE_S: Final = 2.0
"""For how long a visitor follows a changelog, or is a member of a group."""
LEASE_S: Final = (3.0, 120.0)
_Call: TypeAlias = Callable[[scanner.Client, str], Awaitable[None]]
_ReplyT = TypeVar("_ReplyT")
_EPOCH: Final = datetime.datetime.fromtimestamp(0, datetime.UTC)


@dataclass(frozen=True, slots=True)
class Lookup:
    """Where a time was said to be in the changelog of a bucket, and where that began then."""

    who: str
    table_id: int
    bucket: int
    time_us: int
    start_offset: int
    at_offset: int


class Visitor:
    """One of them.

    Args:
        who: For the history.
        workload: Of the run.
        connections: Its way to the server.
        serving: Knows how far back the logs reach.
        history: Told of everything.
        models: By id, of each table that was written to.
        rng: Of this visitor.
    """

    def __init__(
        self,
        who: str,
        workload: Workload,
        connections: Connections,
        serving: Serving,
        history: History,
        models: Mapping[int, Model],
        rng: random.Random,
    ) -> None:
        self._who = who
        self._workload = workload
        self._connections = connections
        self._serving = serving
        self._history = history
        self._models = models
        self._rng = rng
        self._versions = 0
        self._lease_s = 0.0
        """How long the newest lease lives if it is not renewed."""
        self._leased: dict[int, int] = {}
        """The log offsets that it keeps, by bucket."""

    async def run(self, task: VisitorTask) -> None:
        """Make all calls, one after another."""
        async with self._connections.client() as client:
            for _ in range(task.calls):
                await trio.sleep(self._rng.uniform(0, task.pause_s))
                what = self._rng.choice(task.kinds)
                passing = what in VISITS_OF_PASSING or self._rng.random() < task.passing
                await self._call(client, PASSING if passing else TABLE, what)

    async def _call(self, client: scanner.Client, name: str, what: str) -> None:
        call: _Call = getattr(self, f"_{what}")
        self._history.add(self._who, "visits", call=what, table=name)
        outcome, disturbances = "done", self._history.disturbances(self._who)
        with trio.move_on_after(PATIENCE_S) as scope:
            try:
                await call(client, name)
            except scanner.ScannerError as error:
                outcome = type(error).__name__
                disturbed = self._history.disturbances(self._who) > disturbances
                if not self._is_excused(error, name, what, disturbed=disturbed):
                    self._find("justified", f"{what} of {name} failed with {outcome}: {error}")
        if scope.cancelled_caught:
            self._find("live", f"{what} of {name} did not come to an end")
        self._history.add(self._who, "visited", call=what, outcome=outcome)
        self._history.counts[f"visit {what}"] += outcome == "done"

    def _is_excused(self, error: scanner.ScannerError, name: str, what: str, *, disturbed: bool) -> bool:
        config = self._workload.server_config
        if isinstance(error, scanner.TableNotFound):
            return name == PASSING
        if isinstance(error, scanner.TooManyScans):
            return min(config.snapshots_max, config.page_snapshots_per_bucket_max) < FEW
        if isinstance(error, scanner.LeaseNotFound):
            # It could not be renewed in time, or its table was dropped.
            late = (disturbed or self._workload.holds.chance > 0) and self._lease_s < max(LEASE_S)
            return late or name == PASSING or taken_away(self._workload)
        if isinstance(error, scanner.SlowConsumer):
            return taken_away(self._workload)
        if isinstance(error, scanner.StoreFailed):
            return what == "joins" and REFUSED in error.message  # A position cannot be stored now.
        lost = isinstance(error, scanner.SnapshotLost | scanner.OffsetOutOfRange)
        cut = (
            min(config.log_retention_bytes, config.log_pinned_bytes_max, int(config.log_retention_s))
            < MANY_BYTES
        )
        cut = cut or bool(self._history.counts["truncated"])
        # What is leased as of now is there, and stays as long as the lease: whoever makes room leaves it alone.
        if what in ("leases_new", "leases_log"):
            forced = self._serving.cut_by_force
            cut = any(forced[bucket] > offset for bucket, offset in self._leased.items())
            return lost and what == "leases_log" and cut
        return lost and (cut or self._history.restarts > 0)

    def _find(self, validator: str, detail: str) -> None:
        self._history.found.append((validator, self._who, detail))

    async def _table(self, client: scanner.Client, name: str) -> scanner.Table:
        return await self._again(lambda: client.table(name))

    async def _again(self, call: Callable[[], Awaitable[_ReplyT]]) -> _ReplyT:
        return await self._connections.again(call)

    # ------------------------------------------------------------------ of any table

    async def _gets(self, client: scanner.Client, name: str) -> None:
        """Rows by their keys, as of now, and again as of the same offsets."""
        table, rows = await self._table(client, name), self._workload.rows
        keys = self._rng.sample(rows.keys, min(len(rows.keys), 10))
        wanted = rows.keys_to_arrow(keys)
        result = await self._again(lambda: table.get(wanted))
        as_of = dict(result.log_offsets)
        for again in (False, True):
            if again:
                await trio.sleep(self._rng.choice((0.0, 0.5)))
                result = await self._again(lambda: table.get(wanted, as_of=as_of))
            found = {row[: len(rows.key_columns)]: row for row in rows_of(result.rows)}
            there = self._state(table.table_id, as_of)
            if found != {key: there[key] for key in keys if key in there}:
                self._find(
                    "isolated", f"{len(found)} rows of {name} as of {as_of} are not those of that state"
                )

    async def _looks_up(self, client: scanner.Client, name: str) -> None:
        """Where a time is in the changelogs."""
        table = await self._table(client, name)
        time_us = self._rng.randint(EPOCH_US, clock_us())
        at = _EPOCH + datetime.timedelta(microseconds=time_us)
        for each in await self._again(lambda: table.offsets(at=at)):
            self._history.lookups.append(
                Lookup(self._who, table.table_id, each.bucket, time_us, each.start_offset, each.at_offset)
            )

    async def _scans(self, client: scanner.Client, name: str) -> None:
        table = await self._table(client, name)
        mode = self._rng.choice((ScanMode.PUSH, ScanMode.TOKEN, ScanMode.ASOF))
        await self._scan(table, table.new_scan().with_mode(mode).with_page_bytes(700))

    async def _scans_snapshot(self, client: scanner.Client, name: str) -> None:
        """The newest checkpoint, behind one that is made; no scan of it waits for anything else."""
        table = await self._table(client, name)
        await self._again(lambda: client.checkpoint(name))
        await self._scan(table, table.new_scan().with_source(ScanSource.SNAPSHOT))

    async def _leases_new(self, client: scanner.Client, name: str) -> None:
        await self._lease(client, name, LeaseState.NEW)

    async def _leases_log(self, client: scanner.Client, name: str) -> None:
        await self._lease(client, name, LeaseState.LOG)

    async def _lease(self, client: scanner.Client, name: str, state: LeaseState) -> None:
        """A lease is renewed and dropped, or left to its end; what it keeps is scanned in between."""
        table = await self._table(client, name)
        target = scanner.LeaseTarget(name, state=state)
        self._lease_s = self._rng.choice(LEASE_S)
        lease = await self._again(lambda: client.acquire_lease(target, ttl_s=self._lease_s))
        told = self._leased = {each.bucket: each.log_offset for each in lease.buckets}
        async with lease:
            await trio.sleep(self._rng.choice((0.0, 1.0)))
            try:
                await self._scan(table, table.new_scan().with_lease(lease), told)
            except (scanner.SnapshotLost, scanner.OffsetOutOfRange):
                # That is right once the lease has ended, which a renewal says, and which needs a reason of its own.
                await self._again(lease.renew)
                raise

    async def _fetches(self, client: scanner.Client, name: str) -> None:
        """The whole changelog, by long poll or pushed; it is the model's. Or what comes of it for a while."""
        table = await self._table(client, name)
        mode = self._rng.choice((ScanMode.FETCH, ScanMode.PUSH))
        scan = table.new_scan().with_source(ScanSource.LOG).start_at("earliest").with_mode(mode)
        rows: dict[int, list[Row]] = defaultdict(list)
        ends: dict[int, int] = {}
        began_s, earliest = trio.current_time(), self._log_starts(table)
        whole = self._rng.random() >= 0.5
        with trio.move_on_after(math.inf if whole else WHILE_S):
            async with (scan.stop_at("end") if whole else scan).execute() as batches:
                async for batch in batches:
                    assert batches.bucket is not None
                    rows[batches.bucket] += rows_of(batch)
                ends = dict(batches.positions)
        latest = self._log_starts(table)
        for bucket in range(self._workload.rows.description.buckets):
            due, found, where = (
                self._changes(table.table_id, bucket),
                rows[bucket],
                f"bucket {bucket} of {name}",
            )
            if whole:
                end = ends.get(bucket, -1)
                start = end - len(found)
                if end < self._end_before(table.table_id, bucket, began_s):
                    self._find("reliable", f"{where}: it ended at {end}, and there was more")
            elif found:
                start = due.index(found[0]) if found[0] in due else -1
            else:
                continue
            if start < 0 or found != due[start : start + len(found)]:
                self._find(
                    "reliable", f"{where}: {len(found)} changes, and others than those from {start} on"
                )
            elif not earliest.get(bucket, 0) <= start <= latest.get(bucket, start):
                self._find("reliable", f"{where}: it begins at {start}, not with the log")

    async def _joins(self, client: scanner.Client, name: str) -> None:
        """A reader group, for a while."""
        if name == TABLE:
            return
        table = await self._table(client, name)
        scan = table.new_scan().with_source(ScanSource.LOG).in_group(GROUP)
        with trio.move_on_after(WHILE_S):
            async with scan.execute() as batches:
                async for _ in batches:
                    await batches.commit()

    async def _compacts(self, client: scanner.Client, name: str) -> None:
        await self._again(lambda: client.compact_log(name))

    async def _scan(
        self, table: scanner.Table, scan: scanner.Scan, told: Mapping[int, int] | None = None
    ) -> None:
        rows: list[Row] = []
        async with scan.execute() as batches:
            async for batch in batches:
                rows += rows_of(batch)
        offsets = {
            each.bucket: each.log_offset
            for each in batches.statistics().buckets
            if each.log_offset is not None
        }
        if told is not None and offsets != told:
            self._find("isolated", f"{table.name} was leased as of {told}, and shown as of {offsets}")
        state = list(self._state(table.table_id, offsets).values())
        if Counter(rows) != Counter(state):
            self._find(
                "complete",
                f"{len(rows)} rows of {table.name} as of {offsets}, where {len(state)} must be, or others",
            )

    def _state(self, table_id: int, offsets: Mapping[int, int]) -> dict[object, Row]:
        model = self._models.get(table_id)
        if model is None:
            return {}
        for bucket, offset in offsets.items():
            if offset not in model.offsets(bucket):
                self._find("isolated", f"bucket {bucket}: log offset {offset} is inside a commit")
        return {row.key: row.cells for bucket, at in offsets.items() for row in model.state(bucket, at)}

    def _changes(self, table_id: int, bucket: int) -> list[Row]:
        """The whole changelog, as it is delivered."""
        model = self._models.get(table_id)
        return [
            (*each.row.cells, each.kind, offset, _EPOCH + datetime.timedelta(microseconds=each.timestamp_us))
            for offset, each in enumerate([] if model is None else model.changes(bucket))
        ]

    def _end_before(self, table_id: int, bucket: int, time_s: float) -> int:
        """Where the log ended before a time."""
        model = self._models.get(table_id)
        return 0 if model is None else model.offsets_between(bucket, time_s, time_s)[0]

    def _log_starts(self, table: scanner.Table) -> dict[int, int]:
        """Where the logs of a table begin now, by bucket; empty: it is gone."""
        store, buckets = self._serving.store, range(self._workload.rows.description.buckets)
        try:
            if store.table_id(table.name) != table.table_id:
                return {}
        except scanner.TableNotFound:
            return {}
        return {bucket: store.bucket(table.name, bucket).log_start for bucket in buckets}

    # ------------------------------------------------------------------ of the one that comes and goes

    async def _creates(self, client: scanner.Client, name: str) -> None:
        table = self._workload.rows.description
        await self._again(
            lambda: client.create_table(
                name, table.schema, table.primary_key, buckets=table.buckets, exist_ok=True
            )
        )

    async def _drops(self, client: scanner.Client, name: str) -> None:
        await self._again(lambda: client.drop_table(name))

    async def _drops_unwritten(self, client: scanner.Client, name: str) -> None:
        await self._creates(client, name)
        table = await self._table(client, name)
        if await self._again(table.drop_unwritten):
            self._history.dropped_unwritten.add(table.table_id)
            self._require_unwritten(table.table_id)

    async def _writes(self, client: scanner.Client, name: str) -> None:
        await self._creates(client, name)
        table = await self._table(client, name)
        batch = self._fresh()
        await self._again(lambda: table.write(batch))
        self._keep(table.table_id)

    async def _stages(self, client: scanner.Client, name: str) -> None:
        await self._creates(client, name)
        table = await self._table(client, name)
        self._versions += 1
        transaction = table.transaction(self._who.replace(" ", "-"), self._versions)
        batch = self._fresh()
        await self._again(lambda: transaction.stage(batch, part=0, attempt=0))
        self._keep(table.table_id)
        if self._rng.random() < 0.7:
            await self._again(lambda: transaction.publish({0: 0}))

    def _fresh(self) -> pa.RecordBatch:
        rows = self._workload.rows
        keys = self._rng.sample(rows.keys, min(len(rows.keys), 5))
        return rows.to_arrow(list(rows.make(keys).values()))

    def _keep(self, table_id: int) -> None:
        """Rows of a table were acknowledged, written or staged."""
        if self._workload.rows.keys:
            self._history.written_to.add(table_id)
            self._require_unwritten(table_id)

    def _require_unwritten(self, table_id: int) -> None:
        if table_id in self._history.written_to & self._history.dropped_unwritten:
            self._find(
                "durable", f"table {table_id} was dropped as unwritten, with rows that were acknowledged"
            )
