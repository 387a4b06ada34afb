"""Stored rows: one row of a table as bytes, and many rows as Arrow columns.

A row is, little-endian and without padding:

    u16                schema id: which of the table's schemas it was written under
    (columns + 7) / 8  null bits, column 0 in the lowest bit; 1 is null
    fixed cells        in schema order: bool 1 byte, numbers and dates as Arrow has them, decimal 16; null is 0
    u32 each           lengths of the variable-width cells in schema order; null is 0
    bytes              the variable-width cells

Batches go through numpy and Arrow column by column; nothing here loops over rows in Python. To decode,
the joined rows are viewed as one Arrow binary array whose offsets are the row and cell boundaries, and
each column's cells are taken from it.

Invariants:

1. Encoding is canonical: equal rows under one schema are equal bytes. The digest of a scan relies on it.
2. A row outlives schema changes: columns may be added at the end if they are nullable, and a row written
   before is padded with nulls.
3. Stored bytes that are no row (wrong length, unknown schema, broken UTF-8) raise DataCorrupted; no
   length is trusted before it was checked against the bytes at hand.

This module knows no storage. The format is stored; golden values in the tests hold it in place.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scanner.data.octets import lengths_of
from scanner.data.row_block import BLOCK_BYTES_MAX, RowBlock, binary_view
from scanner.data.table import require_columns
from scanner.errors import DataCorrupted, SchemaMismatch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from scanner.data.keys import KeyCodec

ROW_BYTES_MAX = 64 * 1024 * 1024
"""A longer row is refused when it is encoded: a batch holds one row at least, and must fit a message."""

_SCHEMA_ID_BYTES = 2
_LENGTH = struct.Struct("<I")
_LENGTH_BYTES = _LENGTH.size
_TAKE_CHECKED = pc.TakeOptions(boundscheck=False)
"""For indices that are known to be in bounds."""


class RowCodec:
    """Encodes rows under one schema, decodes rows of that and older ones. Any thread may use it.

    Args:
        schema: The table's current schema, of stored types (`scanner.data.table.stored_type`).
        schema_id: Its number, 0 to 65535; written into every row.
        history: Older schemas by their number, each a prefix of the current one.
    """

    def __init__(
        self, schema: pa.Schema, schema_id: int = 0, history: Mapping[int, pa.Schema] | None = None
    ) -> None:
        self.schema = schema
        """What `encode_batch` takes and `decode` gives."""
        self.schema_id = schema_id
        """Number of `schema`."""
        self.older_schemas = tuple((history or {}).values())
        """Those that the table had before, oldest first."""
        self._schemas = {**(history or {}), schema_id: schema}
        self._layout = _Layout(schema_id, schema)
        self._layouts = {schema_id: self._layout}
        """Of the schemas whose rows were read; a wide table that got many columns would take much memory for all."""

    def encode_batch(self, batch: pa.RecordBatch) -> list[bytes]:
        """Encode rows.

        Args:
            batch: Has exactly the columns of `schema`, in order (`TableDescription.conform`).

        Raises:
            SchemaMismatch: it has others, or a row takes more than ROW_BYTES_MAX.
        """
        if len(batch) > 1 and batch.nbytes + len(batch) * self._layout.head_bytes > BLOCK_BYTES_MAX // 2:
            half = len(batch) // 2
            return self.encode_batch(batch.slice(0, half)) + self.encode_batch(batch.slice(half))
        rows: list[bytes] = self.encode_array(batch).to_pylist()
        return rows

    def encode_array(self, batch: pa.RecordBatch) -> pa.Array:
        """`encode_batch` as a binary array, without an object for each row.

        Args:
            batch: As there; its rows take less than 1 GiB as stored.
        """
        if batch.schema.types != self.schema.types or batch.schema.names != self.schema.names:
            raise SchemaMismatch("the batch does not have the columns of the table, in order")
        if not len(batch):
            return pa.array([], pa.binary())
        rows = _encode(batch, self._layout)
        longest = int(lengths_of(rows).max())
        if longest > ROW_BYTES_MAX:
            raise SchemaMismatch(f"a row takes {longest} bytes; at most {ROW_BYTES_MAX} are allowed")
        return rows

    def decode(self, rows: Sequence[bytes], columns: Sequence[str] = ()) -> pa.RecordBatch:
        """Decode stored rows; see `decode_block`."""
        return self.decode_block(RowBlock.join(rows), columns)

    def decode_block(self, block: RowBlock, columns: Sequence[str] = ()) -> pa.RecordBatch:
        """Decode a block of stored rows.

        Args:
            block: The rows; it is not retained.
            columns: Names of the wanted columns, in the wanted order; none of them means all.

        Returns:
            One record batch, a row for a row, in their order.

        Raises:
            ColumnNotFound: the table has no such column.
            DataCorrupted: some row is not one of this table.
        """
        require_columns(self.schema, columns)
        wanted = [self.schema.field(name) for name in columns] if columns else list(self.schema)
        if not len(block):
            return pa.RecordBatch.from_arrays(
                [pa.nulls(0, field.type) for field in wanted], schema=pa.schema(wanted)
            )
        schema_id = int.from_bytes(block.bytes(0, 1)[:_SCHEMA_ID_BYTES], "little")
        layout = self._layout_of(schema_id) if schema_id in self._schemas else None
        if layout is not None and (matrix := _heads(block, layout)) is not None:
            return _decode(block, layout, matrix, wanted)
        numbers, schemas = np.unique(_schema_ids(block), return_inverse=True)
        layouts = [self._layout_of(int(number)) for number in numbers]
        return _MixedRows(block, layouts, schemas).decode(wanted)

    def cells(self, row: bytes, columns: Sequence[str]) -> list[bytes]:
        """The stored bytes of cells of one row: for a single row far quicker than `decode`.

        Args:
            row: As stored.
            columns: Names of columns that cannot be null, of every schema that the table ever had.

        Raises:
            DataCorrupted: the row is not one of this table.
        """
        layout = self._layout_of(int.from_bytes(row[:_SCHEMA_ID_BYTES], "little"))
        position, bounds = layout.head_bytes, [layout.head_bytes]
        if position <= len(row):
            for (length,) in _LENGTH.iter_unpack(row[layout.lengths_at : position]):
                position += length
                bounds.append(position)
        if position != len(row):
            raise DataCorrupted(
                f"a stored row of schema {layout.schema_id} has {len(row)} bytes; its cells need {position}"
            )
        return [_cell(row, layout.columns[name], bounds) for name in columns]

    def _layout_of(self, schema_id: int) -> _Layout:
        if schema_id not in self._schemas:
            raise DataCorrupted(f"a row has schema {schema_id}; the table has {sorted(self._schemas)}")
        layout = self._layouts.get(schema_id)
        if layout is None:
            layout = self._layouts[schema_id] = _Layout(schema_id, self._schemas[schema_id])
        return layout


def keys_of_rows(rows: Sequence[bytes], row_codec: RowCodec, key_codec: KeyCodec) -> list[bytes]:
    """Work out the encoded primary keys of stored rows.

    Raises:
        DataCorrupted: some row is not one of this table.
    """
    names = key_codec.schema.names
    if len(rows) == 1:
        return [key_codec.encode_stored(row_codec.cells(rows[0], names))]
    return key_codec.encode_batch(row_codec.decode(rows, names))


@dataclass(frozen=True, slots=True)
class _Column:
    index: int
    """Position in the schema, which is that of the null bit."""
    field: pa.Field
    offset: int
    """Of a fixed cell: its byte in the row. Of a variable one: its number among the variable ones."""
    width: int
    """Bytes of a fixed cell; 0 for a variable one."""


class _Layout:
    """Where the cells of a row are, under one schema."""

    def __init__(self, schema_id: int, schema: pa.Schema) -> None:
        self.schema_id = schema_id
        position = _SCHEMA_ID_BYTES + (len(schema) + 7) // 8
        self.cells_at = position
        self.columns: dict[str, _Column] = {}
        variable = 0
        for index, field in enumerate(schema):
            width = _fixed_width(field.type)
            self.columns[field.name] = _Column(index, field, position if width else variable, width)
            position += width
            variable += not width
        self.lengths_at = position
        self.variable_count = variable
        self.head_bytes = position + _LENGTH_BYTES * variable
        """Everything before the variable-width bytes."""


def _cell(row: bytes, column: _Column, bounds: Sequence[int]) -> bytes:
    at, bit = divmod(column.index, 8)
    if row[_SCHEMA_ID_BYTES + at] >> bit & 1:
        raise _null_found(column)
    if column.width:
        return row[column.offset : column.offset + column.width]
    return row[bounds[column.offset] : bounds[column.offset + 1]]


def _null_found(column: _Column) -> DataCorrupted:
    return DataCorrupted(f"a stored row has a null in column {column.field.name!r}, which cannot be null")


def _fixed_width(data_type: pa.DataType) -> int:
    if pa.types.is_string(data_type) or pa.types.is_binary(data_type):
        return 0
    return 1 if pa.types.is_boolean(data_type) else int(data_type.bit_width) // 8


def _encode(batch: pa.RecordBatch, layout: _Layout) -> pa.Array:
    count = len(batch)
    matrix = np.zeros((count, layout.head_bytes), np.uint8)
    matrix[:, :_SCHEMA_ID_BYTES] = np.frombuffer(
        layout.schema_id.to_bytes(_SCHEMA_ID_BYTES, "little"), np.uint8
    )
    variable = []
    for column, cells in zip(layout.columns.values(), batch.columns, strict=True):
        nulls = _null_mask(cells)
        if nulls is not None:
            matrix[:, _SCHEMA_ID_BYTES + column.index // 8] |= nulls << (column.index % 8)
        if column.width:
            at, raw = column.offset, _fixed_cells(cells, column.width)
            # What lies under a null is whatever the writer left there: blank it, the encoding is canonical.
            matrix[:, at : at + column.width] = raw if nulls is None else np.where(nulls[:, None], 0, raw)
        else:
            at = layout.lengths_at + _LENGTH_BYTES * column.offset
            lengths = pc.binary_length(cells).fill_null(0).to_numpy(zero_copy_only=False).astype("<u4")
            matrix[:, at : at + _LENGTH_BYTES] = lengths.view(np.uint8).reshape(count, _LENGTH_BYTES)
            variable.append(cells.cast(pa.binary()))
    starts = np.arange(0, matrix.nbytes + 1, layout.head_bytes, dtype=np.int32)
    heads = binary_view(matrix, starts)
    if not variable:
        return heads
    empty = pa.scalar(b"", pa.binary())
    return pc.binary_join_element_wise(heads, *variable, empty, null_handling="replace", null_replacement="")


def _null_mask(cells: pa.Array) -> NDArray[np.uint8] | None:
    if not cells.null_count:
        return None
    return np.asarray(cells.is_null().to_numpy(zero_copy_only=False)).view(np.uint8)


def _fixed_cells(cells: pa.Array, width: int) -> NDArray[np.uint8]:
    """The cells as a count x width matrix of bytes; what is under nulls is arbitrary."""
    count = len(cells)
    if pa.types.is_boolean(cells.type):
        bits = np.frombuffer(cells.buffers()[1], np.uint8)
        return np.unpackbits(bits, bitorder="little")[cells.offset : cells.offset + count].reshape(count, 1)
    raw = np.frombuffer(cells.buffers()[1], np.uint8)
    return raw[cells.offset * width : (cells.offset + count) * width].reshape(count, width)


def _schema_ids(block: RowBlock) -> NDArray[Any]:
    starts, lengths = block.starts[:-1], np.diff(block.starts)
    if int(lengths.min()) < _SCHEMA_ID_BYTES:
        raise DataCorrupted(f"a stored row has {int(lengths.min())} bytes, too few for a schema id")
    raw = np.frombuffer(block.buffer, np.uint8)
    return raw[starts].astype(np.uint16) | (raw[starts + 1].astype(np.uint16) << 8)


def _decode(
    block: RowBlock, layout: _Layout, matrix: NDArray[np.uint8], wanted: list[pa.Field]
) -> pa.RecordBatch:
    count = len(block)
    bounds = _variable_bounds(block, layout, matrix)
    null_bytes = matrix[:, _SCHEMA_ID_BYTES : _SCHEMA_ID_BYTES + (len(layout.columns) + 7) // 8]
    null_bytes_seen = np.bitwise_or.reduce(null_bytes, axis=0)
    cells = binary_view(block.buffer, bounds) if layout.variable_count else None
    arrays = []
    for field in wanted:
        column = layout.columns.get(field.name)
        if column is None:
            arrays.append(pa.nulls(count, field.type))
            continue
        validity = None
        at, bit = divmod(column.index, 8)
        if null_bytes_seen[at] >> bit & 1:
            if not field.nullable:
                raise _null_found(column)
            validity = pa.py_buffer(np.packbits((null_bytes[:, at] >> bit & 1) ^ 1, bitorder="little"))
        if column.width:
            arrays.append(_decode_fixed(matrix, column, validity))
        else:
            arrays.append(_decode_variable(cells, layout.variable_count + 1, column, count, validity))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(wanted))


def _heads(block: RowBlock, layout: _Layout) -> NDArray[np.uint8] | None:
    """The heads of all rows, one below the other; None: some row is shorter, or of another schema."""
    count, width, starts = len(block), layout.head_bytes, block.starts
    if int((starts[1:] - starts[:-1]).min()) < width:
        return None
    if block.nbytes == count * width:
        raw = np.frombuffer(block.buffer, np.uint8)
        matrix = raw[int(starts[0]) : int(starts[-1])].reshape(count, width)
    else:
        matrix = _items(block, width)[starts[:-1]].view(np.uint8).reshape(count, width)
    ids: NDArray[np.uint16] = np.ndarray(count, "<u2", matrix, 0, matrix.strides[:1])
    return matrix if (ids == layout.schema_id).all() else None


def _variable_bounds(block: RowBlock, layout: _Layout, matrix: NDArray[np.uint8]) -> NDArray[np.int32]:
    """Offsets of [cell, cell, ..., the next row's head] per row, checked against the row's length."""
    count, variable, starts = len(block), layout.variable_count, block.starts
    strides = (layout.head_bytes, _LENGTH_BYTES)
    lengths: NDArray[np.uint32] = np.ndarray((count, variable), "<u4", matrix, layout.lengths_at, strides)
    cells_at = starts[:-1] + layout.head_bytes
    ends = cells_at.copy()
    for index in range(variable):
        ends += lengths[:, index]
    _require_ends(block, ends)
    # From here on no sum is larger than the buffer, so 32 bits are enough.
    bounds = np.empty(count * (variable + 1) + 1, np.int32)
    bounds[-1] = starts[-1]
    by_row = bounds[:-1].reshape(count, variable + 1)
    by_row[:, 0] = cells_at
    for index in range(variable):
        np.add(by_row[:, index], lengths[:, index], out=by_row[:, index + 1], casting="unsafe")
    return bounds


def _require_ends(block: RowBlock, ends: NDArray[np.int64]) -> None:
    """See that each row ends where its cells do."""
    starts = block.starts
    if not np.array_equal(ends, starts[1:]):
        row = int(np.flatnonzero(ends != starts[1:])[0])
        raise DataCorrupted(
            f"stored row {row} of a block has {int(starts[row + 1] - starts[row])} bytes,"
            f" but its cells add up to {int(ends[row] - starts[row])}"
        )


def _decode_fixed(matrix: NDArray[np.uint8], column: _Column, validity: pa.Buffer | None) -> pa.Array:
    # As opaque items, not as bytes: to copy an item at a time is eight times as fast.
    items = np.ndarray(len(matrix), f"V{column.width}", matrix, column.offset, matrix.strides[:1])
    return _fixed_array(items.copy().view(np.uint8), column.field, validity)


def _fixed_array(cells: NDArray[np.uint8], field: pa.Field, validity: pa.Buffer | None) -> pa.Array:
    """The cells of a column of fixed width, from their bytes, which it keeps."""
    count = len(cells) // _fixed_width(field.type)
    if pa.types.is_boolean(field.type):
        if int(cells.max()) > 1:
            raise DataCorrupted(f"a stored row has byte {int(cells.max())} in the bool column {field.name!r}")
        cells = np.packbits(cells, bitorder="little")
    return pa.Array.from_buffers(field.type, count, [validity, pa.py_buffer(cells)])


def _decode_variable(
    cells: pa.Array, per_row: int, column: _Column, count: int, validity: pa.Buffer | None
) -> pa.Array:
    """The cells of a column of variable width: one of every `per_row`, from that of the column's number on."""
    indices = np.arange(column.offset, count * per_row, per_row, dtype=np.int32)
    at = pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(indices)])
    _, offsets, data = pc.call_function("take", [cells, at], _TAKE_CHECKED).buffers()
    values = pa.Array.from_buffers(column.field.type, count, [validity, offsets, data])
    if pa.types.is_string(column.field.type):
        try:
            values.validate(full=True)
        except pa.ArrowInvalid as error:
            raise DataCorrupted(f"column {column.field.name!r} of a stored row is not UTF-8") from error
    return values


class _MixedRows:
    """Rows of several schemas, decoded column by column: schema by schema it takes as many times as long.

    Each schema is a prefix of those with more columns. So the cells of a column are as far behind the null bits as in
    the widest schema, and where rows are in the order of their columns, those that have a column come first.

    Args:
        block: The rows.
        layouts: Of their schemas.
        schemas: Of each row, which of these.

    Raises:
        DataCorrupted: Some row is shorter than it must be.
    """

    def __init__(self, block: RowBlock, layouts: Sequence[_Layout], schemas: NDArray[np.intp]) -> None:
        self._block = block
        self._widest = widest = max(layouts, key=lambda layout: len(layout.columns))
        columns = -np.array([len(layout.columns) for layout in layouts], np.int16)[schemas]
        heads = np.array([layout.head_bytes for layout in layouts])[schemas]
        sizes = np.diff(block.starts)
        if (short := np.flatnonzero(sizes < heads)).size:
            row = short[0]
            raise DataCorrupted(
                f"a stored row of schema {layouts[schemas[row]].schema_id} has {sizes[row]} bytes;"
                f" it needs {heads[row]}"
            )
        self._order = order = np.argsort(columns, kind="stable")
        """The rows, those with the most columns first. What follows is of these."""
        self._having = np.searchsorted(columns[order], -np.arange(len(widest.columns)))
        """By column, how many rows have it."""
        self._starts = starts = block.starts[:-1][order]
        schemas = schemas[order]
        self._shifted = starts + np.array([layout.cells_at - widest.cells_at for layout in layouts])[schemas]
        """Where each row would start if it had as many null bits as the widest."""
        self._lengths_at = starts + np.array([layout.lengths_at for layout in layouts])[schemas]
        self._cells_at = starts + heads[order]

    def decode(self, wanted: Sequence[pa.Field]) -> pa.RecordBatch:
        """Decode some of the columns.

        Raises:
            DataCorrupted: Some row is not one of the table.
        """
        count = len(self._block)
        variable = self._variable_cells({field.name for field in wanted})
        arrays = []
        for field in wanted:
            column = self._widest.columns.get(field.name)
            if column is None:
                arrays.append(pa.nulls(count, field.type))
                continue
            validity = self._validity(column)
            if column.width:
                at = self._shifted[: self._having[column.index]] + column.offset
                values = self._by_row(_items(self._block, column.width)[at])
                arrays.append(_fixed_array(values.view(np.uint8), field, validity))
            else:
                cells = binary_view(self._block.buffer, self._bounds(*variable[field.name]))
                arrays.append(_decode_variable(cells, 2, replace(column, offset=0), count, validity))
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(wanted))

    def _by_row(self, values: NDArray[Any]) -> NDArray[Any]:
        """What the first rows of the order have, for each row of the block; 0 of others."""
        found = np.zeros(len(self._block), values.dtype)
        found[self._order[: len(values)]] = values
        return found

    def _validity(self, column: _Column) -> pa.Buffer | None:
        having = self._having[column.index]
        at, bit = divmod(column.index, 8)
        octets = np.frombuffer(self._block.buffer, np.uint8)[self._starts[:having] + (_SCHEMA_ID_BYTES + at)]
        valid = (octets >> bit & 1) ^ 1
        if valid.all():
            if having == len(self._block):
                return None
        elif not column.field.nullable:
            raise _null_found(column)
        return pa.py_buffer(np.packbits(self._by_row(valid), bitorder="little"))

    def _variable_cells(
        self, wanted: Container[str]
    ) -> dict[str, tuple[NDArray[np.int64], NDArray[np.uint32]]]:
        """By column, where the cells begin and how long they are, checked against the rows' lengths."""
        found = {}
        ends, lengths_at = self._cells_at.copy(), self._lengths_at
        items = _items(self._block, _LENGTH_BYTES)
        for column in self._widest.columns.values():
            if column.width:
                continue
            having = self._having[column.index]
            at = lengths_at[:having] + _LENGTH_BYTES * column.offset
            lengths = items[at].view("<u4")
            if column.field.name in wanted:
                found[column.field.name] = ends[:having].copy(), lengths
            ends[:having] += lengths
        _require_ends(self._block, self._by_row(ends))
        return found

    def _bounds(self, begins: NDArray[np.int64], lengths: NDArray[np.uint32]) -> NDArray[np.int32]:
        """Offsets of [cell, what is behind it] per row. A row that lacks the cell has an empty one at its end."""
        row_ends, rows = self._block.starts[1:], self._order[: len(begins)]
        bounds = np.empty(2 * len(self._block) + 1, np.int32)
        bounds[:-1] = np.repeat(row_ends, 2)
        bounds[-1] = row_ends[-1]
        bounds[2 * rows] = begins
        bounds[2 * rows + 1] = begins + lengths
        return bounds


def _items(block: RowBlock, width: int) -> NDArray[Any]:
    """One opaque item of so many bytes at every byte: indexing then copies whole items."""
    return np.ndarray(len(block.buffer) - width + 1, f"V{width}", block.buffer, strides=(1,))
