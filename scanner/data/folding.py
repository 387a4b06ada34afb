"""A table made of rows and changes: the last change of each key decides, and a removing one leaves nothing.

`scanner.storage.rocksdb.folding` compares a log with rows, key by key, in bounded memory, and keeps no row; this one
keeps the rows, column by column, and compares nothing.

Invariants:

1. What is folded is the table at any offset, under any filter, if each bucket's rows come before its changes, and its
   changes in their order. Buckets may be mixed, since a key belongs to one of them.
2. Memory is that of the table, as much again for changes that are not folded yet or for the copy that folding makes,
   some 100 octets for each row meanwhile, and a block. A change is folded a bounded number of times on average.
3. Nothing is done row by row in Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scanner.data.changes import CHANGE_TYPE, DELETE, INSERT, UPDATE_POSTIMAGE, UPDATE_PREIMAGE
from scanner.data.keys import KeyCodec
from scanner.data.table import TableDescription, require_columns
from scanner.errors import DataCorrupted, SchemaMismatch

_PENDING_BYTES_MIN: Final = 16 * 1024 * 1024
"""Changes are folded when they take as much as the table, and this at least."""
_LOOSE_BATCHES_MAX: Final = 1024
"""Small batches are copied together: each would keep the message that brought it."""


class Fold:
    """A table that rows and changes are applied to. For one thread at a time.

    Args:
        schema: The columns of the table to make: the key's, and as many others as are wanted.
        primary_key: Names of the key columns, in key order.

    Raises:
        ColumnNotFound: The schema lacks a key column.
        SchemaMismatch: A column has a type that tables have not.

    Example:
        >>> fold = Fold(orders.schema, orders.primary_key)
        >>> for batch in batches:
        ...     fold.apply(batch)
        >>> fold.to_table()
    """

    def __init__(self, schema: pa.Schema, primary_key: Sequence[str]) -> None:
        description = TableDescription("fold", schema, tuple(primary_key), 1)
        self._codec = KeyCodec(description)
        self._schema = description.schema
        # The last column says whether the row is put; names may repeat, so it goes by its place.
        self._marked = self._schema.append(pa.field("put", pa.bool_(), nullable=False))
        self._folded: pa.Table = self._marked.empty_table()
        self._parts: list[pa.Table] = []
        self._loose: list[pa.RecordBatch] = []
        self._pending_bytes = 0

    def apply(self, batch: pa.RecordBatch) -> None:
        """Apply a batch: changes in their order, or rows of a state, which have no `_change_type` and are put.

        Args:
            batch: Has the columns of the fold, by name; others are ignored. Kept until it is folded.

        Raises:
            ColumnNotFound, SchemaMismatch: Its columns are not those of the fold; nothing was applied.
            DataCorrupted: A change is of no kind that is known; nothing was applied.
        """
        require_columns(batch.schema, self._schema.names)
        columns = [batch.column(field.name) for field in self._schema]
        for field, column in zip(self._schema, columns, strict=True):
            if column.type != field.type:
                raise SchemaMismatch(f"column {field.name!r} is {column.type}, not {field.type}")
        marked = pa.RecordBatch.from_arrays([*columns, _puts(batch)], schema=self._marked)
        if not len(marked):
            return
        self._loose.append(marked)
        self._pending_bytes += marked.nbytes
        if self._pending_bytes >= max(_PENDING_BYTES_MIN, self._folded.nbytes):
            self._fold()
        elif len(self._loose) >= _LOOSE_BATCHES_MAX:
            self._parts.append(pa.Table.from_batches(self._loose).combine_chunks())
            self._loose = []

    def to_table(self) -> pa.Table:
        """The table after all that was applied, in no defined order. More can be applied afterwards.

        It folds what is pending, which costs about as much as reading the table once.
        """
        if self._loose or self._parts:
            self._fold()
        return self._folded.select(range(len(self._schema)))

    def _fold(self) -> None:
        pending = pa.Table.from_batches(self._loose, schema=self._marked)
        table = pa.concat_tables([self._folded, *self._parts, pending])
        keys = pa.chunked_array(map(self._codec.encode_array, table.to_batches()), pa.binary())
        rows = pa.table([keys, pa.array(np.arange(len(table)))], names=["key", "row"])
        kept = np.zeros(len(table), np.bool_)
        kept[rows.group_by("key", use_threads=False).aggregate([("row", "max")])["row_max"].to_numpy()] = True
        kept &= table.column(len(self._schema)).to_numpy()
        # Nothing is held longer than it is needed: there are never more than two tables of the rows.
        del keys, rows
        self._folded = table.filter(pa.array(kept))
        self._parts, self._loose, self._pending_bytes = [], [], 0
        del table, pending
        # The copy frees the messages that brought the rows.
        self._folded = self._folded.combine_chunks()


def _puts(batch: pa.RecordBatch) -> pa.Array:
    """Of each row, whether it is put, and not removed."""
    index = batch.schema.get_field_index(CHANGE_TYPE)
    if index < 0:
        return pa.repeat(pa.scalar(True), len(batch))
    kinds = batch.column(index)
    puts = pc.or_(pc.equal(kinds, INSERT), pc.equal(kinds, UPDATE_POSTIMAGE))
    removes = pc.or_(pc.equal(kinds, DELETE), pc.equal(kinds, UPDATE_PREIMAGE))
    if not pc.all(pc.or_(puts, removes), skip_nulls=False, min_count=0).as_py():
        raise DataCorrupted(
            f"a {CHANGE_TYPE} is none of {INSERT}, {UPDATE_PREIMAGE}, {UPDATE_POSTIMAGE}, {DELETE}"
        )
    return puts
