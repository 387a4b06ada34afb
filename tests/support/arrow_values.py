"""Hypothesis strategies for everything that a table can store: types, columns, batches."""

from __future__ import annotations

import decimal

import pyarrow as pa
from hypothesis import strategies as st

_INTEGERS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}

STORED_TYPES: tuple[pa.DataType, ...] = (
    pa.bool_(),
    *_INTEGERS,
    pa.float32(),
    pa.float64(),
    pa.decimal128(7, 2),
    pa.decimal128(38, 10),
    pa.date32(),
    pa.timestamp("s"),
    pa.timestamp("us"),
    pa.timestamp("us", "UTC"),
    pa.timestamp("ns", "Europe/Berlin"),
    pa.string(),
    pa.binary(),
)
"""One of each kind that can be stored, and both ends of decimal and timestamp."""


def raw_values(data_type: pa.DataType) -> st.SearchStrategy[object]:
    """Values as Arrow keeps them, in the order in which keys sort: timestamps and dates are integers here."""
    if data_type in _INTEGERS:
        bits = _INTEGERS[data_type]
        return st.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    if pa.types.is_boolean(data_type):
        return st.booleans()
    if pa.types.is_floating(data_type):
        return st.floats(width=data_type.bit_width, allow_nan=False)
    if pa.types.is_decimal(data_type):
        limit = 10**data_type.precision - 1
        return st.integers(-limit, limit).map(lambda unscaled: _decimal(unscaled, data_type.scale))
    if pa.types.is_date32(data_type):
        return st.integers(-100_000, 100_000)
    if pa.types.is_timestamp(data_type):
        # What Python's datetime can show, whatever the unit.
        per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[data_type.unit]
        return st.integers(-(2**31), 2**33).map(lambda second: second * per_second + second % per_second)
    if pa.types.is_string(data_type):
        return st.text(max_size=12)
    return st.binary(max_size=12)


def column(values: list[object], data_type: pa.DataType) -> pa.Array:
    """An array of raw values."""
    if pa.types.is_timestamp(data_type):
        return pa.array(values, pa.int64()).cast(data_type)
    if pa.types.is_date32(data_type):
        return pa.array(values, pa.int32()).cast(data_type)
    return pa.array(values, data_type)


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    """Record batches of any stored types, nulls included, sometimes a slice of a larger one."""
    types = draw(st.lists(st.sampled_from(STORED_TYPES), min_size=1, max_size=12))
    count = draw(st.integers(0, 12))
    columns = [
        column(draw(st.lists(st.none() | raw_values(kind), min_size=count, max_size=count)), kind)
        for kind in types
    ]
    batch = pa.RecordBatch.from_arrays(columns, names=[f"c{index}" for index in range(len(types))])
    start = draw(st.integers(0, count))
    return batch.slice(start, draw(st.integers(0, count - start)))


def _decimal(unscaled: int, scale: int) -> decimal.Decimal:
    sign, digits = int(unscaled < 0), tuple(map(int, str(abs(unscaled))))
    return decimal.Decimal((sign, digits, -scale))
