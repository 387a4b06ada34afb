"""Row batches on the wire: small protobuf fields in front, the Arrow payload behind, copied by neither end.

A `RowBatch` and a page carry their Arrow IPC message (`arrow_ipc`) as the last field. So the encoder returns two parts:
some 30 bytes and a resume token in front, and the payload as Arrow made it; the transport writes both with one system
call. The decoder walks the fields and returns the payload as a view of the received message. The answer to a fetch has
any number of batches, and twice as many parts.

Invariants:

1. The bytes are ordinary protobuf: any protobuf library reads what is written here, and what any
   library writes is read here, whatever the order of the fields.
2. A batch and a page are encoded as protobuf libraries encode them, octet for octet as long: a client that knows only
   the parsed message counts its credit by that message's size, and must get the size that the server counted.
3. The payload starts at a multiple of 8 bytes in the message, so that a receiver whose messages are aligned gets
   aligned Arrow buffers, which Arrow's execution engine asks for. The room is made with a field of padding. Where
   a fetched batch stands is known before its bucket's length is, because that length has four octets, whatever it
   is; protobuf.js would read a varint of six to nine octets as one of ten. A receiver must not rely on the
   alignment.
4. Bytes from a server raise one exception: `DataCorrupted`.

This module knows no transport, no storage and no tables.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from google.protobuf.message import DecodeError

from scanner.data.changes import ChangeRange
from scanner.errors import DataCorrupted
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.wire.fields import read_varint
from scanner.wire.seals import require_unbroken_answer

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from scanner.wire.arrow_ipc import EncodedRows

Parts: TypeAlias = tuple[bytes | memoryview, ...]
"""One message, in pieces that are to be sent one after another."""

_ALIGNMENT_BYTES = 8

# Tags: field number << 3 | wire type (0 varint, 1 fixed 64, 2 length-delimited, 5 fixed 32).
_RESPONSE_BATCH = b"\x12"
_PADDING = b"\x72"
_NO_PADDING = (1, 2)
"""Octets that no field of padding has."""
_PAYLOAD = b"\x7a"
_PAYLOAD_FIELD = 15
_FETCHED_BUCKET = b"\x12"
_FETCHED_BUCKET_FIELD = 2
_FETCHED_BATCH = b"\x7a"
_FETCHED_BATCH_FIELD = 15
_FETCHED_LENGTH_BYTES = 4
"""Of the length of a fetched bucket: enough for 256 MiB."""
NO_CHANGES = ChangeRange(0, 0, commit_end=False)
ANY_CHANGES = ChangeRange(2**64 - 1, 2**64 - 1, commit_end=True)
"""No other takes more room in a message."""
ANY_GROUP_EPOCH = _ANY_ORDINAL = 2**64 - 1
"""Nor does any other epoch, or ordinal."""

PageFieldsT = TypeVar("PageFieldsT", pb.ScanSessionResponse, pb.ScanPageResponse)
"""The response of a pull model: the fields that a page has of them are numbered alike in all."""


@dataclass(frozen=True, slots=True)
class RowBatch:
    """A `RowBatch` as received; `payload` is a view of the message and keeps it alive."""

    row_ordinal: int
    """Rows of the scan delivered before this batch."""
    row_count: int
    """Rows in this batch."""
    crc32c: int
    """CRC-32C that the server computed of `payload`."""
    resume_token: bytes
    """Continues the scan after this batch; empty if the server makes none."""
    payload: memoryview
    """Arrow IPC record batch message."""
    message_bytes: int
    """Length of the message that brought it: what it costs in credit."""
    changes: ChangeRange = NO_CHANGES
    """What it covers of the changelog; nothing, [0, 0), if its rows are those of a state."""
    group_epoch: int = 0
    """Of the reader group's assignment that it is for; 0: it is for none."""


@dataclass(frozen=True, slots=True)
class ReceivedPage(Generic[PageFieldsT]):
    """A page of a pull model as received."""

    fields: PageFieldsT
    """All fields but the payload."""
    payload: memoryview
    """Arrow IPC record batch message; empty if the page has no rows."""
    message_bytes: int
    """Length of the message that brought it."""


@dataclass(frozen=True, slots=True)
class FetchedBatch:
    """A batch of a fetch, to be sent."""

    row_count: int
    encoded: EncodedRows
    changes: ChangeRange


@dataclass(frozen=True, slots=True)
class ReceivedBucket:
    """A bucket of a fetch as received."""

    fields: pb.FetchedBucket
    """All fields but the batches."""
    batches: tuple[RowBatch, ...]
    """In order; their payloads are views of the message. The length of each is that of the batch alone."""


SessionPage: TypeAlias = ReceivedPage[pb.ScanSessionResponse]
ScanPage: TypeAlias = ReceivedPage[pb.ScanPageResponse]


def encode_row_batch(
    row_ordinal: int,
    row_count: int,
    crc32c: int,
    payload: Buffer,
    resume_token: bytes = b"",
    changes: ChangeRange = NO_CHANGES,
    group_epoch: int = 0,
) -> Parts:
    """Encode one `ScanResponse` with a batch.

    Args:
        row_ordinal: Rows of the scan delivered before this batch, 0 to 2^64 - 1.
        row_count: Rows in this batch.
        crc32c: CRC-32C of `payload`.
        payload: Arrow IPC record batch message; not copied, so not to be changed until it is sent.
        resume_token: Continues the scan after this batch.
        changes: What it covers of the changelog.
        group_epoch: Of the reader group's assignment that it is for, 0 to 2^64 - 1; 0: it is for none.
    """
    view = _octets(payload)
    prefix = _batch_prefix(row_ordinal, row_count, crc32c, len(view), resume_token, changes, group_epoch)
    return prefix, view


def row_batch_overhead(
    rows_max: int,
    payload_bytes_max: int,
    token_bytes: int = 0,
    changes: ChangeRange = NO_CHANGES,
    group_epoch: int = 0,
) -> int:
    """An upper bound, in bytes, of what a batch's message is longer than its payload, some 30 too high."""
    token = bytes(token_bytes)
    prefix = _batch_prefix(_ANY_ORDINAL, rows_max, 1, payload_bytes_max, token, changes, group_epoch)
    return len(prefix) + 3 * _ALIGNMENT_BYTES  # smaller numbers may need more padding


def encode_page(fields: PageFieldsT, payload: Buffer) -> Parts:
    """Encode one page: `fields` without the payload, which is taken from elsewhere.

    Args:
        fields: Everything but the payload. Pages without rows need none and are serialized as they are.
        payload: Arrow IPC record batch message; not copied.
    """
    head = type(fields)()
    head.CopyFrom(fields)
    head.ClearField("arrow_batch")
    view = _octets(payload)
    small, tail = head.SerializeToString(), _PAYLOAD + _varint(len(view))
    padding_bytes = -(len(small) + len(tail)) % _ALIGNMENT_BYTES
    if padding_bytes in _NO_PADDING:
        padding_bytes += _ALIGNMENT_BYTES
    return b"".join((small, _padding(padding_bytes), tail)), view


def encode_fetched(
    answer: pb.FetchLogResponse, buckets: Sequence[tuple[pb.FetchedBucket, Sequence[FetchedBatch]]]
) -> Parts:
    """Encode one `FetchLogResponse`.

    Args:
        answer: Its fields without its buckets.
        buckets: Of each the fields without its batches, and the batches, of less than 256 MiB together.
    """
    pieces: list[bytes | memoryview] = [answer.SerializeToString()]
    position = len(pieces[0])
    for fields, batches in buckets:
        start = position + len(_FETCHED_BUCKET) + _FETCHED_LENGTH_BYTES
        contents = _bucket_contents(fields, batches, start)
        position = start + sum(map(len, contents))
        pieces += _FETCHED_BUCKET, _varint(position - start, _FETCHED_LENGTH_BYTES), *contents
    return tuple(_joined(pieces))


def decode_scan_response(message: Buffer) -> RowBatch | pb.ScanResponse:
    """Read one message of a scan.

    Returns:
        A `RowBatch` whose payload is a view of `message`, or any other response as it is.

    Raises:
        DataCorrupted: The message is not a `ScanResponse`.
    """
    view = _octets(message)
    try:
        if view[:1] == _RESPONSE_BATCH:
            size, start = read_varint(view, 1)
            if start + size == len(view):
                return _row_batch(view, start)
        require_unbroken_answer(view)
        response = pb.ScanResponse.FromString(bytes(view))
    except (DecodeError, IndexError, ValueError) as error:
        raise DataCorrupted(f"a response of the scan cannot be read: {error}") from error
    if response.WhichOneof("response") != "batch":
        return response
    # With fields beside it that this version does not know.
    return _received(response.batch, memoryview(response.batch.arrow_batch), len(view))


def decode_session_page(message: Buffer) -> SessionPage:
    """Read one response of a session; the payload is a view of `message`.

    Raises:
        DataCorrupted: The message is not a `ScanSessionResponse`.
    """
    return _decode_page(pb.ScanSessionResponse, message)


def decode_scan_page(message: Buffer) -> ScanPage:
    """Read one response of `ScanPage`; the payload is a view of `message`.

    Raises:
        DataCorrupted: The message is not a `ScanPageResponse`.
    """
    return _decode_page(pb.ScanPageResponse, message)


def decode_fetched(message: Buffer) -> tuple[pb.FetchLogResponse, list[ReceivedBucket]]:
    """Read a `FetchLogResponse`.

    Returns:
        Its fields without its buckets; and these.

    Raises:
        DataCorrupted: The message is none.
    """
    view = _octets(message)
    try:
        small, buckets = _cut_fields(view, 0, _FETCHED_BUCKET_FIELD)
        return pb.FetchLogResponse.FromString(small), [_fetched_bucket(each) for each in buckets]
    except (DecodeError, IndexError, ValueError) as error:
        raise DataCorrupted(f"the answer to a fetch cannot be read: {error}") from error


def _batch_prefix(
    row_ordinal: int,
    row_count: int,
    crc32c: int,
    payload_bytes: int,
    resume_token: bytes,
    changes: ChangeRange,
    group_epoch: int,
    *,
    tag: bytes = _RESPONSE_BATCH,
    position: int = 0,
) -> bytes:
    """What stands in front of a batch's payload.

    Args:
        row_ordinal: See `encode_row_batch`, as of the others.
        row_count: Rows.
        crc32c: Of the payload.
        payload_bytes: Length of the payload.
        resume_token: Empty: none.
        changes: What the batch covers.
        group_epoch: 0: of no group.
        tag: Of the field that the batch is in its message.
        position: Of that tag in the message, for the alignment.
    """
    small = pb.RowBatch(
        row_ordinal=row_ordinal,
        row_count=row_count,
        crc32c=crc32c,
        resume_token=resume_token,
        start_offset=changes.start,
        end_offset=changes.end,
        commit_end=changes.commit_end,
        group_epoch=group_epoch,
    ).SerializeToString()
    tail = _PAYLOAD + _varint(payload_bytes) if payload_bytes else b""
    fixed, padding_bytes = len(small) + len(tail), 0
    while True:
        length = _varint(fixed + padding_bytes + payload_bytes)  # It may take an octet more with the padding.
        missing = -(position + len(tag) + len(length) + fixed + padding_bytes) % _ALIGNMENT_BYTES
        if not missing and padding_bytes not in _NO_PADDING:
            return b"".join((tag, length, small, _padding(padding_bytes), tail))
        padding_bytes += missing or _ALIGNMENT_BYTES


def _padding(size: int) -> bytes:
    """A field of so many octets, which says nothing; 0: none."""
    return _PADDING + bytes((size - 2,)) + bytes(size - 2) if size else b""


def _bucket_contents(
    fields: pb.FetchedBucket, batches: Sequence[FetchedBatch], position: int
) -> list[bytes | memoryview]:
    """What a fetched bucket consists of.

    Args:
        fields: All but the batches.
        batches: Perhaps none.
        position: Of the bucket's first octet in the message.
    """
    contents: list[bytes | memoryview] = [fields.SerializeToString()]
    position += len(contents[0])
    for batch in batches:
        view, crc32c = _octets(batch.encoded.payload), batch.encoded.crc32c
        prefix = _batch_prefix(
            0,
            batch.row_count,
            crc32c,
            len(view),
            b"",
            batch.changes,
            0,
            tag=_FETCHED_BATCH,
            position=position,
        )
        contents += prefix, view
        position += len(prefix) + len(view)
    return contents


def _joined(pieces: Sequence[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """The pieces of a message, with small ones that follow each other as one."""
    for is_small, run in itertools.groupby(pieces, key=lambda piece: isinstance(piece, bytes)):
        if is_small:
            yield b"".join(run)
        else:
            yield from run


def _row_batch(view: memoryview, start: int) -> RowBatch:
    small, payload = _cut_payload(view, start)
    return _received(pb.RowBatch.FromString(small), payload, len(view))


def _received(fields: pb.RowBatch, payload: memoryview, message_bytes: int) -> RowBatch:
    return RowBatch(
        row_ordinal=fields.row_ordinal,
        row_count=fields.row_count,
        crc32c=fields.crc32c,
        resume_token=fields.resume_token,
        payload=payload,
        message_bytes=message_bytes,
        changes=ChangeRange(fields.start_offset, fields.end_offset, fields.commit_end),
        group_epoch=fields.group_epoch,
    )


def _fetched_bucket(view: memoryview) -> ReceivedBucket:
    small, batches = _cut_fields(view, 0, _FETCHED_BATCH_FIELD)
    return ReceivedBucket(pb.FetchedBucket.FromString(small), tuple(_row_batch(each, 0) for each in batches))


def _cut_payload(view: memoryview, position: int) -> tuple[bytes, memoryview]:
    """Split the fields of a message into the small ones and the last payload field.

    Raises:
        ValueError: A field is cut off, or of a wire type that is not supported.
    """
    small, payloads = _cut_fields(view, position, _PAYLOAD_FIELD)
    return small, payloads[-1] if payloads else view[:0]


def _cut_fields(view: memoryview, position: int, field: int) -> tuple[bytes, list[memoryview]]:
    """Split the fields of a message into those of one number, without their lengths, and all others.

    Raises:
        ValueError: A field is cut off, or of a wire type that is not supported.
    """
    kept, cut, end = [], [], len(view)
    while position < end:
        field_start = position
        tag, position = read_varint(view, position)
        match tag & 7:
            case 0:
                _, position = read_varint(view, position)
            case 1:
                position += 8
            case 2:
                size, position = read_varint(view, position)
                position += size
                if tag >> 3 == field and position <= end:
                    cut.append(view[position - size : position])
                    continue
            case 5:
                position += 4
            case wire_type:
                raise ValueError(f"wire type {wire_type} is not supported")
        if position > end:
            raise ValueError("a field is cut off")
        kept.append(view[field_start:position])
    return b"".join(kept), cut


def _decode_page(kind: type[PageFieldsT], message: Buffer) -> ReceivedPage[PageFieldsT]:
    view = _octets(message)
    try:
        small, payload = _cut_payload(view, 0)
        fields = kind.FromString(small)
    except (DecodeError, IndexError, ValueError) as error:
        raise DataCorrupted(f"a page of the scan cannot be read: {error}") from error
    return ReceivedPage(fields=fields, payload=payload, message_bytes=len(view))


def _octets(buffer: Buffer) -> memoryview:
    return memoryview(buffer).cast("B")


def _varint(value: int, width: int = 1) -> bytes:
    """Encode a varint in `width` bytes or as many as it needs; the longer forms mean the same."""
    encoded = bytearray()
    while value > 0x7F or len(encoded) + 1 < width:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
