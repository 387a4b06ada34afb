"""Changes in the blocking client: what its trio sibling tells, and what only a blocking caller meets."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pandas as pd
import pyarrow as pa
import pytest

import scanner.sync
from scanner.errors import ArgumentInvalid
from tests.support.interrupts import interrupted_after

if TYPE_CHECKING:
    from tests.support.server import RunningServer

pytestmark = [pytest.mark.socket, pytest.mark.rocks]

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])


@pytest.fixture
def table(server: RunningServer) -> Iterator[scanner.sync.Table]:
    """An empty table."""
    with scanner.sync.connect(server.endpoint) as client:
        yield client.create_table("items", SCHEMA, ["id"], buckets=3)


def rows(keys: range, text: str) -> pa.Table:
    """Rows to write."""
    return pa.table([list(keys), [text] * len(keys)], schema=SCHEMA)


def log_ends(table: scanner.sync.Table) -> dict[int, int]:
    """Where the changelog of each bucket ends."""
    return {each.bucket: each.end_offset for each in table.offsets()}


def test_positions_are_where_a_tail_goes_on(table: scanner.sync.Table) -> None:
    """Bucket by bucket, in another scan: nothing lost, nothing twice."""
    table.write(rows(range(50), "first"))
    seen: list[tuple[int, str]] = []
    with table.new_scan().with_source("log").execute() as tail:
        assert (tail.bucket, tail.positions, tail.snapshot_ends) == (None, {}, {})
        assert tail.watermark() is None
        committed: dict[int, list[datetime.datetime]] = {}
        while len(seen) < 50:
            part = next(tail)
            assert tail.bucket is not None
            assert tail.positions[tail.bucket] >= part.num_rows
            committed.setdefault(tail.bucket, []).extend(part["_commit_timestamp"].to_pylist())
            seen += zip(part["id"].to_pylist(), part["text"].to_pylist(), strict=True)
        positions = tail.positions
        newest = {bucket: max(times) for bucket, times in committed.items()}
        assert tail.watermark() == min(newest.values())
    table.write(rows(range(50, 70), "second"))
    rest = table.new_scan().with_source("log").start_at(positions).stop_at("end").to_arrow()
    seen += zip(rest["id"].to_pylist(), rest["text"].to_pylist(), strict=True)
    assert sorted(seen) == [(key, "first" if key < 50 else "second") for key in range(70)]


def test_a_snapshot_tells_its_end(table: scanner.sync.Table) -> None:
    """HYBRID: the offsets of the snapshot, then the changes behind them."""
    table.write(rows(range(50), "first"))
    ends = log_ends(table)
    with table.new_scan().with_source("hybrid").stop_at("end").execute() as batches:
        assert sum(batch.num_rows for batch in batches) == 50
        assert batches.snapshot_ends == batches.positions == ends
        assert batches.watermark() is None
    frame = table.new_scan().with_source("hybrid").stop_at("end").to_pandas()
    assert set(frame["_change_type"]) == {"insert"}


def test_a_limit_moves_no_position_past_what_it_cuts(table: scanner.sync.Table) -> None:
    """Going on behind a limit brings what the limit left away."""
    table.write(rows(range(60), "first"))
    with table.new_scan().with_source("log").limit(25).execute() as batches:
        taken = [key for batch in batches for key in batch["id"].to_pylist()]
        positions = {bucket: batches.positions.get(bucket, 0) for bucket in range(3)}
    assert len(taken) == 25
    rest = table.new_scan().with_source("log").start_at(positions).stop_at("end").to_arrow()
    assert {*taken, *rest["id"].to_pylist()} == set(range(60))


@pytest.mark.parametrize("source", ["log", "hybrid"])
@pytest.mark.parametrize("shape", ["to_arrow", "to_pandas"])
def test_a_scan_without_end_is_not_collected(table: scanner.sync.Table, source: str, shape: str) -> None:
    """One line says what to do; with an end it is collected."""
    scan = table.new_scan().with_source(source)
    with pytest.raises(ArgumentInvalid, match=r"stop_at\('end'\) or limit") as refused:
        getattr(scan, shape)()
    assert "\n" not in str(refused.value)
    assert len(getattr(scan.stop_at("end"), shape)()) == 0


def test_ctrl_c_while_nothing_comes(server: RunningServer, table: scanner.sync.Table) -> None:
    """It ends the wait, loses nothing, and the tail can be asked on; leaving it frees the server."""

    def all_wait() -> None:
        server.wait_until(lambda it: it.statistics().push_scans_open == 3)

    table.write(rows(range(30), "first"))
    with table.new_scan().with_source("log").execute() as tail:
        count = 0
        while count < 30:
            count += next(tail).num_rows
        with pytest.raises(KeyboardInterrupt), interrupted_after(all_wait):
            while True:
                next(tail)
        assert tail.positions == log_ends(table)
        table.write(rows(range(30, 40), "second"))
        while count < 40:
            count += next(tail).num_rows
        assert count == 40
    server.wait_until(lambda it: it.statistics().push_scans_open == 0)


def test_where_a_time_is(table: scanner.sync.Table) -> None:
    """The first commit at or after it, the end if there is none, and no answer for what has not been."""
    table.write(rows(range(30), "first"))
    ends = log_ends(table)
    times = table.new_scan().with_source("log").stop_at("end").to_arrow()["_commit_timestamp"].to_pylist()
    assert {each.bucket: each.at_offset for each in table.offsets(at=min(times))} == dict.fromkeys(ends, 0)
    later = max(times) + datetime.timedelta(microseconds=1)
    assert {each.bucket: each.at_offset for each in table.offsets(at=later)} == ends
    naive = later.replace(tzinfo=None)
    assert table.offsets(at=naive) == table.offsets(at=later)
    # Between the last commit and the next microsecond; pandas alone has such times.
    finer = pd.Timestamp(max(times)) + pd.Timedelta(1, "ns")
    assert table.offsets(at=finer) == table.offsets(at=later)
    with pytest.raises(ArgumentInvalid, match="future"):
        table.offsets(at=later + datetime.timedelta(days=1))
    with pytest.raises(ArgumentInvalid, match="a time is a datetime, not '2020'"):
        table.offsets(at="2020")  # type: ignore[call-overload]


def test_whether_all_since_a_time_is_kept(server: RunningServer, table: scanner.sync.Table) -> None:
    """It is until the changelog is cut; then everything is that was committed later than what is gone."""
    table.write(rows(range(30), "first"))
    middle = log_ends(table)
    table.write(rows(range(30), "second"))
    times = table.new_scan().with_source("log").stop_at("end").to_arrow()["_commit_timestamp"].to_pylist()
    tick = datetime.timedelta(microseconds=1)

    def are_kept(at: datetime.datetime) -> set[bool]:
        return {each.is_kept for each in table.offsets(at=at)}

    assert are_kept(min(times)) == are_kept(max(times) + tick) == {True}
    cut(server, table, middle)
    second = table.new_scan().with_source("log").stop_at("end").to_arrow()["_commit_timestamp"].to_pylist()
    assert are_kept(min(times)) == {False}
    assert are_kept(min(second)) == are_kept(max(times) + tick) == {True}
    cut(server, table, log_ends(table))
    assert are_kept(min(times)) == {False}
    assert are_kept(max(times) + tick) == {True}


def cut(server: RunningServer, table: scanner.sync.Table, starts: dict[int, int]) -> None:
    """Take the changes before these offsets away."""
    with scanner.sync.connect(server.endpoint) as client:
        for bucket, offset in starts.items():
            client.compact_log(table.name, before=offset, bucket=bucket)
