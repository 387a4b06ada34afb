"""Keys are found among the rows of a block as by bisection, whatever lengths they have."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.data.keys import KeyCodec
from scanner.data.table import TableDescription
from scanner.sources.image_rows import BlockKeys

OCTETS = st.binary(max_size=3) | st.lists(st.sampled_from([0, 1, 255]), max_size=12).map(bytes)


def keys_of(values: Sequence[object], data_type: pa.DataType) -> tuple[BlockKeys, list[bytes]]:
    """The keys of a block with these values, and the same encoded."""
    table = TableDescription("items", pa.schema([pa.field("id", data_type, nullable=False)]), ("id",), 1)
    codec = KeyCodec(table)
    batch = pa.record_batch([pa.array(values, data_type)], schema=table.schema)
    return BlockKeys(batch, codec), codec.encode_batch(batch)


def require_as_by_bisection(keys: BlockKeys, rows: list[bytes], sought: list[bytes]) -> None:
    """Look keys up both ways; those of the rows with something behind them or cut off among them."""
    sought = sorted({*sought, *rows, *(row + b"\0" for row in rows), *(row[:-1] for row in rows)})
    places = [bisect_left(rows, key) for key in sought]
    assert keys.find(sought) == (places, [key in rows for key in sought])


@given(st.sets(st.integers(-300, 300), min_size=1, max_size=30), st.lists(OCTETS, max_size=10))
def test_of_one_length(values: set[int], sought: list[bytes]) -> None:
    """Numbers; with many zeros at the ends of their keys."""
    keys, rows = keys_of([value << 8 for value in sorted(values)], pa.int64())
    require_as_by_bisection(keys, rows, sought)


@given(st.sets(OCTETS, min_size=1, max_size=20), st.lists(OCTETS, max_size=10))
def test_of_many_lengths(values: set[bytes], sought: list[bytes]) -> None:
    """Octets, zeros at the end among them, which take more room in a key."""
    keys, rows = keys_of(sorted(values), pa.binary())
    require_as_by_bisection(keys, rows, sought)


@pytest.mark.parametrize("value", [b"", b"\0", b"\0\0", b"a\0"])
def test_of_one_row(value: bytes) -> None:
    """One key has one length."""
    keys, rows = keys_of([value], pa.binary())
    require_as_by_bisection(keys, rows, [b"", b"\xff"])
