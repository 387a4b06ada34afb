"""A version whose publisher names the one before it: decided behind that one, and behind no other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from scanner.client.calls import call_unary
from scanner.data.table import TableDescription
from scanner.errors import ArgumentInvalid, VersionGap, VersionSuperseded
from scanner.proto.weir.v1 import transactions_pb2 as pb
from scanner.server.config import ScannerConfig
from scanner.server.tables.catalog import Catalog
from scanner.server.transactions.names import VersionKey
from scanner.server.transactions.registry import Published, Transactions
from scanner.storage.memory.store import MemoryStore
from scanner.storage.transactions import ALL_KNOWN
from scanner.tasks import inline
from scanner.wire import methods
from tests.support.client import open_client
from tests.support.transactions import BEFORE, SCHEMA, contents, make_table, rows

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
            yield await Transactions(self.store, catalog, config, nursery, inline, lambda: self.now_ms).load()
            nursery.cancel_scope.cancel()

    def lose_decisions(self) -> None:
        """As a backup does that is restored."""
        self.store.disk.tables["t"].transactions.decisions.clear()


def lose_decisions(directory: Path) -> None:
    """Likewise."""
    for decision in directory.rglob("decision.json"):
        decision.unlink()


async def publish(
    transactions: Transactions, name: str, version: int, previous: int | None = None
) -> Published:
    """An empty version."""
    return await transactions.publish(VersionKey("t", 0, name, version), {}, previous=previous)


@pytest.mark.socket
async def test_what_follows_the_newest_is_decided() -> None:
    """And nothing else, however the numbers go on; what is refused stays staged, and can be published knowingly."""
    async with open_client(MemoryStore()) as (client, _):
        table = await make_table(client)
        await table.transaction("load", 5).publish({})
        load = table.transaction("load", 9)
        await load.stage(rows({50: "x"}), part=0, attempt=0)
        for previous in (8, 6, 4, 0):
            with pytest.raises(
                VersionGap,
                match=rf"version 9 .* to follow version {previous}, and the newest .* is 5; nothing",
            ) as refused:
                await load.publish({0: 0}, previous_version=previous)
            assert refused.value.metadata["decided_version"] == "5"
            assert not refused.value.retriable
        assert await contents(table) == BEFORE
        published = await load.publish({0: 0}, previous_version=5)
        assert (published.decided, published.previous_unknown) == (True, False)
        assert await contents(table) == {**BEFORE, 50: "x"}
        await table.transaction("load", 20).publish({})
        assert (await table.transaction("load", 21).publish({}, previous_version=20)).decided


@pytest.mark.socket
async def test_what_is_decided_is_not_compared_again() -> None:
    """A version that is asked for again is answered whatever it names, and an older one is superseded."""
    async with open_client(MemoryStore()) as (client, _):
        table = await make_table(client)
        await table.transaction("load", 7).publish({})
        for previous in (6, 2):
            again = await table.transaction("load", 7).publish({}, previous_version=previous)
            assert (again.decided, again.previous_unknown) == (False, False)
        with pytest.raises(VersionSuperseded):
            await table.transaction("load", 6).publish({}, previous_version=5)


@pytest.mark.socket
async def test_the_version_before_is_a_smaller_one() -> None:
    """Anything else is refused by the client, and by the server to any other client."""
    async with open_client(MemoryStore()) as (client, _):
        load = (await make_table(client)).transaction("load", 7)
        wrong: tuple[Any, ...] = (7, 8, -1, 1.5, True)
        for previous in wrong:
            with pytest.raises(ArgumentInvalid):
                await load.publish({}, previous_version=previous)
        request = pb.PublishRequest(version=load._key, previous_version=7)
        with pytest.raises(ArgumentInvalid, match="is a smaller one, not 7"):
            await call_unary(load._connection, methods.PUBLISH, request, pb.PublishResponse)
        assert (await load.publish({})).decided


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


@pytest.mark.rocks
@pytest.mark.socket
async def test_a_restored_table_knows_what_its_buckets_have(tmp_path: Path) -> None:
    """No backup has decisions. Any bucket may be the one that has the newest version, and empty versions count."""
    async with open_client(tmp_path) as (client, _):
        table = await make_table(client)
        for version, keys in enumerate([range(100, 140), [100], [103]]):
            load = table.transaction("load", version)
            await load.stage(rows(dict.fromkeys(keys, "new")), part=0, attempt=0)
            published = await load.publish({0: 0})
            await table.transaction("empty", version).publish({})
        # The others have older versions of this name.
        assert [each.bucket for each in published.ranges] == [1]
    lose_decisions(tmp_path)
    async with open_client(tmp_path) as (client, _):
        table = await client.table("t")
        for name in ("load", "empty"):
            for version in (4, 60):
                with pytest.raises(VersionGap, match="the newest that is known is 2"):
                    await table.transaction(name, version).publish({}, previous_version=version - 1)
            with pytest.raises(VersionSuperseded):
                await table.transaction(name, 1).publish({}, previous_version=0)
        # The last one before the backup may be published again, or not.
        assert (await table.transaction("load", 2).publish({}, previous_version=1)).decided
        assert (await table.transaction("empty", 3).publish({}, previous_version=2)).decided
        with pytest.raises(VersionGap, match="none of this name"):
            await table.transaction("later", 3).publish({}, previous_version=2)
