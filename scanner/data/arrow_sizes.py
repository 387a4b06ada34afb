"""How much memory a peer's Arrow data is going to take, worked out before it takes it.

A message of bounded size can ask for far more: by compressed bodies, whose buffers say in front how long they become,
and by encodings that name one value many times, dictionaries and views, which are spelled out when they are cast.

Sources: Arrow's `Message.fbs` (RecordBatch.buffers, BodyCompression), of which is read here what pyarrow has read and
verified, but does not tell.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scanner.data.arrow_metadata import Table, metadata_of, require_small_metadata
from scanner.errors import ArgumentInvalid

if TYPE_CHECKING:
    from typing_extensions import Buffer

_MESSAGE_HEADER, _DICTIONARY_DATA = 2, 1
_BATCH_BUFFERS, _BATCH_COMPRESSION = 2, 3
_I64 = struct.Struct("<q")
_BUFFER = struct.Struct("<qq")
_FOOTER_DICTIONARIES, _FOOTER_BATCHES = 2, 3
_BLOCK = struct.Struct("<qi4xq")
"""Of a file's footer: where a message is, the bytes of its metadata, those of its body."""
_FILE_END = struct.Struct("<i6s")
"""Bytes of the footer in front of it, and the magic."""
_EXPERIMENTAL_COMPRESSION = b"ARROW:experimental_compression"
"""In the metadata of a V4 message, where Arrow 0.17 said how its body is compressed."""
_AS_IT_IS = -1
"""In front of a buffer of a compressed body that was not worth compressing."""
_MESSAGES_MAX = 10_000
"""Of a stream: one batch, and two dictionaries of each column that a table can have."""
_VIEW_BYTES = 16
_OFFSET_BYTES = 4
_END_MARKS = re.compile(rb"(?:\xff{4}\0{4})*+")
"""At the start of what follows an end. A writer that is closed twice, by hand and by its `with`, writes two."""


def require_size(size: int, bytes_max: int) -> None:
    """Refuse what would take too much.

    Raises:
        ArgumentInvalid: It would.
    """
    if size > bytes_max:
        raise ArgumentInvalid(
            f"the rows take {size} bytes once they are decoded, and {bytes_max} are allowed; send them in parts"
        )


def decoded_bytes(stream: Buffer) -> tuple[int, int]:
    """Measure an IPC stream without decoding it.

    Returns:
        The record batches, and the bytes of all bodies once they are decompressed.

    Raises:
        pa.ArrowException, OSError, ValueError: It is no such stream, something stands behind its end, a body is
            compressed under metadata V4, metadata take too much, or there are too many messages.
    """
    batches = total = 0
    octets, source = memoryview(stream).cast("B"), pa.BufferReader(pa.py_buffer(stream))
    for message in _messages(octets, source):
        batches += message.type == "record batch"
        if message.body is not None:
            total += _decoded_body_bytes(message)
    rest = octets[source.tell() :]
    behind = _END_MARKS.sub(b"", rest, count=1)
    if np.frombuffer(behind, np.uint8).any():  # Another stream, say, that nobody would read.
        raise ValueError(f"{len(rest)} octets follow its end; one stream is read, and no other behind it")
    return batches, total


def require_plain_batch(message: Buffer) -> None:
    """Refuse a record batch that becomes larger than it is when it is read: one whose body is compressed.

    Args:
        message: In its encapsulation.

    Raises:
        ValueError: It is one, or no record batch.
    """
    metadata = bytes(metadata_of(memoryview(message).cast("B")))
    try:
        compressed = Table.root(metadata).table(_MESSAGE_HEADER).position(_BATCH_COMPRESSION) is not None
    except (struct.error, LookupError) as error:
        raise ValueError(f"the metadata of a message cannot be read: {error}") from error
    if compressed or _EXPERIMENTAL_COMPRESSION in metadata:
        raise ValueError("its body is compressed")


def _messages(octets: memoryview, source: pa.BufferReader) -> Iterator[pa.ipc.Message]:
    """The messages of a stream; the metadata of each are looked at before Arrow reads it."""
    reader = pa.ipc.MessageReader.open_stream(source)
    for _ in range(_MESSAGES_MAX):
        require_small_metadata(octets[source.tell() :])
        try:
            message = reader.read_next_message()
        except StopIteration:
            return
        yield message
    raise ValueError(
        f"it has {_MESSAGES_MAX} messages or more; one record batch and its dictionaries are read"
    )


def require_readable_file(file: Buffer) -> None:
    """Refuse an IPC file whose values pyarrow would not read as they were written.

    Args:
        file: All of one that pyarrow opens; of its bodies next to nothing is read.

    Raises:
        pa.ArrowException, OSError, ValueError: A body is compressed under metadata V4, or a message cannot be read.
    """
    whole = pa.py_buffer(file)
    footer_end = whole.size - _FILE_END.size
    footer_bytes, _ = _FILE_END.unpack_from(whole, footer_end)
    encoded = bytes(memoryview(whole)[footer_end - footer_bytes : footer_end])
    footer = Table.root(encoded)
    for blocks in (_FOOTER_DICTIONARIES, _FOOTER_BATCHES):
        if footer.position(blocks) is None:
            continue
        for at, metadata_bytes, body_bytes in footer.structs(blocks, _BLOCK):
            _decoded_body_bytes(_message_at(whole, at, metadata_bytes + body_bytes))


def _message_at(file: pa.Buffer, at: int, size: int) -> pa.ipc.Message:
    """The message that a footer names, wherever that is.

    Raises:
        pa.ArrowException, OSError, ValueError: There is none.
    """
    try:
        return pa.ipc.read_message(file.slice(at, size))
    except (LookupError, EOFError, OverflowError) as error:
        raise ValueError(f"there is no message at octet {at}, which its footer names: {error}") from error


def _decoded_body_bytes(message: pa.ipc.Message) -> int:
    body, metadata = memoryview(message.body), bytes(message.metadata)
    try:
        batch = Table.root(metadata).table(_MESSAGE_HEADER)
        if message.type == "dictionary":
            batch = batch.table(_DICTIONARY_DATA)
        compressed = batch.position(_BATCH_COMPRESSION) is not None
        if message.metadata_version < pa.ipc.MetadataVersion.V5:
            _require_uncompressed(compressed or _EXPERIMENTAL_COMPRESSION in metadata)
        if not compressed:
            return len(body)
        return sum(
            _decoded_buffer_bytes(body, at, size) for at, size in batch.structs(_BATCH_BUFFERS, _BUFFER)
        )
    except (struct.error, LookupError) as error:
        raise ValueError(f"the metadata of a {message.type} cannot be read: {error}") from error


def _require_uncompressed(compressed: bool) -> None:
    """Refuse a compressed body under metadata V4: pyarrow writes such, and reads the compressed octets as values."""
    if compressed:
        raise ValueError("a body is compressed under metadata version V4; write it with V5, or uncompressed")


def _decoded_buffer_bytes(body: memoryview, at: int, size: int) -> int:
    if not size:
        return 0
    decoded: int = _I64.unpack_from(body, at)[0]
    return size if decoded == _AS_IT_IS else max(0, decoded)


def spelled_out_bytes(column: pa.Array) -> int:
    """What the cells of a column take when each is written out, validity and offsets aside.

    Args:
        column: Fully validated, and of a type that can be written (`scanner.data.exact_casts.require_castable`).
    """
    if pa.types.is_dictionary(column.type):
        return _named_bytes(column.dictionary, column.indices)
    if is_view(column.type):
        return _sum(_lengths(column))
    return int(column.nbytes)


def stored_bytes_min(rows: int, kind: pa.DataType) -> int:
    """What cells of a type that is stored take at least, nulls as well: their width, or where they begin."""
    return rows * (_OFFSET_BYTES if (width := _width_of(kind)) is None else width)


def _named_bytes(values: pa.Array, indices: pa.Array) -> int:
    """What the values that indices name take; of others there may be far more."""
    width = _width_of(values.type)
    if width is None:
        return _sum(_lengths(values).take(indices))
    return width * (len(indices) - int(indices.null_count))


def _width_of(kind: pa.DataType) -> int | None:
    """Bytes of each value; None: they are of no one width."""
    try:
        return -(-int(kind.bit_width) // 8)
    except ValueError:
        return None


def _sum(lengths: pa.Array) -> int:
    return int(pc.sum(lengths, min_count=0).as_py())


def _lengths(column: pa.Array) -> pa.Array:
    """Bytes of each cell of strings or octets; null or 0 of a null."""
    if not is_view(column.type):
        return pc.binary_length(column)
    words, end = _VIEW_BYTES // 4, column.offset + len(column)
    heads = np.frombuffer(column.buffers()[1], np.int32, count=end * words).reshape(end, words)
    lengths = heads[column.offset :, 0].astype(np.int64)
    return pa.array(np.where(column.is_valid().to_numpy(zero_copy_only=False), lengths, 0))


def is_view(kind: pa.DataType) -> bool:
    """Whether cells are views: heads that point into octets, of which several may be the same."""
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))
