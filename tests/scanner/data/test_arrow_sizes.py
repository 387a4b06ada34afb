"""What a peer's Arrow data is going to take is known before it takes it, and too much is refused."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.data.arrow_sizes import decoded_bytes, spelled_out_bytes
from scanner.data.table import TableDescription
from scanner.errors import ArgumentInvalid
from scanner.server.tables.writes import read_arrow_stream
from scanner.wire.arrow_ipc import decode_schema

CODECS = (None, "lz4", "zstd")
TEXTS = st.lists(st.none() | st.text(max_size=30), max_size=20)
TABLE = TableDescription(
    "t", pa.schema([pa.field("k", pa.int32(), nullable=False), ("s", pa.string())]), ("k",), 1
)
MIB = 1 << 20


def stream_of(batch: pa.RecordBatch, codec: str | None = None, *, times: int = 1) -> bytes:
    """An IPC stream with the batch in it, so many times."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        for _ in range(times):
            writer.write_batch(batch)
    stream: bytes = sink.getvalue().to_pybytes()
    return stream


def keyed(column: pa.Array) -> pa.RecordBatch:
    """Rows of the table with this column of texts."""
    return pa.record_batch([pa.array(range(len(column)), pa.int32()), column], names=["k", "s"])


def naming_one(stream: bytes, vector: int) -> bytes:
    """The stream, with every entry of a vector of its schema naming one and the same table."""
    octets = bytearray(stream)

    def referred(at: int) -> int:
        return at + int(struct.unpack_from("<I", octets, at)[0])

    def field(table: int, number: int) -> int:
        fields = table - int(struct.unpack_from("<i", octets, table)[0])
        return table + int(struct.unpack_from("<H", octets, fields + 4 + 2 * number)[0])

    entries = referred(field(referred(field(referred(8), 2)), vector))
    (count,) = struct.unpack_from("<I", octets, entries)
    places = range(entries + 4, entries + 4 + 4 * count, 4)
    last = max(map(referred, places))
    for at in places:
        struct.pack_into("<I", octets, at, last - at)
    return bytes(octets)


@pytest.mark.parametrize("vector", [pytest.param(1, id="fields"), pytest.param(2, id="metadata")])
def test_a_schema_that_names_one_thing_many_times_is_refused(vector: int) -> None:
    """A few kilobytes would become gigabytes: Arrow copies what is named each time that it is."""
    long = "x" * 20_000
    names = [long if vector == 1 and not index else str(index) for index in range(1_000)]
    batch = pa.record_batch([pa.array([1], pa.int8())] * len(names), names=names)
    metadata = {str(index): "" if index else long for index in range(1_000)}
    if vector == 2:
        batch = keyed(pa.array(["a"])).replace_schema_metadata(metadata)
    stream = stream_of(batch)
    assert read_arrow_stream(stream, rows_max=1000, bytes_max=MIB).schema.metadata == batch.schema.metadata
    hostile = naming_one(stream, vector)
    with pytest.raises(ArgumentInvalid, match="names and metadata of its columns take too much"):
        read_arrow_stream(hostile, rows_max=1000, bytes_max=MIB)
    with pytest.raises(ArgumentInvalid, match="names and metadata of its columns take too much"):
        decode_schema(hostile)


def test_a_stream_of_too_many_messages_is_refused() -> None:
    """Each costs something before it is known that it is too many; a stream of some batches is told their number."""
    stream = stream_of(keyed(pa.array(["a"])).slice(0, 0), times=9_998)
    with pytest.raises(ArgumentInvalid, match="must hold one record batch with columns, and holds 9998"):
        read_arrow_stream(stream, rows_max=1000, bytes_max=MIB)
    stream = stream_of(keyed(pa.array(["a"])).slice(0, 0), times=9_999)
    with pytest.raises(ArgumentInvalid, match="it has 10000 messages or more; one record batch and its"):
        read_arrow_stream(stream, rows_max=1000, bytes_max=MIB)


def test_the_widest_rows_with_what_pandas_says_of_them_are_read() -> None:
    """4096 columns with names as long as they may be."""
    names = [f"{index:0512}" for index in range(4096)]
    arrays = [pa.array([1], pa.int8())] * len(names)
    of_pandas = pa.table(arrays, names=names).to_pandas()
    batch = pa.RecordBatch.from_pandas(of_pandas, preserve_index=False)
    assert read_arrow_stream(stream_of(batch), rows_max=1000, bytes_max=MIB).equals(batch)
    assert decode_schema(stream_of(batch)).metadata == batch.schema.metadata


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize("said_in", ["record batch", "custom metadata"])
def test_a_body_compressed_under_metadata_v4_is_refused(codec: str, said_in: str) -> None:
    """Arrow would read the compressed octets as values, or decompress what nobody measured."""
    batch = pa.record_batch({"k": pa.array([123456789], pa.int64())})
    in_batch = said_in == "record batch"
    options = pa.ipc.IpcWriteOptions(
        compression=codec if in_batch else None, metadata_version=pa.ipc.MetadataVersion.V4
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        said = None if in_batch else {"ARROW:experimental_compression": codec}
        writer.write_batch(batch, custom_metadata=said)
    with pytest.raises(ArgumentInvalid, match="compressed under metadata version V4"):
        read_arrow_stream(sink.getvalue(), rows_max=1000, bytes_max=MIB)


def test_metadata_v4_without_compression_is_read() -> None:
    """What older writers send by default keeps its values."""
    batch = pa.record_batch({"k": pa.array([123456789], pa.int64())})
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    assert read_arrow_stream(sink.getvalue(), rows_max=1000, bytes_max=MIB).equals(batch)


@given(texts=TEXTS, codec=st.sampled_from(CODECS), encoded=st.booleans())
def test_bodies_are_measured_as_they_become(
    texts: list[str | None], codec: str | None, encoded: bool
) -> None:
    """The sum of the decompressed buffers, dictionaries included, to within their padding."""
    column = pa.array(texts * 50, pa.string())
    batch = pa.record_batch([column.dictionary_encode() if encoded else column], names=["s"])
    stream = stream_of(batch, codec)
    batches, size = decoded_bytes(stream)
    read = read_arrow_stream(stream, rows_max=1000, bytes_max=MIB)
    (column,) = read.columns
    parts = [column.indices, column.dictionary] if encoded else [column]
    buffers = [buffer.size for part in parts for buffer in part.buffers() if buffer is not None]
    assert batches == 1
    assert sum(buffers) <= size + 64
    assert size <= sum(each + 64 for each in buffers) + 64


@given(
    texts=TEXTS,
    kind=st.sampled_from(
        [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
    ),
    skipped=st.integers(0, 5),
)
def test_cells_are_measured_as_they_are_spelled_out(
    texts: list[str | None], kind: pa.DataType, skipped: int
) -> None:
    """No less than the texts take, of whatever encoding, out of a slice too."""
    encoded = pa.array(texts, pa.string())
    encoded = encoded.dictionary_encode() if pa.types.is_dictionary(kind) else encoded.cast(kind)
    column = encoded.slice(min(skipped, len(texts)))
    texts_bytes = sum(len(text.encode()) for text in texts[skipped:] if text is not None)
    assert texts_bytes <= spelled_out_bytes(column) <= texts_bytes + 64 + 16 * len(texts)


@pytest.mark.parametrize("value", [b"x" * 99, 7, None], ids=["fixed", "number", "null"])
def test_other_dictionaries_are_measured(value: object) -> None:
    """Values of a fixed width count as often as they are named, and nulls for nothing."""
    kind = pa.binary(99) if isinstance(value, bytes) else pa.int64()
    column = pa.DictionaryArray.from_arrays(pa.array([0, 0, None], pa.int8()), pa.array([value], kind))
    assert spelled_out_bytes(column) == 2 * (kind.bit_width // 8)


def test_values_of_a_dictionary_that_no_row_names_take_nothing() -> None:
    """A few octets say that there are 2^40 of them, and nothing is made of each."""
    values = pa.Array.from_buffers(pa.binary(0), 2**40, [None, pa.py_buffer(b"")])
    column = pa.DictionaryArray.from_arrays(pa.array([5, None], pa.int8()), values)
    assert spelled_out_bytes(column) == 0


@pytest.mark.parametrize(
    ("given", "stored", "width"),
    [
        (pa.null(), pa.int64(), 8),
        (pa.int8(), pa.int64(), 8),
        (pa.dictionary(pa.int8(), pa.int8()), pa.int64(), 8),
        (pa.null(), pa.string(), 4),
    ],
    ids=str,
)
def test_cells_count_as_they_are_stored(given: pa.DataType, stored: pa.DataType, width: int) -> None:
    """Nulls are written in next to no octets, and take as much memory as values."""
    schema = pa.schema([pa.field("k", pa.int8(), nullable=False), ("a", stored), ("b", stored)])
    table = TableDescription("t", schema, ("k",), 1)
    nulls = pa.nulls(100_000, given)
    batch = pa.record_batch([pa.array(bytes(100_000), pa.int8()), nulls, nulls], names=["k", "a", "b"])
    size = 100_000 * (1 + 2 * width)
    assert table.conform(batch, size).num_rows == 100_000
    with pytest.raises(ArgumentInvalid, match=f"take {size} bytes once they are decoded"):
        table.conform(batch, size - 1)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_compressed_bomb_is_refused_packed(codec: str) -> None:
    """Hundreds of kilobytes that would become a hundred megabytes are never decompressed."""
    stream = stream_of(keyed(pa.array(["x" * 100_000] * 1000)), codec)
    assert len(stream) < MIB
    before = pa.total_allocated_bytes()
    with pytest.raises(
        ArgumentInvalid, match=r"take 100\d+ bytes once they are decoded, and 1048576 are allowed"
    ):
        read_arrow_stream(stream, rows_max=1000, bytes_max=MIB)
    assert pa.total_allocated_bytes() - before < MIB


@pytest.mark.parametrize("kind", ["dictionary", "view"])
def test_one_value_named_many_times_is_refused(kind: str) -> None:
    """A column of one long text, named by every row, is not spelled out."""
    text = "x" * 100_000
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int8()), pa.array([text]))
    if kind == "view":
        once = pa.array([text], pa.string_view())
        view, data = once.buffers()[1:]
        column = pa.Array.from_buffers(
            pa.string_view(), 1000, [None, pa.py_buffer(view.to_pybytes() * 1000), data]
        )
    batch = read_arrow_stream(stream_of(keyed(column)), rows_max=1000, bytes_max=MIB)
    assert TABLE.conform(keyed(column.slice(0, 5)), MIB).num_rows == 5
    with pytest.raises(ArgumentInvalid, match="are allowed; send them in parts"):
        TABLE.conform(batch, MIB)


@pytest.mark.parametrize("odd", [b"", b"odd", bytes(20)])
def test_octets_behind_the_heads_of_views_count_for_nothing(odd: bytes) -> None:
    """However many they are."""
    heads = pa.py_buffer(pa.array(["", "a", "bcd"], pa.string_view()).buffers()[1].to_pybytes() + odd)
    column = pa.Array.from_buffers(pa.string_view(), 2, [None, heads], offset=1)
    column.validate(full=True)
    assert spelled_out_bytes(column) == 4


def test_values_that_no_row_names_are_not_spelled_out() -> None:
    """A dictionary of views, each of one long text: of a hundred megabytes, one row names a hundred kilobytes."""
    once = pa.array(["x" * 100_000], pa.string_view())
    view, data = once.buffers()[1:]
    views = pa.Array.from_buffers(
        pa.string_view(), 1000, [None, pa.py_buffer(view.to_pybytes() * 1000), data]
    )
    batch = keyed(pa.DictionaryArray.from_arrays(pa.array([None, 999, 0], pa.int16()), views))
    usual = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(pool)
    try:
        texts = TABLE.conform(batch, MIB)["s"].to_pylist()  # Nothing of the pool may outlive it.
    finally:
        pa.set_memory_pool(usual)
    assert texts == [None, "x" * 100_000, "x" * 100_000]
    assert pool.max_memory() < 4 * MIB


def test_only_one_batch_is_ever_decoded() -> None:
    """A stream of thousands is counted, not decoded."""
    with pytest.raises(ArgumentInvalid, match="holds 5000"):
        read_arrow_stream(stream_of(keyed(pa.array(["a"])), times=5000), rows_max=1000, bytes_max=MIB)


@given(damage=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), min_size=1, max_size=6))
def test_damaged_compressed_streams_are_read_or_refused_by_type(damage: list[tuple[int, int]]) -> None:
    """Whatever bytes change, it is a batch or one typed error."""
    damaged = bytearray(stream_of(keyed(pa.array([f"text {number}" for number in range(100)])), "zstd"))
    for position, byte in damage:
        damaged[position % len(damaged)] = byte
    try:
        assert read_arrow_stream(bytes(damaged), rows_max=1000, bytes_max=MIB).num_rows <= 1000
    except ArgumentInvalid:
        return
