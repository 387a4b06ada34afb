"""Memcomparable keys: primary keys as bytes that sort like the values.

A key is the concatenation of its cells, each self-delimiting, so that a prefix of the key columns encodes
to a prefix of the key, and bytewise order of keys is the order of the tuples:

    bool                    one byte, 0 or 1
    int8 ... int64          big-endian, sign bit flipped
    date32, timestamp       as the integers that they are
    float32, float64        big-endian; negative: all bits flipped, else sign bit flipped. -0.0 is 0.0;
                            every NaN is one NaN, after infinity
    decimal128              16 bytes big-endian of the unscaled value, sign bit flipped
    string, binary          0x00 becomes 0x00 0xFF, then the end mark 0x00 0x01

The encoding is stored and must never change; golden values in the tests hold it in place.

This module knows no storage. It encodes whole batches column by column, never row by row in Python.
"""

from __future__ import annotations

import decimal
import math
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scanner.data.comparisons import exact_cell
from scanner.data.digest import checksum, checksums
from scanner.data.octets import lengths_of
from scanner.errors import ArgumentInvalid, DataCorrupted, KeyInvalid, SchemaMismatch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from scanner.data.table import TableDescription

KEY_BYTES_MAX = 64 * 1024
"""A longer encoded key is refused: keys are compared and copied often, and a token carries one."""

_CELL_BYTES_MAX = 16
"""Of a cell of fixed width, a decimal."""
_PLAIN_VALUES = {
    **dict.fromkeys((pa.int8(), pa.int16(), pa.int32(), pa.int64()), int),
    pa.bool_(): bool,
    pa.string(): str,
    pa.binary(): bytes,
}
"""The Python type of which every value is one of the column's, or refused by Arrow."""
_END = b"\x00\x01"
_ESCAPED = b"\x00\xff"


class KeyRange(NamedTuple):
    """The keys k with start <= k < end, bytewise."""

    start: bytes = b""
    """Inclusive; empty: from the first key."""
    end: bytes = b""
    """Exclusive; empty: to the last key."""


ALL_KEYS = KeyRange()
"""Every key there is."""


def bucket_of(key: bytes, buckets: int) -> int:
    """The bucket that a key belongs to, for ever: CRC-32C of the encoded key, modulo the bucket count."""
    return checksum(key) % buckets


def buckets_of(keys: pa.BinaryArray, buckets: int) -> NDArray[np.uint32]:
    """`bucket_of` of every key of a binary array without nulls."""
    return checksums(keys) % np.uint32(buckets)


def successor(key: bytes) -> bytes:
    """The smallest key that sorts after this one."""
    return key + b"\x00"


def prefix_end(prefix: bytes) -> bytes:
    """The exclusive end of the keys that start with a prefix; empty (open) if there is no such key."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else b""


def escaped(octets: bytes) -> bytes:
    """How the encoding of every string or binary cell begins that begins with these octets."""
    return octets.replace(b"\x00", _ESCAPED)


def key_cells(values: Sequence[object], field: pa.Field) -> pa.Array:
    """Cells of a key column, from Python values.

    Args:
        values: Each exactly one of the column's values: nothing is rounded, parsed or taken for UTC.
        field: The column.

    Raises:
        KeyInvalid: A value is None, of another kind, or none of the column's type.
    """
    if None in values:
        raise KeyInvalid(
            f"key column {field.name!r} is null in key {values.index(None)}; every key has a value for it"
        )
    try:
        if set(map(type, values)) == {_PLAIN_VALUES.get(field.type)}:
            return pa.array(values, field.type)  # Arrow takes these as they are, and far quicker.
        return pa.concat_arrays([exact_cell(value, field) for value in values] or [pa.array([], field.type)])
    except ArgumentInvalid as error:
        raise KeyInvalid(
            f"key column {field.name!r} of type {field.type} cannot hold this: {error}"
        ) from error
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise KeyInvalid(f"a value of key column {field.name!r} is no {field.type}: {error}") from error


class KeyCodec:
    """Encodes and decodes the primary keys of one table. Holds no state; any thread may use it.

    Args:
        description: The table.
    """

    def __init__(self, description: TableDescription) -> None:
        self.schema: pa.Schema = description.key_schema
        """The key columns, in key order."""
        self._cells = [_cell_of(field.type) for field in self.schema]
        widths = [_width_of(field.type) for field in self.schema]
        self.fixed_bytes = None if None in widths else sum(filter(None, widths))
        """Length of every key, where no key column is of variable width; else None."""

    def bytes_max(self, row_bytes: int) -> int:
        """A bound of the length of the key of a row that takes `row_bytes` bytes as stored."""
        if self.fixed_bytes is not None:
            return self.fixed_bytes
        # A cell is never longer than twice its stored bytes, all of them escaped, and its end mark or fixed width.
        return min(2 * row_bytes + _CELL_BYTES_MAX * len(self._cells), KEY_BYTES_MAX)

    def encode_batch(self, batch: pa.RecordBatch) -> list[bytes]:
        """Encode the keys of a batch.

        Args:
            batch: Has the key columns by name, with the table's types; other columns are ignored.

        Raises:
            KeyInvalid: a key column is missing or null in some row, or a key is longer than KEY_BYTES_MAX.
            SchemaMismatch: a key column has another type.
        """
        encoded: list[bytes] = self.encode_array(batch).to_pylist()
        return encoded

    def encode_array(self, batch: pa.RecordBatch) -> pa.Array:
        """`encode_batch` as a binary array, without an object for each key."""
        return self._encode(self._columns(batch))

    def encode(self, values: Sequence[object]) -> bytes:
        """Encode one key, or the first columns of one: a prefix that bounds a key range.

        Args:
            values: Python values, in key order; as many as there are key columns, or fewer.

        Raises:
            KeyInvalid: too many values, a null, or a value that does not fit its column.
        """
        if len(values) > len(self._cells):
            raise KeyInvalid(f"{len(values)} values for the {len(self._cells)} columns of the primary key")
        columns = [key_cells([value], field) for value, field in zip(values, self.schema, strict=False)]
        return bytes(self._encode(columns)[0].as_py()) if columns else b""

    def encode_cells(self, column: int, cells: pa.Array) -> list[bytes]:
        """Encode cells of one key column: what a key has at its place, and a prefix of keys if it is the first one.

        Args:
            column: Its place in the key, from 0.
            cells: Of the column's type, none of them null.
        """
        encoded: list[bytes] = self._cells[column].encode(cells).to_pylist()
        return encoded

    def encode_stored(self, cells: Sequence[bytes]) -> bytes:
        """Encode one key from its cells as they are stored (`RowCodec.cells`): far quicker than a batch of one.

        Args:
            cells: Little-endian, in key order; all of them.

        Raises:
            DataCorrupted: a cell is none of its column's type.
        """
        try:
            return b"".join(
                [cell.encode_stored(stored) for cell, stored in zip(self._cells, cells, strict=True)]
            )
        except ValueError as error:
            raise DataCorrupted(
                f"a key column of a stored row holds no value of its type: {error}"
            ) from error

    def decode(self, key: bytes) -> tuple[object, ...]:
        """The values of an encoded key, as Python objects; of a prefix, as many as it holds.

        Days and times that Python has none for, or whose time zone it does not know, are the integers that are stored.

        Raises:
            DataCorrupted: the bytes are not a key of this table.
        """
        values: list[object] = []
        position = 0
        try:
            for cell, field in zip(self._cells, self.schema, strict=True):
                if position == len(key):
                    break
                value, position = cell.decode(key, position, field.type)
                values.append(value)
        except (ValueError, IndexError, OverflowError) as error:
            raise DataCorrupted(f"{key.hex()} is not a key of this table: {error}") from error
        if position != len(key):
            raise DataCorrupted(f"{key.hex()} is longer than a key of this table")
        return tuple(values)

    def _columns(self, batch: pa.RecordBatch) -> list[pa.Array]:
        columns = []
        for field in self.schema:
            index = batch.schema.get_field_index(field.name)
            if index < 0:
                raise KeyInvalid(f"the batch lacks the primary key column {field.name!r}")
            columns.append(batch.column(index))
        return columns

    def _joined(self, columns: Sequence[pa.Array]) -> pa.Array:
        parts: list[pa.Array] = []
        for column, cell, field in zip(columns, self._cells, self.schema, strict=False):
            if column.null_count:
                row = pc.index(column.is_null(), True).as_py()
                raise KeyInvalid(f"primary key column {field.name!r} is null in row {row}")
            if column.type != field.type:
                raise SchemaMismatch(f"key column {field.name!r} is {column.type}, not {field.type}")
            parts.append(cell.encode(column))
        return (
            parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))
        )

    def _encode(self, columns: Sequence[pa.Array]) -> pa.Array:
        encoded = self._joined(columns)
        longest = int(lengths_of(encoded).max(initial=0))
        if longest > KEY_BYTES_MAX:
            raise KeyInvalid(f"a primary key takes {longest} bytes; at most {KEY_BYTES_MAX} are allowed")
        return encoded


class _Cell(NamedTuple):
    """How the cells of one column type become bytes and back."""

    encode: Callable[[pa.Array], pa.Array]
    """A column without nulls to a binary array of the same length."""
    decode: Callable[[bytes, int, pa.DataType], tuple[object, int]]
    """Key, position, type to the value there and the position after it."""
    encode_stored: Callable[[bytes], bytes]
    """One cell as it is stored to the same bytes that `encode` gives. Raises ValueError if it is none."""


def _width_of(data_type: pa.DataType) -> int | None:
    types = pa.types
    if types.is_string(data_type) or types.is_binary(data_type):
        return None
    return 1 if types.is_boolean(data_type) else int(data_type.bit_width) // 8


def _cell_of(data_type: pa.DataType) -> _Cell:
    types = pa.types
    if types.is_string(data_type):
        return _Cell(_encode_variable, _decode_variable, _stored_string)
    if types.is_binary(data_type):
        return _Cell(_encode_variable, _decode_variable, _stored_binary)
    if types.is_boolean(data_type):
        return _Cell(_encode_boolean, _decode_boolean, _stored_boolean)
    if types.is_floating(data_type):
        return _Cell(_encode_float, _decode_float, _stored_float)
    if types.is_decimal(data_type):
        return _Cell(_encode_decimal, _decode_decimal, _stored_integer)
    return _Cell(_encode_integer, _decode_integer, _stored_integer)


def _binary_of_matrix(matrix: NDArray[Any]) -> pa.Array:
    """Rows of a C-contiguous array, bytes as they lie, as a binary array."""
    count, width = len(matrix), matrix[:1].nbytes
    offsets = np.arange(0, (count + 1) * width, width or 1, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(matrix)])


def _integers_of(column: pa.Array) -> NDArray[Any]:
    width = column.type.bit_width
    return np.asarray(column.view(getattr(pa, f"int{width}")()).to_numpy(zero_copy_only=True))


def _unsigned(values: NDArray[Any]) -> NDArray[Any]:
    return values.view(np.dtype(f"u{values.itemsize}"))


def _sign(itemsize: int) -> Any:
    return np.dtype(f"u{itemsize}").type(1 << (8 * itemsize - 1))


def _big_endian(values: NDArray[Any]) -> pa.Array:
    return _binary_of_matrix(np.ascontiguousarray(values.astype(values.dtype.newbyteorder(">"))))


def _encode_integer(column: pa.Array) -> pa.Array:
    values = _unsigned(_integers_of(column))
    return _big_endian(values ^ _sign(values.itemsize))


def _stored_integer(stored: bytes) -> bytes:
    return bytes((stored[-1] ^ 0x80,)) + stored[-2::-1]


def _decode_integer(key: bytes, position: int, data_type: pa.DataType) -> tuple[object, int]:
    width = data_type.bit_width // 8
    raw = int.from_bytes(_cut(key, position, width), "big") - (1 << (8 * width - 1))
    integer = pa.scalar(raw, getattr(pa, f"int{8 * width}")())
    try:
        return integer.cast(data_type).as_py(), position + width
    except (ValueError, OverflowError, LookupError):  # Python has no such date, time or time zone.
        return raw, position + width


def _encode_float(column: pa.Array) -> pa.Array:
    # Adding zero turns -0.0 into 0.0; all NaNs, whatever their sign and payload, become the one of numpy.
    with np.errstate(invalid="ignore"):  # A signalling NaN would be warned of.
        values = np.asarray(column.to_numpy(zero_copy_only=True)) + column.type.to_pandas_dtype()(0)
    values[np.isnan(values)] = np.nan
    bits = _unsigned(values)
    sign = _sign(bits.itemsize)
    return _big_endian(np.where(bits & sign, ~bits, bits | sign))


def _stored_float(stored: bytes) -> bytes:
    form = "f" if len(stored) == 4 else "d"
    (value,) = struct.unpack("<" + form, stored)
    # As above: -0.0 is 0.0, and every NaN is one.
    bits = struct.pack(">" + form, value + 0.0 if value == value else math.nan)
    return bytes(octet ^ 0xFF for octet in bits) if bits[0] & 0x80 else bytes((bits[0] ^ 0x80,)) + bits[1:]


def _decode_float(key: bytes, position: int, data_type: pa.DataType) -> tuple[object, int]:
    width = data_type.bit_width // 8
    bits = int.from_bytes(_cut(key, position, width), "big")
    sign = 1 << (8 * width - 1)
    bits = bits ^ sign if bits & sign else ~bits & ((1 << 8 * width) - 1)
    value = np.frombuffer(bits.to_bytes(width, "little"), np.dtype(f"<f{width}"))[0]
    return float(value), position + width


def _encode_boolean(column: pa.Array) -> pa.Array:
    return _binary_of_matrix(np.asarray(column.to_numpy(zero_copy_only=False)).astype(np.uint8))


def _stored_boolean(stored: bytes) -> bytes:
    if stored > b"\x01":
        raise ValueError(f"byte {stored[0]} is no bool")
    return stored


def _decode_boolean(key: bytes, position: int, _: pa.DataType) -> tuple[object, int]:
    byte = _cut(key, position, 1)[0]
    if byte > 1:
        raise ValueError(f"byte {byte} is no bool")
    return bool(byte), position + 1


def _encode_decimal(column: pa.Array) -> pa.Array:
    start = 16 * column.offset
    little = np.frombuffer(column.buffers()[1], np.uint8)[start : start + 16 * len(column)].reshape(-1, 16)
    matrix = np.array(little[:, ::-1], order="C")  # A copy also of no cells: what Arrow holds is read-only.
    matrix[:, 0] ^= 0x80
    return _binary_of_matrix(matrix)


def _decode_decimal(key: bytes, position: int, data_type: pa.DataType) -> tuple[object, int]:
    unscaled = int.from_bytes(_cut(key, position, 16), "big") - (1 << 127)
    # Not by way of Arrow's scalar: Python is not given those whose scale is far above their digits.
    sign, digits, _ = decimal.Decimal(unscaled).as_tuple()
    return decimal.Decimal((sign, digits, -data_type.scale)), position + 16


def _encode_variable(column: pa.Array) -> pa.Array:
    cells = column.view(pa.binary())
    if pc.any(pc.match_substring(cells, b"\x00")).as_py():
        cells = pc.replace_substring(cells, pattern=b"\x00", replacement=_ESCAPED)
    return pc.binary_join_element_wise(cells, pa.scalar(_END, pa.binary()), pa.scalar(b"", pa.binary()))


def _stored_string(stored: bytes) -> bytes:
    stored.decode()  # Raises ValueError if it is not UTF-8.
    return _stored_binary(stored)


def _stored_binary(stored: bytes) -> bytes:
    return escaped(stored) + _END


def _decode_variable(key: bytes, position: int, data_type: pa.DataType) -> tuple[object, int]:
    end = key.index(0, position)
    while key[end + 1] == _ESCAPED[1]:
        end = key.index(0, end + 2)
    if key[end + 1] != _END[1]:
        raise ValueError(f"0x00 0x{key[end + 1]:02x} at byte {end} is neither an escape nor an end mark")
    raw = key[position:end].replace(_ESCAPED, b"\x00")
    return raw.decode() if pa.types.is_string(data_type) else raw, end + 2


def _cut(key: bytes, position: int, width: int) -> bytes:
    cell = key[position : position + width]
    if len(cell) < width:
        raise ValueError(f"the key ends inside a cell of {width} bytes at byte {position}")
    return cell
