"""Scans of images that pass over blocks of which no row passes the filter: the same scan, and less is read."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Never

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.harness.images import write_image
from scanner.data.block_ranges import may_pass
from scanner.data.filters import Operator, Predicate
from scanner.data.keys import ALL_KEYS, KeyRange
from scanner.data.position import START
from scanner.sources.image import ImageScan
from scanner.sources.image_delta import ImageDelta
from scanner.sources.overlay import OverlayLimits
from scanner.sources.past import PastChanges, SharedPast
from scanner.storage.interface import Mutation
from scanner.wire.queries import ScanQuery
from tests.support.images import ANY, changed, drive, source_over, table_of, unexpected_damage
from tests.support.scans import filled_store, mutations, sample

if TYPE_CHECKING:
    from pathlib import Path

    from scanner.sources.image import Changes
    from scanner.sources.interface import Batch
    from scanner.storage.images.reader import Image
    from scanner.storage.memory.store import MemoryStore

ROWS = 200
BLOCK_ROWS = 16
BLOCKS = 13


def comparison(column: str, operator: Operator, *values: float | str) -> Predicate:
    """One condition."""
    return Predicate(column, operator, values)


def negated(predicate: Predicate) -> Predicate:
    """NOT."""
    return Predicate("", Operator.NOT, (), (predicate,))


CHEAP = comparison("price", Operator.LESS, 3.0)
"""Of the ids below 12: the first block."""
CONDITIONS = [
    CHEAP,
    negated(CHEAP),
    comparison("id", Operator.IN, 3, 90, 91, 260),
    comparison("id", Operator.GREATER_OR_EQUAL, 150),
    comparison("name", Operator.STARTS_WITH, "changed-9"),
    comparison("name", Operator.IS_NULL),
    Predicate("", Operator.OR, (), (CHEAP, comparison("id", Operator.EQUAL, 100))),
]


def skipping_scan(
    image: Image, store: MemoryStore, query: ScanQuery, log_offset: int, key_range: KeyRange = ALL_KEYS
) -> ImageScan:
    """A scan of an image as of an offset, as the server makes it."""
    bucket, schema = store.bucket("items", 0), store.table("items").schema
    made_at = image.header.log_offset
    changes: Changes | None = None
    if log_offset > made_at:
        changes = ImageDelta(bucket, made_at, ANY).as_of(log_offset, key_range)
    elif log_offset < made_at:
        changes = PastChanges(SharedPast(bucket, log_offset, OverlayLimits()), made_at, key_range)
    wanted = may_pass(query.predicates, schema, lambda name: image.ranges(schema.field(name)))
    return ImageScan(
        image,
        key_range,
        store.key_codec("items"),
        store.row_codec("items"),
        _no_rows,
        unexpected_damage,
        changes,
        wanted,
    )


def _no_rows(_: KeyRange) -> Never:
    raise AssertionError("the image fails")


def cheap(image: Image, store: MemoryStore) -> tuple[ImageScan, list[int]]:
    """A scan for `CHEAP` as of now, and the ids that it finds."""
    query = ScanQuery(table="items", predicates=(CHEAP,))
    scan = skipping_scan(image, store, query, store.bucket("items", 0).log_end)
    found = table_of(drive(source_over(scan, store, query)))
    return scan, found.column("id").to_pylist()


def test_blocks_that_cannot_match_are_not_read(tmp_path: Path) -> None:
    """All but the first are gone from the disk, and no one misses them."""
    store = filled_store(ROWS)
    image = write_image(tmp_path / "image", store, rows_max=BLOCK_ROWS)
    os.truncate(image.path, image.place(1).at)
    scan, found = cheap(image, store)

    assert found == list(range(12))
    assert (scan.blocks_read, scan.blocks_skipped) == (1, BLOCKS - 1)


@pytest.mark.parametrize("kind", ["changed", "added", "deleted"])
def test_a_changed_block_is_read(tmp_path: Path, kind: str) -> None:
    """What was changed may pass where nothing did."""
    store = filled_store(ROWS)
    image = write_image(tmp_path / "image", store, rows_max=BLOCK_ROWS)
    puts = {"changed": [100], "added": [ROWS + 5], "deleted": []}[kind]
    rows = sample(puts)
    rows = rows.set_column(2, rows.schema.field("price"), pa.array([-1.0] * len(puts), pa.float64()))
    deletes = store.key_codec("items").encode_batch(sample([3, 101] if kind == "deleted" else []))
    removing = [Mutation(key, None) for key in deletes]
    store.bucket("items", 0).commit([mutations(store, "items", rows), removing])
    query = ScanQuery(table="items", predicates=(comparison("price", Operator.LESS, 0.0),))
    scan = skipping_scan(image, store, query, store.bucket("items", 0).log_end)
    source = source_over(scan, store, query)
    expected = source_over(store.bucket("items", 0).open_snapshot().scan(), store, query)

    assert table_of(drive(source)).column("id").to_pylist() == puts
    drive(expected)
    assert source.position == expected.position
    assert scan.blocks_skipped == BLOCKS - {"changed": 1, "added": 0, "deleted": 2}[kind]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_skipping_changes_no_scan(tmp_path: Path, data: st.DataObject) -> None:
    """With changes since or before, any range, cut and continued anywhere: rows, ordinals, digests, positions, end."""
    store = filled_store(ROWS)
    bucket, codec, ids = store.bucket("items", 0), store.key_codec("items"), st.integers(-5, ROWS + 5)
    some_ids = st.lists(ids, unique=True, max_size=4)
    early = data.draw(st.booleans())
    if not early:
        image = write_image(tmp_path / "image", store, rows_max=data.draw(st.integers(1, 40)))
    asked_at = bucket.log_end
    changed(store, data.draw(some_ids), data.draw(some_ids))
    if early:
        image = write_image(tmp_path / "image", store, rows_max=data.draw(st.integers(1, 40)))
    else:
        asked_at = bucket.log_end
    low, high = (codec.encode([data.draw(ids)]) if data.draw(st.booleans()) else b"" for _ in range(2))
    query = ScanQuery(
        table="items",
        columns=data.draw(st.sampled_from([(), ("id",)])),
        predicates=tuple(data.draw(st.lists(st.sampled_from(CONDITIONS), min_size=1, max_size=2))),
        range=KeyRange(low, high),
    )
    plain = ScanQuery(table="items", columns=query.columns, range=query.range)
    unskipped = source_over(skipping_scan(image, store, plain, asked_at, query.range), store, query)
    expected = drive(unskipped)

    batches: list[Batch] = []
    position, source = START, unskipped
    for cut in [*data.draw(st.lists(st.integers(0, 3), max_size=4)), ANY]:
        remaining = position.remaining(query.range)
        source = source_over(skipping_scan(image, store, query, asked_at, remaining), store, query, position)
        batches += drive(source, data.draw(st.integers(1, 20_000)), cut)
        position = source.position
        source.close()
    schema = unskipped.schema
    assert table_of(batches, schema).equals(table_of(expected, schema))
    assert [batch.row_ordinal for batch in batches] == [
        sum(batch.rows.num_rows for batch in batches[:number]) for number in range(len(batches))
    ]
    assert (position, source.end) == (unskipped.position, unskipped.end)
