"""`MeasureLog` over real sockets: what is measured, where it stops, what is refused."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import scanner
from scanner.client.log_measures import NO_HISTORY
from scanner.errors import (
    ArgumentInvalid,
    BucketNotFound,
    OffsetOutOfRange,
    ScannerError,
    SnapshotLost,
    TableNotFound,
)
from scanner.server.services import log_measures
from scanner.storage.memory.store import MemoryStore
from tests.support.client import open_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from scanner.server.server import Server

pytestmark = pytest.mark.socket

_SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])


def _rows(start: int, stop: int, name: str = "a") -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"id": list(range(start, stop)), "name": [name] * (stop - start)}, schema=_SCHEMA
    )


@asynccontextmanager
async def _items(buckets: int = 1, path: Path | None = None) -> AsyncIterator[tuple[Server, scanner.Table]]:
    async with open_client(path or MemoryStore()) as (client, server):
        table = await client.create_table("items", _SCHEMA, ["id"], buckets, exist_ok=True)
        yield server, table


@pytest.mark.rocks
async def test_commits_are_measured_from_a_position_on(tmp_path: Path) -> None:
    """Ends, bytes and times of whole commits; the ends are where scans of the changes may stop."""
    async with _items(path=tmp_path / "data") as (_, table):
        for start in (0, 10, 20):
            await table.write(_rows(start, start + 10))
        await table.write(_rows(5, 6, "b"))
        (log,) = await table.measure_log({0: 0}, commits_max=100)
        assert (log.bucket, log.start_offset, log.end_offset) == (0, 0, 32)
        assert log.commit_ends == (10, 20, 30, 32)
        assert all(size > 0 for size in log.commit_bytes)
        assert list(log.commit_timestamps_us) == sorted(set(log.commit_timestamps_us))
        (rest,) = await table.measure_log({0: 20}, histories={0: log.history_of(20)}, commits_max=100)
        assert rest.commit_ends == (30, 32)
        assert rest.commit_bytes == log.commit_bytes[2:]
        scan = table.new_scan().with_source("log").start_at(10).stop_at(rest.commit_ends[0])
        assert (await scan.to_arrow()).num_rows == 20
        (ended,) = await table.measure_log({0: 32}, commits_max=100)
        assert ended.commit_ends == ()


async def test_a_bound_is_reached_by_one_commit_and_no_more() -> None:
    """By commits, changes or bytes, whichever is first; without commits asked for there is the range alone."""
    async with _items() as (_, table):
        for start in range(0, 50, 10):
            await table.write(_rows(start, start + 10))
        (whole,) = await table.measure_log({0: 0}, commits_max=100)
        size = whole.commit_bytes[0]
        for bounds, ends in (
            ({"commits_max": 2}, (10, 20)),
            ({"commits_max": 9, "rows_max": 20}, (10, 20)),
            ({"commits_max": 9, "rows_max": 21}, (10, 20, 30)),
            ({"commits_max": 9, "bytes_max": size}, (10,)),
            ({"commits_max": 9, "bytes_max": size + 1, "rows_max": 1000}, (10, 20)),
            ({}, ()),
        ):
            (log,) = await table.measure_log({0: 0}, **bounds)  # type: ignore[arg-type]
            assert log.commit_ends == ends
            assert log.end_offset == 50


async def test_a_call_measures_so_much_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first bucket has its commits, the second what is left of the call; asked again, it goes on."""
    monkeypatch.setattr(log_measures, "COMMITS_MAX", 5)
    async with _items(buckets=2) as (_, table):
        for start in range(4):
            await table.write(_rows(start * 100, start * 100 + 100))
        first, second = await table.measure_log({0: 0, 1: 0}, commits_max=100)
        assert (len(first.commit_ends), len(second.commit_ends)) == (4, 1)
        (rest,) = await table.measure_log({1: second.commit_ends[-1]}, commits_max=100)
        assert rest.commit_ends[-1] == rest.end_offset


async def test_what_is_behind_the_changelog_is_told_not_measured() -> None:
    """A position that retention has passed: the answer says where the changelog begins, and names no commit."""
    async with _items() as (server, table):
        for start in (0, 10):
            await table.write(_rows(start, start + 10))
        async with scanner.connect(f"127.0.0.1:{server.port}") as admin:
            await admin.compact_log("items", before=10, bucket=0)
        (log,) = await table.measure_log({0: 0}, commits_max=100)
        assert (log.start_offset, log.end_offset, log.commit_ends) == (10, 20, ())


async def test_what_is_refused() -> None:
    """Typed: another history, past the end, inside a commit, no such table or bucket, numbers out of range."""
    async with _items() as (server, table):
        await table.write(_rows(0, 10))
        wrong: list[tuple[dict[int, int], dict[str, object], type[ScannerError]]] = [
            ({0: 11}, {}, OffsetOutOfRange),
            ({0: 5}, {}, ArgumentInvalid),
            ({0: 10}, {"histories": {0: b"x" * 16}}, SnapshotLost),
            ({0: 10}, {"histories": {0: b"x" * 3}}, ArgumentInvalid),
            ({1: 0}, {}, BucketNotFound),
            ({0: -1}, {}, ArgumentInvalid),
            ({0: 0}, {"rows_max": 0}, ArgumentInvalid),
        ]
        for positions, arguments, error in wrong:
            with pytest.raises(error):
                await table.measure_log(positions, **arguments)  # type: ignore[arg-type]
        async with scanner.connect(f"127.0.0.1:{server.port}") as client:
            await client.drop_table("items")
        with pytest.raises(TableNotFound):
            await table.measure_log({0: 0})


@pytest.mark.rocks
async def test_an_offset_is_of_the_history_that_wrote_the_change_before_it(tmp_path: Path) -> None:
    """Two runs of a server write two histories; each end of a commit is of the one that wrote it, and 0 of none."""
    path = tmp_path / "data"
    async with _items(path=path) as (_, table):
        await table.write(_rows(0, 10))
        (before,) = await table.measure_log({0: 0})
    async with _items(path=path) as (_, table):
        await table.write(_rows(10, 20))
        (after,) = await table.measure_log({0: 0})
        assert after.history_of(0) == NO_HISTORY
        assert after.history_of(10) == before.history_of(10)
        assert after.history_of(20) not in (NO_HISTORY, after.history_of(10))
        (late,) = await table.measure_log({0: 10}, histories={0: after.history_of(10)})
        assert late.history_of(10) == after.history_of(10)
        with pytest.raises(SnapshotLost):
            await table.measure_log({0: 20}, histories={0: after.history_of(10)})


async def test_no_more_positions_than_a_table_has_buckets() -> None:
    """Said before any of them is looked at."""
    async with _items() as (_, table):
        with pytest.raises(ArgumentInvalid, match="1024 buckets at most, and 1025 are to be measured"):
            await table.measure_log(dict.fromkeys(range(1025), 0))
