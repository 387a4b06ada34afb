"""Statistics of an image's blocks: of each column bounds of its cells, how many are null, and if some are NaN.

They stand in the image's index, under its checksum, as one Arrow record batch with a row for each block: of the column
number N of the image `lowN` and `highN`, of its type, `nullsN` and `flagsN`.

Bounds ignore null and NaN. Those of strings and octets take `_TEXT_BYTES_MAX` octets at most: a lower one is cut off,
and an upper one is cut off and rounded up, to the next string of that length. Where there is no greater one, as
behind U+10FFFF alone, the bound is not known, and a flag says so.

This module knows no files. The format is stored; see `scanner.storage.images.format`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scanner.data.block_ranges import Bounds, ColumnRanges

if TYPE_CHECKING:
    from collections.abc import Sequence

_TEXT_BYTES_MAX: Final = 64
_HAS_NAN: Final = 1
_HIGH_UNKNOWN: Final = 2
_SURROGATES: Final = range(0xD800, 0xE000)
_CODE_POINT_MAX: Final = 0x10FFFF


def statistics_schema(schema: pa.Schema) -> pa.Schema:
    """Of the statistics of an image with these columns."""
    fields: list[pa.Field] = []
    for number, field in enumerate(schema):
        fields += [pa.field(f"{name}{number}", field.type) for name in ("low", "high")]
        fields += [pa.field(f"nulls{number}", pa.uint32()), pa.field(f"flags{number}", pa.uint8())]
    return pa.schema(fields)


def block_statistics(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Work out those of one block.

    Args:
        rows: At least one.

    Returns:
        One row.
    """
    cells: list[pa.Array] = []
    for column in rows.columns:
        low, high, flags = _bounds(column)
        cells += [low, high, pa.array([column.null_count], pa.uint32()), pa.array([flags], pa.uint8())]
    return pa.RecordBatch.from_arrays(cells, schema=statistics_schema(rows.schema))


def encode_statistics(blocks: Sequence[pa.RecordBatch], schema: pa.Schema) -> bytes:
    """Those of all blocks, as they are stored.

    Args:
        blocks: What `block_statistics` made of each.
        schema: Of the image.
    """
    whole = statistics_schema(schema)
    batch = pa.concat_batches(blocks) if blocks else pa.RecordBatch.from_pylist([], schema=whole)
    return bytes(batch.serialize())


def decode_statistics(message: bytes, schema: pa.Schema) -> pa.RecordBatch:
    """Read them: a row for each block.

    Raises:
        ValueError: They are none of an image with these columns.
    """
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(message), statistics_schema(schema))
        batch.validate(full=True)
    except (pa.ArrowException, OSError, EOFError) as error:
        raise ValueError(str(error)) from error
    return batch


def column_ranges(
    statistics: pa.RecordBatch, schema: pa.Schema, rows: Sequence[int], field: pa.Field
) -> ColumnRanges:
    """What is known of one column.

    Args:
        statistics: Of all blocks.
        schema: Of the image.
        rows: How many each block has.
        field: The column; one that the image lacks is null in all rows.
    """
    number = schema.get_field_index(field.name)
    if number < 0:
        return ColumnRanges.all_null(field.type, len(rows))
    nulls = statistics.column(f"nulls{number}").to_numpy()
    flags = statistics.column(f"flags{number}").to_numpy()
    return ColumnRanges(
        low=Bounds(statistics.column(f"low{number}"), np.zeros(len(rows), np.bool_)),
        high=Bounds(statistics.column(f"high{number}"), (flags & _HIGH_UNKNOWN) > 0),
        nulls=nulls > 0,
        values=nulls < np.asarray(rows, np.int64),
        nans=(flags & _HAS_NAN) > 0,
    )


def _bounds(column: pa.Array) -> tuple[pa.Array, pa.Array, int]:
    """Lower and upper bound, each an array of one cell, and flags."""
    kind, flags = column.type, 0
    if pa.types.is_floating(kind):
        nan = pc.is_nan(column)
        if nan.true_count:
            column, flags = column.filter(pc.invert(nan)), _HAS_NAN
    found = pc.min_max(column)
    low, high = found["min"], found["max"]
    if low.is_valid and (pa.types.is_string(kind) or pa.types.is_binary(kind)):
        above = upper_bound(high.as_py())
        flags |= 0 if above is not None else _HIGH_UNKNOWN
        return pa.array([lower_bound(low.as_py())], kind), pa.array([above], kind), flags
    return pa.array([low], kind), pa.array([high], kind), flags


def lower_bound(value: str | bytes) -> str | bytes:
    """What is not greater, of bounded length."""
    if isinstance(value, bytes):
        return value[:_TEXT_BYTES_MAX]
    # No more characters than octets: the whole need not be encoded. A character that is cut through goes.
    return value[:_TEXT_BYTES_MAX].encode()[:_TEXT_BYTES_MAX].decode(errors="ignore")


def upper_bound(value: str | bytes) -> str | bytes | None:
    """What is not smaller, of bounded length; None: nothing of that length is."""
    cut = lower_bound(value)
    if cut == value:
        return value
    if isinstance(cut, str):
        while cut:
            following = ord(cut[-1]) + 1
            cut = cut[:-1]
            if following in _SURROGATES:
                following = _SURROGATES.stop
            if following <= _CODE_POINT_MAX:
                return cut + chr(following)
        return None
    kept = cut.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None
