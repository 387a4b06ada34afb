"""Checkpoints of buckets: made on demand and from time to time, the newest kept, leased ones longer.

Invariants:

1. A checkpoint is made between two commits, in a worker thread; it is whole or not there.
2. The newest `checkpoints_kept` of a bucket stay, and those that a lease keeps or is about to keep. The others go.
   Where the disk that changes took was given back, and nothing is written, one without them replaces all before.
3. A checkpoint that is on this list is on the disk; it leaves the list before it leaves the disk.

A checkpoint that is dropped while a scan reads it goes on being readable for that scan.

This module knows no wire and no transport.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import trio

from scanner.errors import BucketNotFound, ScannerError, SnapshotLost, TableNotFound
from scanner.server.failures import Failures
from scanner.server.retention.lease_registry import CheckpointKey

if TYPE_CHECKING:
    from scanner.server.config import ScannerConfig
    from scanner.server.tables.bucket import ServedBucket
    from scanner.server.tables.catalog import Catalog, ServedTable
    from scanner.server.tables.snapshots import SnapshotHold
    from scanner.storage.interface import Checkpoint, Store
    from scanner.tasks import RunBlocking

_GONE: Final = (BucketNotFound, TableNotFound)
_logger = logging.getLogger(__name__)


class BucketCheckpoints:
    """The checkpoints of one bucket. Made by `Checkpoints.of`."""

    def __init__(self, owner: Checkpoints, table: ServedTable, bucket: ServedBucket, index: int) -> None:
        self._owner = owner
        self.table = table
        self.index = index
        self.bucket = bucket
        self._kept: dict[int, Checkpoint] = {}
        """By id, oldest first."""
        self._holds: dict[int, int] = {}
        self._freed = 0
        """The bucket's `log_freed` when the newest was made; 0 for one that was found on the disk."""
        self._commits_begun: int | None = None
        """The bucket's `commits_begun` then; None for one that was found on the disk."""
        self._replaced_id = -1
        """Up to this one they have files of changes whose disk was given back; a newer one of the state has not."""
        self._pruning = trio.Lock()

    async def load(self) -> None:
        """Find the checkpoints that are on the disk; those of another history of the bucket stay there, unused.

        Raises:
            ScannerError: They cannot be listed.
        """
        found = await self._owner.run_blocking(
            functools.partial(self._owner.store.checkpoints, self.table.description.name, self.index)
        )
        storage = self.bucket.storage
        for each in found:
            if each.log_offset <= storage.log_end and storage.lineage.holds(each.history, each.log_offset):
                self._kept[each.checkpoint_id] = each
            else:
                _logger.warning(
                    "checkpoint %d of %s[%d] is as of offset %d of another history of the bucket: it is not used;"
                    " remove its directory, if it is not needed",
                    each.checkpoint_id,
                    self.table.description.name,
                    self.index,
                    each.log_offset,
                )

    @property
    def newest(self) -> Checkpoint | None:
        """The newest one; None: there is none."""
        return next(reversed(self._kept.values()), None)

    def __iter__(self) -> Iterator[Checkpoint]:
        """All of them, oldest first."""
        return iter(list(self._kept.values()))

    @property
    def is_current(self) -> bool:
        """Whether the newest one is of the rows as they are, and has no files of changes whose disk was given back."""
        newest = self.newest
        if newest is None or newest.log_offset != self.bucket.storage.log_end:
            return False
        return self._freed == self.bucket.log_freed

    def get(self, checkpoint_id: int) -> Checkpoint | None:
        """The one of this id, if it exists."""
        return self._kept.get(checkpoint_id)

    def as_of(self, log_offset: int) -> Checkpoint | None:
        """The newest one of this state, if there is any."""
        return next((each for each in reversed(self._kept.values()) if each.log_offset == log_offset), None)

    def hold(self, checkpoint_id: int) -> None:
        """Keep one from being dropped, until `release`; counted."""
        assert checkpoint_id in self._kept
        self._holds[checkpoint_id] = self._holds.get(checkpoint_id, 0) + 1

    def release(self, checkpoint_id: int) -> None:
        """Undo one `hold`. It is dropped at the next `prune`, if nothing else keeps it."""
        self._holds[checkpoint_id] -= 1
        if not self._holds[checkpoint_id]:
            del self._holds[checkpoint_id]

    @contextmanager
    def held(self, checkpoint: Checkpoint | None) -> Iterator[Checkpoint | None]:
        """Keep one for the length of a block; None: keep nothing.

        Raises:
            SnapshotLost: It is not there any more.
        """
        if checkpoint is None:
            yield None
            return
        if checkpoint.checkpoint_id not in self._kept:
            raise SnapshotLost(
                f"checkpoint {checkpoint.checkpoint_id} is not there any more; take a newer one"
            )
        self.hold(checkpoint.checkpoint_id)
        try:
            yield checkpoint
        finally:
            self.release(checkpoint.checkpoint_id)

    async def create(self) -> Checkpoint:
        """Make a checkpoint as of now, and drop those that are not kept any more.

        A backup is made of it, so it has to be of all that the bucket remembers: positions of groups, versions of
        transactions and requests of writers change without a change of a row.

        Returns:
            The new one; the newest one if nothing was committed since, and no disk given back that it takes.

        Raises:
            StoreFailed, DataCorrupted: It could not be made; there is nothing new then.
            ScannerError: The bucket is retired.

        Waits:
            For the commit that runs now, then for the disk; writes wait meanwhile.

        Cancellation:
            It is made or not; it is never half made.
        """
        async with self.bucket.between_commits():
            before = made = self.newest
            commits_begun = self.bucket.commits_begun
            if made is None or not self.is_current or self._commits_begun != commits_begun:
                freed = self.bucket.log_freed
                name = self.table.description.name
                made = await self._owner.run_blocking(
                    functools.partial(self._owner.store.create_checkpoint, name, self.index)
                )
                self._kept[made.checkpoint_id] = made
                if before is not None and before.log_offset == made.log_offset and self._freed != freed:
                    self._replaced_id = before.checkpoint_id
                self._freed, self._commits_begun = freed, commits_begun
                self._owner.activity.checkpoints_made += 1
        with self.held(made):  # Others may be made meanwhile; whoever asked for this one can hold it then.
            await self.prune()
        return made

    async def prune(self) -> None:
        """Drop the checkpoints that are not kept any more. What the disk refuses is tried again after a restart.

        Waits:
            For the disk, if there is something to drop.

        Cancellation:
            The next one drops the rest.
        """
        async with self._pruning:
            # Looked for anew each time: while one is dropped, another one may be leased.
            while (checkpoint_id := self._oldest_superfluous()) is not None:
                await trio.lowlevel.checkpoint_if_cancelled()
                # From here on it cannot be found; what follows can take its time.
                del self._kept[checkpoint_id]
                drop = self._owner.store.drop_checkpoint
                name = self.table.description.name
                try:
                    # Shielded: nobody else would drop it before the next start.
                    with trio.CancelScope(shield=True):
                        await self._owner.run_blocking(
                            functools.partial(drop, name, self.index, checkpoint_id, self.table.table_id)
                        )
                except TableNotFound:
                    pass  # It went with its table; what has the name now is none of ours.
                except ScannerError as error:
                    _logger.warning(
                        "checkpoint %d of %s[%d] stays on the disk: %s",
                        checkpoint_id,
                        name,
                        self.index,
                        error,
                    )

    async def open(self, checkpoint: Checkpoint) -> SnapshotHold:
        """Hold the state of a checkpoint, open for reading; shared by all who read the bucket as of its offset.

        Raises:
            SnapshotLost: It is not there any more.
            TooManyScans: As many snapshots are held as the server allows.
            StoreFailed, DataCorrupted: It cannot be read.

        Waits:
            For the disk, and for other checkpoints of the table that are being opened; not if the state is open.

        Cancellation:
            No effect: nothing is held.
        """
        snapshots = self.bucket.snapshots
        held = snapshots.acquire(checkpoint.log_offset)
        if held is not None:
            return held
        with self.held(checkpoint):
            open_checkpoint = self._owner.store.open_checkpoint
            name = self.table.description.name
            async with self.table.opening:
                held = snapshots.acquire(checkpoint.log_offset)
                if held is not None:
                    return held  # Another one, who came first, has opened it meanwhile.
                snapshot = await self._owner.run_blocking(
                    functools.partial(
                        open_checkpoint, name, self.index, checkpoint.checkpoint_id, self.table.table_id
                    )
                )
                return snapshots.adopt(snapshot)

    def _oldest_superfluous(self) -> int | None:
        """One that nothing keeps; None: there is none."""
        newest = list(self._kept)[-self._owner.config.checkpoints_kept :]
        for checkpoint_id in list(self._kept):
            if checkpoint_id in newest and checkpoint_id > self._replaced_id:
                continue
            key = CheckpointKey(self.table.table_id, self.index, checkpoint_id)
            if checkpoint_id not in self._holds and not self._owner.references(key):
                return checkpoint_id
        return None


class Checkpoints:
    """The checkpoints of a server's buckets.

    Args:
        catalog: Table catalog.
        store: Where they are.
        config: How many are kept, and how often one is made.
        run_blocking: Runs what storage does.
        references: How many leases keep a checkpoint.
    """

    def __init__(
        self,
        catalog: Catalog,
        store: Store,
        config: ScannerConfig,
        run_blocking: RunBlocking,
        references: Callable[[CheckpointKey], int],
    ) -> None:
        self.store = store
        self.config = config
        self.run_blocking = run_blocking
        self.references = references
        self.activity = catalog.activity
        self._catalog = catalog
        self._buckets: dict[tuple[int, int], BucketCheckpoints] = {}
        """By id of the table and index; those that were used."""
        self._loading = trio.Lock()
        self._failures = Failures(_logger)

    async def of(self, table: ServedTable, index: int) -> BucketCheckpoints:
        """The checkpoints of a bucket.

        Raises:
            BucketNotFound: The table has fewer buckets.
            TableNotFound: The table was dropped.
            StoreFailed, DataCorrupted: They cannot be read.

        Waits:
            For storage, the first time.
        """
        bucket = await self._catalog.bucket(table, index)
        key = (table.table_id, index)
        found = self._buckets.get(key)
        if found is None:
            async with self._loading:
                found = self._buckets.get(key)
                if found is None:
                    found = BucketCheckpoints(self, table, bucket, index)
                    await found.load()
                    self._buckets[key] = found
        return found

    async def make_all(self) -> None:
        """Make a checkpoint of each bucket in use whose last one is not current.

        Those of a table show no version of a transaction by half, unless it cannot be applied. A bucket that fails does
        not keep the others from theirs; its failure is logged.
        """
        in_use: dict[str, list[int]] = {}
        for name, index, _ in self._catalog.open_buckets():
            in_use.setdefault(name, []).append(index)
        for name, indices in in_use.items():
            with suppress(*_GONE):  # It was dropped meanwhile, and perhaps created anew with fewer buckets.
                table = await self._catalog.table(name)
                if all(self._is_current(table, index) for index in indices):
                    continue
                async with table.versions.taking():
                    for index in indices:
                        await self._make_due(table, index)

    def _is_current(self, table: ServedTable, index: int) -> bool:
        """Its files need be neither opened nor kept open to find that there is nothing to do."""
        known = self._buckets.get((table.table_id, index))
        return known is not None and known.is_current

    async def _make_due(self, table: ServedTable, index: int) -> None:
        if self._is_current(table, index):
            return
        where = f"{table.description.name}[{index}]"
        try:
            checkpoints = await self.of(table, index)
            if not checkpoints.is_current:
                await checkpoints.create()
        except _GONE:
            raise
        except ScannerError as error:
            self._failures.add(f"no checkpoint of {where}", error)
        else:
            self._failures.clear(f"no checkpoint of {where}", f"a checkpoint of {where} was made again")

    async def prune_all(self) -> None:
        """Drop what is not kept any more, and forget buckets of dropped tables."""
        for key, each in list(self._buckets.items()):
            if self._catalog.has(each.table.description.name, each.table.table_id):
                await each.prune()
            else:
                del self._buckets[key]
