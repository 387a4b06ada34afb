"""Who acts in a run: writers, scanners, and what strikes the server. Each has a random generator of its own."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import trio

import scanner
from bench.simulation.connections import Connections
from bench.simulation.history import History, WriteRecord
from bench.simulation.readers import GroupCourse, GroupReader
from bench.simulation.scanners import Scanner
from bench.simulation.storage import REFUSED
from bench.simulation.tables import TABLE, Key, Row
from bench.simulation.tails import Following
from bench.simulation.transactions import Transactor
from bench.simulation.visitors import Visitor
from bench.simulation.workload import ScannerTask, Strike, StrikeKind, WriterTask
from scanner.server.config import ScannerConfig
from scanner.server.tables.writes import encode_mutations, route

if TYPE_CHECKING:
    from bench.simulation.group_tasks import ReaderTask
    from bench.simulation.model import Model
    from bench.simulation.network import Network
    from bench.simulation.serving import Serving
    from bench.simulation.transaction_tasks import TransactionTask
    from bench.simulation.workload import VisitorTask, Workload

SWIZZLE_S_MAX = 3.0


class Actors:
    """Everybody but the server.

    Args:
        workload: What they do.
        network: Between them and the server.
        serving: What strikes strike.
        history: Told of everything.
        model: Of the table.
        models: By id, of each table that was written to.
    """

    def __init__(
        self,
        workload: Workload,
        network: Network,
        serving: Serving,
        history: History,
        model: Model,
        models: Mapping[int, Model],
    ) -> None:
        self._workload = workload
        self._network = network
        self._serving = serving
        self._history = history
        self._model = model
        self._models = models
        self._writers_done = trio.Event()
        self.running: list[str] = []
        """Who has not come to an end."""

    def load(self) -> None:
        """Fill the table, before anybody is there."""
        rows, store = self._workload.rows, self._serving.store
        for keys in self._workload.initial:
            batch = rows.to_arrow(list(rows.make(keys).values()))
            for mutations in encode_mutations(
                batch,
                delete=False,
                key_codec=store.key_codec(TABLE),
                row_codec=store.row_codec(TABLE),
                slice_rows=1_000,
                row_bytes_max=ScannerConfig().row_bytes_max,
            ):
                for bucket, part in route(mutations, rows.description.buckets):
                    store.bucket(TABLE, bucket).commit([part])

    async def run(self, servers: trio.Nursery) -> None:
        """Act, until everybody is done.

        Args:
            servers: Runs the servers that are started again.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write_all)
            for number, scans in enumerate(self._workload.scanners):
                nursery.start_soon(self._scan, f"scanner {number}", scans)
            course = GroupCourse(self._history, self._model, self._serving, self._writers_done)
            for number, reader in enumerate(self._workload.readers):
                nursery.start_soon(self._read, f"reader {number}", reader, course)
            for number, visitor in enumerate(self._workload.visitors):
                nursery.start_soon(self._visit, f"visitor {number}", visitor)
            nursery.start_soon(self._strike_all, servers)

    async def _write_all(self) -> None:
        async with trio.open_nursery() as nursery:
            for number, writer in enumerate(self._workload.writers):
                nursery.start_soon(self._write, f"writer {number}", writer)
            for number, task in enumerate(self._workload.transactors):
                nursery.start_soon(self._transact, f"transactor {number}", task)
        self._writers_done.set()

    @contextmanager
    def _acting(self, who: str) -> Iterator[tuple[Connections, random.Random]]:
        rng = self._workload.rng(who)
        self.running.append(who)
        yield Connections(who, self._workload, self._network, rng), rng
        self.running.remove(who)

    async def _scan(self, who: str, task: ScannerTask) -> None:
        with self._acting(who) as (connections, rng):
            following = Following(self._model, self._writers_done)
            await Scanner(
                who, self._workload, connections, self._serving, self._history, self._model, rng, following
            ).run(task)

    async def _read(self, who: str, task: ReaderTask, course: GroupCourse) -> None:
        with self._acting(who) as (connections, _):
            await GroupReader(who, self._workload, connections, self._history, course).run(task)

    async def _visit(self, who: str, task: VisitorTask) -> None:
        with self._acting(who) as (connections, rng):
            visitor = Visitor(
                who, self._workload, connections, self._serving, self._history, self._models, rng
            )
            await visitor.run(task)

    async def _transact(self, who: str, task: TransactionTask) -> None:
        with self._acting(who) as (connections, rng):
            await Transactor(who, self._workload.rows, self._history, rng).run(task, connections)

    async def _write(self, who: str, task: WriterTask) -> None:
        keys = self._workload.rows.keys
        with self._acting(who) as (connections, rng):
            async with connections.client() as client:
                table = await connections.again(lambda: client.table(TABLE))
                for _ in range(task.writes):
                    await trio.sleep(rng.uniform(0, task.pause_s))
                    some = rng.sample(keys, min(len(keys), rng.randint(1, task.keys_max)))
                    await self._write_once(who, table, some, delete=rng.random() < 0.3)

    async def _write_once(self, who: str, table: scanner.Table, keys: list[Key], *, delete: bool) -> None:
        source = self._workload.rows
        rows: dict[Key, Row | None] = dict.fromkeys(keys)
        began_s = trio.current_time()
        try:
            if delete:
                result = await table.delete(source.keys_to_arrow(keys))
            else:
                rows |= source.make(keys)
                result = await table.write(source.to_arrow([row for row in rows.values() if row is not None]))
        except scanner.ScannerError as error:
            # It may have been applied: the model knows.
            self._history.add(who, "write_failed", error=type(error).__name__)
            if REFUSED not in error.message:
                found = f"a write failed with {type(error).__name__}: {error}"
                self._history.found.append(("justified", who, found))
            return
        ranges = tuple((each.bucket, each.start_offset, each.end_offset) for each in result.ranges)
        self._history.add(who, "wrote", keys=len(keys), ranges=ranges)
        self._history.writes.append(WriteRecord(who, rows, ranges, began_s, trio.current_time()))

    async def _strike_all(self, servers: trio.Nursery) -> None:
        rng = self._workload.rng("strikes")
        for strike in self._workload.strikes:
            await trio.sleep_until(strike.at_s)
            await self._strike(strike, rng, servers)

    async def _strike(self, strike: Strike, rng: random.Random, servers: trio.Nursery) -> None:
        match strike.kind:
            case StrikeKind.KILL | StrikeKind.DRAIN:
                await (self._serving.kill() if strike.kind is StrikeKind.KILL else self._serving.drain())
                await trio.sleep(strike.down_s)
                await self._serving.start(servers)
            case StrikeKind.TRUNCATE:
                self._serving.truncate(strike.bucket, strike.keep)
            case StrikeKind.EMPTY_REGISTRY:
                self._serving.empty_registry()
            case StrikeKind.SWIZZLE:
                self._history.add("network", "swizzled")
                self._network.swizzle(rng, SWIZZLE_S_MAX)
            case StrikeKind.FAIL_WRITE:
                self._serving.fail_write(strike.bucket, durable=strike.keep == 1, refusals=strike.refusals)
            case StrikeKind.MAKE_IMAGE:
                await self._serving.make_image(strike.bucket, self._workload.image_rows)
            case StrikeKind.DROP_IMAGE:
                self._serving.drop_image(strike.bucket)
            case StrikeKind.DAMAGE_IMAGE:
                self._serving.damage_image(strike.bucket, rng)
