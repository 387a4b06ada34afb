"""Arrow on the wire: what fits, what is copied, and what is refused."""

from __future__ import annotations

import pyarrow as pa
import pytest

from scanner.data.digest import checksum
from scanner.errors import ArgumentInvalid, DataCorrupted
from scanner.wire.arrow_ipc import (
    batch_size_bytes,
    decode_batch,
    decode_schema,
    encode_batch,
    encode_schema,
    fitting_rows,
    verify_payload,
)
from scanner.wire.batches import RowBatch, decode_scan_response, encode_row_batch
from tests.support.scans import SCHEMA, sample


def test_as_many_rows_as_fit_are_taken() -> None:
    """All of them, one less where their message is an octet too long, and one though it is longer."""
    batch = sample(range(20))
    sizes = [batch_size_bytes(batch.slice(0, count)) for count in range(21)]
    assert fitting_rows(batch, sizes[20], 100) == (20, sizes[20])
    assert fitting_rows(batch, sizes[20], 7) == (7, sizes[7])
    fewer = max(count for count in range(20) if sizes[count] < sizes[20])
    assert fitting_rows(batch, sizes[20] - 1, 100) == (fewer, sizes[fewer])
    assert fitting_rows(batch, 1, 100) == (1, sizes[1])


def test_arrow_round_trips_without_copying() -> None:
    """A batch and its schema come back equal, and the batch's buffers lie in the message."""
    batch = sample(range(100))
    payload = encode_batch(batch)
    message = pa.py_buffer(b"".join(encode_row_batch(0, 100, checksum(payload), payload)))

    received = decode_scan_response(message)
    assert isinstance(received, RowBatch)
    verify_payload(received.payload, received.crc32c)
    decoded = decode_batch(received.payload, decode_schema(encode_schema(SCHEMA)))

    assert decoded.equals(batch)
    assert message.address <= decoded.column(0).buffers()[1].address < message.address + message.size
    assert batch_size_bytes(batch) == payload.size


def test_a_changed_payload_is_found() -> None:
    """A payload that does not match its checksum raises DataCorrupted, which names both sums."""
    with pytest.raises(DataCorrupted, match="0x00000001"):
        verify_payload(b"abc", 1)


@pytest.mark.parametrize("text", [b"name", b"zone"])
@pytest.mark.parametrize("as_dictionary", [False, True])
def test_a_schema_with_text_that_is_none_is_the_peer_s_argument(text: bytes, *, as_dictionary: bool) -> None:
    """A name or a time zone that is not UTF-8 is refused where the schema comes in, not wherever it is used first."""
    zoned = pa.timestamp("us", "zone")
    schema = pa.schema([pa.field("name", pa.dictionary(pa.int8(), zoned) if as_dictionary else zoned)])
    with pytest.raises(ArgumentInvalid, match="utf-8"):
        decode_schema(encode_schema(schema).replace(text, b"\xff" + text[1:]))


def test_bytes_that_are_not_arrow_raise() -> None:
    """Garbage for a schema is the peer's argument, garbage for a batch is corrupted data."""
    with pytest.raises(ArgumentInvalid):
        decode_schema(b"garbage")
    for payload in (b"garbage", b"", bytes(8), b"\xff\xff\xff\xff" + bytes(4)):
        with pytest.raises(DataCorrupted, match="not an Arrow IPC record batch"):
            decode_batch(payload, SCHEMA)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_rows_are_refused_packed(codec: str) -> None:
    """A server sends none; of some kilobytes Arrow makes whatever they say, before the rows can be counted."""
    schema = pa.schema([("text", pa.string())])
    batch = pa.record_batch([["\0" * 2_000_000]], schema=schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_batch(batch)
    _, message = pa.ipc.MessageReader.open_stream(sink.getvalue())
    payload = message.serialize()
    assert payload.size < 20_000
    with pytest.raises(DataCorrupted, match="compressed"):
        decode_batch(payload, schema)
    assert decode_batch(encode_batch(batch), schema).equals(batch)
