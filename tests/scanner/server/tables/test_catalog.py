"""What waits in the table catalog for what: for the same table, and for room for files."""

from __future__ import annotations

import functools
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from scanner.errors import ScannerError, TableNotFound, TooManyFiles
from scanner.server.config import ScannerConfig
from scanner.server.tables.catalog import Catalog
from scanner.storage.memory.store import MemoryStore
from scanner.storage.rocksdb.bucket import RocksBucket
from scanner.storage.rocksdb.opening import BucketOpener
from scanner.storage.rocksdb.store import RocksStore
from scanner.storage.rocksdb.table_directories import remove_dropped
from scanner.tasks import in_thread, inline
from tests.scanner.server.tables.test_bucket import open_source
from tests.support.scans import description

if TYPE_CHECKING:
    from scanner.server.tables.bucket import ServedBucket
    from scanner.server.tables.snapshots import SnapshotHold
    from scanner.storage.interface import Store
    from scanner.storage.rocksdb.opening import Opened


T = TypeVar("T")


def tables(store: Store, *names: str) -> None:
    """Create some, of a bucket each."""
    for name in names:
        store.create_table(description(name))


async def first_use(catalog: Catalog, name: str) -> ServedBucket:
    """Look a table up, and open its bucket."""
    return await catalog.bucket(await catalog.table(name), 0)


async def test_other_tables_wait_for_no_drop() -> None:
    """It waits until its scans are closed. What is of the same table waits for it, and then finds it gone."""
    store = MemoryStore()
    tables(store, "dropped", "used", "changed", "gone")
    ended: list[str] = []
    async with trio.open_nursery() as nursery:
        catalog = Catalog(store, ScannerConfig(), nursery, inline)

        def begin(name: str, act: Callable[..., Awaitable[object]], *arguments: Any) -> None:
            async def run() -> None:
                try:
                    await act(*arguments)
                    ended.append(name)
                except ScannerError as error:
                    ended.append(f"{name}: {type(error).__name__}")

            nursery.start_soon(run)

        async def fail() -> None:
            async with catalog.unless_dropped("dropped", 0):
                raise ScannerError("its files are gone")

        bucket = await first_use(catalog, "dropped")
        scan = await open_source(bucket)
        begin("drop", catalog.drop, "dropped")
        await wait_all_tasks_blocked()
        begin("fail", fail)
        begin("create anew", catalog.create, description("dropped"))
        await wait_all_tasks_blocked()
        assert ended == []
        begin("create", catalog.create, description("fresh"))
        begin("use", first_use, catalog, "used")
        begin("add", catalog.add_column, "changed", pa.field("more", pa.int64()))
        begin("drop another", catalog.drop, "gone")
        begin("drop unwritten", catalog.drop_unwritten, "used")
        await wait_all_tasks_blocked()
        assert sorted(ended) == ["add", "create", "drop another", "drop unwritten", "use"]
        scan.close()
        await wait_all_tasks_blocked()
        assert (ended[5], set(ended[6:])) == ("drop", {"fail: TableNotFound", "create anew"})
        with pytest.raises(TableNotFound):
            await catalog.table("dropped", 0)
        assert [each.name for each in await catalog.descriptions()] == ["changed", "dropped", "fresh"]


@pytest.mark.rocks
async def test_other_tables_wait_for_no_removal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the files of a large table."""
    removing, go_on = trio.Event(), threading.Event()

    def remove_slowly(marked: list[Path]) -> None:
        trio.from_thread.run_sync(removing.set)
        go_on.wait()
        remove_dropped(marked)

    with RocksStore.open(tmp_path) as store:
        tables(store, "dropped", "gone")
        monkeypatch.setattr("scanner.storage.rocksdb.store.remove_dropped", remove_slowly)
        async with trio.open_nursery() as nursery:
            catalog = Catalog(store, ScannerConfig(), nursery, in_thread)
            nursery.start_soon(catalog.drop, "dropped")
            await removing.wait()
            await catalog.create(description("fresh"))
            assert [each.name for each in await catalog.descriptions()] == ["fresh", "gone"]
            monkeypatch.setattr("scanner.storage.rocksdb.store.remove_dropped", remove_dropped)
            await catalog.drop("gone")
            go_on.set()
        assert len(list((tmp_path / "tables").iterdir())) == 1


@pytest.mark.rocks
async def test_who_gives_a_drop_up_leaves_no_files(tmp_path: Path) -> None:
    """Once the table is gone nobody else would remove them before the next start."""
    with RocksStore.open(tmp_path) as store:
        tables(store, "dropped")
        async with trio.open_nursery() as nursery:
            catalog = Catalog(store, ScannerConfig(), nursery, inline)
            await catalog.drop("dropped", when_gone=nursery.cancel_scope.cancel)
        assert list((tmp_path / "tables").iterdir()) == []


class Held:
    """The buckets of table 0, which are opened as if much had to be undone first."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.begun, self.go_on = trio.Event(), threading.Event()
        real = BucketOpener.open

        def open_slowly(opener: BucketOpener, **options: bool) -> Opened:
            if opener.path.parent.name == "000000":
                trio.from_thread.run_sync(self.begun.set)
                self.go_on.wait()
            return real(opener, **options)

        patch.setattr(BucketOpener, "open", open_slowly)


@pytest.mark.rocks
async def test_other_tables_wait_for_no_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a bucket in which a share of a transaction is undone that a crash has cut off, say."""
    with RocksStore.open(tmp_path) as store:
        tables(store, "held", "used", "gone")
        checkpoint = store.create_checkpoint("used", 0)
        async with trio.open_nursery() as nursery:
            catalog = Catalog(store, ScannerConfig(), nursery, in_thread)
            held = Held(monkeypatch)
            nursery.start_soon(first_use, catalog, "held")
            await held.begun.wait()
            await first_use(catalog, "used")
            await in_thread(lambda: store.open_checkpoint("used", 0, checkpoint.checkpoint_id).close())
            await in_thread(lambda: store.drop_checkpoint("used", 0, checkpoint.checkpoint_id))
            await catalog.create(description("fresh"))
            await catalog.drop("gone")
            held.go_on.set()


async def test_so_many_buckets_are_opened_at_once() -> None:
    """However many are asked for, as after a restart: worker threads are left for commits."""
    opening, most, go_on = 0, 0, trio.Event()

    async def open_slowly(function: Callable[[], T]) -> T:
        nonlocal opening, most
        if isinstance(function, functools.partial) and function.func == catalog._open_files:
            opening += 1
            most = max(most, opening)
            await go_on.wait()
            opening -= 1
        return await inline(function)

    store = MemoryStore()
    names = [f"t{number}" for number in range(20)]
    tables(store, *names)
    async with trio.open_nursery() as nursery:
        catalog = Catalog(store, ScannerConfig(), nursery, open_slowly)
        for name in names:
            nursery.start_soon(first_use, catalog, name)
        await wait_all_tasks_blocked()
        assert opening == 8
        go_on.set()
        await wait_all_tasks_blocked()
    assert (opening, most, len(list(catalog.open_buckets()))) == (0, 8, 20)


async def test_room_for_many_is_found_at_one_look() -> None:
    """At all buckets that were ever used, of which there may be thousands; at the limit there is one for each again."""

    class Looked(Catalog):
        looks = 0

        def open_buckets(self) -> Iterator[tuple[str, int, ServedBucket]]:
            Looked.looks += 1
            return super().open_buckets()

    store = MemoryStore()
    store.create_table(description(buckets=20))
    async with trio.open_nursery() as nursery:
        catalog = Looked(store, ScannerConfig(buckets_open_max=15), nursery, inline)
        table = await catalog.table("items")
        for index in range(15):
            await catalog.bucket(table, index)
        assert Looked.looks == 1
        # Storage in memory is never closed: no bucket of it makes room.
        with pytest.raises(TooManyFiles, match="15 buckets are in use"):
            await catalog.bucket(table, 15)
        nursery.cancel_scope.cancel()


async def no_room(
    catalog: Catalog, nursery: trio.Nursery, patch: pytest.MonkeyPatch
) -> tuple[Held, ServedBucket, SnapshotHold]:
    """Of two buckets that may be open one is being opened, and the other is read for as long as it is held."""
    held = Held(patch)
    nursery.start_soon(first_use, catalog, "held")
    await held.begun.wait()
    used = await first_use(catalog, "used")
    async with used.between_commits():
        return held, used, used.snapshots.current()


@pytest.mark.rocks
async def test_who_finds_no_room_waits_for_those_that_are_being_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each may be unused once it is open; and no two take the same room."""
    with RocksStore.open(tmp_path) as store:
        tables(store, "held", "used", "wanted")
        async with trio.open_nursery() as nursery:
            catalog = Catalog(store, ScannerConfig(buckets_open_max=2), nursery, in_thread)
            held, used, hold = await no_room(catalog, nursery, monkeypatch)
            opened = list[bool]()

            async def use_wanted() -> None:
                wanted = await first_use(catalog, "wanted")
                opening = (await catalog.table("held")).buckets[0]
                opened.extend(each.is_open for each in (opening, used, wanted))

            async with trio.open_nursery() as waiting:
                waiting.start_soon(use_wanted)
                await wait_all_tasks_blocked()
                assert opened == []
                held.go_on.set()
            assert opened == [False, True, True]
            hold.release()
            used.snapshots.close()


@pytest.mark.rocks
async def test_nobody_closes_files_that_are_being_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Storage is open already, and the image not yet: it counts once, and two buckets do not close each other's."""
    with RocksStore.open(tmp_path) as store:
        tables(store, "slow", "other")
        async with trio.open_nursery() as nursery:
            catalog = Catalog(store, ScannerConfig(buckets_open_max=2), nursery, in_thread)
            slow, other = [await first_use(catalog, name) for name in ("slow", "other")]
            for each in (slow, other):
                await each.close_idle(0)
            begun, go_on = trio.Event(), threading.Event()
            open_image, wake = slow.image.open, RocksBucket.wake
            woken: list[RocksBucket] = []

            def open_slowly() -> None:
                trio.from_thread.run_sync(begun.set)
                go_on.wait()
                open_image()

            def note_waking(bucket: RocksBucket) -> None:
                woken.append(bucket)
                wake(bucket)

            monkeypatch.setattr(slow.image, "open", open_slowly)
            monkeypatch.setattr(RocksBucket, "wake", note_waking)
            async with trio.open_nursery() as waking:
                waking.start_soon(slow.wake)
                await begun.wait()
                await other.wake()
                go_on.set()
            assert woken == [slow.storage, other.storage]
            assert slow.is_open
            assert other.is_open


@pytest.mark.rocks
async def test_other_tables_wait_for_no_drop_of_what_is_being_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of its bucket were closed, and opening them takes long."""
    with RocksStore.open(tmp_path) as store:
        tables(store, "dropped")
        async with trio.open_nursery() as nursery:
            catalog = Catalog(store, ScannerConfig(), nursery, in_thread)
            bucket = await first_use(catalog, "dropped")
            await bucket.close_idle(0)
            held = Held(monkeypatch)

            async def wake() -> None:
                with pytest.raises(TableNotFound):
                    await bucket.wake()

            nursery.start_soon(wake)
            await held.begun.wait()
            nursery.start_soon(catalog.drop, "dropped")
            await wait_all_tasks_blocked()
            await catalog.create(description("fresh"))
            held.go_on.set()
        assert [each.name for each in await catalog.descriptions()] == ["fresh"]


@pytest.mark.rocks
async def test_who_waits_for_room_takes_that_of_a_bucket_that_is_unused_by_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long others take to open theirs."""
    with RocksStore.open(tmp_path) as store:
        tables(store, "held", "used", "wanted")
        async with trio.open_nursery() as nursery:
            catalog = Catalog(store, ScannerConfig(buckets_open_max=2), nursery, in_thread)
            held, used, hold = await no_room(catalog, nursery, monkeypatch)
            async with trio.open_nursery() as waiting:
                waiting.start_soon(first_use, catalog, "wanted")
                await wait_all_tasks_blocked()
                hold.release()
            assert not used.is_open
            held.go_on.set()
