"""What the file of a stage consists of: frames.

    frame 0    whose it is: table id, name, version, part, attempt (`head_frame`)
    frames     mutations of one bucket each, in order (`mutation_frames`)
    last       how many frames there were, and how many mutations (`tail_frame`)

    frame      u32 octets of the body, u32 bucket or kind, u32 mutations, u32 CRC-32C of the body,
               u32 CRC-32C of the four before; then the body. All little-endian
    body       u32 length of each key; u32 length of each row, 2^32 - 1 for a delete; the keys; the rows

The header has a checksum of its own, so nothing is allocated, and nothing skipped, by a length that is damaged.

Pure. This module knows no files and no RocksDB.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scanner.data.digest import checksum
from scanner.data.octets import joined
from scanner.data.row_block import binary_view
from scanner.errors import DataCorrupted
from scanner.storage.records import Mutation, Mutations

if TYPE_CHECKING:
    from scanner.storage.transactions import StageKey, StageSource

FRAME_BYTES_MAX: Final = 128 * 1024 * 1024
"""Of one frame's body. A frame is cut at `_FRAME_BYTES`; a single row may be larger."""
_FRAME_BYTES: Final = 1024 * 1024
_HEAD: Final = 2**32 - 1
_TAIL: Final = 2**32 - 2
"""Buckets have smaller numbers."""
_DELETE: Final = 2**32 - 1
_DELETE_LENGTH: Final = -1
"""The same octets. No scalar of Arrow: the first one that is made has pyarrow import pandas."""
_HEADER: Final = struct.Struct("<IIIII")
_FIELDS: Final = struct.Struct("<IIII")
_CHECKSUM: Final = struct.Struct("<I")
_TOTALS: Final = struct.Struct("<QQ")


def head_frame(table_id: int, key: StageKey) -> bytes:
    """The first frame of a stage."""
    body = json.dumps(_identity(table_id, key)).encode()
    return _frame(_HEAD, 0, body)


def tail_frame(frames: int, mutations: int) -> bytes:
    """The last frame of a stage.

    Args:
        frames: Of mutations.
        mutations: In them.
    """
    return _frame(_TAIL, 0, _TOTALS.pack(frames, mutations))


def mutation_frames(routed: Mapping[int, Sequence[Mutation]]) -> Iterator[tuple[bytes, int]]:
    """Encode mutations, bucket by bucket.

    Args:
        routed: By bucket, in order.

    Yields:
        A frame, and how many mutations are in it.
    """
    for bucket, mutations in sorted(routed.items()):
        for piece in in_pieces(Mutations.of(mutations), _FRAME_BYTES):
            yield _frame(bucket, len(piece), b"".join(_parts_of_body(piece))), len(piece)


def in_pieces(mutations: Mutations, bytes_max: int) -> Iterator[Mutations]:
    """Cut mutations into pieces of about so many octets, at least one each."""
    sizes = pc.add(pc.binary_length(mutations.keys), pc.binary_length(mutations.rows).fill_null(0))
    ends = np.cumsum(sizes.to_numpy(), dtype=np.int64)
    start = before = 0
    while start < len(mutations):
        end = max(start + 1, int(np.searchsorted(ends, before + bytes_max, side="right")))
        yield mutations[start:end]
        start, before = end, int(ends[end - 1])


def read_mutations(source: StageSource, table_id: int, key: StageKey) -> Iterator[tuple[int, Mutations]]:
    """Read a stage, and prove that it is the one that was asked for, and whole.

    Args:
        source: The stage.
        table_id: Whose it must be.
        key: Which it must be.

    Yields:
        The bucket and the mutations of one frame, in order.

    Raises:
        DataCorrupted: It is damaged, cut off, or another one.
        StoreFailed: The disk refused.
    """
    where = _described(key)
    for at, header in _frames_of_mutations(source, table_id, key):
        yield header.kind, _decode_body(_read_body(source, at, header, where), header.mutations, where)


class FramePlaces:
    """Where the frames of each bucket begin in one stage. Made by `find_frames`.

    Args:
        buckets: Of each frame.
        places: Where it begins, in the order of the stage.
    """

    def __init__(self, buckets: array[int], places: array[int]) -> None:
        # Twelve octets a frame: a version may have millions.
        of_frames = np.asarray(buckets, np.uint32)
        order = np.argsort(of_frames, kind="stable")
        self._buckets = of_frames[order]
        self._places = np.asarray(places, np.uint64)[order]

    def of(self, bucket: int) -> Iterator[int]:
        """Those of one bucket, in order."""
        # Numbers of the same type: else all buckets would be converted for each that asks.
        start, end = np.searchsorted(self._buckets, np.array((bucket, bucket + 1), np.uint32))
        return map(int, self._places[start:end])


def find_frames(source: StageSource, table_id: int, key: StageKey) -> FramePlaces:
    """Find the frames of a stage, and prove that none is missing; what is in them is skipped unread.

    Args:
        source: The stage.
        table_id: Whose it must be.
        key: Which it must be.

    Raises:
        DataCorrupted: It is damaged, cut off, or another one.
        StoreFailed: The disk refused.
    """
    buckets, places = array("I"), array("Q")
    for at, header in _frames_of_mutations(source, table_id, key):
        buckets.append(header.kind)
        places.append(at)
    return FramePlaces(buckets, places)


def read_frame(source: StageSource, at: int, bucket: int, key: StageKey) -> Mutations:
    """Read one frame.

    Args:
        source: The stage.
        at: Where it begins.
        bucket: Whose it must be.
        key: Of the stage.

    Raises:
        DataCorrupted: It is damaged, or another bucket's.
        StoreFailed: The disk refused.
    """
    where = _described(key)
    header = _read_header(source, at, where)
    if header.kind != bucket:
        raise DataCorrupted(f"{where} was changed: at octet {at} was a frame of bucket {bucket}")
    return _decode_body(_read_body(source, at, header, where), header.mutations, where)


def count_mutations(source: StageSource, key: StageKey) -> int:
    """How many mutations a stage has; only its last frame is read.

    Args:
        source: The stage.
        key: Which it is.

    Raises:
        DataCorrupted: That frame is damaged, or missing.
        StoreFailed: The disk refused.
    """
    where = _described(key)
    at = max(0, source.size - _HEADER.size - _TOTALS.size)
    header = _read_header(source, at, where)
    body = source.read(at + _HEADER.size, header.size)
    if header.kind != _TAIL or len(body) != _TOTALS.size or checksum(body) != header.crc:
        raise DataCorrupted(f"{where} is damaged: it does not end where it should")
    _, mutations = _TOTALS.unpack(body)
    return int(mutations)


def digest_mutations(source: StageSource, table_id: int, key: StageKey) -> dict[int, bytes]:
    """What a stage does to each bucket, the same however it is cut in frames.

    Args:
        source: The stage.
        table_id: Whose it must be.
        key: Which it must be.

    Returns:
        By bucket, digests of its mutations in their order.

    Raises:
        DataCorrupted, StoreFailed: See `read_mutations`.
    """
    hashes: dict[int, list[hashlib.blake2b]] = {}
    for bucket, mutations in read_mutations(source, table_id, key):
        parts = _parts_of_body(mutations)
        for each, part in zip(
            hashes.setdefault(bucket, [hashlib.blake2b() for _ in parts]), parts, strict=True
        ):
            each.update(part)
    return {bucket: b"".join(each.digest() for each in parts) for bucket, parts in hashes.items()}


def _described(key: StageKey) -> str:
    return f"the stage of part {key.part}, attempt {key.attempt}, of {key.name} version {key.version}"


def _identity(table_id: int, key: StageKey) -> dict[str, int | str]:
    return {
        "table_id": table_id,
        "name": key.name,
        "version": key.version,
        "part": key.part,
        "attempt": key.attempt,
        "session": key.session.hex(),
    }


def _frame(kind: int, count: int, body: bytes) -> bytes:
    fields = _FIELDS.pack(len(body), kind, count, checksum(body))
    return fields + _CHECKSUM.pack(checksum(fields)) + body


class _FrameHeader(NamedTuple):
    kind: int
    """A bucket, or `_HEAD` or `_TAIL`."""
    mutations: int
    """In it."""
    size: int
    """Octets of the body."""
    crc: int


def _frames_of_mutations(
    source: StageSource, table_id: int, key: StageKey
) -> Iterator[tuple[int, _FrameHeader]]:
    """Where each begins, and its header. The frames before the first and behind the last are read, and proved."""
    where = _described(key)
    at = frames = mutations = 0
    for index in itertools.count():
        header = _read_header(source, at, where)
        if (index == 0) != (header.kind == _HEAD):
            raise DataCorrupted(f"{where} is damaged: it does not begin as a stage")
        end = at + _HEADER.size + header.size
        if header.kind == _HEAD:
            if _read_body(source, at, header, where) != json.dumps(_identity(table_id, key)).encode():
                raise DataCorrupted(f"{where} is another one: its file was renamed or copied")
        elif header.kind == _TAIL:
            body = _read_body(source, at, header, where)
            if body != _TOTALS.pack(frames, mutations) or end != source.size:
                raise DataCorrupted(f"{where} is damaged: it does not end where it should")
            return
        else:
            frames, mutations = frames + 1, mutations + header.mutations
            yield at, header
        at = end


def _read_header(source: StageSource, at: int, where: str) -> _FrameHeader:
    """Of the frame at an offset."""
    header = source.read(at, _HEADER.size)
    if len(header) < _HEADER.size:
        raise DataCorrupted(f"{where} is cut off at octet {at}")
    size, kind, count, crc, own_crc = _HEADER.unpack(header)
    if checksum(header[: _FIELDS.size]) != own_crc:
        raise DataCorrupted(f"{where} is damaged: a header's checksum is wrong at octet {at}")
    if size > min(FRAME_BYTES_MAX, source.size - at - _HEADER.size):
        raise DataCorrupted(f"{where} is cut off: a frame of {size} octets begins at octet {at}")
    return _FrameHeader(kind, count, size, crc)


def _read_body(source: StageSource, at: int, header: _FrameHeader, where: str) -> bytes:
    """Of the frame at an offset."""
    at += _HEADER.size
    body = source.read(at, header.size)
    if len(body) != header.size or checksum(body) != header.crc:
        raise DataCorrupted(f"{where} is damaged: a checksum is wrong at octet {at}")
    return body


def _parts_of_body(mutations: Mutations) -> list[bytes]:
    """Lengths of keys and of rows, keys, rows. Those of two pieces, one behind the other, are those of the whole."""
    key_lengths = pc.binary_length(mutations.keys)
    row_lengths = pc.binary_length(mutations.rows).fill_null(_DELETE_LENGTH)
    lengths = [each.to_numpy().astype("<i4").tobytes() for each in (key_lengths, row_lengths)]
    return [*lengths, joined(mutations.keys), joined(mutations.rows.drop_null())]


def _decode_body(body: bytes, count: int, where: str) -> Mutations:
    if len(body) < 8 * count:
        raise DataCorrupted(f"{where} is damaged: a frame is too short for its {count} mutations")
    key_lengths = np.frombuffer(body, "<u4", count).astype(np.int64)
    row_lengths = np.frombuffer(body, "<u4", count, 4 * count).astype(np.int64)
    deletes = row_lengths == _DELETE
    row_lengths[deletes] = 0
    key_bounds = 8 * count + np.append(0, np.cumsum(key_lengths))
    row_bounds = key_bounds[-1] + np.append(0, np.cumsum(row_lengths))
    if not count or int(row_bounds[-1]) != len(body):
        raise DataCorrupted(f"{where} is damaged: a frame's rows do not fill it")
    rows = binary_view(body, row_bounds.astype(np.int32))
    if deletes.any():
        rows = pc.if_else(pa.array(deletes), pa.scalar(None, pa.binary()), rows)
    return Mutations(binary_view(body, key_bounds.astype(np.int32)), rows)
