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

import itertools
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np

from scanner.data.digest import checksum
from scanner.errors import DataCorrupted
from scanner.storage.records import Mutation

SESSION_BYTES: Final = 16
FRAME_BYTES_MAX: Final = 128 * 1024 * 1024
"""Of one frame's body. A frame is cut at `_FRAME_BYTES`; a single row may be larger."""
_FRAME_BYTES: Final = 1024 * 1024
_HEAD: Final = 2**32 - 1
_TAIL: Final = 2**32 - 2
BUCKETS_END: Final = _TAIL
"""Buckets have smaller numbers."""
_DELETE: Final = 2**32 - 1
_HEADER: Final = struct.Struct("<IIIII")
_FIELDS: Final = struct.Struct("<IIII")
_CHECKSUM: Final = struct.Struct("<I")
_TOTALS: Final = struct.Struct("<QQ")
_APPLIED: Final = struct.Struct(">BQQQ")
_APPLIED_FORMAT: Final = 1


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
    """When it was staged, in milliseconds since 1970 UTC."""
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

    def finish(self) -> int:
        """Make it durable, and return its size in octets. Blocks on the disk.

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
        """Whether the table has, or once had, stages or decisions."""

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
        """Remove stages; those that are not there are no error.

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
        """Forget the decision of a name. Idempotent.

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
        for piece in in_pieces(mutations, _FRAME_BYTES):
            keys = [key for key, _ in piece]
            rows = [row for _, row in piece if row is not None]
            key_lengths = np.fromiter(map(len, keys), "<u4", len(keys))
            row_lengths = np.fromiter(
                (_DELETE if row is None else len(row) for _, row in piece), "<u4", len(piece)
            )
            body = b"".join([key_lengths.tobytes(), row_lengths.tobytes(), *keys, *rows])
            yield _frame(bucket, len(piece), body), len(piece)


def in_pieces(mutations: Sequence[Mutation], bytes_max: int) -> Iterator[Sequence[Mutation]]:
    """Cut mutations into pieces of about so many octets, at least one each."""
    start = size = 0
    for at, (key, row) in enumerate(mutations):
        grown = len(key) + len(row or b"")
        if at > start and size + grown > bytes_max:
            yield mutations[start:at]
            start, size = at, 0
        size += grown
    if start < len(mutations):
        yield mutations[start:]


def read_mutations(
    source: StageSource, table_id: int, key: StageKey, bucket: int | None = None
) -> Iterator[tuple[int, list[Mutation]]]:
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
    where = f"the stage of part {key.part}, attempt {key.attempt}, of {key.name} version {key.version}"
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


def _decode_body(body: bytes, count: int, where: str) -> list[Mutation]:
    if len(body) < 8 * count:
        raise DataCorrupted(f"{where} is damaged: a frame is too short for its {count} mutations")
    key_lengths = np.frombuffer(body, "<u4", count).astype(np.int64)
    row_lengths = np.frombuffer(body, "<u4", count, 4 * count).astype(np.int64)
    deletes = row_lengths == _DELETE
    row_lengths[deletes] = 0
    key_ends = 8 * count + np.cumsum(key_lengths)
    rows_at = int(key_ends[-1]) if count else 0
    row_ends = rows_at + np.cumsum(row_lengths)
    if not count or int(row_ends[-1]) != len(body):
        raise DataCorrupted(f"{where} is damaged: a frame's rows do not fill it")
    mutations, key_at, row_at = [], 8 * count, rows_at
    for key_end, row_end, delete in zip(key_ends.tolist(), row_ends.tolist(), deletes.tolist(), strict=True):
        mutations.append(Mutation(body[key_at:key_end], None if delete else body[row_at:row_end]))
        key_at, row_at = key_end, row_end
    return mutations
