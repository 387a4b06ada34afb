"""One bucket on RocksDB: rows in `kv`, changes in `log`, the log's range and its lineage in `meta`.

A commit is one atomic `WriteBatch` over the three, written to the write-ahead log and synced once. So
whatever a crash leaves, the log is dense, ends where `meta` says, and replaying it gives `kv`. A truncation
is one over `log` and `meta`.

A commit is prepared first: its before-images are read, its changes worked out and encoded. That takes most of the
time and delays no reader; what is left is the write and the sync.

Beside the database lies the durable end (`scanner.storage.rocksdb.durable_end`): should the write-ahead log lose what
was acknowledged, that tells how much.

Invariants:

1. `log_end` is what is durable; it moves after the sync, never before. `log_start` moves before anything
   is dropped, so that a reader that misses a change can say why. Both are ends of entries, always.
2. After a failed write or sync it is unknown what is on disk. The bucket then refuses commits and new scans
   until it is reopened (`RocksBucket.reopen`); scans opened before go on over their iterators, and the log is read.
3. Every open snapshot and reader is known here, and is closed before the database is. So are reads of the log.
4. A database that was closed for being idle is opened again when the bucket is used next; what is known of it stays.
5. What a commit leaves `unfinished` is behind `log_end`, and no scan is opened beside it. Once the bucket was opened
   anew, nothing of it is there (`scanner.storage.rocksdb.unfinished`).
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rocksdict import ColumnFamily, WriteBatch

from scanner.data.keys import ALL_KEYS
from scanner.errors import (
    ArgumentInvalid,
    DataCorrupted,
    DiskFull,
    ScannerError,
    StoreClosed,
    StoreFailed,
    TooManyFiles,
)
from scanner.storage.group_states import (
    GivenEpochs,
    GroupState,
    decode_group_names,
    decode_group_state,
    encode_group_names,
    encode_group_state,
)
from scanner.storage.interface import (
    Change,
    ChangeBlock,
    Checkpoint,
    Entry,
    EntrySize,
    KeyRange,
    KeysOf,
    Mutation,
    Mutations,
    PreparedCommit,
)
from scanner.storage.lineage import HISTORY_BYTES, Lineage, decode_lineage, encode_lineage
from scanner.storage.rocksdb.bucket_splits import split_bucket
from scanner.storage.rocksdb.changelog import (
    EMPTY_RANGE,
    LogRange,
    decode_log_range,
    encode_entry,
    encode_log_range,
    last_key,
    log_key,
    ordinal_of_key,
)
from scanner.storage.rocksdb.checkpoints import make_checkpoint, next_checkpoint_id, note_checkpoint
from scanner.storage.rocksdb.commits import CommitPlan, GroupChanges, plan_commit
from scanner.storage.rocksdb.database import (
    Database,
    RocksResources,
    background_errors,
    compact_database,
    compact_log,
    open_database,
    rocksdb_errors,
)
from scanner.storage.rocksdb.durable_end import DurableEnd, read_durable_end, write_durable_end
from scanner.storage.rocksdb.files import directory_number, require_directory
from scanner.storage.rocksdb.log import (
    LINEAGE_KEY,
    LOG_RANGE_KEY,
    cut_bytes,
    load_log_range,
    stored_bytes,
)
from scanner.storage.rocksdb.log_reader import LogReader
from scanner.storage.rocksdb.manifest_length import write_manifest_length
from scanner.storage.rocksdb.point_reads import RocksReader
from scanner.storage.rocksdb.readers import CheckedIterator, Reading, stored_values
from scanner.storage.rocksdb.snapshot import RocksSnapshot
from scanner.storage.rocksdb.torn_manifest import cut_manifest, torn_manifest
from scanner.storage.rocksdb.torn_tail import has_torn_tail
from scanner.storage.rocksdb.unfinished import UNFINISHED_KEY, undo_unfinished, unfinished_range
from scanner.storage.rocksdb.untouched import open_readable, open_untouched
from scanner.storage.transactions import ALL_KNOWN, AppliedShare, decode_applied, encode_applied
from scanner.storage.writers import WRITERS_MAX, KnownWriters

if TYPE_CHECKING:
    from scanner.storage.interface import BucketSplit, SplitWish
    from scanner.storage.rocksdb.files import DirectoryHandle
    from scanner.storage.rocksdb.space import DiskSpace
    from scanner.storage.writers import AppliedRequest, AppliedRequests

_Remembered = TypeVar("_Remembered")
_IDENTITY_KEY = b"identity"
"""In `meta`: of which table, and which of its buckets, the database is."""
_GROUPS_KEY = b"groups"
"""In `meta`: the names of the reader groups that have a state."""
_GROUP_KEY = b"group/"
"""In `meta`: a reader group's state; its name goes behind it."""
_APPLIED_NAMES_KEY = b"transactions"
"""In `meta`: the names of the transactions of which something was applied."""
_APPLIED_KEY = b"transaction/"
"""In `meta`: what was applied of a transaction; its name goes behind it."""
_WRITER_KEY = b"writer/"
"""In `meta`: what is known of a writer; its place goes behind it, two octets, from 0 on without gaps."""
_WRITERS_READ = 64
"""So many places are read at once."""
_FREED_BYTES_MIN = 1024 * 1024
"""For less of a truncated log no file is written again."""
_CLOCK_BEHIND_US = 1_000_000
"""A clock that is more behind the newest commit was set back, or was ahead then."""

_logger = logging.getLogger(__name__)


def clock_us() -> int:
    """Microseconds since 1970 UTC."""
    return time.time_ns() // 1000


class RocksBucket:
    """See `scanner.storage.interface.Bucket`.

    Args:
        path: Directory of the bucket's database.
        resources: Of the store.
        keys_of: Keys of stored rows.
        identity: Which bucket of which table it is. One that was made before buckets said so is taken for it, and says
            so from its next commit on.
        create: Make the bucket, which must not exist; else it must.
        clock: Microseconds since 1970 UTC, for commit timestamps.
        place: The data directory; nothing is written once it or the bucket's was moved. None: it is not looked at.
        space: Of its disk; nothing is written below its reserve. None: it is not looked at.

    Raises:
        StoreLocked: the directory is open elsewhere.
        DataCorrupted: the database is damaged or gone, or another bucket's, or log and range disagree.
        StoreFailed: the disk refused.
    """

    def __init__(
        self,
        path: Path,
        resources: RocksResources,
        keys_of: KeysOf,
        identity: bytes,
        *,
        create: bool = False,
        clock: Callable[[], int] = clock_us,
        place: DirectoryHandle | None = None,
        space: DiskSpace | None = None,
    ) -> None:
        self._path = path
        self._resources = resources
        self._place = place
        self._space = space
        self._keys_of = keys_of
        self._identity = identity
        self._clock = clock
        self._reading = Reading.of(resources.config)
        self._snapshots: set[RocksSnapshot] = set()
        self._readers: set[RocksReader] = set()
        self._failure: ScannerError | None = None
        self._preparing = threading.Lock()
        self._committing = threading.Lock()
        self._compacting = threading.Lock()
        self._gate = threading.Condition()
        """Held while the database is opened or closed."""
        self._users = 0
        """Reads of the log and compactions that run; the database is not closed meanwhile."""
        self._closing = False
        self._idle = False
        """Whether the database is closed until the bucket is used."""
        self._leaving = False
        """Whether it may not be used, since its directory is about to be removed."""
        self._began_history = False
        """Whether this bucket has written since it was opened."""
        self._clock_behind = False
        self._range = EMPTY_RANGE
        self._reached: LogRange | None = None
        """How far the log goes with what was left unfinished; None: nothing was."""
        self._lineage = Lineage()
        self._applied: dict[str, AppliedShare] = {}
        self._writers = KnownWriters()
        self._group_states: dict[str, GroupState] = {}
        self._given_epochs = GivenEpochs()
        """Also over a failure after which it was opened anew: the readers are still there."""
        self._durable_end = 0
        self._freed = 0
        """Of what was truncated in front of it the disk was given back, since the database was opened."""
        self._database: Database | None = None
        self._number = (0, 0)
        """Of the directory that the database was opened in, which RocksDB has open as long as that."""
        self._log = LogReader(
            path, keys_of, partial(self._using, after_failure=True), self._require_open, lambda: self._range
        )
        if create:
            self._open(create=True)
        else:
            self._open_best()

    @property
    def log_start(self) -> int:
        """The oldest offset that is still readable."""
        return self._range.start

    @property
    def log_end(self) -> int:
        """One past the newest durable change."""
        return self._range.end

    @property
    def log_bytes(self) -> int:
        """See `Bucket.log_bytes`; asks RocksDB for its list of files, a millisecond where there are hundreds."""
        with self._using() as database:
            return stored_bytes(database, self._range)

    def log_bytes_from(self, offset: int) -> int:
        """See `Bucket.log_bytes_from`; costs what `log_bytes` does, and a point read."""
        log_range = self._range
        if offset >= log_range.end:
            return 0
        if offset > log_range.start:
            ordinal = ordinal_of_key(self._log.entry_at(offset)[1])
            log_range = log_range._replace(start=offset, start_ordinal=ordinal)
        with self._using() as database:
            return stored_bytes(database, log_range)

    @property
    def newest_commit_us(self) -> int:
        """See `Bucket.newest_commit_us`."""
        return self._range.timestamp_us

    @property
    def open_iterators(self) -> int:
        """See `Bucket.open_iterators`."""
        return sum(snapshot.iterators for snapshot in self._snapshots) + len(self._readers)

    @property
    def lineage(self) -> Lineage:
        """See `Bucket.lineage`."""
        return self._lineage

    @property
    def group_states(self) -> Mapping[str, GroupState]:
        """See `Bucket.group_states`."""
        return self._group_states

    @property
    def applied_shares(self) -> Mapping[str, AppliedShare]:
        """See `Bucket.applied_shares`."""
        return self._applied

    def requests_of(self, writer_id: bytes) -> AppliedRequests:
        """See `Bucket.requests_of`."""
        return self._writers.requests_of(writer_id)

    @property
    def lost_changes(self) -> int:
        """See `Bucket.lost_changes`."""
        unrecorded = 0 if self._began_history else max(0, self._durable_end - self._range.end)
        return self._lineage.lost_changes + unrecorded

    @property
    def failure(self) -> ScannerError | None:
        """See `Bucket.failure`."""
        return self._failure

    @property
    def readable(self) -> bool:
        """See `Bucket.readable`."""
        return self._failure is None or (self._database is not None and self._database.read_only)

    @property
    def idle(self) -> bool:
        """See `Bucket.idle`."""
        return self._idle

    def prepare(
        self, groups: Sequence[Sequence[Mutation]], clock_us: int | None = None, after_us: int = 0
    ) -> PreparedCommit:
        """See `Bucket.prepare`."""
        with self._preparing:
            database = self._writable()
            self._require_room(0)
            return self._prepare(database, groups, self._clock() if clock_us is None else clock_us, after_us)

    def commit_prepared(
        self,
        prepared: PreparedCommit,
        group_states: Mapping[str, GroupState | None] | None = None,
        applied: Mapping[str, AppliedShare | None] | None = None,
        requests: Mapping[bytes, Sequence[AppliedRequest]] | None = None,
        *,
        unfinished: bool = False,
    ) -> None:
        """See `Bucket.commit_prepared`."""
        with self._committing:
            database = self._writable()
            self._require_room(prepared.contents[0].size_in_bytes())
            self._require_follows(prepared)
            if unfinished:
                self._commit_unfinished(database, prepared)
            else:
                self._commit(database, prepared, group_states or {}, applied or {}, requests or {})

    def commit(
        self, groups: Sequence[Sequence[Mutation]], clock_us: int | None = None
    ) -> list[tuple[int, int]]:
        """See `Bucket.commit`."""
        prepared = self.prepare(groups, clock_us)
        for refusal in prepared.refusals.values():
            raise refusal
        self.commit_prepared(prepared)
        return prepared.offsets

    def open_snapshot(self) -> RocksSnapshot:
        """See `Bucket.open_snapshot`."""
        with self._using() as database:
            self._require_finished()
            log_offset = self._range.end
            snapshot = RocksSnapshot(
                CheckedIterator(database.kv, self._path, self._reading),
                log_offset,
                self._keys_of,
                partial(self._values_as_of, log_offset),
                self._snapshots.discard,
            )
            self._snapshots.add(snapshot)
            return snapshot

    def open_reader(self) -> RocksReader:
        """See `Bucket.open_reader`."""
        with self._using() as database:
            self._require_finished()
            reader = RocksReader(database.kv, self._path, self._range.end, self._readers.discard)
            self._readers.add(reader)
            return reader

    def read_changes(self, start_offset: int, end_offset: int) -> Iterator[Change]:
        """See `Bucket.read_changes`."""
        return self._log.changes(start_offset, end_offset)

    def read_change_block(self, start_offset: int, end_offset: int, bytes_max: int) -> ChangeBlock:
        """See `Bucket.read_change_block`."""
        return self._log.block(start_offset, end_offset, bytes_max)

    def entry_at(self, offset: int) -> Entry:
        """See `Bucket.entry_at`."""
        return self._log.entry_at(offset)[0]

    def measure_entries(self, start_offset: int, entries_max: int, bytes_max: int) -> list[EntrySize]:
        """See `Bucket.measure_entries`."""
        return self._log.entry_sizes(start_offset, entries_max, bytes_max)

    def offset_at(self, timestamp_us: int) -> int:
        """See `Bucket.offset_at`."""
        return self._log.offset_at(timestamp_us)

    def split(self, wish: SplitWish, key_range: KeyRange = ALL_KEYS) -> BucketSplit:
        """See `Bucket.split`."""
        with self._using() as database:
            return split_bucket(database, self._reading, wish, key_range)

    def truncate_log(self, start_offset: int) -> None:
        """See `Bucket.truncate_log`."""
        with self._committing:
            database = self._writable()
            self._require_in_place()
            if start_offset <= self._range.start:
                return
            start, ordinal = self._range.end, self._range.end_ordinal
            if start_offset < start:
                start = self._log.entry_at(start_offset)[0].start
                ordinal = ordinal_of_key(self._log.entry_at(start)[1])
            if start <= self._range.start:
                return
            batch = WriteBatch(raw_mode=True)
            batch.delete_range(log_key(0), log_key(start, ordinal), database.log_family)
            self._range = self._range._replace(start=start, start_ordinal=ordinal)
            batch.put(LOG_RANGE_KEY, encode_log_range(self._range), database.meta_family)
            self._make_durable(database, batch)
            self._note_durable(database)

    def create_checkpoint(self, directory: Path) -> Checkpoint:
        """Keep the state as of now in a directory of the bucket's checkpoints. See `Store.create_checkpoint`."""
        with self._committing:
            database = self._writable()
            self._require_finished()
            self._require_room(0)
            log_offset = self._range.end
            history = self._lineage.history_of(log_offset)
            checkpoint_id = next_checkpoint_id(database, directory)
            checkpoint = Checkpoint(checkpoint_id, log_offset, self._clock(), history)
            batch = WriteBatch(raw_mode=True)
            note_checkpoint(database, batch, checkpoint)
            self._make_durable(database, batch)
            self._note_durable(database)
            errors = background_errors(database)
            try:
                make_checkpoint(database, directory, checkpoint)
            except ScannerError as error:
                if background_errors(database) != errors:
                    self._fail(error)  # RocksDB takes no writes after that.
                raise
            return checkpoint

    def free_log(self) -> bool:
        """See `Bucket.free_log`. RocksDB does it by itself where more is written, and never where nothing is."""
        with self._compacting, self._using() as database:
            log_range = self._range
            if self._failure is not None or self._freed == log_range.start:
                return False
            cut, kept = cut_bytes(database, log_range)
            if cut < max(_FREED_BYTES_MIN, kept) or not self._has_free(kept):
                return False
            compact_log(database, last_key(log_range.start - 1))
            self._freed = log_range.start
            if self._closing:
                raise StoreClosed(f"bucket {self._path} was closed")
            return True

    def compact(self) -> None:
        """See `Bucket.compact`."""
        with self._compacting, self._using() as database:
            if self._failure is not None:
                raise self._refusal()
            compact_database(database)
            if self._closing:
                raise StoreClosed(f"bucket {self._path} was closed")

    def close(self) -> None:
        """Close every snapshot and reader, then the database; its directory is free then. Idempotent.

        Lets a commit that is running in another thread finish first, and ends a compaction.
        """
        self._close_readers()
        with self._preparing, self._committing, self._gate:
            self._closing, self._idle = True, False
            self._close_database()

    def reopen(self, *, writable: bool) -> None:
        """See `Bucket.reopen`."""
        self._close_readers()
        with self._preparing, self._committing, self._gate:
            if self._closing:
                raise StoreClosed(f"bucket {self._path} was closed")
            self._close_database()
            self._idle = False
            if writable:
                try:
                    self._open()
                except ScannerError as error:
                    self._failure = error
                else:
                    if self._failure is not None:
                        _logger.warning("%s takes writes again", self._path)
                    self._failure = None
                    return
            try:
                self._open(read_only=True)
            except ScannerError as error:
                self._failure = error
                raise

    def close_idle(self) -> None:
        """See `Bucket.close_idle`."""
        held = self._snapshots or self._readers
        if self._database is not None and self._failure is None and not held:
            self.suspend()

    def suspend(self, *, leaving: bool = False) -> None:
        """Close it as `close` does, until it is used again.

        Args:
            leaving: Its directory is about to go: who uses it gets StoreClosed, until `stay`.
        """
        self._close_readers()
        with self._preparing, self._committing, self._gate:
            if not self._closing:
                self._leaving = leaving
                self._close_database()
                self._idle = True

    def stay(self) -> None:
        """Its directory stays after all: it may be used again."""
        self._leaving = False

    def wake(self) -> None:
        """See `Bucket.wake`."""
        with self._using():
            pass

    def flush(self) -> None:
        """Write everything from memory into files, as RocksDB does by itself when its buffers are full.

        Raises:
            StoreFailed: the disk refused.
        """
        with self._using() as database, rocksdb_errors(self._path):
            database.kv.flush()
            database.log.flush()
            write_manifest_length(self._path, self._identity)

    def _open(self, *, create: bool = False, read_only: bool = False) -> None:
        """Open the database, and read what it says of itself. It is not open.

        Raises:
            ScannerError: It cannot be opened; it is closed.
        """
        whole = torn_manifest(self._path, self._identity, self._resources)
        if whole is not None:
            _logger.warning(
                "%s: the end of its MANIFEST is there in pieces, as after a loss of power; it is dropped, since all"
                " that was durable is there without it",
                self._path,
            )
        if read_only:
            database = open_readable(self._path, self._resources, manifest_bytes=whole)
        else:
            if whole is not None:
                cut_manifest(self._path, whole)
            database = self._open_writable(create=create)
        try:
            self._number = directory_number(self._path)
            if create:
                self._write_first_range(database)
            self._require_identity(database)
            self._undo_unfinished(database)
            log_range, lineage = load_log_range(database), self._load_lineage(database)
            if database.torn_tail and self._was_durable_past(log_range.end):
                raise DataCorrupted(
                    f"{self._path}: its newest commit, which was acknowledged, is damaged; restore it from a copy"
                )
            if not (self._idle and (log_range, lineage) == (self._range, self._lineage)):
                # It is not what this bucket has closed, or a write has failed in between: a history of its own.
                self._began_history = False
            self._range = log_range
            self._lineage = _checked_lineage(lineage, log_range, self._path)
            self._group_states = self._load_remembered(database, _GROUPS_KEY, _GROUP_KEY, decode_group_state)
            self._applied = self._load_remembered(database, _APPLIED_NAMES_KEY, _APPLIED_KEY, decode_applied)
            self._writers = KnownWriters(self._load_writers(database))
            self._durable_end = self._load_durable_end()
            self._freed = 0
        except BaseException:
            database.close()
            raise
        if not (create or read_only):  # Nothing was replayed.
            write_manifest_length(self._path, self._identity)
        self._database = database

    def _open_writable(self, *, create: bool) -> Database:
        # RocksDB names each file that it makes or removes, also by itself, by the path that it was opened with.
        through = None if self._place is None else self._place.lasting(self._path)
        try:
            return open_database(self._path, self._resources, through=through, create=create)
        except DataCorrupted:
            if not self._is_tail_unacknowledged():
                raise
        _logger.warning(
            "%s: the newest write is there in pieces, as after a loss of power; it is dropped, since nothing says that"
            " it was acknowledged",
            self._path,
        )
        return open_database(self._path, self._resources, through=through, torn_tail=True)

    def _is_tail_unacknowledged(self) -> bool:
        """Whether all that is damaged is the newest write, and `DURABLE-END` does not say that it was durable."""
        if not has_torn_tail(self._path):
            return False
        with open_untouched(self._path, self._resources) as database, rocksdb_errors(self._path):
            stored = database.meta.get(LOG_RANGE_KEY)
        return not self._was_durable_past(0 if stored is None else decode_log_range(stored).end)

    def _was_durable_past(self, end: int) -> bool:
        """Whether `DURABLE-END` says that the log was durable past an offset."""
        known = read_durable_end(self._path, self._identity)
        return known is not None and known.end > end

    def _open_best(self) -> None:
        """Open the database; for reading only where the disk refuses more, as a full one does.

        Raises:
            ScannerError: It cannot be opened; it is closed.
        """
        if self._failure is None:
            try:
                self._open()
            except TooManyFiles:
                raise
            except StoreFailed as error:
                self._fail(error)
            else:
                return
        self._open(read_only=True)

    def _close_readers(self) -> None:
        for snapshot in list(self._snapshots):
            snapshot.close()
        for reader in list(self._readers):
            reader.close()

    def _close_database(self) -> None:
        """Close it when nothing uses it; a compaction ends. `_gate` is held, and released while it waits."""
        database = self._database
        if database is None:
            return
        if self._compacting.locked():
            database.rocks.cancel_all_background(False)
        self._gate.wait_for(lambda: not self._users)
        # It may have been closed while we waited.
        database, self._database = self._database, None
        self._reached = None
        if database is not None:
            try:
                self._require_in_place()
            except StoreFailed:
                # No flush: its file would go into the directory that has the path now, and its name into this MANIFEST.
                database.rocks.cancel_all_background(False)
            database.close()
            if not database.read_only:  # Closing flushes one family after another.
                self._note_manifest()

    def _note_manifest(self) -> None:
        with suppress(ScannerError):
            self._require_in_place()  # Otherwise another bucket's directory may be there.
            write_manifest_length(self._path, self._identity)

    def _require_open(self) -> None:
        """Refuse a bucket that is closed for good; one that is being closed, or opened anew, is waited for."""
        with self._gate:
            if self._leaving:
                raise StoreClosed(f"bucket {self._path} is being dropped")
            if self._database is None and not self._idle:
                raise (
                    StoreClosed(f"bucket {self._path} was closed")
                    if self._failure is None
                    else self._refusal()
                )

    def _awake(self) -> Database:
        """The database; opened if it was closed for being idle. `_gate` is held."""
        self._require_open()
        if self._database is None:
            self._require_in_place()
            self._open_best()
            self._idle = False
        assert self._database is not None
        return self._database

    @contextmanager
    def _using(self, *, after_failure: bool = False) -> Iterator[Database]:
        """The database, for reading; it is not closed before the block ends.

        Args:
            after_failure: Also if a write has failed: only what is below `log_end` is read, which is durable.
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

    def _writable(self) -> Database:
        """The database, for writing; it is not closed while `_preparing` or `_committing` is held."""
        with self._gate:
            database = self._awake()
        if self._failure is not None:
            raise self._refusal()
        return database

    def _refusal(self) -> ScannerError:
        failure = self._failure
        assert failure is not None
        kind = type(failure) if isinstance(failure, DiskFull | TooManyFiles | DataCorrupted) else StoreFailed
        refusal = kind(f"{self._path} takes no writes until it is reopened, since one failed: {failure}")
        refusal.__cause__ = failure
        return refusal

    def _require_in_place(self) -> None:
        if self._place is not None:
            self._place.require_in_place()
            # Else a commit would be synced into files that nobody finds.
            require_directory(self._path, self._number)

    def _require_room(self, wanted_bytes: int) -> None:
        self._require_in_place()
        if self._space is not None:
            self._space.require_room(wanted_bytes)

    def _has_free(self, wanted_bytes: int) -> bool:
        return self._space is None or self._space.has_free(wanted_bytes)

    def _values_as_of(self, log_offset: int, key_range: KeyRange, short: bool) -> Iterator[bytes] | None:
        """The rows of a range, of which few will be read or all, if they still are as of an offset."""
        # A running commit shows its rows before it moves log_end, and a failed one may.
        if not self._committing.acquire(blocking=False):
            return None
        try:
            database = self._database
            unfinished = self._reached is not None
            if database is None or not self.readable or unfinished or self._range.end != log_offset:
                return None
            return stored_values(database.kv, self._path, self._reading, key_range, short=short)
        finally:
            self._committing.release()

    def _require_identity(self, database: Database) -> None:
        """Refuse the directory of another bucket under the name of this one: its rows would pass for this one's."""
        with rocksdb_errors(self._path):
            stored = database.meta.get(_IDENTITY_KEY)
        if stored not in (None, self._identity):
            raise DataCorrupted(
                f"{self._path} holds another bucket ({bytes(stored).decode(errors='replace')}, and not"
                f" {self._identity.decode()}): its directory was renamed or copied; give each its own name back"
            )

    def _load_lineage(self, database: Database) -> Lineage:
        with rocksdb_errors(self._path):
            stored = database.meta.get(LINEAGE_KEY)
        return decode_lineage(stored)

    def _load_remembered(
        self,
        database: Database,
        names_key: bytes,
        prefix: bytes,
        decode: Callable[[str, bytes | None], _Remembered],
    ) -> dict[str, _Remembered]:
        with rocksdb_errors(self._path):
            names = decode_group_names(database.meta.get(names_key))
            return {name: decode(name, database.meta.get(prefix + name.encode())) for name in names}

    def _load_writers(self, database: Database) -> Iterator[bytes]:
        for first in range(0, WRITERS_MAX, _WRITERS_READ):
            places: Any = [_writer_key(place) for place in range(first, first + _WRITERS_READ)]
            with rocksdb_errors(self._path):
                stored: Any = database.meta.get(places) or ()
                values = [each for each in stored if each is not None]
            yield from values
            if len(values) < _WRITERS_READ:
                return

    def _undo_unfinished(self, database: Database) -> None:
        """Take back what a crash or a failure cut off."""
        if database.read_only:
            if unfinished_range(database) is not None:
                kind = DiskFull if isinstance(self._failure, DiskFull) else StoreFailed
                raise kind(
                    f"{self._path}: a transaction was being applied and has to be undone first, which the disk refuses;"
                    " make room"
                )
            return
        undone = undo_unfinished(database, self._keys_of)
        if undone:
            _logger.warning(
                "%s: %d changes of a transaction that was being applied were undone; they are applied again",
                self._path,
                undone,
            )

    def _load_durable_end(self) -> int:
        """The end that the log is known to have had; logged, if it has not."""
        known = read_durable_end(self._path, self._identity)
        if known is None:
            return self._range.end
        if known.end > self._range.end:
            _logger.error(
                "%s: the changelog ends at offset %d, and was durable up to %d: %d acknowledged changes are lost, or"
                " the directory was restored from an older copy; tokens and leases of what is lost are refused",
                self._path,
                self._range.end,
                known.end,
                known.end - self._range.end,
            )
        return known.end

    def _prepare(
        self, database: Database, groups: Sequence[Sequence[Mutation]], clock_us: int, after_us: int
    ) -> PreparedCommit:
        plan = plan_commit(list(map(Mutations.of, groups)), partial(self._read_rows, database))
        batch = WriteBatch(raw_mode=True)
        first = log_range = self._reached or self._range
        continues = self._reached is not None
        offsets: list[tuple[int, int]] = []
        refusals: dict[int, ScannerError] = {}
        for index, changes in enumerate(plan.groups):
            start = end = log_range.end
            if isinstance(changes, ArgumentInvalid):
                refusals[index] = changes
            elif len(changes.rows):
                end = start + len(changes.rows)
                timestamp_us = max(clock_us, log_range.timestamp_us + 1, after_us + 1)
                entry = Entry(start, end, timestamp_us, clock_us, continues)
                log_range = _put_entry(batch, database.log_family, log_range, entry, changes)
            offsets.append((start, end))
        _put_rows(batch, database.kv_family, plan)
        return PreparedCommit(first.end, offsets, refusals, (batch, log_range))

    def _read_rows(self, database: Database, keys: list[bytes]) -> Sequence[bytes | None]:
        wanted: list[Any] = keys
        with rocksdb_errors(self._path):
            rows: Any = database.kv.get(wanted) or ()
            return tuple(rows)

    def _require_follows(self, prepared: PreparedCommit) -> None:
        end = (self._reached or self._range).end
        if prepared.start != end:
            raise StoreFailed(
                f"{self._path}: a commit was prepared for the log's end at {prepared.start}, and it ends at {end};"
                " nothing was written"
            )

    def _require_finished(self) -> None:
        if self._reached is not None:
            raise StoreFailed(f"{self._path}: a transaction is being applied; nothing is opened beside it")

    def _commit_unfinished(self, database: Database, prepared: PreparedCommit) -> None:
        """Write a part of what the next commits continue."""
        batch, log_range = prepared.contents
        batch.put(UNFINISHED_KEY, encode_log_range(log_range), database.meta_family)
        self._make_durable(database, batch)
        self._reached = log_range

    def _commit(
        self,
        database: Database,
        prepared: PreparedCommit,
        group_states: Mapping[str, GroupState | None],
        applied: Mapping[str, AppliedShare | None],
        requests: Mapping[bytes, Sequence[AppliedRequest]],
    ) -> None:
        batch, log_range = prepared.contents
        lineage = self._lineage
        begun = log_range.end != self._range.end and not self._began_history
        if begun:
            lineage = lineage.begin(secrets.token_bytes(HISTORY_BYTES), self._range.end, self._durable_end)
            batch.put(LINEAGE_KEY, encode_lineage(lineage), database.meta_family)
        changed = self._given_epochs.with_histories(
            self._group_states, group_states, lineage.newest, begun=begun
        )
        states = _put_changed(
            database, batch, _GROUPS_KEY, _GROUP_KEY, self._group_states, changed, encode_group_state
        )
        shares = _put_changed(
            database, batch, _APPLIED_NAMES_KEY, _APPLIED_KEY, self._applied, applied, encode_applied
        )
        writers = self._writers.updated(requests)
        for place, record in writers.items():
            batch.put(_writer_key(place), record, database.meta_family)
        if self._reached is not None:
            batch.delete(UNFINISHED_KEY, database.meta_family)
        if log_range.end == self._range.end:
            # A history begins with a change, not with what is remembered of readers, transactions and writers.
            if group_states or applied or writers or self._reached is not None:
                self._make_durable(database, batch)
                self._group_states, self._applied, self._reached = states, shares, None
                self._writers.take(writers)
                self._note_durable(database)
            return
        self._watch_clock(log_range)
        # What was truncated since it was prepared stays truncated.
        log_range = log_range._replace(start=self._range.start, start_ordinal=self._range.start_ordinal)
        batch.put(LOG_RANGE_KEY, encode_log_range(log_range), database.meta_family)
        self._make_durable(database, batch)
        # A concurrent reader of the log sees the new end only when its history is known.
        self._lineage, self._range, self._began_history = lineage, log_range, True
        self._group_states, self._applied, self._reached = states, shares, None
        self._writers.take(writers)
        self._note_durable(database)

    def _watch_clock(self, log_range: LogRange) -> None:
        """Say once when the clock falls behind the commit times, and once when it has caught up."""
        behind_us = log_range.timestamp_us - log_range.clock_us
        behind = behind_us > _CLOCK_BEHIND_US
        if behind and not self._clock_behind:
            _logger.warning(
                "%s: the clock is %.1f s behind the newest commit, or what tails were told of it; commit times go on "
                "from there, a microsecond a commit, until the clock has caught up",
                self._path,
                behind_us / 1e6,
            )
        elif self._clock_behind and not behind:
            _logger.warning("%s: the clock has caught up with the commit times", self._path)
        self._clock_behind = behind

    def _make_durable(self, database: Database, batch: WriteBatch) -> None:
        # In each batch: a write-ahead log of another bucket, wherever it begins, is replayed and then refused.
        batch.put(_IDENTITY_KEY, self._identity, database.meta_family)
        try:
            with rocksdb_errors(self._path):
                database.rocks.write(batch)
                database.rocks.flush_wal(sync=True)
        except ScannerError as error:
            self._fail(error)
            raise StoreFailed(f"nothing of this write is promised: {error}") from error

    def _note_durable(self, database: Database) -> None:
        """Write into `DURABLE-END` what is durable now, once `_range` and `_lineage` say so."""
        # Until a history records what was lost, the file alone tells of it.
        end = self._range.end if self._began_history else max(self._range.end, self._durable_end)
        durable = DurableEnd(end, self._lineage.newest, database.rocks.latest_sequence_number())
        write_durable_end(self._path, self._identity, durable)

    def _fail(self, error: ScannerError) -> None:
        """Take no writes any more, and open no scans, until it is reopened."""
        self._failure = error
        _logger.error("%s takes no writes until it is reopened, since one failed: %s", self._path, error)

    def _write_first_range(self, database: Database) -> None:
        batch = WriteBatch(raw_mode=True)
        batch.put(LOG_RANGE_KEY, encode_log_range(EMPTY_RANGE), database.meta_family)
        known = {ALL_KNOWN: AppliedShare(0, 0, 0)}
        _put_changed(database, batch, _APPLIED_NAMES_KEY, _APPLIED_KEY, {}, known, encode_applied)
        self._make_durable(database, batch)


def _writer_key(place: int) -> bytes:
    return _WRITER_KEY + place.to_bytes(2, "big")


def _put_entry(
    batch: WriteBatch, family: ColumnFamily, log_range: LogRange, entry: Entry, changes: GroupChanges
) -> LogRange:
    """Add an entry to a commit; the log's range with it."""
    ordinal = log_range.end_ordinal
    for key, value in encode_entry(entry, ordinal, changes.kinds, changes.rows):
        batch.put(key, value, family)
        ordinal += 1
    return log_range._replace(
        end=entry.end, end_ordinal=ordinal, timestamp_us=entry.timestamp_us, clock_us=entry.clock_us
    )


def _put_rows(batch: WriteBatch, family: ColumnFamily, plan: CommitPlan) -> None:
    """Add what becomes of the keys to a commit."""
    put, delete = batch.put, batch.delete
    for key, row in zip(plan.keys, plan.rows, strict=True):
        if row is None:
            delete(key, family)
        else:
            put(key, row, family)


def _put_changed(
    database: Database,
    batch: WriteBatch,
    names_key: bytes,
    prefix: bytes,
    before: Mapping[str, _Remembered],
    changed: Mapping[str, _Remembered | None],
    encode: Callable[[_Remembered], bytes],
) -> dict[str, _Remembered]:
    """Add to a commit what becomes of things that `meta` has by name, None if they go; all of them as they are then."""
    after = dict(before)
    for name, value in changed.items():
        if value is None:
            after.pop(name, None)
            batch.delete(prefix + name.encode(), database.meta_family)
        else:
            after[name] = value
            batch.put(prefix + name.encode(), encode(value), database.meta_family)
    if after.keys() != before.keys():
        batch.put(names_key, encode_group_names(list(after)), database.meta_family)
    return after


def _checked_lineage(lineage: Lineage, log_range: LogRange, path: Path) -> Lineage:
    """A lineage that may belong to a log of this range.

    Raises:
        DataCorrupted: It does not.
    """
    if lineage.histories and lineage.histories[-1].start >= max(1, log_range.end):
        raise DataCorrupted(
            f"{path}: the log ends at {log_range.end}, before its newest history begins, at"
            f" {lineage.histories[-1].start}; restore the files from a copy"
        )
    return lineage
