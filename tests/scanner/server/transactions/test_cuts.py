"""A server that is killed after any durable step: the next one finds nothing of a version, or completes all of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
import trio

import scanner
import scanner.server.tables.bucket
import scanner.storage.rocksdb.opening
from scanner.server.config import ScannerConfig
from scanner.storage.rocksdb.store import RocksStore
from tests.support.client import open_client
from tests.support.living import copy_living, states_of_files
from tests.support.transactions import BEFORE, changes, contents, keys, make_table, rows

if TYPE_CHECKING:
    from scanner.server.server import Server

pytestmark = [pytest.mark.socket, pytest.mark.rocks]

NEW: dict[int, str | None] = dict.fromkeys(range(10, 40), "new" * 5)
DELETED = range(5)
AFTER = {number: text for number, text in {**BEFORE, **NEW}.items() if number not in DELETED}
CHANGES_AFTER = sorted(
    [("insert", number, "old") for number in BEFORE]
    + [("insert", number, text) for number, text in NEW.items() if number not in BEFORE]
    + [("update_preimage", number, "old") for number in NEW if number in BEFORE]
    + [("update_postimage", number, text) for number, text in NEW.items() if number in BEFORE]
    + [("delete", number, "old") for number in DELETED]
)
CHANGES_BEFORE = sorted(("insert", number, "old") for number in BEFORE)
WHOLE, PIECES = ScannerConfig(), ScannerConfig(transaction_piece_bytes=120)

T = TypeVar("T")


class Images:
    """Copies of a data directory, one after each call of storage that has changed a file."""

    def __init__(self, data: Path, images: Path) -> None:
        self._data = data
        self._images = images
        self._state: Mapping[str, tuple[int, int]] = {}
        self.taking = False
        self.paths: list[Path] = []

    async def run_blocking(self, function: Callable[[], T]) -> T:
        """Runs what storage does, here and now."""
        await trio.lowlevel.checkpoint()
        try:
            return function()
        finally:
            if self.taking:
                self._take()

    def _take(self) -> None:
        state = states_of_files(self._data)
        if state != self._state:
            self._state = state
            self.paths.append(copy_living(self._data, self._images / f"{len(self.paths):03}"))


async def _publish_with_images(tmp_path: Path, config: ScannerConfig) -> list[Path]:
    data = tmp_path / "data"
    (tmp_path / "images").mkdir()
    images = Images(data, tmp_path / "images")
    with RocksStore.open(data) as store:
        async with open_client(store, config=config, run_blocking=images.run_blocking) as (client, _):
            table = await make_table(client)
            await table.transaction("load", 3).publish({})
            images.taking = True
            version = table.transaction("load", 4)
            await version.stage(rows(NEW), part=0, attempt=2)
            await version.stage(rows({99: "wrong"}), part=0, attempt=1)
            await version.stage(keys(DELETED), part=1, attempt=0, operation="delete")
            assert await contents(table) == BEFORE
            published = await version.publish({0: 2, 1: 0}, previous_version=3)
            assert published.decided
            assert sum(end - start for _, start, end in published.ranges) == 45
            images.taking = False
            assert await contents(table) == AFTER
            assert await changes(table) == CHANGES_AFTER
    return images.paths


async def _wait_applied(server: Server) -> None:
    # Threads of storage have a part in this, so nothing announces the moment.
    while server.statistics().transactions_unapplied:
        await trio.lowlevel.checkpoint()


def _restore(image: Path) -> None:
    """As from a backup, which has no stages and no decisions."""
    for directory in image.rglob("transactions"):
        shutil.rmtree(directory)


async def _check_image(image: Path, config: ScannerConfig) -> bool:
    """Whether the version was decided there; that the next server then completes it, and else shows nothing of it."""
    async with open_client(image, config=config) as (client, server):
        table = await client.table("t")
        info = next(iter(await table.transactions()), None)
        assert set((await contents(table)).items()) <= {*BEFORE.items(), *AFTER.items()}
        await _wait_applied(server)
        decided = info is not None and info.decided_version == 4
        assert await contents(table) == (AFTER if decided else BEFORE)
        assert await changes(table) == (CHANGES_AFTER if decided else CHANGES_BEFORE)
        version = table.transaction("load", 4)
        for part, attempt, given, operation in (
            (0, 7, rows(NEW), "upsert"),
            (1, 7, keys(DELETED), "delete"),
        ):
            staged = await version.stage(given, part=part, attempt=attempt, operation=operation)  # type: ignore[arg-type]
            assert staged.decided == decided
        published = await version.publish({0: 7, 1: 7}, previous_version=3)
        assert (published.decided, published.previous_unknown) == (not decided, False)
        assert published.attempts == ({0: 2, 1: 0} if decided else {0: 7, 1: 7})
        assert sum(end - start for _, start, end in published.ranges) == 45
        assert await contents(table) == AFTER
        assert await changes(table) == CHANGES_AFTER
        [last] = await table.transactions()
        assert (last.applied, last.stages) == (True, 0)
    return decided


@pytest.mark.slow
@pytest.mark.parametrize("config", [WHOLE, PIECES], ids=["whole", "pieces"])
async def test_killed_after_every_durable_step(tmp_path: Path, config: ScannerConfig) -> None:
    """Once it is decided it is completed by whoever starts next, exactly; before that nothing of it is seen."""
    images = await _publish_with_images(tmp_path, config)
    decided = [await _check_image(image, config) for image in images]
    assert decided == sorted(decided)
    assert decided.count(False) >= 4
    assert decided.count(True) >= (4 if config is WHOLE else 12)


@pytest.mark.slow
async def test_backed_up_after_a_durable_step(tmp_path: Path) -> None:
    """The version is staged and published again, behind the one before it, whatever the buckets have of it."""
    for image in (await _publish_with_images(tmp_path, WHOLE))[::2]:
        _restore(image)
        async with open_client(image) as (client, _):
            table = await client.table("t")
            version = table.transaction("load", 4)
            await version.stage(rows(NEW), part=0, attempt=7)
            await version.stage(keys(DELETED), part=1, attempt=0, operation="delete")
            published = await version.publish({0: 7, 1: 0}, previous_version=3)
            assert (published.decided, published.previous_unknown) == (True, False)
            assert await changes(table) == CHANGES_AFTER


def _records_nothing(*_: object) -> None:
    """Nothing is remembered of a share that was applied."""


def _undoes_nothing(*_: object) -> int:
    """What was cut off stays."""
    return 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "name", "broken", "config"),
    [
        (scanner.server.tables.bucket, "_applied", _records_nothing, WHOLE),
        (scanner.storage.rocksdb.opening, "undo_unfinished", _undoes_nothing, PIECES),
    ],
    ids=["applied is not recorded", "unfinished is not undone"],
)
async def test_what_is_broken_is_found(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: Any,
    name: str,
    broken: Any,
    config: ScannerConfig,
) -> None:
    """A server that forgets what it has applied, or keeps what was cut off, does not pass the test above."""
    monkeypatch.setattr(module, name, broken)
    images = await _publish_with_images(tmp_path, config)
    with pytest.raises((AssertionError, scanner.ScannerError)):
        for image in images:
            await _check_image(image, config)
