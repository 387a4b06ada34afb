"""A version whose publisher names the one before it: decided behind that one, and behind no other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from scanner.data.table import TableDescription
from scanner.errors import VersionGap
from scanner.server.config import ScannerConfig
from scanner.server.tables.catalog import Catalog
from scanner.server.transactions.names import VersionKey
from scanner.server.transactions.registry import Published, Transactions
from scanner.storage.memory.store import MemoryStore
from scanner.storage.transactions import ALL_KNOWN
from scanner.tasks import inline
from tests.support.transactions import SCHEMA

DAY_MS = 24 * 3600 * 1000


class World:
    """The transactions of a server over a store that outlives it, and its clock."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.store.create_table(TableDescription("t", SCHEMA, ("id",), 2))
        self.now_ms = 1_700_000_000_000

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Transactions]:
        """The next server."""
        config = ScannerConfig()
        async with trio.open_nursery() as nursery:
            catalog = Catalog(self.store, config, nursery, inline)
            yield await Transactions.load(self.store, catalog, config, nursery, inline, lambda: self.now_ms)
            nursery.cancel_scope.cancel()

    def lose_decisions(self) -> None:
        """As a backup does that is restored."""
        self.store.disk.tables["t"].transactions.decisions.clear()


async def publish(
    transactions: Transactions, name: str, version: int, previous: int | None = None
) -> Published:
    """An empty version."""
    return await transactions.publish(VersionKey("t", 0, name, version), {}, previous=previous)


async def test_a_new_table_has_forgotten_nothing() -> None:
    """So a name that it does not know was never published under, whatever became of others."""
    world = World()
    async with world.serving() as transactions:
        await publish(transactions, "other", 0)
        await publish(transactions, "once:other", 0)
        world.now_ms += DAY_MS
        await transactions.sweep()
        assert [name.text for name in await transactions.names("t")] == ["other"]
        with pytest.raises(
            VersionGap, match="to follow version 6, and none of this name is known"
        ) as refused:
            await publish(transactions, "load", 7, 6)
        assert "decided_version" not in refused.value.metadata
        assert (await publish(transactions, "load", 7)).decided


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("restored", [False, True])
async def test_a_name_may_have_been_forgotten(*, restarted: bool, restored: bool) -> None:
    """A job that runs once a month goes on, and is told; from then on its versions are known again."""
    world = World()
    async with world.serving() as transactions:
        await publish(transactions, "monthly", 0)
        world.now_ms += 31 * DAY_MS
        await transactions.sweep()
        assert await transactions.names("t") == []
        if not (restarted or restored):
            assert (await publish(transactions, "monthly", 1, 0)).previous_unknown
    if restored:
        world.lose_decisions()
    async with world.serving() as transactions:
        if restarted or restored:
            assert (await publish(transactions, "monthly", 1, 0)).previous_unknown
        assert not (await publish(transactions, "monthly", 2, 1)).previous_unknown
        with pytest.raises(VersionGap):
            await publish(transactions, "monthly", 4, 3)


async def test_a_clock_that_was_ahead() -> None:
    """It had names forgotten before their time; when it is right again, nobody is refused for that."""
    world = World()
    async with world.serving() as transactions:
        await publish(transactions, "load", 0)
    world.now_ms += 100 * DAY_MS
    async with world.serving() as transactions:
        await transactions.sweep()
    world.now_ms -= 100 * DAY_MS
    async with world.serving() as transactions:
        assert (await publish(transactions, "load", 1, 0)).previous_unknown


async def test_a_table_of_an_older_server() -> None:
    """Nobody wrote down what it has forgotten."""
    world = World()
    del world.store.bucket("t", 1).contents.applied[ALL_KNOWN]
    async with world.serving() as transactions:
        assert (await publish(transactions, "load", 7, 6)).previous_unknown
        with pytest.raises(VersionGap):
            await publish(transactions, "load", 9, 8)


async def test_a_name_that_is_used_once() -> None:
    """Such names are forgotten all the time."""
    async with World().serving() as transactions:
        assert (await publish(transactions, "once:a", 7, 6)).previous_unknown
