"""Writers of transactions: they stage versions part by part, and publish or abort them."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

import trio

import scanner
from bench.simulation.connections import AGAIN_S_MAX, Connections
from bench.simulation.tables import TABLE, Key, Row, Rows
from bench.simulation.transaction_validators import VersionRecord

if TYPE_CHECKING:
    from bench.simulation.history import History
    from bench.simulation.transaction_tasks import TransactionTask

PARTS_MAX: Final = 3
ABORT_CHANCE: Final = 0.2
AGAIN_CHANCE: Final = 0.3
"""That a version is published once more, with other attempts."""


class Transactor:
    """One of them; it goes on whatever happens to its connections.

    Args:
        who: For the history, and the name of its transactions.
        rows: Makes them.
        history: Told of every version.
        rng: Of this actor.
    """

    def __init__(self, who: str, rows: Rows, history: History, rng: random.Random) -> None:
        self._who = who
        self._rows = rows
        self._history = history
        self._rng = rng

    async def run(self, task: TransactionTask, connections: Connections) -> None:
        """Make all versions, one after another; an error that will not go away is a finding, and ends it."""
        try:
            await self._run(task, connections)
        except scanner.ScannerError as error:
            self._history.found.append(("justified", self._who, f"{type(error).__name__}: {error}"))

    async def _run(self, task: TransactionTask, connections: Connections) -> None:
        rng = self._rng
        async with connections.client() as client:
            table = await connections.again(lambda: client.table(TABLE))
            for number in range(task.versions):
                await trio.sleep(rng.uniform(0, task.pause_s))
                keys = self._rows.keys
                some = rng.sample(keys, min(len(keys), rng.randint(1, task.keys_max)))
                transaction = table.transaction(self._who.replace(" ", "-"), number)
                await self._make(transaction, VersionRecord(self._who, number), some, connections)

    async def _make(
        self,
        transaction: scanner.Transaction,
        record: VersionRecord,
        keys: list[Key],
        connections: Connections,
    ) -> None:
        rng = self._rng
        parts = rng.randint(1, PARTS_MAX)
        kept = {
            part: [await self._stage(transaction, record, part, mine) for _ in range(rng.choice((1, 1, 2)))]
            for part in range(parts)
            if (mine := keys[part::parts])
        }
        self._history.versions.append(record)
        if rng.random() < ABORT_CHANCE:
            await connections.again(transaction.abort)
            self._history.add(self._who, "aborted", version=record.version)
            return
        record.chosen = {part: rng.choice(attempts) for part, attempts in kept.items()}
        record.began_s = trio.current_time()
        published = await connections.again(lambda: transaction.publish(record.chosen))
        record.ended_s = trio.current_time()
        if rng.random() < AGAIN_CHANCE:
            others = {part: rng.choice(attempts) for part, attempts in kept.items()}
            published = await connections.again(lambda: transaction.publish(others))
            self._require(not published.decided, "a version was decided twice")
        self._require(dict(published.attempts) == record.chosen, "other attempts were decided")
        record.ranges = tuple((each.bucket, each.start_offset, each.end_offset) for each in published.ranges)
        self._history.add(self._who, "published", version=record.version, ranges=record.ranges)

    async def _stage(
        self, transaction: scanner.Transaction, record: VersionRecord, part: int, keys: list[Key]
    ) -> int:
        """Stage an attempt at a part, and another one as long as nobody knows whether that has arrived."""
        attempt = sum(of == part for of, _ in record.attempts)
        rows: dict[Key, Row | None] = dict.fromkeys(keys)
        delete = self._rng.random() < 0.3
        if not delete:
            rows |= self._rows.make(keys)
        batch = (
            self._rows.keys_to_arrow(keys)
            if delete
            else self._rows.to_arrow([row for row in rows.values() if row is not None])
        )
        record.attempts[part, attempt] = rows
        try:
            await transaction.stage(
                batch, part=part, attempt=attempt, operation="delete" if delete else "upsert"
            )
        except scanner.ScannerError as error:
            if not error.retriable:
                raise
            await trio.sleep(self._rng.uniform(0, AGAIN_S_MAX))
            return await self._stage(transaction, record, part, keys)
        return attempt

    def _require(self, holds: bool, problem: str) -> None:
        if not holds:
            self._history.found.append(("transacted", self._who, problem))
