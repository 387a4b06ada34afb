"""The lifetime of a bucket's database: when it is open, who may use it, and what it takes to close it.

Invariants:

1. The database is not closed while `using` lends it, nor while `preparing` or `committing` is held.
2. After a failed write or sync it is unknown what is on disk. No commits are taken then and no scans opened until it is
   reopened; scans opened before go on over their iterators, and the log is read. Reopened for reading, it is what was
   known to be durable before (`durable`): what is behind that in the write-ahead log could go with the power.
3. A database that was closed for being idle is opened again when it is used next.

This module knows no rows and no log.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from scanner.errors import DataCorrupted, DiskFull, ScannerError, StoreClosed, StoreFailed, TooManyFiles
from scanner.storage.rocksdb.database import flush_database
from scanner.storage.rocksdb.files import require_directory
from scanner.storage.rocksdb.manifest_length import write_manifest_length

if TYPE_CHECKING:
    from scanner.storage.rocksdb.database import Database
    from scanner.storage.rocksdb.opening import BucketOpener, Opened

_logger = logging.getLogger(__name__)


class Lifetime:
    """Opens, lends and closes the database of one bucket.

    Args:
        opener: Opens it.
        on_open: Takes what was found in it and beside it; told whether it was closed for being idle before.
        release: Closes the iterators over it that are open.
    """

    def __init__(
        self,
        opener: BucketOpener,
        on_open: Callable[[Opened, bool], None],
        release: Callable[[], None],
    ) -> None:
        self._opener = opener
        self._path = opener.path
        self._on_open = on_open
        self._release = release
        self.preparing = threading.Lock()
        """Held while a commit is prepared."""
        self.committing = threading.Lock()
        """Held while something is written."""
        self._compacting = threading.Lock()
        self._gate = threading.Condition()
        """Held while the database is opened or closed."""
        self._users = 0
        """Blocks of `using` that run."""
        self._closing = False
        """Whether it is closed for good."""
        self.idle = False
        """Whether it is closed until it is used."""
        self._leaving = False
        """Whether it may not be used, since its directory is about to be removed."""
        self.failure: ScannerError | None = None
        """Why it takes no writes; None: it does."""
        self.database: Database | None = None
        """None: it is closed. What is done with it may find it closed, unless one of the locks is held."""
        self.durable: int | None = None
        """RocksDB's number of the newest change of which it is known to be durable; None: that of none is known."""
        self._number = (0, 0)
        """Of the directory that the database was opened in, which RocksDB has open as long as that."""

    @property
    def readable(self) -> bool:
        """See `Bucket.readable`."""
        return self.failure is None or (self.database is not None and self.database.read_only)

    def open(self, *, create: bool = False, read_only: bool = False) -> None:
        """Open the database. It is not open.

        Raises:
            ScannerError: It cannot be opened; it is closed.
        """
        # Not the failure itself: the error of this opening would keep it, and whatever its traceback keeps.
        is_full = isinstance(self.failure, DiskFull)
        opened = self._opener.open(create=create, read_only=read_only, is_full=is_full, durable=self.durable)
        reached = opened.database.rocks.latest_sequence_number()
        if not read_only:
            # What was replayed is in files by now, which were synced.
            self.durable = reached
        elif self.durable is not None and reached > self.durable:
            # All is shown, and stays so: who has seen it would be told that it was lost.
            self.durable = None
        self._on_open(opened, self.idle)
        self.database, self._number = opened.database, opened.number

    def open_best(self) -> None:
        """Open the database; for reading only where the disk refuses more, as a full one does.

        Raises:
            ScannerError: It cannot be opened; it is closed.
        """
        if self.failure is None:
            try:
                self.open()
            except TooManyFiles:
                raise
            except StoreFailed as error:
                self.fail(error)
            else:
                return
        self.open(read_only=True)

    @contextmanager
    def using(self, *, after_failure: bool = False) -> Iterator[Database]:
        """The database, for reading; it is not closed before the block ends.

        Args:
            after_failure: Also if a write has failed: what is below `log_end` is read, which is durable, or estimated.
        """
        with self._gate:
            database = self._awake()
            if not (after_failure or self.readable):
                raise self._refusal()
            self._users += 1
        try:
            yield database
        finally:
            with self._gate:
                self._users -= 1
                self._gate.notify_all()

    @contextmanager
    def compacting(self) -> Iterator[Database]:
        """The database, for a compaction, one at a time; a close ends it.

        Raises:
            StoreClosed: Behind the block, too: it may have ended early.
        """
        with self._compacting, self.using() as database:
            yield database
            if self._closing:
                raise self._closed()

    def writable(self) -> Database:
        """The database, for writing; its directory is where it was. `preparing` or `committing` is held."""
        with self._gate:
            database = self._awake()
        if self.failure is not None:
            raise self._refusal()
        self.require_in_place()
        return database

    def require_open(self) -> None:
        """Refuse a database that is closed for good; one that is being closed, or opened anew, is waited for."""
        with self._gate:
            if self._leaving:
                raise StoreClosed(f"bucket {self._path} is being dropped")
            if self.database is None and not self.idle:
                raise self._closed() if self.failure is None else self._refusal()

    def require_not_closing(self) -> None:
        """End what may take long and can be left: who closes the database for good, or drops it, waits for it.

        One that is closed for being idle waits: it may be used for this alone, and would never have it done.
        """
        if self._closing or self._leaving:
            raise self._closed()

    def require_in_place(self) -> None:
        """Refuse a directory that was moved: else a commit would be synced into files that nobody finds.

        And RocksDB would make files, and remove those that are not needed, in the directory that has the path now.
        """
        if self._opener.place is not None:
            self._opener.place.require_in_place()
            require_directory(self._path, self._number)

    def fail(self, error: ScannerError) -> None:
        """Take no writes any more, and open no scans, until it is reopened."""
        self.failure = error
        # Its text: who keeps records of the log, as an error tracker, must not keep its traceback (see `open`).
        _logger.error(
            "%s takes no writes until it is reopened, since one failed: %s", self._path, error.message
        )

    def close(self) -> None:
        """Close it for good; see `RocksBucket.close`."""
        with self._alone():
            self._closing, self.idle = True, False
            self._close()

    def suspend(self, *, leaving: bool = False) -> None:
        """Close it until it is used again; see `RocksBucket.suspend`."""
        with self._alone():
            if not self._closing:
                self._leaving = leaving
                self._close()
                self.idle = True

    def stay(self) -> None:
        """Its directory stays after all: it may be used again."""
        self._leaving = False

    def reopen(self, *, writable: bool) -> None:
        """See `Bucket.reopen`."""
        with self._alone():
            if self._closing:
                raise self._closed()
            self._close()
            self.idle = False
            if writable:
                try:
                    self.open()
                except ScannerError as error:
                    self.failure = error
                else:
                    if self.failure is not None:
                        _logger.warning("%s takes writes again", self._path)
                    self.failure = None
                    return
            try:
                self.open(read_only=True)
            except ScannerError as error:
                self.failure = error
                raise

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Run a block that closes the database, when nobody writes."""
        self._release()
        with self.preparing, self.committing, self._gate:
            yield

    def _awake(self) -> Database:
        """The database; opened if it was closed for being idle. `_gate` is held."""
        self.require_open()
        if self.database is None:
            self.require_in_place()
            self.open_best()
            self.idle = False
        assert self.database is not None
        return self.database

    def _close(self) -> None:
        """Close it when nothing uses it; a compaction ends. In `_alone`, whose `_gate` is released while it waits."""
        database = self.database
        if database is None:
            return
        if self._compacting.locked():
            database.rocks.cancel_all_background(False)
        self._gate.wait_for(lambda: not self._users)
        self.database = None
        try:
            self.require_in_place()
        except StoreFailed:
            # No flush: its file would go into the directory that has the path now, and its name into this MANIFEST.
            database.rocks.cancel_all_background(False)
        else:
            if not database.read_only:
                # Closing does it, too, and holds the interpreter's lock meanwhile.
                with suppress(ScannerError):  # As `Database.close` has it.
                    flush_database(database)
        database.close()
        if not database.read_only:  # Closing flushes one family after another.
            with suppress(ScannerError):
                self.require_in_place()  # Otherwise another bucket's directory may be there.
                write_manifest_length(self._path, self._opener.identity)

    def _closed(self) -> StoreClosed:
        return StoreClosed(f"bucket {self._path} was closed")

    def _refusal(self) -> ScannerError:
        failure = self.failure
        assert failure is not None
        kind = type(failure) if isinstance(failure, DiskFull | TooManyFiles | DataCorrupted) else StoreFailed
        refusal = kind(f"{self._path} takes no writes until it is reopened, since one failed: {failure}")
        refusal.__cause__ = failure
        return refusal
