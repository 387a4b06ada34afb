"""Rows of a load that have the key of an earlier row."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from scanner.cli.repeated_keys import RepeatedKeys
from scanner.data.table import TableDescription

_KEYS = (
    (pa.bool_(),),
    (pa.int64(),),
    (pa.int64(), pa.int32()),
    (pa.int64(), pa.int64()),
    (pa.int64(), pa.int64(), pa.int8()),
    (pa.string(),),
    (pa.int8(), pa.string()),
)


@given(types=st.sampled_from(_KEYS), data=st.data())
def test_every_key_counts_once(types: tuple[pa.DataType, ...], data: st.DataObject) -> None:
    """Of whatever types a key is, however the rows are cut into batches, and with empty batches."""
    cells = {pa.bool_(): st.booleans(), pa.string(): st.text("a\0", max_size=3)}
    key = st.tuples(*(cells.get(each, st.integers(-2, 2)) for each in types))
    batches = data.draw(st.lists(st.lists(key, max_size=8), max_size=4))
    schema = pa.schema([(f"k{index}", each) for index, each in enumerate(types)])
    repeated = RepeatedKeys(TableDescription("t", schema, tuple(schema.names), 1))
    for batch in batches:
        columns = [pa.array([row[index] for row in batch], each) for index, each in enumerate(types)]
        repeated.add(pa.RecordBatch.from_arrays(columns, schema=schema))
    keys = [row for batch in batches for row in batch]
    assert repeated.count == len(keys) - len(set(keys))
