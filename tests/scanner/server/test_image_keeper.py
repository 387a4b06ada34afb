"""Images of a server's own accord, and what the disk and other tasks do meanwhile; without sockets."""

from __future__ import annotations

import random
import resource
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
import pytest
import trio
import trio.testing

from scanner.data.table import TableDescription
from scanner.errors import DiskFull, ScannerError, StoreClosed, StoreFailed, TableNotFound, TooManyFiles
from scanner.server.config import ScannerConfig
from scanner.server.image_deltas import IN_USE_S, DeltaKeeper
from scanner.server.images import UNUSED_S, ImageKeeper
from scanner.server.maintenance import Maintenance
from scanner.server.scan.opener import ScanOpener
from scanner.server.scan.read_sources import ReadSource
from scanner.server.scan.token_keys import load_token_keys
from scanner.server.scan.tokens import Tokens
from scanner.server.tables.catalog import Catalog
from scanner.storage.images.removal import IMAGE_SUFFIX, UNFINISHED
from scanner.storage.interface import Mutation
from scanner.storage.rocksdb.bucket import RocksBucket
from scanner.storage.rocksdb.store import RocksStore
from scanner.wire.queries import ScanQuery
from tests.support.opening import read

if TYPE_CHECKING:
    from scanner.server.tables.bucket import ServedBucket

CONFIG = ScannerConfig(image_core_share=1.0, image_bytes_min=1000, snapshot_linger_s=0)
ROWS = 3000
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])
_Result = TypeVar("_Result")


@dataclass
class Serving:
    """What a server has of tables and images, over a directory."""

    store: RocksStore
    config: ScannerConfig
    catalog: Catalog
    opener: ScanOpener
    images: ImageKeeper
    deltas: DeltaKeeper
    when_begun: list[Callable[[], Awaitable[object]]]
    """Each is run once: the first as soon as the file of an image was begun, the next ones in each call that blocks."""
    when_made: list[Callable[[], Awaitable[object]]]
    """The same, as soon as it has its name."""

    async def bucket(self, name: str = "items") -> ServedBucket:
        """The only bucket of a table."""
        return await self.catalog.bucket(await self.catalog.table(name), 0)

    async def create(self, name: str = "items", rows: int = ROWS) -> None:
        """Make a table with rows."""
        await self.catalog.create(TableDescription(name, SCHEMA, ("id",), 1))
        await self.write(range(rows), name)

    async def write(self, ids: range, name: str = "items", text: str = "text") -> None:
        """Put rows."""
        table = await self.catalog.table(name)
        batch = pa.record_batch(
            {"id": pa.array(ids, pa.int64()), "text": [f"{text} {each}" for each in ids]},
            schema=SCHEMA,
        )
        keys = table.schema.key_codec.encode_batch(batch.select(["id"]))
        rows = table.schema.row_codec.encode_batch(batch)
        bucket = await self.bucket(name)
        await bucket.submit([Mutation(*pair) for pair in zip(keys, rows, strict=True)]).wait_durable()

    async def scan(self, name: str = "items", limit: int | None = None) -> tuple[ReadSource, int, int]:
        """What a whole scan reads, how many rows, and their digest; with a limit of rows the row store."""
        opened = await self.opener.open(ScanQuery(table=name, row_limit=limit), "ann")
        count = 0
        source = opened.scan.source
        while source.end is None:
            if source.fetch is not None:
                source.fetch()
            batch = source.take(1 << 30, 1 << 20)
            if batch is None:
                source.step()
            else:
                count += batch.rows.num_rows
        opened.scan.close()
        return opened.read_source, count, source.digest

    async def why(self, name: str = "items") -> str:
        """Why the bucket has an image or none."""
        (state,) = await self.images.find(await self.catalog.table(name))
        return state.why

    async def make(self, name: str = "items") -> None:
        """Make an image on demand."""
        await self.images.make(await self.catalog.table(name), 0)


@asynccontextmanager
async def serving(path: Path, config: ScannerConfig = CONFIG) -> AsyncIterator[Serving]:
    """Tables and images over a directory; nothing runs by itself."""
    when_begun: list[Callable[[], Awaitable[object]]] = []
    when_made: list[Callable[[], Awaitable[object]]] = []

    async def run_blocking(function: Callable[[], _Result]) -> _Result:
        await trio.lowlevel.checkpoint()
        result = function()
        for waiting, suffix in ((when_begun, UNFINISHED), (when_made, IMAGE_SUFFIX)):
            if waiting and any(name.endswith(suffix) for name in files(path)):
                await waiting.pop(0)()
        return result

    with RocksStore.open(path) as store:
        async with trio.open_nursery() as nursery:
            catalog = Catalog(store, config, nursery, run_blocking)
            opener = ScanOpener(catalog, config, Tokens(load_token_keys(store), time.time))
            maintenance = await Maintenance.load(store, catalog, config, run_blocking)
            yield Serving(
                store, config, catalog, opener, maintenance.images, maintenance.deltas, when_begun, when_made
            )
            catalog.close_snapshots()
            nursery.cancel_scope.cancel()


def files(path: Path) -> list[str]:
    """Names of what there is of images."""
    return sorted(entry.name for entry in (path / "images").rglob("*") if entry.is_file())


def content(path: Path) -> bytes:
    """Of the only image that there is."""
    (found,) = (path / "images").rglob("*.image")
    return found.read_bytes()


async def test_an_image_is_made_from_the_second_scan_on(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Scans say that it is worth it, the next look makes it, and scans read it; then a look changes nothing."""
    async with serving(tmp_path) as at:
        await at.create()
        await at.images.sweep()
        assert (files(tmp_path), await at.why()) == ([], "no scan has asked for one")
        first = await at.scan()
        await at.images.sweep()
        assert files(tmp_path) == []
        assert "one is made at" in await at.why()
        await at.scan()
        assert "to be made" in await at.why()
        await at.images.sweep()
        assert (files(tmp_path), await at.why()) == (["0000.image"], "fresh enough")
        assert await at.scan() == (ReadSource.IMAGE, *first[1:])
        image = (await at.bucket()).image.current
        await at.images.sweep()
        assert (await at.bucket()).image.current is image


async def test_scans_with_a_limit_ask_for_nothing(tmp_path: Path) -> None:
    """They read the row store, whether there is an image or not."""
    async with serving(tmp_path) as at:
        await at.create()
        for _ in range(5):
            opened = await at.opener.open(ScanQuery(table="items", row_limit=ROWS), "ann")
            assert len(read(opened.scan.source)) == ROWS
            opened.scan.close()
        assert await at.why() == "no scan has asked for one"


async def test_a_used_image_is_made_anew_after_many_changes(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Of one that nobody reads nothing is made anew; scans show the rows of now at any time."""
    async with serving(tmp_path) as at:
        await at.create()
        await at.make()
        await at.write(range(600), text="changed")
        await at.images.sweep()
        assert (await at.why()).startswith("many changes since")
        expected = await at.scan()
        await at.scan()
        await at.images.sweep()
        assert await at.why() == "fresh enough"
        assert await at.scan() == (ReadSource.IMAGE, *expected[1:])


@pytest.mark.parametrize(("cut_behind", "why"), [(0, "fresh enough"), (1, "cut behind it")])
async def test_an_image_at_the_start_of_the_log_has_all_its_changes(
    tmp_path: Path, cut_behind: int, why: str
) -> None:
    """It is made anew as soon as retention has cut the first change after it, and not before."""
    async with serving(tmp_path) as at:
        await at.create()
        await at.make()
        bucket = await at.bucket()
        made_as_of = bucket.storage.log_end
        await at.write(range(1))
        await at.write(range(1))
        bucket.storage.truncate_log(made_as_of + 2 * cut_behind)
        assert bucket.image.current is not None
        assert why in await at.why()


async def test_off_makes_none(tmp_path: Path) -> None:
    """Nor does it remove any: those made on demand are read."""
    async with serving(tmp_path, replace(CONFIG, images="off")) as at:
        await at.create()
        for _ in range(4):
            await at.scan()
        await at.images.sweep()
        assert files(tmp_path) == []
        assert "on demand" in await at.why()
        await at.make()
        assert (await at.scan())[0] is ReadSource.IMAGE


async def test_a_table_that_changes_too_fast_is_left_alone(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """What was written while the image was made makes it old at once: no more are made for a while."""
    async with serving(tmp_path) as at:
        await at.create()
        await at.scan()
        await at.scan()

        async def write() -> None:
            making.append(await at.why())
            await at.write(range(1000), text="meanwhile")

        making: list[str] = []
        at.when_begun.append(write)
        await at.images.sweep()
        assert making == ["being made; 0 rows are written"]
        await at.scan()
        await at.scan()
        assert "so much is written" in await at.why()
        await at.images.sweep()
        image = (await at.bucket()).image.current
        assert image is not None
        autojump_clock.jump(60)
        await at.images.sweep()
        assert (await at.bucket()).image.current is not image
        assert await at.why() == "fresh enough"


@pytest.mark.parametrize("writes", [False, True])
async def test_making_takes_a_share_of_a_core(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, writes: bool
) -> None:
    """A second of work is followed by four of rest; by nine, if something was written meanwhile."""
    async with serving(tmp_path, replace(CONFIG, image_core_share=0.2)) as at:
        await at.create()

        async def begin() -> None:
            pass

        async def work() -> None:
            autojump_clock.jump(1)
            if writes:
                await at.write(range(1))

        at.when_begun += [begin, work]
        begun_at = trio.current_time()
        await at.make()
        assert trio.current_time() - begun_at == pytest.approx(10 if writes else 5)


async def test_a_column_that_is_added_meanwhile_does_not_spoil_the_image(tmp_path: Path) -> None:
    """All of it is of the columns with which it was begun; scans read it, and show nulls in the new one."""
    async with serving(tmp_path) as at:
        await at.create()
        await at.make()
        before = content(tmp_path)

        async def add() -> None:
            await at.catalog.add_column("items", pa.field("more", pa.int64()))

        at.when_begun.append(add)
        _, count, digest = await at.scan()
        await at.make()
        assert content(tmp_path) == before
        assert await at.scan() == (ReadSource.IMAGE, count, digest)


async def test_what_is_on_the_disk_counts(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """Also images of buckets that nobody has used since the start, for the bound and for what is told."""
    async with serving(tmp_path) as at:
        await at.create()
        await at.make()
        taken = at.images.disk_bytes
        (state,) = await at.images.find(await at.catalog.table("items"))
        assert state.image is not None
        assert taken == state.image.disk_bytes
    async with serving(tmp_path, replace(CONFIG, image_disk_bytes_max=taken + 1000)) as at:
        assert at.images.disk_bytes == taken
        await at.create("others")
        # It may have been read before the start.
        with pytest.raises(DiskFull, match="image_disk_bytes_max"):
            await at.make("others")
        autojump_clock.jump(UNUSED_S)
        await at.make("others")
        assert at.images.disk_bytes == taken
        assert (await at.scan("others"))[0] is ReadSource.IMAGE
        # What was just made is not to make room for the next one.
        with pytest.raises(DiskFull, match="image_disk_bytes_max"):
            await at.make()
        assert at.images.disk_bytes == taken


async def test_an_image_that_is_made_anew_does_not_count_twice(tmp_path: Path) -> None:
    """The one that it replaces goes with it: the bound is for what stays."""
    async with serving(tmp_path) as at:
        await at.create()
        await at.make()
        taken = at.images.disk_bytes
    async with serving(tmp_path, replace(CONFIG, image_disk_bytes_max=taken + 1000)) as at:
        for _ in range(2):
            await at.make()
        assert at.images.disk_bytes == taken


async def test_an_image_takes_half_of_the_free_disk_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows need the other half sooner than images do."""
    async with serving(tmp_path) as at:
        await at.create()
        await at.make()
        taken = at.images.disk_bytes
        await at.images.drop(await at.catalog.table("items"), 0)
        disk = at.store.check_disk()
        assert disk is not None
        for free, enough in (int(1.8 * taken), False), (int(2.2 * taken), True):
            monkeypatch.setattr(at.store, "check_disk", lambda free=free: replace(disk, free_bytes=free))
            with nullcontext() if enough else pytest.raises(DiskFull):
                await at.make()
            assert at.images.disk_bytes == (taken if enough else 0)


async def test_an_image_that_is_not_used_makes_room(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """After an hour without a scan; one that is read stays."""
    async with serving(tmp_path) as at:
        await at.create()
        await at.make()
        bound = at.images.disk_bytes * 2 + 1000
    async with serving(tmp_path, replace(CONFIG, image_disk_bytes_max=bound)) as at:
        await at.scan()
        autojump_clock.jump(UNUSED_S)
        await at.create("others")
        await at.make("others")
        await at.scan("others")
        await at.create("more")
        await at.scan("more")
        await at.make("more")
        assert files(tmp_path) == ["0000.image"] * 2
        assert (await at.scan("others"))[0] is ReadSource.IMAGE
        assert (await at.scan("more"))[0] is ReadSource.IMAGE
        assert (await at.scan())[0] is ReadSource.NOW


async def test_as_many_images_as_it_takes_make_room(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """For the first block of another one, too. One that was read stays, and what the others took is free again."""
    async with serving(tmp_path) as at:
        await at.create("large", rows=4 * ROWS)
        await at.make("large")
        bound = at.images.disk_bytes + 1000
        await at.images.drop(await at.catalog.table("large"), 0)
        for name in "abcd":
            await at.create(name, rows=ROWS)
            await at.make(name)
    async with serving(tmp_path, replace(CONFIG, image_disk_bytes_max=bound)) as at:
        autojump_clock.jump(UNUSED_S)
        await at.make("large")
        assert at.images.disk_bytes == bound - 1000
        # Nothing is left of the bound until that one has not been read for an hour.
        with pytest.raises(DiskFull, match="image_disk_bytes_max"):
            await at.make("a")
        assert (await at.scan("large"))[0] is ReadSource.IMAGE
        await at.images.drop(await at.catalog.table("large"), 0)
        await at.make("a")
        assert files(tmp_path) == ["0000.image"]


@pytest.mark.parametrize(("rows", "length"), [(16_000, 400), (3, 8 << 20)], ids=["blocks", "rows"])
async def test_room_is_made_for_whole_blocks(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, rows: int, length: int
) -> None:
    """Of 2 MiB, or of a row that is larger: wherever the bound is in a block, the other image goes, and it fits."""
    async with serving(tmp_path) as at:
        for name, count in {"large": rows, "other": rows * 2 // 3}.items():
            await at.create(name, rows=0)
            await at.write(range(count), name, "x" * length)
        await at.make("large")
        enough = at.images.disk_bytes
        await at.images.drop(await at.catalog.table("large"), 0)
    for part in range(4):
        async with serving(tmp_path) as at:
            await at.make("other")
        bound = enough + part * (enough // 16)
        async with serving(tmp_path, replace(CONFIG, image_disk_bytes_max=bound)) as at:
            autojump_clock.jump(UNUSED_S)
            await at.make("large")
            assert at.images.disk_bytes == enough
            await at.images.drop(await at.catalog.table("large"), 0)


async def test_an_image_that_is_looked_at_while_it_is_made_does_not_count_twice(tmp_path: Path) -> None:
    """What is written of it is its own, and not another image's."""
    async with serving(tmp_path) as at:
        await at.create(rows=16 * ROWS)
        await at.make()
        taken = at.images.disk_bytes
    async with serving(tmp_path, replace(CONFIG, image_disk_bytes_max=taken + 1000)) as at:

        async def look() -> None:
            await at.images.look()
            at.when_begun.append(look)

        at.when_begun.append(look)
        await at.make()
        assert at.images.disk_bytes == taken


async def test_images_give_way_to_rows(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """The one that was read last goes last; what is being made is given up, and nothing is made for a while."""
    async with serving(tmp_path) as at:
        for name in ("items", "others"):
            await at.create(name)
            await at.make(name)
        autojump_clock.jump(1)
        await at.scan("others")
        await at.images.give_way()
        assert [(await at.scan(name))[0] for name in ("items", "others")] == [
            ReadSource.NOW,
            ReadSource.IMAGE,
        ]
        await at.images.give_way()
        await at.images.give_way()
        assert files(tmp_path) == []
        await at.scan()
        await at.scan()
        assert "the disk is full" in await at.why()
        await at.images.sweep()
        assert files(tmp_path) == []
        autojump_clock.jump(60)
        at.when_begun.append(at.images.give_way)
        await at.images.sweep()
        assert files(tmp_path) == []
        assert "too full for an image" in await at.why()
        autojump_clock.jump(120)
        await at.images.sweep()
        assert files(tmp_path) == ["0000.image"]


async def test_what_a_crash_has_left_is_removed(tmp_path: Path) -> None:
    """Half an image, and images of a table that is gone; nothing that is not called as images are."""
    async with serving(tmp_path) as at:
        await at.create()
        await at.make()
    directory, gone = tmp_path / "images" / "000000", tmp_path / "images" / "000099"
    (directory / f"0001.image{UNFINISHED}").write_bytes(b"half")
    (directory / "notes").write_bytes(b"of somebody")
    gone.mkdir()
    (gone / "0000.image").write_bytes(b"whole")
    async with serving(tmp_path) as at:
        assert files(tmp_path) == ["0000.image", "notes"]
        assert not gone.exists()
        assert (await at.scan())[0] is ReadSource.IMAGE


async def test_images_of_a_directory_that_has_replaced_ours_stay(tmp_path: Path) -> None:
    """Another server's tables are none of ours: their images are no strays to us."""
    data = tmp_path / "data"
    async with serving(data) as at:
        await at.create()
        await at.make()
        data.rename(tmp_path / "elsewhere")
        (data / "images" / "000099").mkdir(parents=True)
        (data / "images" / "000099" / "0000.image").write_bytes(b"whole")
        await at.images.look()
        assert files(data) == files(tmp_path / "elsewhere") == ["0000.image"]


async def test_no_image_is_dropped_from_a_directory_that_has_replaced_ours(tmp_path: Path) -> None:
    """A restored copy has the same tables, whose images have the same names."""
    data = tmp_path / "data"
    async with serving(data) as at:
        await at.create()
        await at.make()
        shutil.copytree(data, tmp_path / "copy")
        assert await at.images.drop(await at.catalog.table("items"), 0)
        data.rename(tmp_path / "elsewhere")
        (tmp_path / "copy").rename(data)
        with pytest.raises(StoreFailed, match="is not where it was"):
            await at.images.drop(await at.catalog.table("items"), 0)
        assert files(data) == ["0000.image"]


@pytest.mark.parametrize("begun", [True, False], ids=["while it is made", "when it has its name"])
async def test_a_table_that_is_dropped_meanwhile_gets_no_image(tmp_path: Path, begun: bool) -> None:
    """The maker is told so, and nothing is left."""
    async with serving(tmp_path) as at:
        await at.create()
        bucket = await at.bucket()

        async def drop() -> None:
            await at.catalog.drop("items")

        (at.when_begun if begun else at.when_made).append(drop)
        with pytest.raises(TableNotFound, match="was dropped"):
            await at.make()
        assert files(tmp_path) == []
        assert bucket.image.current is None


@pytest.mark.parametrize("begun", [False, True], ids=["before", "while it is made"])
async def test_a_look_says_nothing_of_a_table_that_is_dropped_meanwhile(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    """Nobody needs its image. Other buckets get theirs."""
    async with serving(tmp_path) as at:
        for name in ("items", "others"):
            await at.create(name)
            for _ in range(4 if name == "items" else 2):
                await at.scan(name)

        async def drop() -> None:
            await at.catalog.drop("items")

        if begun:
            at.when_begun.append(drop)
        else:
            is_wanted = at.images._is_wanted

            async def is_dropped(bucket: ServedBucket) -> bool:
                monkeypatch.setattr(at.images, "_is_wanted", is_wanted)
                await drop()
                return True

            monkeypatch.setattr(at.images, "_is_wanted", is_dropped)
        await at.images.sweep()
        assert not caplog.records
        assert await at.why("others") == "fresh enough"


async def test_an_image_of_a_bucket_that_is_opened_anew_meanwhile_is_to_be_made_again(tmp_path: Path) -> None:
    """A write fails while it is made, and what was read of it is gone: the error says what has happened."""
    async with serving(tmp_path) as at:
        await at.create()
        bucket = await at.bucket()

        async def fail_and_recover() -> None:
            assert isinstance(bucket.storage, RocksBucket)
            bucket.storage._lifetime.fail(StoreFailed("the disk refused the sync"))
            await bucket.recover(at_once=True)

        at.when_begun.append(fail_and_recover)
        with pytest.raises(StoreClosed, match="opened anew after a failed write while its image was made"):
            await at.make()
        assert files(tmp_path) == []
        await at.make()


async def test_an_image_that_cannot_be_read_back_is_a_failure(tmp_path: Path) -> None:
    """The disk lies: the maker is told, scans read the row store, and the next one is good."""
    async with serving(tmp_path) as at:
        await at.create()
        expected = await at.scan()

        async def damage() -> None:
            (found,) = (tmp_path / "images").rglob("*.image")
            found.write_bytes(b"something else")

        at.when_made.append(damage)
        with pytest.raises(StoreFailed, match="was written, and cannot be read"):
            await at.make()
        assert await at.scan() == expected
        await at.make()
        assert await at.scan() == (ReadSource.IMAGE, *expected[1:])


async def test_an_image_for_which_no_descriptor_is_left_is_told_so(tmp_path: Path) -> None:
    """That is what its maker can do something about; scans read the row store, and the next one is good."""
    async with serving(tmp_path) as at:
        await at.create()
        expected = await at.scan()
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)

        async def use_up() -> None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))

        at.when_made.append(use_up)
        try:
            with pytest.raises(TooManyFiles, match=r"\.image: Too many open files"):
                await at.make()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert await at.scan() == expected
        await at.make()
        assert await at.scan() == (ReadSource.IMAGE, *expected[1:])


async def test_an_image_whose_maker_is_cancelled_at_its_end_is_used(tmp_path: Path) -> None:
    """The file has its name by then: it does not lie there until the bucket is opened anew."""
    async with serving(tmp_path) as at:
        await at.create()
        scope = trio.CancelScope()

        async def cancel() -> None:
            scope.cancel()

        at.when_made.append(cancel)
        with scope:
            await at.make()
        assert scope.cancelled_caught
        assert (await at.scan())[0] is ReadSource.IMAGE
        assert await at.images.drop(await at.catalog.table("items"), 0)
        assert files(tmp_path) == []


class Chaos:
    """What may happen to a table with an image, drawn at random.

    Args:
        at: The table.
        path: Of the data directory.
        rng: Draws.
    """

    def __init__(self, at: Serving, path: Path, rng: random.Random) -> None:
        self._at = at
        self._path = path
        self._rng = rng

    async def step(self) -> None:
        """Do one thing, perhaps with another one in the middle of making an image."""
        acts: list[Callable[[], Awaitable[object]]] = [
            self._write,
            self._delete,
            self._scan,
            self._damage,
            self._cut_log,
            self._close_idle,
            self._drop,
            self._at.images.sweep,
            self._at.images.give_way,
            self._at.images.look,
        ]
        if self._rng.random() < 0.4:
            meanwhile = (
                self._write,
                self._delete,
                self._cut_log,
                self._at.images.give_way,
                self._at.images.look,
            )
            self._at.when_begun.append(self._rng.choice(meanwhile))
            with suppress(ScannerError):
                await self._at.make()
            self._at.when_begun.clear()
        await self._rng.choice(acts)()

    async def _write(self) -> None:
        start = self._rng.randrange(ROWS)
        count = self._rng.choice((1, 40, 800))
        await self._at.write(range(start, start + count), text=f"of {self._rng.random()}")

    async def _delete(self) -> None:
        codec = (await self._at.catalog.table("items")).schema.key_codec
        keys = [codec.encode([self._rng.randrange(ROWS)]) for _ in range(30)]
        bucket = await self._at.bucket()
        await bucket.submit([Mutation(key, None) for key in sorted(set(keys))]).wait_durable()

    async def _scan(self) -> None:
        for _ in range(2):
            await self._at.scan()

    async def _damage(self) -> None:
        for found in (self._path / "images").rglob("*.image"):
            content = bytearray(found.read_bytes())
            content[self._rng.randrange(len(content))] ^= 1 << self._rng.randrange(8)
            found.write_bytes(content)

    async def _cut_log(self) -> None:
        bucket = await self._at.bucket()
        async with bucket.between_commits():
            bucket.storage.truncate_log(bucket.storage.log_end)

    async def _close_idle(self) -> None:
        bucket = await self._at.bucket()
        bucket.snapshots.clear()
        await bucket.close_idle(0)

    async def _drop(self) -> None:
        await self._at.images.drop(await self._at.catalog.table("items"), 0)


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_happens_scans_show_the_rows(
    tmp_path: Path, seed: int, autojump_clock: trio.testing.MockClock
) -> None:
    """Writes, damage, lost changes, a full disk and restarts: a scan gives the rows and the digest of the row store."""
    rng = random.Random(seed)
    read_from: set[ReadSource] = set()
    for start in range(3):
        async with serving(tmp_path) as at:
            if not start:
                await at.create()
            chaos = Chaos(at, tmp_path, rng)
            for _ in range(12):
                await chaos.step()
                autojump_clock.jump(rng.choice((0, 30, 4000)))
                source, *found = await at.scan()
                _, *expected = await at.scan(limit=2 * ROWS)
                assert found == expected
                read_from.add(source)
                assert not [name for name in files(tmp_path) if name.endswith(UNFINISHED)]
    assert read_from == {ReadSource.IMAGE, ReadSource.NOW}


def delta_end(bucket: ServedBucket) -> int:
    """Up to where the delta of a bucket's image has the changes; it has one."""
    assert bucket.image.delta is not None
    return bucket.image.delta.end


async def test_changes_are_read_before_scans_ask(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """The delta reaches to the end of the changelog, and the next scan has nothing to read of it."""
    async with serving(tmp_path) as served:
        await served.create()
        await served.make()
        bucket = await served.bucket()
        for round_number in range(3):
            await served.write(range(100, 200), text=f"changed {round_number}")
            await served.deltas.extend_all()
            assert delta_end(bucket) == bucket.storage.log_end
            read_source, count, digest = await served.scan()
            assert (read_source, count) == (ReadSource.IMAGE, ROWS)
            assert (count, digest) == (await served.scan(limit=ROWS))[1:]


async def test_changes_are_not_read_for_images_that_are_no_use(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """One that nobody has read for a while, and one over which there are so many that scans read the row store."""
    async with serving(tmp_path) as served:
        await served.create()
        await served.make()
        bucket = await served.bucket()
        await served.write(range(10))
        autojump_clock.jump(IN_USE_S + 1)
        await served.deltas.extend_all()
        assert bucket.image.delta is None

        await served.scan()
        known = delta_end(bucket)
        await served.write(range(ROWS))
        await served.deltas.extend_all()
        assert delta_end(bucket) == known < bucket.storage.log_end


async def test_a_delta_that_is_too_large_or_lost_takes_the_image_along(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The image is removed at once, and not in the middle of the next scan; rows are all there."""
    async with serving(tmp_path, replace(CONFIG, image_delta_bytes_max=10_000)) as served:
        await served.create()
        bucket = await served.bucket()
        for changed_rows, why in ((100, "image_delta_bytes_max"), (1, "cut behind it")):
            await served.make()
            await served.write(range(changed_rows))
            if why == "cut behind it":
                bucket.storage.truncate_log(bucket.storage.log_end)
            await served.deltas.extend_all()
            assert bucket.image.current is None
            assert why in caplog.text
            assert (await served.scan())[:2] == (ReadSource.NOW, ROWS)


async def test_scans_and_failures_beside_the_reading_of_changes(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """What a scan has read meanwhile is not added again; once the image is gone, nothing is."""
    async with serving(tmp_path) as served:
        await served.create()
        await served.make()
        bucket = await served.bucket()
        await served.write(range(300), text="changed")

        async def scan() -> None:
            assert (await served.scan())[0] is ReadSource.IMAGE

        served.when_made.append(scan)
        await served.deltas.extend_all()
        assert not served.when_made
        assert delta_end(bucket) == bucket.storage.log_end
        delta = bucket.image.delta
        assert delta is not None
        assert len(delta.keys(b"", 1000)) == 300
        assert (await served.scan())[1:] == (await served.scan(limit=ROWS))[1:]

        async def drop() -> None:
            bucket.image.drop()

        await served.write(range(5), text="again")
        served.when_made.append(drop)
        await served.deltas.extend_all()
        assert (bucket.image.delta, delta.end) == (None, bucket.storage.log_end - 10)


async def test_a_table_that_is_dropped_while_its_changes_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Between two pieces, while others have their turn: there is nothing left to read, and nothing to tell."""
    async with serving(tmp_path) as served:
        await served.create(rows=200_000)
        await served.make()
        await served.write(range(2000), text="changed")
        sleep = trio.sleep

        async def drop_instead(_: float) -> None:
            monkeypatch.setattr(trio, "sleep", sleep)
            await served.catalog.drop("items")

        monkeypatch.setattr(trio, "sleep", drop_instead)
        await served.deltas.extend_all()
        assert not served.catalog.has("items", 0)
    assert caplog.text == ""
