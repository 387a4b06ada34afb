"""One bucket on RocksDB: rows in `kv`, changes in `log`, the log's range and its lineage in `meta`.

A commit is one atomic `WriteBatch` over the three, written to the write-ahead log and synced once. So
whatever a crash leaves, the log is dense, ends where `meta` says, and replaying it gives `kv`. A truncation
moves the log's start in `meta`; what is in front of that is nobody's, until `free_log` deletes it.

A commit is prepared first: its before-images are read, its changes worked out and encoded. That takes most of the
time and delays no reader; what is left is the write and the sync.

Beside the database lies the durable end (`scanner.storage.rocksdb.durable_end`): should the write-ahead log lose what
was acknowledged, that tells how much.

When the database is open, and what a failed write means, is in `lifetime`; what opening it mends, in `opening`.

Invariants:

1. `log_end` is what is durable; it moves after the sync, never before. `log_start` moves before anything
   is dropped, so that a reader that misses a change can say why. Both are ends of entries, always.
2. Every open snapshot and reader is known here, and is closed before the database is.
3. What a commit leaves `unfinished` is behind `log_end`, and no scan is opened beside it. Once the bucket was opened
   anew, nothing of it is there (`scanner.storage.rocksdb.unfinished`).
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rocksdict import ColumnFamily, WriteBatch

from scanner.data.keys import ALL_KEYS
from scanner.errors import (
    ArgumentInvalid,
    DataCorrupted,
    ScannerError,
    StoreFailed,
)
from scanner.storage.group_states import GivenEpochs, GroupState
from scanner.storage.interface import (
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
from scanner.storage.lineage import HISTORY_BYTES, Lineage, encode_lineage
from scanner.storage.rocksdb.bucket_splits import split_bucket
from scanner.storage.rocksdb.bucket_state import (
    APPLIED,
    GROUPS,
    IDENTITY_KEY,
    BucketState,
    put_writers,
)
from scanner.storage.rocksdb.changelog import (
    LogRange,
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
    flush_database,
    join_log_files,
    rocksdb_errors,
    unflushed_bytes,
    write_synced,
)
from scanner.storage.rocksdb.durable_end import DurableEnd, write_durable_end
from scanner.storage.rocksdb.lifetime import Lifetime
from scanner.storage.rocksdb.log import (
    LINEAGE_KEY,
    LOG_RANGE_KEY,
    cut_bytes,
    cut_files,
    files_to_join,
    log_files,
    put_truncated,
    require_readable,
    stored_bytes,
)
from scanner.storage.rocksdb.log_reader import LogReader
from scanner.storage.rocksdb.manifest_length import write_manifest_length
from scanner.storage.rocksdb.opening import BucketOpener
from scanner.storage.rocksdb.point_reads import RocksReader
from scanner.storage.rocksdb.readers import CheckedIterator, Reading, stored_values
from scanner.storage.rocksdb.snapshot import RocksSnapshot
from scanner.storage.rocksdb.unfinished import UNFINISHED_KEY

if TYPE_CHECKING:
    from scanner.storage.interface import BucketSplit, SplitWish
    from scanner.storage.rocksdb.files import DirectoryHandle
    from scanner.storage.rocksdb.log import LogFile
    from scanner.storage.rocksdb.opening import Opened
    from scanner.storage.rocksdb.space import DiskSpace
    from scanner.storage.splits import Piece
    from scanner.storage.transactions import AppliedShare
    from scanner.storage.writers import AppliedRequest, AppliedRequests

_FREED_BYTES_MIN = 1024 * 1024
"""For less of a truncated log nothing is done."""
_FREED_SHARE: Final = 16
"""Of a long log so much is freed at once: each time its memtables are flushed."""
_CLOCK_BEHIND_US = 1_000_000
"""A clock that is more behind the newest commit was set back, or was ahead then."""

_logger = logging.getLogger(__name__)


class RocksBucket:
    """See `scanner.storage.interface.Bucket`.

    Args:
        path: Directory of the bucket's database.
        resources: Of the store.
        keys_of: Keys of stored rows.
        identity: Which bucket of which table it is. One that was made before buckets said so is taken for it, and says
            so from its next commit on.
        create: Make the bucket, which must not exist; else it must.
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
        place: DirectoryHandle | None = None,
        space: DiskSpace | None = None,
    ) -> None:
        self._path = path
        self._space = space
        self._keys_of = keys_of
        self._identity = identity
        self._reading = Reading.of(resources.config)
        self._snapshots: set[RocksSnapshot] = set()
        self._readers: set[RocksReader] = set()
        self._began_history = False
        """Whether this bucket has written since it was opened."""
        self._clock_behind = False
        self._state = BucketState()
        self._reached: LogRange | None = None
        """How far the log goes with what was left unfinished; None: nothing was."""
        self._given_epochs = GivenEpochs()
        """Also over a failure after which it was opened anew: the readers are still there."""
        self._durable_end = 0
        self._freed = 0
        """Of what was truncated in front of it the disk was given back, since the database was opened."""
        self._damage: str | None = None
        """What is wrong with a file of what was to be given back, or all cut; it is not read again until it may be
        another one, after the database was opened anew."""
        self._readable_end = 0
        """All chunks of the log with smaller ordinals have been read from their files since the database was opened."""
        opener = BucketOpener(path, resources, keys_of, identity, place)
        self._lifetime = Lifetime(opener, self._take, self._close_readers)
        self._log = LogReader(
            path,
            keys_of,
            partial(self._lifetime.using, after_failure=True),
            self._lifetime.require_open,
            lambda: self._state.log_range,
        )
        if create:
            self._lifetime.open(create=True)
        else:
            self._lifetime.open_best()

    @property
    def log_start(self) -> int:
        """The oldest offset that is still readable."""
        return self._state.log_range.start

    @property
    def log_end(self) -> int:
        """One past the newest durable change."""
        return self._state.log_range.end

    @property
    def log_bytes(self) -> int:
        """See `Bucket.log_bytes`; asks RocksDB for its list of files, a millisecond where there are hundreds."""
        with self._lifetime.using() as database:
            return stored_bytes(database, self._state.log_range)

    def log_bytes_from(self, offset: int) -> int:
        """See `Bucket.log_bytes_from`; costs what `log_bytes` does, and a point read."""
        log_range = self._state.log_range
        if offset >= log_range.end:
            return 0
        if offset > log_range.start:
            ordinal = ordinal_of_key(self._log.entry_at(offset)[1])
            log_range = log_range._replace(start=offset, start_ordinal=ordinal)
        with self._lifetime.using() as database:
            return stored_bytes(database, log_range)

    @property
    def newest_commit_us(self) -> int:
        """See `Bucket.newest_commit_us`."""
        return self._state.log_range.timestamp_us

    @property
    def truncated_commit_us(self) -> int | None:
        """See `Bucket.truncated_commit_us`."""
        return self._state.truncated_us

    @property
    def open_iterators(self) -> int:
        """See `Bucket.open_iterators`."""
        return sum(snapshot.iterators for snapshot in self._snapshots) + len(self._readers)

    @property
    def lineage(self) -> Lineage:
        """See `Bucket.lineage`."""
        return self._state.lineage

    @property
    def group_states(self) -> Mapping[str, GroupState]:
        """See `Bucket.group_states`."""
        return self._state.groups

    @property
    def applied_shares(self) -> Mapping[str, AppliedShare]:
        """See `Bucket.applied_shares`."""
        return self._state.applied

    def requests_of(self, writer_id: bytes) -> AppliedRequests:
        """See `Bucket.requests_of`."""
        return self._state.writers.requests_of(writer_id)

    @property
    def lost_changes(self) -> int:
        """See `Bucket.lost_changes`."""
        unrecorded = 0 if self._began_history else max(0, self._durable_end - self._state.log_range.end)
        return self._state.lineage.lost_changes + unrecorded

    @property
    def failure(self) -> ScannerError | None:
        """See `Bucket.failure`."""
        return self._lifetime.failure

    @property
    def readable(self) -> bool:
        """See `Bucket.readable`."""
        return self._lifetime.readable

    @property
    def hides(self) -> bool:
        """See `Bucket.hides`."""
        database = self._lifetime.database
        return database is not None and database.hides

    @property
    def idle(self) -> bool:
        """See `Bucket.idle`."""
        return self._lifetime.idle

    def prepare(
        self, groups: Sequence[Sequence[Mutation]], clock_us: int | None = None, after_us: int = 0
    ) -> PreparedCommit:
        """See `Bucket.prepare`."""
        with self._lifetime.preparing:
            database = self._lifetime.writable()
            self._require_room(0)
            return self._prepare(database, groups, _now_us() if clock_us is None else clock_us, after_us)

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
        with self._lifetime.committing:
            database = self._lifetime.writable()
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
        with self._lifetime.using() as database:
            self._require_finished()
            log_offset = self._state.log_range.end
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
        with self._lifetime.using() as database:
            self._require_finished()
            reader = RocksReader(database.kv, self._path, self._state.log_range.end, self._readers.discard)
            self._readers.add(reader)
            return reader

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

    def share_start(self, offset: int) -> int:
        """See `Bucket.share_start`."""
        return self._log.share_start(offset)

    def split(
        self, wish: SplitWish, key_range: KeyRange = ALL_KEYS, known: Sequence[Piece] = ()
    ) -> BucketSplit:
        """See `Bucket.split`."""
        # Cuts are an estimate: rows of a commit that has failed do no harm.
        with self._lifetime.using(after_failure=True) as database:
            return split_bucket(database, self._reading, wish, key_range, known)

    def truncate_log(self, start_offset: int) -> None:
        """See `Bucket.truncate_log`."""
        if self.log_start < self.log_end <= start_offset and not self.log_is_readable():
            start_offset = self.log_end - 1
        with self._lifetime.committing:
            database = self._lifetime.writable()
            log_range = self._state.log_range
            if min(start_offset, log_range.end) <= log_range.start:
                return
            start, ordinal = log_range.end, log_range.end_ordinal
            if start_offset < start:
                start = self._log.share_start(start_offset)
                if start == log_range.start:
                    return
                ordinal = ordinal_of_key(self._log.entry_at(start)[1])
            truncated_us = self._newest_before(start)
            log_range = log_range._replace(start=start, start_ordinal=ordinal)
            self._state = replace(self._state, log_range=log_range, truncated_us=truncated_us)
            batch = WriteBatch(raw_mode=True)
            if truncated_us is not None:
                put_truncated(database, batch, start, truncated_us)
            if start == log_range.end:
                # Where there is no log any more, nothing may be there. What else is cut off waits for `free_log`.
                _put_deletion(batch, database, log_range)
            batch.put(LOG_RANGE_KEY, encode_log_range(log_range), database.meta_family)
            self._make_durable(database, batch)
            self._note_durable(database)

    def _newest_before(self, start: int) -> int | None:
        """The `truncated_commit_us` of a log that begins there."""
        log_range = self._state.log_range
        if start == log_range.end:
            return log_range.timestamp_us
        try:
            return self._log.entry_at(start - 1)[0].timestamp_us
        except (DataCorrupted, StoreFailed):
            return None  # What cannot be read can be truncated.

    def create_checkpoint(self, directory: Path) -> Checkpoint:
        """Keep the state as of now in a directory of the bucket's checkpoints. See `Store.create_checkpoint`."""
        with self._lifetime.committing:
            database = self._lifetime.writable()
            self._require_finished()
            self._require_room(0)
            log_offset = self._state.log_range.end
            history = self._state.lineage.history_of(log_offset)
            checkpoint_id = next_checkpoint_id(database, directory)
            checkpoint = Checkpoint(checkpoint_id, log_offset, _now_us(), history)
            batch = WriteBatch(raw_mode=True)
            note_checkpoint(database, batch, checkpoint)
            self._make_durable(database, batch)
            self._note_durable(database)
            with self._watching(database):
                make_checkpoint(database, directory, checkpoint)
            return checkpoint

    def log_is_readable(self) -> bool:
        """See `Bucket.log_is_readable`: nobody can read behind a deletion, but RocksDB does."""
        with self._lifetime.using() as database:
            log_range = self._state.log_range
            if self._readable_end == log_range.end_ordinal:
                return True
            end = log_range._replace(start=log_range.end, start_ordinal=log_range.end_ordinal)
            try:
                self._require_undamaged()
                self._require_readable(database, cut_files(database, end))
            except DataCorrupted:
                return False
            self._readable_end = log_range.end_ordinal
        return True

    def free_log(self) -> bool:
        """See `Bucket.free_log`."""
        with self._lifetime.compacting() as database:
            log_range = self._state.log_range
            if self._lifetime.failure is not None or self._freed == log_range.start:
                return False
            self._require_undamaged()
            files = cut_files(database, log_range)
            cut, kept = cut_bytes(files, log_range)
            least = max(_FREED_BYTES_MIN, kept, stored_bytes(database, log_range) // _FREED_SHARE)
            if cut < least or not self._has_free(kept + unflushed_bytes(database)):
                return False
            self._require_readable(database, files)
        with self._lifetime.committing:
            database = self._lifetime.writable()
            if self._state.log_range.start < log_range.start:
                return False  # That cut was not durable, and went when the bucket was opened anew.
            # The deletion gets a file of its own. In one with newer changes it would reach over all of the log that is
            # between, and RocksDB would write that again.
            with self._watching(database):
                flush_database(database)
                self._delete_truncated(database, log_range)
                flush_database(database)
            # Cut between the flush of the log and that of the rows, it would be of two states.
            write_manifest_length(self._path, self._identity)
        with self._lifetime.compacting() as database, self._watching(database):
            self._lifetime.require_in_place()
            compact_log(database, last_key(log_range.start - 1))
            self._freed = log_range.start  # Here: once the bucket is opened anew, nothing is known of that.
        return True

    def join_log(self) -> bool:
        """See `Bucket.join_log`."""
        with self._lifetime.compacting() as database:
            files = files_to_join(log_files(database))
            size = sum(file.size_bytes for file in files)
            if not files or self._lifetime.failure is not None or not self._has_free(size, reserve=True):
                return False
            require_readable(database, files, self._lifetime.require_not_closing)
            self._lifetime.require_in_place()
            with self._watching(database):
                join_log_files(database, files[0].start_key, files[-1].end_key)
            return True

    def compact(self) -> None:
        """See `Bucket.compact`."""
        with self._lifetime.committing:
            database, log_range = self._lifetime.writable(), self._state.log_range
            if self._freed != log_range.start:
                self._delete_truncated(database, log_range)
        with self._lifetime.compacting() as database, self._watching(database):
            self._lifetime.require_in_place()
            compact_database(database)

    def close(self) -> None:
        """Close every snapshot and reader, then the database; its directory is free then. Idempotent.

        Lets a commit that is running in another thread finish first, and ends a compaction.
        """
        self._lifetime.close()

    def reopen(self, *, writable: bool) -> None:
        """See `Bucket.reopen`."""
        self._lifetime.reopen(writable=writable)

    def close_idle(self) -> None:
        """See `Bucket.close_idle`."""
        lifetime, held = self._lifetime, self._snapshots or self._readers or self._reached
        if lifetime.database is not None and lifetime.failure is None and not held:
            lifetime.suspend()

    def suspend(self, *, leaving: bool = False) -> None:
        """Close it as `close` does, until it is used again.

        Args:
            leaving: Its directory is about to go: who uses it gets StoreClosed, until `stay`.
        """
        self._lifetime.suspend(leaving=leaving)

    def stay(self) -> None:
        """Its directory stays after all: it may be used again."""
        self._lifetime.stay()

    def wake(self) -> None:
        """See `Bucket.wake`."""
        with self._lifetime.using():
            pass

    @property
    def unflushed_bytes(self) -> int:
        """See `Bucket.unflushed_bytes`."""
        if self._lifetime.database is None or not self._lifetime.readable:
            return 0
        with self._lifetime.using() as database:
            return unflushed_bytes(database)

    def flush(self) -> None:
        """See `Bucket.flush`."""
        with self._lifetime.committing:
            database = self._lifetime.writable()
            with self._watching(database):
                flush_database(database)
            write_manifest_length(self._path, self._identity)

    def _take(self, opened: Opened, was_idle: bool) -> None:
        """Take what an opened database says of itself for what is."""
        found, closed = opened.state, self._state
        if not (was_idle and (found.log_range, found.lineage) == (closed.log_range, closed.lineage)):
            # It is not what this bucket has closed, or a write has failed in between: a history of its own.
            self._began_history = False
        self._state, self._durable_end = found, opened.durable_end
        self._reached, self._freed, self._damage, self._readable_end = None, 0, None, 0

    def _close_readers(self) -> None:
        for snapshot in list(self._snapshots):
            snapshot.close()
        for reader in list(self._readers):
            reader.close()

    @contextmanager
    def _watching(self, database: Database) -> Iterator[None]:
        """See whether flushes and compactions of the block have failed: RocksDB takes no writes after that.

        Found here it costs no writer its write: the bucket is opened anew before.
        """
        errors = background_errors(database)
        try:
            yield
        except ScannerError as error:
            if self._lifetime.failure is None and background_errors(database) != errors:
                self._lifetime.fail(error)
            raise

    def _require_undamaged(self) -> None:
        if self._damage is not None:
            raise DataCorrupted(self._damage)

    def _require_readable(self, database: Database, files: Sequence[LogFile]) -> None:
        """See that RocksDB can compact adjacent files of the log, which are to go."""
        try:
            require_readable(database, files, self._lifetime.require_not_closing)
        except DataCorrupted as error:
            self._damage = error.message
            raise

    def _delete_truncated(self, database: Database, log_range: LogRange) -> None:
        """Delete what is in front of the log."""
        batch = WriteBatch(raw_mode=True)
        _put_deletion(batch, database, log_range)
        self._make_durable(database, batch)
        self._note_durable(database)

    def _require_room(self, wanted_bytes: int) -> None:
        if self._space is not None:
            self._space.require_room(wanted_bytes)

    def _has_free(self, wanted_bytes: int, *, reserve: bool = False) -> bool:
        return self._space is None or self._space.has_free(wanted_bytes, reserve=reserve)

    def _values_as_of(self, log_offset: int, key_range: KeyRange, short: bool) -> Iterator[bytes] | None:
        """The rows of a range, of which few will be read or all, if they still are as of an offset."""
        # A running commit shows its rows before it moves log_end, and a failed one may.
        if not self._lifetime.committing.acquire(blocking=False):
            return None
        try:
            database = self._lifetime.database
            unfinished = self._reached is not None
            if database is None or not self.readable or unfinished or self._state.log_range.end != log_offset:
                return None
            return stored_values(database.kv, self._path, self._reading, key_range, short=short)
        finally:
            self._lifetime.committing.release()

    def _prepare(
        self, database: Database, groups: Sequence[Sequence[Mutation]], clock_us: int, after_us: int
    ) -> PreparedCommit:
        plan = plan_commit(list(map(Mutations.of, groups)), partial(self._read_rows, database))
        batch = WriteBatch(raw_mode=True)
        shown = self._state.log_range
        first = log_range = self._reached or shown
        # A piece that has changed nothing leaves the beginning of the share to the next one.
        continues = first.end != shown.end
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
        end = (self._reached or self._state.log_range).end
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
        state = self._state
        before, lineage = state.log_range, state.lineage
        changes = log_range.end != before.end
        begun = changes and not self._began_history
        if begun:
            lineage = lineage.begin(secrets.token_bytes(HISTORY_BYTES), before.end, self._durable_end)
            batch.put(LINEAGE_KEY, encode_lineage(lineage), database.meta_family)
        changed = self._given_epochs.with_histories(state.groups, group_states, lineage.newest, begun=begun)
        groups = GROUPS.put(database, batch, state.groups, changed)
        shares = APPLIED.put(database, batch, state.applied, applied)
        writers = state.writers.updated(requests)
        put_writers(database, batch, writers)
        if self._reached is not None:
            batch.delete(UNFINISHED_KEY, database.meta_family)
        if changes:
            self._watch_clock(log_range)
            # What was truncated since it was prepared stays truncated.
            log_range = log_range._replace(start=before.start, start_ordinal=before.start_ordinal)
            batch.put(LOG_RANGE_KEY, encode_log_range(log_range), database.meta_family)
        elif group_states or applied or writers or self._reached is not None:
            log_range = before
        else:
            return
        self._make_durable(database, batch)
        # At once: a concurrent reader of the log sees the new end only when its history is known.
        self._state = BucketState(log_range, lineage, groups, shares, state.writers, self._state.truncated_us)
        state.writers.take(writers)
        self._reached = None
        # A history begins with a change, not with what is remembered of readers, transactions and writers.
        self._began_history = self._began_history or changes
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
        batch.put(IDENTITY_KEY, self._identity, database.meta_family)
        try:
            write_synced(database, batch)
        except ScannerError as error:
            self._lifetime.fail(error)
            raise StoreFailed(f"nothing of this write is promised: {error}") from error

    def _note_durable(self, database: Database) -> None:
        """Write into `DURABLE-END` what is durable now, once `_state` says so."""
        end = self._state.log_range.end
        if not self._began_history:
            # Until a history records what was lost, the file alone tells of it.
            end = max(end, self._durable_end)
        self._lifetime.durable = sequence = database.rocks.latest_sequence_number()
        write_durable_end(self._path, self._identity, DurableEnd(end, self._state.lineage.newest, sequence))


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


def _put_deletion(batch: WriteBatch, database: Database, log_range: LogRange) -> None:
    """Add to a batch that what is in front of the log goes."""
    batch.delete_range(log_key(0), log_key(log_range.start, log_range.start_ordinal), database.log_family)


def _put_rows(batch: WriteBatch, family: ColumnFamily, plan: CommitPlan) -> None:
    """Add what becomes of the keys to a commit."""
    put, delete = batch.put, batch.delete
    for key, row in zip(plan.keys, plan.rows, strict=True):
        if row is None:
            delete(key, family)
        else:
            put(key, row, family)


def _now_us() -> int:
    return time.time_ns() // 1000
