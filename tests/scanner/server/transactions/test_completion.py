"""A decided version on its way into the buckets, and what is said of it."""

from __future__ import annotations

import gc
import weakref
from itertools import pairwise
from typing import NoReturn

import pytest
import trio
import trio.testing

from scanner.data.table import TableDescription
from scanner.errors import DiskFull, StoreFailed, TableNotFound
from scanner.server.config import ScannerConfig
from scanner.server.tables.catalog import Catalog
from scanner.server.transactions.completion import Applier, Completion
from scanner.server.transactions.decisions import Decision
from scanner.storage.memory.store import MemoryStore
from scanner.tasks import inline
from tests.support.transactions import SCHEMA


@pytest.mark.parametrize("failed_before", [False, True])
async def test_a_table_that_is_dropped_meanwhile(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture, *, failed_before: bool
) -> None:
    """Nobody goes on: the publisher is told of the drop alone, and the log only where it has told of a failure."""
    failures = [StoreFailed("the disk refused")] if failed_before else []

    async def apply() -> None:
        raise failures.pop() if failures else TableNotFound("table 't' was dropped")

    completion = Completion(apply, "version 1")
    await completion.run()
    with pytest.raises(TableNotFound, match=r"\Atable 't' was dropped\Z"):
        await completion.wait()
    said = [
        "version 1 is decided, cannot be applied, and is tried again: the disk refused",
        "version 1 is over: table 't' was dropped",
    ]
    assert caplog.messages == (said if failed_before else [])


async def test_a_failure_is_logged_once(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """However often it is tried, and whoever waits: what comes behind it asks at each of its own attempts."""

    async def apply() -> None:
        raise StoreFailed("/data/7: the disk refused")

    completion = Completion(apply, "version 1")
    said = set[str]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(completion.run)
        for _ in range(3):
            with pytest.raises(
                StoreFailed, match=r"\Aversion 1 is decided, .* the server's disk refused"
            ) as raised:
                await completion.wait()
            said.add(raised.value.message)
        nursery.cancel_scope.cancel()
    assert len(said) == 1
    assert len(caplog.messages) == 2


async def test_a_failure_that_is_kept_keeps_nothing_else(autojump_clock: trio.testing.MockClock) -> None:
    """Neither what was in hand where it was raised, nor what was where its cause was."""
    left: list[weakref.ref[set[str]]] = []

    def refuse(cause: Exception | None) -> NoReturn:
        rows = {"a share"}
        left.append(weakref.ref(rows))
        raise StoreFailed("the disk refused") from cause

    async def apply() -> None:
        cause: Exception | None = None
        try:
            refuse(None)
        except StoreFailed as error:
            cause = error
        refuse(cause)

    completion = Completion(apply, "version 1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(completion.run)
        with pytest.raises(StoreFailed):
            await completion.wait()
        gc.collect()
        assert [each() for each in left] == [None, None]
        nursery.cancel_scope.cancel()


async def test_who_waits_is_told_of_the_newest_failure(autojump_clock: trio.testing.MockClock) -> None:
    """Of another one than before, though the first was kept to be told again."""
    failures = [StoreFailed("the disk refused"), DiskFull("no space is left")]

    async def apply() -> None:
        raise failures[0]

    completion = Completion(apply, "version 1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(completion.run)
        with pytest.raises(StoreFailed, match="the disk refused"):
            await completion.wait()
        del failures[0]
        with pytest.raises(DiskFull, match="no space is left"):
            await completion.wait()
        nursery.cancel_scope.cancel()


async def test_it_is_tried_again_less_and_less_often(autojump_clock: trio.testing.MockClock) -> None:
    """After half a second, then after twice as long as before, and at last every half minute."""
    tried: list[float] = []

    async def apply() -> None:
        tried.append(trio.current_time())
        raise StoreFailed("the disk refused")

    with trio.move_on_after(100):
        await Completion(apply, "version 1").run()
    assert [after - before for before, after in pairwise(tried)] == [0.5, 1, 2, 4, 8, 16, 30, 30]


async def test_a_version_is_not_applied_to_another_table_of_the_name() -> None:
    """The one that it was decided for was dropped, and made anew, while it waited to be tried again."""
    store = MemoryStore()
    store.create_table(TableDescription("t", SCHEMA, ("id",), 1))
    config = ScannerConfig()
    async with trio.open_nursery() as nursery:
        catalog = Catalog(store, config, nursery, inline)
        applier = Applier(catalog, config, inline)
        served = await catalog.table("t")
        for table_id in served.table_id, served.table_id + 1:
            decision = Decision(
                table_id=table_id, name="load", version=1, attempts={}, buckets=(0,), decided_ms=0, order=0
            )
            if table_id == served.table_id:
                assert (await applier.apply(store.transaction_files("t"), "t", decision, [])).keys() == {0}
                continue
            with pytest.raises(TableNotFound, match="was dropped"):
                await applier.apply(store.transaction_files("t"), "t", decision, [])
