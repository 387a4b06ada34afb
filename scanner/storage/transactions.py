"""Transactions of writers as storage keeps them: stages, decisions, and what a bucket has applied.

A *stage* is what one writer has staged in one go: rows and deletes of one part of one version of a transaction, by
bucket. It is written once, as a file that is whole or absent:

    frame 0    whose it is: table id, name, version, part, attempt (`head_frame`)
    frames     mutations of one bucket each, in order (`mutation_frames`)
    last       how many frames there were, and how many mutations (`tail_frame`)

    frame      u32 octets of the body, u32 bucket or kind, u32 mutations, u32 CRC-32C of the body,
               u32 CRC-32C of the four before; then the body. All little-endian
    body       u32 length of each key; u32 length of each row, 2^32 - 1 for a delete; the keys; the rows

The header has a checksum of its own, so nothing is allocated, and nothing skipped, by a length that is damaged.

A *decision* is a document per transaction name; what is in it is the server's business.

Pure, but for the protocols. This module knows no files and no RocksDB.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scanner.data.digest import checksum
from scanner.data.octets import joined
from scanner.data.row_block import binary_view
from scanner.errors import DataCorrupted
from scanner.storage.records import Mutation, Mutations

SESSION_BYTES: Final = 16
FRAME_BYTES_MAX: Final = 128 * 1024 * 1024
"""Of one frame's body. A frame is cut at `_FRAME_BYTES`; a single row may be larger."""
_FRAME_BYTES: Final = 1024 * 1024
_HEAD: Final = 2**32 - 1
_TAIL: Final = 2**32 - 2
BUCKETS_END: Final = _TAIL
"""Buckets have smaller numbers."""
_DELETE: Final = 2**32 - 1
_DELETE_LENGTH: Final = -1
"""The same octets. No scalar of Arrow: the first one that is made has pyarrow import pandas."""
_HEADER: Final = struct.Struct("<IIIII")
_FIELDS: Final = struct.Struct("<IIII")
_CHECKSUM: Final = struct.Struct("<I")
_TOTALS: Final = struct.Struct("<QQ")
_APPLIED: Final = struct.Struct(">BQQQ")
_APPLIED_FORMAT: Final = 1
ALL_KNOWN: Final = "~all-known"
"""Beside the names of transactions, and none of them: a bucket is made with a share of this name, and loses it when it
forgets a name that may be published under again. As long as every bucket of a table has it, a name that none of them
knows was never published under. The buckets that older servers made have none."""


class StageKey(NamedTuple):
    """Names one stage of a table."""

    name: str
    """Of the transaction."""
    version: int
    part: int
    attempt: int
    sequence: int
    """Stages of one attempt are applied in this order."""
    staged_ms: int
    """When it was complete, in milliseconds since 1970 UTC; of one that is being written, when it was begun."""
    session: bytes
    """`SESSION_BYTES` octets that the writer drew: a stage that is sent again is recognised by them."""


class StoredStage(NamedTuple):
    """A stage that is durable."""

    key: StageKey
    size: int
    """Octets on the disk."""


class AppliedShare(NamedTuple):
    """What a bucket remembers of the newest version that it has applied of a transaction name."""

    version: int
    start: int
    """Offset of the first change that the version made in this bucket."""
    end: int
    """One past the last."""


class StageSink(Protocol):
    """A stage that is being written. Used by one task at a time."""

    def append(self, frames: Sequence[bytes]) -> None:
        """Write frames behind those before. Blocks on the disk.

        Raises:
            DiskFull, StoreFailed: The disk refused; `discard` it.
        """

    def sync(self) -> None:
        """Have on the disk what was written, so that `finish` is quick. Blocks on the disk.

        Raises:
            DiskFull, StoreFailed: The disk refused; `discard` it.
        """

    def open_source(self) -> StageSource:
        """Read what was written, until it is finished or discarded.

        Raises:
            StoreFailed: The disk refused.
        """

    def finish(self, key: StageKey) -> int:
        """Make it durable, and return its size in octets. Blocks on the disk.

        Args:
            key: That of the sink, but for the time.

        Raises:
            DiskFull, StoreFailed: The disk refused; it is not there.
        """

    def discard(self) -> None:
        """Remove what was written. Without effect on one that was finished. Idempotent."""


class StageSource(Protocol):
    """A stage that is being read. Used by one task at a time."""

    @property
    def size(self) -> int:
        """Its octets."""

    def read(self, offset: int, size: int) -> bytes:
        """Octets of it; fewer at its end.

        Raises:
            StoreFailed: The disk refused.
        """

    def close(self) -> None:
        """Idempotent."""


class TransactionFiles(Protocol):
    """The stages and decisions of one table."""

    @property
    def table_id(self) -> int:
        """Of the table."""

    @property
    def used(self) -> bool:
        """Whether the table has, or once had, stages or decisions; those that are being written count."""

    def stages(self) -> list[StoredStage]:
        """Every durable stage, in no order. What an interrupted writer left is removed, so: once, at the start.

        Raises:
            StoreFailed: The disk refused.
        """

    def open_sink(self, key: StageKey) -> StageSink:
        """Begin to write a stage.

        Raises:
            DiskFull, StoreFailed: The disk refused.
        """

    def open_source(self, key: StageKey) -> StageSource:
        """Read a stage.

        Raises:
            DataCorrupted: It is gone.
            StoreFailed: The disk refused.
        """

    def drop_stages(self, keys: Sequence[StageKey]) -> None:
        """Remove stages; durable when this returns. Those that are not there are no error.

        Raises:
            StoreFailed: The disk refused.
        """

    def decisions(self) -> dict[str, bytes]:
        """The decision of every name that has one.

        Raises:
            DataCorrupted: One is damaged.
            StoreFailed: The disk refused.
        """

    def write_decision(self, name: str, content: bytes) -> None:
        """Write or replace the decision of a name: atomic, durable when this returns.

        Raises:
            DiskFull, StoreFailed: The disk refused. The one before is there, unless only the last sync failed.
        """

    def drop_decision(self, name: str) -> None:
        """Forget the decision of a name; durable when this returns. Idempotent.

        Raises:
            StoreFailed: The disk refused.
        """

    def require_room(self, wanted_bytes: int) -> None:
        """See that the disk has room.

        Args:
            wanted_bytes: For what is to be written.

        Raises:
            DiskFull: It has not.
        """


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


def read_mutations(
    source: StageSource, table_id: int, key: StageKey, bucket: int | None = None
) -> Iterator[tuple[int, Mutations]]:
    """Read a stage, and prove that it is the one that was asked for, and whole.

    Args:
        source: The stage.
        table_id: Whose it must be.
        key: Which it must be.
        bucket: Only the mutations of this one; bodies of others are skipped unread. None: all, and all are verified.

    Yields:
        The bucket and the mutations of one frame, in order.

    Raises:
        DataCorrupted: It is damaged, cut off, or another one.
        StoreFailed: The disk refused.
    """
    where = _described(key)
    at = frames = mutations = 0
    for index in itertools.count():
        kind, count, size, crc = _read_header(source, at, where)
        at += _HEADER.size
        if (index == 0) != (kind == _HEAD):
            raise DataCorrupted(f"{where} is damaged: it does not begin as a stage")
        if kind < BUCKETS_END and bucket not in (None, kind):
            frames, mutations, at = frames + 1, mutations + count, at + size
            continue
        body = source.read(at, size)
        at += size
        if len(body) != size or checksum(body) != crc:
            raise DataCorrupted(f"{where} is damaged: a checksum is wrong at octet {at - size}")
        if kind == _HEAD:
            if body != json.dumps(_identity(table_id, key)).encode():
                raise DataCorrupted(f"{where} is another one: its file was renamed or copied")
        elif kind == _TAIL:
            if body != _TOTALS.pack(frames, mutations) or at != source.size:
                raise DataCorrupted(f"{where} is damaged: it does not end where it should")
            return
        else:
            frames, mutations = frames + 1, mutations + count
            yield kind, _decode_body(body, count, where)


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
    kind, _, size, crc = _read_header(source, at, where)
    body = source.read(at + _HEADER.size, size)
    if kind != _TAIL or len(body) != _TOTALS.size or checksum(body) != crc:
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


def encode_applied(applied: AppliedShare) -> bytes:
    """The value that a bucket's `meta` holds, big-endian."""
    return _APPLIED.pack(_APPLIED_FORMAT, *applied)


def decode_applied(name: str, value: bytes | None) -> AppliedShare:
    """Read what `meta` holds.

    Args:
        name: Of the transaction, which the list of names has.
        value: What it has applied; None: there is nothing.

    Raises:
        DataCorrupted: It is no record of this format.
    """
    try:
        form, *parts = _APPLIED.unpack(value or b"")
    except struct.error as error:
        raise DataCorrupted(
            f"what was applied of transaction {name} is missing or damaged: {error}"
        ) from error
    if form != _APPLIED_FORMAT:
        raise DataCorrupted(
            f"what was applied of transaction {name} is of format {form}, not {_APPLIED_FORMAT}"
        )
    return AppliedShare(*parts)


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


def _read_header(source: StageSource, at: int, where: str) -> tuple[int, int, int, int]:
    """Kind, mutations, octets and checksum of the frame at an offset."""
    header = source.read(at, _HEADER.size)
    if len(header) < _HEADER.size:
        raise DataCorrupted(f"{where} is cut off at octet {at}")
    size, kind, count, crc, own_crc = _HEADER.unpack(header)
    if checksum(header[: _FIELDS.size]) != own_crc:
        raise DataCorrupted(f"{where} is damaged: a header's checksum is wrong at octet {at}")
    if size > min(FRAME_BYTES_MAX, source.size - at - _HEADER.size):
        raise DataCorrupted(f"{where} is cut off: a frame of {size} octets begins at octet {at}")
    return kind, count, size, crc


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
