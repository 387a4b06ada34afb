"""Random histories of several writers, whose buckets fail now and then: what is decided is applied in its order."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from scanner.data.keys import bucket_of
from scanner.errors import StoreFailed
from scanner.server.config import ScannerConfig
from scanner.server.transactions.registry import Transactions
from scanner.storage.memory.bucket import MemoryBucket
from scanner.storage.memory.store import MemoryStore
from tests.support.client import open_client
from tests.support.nightly import everyday
from tests.support.transactions import BEFORE, BUCKETS, contents, keys, make_table, rows

if TYPE_CHECKING:
    import scanner

pytestmark = [pytest.mark.socket]

NAMES = "abc"
SERVERS, STEPS = 3, 8
CONFIG = ScannerConfig(transaction_piece_bytes=60)
State = dict[int, str | None]


class Version(NamedTuple):
    """What was decided."""

    name: str
    number: int
    puts: Mapping[int, str]
    deletes: Sequence[int]
    overwrite: bool

    def after(self, state: State) -> State:
        """The table when it is applied to a state."""
        kept = {} if self.overwrite else state
        return {key: text for key, text in kept.items() if key not in self.deletes} | dict(self.puts)


class History:
    """One history, step by step.

    Args:
        seed: Decides everything.
        faults: Buckets that take no share of a transaction.
    """

    def __init__(self, seed: int, faults: set[MemoryBucket]) -> None:
        self._random = random.Random(seed)
        self._faults = faults
        self._store = MemoryStore()
        self._decided: list[Version] = []
        self._numbers = dict.fromkeys(NAMES, 0)
        self._applied = [0] * BUCKETS
        """By bucket, how many of the decided versions it has shown."""
        self._table: scanner.Table

    async def run(self) -> None:
        """Serve the table by one server after another, each for some steps; then heal all, and see what is there."""
        for number in range(SERVERS):
            async with open_client(self._store, config=CONFIG) as (client, _):
                self._table = await (client.table("t") if number else make_table(client))
                for _ in range(STEPS):
                    await self._random.choice([self._publish, self._publish, self._fail])()
                    await self._check()
                if number == SERVERS - 1:
                    await self._heal()

    async def _heal(self) -> None:
        self._faults.clear()
        for version in self._decided:
            if version.number == self._numbers[version.name]:
                again = await self._table.transaction(version.name, version.number).publish({})
                assert not again.decided
        assert await contents(self._table) == self._states()[-1]

    async def _fail(self) -> None:
        bucket = self._store.bucket("t", self._random.randrange(BUCKETS))
        self._faults ^= {bucket}

    async def _publish(self) -> None:
        name = self._random.choice(NAMES)
        number = self._numbers[name] + 1
        drawn = self._random.sample(range(30), 12)
        version = Version(
            name,
            number,
            dict.fromkeys(drawn[:9], f"{name}{number}"),
            drawn[9:],
            self._random.random() < 0.3,
        )
        transaction = self._table.transaction(name, number)
        attempt = self._random.randrange(100)
        await transaction.stage(rows(version.puts), part=0, attempt=attempt)
        await transaction.stage(keys(version.deletes), part=1, attempt=attempt, operation="delete")
        try:
            await transaction.publish({0: attempt, 1: attempt}, overwrite=version.overwrite)
        except StoreFailed as error:
            if not error.message.startswith(f"version {number} of transaction {name!r}"):
                return  # The version before could not be applied, and this one was not decided.
        self._numbers[name] = number
        self._decided.append(version)

    def _states(self) -> list[State]:
        states: list[State] = [dict(BEFORE)]
        for version in self._decided:
            states.append(version.after(states[-1]))
        return states

    async def _check(self) -> None:
        """Each bucket shows what the first few decided versions have made of it, and never fewer than before."""
        codec = self._store.key_codec("t")
        found = await contents(self._table)
        for bucket in range(BUCKETS):

            def share(state: State, bucket: int = bucket) -> State:
                return {
                    key: text
                    for key, text in state.items()
                    if bucket_of(codec.encode([key]), BUCKETS) == bucket
                }

            states = [share(state) for state in self._states()]
            shown = [
                index for index in range(self._applied[bucket], len(states)) if states[index] == share(found)
            ]
            assert shown, (bucket, share(found), self._decided)
            self._applied[bucket] = shown[0]


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> set[MemoryBucket]:
    """Buckets that take no share of a transaction."""
    failing: set[MemoryBucket] = set()
    real = MemoryBucket.commit_prepared

    def commit(self: MemoryBucket, *args: Any, **kwargs: Any) -> None:
        shares = kwargs.get("applied") or (args[2] if len(args) > 2 else {})
        if self in failing and (shares or kwargs.get("unfinished")):
            raise StoreFailed("the disk refused")
        real(self, *args, **kwargs)

    monkeypatch.setattr(MemoryBucket, "commit_prepared", commit)
    return failing


@pytest.mark.parametrize("seed", range(everyday(3, nightly=100)))
async def test_versions_are_applied_once_and_in_their_order(seed: int, faults: set[MemoryBucket]) -> None:
    """Whoever fails when: each bucket goes through the decided versions one by one, whole, and none is missing."""
    await History(seed, faults).run()


async def test_a_server_that_does_not_wait_is_caught(
    faults: set[MemoryBucket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that applies each version as soon as it can lays older rows over newer ones."""

    async def never(*_: object) -> None:
        """Nobody is waited for."""

    monkeypatch.setattr(Transactions, "_wait_earlier", staticmethod(never))
    caught = 0
    for seed in range(30):  # The order of tasks is chance, so not each history shows it.
        try:
            await History(seed, faults).run()
        except* AssertionError:
            caught += 1
        faults.clear()
        if caught:
            break
    assert caught
