"""Write requests as bytes of a peer that may be hostile, and how their rows find their buckets."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.data.arrow_sizes import decoded_bytes
from scanner.data.keys import KeyCodec, bucket_of
from scanner.data.rows import RowCodec
from scanner.data.table import TableDescription
from scanner.errors import ArgumentInvalid, ScannerError
from scanner.proto.weir.v1 import tables_pb2 as pb
from scanner.server.tables import writes
from scanner.server.tables.writes import (
    WriteCall,
    conform_request,
    encode_mutations,
    read_arrow_stream,
    route,
)
from scanner.storage.interface import Mutation
from scanner.wire.arrow_ipc import encode_stream
from tests.support.scans import description, filled_store, sample

TABLE = description()
STORE = filled_store(0)
STREAM = encode_stream(sample(range(40)))


def conform(stream: bytes) -> pa.RecordBatch:
    """Take an upsert of a stream."""
    request = pb.WriteRequest(table="items", operation=pb.WriteRequest.OPERATION_UPSERT, arrow_stream=stream)
    return conform_request(
        WriteCall.parse(request.SerializeToString()), TABLE, rows_max=1000, bytes_max=1 << 20
    )


@given(st.lists(st.tuples(st.integers(0, len(STREAM) - 1), st.integers(0, 255)), min_size=1, max_size=6))
def test_damaged_streams_are_read_or_refused_by_type(damage: list[tuple[int, int]]) -> None:
    """Whatever bytes change, rows come out that can be encoded, or one typed error."""
    damaged = bytearray(STREAM)
    for position, byte in damage:
        damaged[position] = byte
    try:
        batch = conform(bytes(damaged))
    except ScannerError:
        return
    assert batch.schema == TABLE.schema
    STORE.row_codec("items").encode_batch(batch)


def test_cut_streams_are_refused_by_type() -> None:
    """A stream may lack its end mark, of eight octets, and nothing else."""
    unmarked = len(STREAM) - 8
    assert conform(STREAM[:unmarked]).equals(sample(range(40)))
    for length in {*range(len(STREAM))} - {unmarked}:
        with pytest.raises(ArgumentInvalid):
            conform(STREAM[:length])


@given(st.binary(max_size=200))
def test_random_bytes_are_no_stream(data: bytes) -> None:
    """Garbage is an argument error."""
    with pytest.raises(ArgumentInvalid):
        read_arrow_stream(data, rows_max=1000, bytes_max=1 << 20)


@pytest.mark.parametrize("behind", [STREAM, STREAM[-9:], b"\0\0\1"], ids=["a stream", "its end", "something"])
def test_nothing_behind_the_end_of_a_stream_is_passed_over(behind: bytes) -> None:
    """Rows that nobody would read are not acknowledged: what follows the end is an argument error, but for padding."""
    with pytest.raises(ArgumentInvalid, match=f"{len(behind)} octets follow its end"):
        conform(STREAM + behind)
    assert conform(STREAM + bytes(100)).equals(conform(STREAM))


@pytest.mark.parametrize("closings", [1, 3])
def test_a_writer_that_was_closed_twice(closings: int) -> None:
    """By hand and by its `with`: each closing writes an end mark, behind which there may be padding, and no rows."""
    sink, rows = pa.BufferOutputStream(), sample(range(40))
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write(rows)
        for _ in range(closings):
            writer.close()
    stream = sink.getvalue().to_pybytes()
    for whole in (stream, stream + bytes(100)):
        assert conform(whole).equals(rows)
    with pytest.raises(ArgumentInvalid, match="octets follow its end"):
        conform(stream + STREAM)


@pytest.mark.parametrize("text", [b"name", b"zone"])
def test_a_stream_with_text_that_is_none_is_the_peer_s_argument(text: bytes) -> None:
    """A column's name or time zone that is not UTF-8 is an argument error."""
    rows = pa.RecordBatch.from_arrays([pa.array([1], pa.timestamp("us", "zone"))], names=["name"])
    damaged = encode_stream(rows).replace(text, b"\xff" + text[1:])
    with pytest.raises(ArgumentInvalid, match="utf-8"):
        read_arrow_stream(damaged, rows_max=1000, bytes_max=1 << 20)


def test_rows_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a write takes of the server's memory, and whether that is allowed, is one look at its messages."""
    looks = []

    def look(stream: bytes) -> tuple[int, int]:
        looks.append(len(stream))
        return decoded_bytes(stream)

    monkeypatch.setattr(writes, "decoded_bytes", look)
    call = WriteCall("items", pb.WriteRequest.OPERATION_UPSERT, STREAM)
    assert call.decoded_bytes == len(STREAM)
    assert conform_request(call, TABLE, rows_max=1000, bytes_max=1 << 20).num_rows == 40
    assert looks == [len(STREAM)]


@given(st.integers(1, 50), st.integers(1, 7), st.booleans())
def test_slices_and_buckets_keep_the_row_order(slice_rows: int, buckets: int, delete: bool) -> None:
    """However it is sliced, every row reaches the bucket of its key, in row order."""
    batch = sample(range(40))
    key_codec, row_codec = STORE.key_codec("items"), STORE.row_codec("items")
    routed: dict[int, list[Mutation]] = {}
    for mutations in encode_mutations(
        batch,
        delete=delete,
        key_codec=key_codec,
        row_codec=row_codec,
        slice_rows=slice_rows,
        row_bytes_max=1_000,
    ):
        assert len(mutations) <= slice_rows
        for bucket, part in route(mutations, buckets):
            routed.setdefault(bucket, []).extend(part)

    keys, rows = key_codec.encode_batch(batch), row_codec.encode_batch(batch)
    for bucket in range(buckets):
        assert routed.get(bucket, []) == [
            Mutation(key, None if delete else row)
            for key, row in zip(keys, rows, strict=True)
            if bucket_of(key, buckets) == bucket
        ]


def test_wide_rows_are_encoded_in_smaller_slices() -> None:
    """What takes time is cells: 8192 rows of a thousand columns would hold everything else up."""
    columns = [pa.array(range(3000)), *[pa.array([True, None, False] * 1000)] * 999]
    names = [f"c{index}" for index in range(1000)]
    batch = pa.record_batch(columns, names)
    wide = TableDescription("wide", batch.schema, ("c0",), 1)
    batch = wide.conform(batch)
    found = list(
        encode_mutations(
            batch,
            delete=False,
            key_codec=KeyCodec(wide),
            row_codec=RowCodec(wide.schema),
            slice_rows=8192,
            row_bytes_max=10_000,
        )
    )
    assert max(map(len, found)) * 1000 <= 8192 * 64
    assert [row for part in found for row in part.rows.to_pylist()] == RowCodec(wide.schema).encode_batch(
        batch
    )
