"""Scans, point reads, tails and checkpoints beside versions that are applied piece by piece: each is seen whole."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from scanner.server.config import ScannerConfig
from tests.support.client import open_client
from tests.support.transactions import SCHEMA, rows

if TYPE_CHECKING:
    import scanner

pytestmark = [pytest.mark.socket, pytest.mark.rocks]

ROWS = 200
VERSIONS = 8
CONFIG = ScannerConfig(transaction_piece_bytes=300, checkpoints_kept=2)


def version_rows(version: int) -> dict[int, str | None]:
    """Every row says which version wrote it."""
    return dict.fromkeys(range(ROWS), f"version {version}")


async def _publish_all(table: scanner.Table, done: trio.Event) -> None:
    for version in range(1, VERSIONS + 1):
        load = table.transaction("load", version)
        pairs = version_rows(version)
        for part in range(4):
            piece = {number: text for number, text in pairs.items() if number % 4 == part}
            await load.stage(rows(piece), part=part, attempt=0)
        assert (await load.publish(dict.fromkeys(range(4), 0))).decided
    done.set()


async def test_every_reader_sees_whole_versions(tmp_path: Path) -> None:
    """Of one bucket: all rows of an answer are of one version, and versions only go up."""
    async with open_client(tmp_path, config=CONFIG) as (client, _):
        table = await client.create_table("t", SCHEMA, ["id"], 1)
        await table.write(rows(version_rows(0)))
        done = trio.Event()
        seen: list[int] = []

        async def scan() -> None:
            while not done.is_set():
                texts = (await table.new_scan().to_arrow())["text"].to_pylist()
                assert (len(texts), len(set(texts))) == (ROWS, 1)
                seen.append(int(texts[0].removeprefix("version ")))

        async def get() -> None:
            while not done.is_set():
                texts = (await table.get([(number,) for number in range(0, ROWS, 7)])).rows["text"]
                assert len(set(texts.to_pylist())) == 1

        async def checkpoint() -> None:
            while not done.is_set():
                await client.checkpoint("t")
                found = await table.new_scan().with_source("snapshot").to_arrow()
                assert (found.num_rows, len(set(found["text"].to_pylist()))) == (ROWS, 1)

        async def tail() -> None:
            state: dict[int, str | None] = {}
            ends = 0
            changes = table.new_scan().with_source("log").start_at("earliest")
            async with changes.execute() as batches:
                async for batch in batches:
                    for row in batch.to_pylist():
                        if row["_change_type"] in ("insert", "update_postimage"):
                            state[row["id"]] = row["text"]
                    ends += batch.num_rows
                    if ends == ROWS + 2 * ROWS * VERSIONS:
                        break
            assert state == version_rows(VERSIONS)

        async with trio.open_nursery() as nursery:
            for reader in (scan, get, checkpoint, tail):
                nursery.start_soon(reader)
            nursery.start_soon(_publish_all, table, done)
        assert seen == sorted(seen)
        assert set((await table.new_scan().to_arrow())["text"].to_pylist()) == {f"version {VERSIONS}"}


async def test_no_time_shows_a_part_of_a_version(tmp_path: Path) -> None:
    """A share that is applied in pieces has many commit times; as of each of them the bucket has it whole, or not."""
    async with open_client(tmp_path, config=CONFIG) as (client, _):
        table = await client.create_table("t", SCHEMA, ["id"], 1)
        await table.write(rows(version_rows(0)))
        load = table.transaction("load", 1)
        await load.stage(rows(version_rows(1)), part=0, attempt=0)
        await load.publish({0: 0})
        log = table.new_scan().with_source("log").start_at("earliest").stop_at("end")
        times = sorted(set((await log.to_arrow())["_commit_timestamp"].to_pylist()))
        assert len(times) > 3
        for time in times[1:]:
            [place] = await table.offsets(at=time)
            found = await table.new_scan().as_of(place.at_offset).to_arrow()
            assert set(found["text"].to_pylist()) == {"version 0"}
