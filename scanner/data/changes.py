"""The columns that a change has beside those of its row: what happened, at which offset, when.

The names and values are those of Spark's change feed.

A change of kind k (`scanner.storage.records.ChangeKind`, 1 to 4) has the type `CHANGE_TYPES[k - 1]`. Rows of `delete`
and `update_preimage` are removed, rows of `insert` and `update_postimage` are put. Changes that are applied so give the
right rows under any filter, because each change passes the filter by its own row.

This module knows no storage and no wire.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from scanner.data.table import require_columns
from scanner.errors import ArgumentInvalid

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from scanner.data.table import TableDescription

CHANGE_TYPE: Final = "_change_type"
LOG_OFFSET: Final = "_log_offset"
COMMIT_TIMESTAMP: Final = "_commit_timestamp"

INSERT: Final = "insert"
UPDATE_PREIMAGE: Final = "update_preimage"
UPDATE_POSTIMAGE: Final = "update_postimage"
DELETE: Final = "delete"
CHANGE_TYPES: Final = (INSERT, UPDATE_PREIMAGE, UPDATE_POSTIMAGE, DELETE)
"""By change kind, from 1."""

_TIMESTAMP: Final = pa.timestamp("us", "UTC")
CHANGE_COLUMNS: Final = (
    pa.field(CHANGE_TYPE, pa.string(), nullable=False),
    pa.field(LOG_OFFSET, pa.int64()),
    pa.field(COMMIT_TIMESTAMP, _TIMESTAMP),
)
"""Offset and timestamp are null in the rows of a snapshot, which come from no change."""
CHANGE_COLUMN_NAMES: Final = frozenset(field.name for field in CHANGE_COLUMNS)


class ChangeRange(NamedTuple):
    """The changes that a batch covers, those that its filter drops included."""

    start: int
    """Offset of the first one."""
    end: int
    """One past the last one."""
    commit_end: bool
    """Whether the last one is the last of its commit: then `end` can be stopped at and stored."""


def change_schema(table: TableDescription, columns: Sequence[str] = ()) -> pa.Schema:
    """The columns of a table's changes.

    Args:
        table: Whose changes they are.
        columns: Of the table or of the change, in the order in which they are wanted; empty: all of the table, then
            all of the change.

    Raises:
        ColumnNotFound: A name is unknown; the message lists the known ones.
        ArgumentInvalid: A name is asked for twice, or the table has a column that a change has, too.
    """
    taken = CHANGE_COLUMN_NAMES.intersection(table.column_names)
    if taken:
        raise ArgumentInvalid(
            f"table {table.name!r} has a column {min(taken)!r}, which every change has, too:"
            " its changelog cannot be scanned"
        )
    schema = pa.schema([*table.schema, *CHANGE_COLUMNS])
    if not columns:
        return schema
    require_columns(schema, columns)
    if len(set(columns)) < len(columns):
        raise ArgumentInvalid(f"a column is asked for twice in {', '.join(columns)}")
    return pa.schema([schema.field(name) for name in columns])


def table_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """Those of the columns that are the table's."""
    return tuple(name for name in columns if name not in CHANGE_COLUMN_NAMES)


def change_rows(
    rows: pa.RecordBatch,
    schema: pa.Schema,
    kinds: NDArray[np.uint8],
    first_offset: int,
    timestamps_us: NDArray[np.int64],
) -> pa.RecordBatch:
    """The rows of adjacent changes, with the columns of a change.

    Args:
        rows: Of the changes, with every column of the table that `schema` has.
        schema: Made by `change_schema`.
        kinds: Of each change, 1 to 4.
        first_offset: Of the first change.
        timestamps_us: Commit time of each, microseconds since 1970 UTC.
    """
    offsets = np.arange(first_offset, first_offset + len(kinds), dtype=np.int64)
    return _completed(
        rows,
        schema,
        {
            CHANGE_TYPE: _types().take(pa.array(kinds - 1)),
            LOG_OFFSET: pa.array(offsets),
            COMMIT_TIMESTAMP: pa.array(timestamps_us).view(_TIMESTAMP),
        },
    )


def insert_rows(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows of a snapshot, with the columns of a change: inserts, of no offset and no time.

    Args:
        rows: With every column of the table that `schema` has.
        schema: Made by `change_schema`.
    """
    count = rows.num_rows
    return _completed(
        rows,
        schema,
        {
            CHANGE_TYPE: pa.repeat(pa.scalar(INSERT), count),
            LOG_OFFSET: pa.nulls(count, pa.int64()),
            COMMIT_TIMESTAMP: pa.nulls(count, _TIMESTAMP),
        },
    )


def _completed(rows: pa.RecordBatch, schema: pa.Schema, added: dict[str, pa.Array]) -> pa.RecordBatch:
    arrays = [added[name] if name in added else rows.column(name) for name in schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@functools.cache
def _types() -> pa.Array:
    """`CHANGE_TYPES` in Arrow. Not made at import: the first array of Python objects makes pyarrow import pandas."""
    return pa.array(CHANGE_TYPES, pa.string())
