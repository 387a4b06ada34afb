"""Write requests: hostile bytes in, mutations per bucket out.

This module knows no transport and no task; the caller encodes slice by slice, so that no request holds up others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from scanner.data.arrow_sizes import decoded_bytes, require_size
from scanner.data.digest import checksum
from scanner.data.keys import KeyCodec, buckets_of
from scanner.data.octets import lengths_of
from scanner.errors import ArgumentInvalid, SchemaMismatch
from scanner.proto.weir.v1 import tables_pb2 as pb
from scanner.storage.interface import Mutations
from scanner.storage.writers import SEQUENCE_MAX, WRITER_ID_BYTES, RequestNumber
from scanner.wire.arrow_ipc import require_text, require_unchanged
from scanner.wire.fields import require_few_fields
from scanner.wire.queries import meant_table_id, parse_request
from scanner.wire.seals import sealed_like

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from scanner.data.rows import RowCodec
    from scanner.data.table import TableDescription
    from scanner.wire.seals import Seal

_SLICE_CELLS_MAX: Final = 1 << 19
"""Cells of a write encoded in one go: some 15 ms. As many as 8192 rows of 64 columns have."""
_MUTATION_BYTES: Final = 200
"""Of a mutation beside what it writes: its Python objects while it is committed."""


def read_arrow_stream(
    stream: Buffer, rows_max: int, bytes_max: int, measured: tuple[int, int] | None = None
) -> pa.RecordBatch:
    """Read the one batch of an Arrow IPC stream.

    Args:
        stream: From the peer. The batch is a view of it, and its contents are not yet validated.
        rows_max: Rows allowed.
        bytes_max: Bytes allowed once it is decompressed; nothing is before that is known.
        measured: Its `decoded_bytes`; None: they are not known yet.

    Raises:
        ArgumentInvalid: It is no such stream, holds another number of batches than one, or too many rows or bytes.
    """
    try:
        count, size = measured or decoded_bytes(stream)
        require_size(size, bytes_max)
        with pa.ipc.open_stream(pa.py_buffer(stream)) as reader:
            require_text(reader.schema)
            # What looks at the messages alone counts a batch without columns, too.
            batch = reader.read_next_batch() if count == 1 and reader.schema.names else None
    except (pa.ArrowException, OSError, ValueError, KeyError, StopIteration) as error:
        raise ArgumentInvalid(f"arrow_stream is not an Arrow IPC stream: {error}") from error
    if batch is None:
        raise ArgumentInvalid(f"arrow_stream must hold one record batch with columns, and holds {count}")
    if batch.num_rows > rows_max:
        raise ArgumentInvalid(
            f"arrow_stream holds {batch.num_rows} rows, and {rows_max} are allowed; send them in parts"
        )
    return batch


@dataclass(frozen=True)
class WriteCall:
    """One request to write, without the message that it came in: that would be a second copy of all its rows."""

    table: str
    operation: int
    """Of the wire's WriteRequest.Operation."""
    arrow_stream: bytes
    table_id: int | None = None
    """The only table that is meant; None: whichever has the name."""
    number: RequestNumber | None = None
    """By which it is recognised if it comes again; None: it is not."""
    seal: Seal = bytes
    """Of its answer."""

    @classmethod
    def parse(cls, message: Buffer) -> WriteCall:
        """Read a request from the peer.

        Raises:
            ArgumentInvalid: The bytes are not that message, or too many fields, or its number is none, or its rows
                were changed on their way.
        """
        require_few_fields(message)
        request = parse_request(pb.WriteRequest, message)
        require_unchanged(request.arrow_stream, request)
        return cls(
            request.table,
            request.operation,
            request.arrow_stream,
            meant_table_id(request),
            _number_of(request),
            sealed_like(message),
        )

    @cached_property
    def measured(self) -> tuple[int, int] | None:
        """`decoded_bytes` of its rows; None: they cannot be read."""
        try:
            return decoded_bytes(self.arrow_stream)
        except (pa.ArrowException, OSError, ValueError):
            return None

    @property
    def decoded_bytes(self) -> int:
        """Octets that its rows take once they are decompressed, or those on the wire if that is more."""
        return max(len(self.arrow_stream), self.measured[1] if self.measured else 0)


def _number_of(request: pb.WriteRequest) -> RequestNumber | None:
    if not (request.writer_id or request.sequence):
        return None
    if len(request.writer_id) != WRITER_ID_BYTES:
        raise ArgumentInvalid(f"writer_id is {WRITER_ID_BYTES} octets, not {len(request.writer_id)}")
    if not 1 <= request.sequence <= SEQUENCE_MAX:
        raise ArgumentInvalid(f"sequence is a number from 1 to 2^63 - 1, not {request.sequence}")
    return RequestNumber(
        request.writer_id,
        request.sequence,
        checksum(request.arrow_stream, crc=request.operation & 0xFFFFFFFF),
    )


def mutations_bytes(mutations: Mutations) -> int:
    """Octets of mutations in memory, roughly, while they are committed."""
    return _MUTATION_BYTES * len(mutations) + int(mutations.keys.nbytes + mutations.rows.nbytes)


def conform_request(
    request: WriteCall, table: TableDescription, rows_max: int, bytes_max: int
) -> pa.RecordBatch:
    """Read a request's rows, or keys if it deletes, as the table has them.

    Args:
        request: From the peer.
        table: What it is to be written to.
        rows_max: Rows allowed.
        bytes_max: Bytes allowed, decompressed and with every cell spelled out.

    Raises:
        ArgumentInvalid: The request makes no sense.
        SchemaMismatch: Its columns do not fit the table.
        KeyInvalid: A key is null.
    """
    if request.operation not in (pb.WriteRequest.OPERATION_UPSERT, pb.WriteRequest.OPERATION_DELETE):
        raise ArgumentInvalid(f"a write is an upsert or a delete, not operation {request.operation}")
    batch = read_arrow_stream(request.arrow_stream, rows_max, bytes_max, request.measured)
    if request.operation == pb.WriteRequest.OPERATION_DELETE:
        return table.conform_keys(batch, bytes_max)
    return table.conform(batch, bytes_max)


def encode_mutations(
    batch: pa.RecordBatch,
    *,
    delete: bool,
    key_codec: KeyCodec,
    row_codec: RowCodec,
    slice_rows: int,
    row_bytes_max: int,
) -> Iterator[Mutations]:
    """Encode a batch, one slice at a time.

    Args:
        batch: From `conform_request`.
        delete: The batch holds keys to be deleted, not rows.
        key_codec: Of the table.
        row_codec: Of the table.
        slice_rows: Rows encoded in one go, above 0; of wide ones fewer. 8000 take some milliseconds.
        row_bytes_max: Stored octets of one row, its key included.

    Yields:
        The mutations of the next slice, in row order.

    Raises:
        KeyInvalid: A key is too long.
        SchemaMismatch: A row cannot be stored, or is too large.
    """
    slice_rows = max(1, min(slice_rows, _SLICE_CELLS_MAX // max(1, batch.num_columns)))
    for start in range(0, batch.num_rows, slice_rows):
        part = batch.slice(start, slice_rows)
        keys = key_codec.encode_array(part)
        if delete:
            yield Mutations(keys, pa.nulls(len(keys), pa.binary()))
            continue
        rows = row_codec.encode_array(part)
        sizes = lengths_of(keys) + lengths_of(rows)
        largest = int(sizes.argmax())
        if sizes[largest] > row_bytes_max:
            raise SchemaMismatch(
                f"row {start + largest} of the request takes {sizes[largest]} bytes, and {row_bytes_max} are allowed in"
                " one row; cut it into several"
            )
        yield Mutations(keys, rows)


def route(mutations: Mutations, buckets: int) -> Iterator[tuple[int, Mutations]]:
    """Mutations, one or more, by bucket, ascending; those of one bucket in their order."""
    if buckets == 1:
        yield 0, mutations
        return
    numbers = buckets_of(mutations.keys, buckets)
    if (numbers == numbers[0]).all():
        yield int(numbers[0]), mutations
        return
    ordered = mutations.take(np.argsort(numbers, kind="stable"))
    ends = np.cumsum(np.bincount(numbers, minlength=buckets)).tolist()
    for bucket, (start, end) in enumerate(pairwise([0, *ends])):
        if start < end:
            yield bucket, ordered[start:end]
