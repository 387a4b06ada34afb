"""How the rows of a bucket come out of RocksDB: the fast way, and the one that several scans can share.

Fast: `values()`, the fastest path that rocksdict has. It ends silently when a read fails. So when it
ends, a checked iterator is placed on the last row's key, worked out from the row; the key must be there,
nothing may follow it inside the range, and the iterator's status must be good.

Shared: the checked iterator itself, one for all scans of a snapshot. Each remembers where it is and seeks
there if another moved the iterator meanwhile. It runs on to the end of the bucket, so a scan checks the end
of its range itself, with the key of the row after each piece.

Either way what cannot be proven to be the end is an error.

Measured with rocksdict 0.3.29 on two cores: a million rows of about 100 bytes, compacted, LZ4, in the page
cache; `read(4096, 1 MiB)` to the proven end; million rows a second, best (median) of five passes that take
turns: fast 6.0 (5.1); shared 3.8 (3.1); shared, of a range with an end 3.9 (2.7); two shared scans that
read in turn, together 3.6 (2.8).

Blocks of large buckets stay out of the cache (`Reading.options`). Small ones gain from it, and fill it.

An iterator shows the state at the moment it was made. rocksdict's `Snapshot` would not do: its iterators
show the newest state, whatever the snapshot (seen with 0.3.29; only its point reads are as of the
snapshot). A live iterator keeps the directory locked, so whatever ends releases its own.

This module knows no log and no limits on what is read at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from rocksdict import Rdict, ReadOptions

from scanner.data.keys import ALL_KEYS
from scanner.errors import DataCorrupted
from scanner.storage.rocksdb.database import rocksdb_errors

if TYPE_CHECKING:
    from rocksdict import RdictIter

    from scanner.storage.interface import KeyRange, KeysOf
    from scanner.storage.rocksdb.config import StorageConfig

_FILE_BYTES: Final = "rocksdb.total-sst-files-size"
_CACHE_SHARES: Final = 16
"""A bucket whose files take no more than such a share of the cache may fill it: its blocks are several times as large
there, and other buckets want to be in it, too."""


class RowReader(Protocol):
    """Where a scan gets its rows from."""

    def next_rows(self, count: int) -> list[bytes]:
        """The next stored rows in key order. None: the end, or a read that failed; `prove_end` tells.

        Args:
            count: Rows at most, >= 1.

        Raises:
            DataCorrupted: a read failed its checks.
            StoreFailed: the disk refused a read.
        """

    def prove_end(self, last_row: bytes | None) -> None:
        """Make sure that nothing follows in the range.

        Args:
            last_row: The last one that `next_rows` gave; None if there was none.

        Raises:
            DataCorrupted: something does, or a read failed its checks.
            StoreFailed: the disk refused a read.
        """

    def close(self) -> None:
        """Release RocksDB. Idempotent."""

    @property
    def ended(self) -> bool:
        """Whether `next_rows` has given fewer rows than it was asked for: there are no more, if `prove_end` says so."""

    @property
    def iterators(self) -> int:
        """RocksDB iterators that this reader alone holds."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How scans read."""

    readahead_bytes: int
    """See StorageConfig."""
    cache_bytes: int
    """Size of the block cache."""

    @classmethod
    def of(cls, config: StorageConfig) -> Reading:
        """As a store is configured."""
        return cls(config.scan_readahead_bytes, config.block_cache_bytes)

    def options(self, kv: Rdict, key_range: KeyRange, *, short: bool = False) -> ReadOptions:
        """Options of an iterator over a range that does not read past its end.

        Without a readahead of ours RocksDB's begins with a block, and doubles as it is read on: where few rows are read
        that costs half (77 us instead of 161 to open a scan and read ten rows of three files), and whole scans 3 %.

        The blocks of a large bucket are not put into the cache: they would push out everything else, and the next scan
        would find none of them.
        """
        options = ReadOptions()
        options.set_verify_checksums(True)
        file_bytes = kv.property_int_value(_FILE_BYTES) or 0
        fits = file_bytes <= self.cache_bytes // _CACHE_SHARES
        options.fill_cache(fits)  # type: ignore[call-arg]  # Its stub has no argument.
        if self.readahead_bytes and not short:
            options.set_readahead_size(self.readahead_bytes)
        if key_range.end:
            options.set_iterate_upper_bound(key_range.end)
        return options


class CheckedIterator:
    """A RocksDB iterator that does not mistake an error for the end, and knows who moved it last.

    Args:
        kv: The column family; the iterator shows it as it is now.
        path: Directory of the bucket, for messages.
        reading: How to read.
    """

    def __init__(self, kv: Rdict, path: Path, reading: Reading) -> None:
        self.path = path
        self._moved_by: object = None
        with rocksdb_errors(path):
            self._iterator: RdictIter | None = kv.iter(reading.options(kv, ALL_KEYS))

    @property
    def is_open(self) -> bool:
        """Whether it holds RocksDB."""
        return self._iterator is not None

    def close(self) -> None:
        """Release RocksDB. Idempotent."""
        self._iterator = self._moved_by = None

    def rows(self, reader: SharedReader, count: int) -> list[bytes]:
        """The next rows from where a reader stands; moves it. Fewer than `count`: it is at its proven end."""
        iterator = self._placed(reader, reader.position)
        try:
            with rocksdb_errors(self.path):
                rows = _values(iterator, count)
                end = reader.range_end
                if end and (not iterator.valid() or iterator.key() > end):
                    # Some of these rows are past the end, or a read past the end failed: once in a scan, by keys.
                    _seek(iterator, reader.position)
                    rows = _values_before(iterator, end, count)
                following = iterator.key() if iterator.valid() else None
                if following is None:
                    iterator.status()
        finally:
            # The error is kept, its traceback keeps this frame, and the frame would keep the directory locked.
            del iterator
        if following is None or (end and following >= end):
            reader.ended = True
        else:
            reader.position, reader.is_exact = following, True
        return rows

    def require_end(self, last_key: bytes | None, key_range: KeyRange) -> None:
        """Make sure that in a range nothing follows a key, which must be there; None: that nothing is in it."""
        iterator = self._placed(None, key_range.start if last_key is None else last_key)
        try:
            with rocksdb_errors(self.path):
                if last_key is not None:
                    if not iterator.valid() or iterator.key() != last_key:
                        iterator.status()
                        raise DataCorrupted(
                            f"{self.path}: the row of key {last_key.hex()} is under another key"
                        )
                    iterator.next()
                following = iterator.key() if iterator.valid() else None
                if following is None:
                    iterator.status()
                elif not key_range.end or following < key_range.end:
                    raise DataCorrupted(
                        f"{self.path}: a read failed before key {following.hex()}, and succeeds now;"
                        " the disk is not reliable"
                    )
        finally:
            del iterator

    def _placed(self, reader: SharedReader | None, key: bytes) -> RdictIter:
        """The iterator, where a reader left it; or on a key, if there is no reader or another moved it since."""
        iterator = self._iterator
        assert iterator is not None  # Its scans are ended before it is closed.
        try:
            if reader is None or self._moved_by is not reader:
                self._moved_by = reader
                with rocksdb_errors(self.path):
                    _seek(iterator, key)
                    if (
                        reader is not None
                        and reader.is_exact
                        and not (iterator.valid() and iterator.key() == key)
                    ):
                        iterator.status()
                        raise DataCorrupted(
                            f"{self.path}: the row of key {key.hex()} was there and is gone;"
                            " the disk is not reliable"
                        )
            return iterator
        finally:
            del iterator


class ValuesReader:
    """The fast way.

    Args:
        values: The stored rows of the range, as of the same moment as `checked`.
        checked: For the proof.
        key_range: The range.
        keys_of: Keys of stored rows.
    """

    def __init__(
        self, values: Iterator[bytes], checked: CheckedIterator, key_range: KeyRange, keys_of: KeysOf
    ) -> None:
        self._values: Iterator[bytes] | None = values
        self._checked = checked
        self._range = key_range
        self._keys_of = keys_of

    @property
    def ended(self) -> bool:
        """See `RowReader.ended`."""
        return self._values is None

    @property
    def iterators(self) -> int:
        """See `RowReader.iterators`."""
        return int(self._values is not None)

    def next_rows(self, count: int) -> list[bytes]:
        """See `RowReader.next_rows`."""
        if self._values is None:
            return []
        with rocksdb_errors(self._checked.path):
            rows = list(islice(self._values, count))
        if len(rows) < count:
            self._values = None
        return rows

    def prove_end(self, last_row: bytes | None) -> None:
        """See `RowReader.prove_end`."""
        last_key = None if last_row is None else self._keys_of([last_row])[0]
        self._checked.require_end(last_key, self._range)

    def close(self) -> None:
        """See `RowReader.close`."""
        self._values = None


class SharedReader:
    """The way over an iterator that other scans use too; not quite two thirds as fast (see the module).

    Args:
        checked: The iterator.
        key_range: What to read.
    """

    iterators = 0
    """The iterator is the snapshot's."""

    def __init__(self, checked: CheckedIterator, key_range: KeyRange) -> None:
        self._checked = checked
        self.position = key_range.start
        """Where to read on."""
        self.is_exact = False
        """There is a row of that key."""
        self.range_end = key_range.end
        self.ended = bool(key_range.end) and key_range.start >= key_range.end
        """The end was reached and proven."""

    def next_rows(self, count: int) -> list[bytes]:
        """See `RowReader.next_rows`."""
        return [] if self.ended else self._checked.rows(self, count)

    def prove_end(self, last_row: bytes | None) -> None:
        """See `RowReader.prove_end`; it was proven when it was reached."""
        assert self.ended, last_row

    def close(self) -> None:
        """See `RowReader.close`; there is nothing of its own."""


def stored_values(
    kv: Rdict, path: Path, reading: Reading, key_range: KeyRange, *, short: bool
) -> Iterator[bytes]:
    """The stored rows of a range as of now; ends silently when a read fails."""
    with rocksdb_errors(path):
        options = reading.options(kv, key_range, short=short)
        return kv.values(from_key=key_range.start or None, read_opt=options)


def _seek(iterator: RdictIter, key: bytes) -> None:
    if key:
        iterator.seek(key)
    else:
        iterator.seek_to_first()


def _values(iterator: RdictIter, count: int) -> list[bytes]:
    """Up to `count` values; the iterator then stands behind them, or is not valid."""
    rows = []
    valid, value, advance = iterator.valid, iterator.value, iterator.next
    while count and valid():
        rows.append(value())
        advance()
        count -= 1
    return rows


def _values_before(iterator: RdictIter, end: bytes, count: int) -> list[bytes]:
    """Up to `count` values of keys before `end`."""
    rows = []
    while count and iterator.valid() and iterator.key() < end:
        rows.append(iterator.value())
        iterator.next()
        count -= 1
    return rows
