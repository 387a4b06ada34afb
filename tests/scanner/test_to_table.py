"""`to_table` and `Fold` beside scans as of the same offsets, on a server with files; in both clients."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import trio

import scanner
import scanner.sync
from scanner import Fold, col
from scanner.errors import ArgumentInvalid, OffsetOutOfRange

if TYPE_CHECKING:
    from tests.support.server import RunningServer

pytestmark = [pytest.mark.socket, pytest.mark.rocks]

SCHEMA = pa.schema(
    [
        ("text", pa.string()),
        pa.field("id", pa.int64(), nullable=False),
        pa.field("part", pa.string(), nullable=False),
    ]
)
BUCKETS = 3


@pytest.fixture
def table(client: scanner.sync.Client) -> scanner.sync.Table:
    """A table whose rows were written, changed and deleted."""
    made = client.create_table("items", SCHEMA, ["part", "id"], BUCKETS)
    made.write(rows(range(60), "first"))
    return made


def rows(keys: range, text: str) -> pa.Table:
    """Rows to write."""
    return pa.table([[text] * len(keys), list(keys), [f"p{key % 2}" for key in keys]], schema=SCHEMA)


def change(table: scanner.sync.Table) -> dict[int, int]:
    """Some inserts, updates and deletes; where the changelogs end then."""
    table.write(rows(range(40, 80), "second"))
    table.delete([(f"p{key % 2}", key) for key in range(20, 50)])
    table.write(rows(range(45, 48), "third"))
    return ends(table)


def ends(table: scanner.sync.Table) -> dict[int, int]:
    """Where the changelog of each bucket ends."""
    return {each.bucket: each.end_offset for each in table.offsets()}


def ordered(found: pa.Table) -> pa.Table:
    """The same rows in an order that is defined."""
    return found.sort_by([(name, "ascending") for name in found.column_names]).combine_chunks()


def test_it_is_the_table_at_any_offsets(table: scanner.sync.Table) -> None:
    """From a state before, in it, with a filter, and with columns that lack the key."""
    first = ends(table)
    middle = change(table)
    table.write(rows(range(100, 120), "late"))
    hybrid, plain = table.new_scan().with_source("hybrid"), table.new_scan()
    shapes: tuple[Callable[[scanner.sync.Scan], scanner.sync.Scan], ...] = (
        lambda scan: scan,
        lambda scan: scan.where(col("text") != "second"),
        lambda scan: scan.select("text"),
        lambda scan: scan.select("id", "text").where(col("id") < 70),
    )
    for shape in shapes:
        expected = ordered(shape(plain.as_of(middle)).to_arrow())
        assert ordered(shape(hybrid).to_table(middle)) == expected
        assert ordered(shape(hybrid).as_of(first).to_table(middle)) == expected
        assert ordered(shape(hybrid).as_of(first).stop_at(middle).to_table()) == expected
        assert ordered(shape(hybrid).as_of(first).to_table()) == ordered(shape(plain).to_arrow())
        assert shape(hybrid).to_table().schema == shape(plain).schema
    one = hybrid.bucket(1).as_of(first)
    assert ordered(one.to_table(middle)) == ordered(plain.bucket(1).as_of(middle).to_arrow())


def test_it_is_the_table_at_a_time(table: scanner.sync.Table) -> None:
    """Every commit before it counts, and a scan of the changes from that time goes on there."""
    first = ends(table)
    change(table)
    log = table.new_scan().with_source("log")
    changed = log.start_at(first).stop_at("end").to_arrow()
    time = min(changed["_commit_timestamp"].to_pylist())
    hybrid = table.new_scan().with_source("hybrid")
    before = hybrid.to_table(time)
    assert ordered(before) == ordered(rows(range(60), "first"))
    assert ordered(hybrid.to_table(time.replace(tzinfo=None))) == ordered(before)
    fold = Fold(table.schema, table.primary_key)
    for batch in [*before.to_batches(), *log.start_at(time).stop_at("end").to_batches()]:
        fold.apply(batch)
    assert ordered(fold.to_table()) == ordered(table.new_scan().to_arrow())


def test_the_trio_client_folds_as_well(server: RunningServer, table: scanner.sync.Table) -> None:
    """The same table."""
    middle = change(table)

    async def folded() -> pa.Table:
        async with scanner.connect(server.endpoint) as client:
            opened = await client.table("items")
            return await opened.new_scan().with_source("hybrid").to_table(middle)

    assert ordered(trio.run(folded)) == ordered(table.new_scan().to_arrow())


def test_a_state_that_is_kept_and_the_changes_from_it(
    client: scanner.sync.Client, table: scanner.sync.Table
) -> None:
    """A lease's rows and the changes from its offsets, or a checkpoint's, are the table."""
    change(table)
    checkpoint = {each.bucket: each.log_offset for each in client.checkpoint("items")}
    with client.acquire_lease("items") as lease:
        assert lease.offsets("items") == lease.info.offsets("items") == checkpoint
        with pytest.raises(ArgumentInvalid, match="keeps nothing of table 'other'"):
            lease.offsets("other")
        table.write(rows(range(10, 30), "later"))
        table.delete([("p0", 4)])
        fold = Fold(table.schema, table.primary_key)
        for batch in table.new_scan().with_lease(lease).to_batches():
            fold.apply(batch)
        changes = table.new_scan().with_source("log").start_at(lease.offsets("items")).stop_at("end")
        with changes.execute() as batches:
            for batch in batches:
                fold.apply(batch)
            assert batches.positions == ends(table)
    assert ordered(fold.to_table()) == ordered(table.new_scan().to_arrow())


def test_what_retention_has_cut_is_not_guessed(server: RunningServer, table: scanner.sync.Table) -> None:
    """A time before a commit that is gone is an error; one behind that is the oldest state that is left."""
    middle = change(table)
    before = table.new_scan().to_arrow()
    log = table.new_scan().with_source("log").stop_at("end").to_arrow()
    times = log["_commit_timestamp"].to_pylist()
    table.write(rows(range(5), "late"))

    def truncate(it: Any) -> None:
        for _, index, bucket in it._services.catalog.open_buckets():
            bucket.storage.truncate_log(middle[index])

    server.ask(truncate)
    hybrid = table.new_scan().with_source("hybrid")
    with pytest.raises(OffsetOutOfRange, match="cannot be told") as refused:
        hybrid.to_table(min(times))
    assert refused.value.oldest_offset
    assert ordered(hybrid.to_table(max(times) + datetime.timedelta(microseconds=1))) == ordered(before)


def test_what_makes_no_sense_is_refused(table: scanner.sync.Table) -> None:
    """Each in one line."""
    cases: list[tuple[Callable[[Any], object], str]] = [
        (lambda table: table.new_scan().to_table(), "source HYBRID, not LIVE_KV"),
        (lambda table: table.new_scan().with_source("log").to_table(), "source HYBRID, not LOG"),
        (lambda table: hybrid(table).limit(3).to_table(), "leave limit"),
        (lambda table: hybrid(table).stop_at("end").to_table(3), "leave stop_at"),
        (lambda table: hybrid(table).select("id", "_log_offset").to_table(), "no _log_offset"),
        (lambda table: hybrid(table).to_table({0: 0}), "bucket 1"),
        (lambda table: hybrid(table).to_table(-1), "at must be a whole number"),
        (lambda table: hybrid(table).to_table({7: 0}), "the bucket in at"),
        (lambda table: hybrid(table).to_table("end"), "at must be a whole number"),
        (lambda table: hybrid(table).to_table(datetime.datetime(2999, 1, 1)), "in the future"),
        (lambda table: hybrid(table).to_table(10**6), r"bucket \d: .* there is no state as of 1000000 yet"),
    ]
    for build, says in cases:
        with pytest.raises((ArgumentInvalid, OffsetOutOfRange), match=says) as refused:
            build(table)
        assert "\n" not in str(refused.value)


def hybrid(table: Any) -> Any:
    """A scan of the table and its changes."""
    return table.new_scan().with_source("hybrid")
