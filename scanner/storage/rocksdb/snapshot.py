"""A bucket as of one moment, held open for any number of scans: one RocksDB iterator, made at that moment.

A scan that is opened while the bucket still is as it was then goes the fast way, and needs the iterator for
its proof only; all later ones share the iterator (`scanner.storage.rocksdb.readers`).

This module knows no log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from scanner.data.keys import ALL_KEYS
from scanner.errors import StoreClosed
from scanner.storage.rocksdb.readers import CheckedIterator, SharedReader, ValuesReader
from scanner.storage.rocksdb.scan import RocksScan

if TYPE_CHECKING:
    from scanner.storage.interface import KeyRange, KeysOf


class RocksSnapshot:
    """See `scanner.storage.interface.BucketSnapshot`.

    Args:
        checked: An iterator over the whole bucket, made between two commits; closed with the snapshot.
        log_offset: What it shows.
        keys_of: Keys of stored rows.
        fresh_values: The stored rows of a range, if the bucket still is as of `log_offset`; else None. Told whether
            few of them will be read.
        on_close: Called once with the snapshot when it has released RocksDB.
    """

    def __init__(
        self,
        checked: CheckedIterator,
        log_offset: int,
        keys_of: KeysOf,
        fresh_values: Callable[[KeyRange, bool], Iterator[bytes] | None],
        on_close: Callable[[RocksSnapshot], None],
    ) -> None:
        self._checked = checked
        self._path: Path = checked.path
        self.log_offset = log_offset
        """The snapshot shows the changes with a smaller offset, and no other."""
        self._keys_of = keys_of
        self._fresh_values = fresh_values
        self._on_close = on_close
        self._scans: set[RocksScan] = set()

    @property
    def iterators(self) -> int:
        """RocksDB iterators that the snapshot and its scans hold."""
        return self._checked.is_open + sum(scan.iterators for scan in self._scans)

    def scan(self, key_range: KeyRange = ALL_KEYS, *, short: bool = False) -> RocksScan:
        """See `BucketSnapshot.scan`."""
        if not self._checked.is_open:
            raise StoreClosed(f"this snapshot of {self._path} was closed")
        values = self._fresh_values(key_range, short)
        reader: SharedReader | ValuesReader
        if values is None:
            reader = SharedReader(self._checked, key_range)
        else:
            reader = ValuesReader(values, self._checked, key_range, self._keys_of)
        scan = RocksScan(reader, self._path, self.log_offset, self._keys_of, self._scans.discard)
        self._scans.add(scan)
        return scan

    def close(self) -> None:
        """See `BucketSnapshot.close`."""
        if self._checked.is_open:
            for scan in list(self._scans):
                scan.close()
            self._checked.close()
            self._on_close(self)
