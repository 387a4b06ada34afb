"""Rows cut into requests.

The server makes one commit, with its sync, for each bucket that a request touches. Of 8192 rows each of 64 buckets gets
128, and the commits cost more than the rows. So a request to write has more rows where a table has many buckets. No
bucket gets more of it than a request to a table of one bucket has: a bucket's share is written by one commit, which
holds up the server for as long as it takes.

Invariants:

1. The pieces of rows are the rows, in their order.
2. A piece has at most `REQUEST_ROWS_MAX` rows and about `REQUEST_BYTES_MAX` octets, or up to `SCALE_MAX` times as much
   of which no bucket gets more than that. One row may be larger.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import pyarrow as pa

from scanner.data.arrow_sizes import spelled_out_bytes
from scanner.data.keys import KeyCodec, buckets_of
from scanner.errors import KeyInvalid

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from scanner.client.arrow_input import ArrowRows
    from scanner.data.table import TableDescription

REQUEST_ROWS_MAX: Final = 8192
REQUEST_BYTES_MAX: Final = 1024 * 1024
SCALE_MAX: Final = 8
"""How many times as much a request may have that goes to many buckets."""
_BUCKETS_EACH: Final = 2
"""Of rows whose keys are spread evenly, a bucket gets half of what it may, so that few requests have to be cut."""


def request_scale(buckets: int) -> int:
    """How many times as much a request to write has, in a table of so many buckets."""
    return max(1, min(SCALE_MAX, buckets // _BUCKETS_EACH))


class Conform(Protocol):
    """`TableDescription.conform`, or `conform_keys`."""

    def __call__(self, batch: pa.RecordBatch, *, first_row: int = 0) -> pa.RecordBatch:
        """Check a batch, whose first row errors give that number, and cast it."""


def conformed(rows: ArrowRows, conform: Conform, scale: int = 1) -> Iterator[pa.RecordBatch]:
    """Rows as a table has them, in batches of the size of a request.

    Args:
        rows: Perhaps none; then their columns are looked at, too.
        conform: That of the table, for rows or for keys.
        scale: How many times as much a request may have.

    Raises:
        SchemaMismatch, KeyInvalid: They do not fit; a row has its number among all.
    """
    rows = _with_plain_nulls(rows)
    none = [pa.nulls(0, kind) for kind in rows.schema.types]  # Which there are of every type.
    conform(pa.RecordBatch.from_arrays(none, names=rows.schema.names))
    first_row = 0
    for piece in split_rows(rows, scale):
        yield conform(piece, first_row=first_row)
        first_row += piece.num_rows


class BucketShares:
    """Cuts a piece of rows where a bucket would get too much of it.

    Args:
        table: Which the rows fit.
    """

    def __init__(self, table: TableDescription) -> None:
        self._codec = KeyCodec(table)
        self._buckets = table.buckets

    def cut(self, piece: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The piece, in its order, in as few halves of halves as are needed.

        A key that cannot be stored is the server's to refuse: then the piece is cut as for one bucket.
        """
        size = _size(piece)
        if _fits_one_bucket(piece.num_rows, size):
            yield piece
            return
        numbers = np.zeros(piece.num_rows, np.uint32)
        with suppress(KeyInvalid):
            numbers = buckets_of(self._codec.encode_array(piece), self._buckets)
        yield from self._halve(piece, numbers, size / piece.num_rows)

    def _halve(
        self, piece: pa.RecordBatch, numbers: NDArray[np.uint32], row_bytes: float
    ) -> Iterator[pa.RecordBatch]:
        share = int(np.bincount(numbers).max())
        if len(numbers) == 1 or _fits_one_bucket(share, int(share * row_bytes)):
            yield piece
            return
        middle = len(numbers) // 2
        yield from self._halve(piece.slice(0, middle), numbers[:middle], row_bytes)
        yield from self._halve(piece.slice(middle), numbers[middle:], row_bytes)


def _fits_one_bucket(rows: int, size: int) -> bool:
    return rows <= REQUEST_ROWS_MAX and size <= REQUEST_BYTES_MAX


def _with_plain_nulls(rows: ArrowRows) -> ArrowRows:
    """The rows, with plain nulls where all the rows of a dictionary have no value.

    So pandas has a category of which a frame has no value; its type is anything. Arrow joins no dictionaries of nulls.
    """
    for index, kind in enumerate(rows.schema.types if rows.num_rows else ()):
        if not pa.types.is_dictionary(kind):
            continue
        column = rows.column(index)
        dictionaries = [chunk.dictionary for chunk in getattr(column, "chunks", [column])]
        if any(len(each) > each.null_count for each in dictionaries):
            continue
        with suppress(pa.ArrowInvalid):  # An index of no value, which is refused as such.
            column.validate(full=True)
            rows = rows.set_column(index, rows.schema.names[index], pa.nulls(len(column)))
    return rows


def joined(batches: Iterable[pa.RecordBatch], scale: int) -> Iterator[pa.RecordBatch]:
    """Adjacent batches as one, as far as a request may have as much: those of a scan have a few thousand rows each.

    Args:
        batches: Of one schema.
        scale: How many times as much a request may have; 1: they stay as they are.
    """
    if scale == 1:
        yield from batches
        return
    rows_max, bytes_max = scale * REQUEST_ROWS_MAX, scale * REQUEST_BYTES_MAX
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        more = _size(batch)
        if held and (rows + batch.num_rows > rows_max or size + more > bytes_max):
            yield from _as_one(held)
            held, rows, size = [], 0, 0
        held.append(batch)
        rows += batch.num_rows
        size += more
    yield from _as_one(held)


def split_rows(rows: ArrowRows, scale: int = 1) -> Iterator[pa.RecordBatch]:
    """Cut rows into batches of the size of a request, in order; views, no copies, unless chunks are small.

    Args:
        rows: Perhaps none.
        scale: How many times as much a request may have.
    """
    rows_max = scale * REQUEST_ROWS_MAX
    batches = [rows]
    if isinstance(rows, pa.Table):
        batches = rows.to_batches()
        if any(column.num_chunks > 1 + rows.num_rows // 1024 for column in rows.columns):
            batches = _as_one(batches)
    parts = (
        batch.slice(start, rows_max) for batch in batches for start in range(0, batch.num_rows, rows_max)
    )
    for batch in joined(parts, scale):
        yield from _halve(batch, scale * REQUEST_BYTES_MAX)


def _as_one(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Batches as one, if Arrow can join them: not dictionaries with more values than their type of index can count."""
    # Nor does it join an empty batch that a stream has cut from between rows.
    held = [batch for batch in batches if batch.num_rows]
    if len(held) < 2:
        return held
    try:
        table = pa.Table.from_batches(held).combine_chunks()
    except pa.ArrowException:
        return held
    together: list[pa.RecordBatch] = table.to_batches()
    return together


def _halve(batch: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    if batch.num_rows == 1 or _size(batch) <= bytes_max:
        yield batch
        return
    middle = batch.num_rows // 2
    yield from _halve(batch.slice(0, middle), bytes_max)
    yield from _halve(batch.slice(middle), bytes_max)


def _size(batch: pa.RecordBatch) -> int:
    """Octets as they are sent: a slice of a dictionary or of views has all the values of the whole."""
    return sum(map(spelled_out_bytes, batch.columns))
