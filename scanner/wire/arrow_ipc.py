"""Arrow on the wire: schemas, batches and streams as IPC messages, their lengths and their checksums.

A function on bytes from a peer raises one exception, which its docstring names. This module knows no transport, no
storage and no tables.
"""

from __future__ import annotations

import bisect
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import pyarrow as pa

from scanner.data.arrow_metadata import require_small_metadata
from scanner.data.arrow_sizes import decoded_bytes, require_plain_batch
from scanner.data.digest import checksum
from scanner.errors import ArgumentInvalid, DataCorrupted

if TYPE_CHECKING:
    from typing_extensions import Buffer


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Rows as they go out: made once, sent any number of times."""

    payload: pa.Buffer
    """Arrow IPC record batch message."""
    crc32c: int
    """Of the payload."""


def verify_payload(payload: Buffer, crc32c: int) -> None:
    """Compare a payload with the checksum that came with it.

    Raises:
        DataCorrupted: They differ: the bytes were changed on their way.
    """
    found = checksum(payload)
    if found != crc32c:
        raise DataCorrupted(f"a batch's checksum is {found:#010x}, but the server sent {crc32c:#010x}")


class _HasChecksum(Protocol):
    """A request that may say which checksum its octets have."""

    crc32c: int

    def HasField(self, field_name: Literal["crc32c"]) -> bool:
        """Whether it does."""


def require_unchanged(octets: Buffer, request: _HasChecksum) -> None:
    """Compare what a request brings with the checksum that came with it, if one did.

    Raises:
        ArgumentInvalid: They differ: the octets were changed on their way.
    """
    if request.HasField("crc32c") and (found := checksum(octets)) != request.crc32c:
        raise ArgumentInvalid(
            "the request was changed on its way, and nothing was done: its rows or keys have the checksum"
            f" {found:#010x}, and the client sent {request.crc32c:#010x}; the network damages what it carries, which"
            " TLS would find"
        )


def encode_schema(schema: pa.Schema) -> bytes:
    """A schema as an Arrow IPC message."""
    encoded: bytes = schema.serialize().to_pybytes()
    return encoded


def decode_schema(encoded: Buffer) -> pa.Schema:
    """Read a schema from an Arrow IPC message.

    Raises:
        ArgumentInvalid: The bytes are no such message.
    """
    try:
        require_small_metadata(encoded)
        schema = pa.ipc.read_schema(pa.py_buffer(encoded))
        require_text(schema)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ArgumentInvalid(f"the schema is not an Arrow IPC schema message: {error}") from error
    return schema


def require_text(schema: pa.Schema) -> None:
    """Check that names and time zones in a schema from the peer are UTF-8: Arrow does so only when they are used.

    Raises:
        UnicodeDecodeError: One is not.
    """
    for field in schema:
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        _ = field.name, pa.types.is_timestamp(kind) and kind.tz


def encode_batch(batch: pa.RecordBatch) -> pa.Buffer:
    """A batch as an Arrow IPC message, without its schema; dictionaries are not supported."""
    return batch.serialize()


def encode_rows(batch: pa.RecordBatch) -> EncodedRows:
    """A batch as `encode_batch` makes it, with its checksum."""
    payload = encode_batch(batch)
    return EncodedRows(payload, checksum(payload))


def encode_stream(batch: pa.RecordBatch) -> bytes:
    """A batch as an Arrow IPC stream: schema, batch, end."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded


def decode_stream(stream: Buffer, schema: pa.Schema) -> pa.Table:
    """Read an Arrow IPC stream of a schema that is known.

    Raises:
        DataCorrupted: The bytes are no such stream, with something behind it, of another schema, or compressed: that
            could take any room.
    """
    try:
        if decoded_bytes(stream)[1] > memoryview(stream).nbytes:
            raise DataCorrupted("rows are in a compressed Arrow IPC stream")
        with pa.ipc.open_stream(pa.py_buffer(stream)) as reader:
            if not reader.schema.equals(schema):
                raise DataCorrupted(f"rows have the columns {reader.schema}, not {schema}")
            table = reader.read_all()
            table.validate(full=True)
            return table
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataCorrupted(f"rows are not an Arrow IPC stream: {error}") from error


def decode_batch(payload: Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """Read a batch whose columns are views of `payload`.

    Raises:
        DataCorrupted: The bytes are no record batch of that schema, or a compressed one, which could take any room.
    """
    try:
        require_plain_batch(payload)
        return pa.ipc.read_record_batch(pa.py_buffer(payload), schema)
    except (pa.ArrowException, EOFError, OSError, ValueError) as error:
        raise DataCorrupted(f"a batch is not an Arrow IPC record batch of the schema: {error}") from error


def batch_size_bytes(batch: pa.RecordBatch) -> int:
    """Length of what `encode_batch` would return, without making it."""
    size: int = pa.ipc.get_record_batch_size(batch)
    return size


@functools.lru_cache(maxsize=256)
def envelope_size_bytes(schema: pa.Schema) -> int:
    """Length of what `encode_batch` returns for a batch without rows."""
    return batch_size_bytes(pa.RecordBatch.from_pylist([], schema))


def fitting_rows(rows: pa.RecordBatch, payload_bytes_max: int, rows_max: int) -> tuple[int, int]:
    """How many leading rows fit into both bounds, at least one, and the length of their Arrow IPC message.

    Args:
        rows: At least one.
        payload_bytes_max: Of the message, except that a single row may be larger.
        rows_max: Above 0.
    """
    most = min(rows.num_rows, rows_max)
    size = batch_size_bytes(rows.slice(0, most))
    if size <= payload_bytes_max or most == 1:
        return most, size
    # The size grows with the rows, if not by the same amount for each.
    fitting = bisect.bisect_right(
        range(1, most), payload_bytes_max, key=lambda count: batch_size_bytes(rows.slice(0, count))
    )
    count = max(fitting, 1)
    return count, batch_size_bytes(rows.slice(0, count))
