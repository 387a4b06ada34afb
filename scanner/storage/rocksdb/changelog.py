"""The changelog as it is stored: entries, cut into chunks of adjacent changes.

An *entry* is the changes of one write request in one bucket, in order. It is stored as one chunk or several adjacent
ones:

    log key    u64 offset of the chunk's first change, u64 ordinal of the chunk, both big-endian. Ordinals count the
               bucket's chunks without a gap, so that a range of keys tells by itself how many chunks it should hold
    log value  the header below, then the body: kinds, row lengths, rows, each of all changes of the chunk

    u8   format, 2
    u8   flags: 1 the body is compressed (LZ4 block), 2 all changes are of one kind, 4 all rows are of one length, 8 the
         entry continues a share of a transaction, which the entry before belongs to
    u8   the kinds that occur, bit k-1 for kind k
    u8   0
    u32  changes in the chunk
    u64  offset of the entry's first change
    u64  offset after the entry's last change: the chunk that reaches it is the last one
    i64  commit time in microseconds since 1970 UTC: grows from entry to entry of a bucket
    i64  what the clock said then, which may have been set back since the entry before
    u32  octets of the body, uncompressed
    body u8 kind of each change, or one; u32 length of each row, or one; the rows, joined

Numbers of the value are little-endian. `meta` holds the log's range (`LogRange`).

The primary key is not stored with a change: every change carries a whole row, `-U` and `-D` the old one, and the key is
worked out from it when the log is read.

This module knows no RocksDB.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from scanner.data.octets import bounds_of
from scanner.data.row_block import RowBlock
from scanner.errors import DataCorrupted
from scanner.storage.records import ChangeKind, Entry

if TYPE_CHECKING:
    from numpy.typing import NDArray

FORMAT: Final = 2
"""Of chunks and of the range in `meta`. Format 1, a record per change, was never released."""
CHUNK_BYTES_MAX: Final = 256 * 1024
"""Rows of one chunk, in bytes; a larger row has a chunk to itself."""

_KEY = struct.Struct(">QQ")
_HEADER = struct.Struct("<BBBxIQQqqI")
_RANGE = struct.Struct(">BQQQQqq")
_LENGTH_BYTES: Final = 4
_COMPRESSED, _ONE_KIND, _ONE_LENGTH, _CONTINUES = 1, 2, 4, 8
_COMPRESSION: Final = "lz4_raw"
_COMPRESSED_BYTES_MIN: Final = 128
"""Less is not worth it."""
_KINDS: Final = tuple(map(int, ChangeKind))
_KINDS_OCTETS: Final = bytes(_KINDS)


class LogRange(NamedTuple):
    """What `meta` says of the log: committed in the same atomic batch as the changes themselves."""

    start: int
    """The oldest offset that is kept: an entry's first."""
    end: int
    """One past the newest."""
    start_ordinal: int
    """Of the oldest chunk that is kept."""
    end_ordinal: int
    """One past the newest chunk's."""
    timestamp_us: int
    """Commit time of the newest entry; 0 before the first."""
    clock_us: int
    """What the clock said then."""


EMPTY_RANGE: Final = LogRange(0, 0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class LogChunk:
    """One chunk, decoded."""

    offset: int
    """Of its first change."""
    ordinal: int
    entry: Entry
    """The entry that it is a part of."""
    kinds: NDArray[np.uint8]
    """`ChangeKind` of each change."""
    rows: RowBlock
    """Their stored rows."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def end(self) -> int:
        """One past the offset of its last change."""
        return self.offset + len(self.rows)


def log_key(offset: int, ordinal: int = 0) -> bytes:
    """Key of a chunk; with ordinal 0 one that sorts before the chunk's, if that is another."""
    return _KEY.pack(offset, ordinal)


def last_key(offset: int) -> bytes:
    """The largest key of a chunk that begins at an offset."""
    return _KEY.pack(offset, 2**64 - 1)


def offset_of_key(key: bytes) -> int:
    """The offset at which the chunk under a key begins.

    Raises:
        DataCorrupted: it is no key of a chunk.
    """
    return _parts_of_key(key)[0]


def ordinal_of_key(key: bytes) -> int:
    """The ordinal of the chunk under a key.

    Raises:
        DataCorrupted: it is no key of a chunk.
    """
    return _parts_of_key(key)[1]


def _parts_of_key(key: bytes) -> tuple[int, int]:
    try:
        offset, ordinal = _KEY.unpack(key)
    except struct.error as error:
        raise DataCorrupted(f"the log holds the key {key.hex()}, which is none of a chunk") from error
    return offset, ordinal


def encode_entry(
    entry: Entry, ordinal: int, kinds: NDArray[np.uint8], rows: pa.BinaryArray
) -> Iterator[tuple[bytes, bytes]]:
    """Encode the changes of an entry as chunks: keys and values, in order.

    Args:
        entry: Its range and times.
        ordinal: Of the first chunk.
        kinds: `ChangeKind` of each change; one or more.
        rows: Their stored rows, as many, none of them null.
    """
    starts, octets = bounds_of(rows), memoryview(rows.buffers()[2] or b"")
    first, count = 0, len(rows)
    while first < count:
        last, end = count, int(starts[first]) + CHUNK_BYTES_MAX
        if starts[last] > end:
            # As many rows as fit, and at least one.
            last = max(first + 1, int(np.searchsorted(starts, end, side="right")) - 1)
        lengths = starts[first + 1 : last + 1] - starts[first:last]
        value = _encode_chunk(
            entry, kinds[first:last].tobytes(), lengths, octets[starts[first] : starts[last]]
        )
        yield log_key(entry.start + first, ordinal), value
        first, ordinal = last, ordinal + 1


def _encode_chunk(entry: Entry, kinds: bytes, lengths: NDArray[np.int32], rows: memoryview) -> bytes:
    flags, count = _CONTINUES * entry.continues, len(kinds)
    occurring = sum(1 << (kind - 1) for kind in _KINDS if kind in kinds)
    if occurring & (occurring - 1) == 0:
        flags, kinds = flags | _ONE_KIND, kinds[:1]
    if count == 1 or (lengths == lengths[0]).all():
        flags, lengths = flags | _ONE_LENGTH, lengths[:1]
    body = b"".join([kinds, lengths.astype("<u4").tobytes(), rows])
    size = len(body)
    if size >= _COMPRESSED_BYTES_MIN:
        packed: bytes = pa.compress(body, codec=_COMPRESSION, asbytes=True)
        if len(packed) < size:
            flags, body = flags | _COMPRESSED, packed
    header = _HEADER.pack(
        FORMAT, flags, occurring, count, entry.start, entry.end, entry.timestamp_us, entry.clock_us, size
    )
    return header + body


def entry_of(key: bytes, value: bytes) -> Entry:
    """The entry that a chunk is a part of; its body is not looked at.

    Raises:
        DataCorrupted: it is no chunk of this format.
    """
    return _header_of(key, value)[0]


def count_of(key: bytes, value: bytes) -> int:
    """How many changes a chunk holds; its body is not looked at.

    Raises:
        DataCorrupted: it is no chunk of this format.
    """
    return _header_of(key, value)[2]


def measure_chunk(key: bytes, value: bytes) -> tuple[Entry, int, int]:
    """The entry of a chunk, its changes, and the stored bytes of their rows; its body is not looked at.

    Raises:
        DataCorrupted: it is no chunk of this format, or too short.
    """
    entry, flags, count, size = _header_of(key, value)
    kinds_bytes, lengths_bytes = _sizes_before_rows(flags, count)
    if size < kinds_bytes + lengths_bytes:
        raise _damaged(offset_of_key(key), f"its body has {size} bytes")
    return entry, count, size - kinds_bytes - lengths_bytes


def _sizes_before_rows(flags: int, count: int) -> tuple[int, int]:
    """Octets that the kinds and the lengths of a chunk's changes take."""
    kinds = 1 if flags & _ONE_KIND else count
    lengths = 1 if flags & _ONE_LENGTH else count
    return kinds, _LENGTH_BYTES * lengths


def _header_of(key: bytes, value: bytes) -> tuple[Entry, int, int, int]:
    """Entry, flags, changes, and octets of the uncompressed body of a chunk."""
    offset = offset_of_key(key)
    try:
        form, flags, _, count, start, end, timestamp_us, clock_us, size = _HEADER.unpack_from(value)
    except struct.error as error:
        raise _damaged(offset, str(error)) from error
    if form != FORMAT:
        raise DataCorrupted(
            f"the changes at offset {offset} are of format {form}, and this version reads {FORMAT};"
            " open the data directory with the version that wrote it"
        )
    if not (count and start <= offset and offset + count <= end):
        raise _damaged(offset, f"{count} changes do not belong into the entry [{start}, {end})")
    return Entry(start, end, timestamp_us, clock_us, bool(flags & _CONTINUES)), flags, count, size


def decode_chunk(key: bytes, value: bytes) -> LogChunk:
    """Decode a chunk; its rows are not looked into.

    Raises:
        DataCorrupted: it is damaged, or of another format.
    """
    chunks = ChunkDecoder()
    chunks.add(key, value)
    kinds, rows = chunks.changes()
    return LogChunk(chunks.offset, ordinal_of_key(key), chunks.entries[0], kinds, rows)


class ChunkDecoder:
    """Decodes adjacent chunks together; their rows are not looked into.

    Making an array takes as long for one change as for a thousand, and a commit of one row has a chunk of its own. So
    of each chunk octets are cut and joined, and the arrays are made of all of them: 4 us a chunk, and 15 for it alone.
    """

    def __init__(self) -> None:
        self.offset = 0
        """Of the first change of the first chunk."""
        self.entries: list[Entry] = []
        """Of each chunk the entry that it is a part of."""
        self.ends: list[int] = []
        """Of each chunk how many changes there are up to its end."""
        self._kinds: list[bytes] = []
        self._lengths: list[bytes] = []
        self._rows: list[memoryview] = []
        self._row_ends: list[int] = []
        """Of each chunk how many octets its rows and those before take."""

    @property
    def end(self) -> int:
        """One past the offset of the last change of the last chunk."""
        return self.offset + self.ends[-1] if self.ends else 0

    def add(self, key: bytes, value: bytes) -> int:
        """Add the chunk that begins where the last one ends.

        Returns:
            Stored bytes of its rows.

        Raises:
            DataCorrupted: it is damaged, or of another format.
        """
        offset = offset_of_key(key)
        entry, flags, count, size = _header_of(key, value)
        body = memoryview(value)[_HEADER.size :]
        if flags & _COMPRESSED:
            try:
                body = memoryview(pa.decompress(body, size, codec=_COMPRESSION, asbytes=True))
            except (pa.ArrowException, OSError, ValueError) as error:
                raise _damaged(offset, str(error)) from error
        kinds_size, lengths_size = _sizes_before_rows(flags, count)
        rows_at = kinds_size + lengths_size
        if len(body) != size or rows_at > size:
            raise _damaged(offset, f"its body has {len(body)} bytes, not {size}")
        kinds, lengths = bytes(body[:kinds_size]), bytes(body[kinds_size:rows_at])
        if kinds.translate(None, _KINDS_OCTETS):
            raise _damaged(offset, "a change is of no known kind")
        if not self.entries:
            self.offset = offset
        self.entries.append(entry)
        self.ends.append(offset + count - self.offset)
        self._kinds.append(kinds * count if flags & _ONE_KIND else kinds)
        self._lengths.append(lengths * count if flags & _ONE_LENGTH else lengths)
        self._rows.append(body[rows_at:])
        row_bytes = size - rows_at
        self._row_ends.append(row_bytes + (self._row_ends[-1] if self._row_ends else 0))
        return row_bytes

    def changes(self) -> tuple[NDArray[np.uint8], RowBlock]:
        """`ChangeKind` and stored row of each change of the chunks, of which there is one at least.

        Raises:
            DataCorrupted: The rows of a chunk have other lengths than it says.
        """
        lengths = np.frombuffer(b"".join(self._lengths), "<u4")
        starts = np.zeros(len(lengths) + 1, np.int64)
        lengths.cumsum(dtype=np.int64, out=starts[1:])
        row_ends = starts[self.ends].tolist()
        if row_ends != self._row_ends:
            number = list(map(operator.eq, row_ends, self._row_ends)).index(False)
            raise _damaged(
                self.offset + (0, *self.ends)[number],
                f"its rows take {len(self._rows[number])} bytes, and not as many as their lengths say",
            )
        # A row may be large, and then it is alone: it is not copied.
        rows = self._rows[0] if len(self._rows) == 1 else b"".join(self._rows)
        return np.frombuffer(b"".join(self._kinds), np.uint8), RowBlock(rows, starts)


def _damaged(offset: int, why: str) -> DataCorrupted:
    return DataCorrupted(f"the changes at offset {offset} are damaged: {why}")


def encode_log_range(log_range: LogRange) -> bytes:
    """The value that `meta` holds."""
    return _RANGE.pack(FORMAT, *log_range)


def decode_log_range(value: bytes) -> LogRange:
    """Read what `meta` holds.

    Raises:
        DataCorrupted: it is no range of this format.
    """
    try:
        form, *parts = _RANGE.unpack(value)
    except struct.error as error:
        raise DataCorrupted(
            f"the log range {value.hex()} is damaged, or of another format than {FORMAT}: {error}"
        ) from error
    if form != FORMAT:
        raise DataCorrupted(f"the log range is of format {form}, and this version reads {FORMAT}")
    log_range = LogRange(*parts)
    if log_range.start > log_range.end or log_range.start_ordinal > log_range.end_ordinal:
        raise DataCorrupted(f"the log range [{log_range.start}, {log_range.end}) runs backwards")
    return log_range
