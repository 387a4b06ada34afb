"""Readers of a group that have run since before a restore: none stores a position past what it has read of the copy.

With real servers and sockets, `weir backup` and `weir restore`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pytest
import trio

import scanner
import transport
from scanner.errors import GroupEpochStale
from tests.support.client import open_client
from tests.support.groups import GROUP, commit
from tests.support.processes import weir

if TYPE_CHECKING:
    from scanner.server.server import Server

pytestmark = [pytest.mark.socket, pytest.mark.rocks, pytest.mark.slow]

SCHEMA = pa.schema([("id", pa.int64()), ("written_by", pa.string())])


class _Read(NamedTuple):
    """What a reader has that was cut off."""

    epoch: int
    position: int


@asynccontextmanager
async def _served(data: Path, port: int = 0) -> AsyncIterator[tuple[Server, scanner.Table]]:
    async with open_client(data, port=port) as (client, server):
        if not await client.tables():
            await client.create_table("items", SCHEMA, ["id"], 1)
        yield server, await client.table("items")


class _Place(NamedTuple):
    """A server in a task of its own, and a client of it."""

    server: Server
    table: scanner.Table
    stop: trio.Event
    stopped: trio.Event


async def _serve(data: Path, port: int, *, task_status: trio.TaskStatus[_Place]) -> None:
    stop, stopped = trio.Event(), trio.Event()
    async with _served(data, port) as (server, table):
        task_status.started(_Place(server, table, stop, stopped))
        await stop.wait()
    stopped.set()


def _tail(table: scanner.Table) -> scanner.GroupScan:
    return table.new_scan().with_source("log").in_group(GROUP)


async def _write(table: scanner.Table, start: int, end: int, written_by: str) -> None:
    """A commit of fresh rows, whose offsets are their ids."""
    rows = pa.table([range(start, end), [written_by] * (end - start)], schema=SCHEMA)
    await table.write(rows)
    assert [each.end_offset for each in await table.offsets()] == [end]


async def _run(*words: object) -> str:
    done = await trio.to_thread.run_sync(partial(weir, *words))
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


async def _back_up(server: Server, data: Path) -> Path:
    backups = data.with_name("backups")
    said = await _run("backup", backups, "--data", data, "-e", f"{server.host}:{server.port}", "--json")
    return backups / str(json.loads(said)["backup_id"])


async def _commit(server: Server, read: _Read, position: int) -> str:
    """Come back only to store a position; why it was refused, or nothing."""
    async with transport.connect(server.host, server.port) as raw:
        refused = await commit(raw, 0, read.epoch, position)
        return "" if refused is None else refused.reason


async def _position(table: scanner.Table) -> int | None:
    (bucket,) = (await table.group(GROUP)).buckets
    return bucket.position


async def _read_on(table: scanner.Table) -> list[str]:
    """Join the group and read to the end: who wrote what comes."""
    scan = table.new_scan().with_source("log").in_group(GROUP).stop_at("end")
    async with scan.execute() as batches:
        return [who async for batch in batches for who in batch["written_by"].to_pylist()]


async def _read_of_the_original(data: Path) -> tuple[_Read, Path]:
    """A reader that stores 600, and goes on to 900 of 1000; the backup was made at 600."""
    async with _served(data) as (server, table):
        await _write(table, 0, 600, "original")
        async with table.new_scan().with_source("log").in_group(GROUP).execute() as batches:
            assert len(await anext(batches)) == 600
            assert await batches.commit() == ()
            backup = await _back_up(server, data)
            await _write(table, 600, 900, "original")
            assert len(await anext(batches)) == 300
            assert batches.epoch is not None
            read = _Read(batches.epoch, batches.positions[0])
            await _write(table, 900, 1000, "original")
    assert read.position == 900
    return read, backup


async def test_a_copy_that_was_started_twice_gives_all_its_changes(tmp_path: Path) -> None:
    """Restored, written, started again: a reader of the original stores what both have, and nothing behind that."""
    read, backup = await _read_of_the_original(tmp_path / "data")
    restored = tmp_path / "restored"
    await _run("restore", backup, restored)
    async with _served(restored) as (server, table):
        # What was not written yet is past the end; that is no reason to end a reader.
        assert await _commit(server, read, read.position) == GroupEpochStale.reason
        await _write(table, 600, 900, "copy")
        await _write(table, 900, 950, "copy")
        assert await _commit(server, read, read.position) == GroupEpochStale.reason
    async with _served(restored) as (server, table):
        assert await _commit(server, read, read.position) == GroupEpochStale.reason
        assert await _position(table) == 600
        assert await _commit(server, read, 600) == ""
        assert await _read_on(table) == ["copy"] * 350


async def test_a_copy_of_a_copy_gives_all_its_changes(tmp_path: Path) -> None:
    """The restored copy is backed up, written on, and restored once more: the first place where they part counts."""
    read, backup = await _read_of_the_original(tmp_path / "data")
    restored, again = tmp_path / "restored", tmp_path / "again"
    await _run("restore", backup, restored)
    async with _served(restored) as (server, table):
        await _write(table, 600, 900, "copy")
        backup = await _back_up(server, restored)
        await _write(table, 900, 950, "copy")
    await _run("restore", backup, again)
    for _ in range(2):
        async with _served(again) as (server, table):
            end = (await table.offsets())[0].end_offset
            await _write(table, end, end + 300, "copy of the copy")
            assert await _commit(server, read, read.position) == GroupEpochStale.reason
    async with _served(again) as (server, table):
        assert await _commit(server, read, read.position) == GroupEpochStale.reason
        assert await _read_on(table) == ["copy"] * 300 + ["copy of the copy"] * 600


async def test_a_restart_alone_costs_a_reader_nothing(tmp_path: Path) -> None:
    """All that was read by an epoch of before can be stored after it, though each server has begun a history."""
    data = tmp_path / "data"
    async with _served(data) as (_, table):
        await _write(table, 0, 600, "first")
    async with _served(data) as (_, table):
        # The epoch is given before this server has begun a history; nothing of that one is stored by the reader.
        async with table.new_scan().with_source("log").in_group(GROUP).execute() as batches:
            assert len(await anext(batches)) == 600
            await _write(table, 600, 900, "second")
            assert len(await anext(batches)) == 300
            assert batches.epoch is not None
            read = _Read(batches.epoch, batches.positions[0])
        assert await _position(table) == 0
    async with _served(data) as (server, table):
        await _write(table, 900, 1000, "third")
        assert (
            await _commit(server, read, 1000) == GroupEpochStale.reason
        )  # Nobody has read that by the epoch.
        assert await _commit(server, read, 900) == ""
        assert await _read_on(table) == ["third"] * 100


async def test_a_position_noted_before_a_restore_is_not_the_new_epochs(
    tmp_path: Path, kept_port: int
) -> None:
    """A reader that has joined the copy by itself says what it noted of the original: refused, and nothing is lost."""
    data, restored = tmp_path / "data", tmp_path / "restored"
    async with trio.open_nursery() as nursery:
        first: _Place = await nursery.start(_serve, data, kept_port)
        async with (
            scanner.connect(f"127.0.0.1:{kept_port}") as client,
            _tail(await client.table("items")).execute() as batches,
        ):
            await _write(first.table, 0, 600, "original")
            assert len(await anext(batches)) == 600
            assert await batches.commit() == ()
            backup = await _back_up(first.server, data)
            await _write(first.table, 600, 700, "original")
            assert len(await anext(batches)) == 100
            inside_of_the_copys = batches.positions
            await _write(first.table, 700, 900, "original")
            assert len(await anext(batches)) == 200
            noted, epoch = batches.positions, batches.epoch
            first.stop.set()
            await first.stopped.wait()
            await _run("restore", backup, restored)

            copy: _Place = await nursery.start(_serve, restored, kept_port)
            await _write(copy.table, 600, 900, "copy")
            await _write(copy.table, 900, 950, "copy")
            while batches.assigned.get(0, epoch) == epoch:
                await trio.lowlevel.checkpoint()
            assert (noted, await batches.commit(noted)) == ({0: 900}, (0,))
            assert await _position(copy.table) == 600
            got: list[str] = []
            while len(got) < 350:
                got += (await anext(batches))["written_by"].to_pylist()
            assert got == ["copy"] * 350
            assert await batches.commit({0: 900}) == ()
            assert (inside_of_the_copys, await batches.commit(inside_of_the_copys)) == ({0: 700}, (0,))
            assert await batches.commit() == ()
            assert await _position(copy.table) == 950
        copy.stop.set()
