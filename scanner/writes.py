"""Write requests: hostile bytes in, mutations per bucket out.

This module knows no transport and no task; the caller encodes slice by slice, so that no request holds up others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from scanner.arrow_bounds import decoded_bytes, require_size
from scanner.errors import ArgumentInvalid
from scanner.keys import KeyCodec, bucket_of
from scanner.proto.weir.v1 import tables_pb2 as pb
from scanner.storage.interface import Mutation

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from scanner.rows import RowCodec
    from scanner.table import TableDescription


def read_arrow_stream(stream: Buffer, rows_max: int, bytes_max: int) -> pa.RecordBatch:
    """Read the one batch of an Arrow IPC stream.

    Args:
        stream: From the peer. The batch is a view of it, and its contents are not yet validated.
        rows_max: Rows allowed.
        bytes_max: Bytes allowed once it is decompressed; nothing is before that is known.

    Raises:
        ArgumentInvalid: It is no such stream, holds another number of batches than one, or too many rows or bytes.
    """
    try:
        count, size = decoded_bytes(stream)
        require_size(size, bytes_max)
        with pa.ipc.open_stream(pa.py_buffer(stream)) as reader:
            # What looks at the messages alone counts a batch without columns, too.
            batch = reader.read_next_batch() if count == 1 and reader.schema.names else None
    except (pa.ArrowException, OSError, ValueError, KeyError, StopIteration) as error:
        raise ArgumentInvalid(f"arrow_stream is not an Arrow IPC stream: {error}") from error
    if batch is None:
        raise ArgumentInvalid(f"arrow_stream must hold one record batch with columns, and holds {count}")
    if batch.num_rows > rows_max:
        raise ArgumentInvalid(
            f"arrow_stream holds {batch.num_rows} rows, and {rows_max} are allowed; write them in parts"
        )
    return batch


def conform_request(
    request: pb.WriteRequest, table: TableDescription, rows_max: int, bytes_max: int
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
    batch = read_arrow_stream(request.arrow_stream, rows_max, bytes_max)
    if request.operation == pb.WriteRequest.OPERATION_DELETE:
        return table.conform_keys(batch, bytes_max)
    return table.conform(batch, bytes_max)


def encode_mutations(
    batch: pa.RecordBatch, *, delete: bool, key_codec: KeyCodec, row_codec: RowCodec, slice_rows: int
) -> Iterator[list[Mutation]]:
    """Encode a batch, one slice at a time.

    Args:
        batch: From `conform_request`.
        delete: The batch holds keys to be deleted, not rows.
        key_codec: Of the table.
        row_codec: Of the table.
        slice_rows: Rows encoded in one go, above 0; 2000 take some milliseconds.

    Yields:
        The mutations of the next slice, in row order.

    Raises:
        KeyInvalid: A key is too long.
        SchemaMismatch: A row cannot be stored.
    """
    for start in range(0, batch.num_rows, slice_rows):
        part = batch.slice(start, slice_rows)
        keys = key_codec.encode_batch(part)
        if delete:
            yield [Mutation(key, None) for key in keys]
        else:
            yield [Mutation(key, row) for key, row in zip(keys, row_codec.encode_batch(part), strict=True)]


def route(mutations: list[Mutation], buckets: int, routed: dict[int, list[Mutation]]) -> None:
    """Add mutations to the lists of their buckets, in order."""
    if buckets == 1:
        routed.setdefault(0, []).extend(mutations)
        return
    for mutation in mutations:
        routed.setdefault(bucket_of(mutation.key, buckets), []).append(mutation)
