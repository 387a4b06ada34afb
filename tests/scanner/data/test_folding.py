"""Folding rows and changes, beside a fold that takes them one by one."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.data import folding
from scanner.data.changes import CHANGE_TYPES, DELETE, UPDATE_PREIMAGE, change_schema
from scanner.data.folding import Fold
from scanner.data.keys import KeyCodec
from scanner.data.table import TableDescription
from scanner.errors import ColumnNotFound, DataCorrupted, SchemaMismatch
from tests.support.arrow_values import STORED_TYPES, column, raw_values

Row = tuple[Any, ...]
TABLE = TableDescription(
    "items",
    pa.schema([("text", pa.string()), ("id", pa.int64()), ("part", pa.string())]),
    ("part", "id"),
    1,
)


def changes(rows: list[tuple[str, Row]], table: TableDescription = TABLE) -> pa.RecordBatch:
    """Changes of these kinds."""
    schema = change_schema(table)
    cells = [*zip(*(row for _, row in rows), strict=True)] or [()] * len(table.schema)
    columns = [column(list(values), field.type) for values, field in zip(cells, table.schema, strict=True)]
    kinds = pa.array([kind for kind, _ in rows], pa.string())
    nothing = [pa.nulls(len(rows), field.type) for field in [*schema][-2:]]
    return pa.RecordBatch.from_arrays([*columns, kinds, *nothing], schema=schema)


def naive(rows: list[tuple[str, Row]]) -> dict[tuple[Any, ...], Row]:
    """A dict by key."""
    table: dict[tuple[Any, ...], Row] = {}
    for kind, row in rows:
        table.pop(row[1:], None)
        if kind not in (DELETE, UPDATE_PREIMAGE):
            table[row[1:]] = row
    return table


def found(fold: Fold) -> list[Row]:
    """The rows of a fold, in some order that is defined."""
    return sorted((tuple(row.values()) for row in fold.to_table().to_pylist()), key=repr)


rows = st.tuples(st.none() | st.text(max_size=3), st.integers(0, 5), st.sampled_from(["", "a", "a\0", "ä"]))
batches = st.lists(st.lists(st.tuples(st.sampled_from(CHANGE_TYPES), rows), max_size=6), max_size=5)


@given(batches, st.sampled_from([1, 200, 1 << 24]), st.sampled_from([2, 1024]), st.booleans())
def test_it_is_what_a_naive_fold_is(
    script: list[list[tuple[str, Row]]], pending: int, loose: int, asked_each_time: bool
) -> None:
    """However often it is folded under way, and whenever it is asked."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folding, "_PENDING_BYTES_MIN", pending)
        patch.setattr(folding, "_LOOSE_BATCHES_MAX", loose)
        fold = Fold(TABLE.schema, TABLE.primary_key)
        seen: list[tuple[str, Row]] = []
        for part in script:
            fold.apply(changes(part))
            seen += part
            if asked_each_time:
                assert found(fold) == sorted(naive(seen).values(), key=repr)
        assert found(fold) == sorted(naive(seen).values(), key=repr)
        assert fold.to_table().schema == TABLE.schema


@given(st.data(), st.lists(st.sampled_from(STORED_TYPES), min_size=1, max_size=3))
def test_keys_of_every_type(data: st.DataObject, types: list[pa.DataType]) -> None:
    """What one key is here is one key for the server: 0.0 and -0.0, any NaN, and text with zeros in it."""
    names = [f"k{index}" for index in range(len(types))]
    schema = pa.schema([*zip(names, types, strict=True), ("row", pa.int64())])
    table = TableDescription("items", schema, tuple(names), 1)
    keys = data.draw(st.lists(st.tuples(*map(raw_values, types)), min_size=1, max_size=6))
    script = [(kind, (*key, number)) for number, (kind, key) in enumerate(
        data.draw(st.lists(st.tuples(st.sampled_from(CHANGE_TYPES), st.sampled_from(keys)), max_size=20))
    )]  # fmt: skip
    fold = Fold(table.schema, table.primary_key)
    last: dict[bytes, tuple[str, int]] = {}
    batch = changes(script, table)
    encoded = KeyCodec(table).encode_batch(batch)
    for key, (kind, row) in zip(encoded, script, strict=True):
        last[key] = kind, row[-1]
    fold.apply(batch)
    kept = [number for kind, number in last.values() if kind not in (DELETE, UPDATE_PREIMAGE)]
    assert sorted(fold.to_table()["row"].to_pylist()) == sorted(kept)


def test_rows_of_a_state_are_put() -> None:
    """A batch without kinds; changes are applied behind it, and columns go by name."""
    fold = Fold(TABLE.schema.remove(0), TABLE.primary_key)
    fold.apply(pa.record_batch({"part": ["a", "a"], "id": [1, 2], "text": ["x", "y"]}))
    fold.apply(changes([(DELETE, (None, 1, "a"))]))
    assert fold.to_table().to_pylist() == [{"id": 2, "part": "a"}]


def test_many_small_batches_keep_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are copied together, so that a tail of single rows takes the room of its rows."""
    monkeypatch.setattr(folding, "_LOOSE_BATCHES_MAX", 8)
    fold = Fold(TABLE.schema, TABLE.primary_key)
    for number in range(20):
        fold.apply(changes([("insert", (None, number, "a"))]))
    assert (len(fold._parts), len(fold._loose)) == (2, 4)
    assert len(fold.to_table()) == 20
    assert (fold._parts, fold._loose) == ([], [])


def test_what_cannot_be_folded() -> None:
    """Refused whole, and the fold stays as it was."""
    with pytest.raises(ColumnNotFound, match="part"):
        Fold(TABLE.schema.remove(2), TABLE.primary_key)
    fold = Fold(TABLE.schema, TABLE.primary_key)
    good = changes([("insert", ("x", 1, "a"))])
    with pytest.raises(ColumnNotFound, match="text"):
        fold.apply(good.drop_columns(["text"]))
    with pytest.raises(SchemaMismatch, match="'id' is string"):
        fold.apply(good.set_column(1, "id", pa.array(["1"])))
    with pytest.raises(DataCorrupted, match="_change_type"):
        fold.apply(changes([("upsert", ("x", 1, "a"))]))
    assert fold.to_table().num_rows == 0


_PEAK = """
import pyarrow as pa
from scanner.data.folding import Fold

schema = pa.schema([("id", pa.int64()), ("value", pa.binary())])
fold = Fold(schema, ["id"])
for first in range(0, 4000, 100):
    columns = [pa.array(range(first, first + 100)), pa.array([b"x" * 10_000] * 100)]
    fold.apply(pa.RecordBatch.from_arrays(columns, schema=schema))
print(fold.to_table().nbytes, pa.default_memory_pool().max_memory())
"""


def test_its_memory_is_that_of_the_table_and_as_much_again() -> None:
    """While it folds, too: what brought the rows goes before they are copied a second time."""
    ran = subprocess.run([sys.executable, "-c", _PEAK], check=True, capture_output=True, text=True)
    table_bytes, peak_bytes = map(int, ran.stdout.split())
    assert peak_bytes < 2.1 * table_bytes
