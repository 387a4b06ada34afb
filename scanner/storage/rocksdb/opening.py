"""Opens the database of a bucket, and deals with what a crash or a loss of power has left of it.

What is left in pieces and was never acknowledged is dropped, a share of a transaction that was cut off is undone, and
everything else that is not whole is refused. Each of these is logged or raised, once.

This module knows no scans and no commits.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from rocksdict import WriteBatch

from scanner.errors import DataCorrupted, DiskFull, StoreFailed
from scanner.storage.rocksdb.bucket_state import (
    APPLIED,
    IDENTITY_KEY,
    BucketState,
    load_state,
    require_identity,
)
from scanner.storage.rocksdb.changelog import EMPTY_RANGE, encode_log_range
from scanner.storage.rocksdb.database import Database, RocksResources, open_database, write_synced
from scanner.storage.rocksdb.durable_end import read_durable_end
from scanner.storage.rocksdb.files import directory_number, disk_errors
from scanner.storage.rocksdb.log import LOG_RANGE_KEY, read_log_range
from scanner.storage.rocksdb.manifest_length import write_manifest_length
from scanner.storage.rocksdb.torn_manifest import cut_manifest, torn_manifest
from scanner.storage.rocksdb.torn_tail import has_torn_tail
from scanner.storage.rocksdb.unfinished import undo_unfinished, unfinished_range
from scanner.storage.rocksdb.untouched import open_readable, open_untouched
from scanner.storage.rocksdb.wal_batches import first_newer
from scanner.storage.transactions import ALL_KNOWN, AppliedShare

if TYPE_CHECKING:
    from pathlib import Path

    from scanner.storage.interface import KeysOf
    from scanner.storage.rocksdb.files import DirectoryHandle

_logger = logging.getLogger(__name__)


class Opened(NamedTuple):
    """A bucket's database, and what was found in it and beside it."""

    database: Database
    number: tuple[int, int]
    """Of the directory that it was opened in, which RocksDB has open as long as it is."""
    state: BucketState
    durable_end: int
    """The end that the log is known to have had; 0: nothing is known."""


@dataclass(frozen=True, slots=True)
class BucketOpener:
    """Opens the database of one bucket."""

    path: Path
    """Its directory."""
    resources: RocksResources
    """Of the store."""
    keys_of: KeysOf
    """Keys of stored rows."""
    identity: bytes
    """Which bucket of which table it is. A database that does not say so yet is taken for it."""
    place: DirectoryHandle | None
    """The data directory, by which RocksDB finds it. None: that is not looked at."""

    def open(self, *, create: bool, read_only: bool, is_full: bool, durable: int | None) -> Opened:
        """Open the database, and read what it says of itself.

        Args:
            create: Make it, which must not exist; else it must.
            read_only: For reading; nothing in its directory is changed.
            is_full: It is not opened for writing since the disk is full.
            durable: RocksDB's number of the newest change of which that is known. For reading, newer ones are left out;
                where that cannot be, or None is said, no request and no share of them counts as applied.

        Raises:
            ScannerError: It cannot be opened; it is closed.
        """
        whole = torn_manifest(self.path, self.identity, self.resources)
        if whole is not None:
            _logger.warning(
                "%s: the end of its MANIFEST is there in pieces, as after a loss of power; it is dropped, since all"
                " that was durable is there without it",
                self.path,
            )
        if read_only:
            database = open_readable(self.path, self.resources, manifest_bytes=whole, durable=durable)
        else:
            if whole is not None:
                cut_manifest(self.path, whole)
            database = self._open_writable(create=create)
        try:
            number = directory_number(self.path)
            if create:
                self._write_first(database)
            require_identity(database, self.identity)
            reached = database.rocks.latest_sequence_number()  # Undoing has numbers, too.
            self._undo_unfinished(database, is_full=is_full)
            state = load_state(database)
            known = read_durable_end(self.path, self.identity)
            if known is not None and not known.is_reached(state.log_range.end, reached):
                self._tell_lost(database, state.log_range.end, known.end)
            known_end, known_sequence = (0, 0) if known is None else (known.end, known.sequence)
            if read_only and self._logs_go_on(max(durable or 0, known_sequence), reached):
                _logger.warning(
                    "%s: what is read of it may have a write that is not durable; it takes no writes, and could be"
                    " without that one after a loss of power",
                    self.path,
                )
                state = state.applied_until(known_end)
        except BaseException:
            database.close()
            raise
        if not (create or read_only):  # Nothing was replayed.
            write_manifest_length(self.path, self.identity)
        return Opened(database, number, state, known_end)

    def _open_writable(self, *, create: bool) -> Database:
        # RocksDB names each file that it makes or removes, also by itself, by the path that it was opened with.
        through = None if self.place is None else self.place.lasting(self.path)
        try:
            return open_database(self.path, self.resources, through=through, create=create)
        except DataCorrupted:
            if not self._is_tail_unacknowledged():
                raise
        _logger.warning(
            "%s: the newest write is there in pieces, as after a loss of power; it is dropped, since nothing says that"
            " it was acknowledged",
            self.path,
        )
        return open_database(self.path, self.resources, through=through, torn_tail=True)

    def _is_tail_unacknowledged(self) -> bool:
        """Whether all that is damaged is the newest write, and `DURABLE-END` does not say that it was durable."""
        if not has_torn_tail(self.path):
            return False
        with open_untouched(self.path, self.resources) as database:
            log_range, reached = read_log_range(database), database.rocks.latest_sequence_number()
        known = read_durable_end(self.path, self.identity)
        return known is None or known.is_reached(0 if log_range is None else log_range.end, reached)

    def _logs_go_on(self, durable: int, reached: int) -> bool:
        """Whether what was read has changes that are in the write-ahead logs alone, behind one that is durable."""
        with disk_errors(self.path):
            return reached > durable and first_newer(self.path, durable) is not None

    def _write_first(self, database: Database) -> None:
        batch = WriteBatch(raw_mode=True)
        batch.put(LOG_RANGE_KEY, encode_log_range(EMPTY_RANGE), database.meta_family)
        batch.put(IDENTITY_KEY, self.identity, database.meta_family)
        APPLIED.put(database, batch, {}, {ALL_KNOWN: AppliedShare(0, 0, 0)})
        write_synced(database, batch)

    def _undo_unfinished(self, database: Database, *, is_full: bool) -> None:
        """Take back what a crash or a failure cut off."""
        if database.read_only:
            if unfinished_range(database) is not None:
                raise (DiskFull if is_full else StoreFailed)(
                    f"{self.path}: a transaction was being applied and has to be undone first, which the disk refuses;"
                    " make room"
                )
            return
        undone = undo_unfinished(database, self.keys_of)
        if undone:
            _logger.warning(
                "%s: %d changes of a transaction that was being applied were undone; they are applied again",
                self.path,
                undone,
            )

    def _tell_lost(self, database: Database, end: int, durable_end: int) -> None:
        """Say that the log has lost what was acknowledged; refuse it where that is damaged and could be restored."""
        if database.torn_tail:
            raise DataCorrupted(
                f"{self.path}: its newest commit, which was acknowledged, is damaged; restore it from a copy"
            )
        if durable_end <= end:
            _logger.error(
                "%s: the newest commits, which changed no row, are lost, or the directory was restored from an older"
                " copy: what the bucket remembers of reader groups, transactions and writers is older than it was",
                self.path,
            )
            return
        _logger.error(
            "%s: the changelog ends at offset %d, and was durable up to %d: %d acknowledged changes are lost, or"
            " the directory was restored from an older copy; tokens and leases of what is lost are refused",
            self.path,
            end,
            durable_end,
            durable_end - end,
        )
