"""The tables of a running server: looked up, created and dropped without holding up the event loop.

Storage does its work in worker threads, and what it opened is kept here. One structural change is made at a time, and
of each table one thing: its lookup, the opening of a bucket, a drop. None of these waits for those of another table: a
bucket can take long to open, as what a crash has cut off is undone then, and a drop waits for those who use its table.

This module knows no wire and no transport.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import trio

from scanner.data.changes import CHANGE_COLUMN_NAMES, CHANGE_COLUMNS, change_schema
from scanner.errors import (
    ArgumentInvalid,
    BucketNotFound,
    ScannerError,
    TableNotFound,
    TooManyFiles,
    TooManyTables,
)
from scanner.server.counters import Activity
from scanner.server.tables.bucket import ServedBucket
from scanner.server.tables.images import BucketImage
from scanner.server.tables.snapshots import SnapshotPool
from scanner.server.tables.version_gate import VersionGate

if TYPE_CHECKING:
    import pyarrow as pa

    from scanner.data.keys import KeyCodec
    from scanner.data.rows import RowCodec
    from scanner.data.table import TableDescription
    from scanner.server.clock import WallClock
    from scanner.server.config import ScannerConfig
    from scanner.server.tables.commit_floor import CommitTimeFloor
    from scanner.server.tables.open_scan import OpenScan
    from scanner.storage.interface import Bucket, Store
    from scanner.tasks import RunBlocking
    from scanner.wire.queries import ScanQuery


_OPENINGS_MAX: Final = 8
"""Buckets whose files are opened at once: each takes a worker thread, and those of commits are the same. Above the
number of shares that are applied at once, as their buckets may be those that take long."""
_LOOK_AGAIN_S: Final = 0.25
"""Who waits for room while others open their files looks so often whether a bucket is unused by now."""


@dataclass(frozen=True, slots=True)
class TableSchema:
    """A table's schema and its codecs at one moment. Take it once where more than one is used: columns may be added."""

    description: TableDescription
    key_codec: KeyCodec
    row_codec: RowCodec
    """Reads rows of every schema that the table had, and writes those of this one."""

    @property
    def first_columns(self) -> tuple[str, ...]:
        """Those that the table was created with. A token of all columns of a table that has no others means these."""
        older = self.row_codec.older_schemas
        return tuple((older[0] if older else self.row_codec.schema).names)

    def resolve(self, query: ScanQuery, *, changes: bool = False) -> ScanQuery:
        """A query of all columns with their names, if they were fewer once.

        Args:
            query: What is asked for.
            changes: Its rows are changes: it always gets names, those of a change among them.

        Raises:
            ArgumentInvalid: The table has a column that a change has, too.
        """
        if changes:
            return replace(query, columns=tuple(change_schema(self.description, query.columns).names))
        if query.columns or self.row_codec.schema_id == 0:
            return query
        return replace(query, columns=self.description.column_names)

    def schema_id_of(self, query: ScanQuery) -> int:
        """The schema whose columns, with those of a change, are the query's; the newest if it has some of them only."""
        added = tuple(field.name for field in CHANGE_COLUMNS)
        for schema_id, schema in enumerate(self.row_codec.older_schemas):
            if query.columns == (*schema.names, *added):
                return schema_id
        return self.row_codec.schema_id

    def resolutions(self, query: ScanQuery, *, changes: bool) -> Iterator[ScanQuery]:
        """What a query of all columns may have meant when a scan began with it, by name, newest first.

        Args:
            query: Without columns.
            changes: Its rows are changes.
        """
        added = tuple(field.name for field in CHANGE_COLUMNS) if changes else ()
        for schema in (self.row_codec.schema, *reversed(self.row_codec.older_schemas)):
            yield replace(query, columns=(*schema.names, *added))


class ServedTable:
    """A table, and those of its buckets that were used."""

    def __init__(self, table_id: int, schema: TableSchema) -> None:
        self.table_id = table_id
        """Tells it from a table that had its name before."""
        self.schema = schema
        """Replaced as a whole when a column is added."""
        self.buckets: dict[int, ServedBucket] = {}
        """Those opened so far, by index."""
        self.when_dropped: list[Callable[[ScannerError], None]] = []
        """Called when it is gone, with what to tell those who use it."""
        self.versions = VersionGate(schema.description.name)
        """Between the versions of transactions that it is given, and those who take the states of its buckets."""
        self.opening = trio.Lock()
        """Held while a checkpoint is opened. Storage opens one thing of a table at a time, which may take long: all who
        wait for that would wait in threads, and other tables would be left with none."""

    @property
    def description(self) -> TableDescription:
        """With the columns of now."""
        return self.schema.description


class Catalog:
    """All tables of one store.

    Args:
        store: Where they are.
        config: Passed on to the buckets.
        nursery: Runs the buckets' commits.
        run_blocking: Runs what storage does.
        activity: Counts what the server does.
        clock: Stamps the commits; None: storage's own clock does.
        floor: What commits are stamped later than; None: no floors are told.
    """

    def __init__(
        self,
        store: Store,
        config: ScannerConfig,
        nursery: trio.Nursery,
        run_blocking: RunBlocking,
        activity: Activity | None = None,
        clock: WallClock | None = None,
        floor: CommitTimeFloor | None = None,
    ) -> None:
        self._floor = floor
        self._clock_us = None if clock is None else clock.now_us
        self._store = store
        self._config = config
        self._nursery = nursery
        self._run_blocking = run_blocking
        self.activity = activity or Activity()
        self.snapshots = SnapshotPool(nursery, config.snapshots_max, config.snapshot_linger_s)
        """What the buckets' snapshots share."""
        self.after_drop: list[Callable[[], Awaitable[None]]] = []
        """Awaited when a table was dropped, before the call returns."""
        self._tables: dict[str, ServedTable] = {}
        self._changing = trio.Lock()
        """Held while storage creates or changes a table, or drops one that nobody uses any more."""
        self._locks = weakref.WeakValueDictionary[str, trio.Lock]()
        """By name of a table, those that are held or waited for: taken before `_changing`, and one at a time."""
        self._openings = trio.Semaphore(_OPENINGS_MAX)
        self._making_room = trio.Lock()
        self._opening = 0
        """Buckets for which there is room, and whose files are being opened."""
        self._opened = trio.Event()
        """Set when one of them is open, or could not be."""
        self._spare = 0
        """Buckets for which there is room without a look at all that were ever used. What was closed since the last
        look makes more."""

    def open_scans(self) -> Iterator[tuple[str, int, ServedBucket, OpenScan[Any]]]:
        """Every scan that is not closed, with the name of its table, the index of its bucket, and the bucket."""
        for name, index, bucket in self.open_buckets():
            for scan in bucket.open_scans:
                yield name, index, bucket, scan

    def open_buckets(self) -> Iterator[tuple[str, int, ServedBucket]]:
        """Every bucket that was used, with the name of its table and its index."""
        for name, table in self._tables.items():
            for index, bucket in table.buckets.items():
                yield name, index, bucket

    @property
    def images(self) -> list[BucketImage]:
        """The images of the buckets in use; each is there."""
        images = (bucket.image for _, _, bucket in self.open_buckets())
        return [image for image in images if image.current is not None]

    @property
    def log_changes_lost(self) -> int:
        """Acknowledged changes that were gone when their bucket was opened, ever; of the buckets in use."""
        return sum(bucket.storage.lost_changes for _, _, bucket in self.open_buckets())

    def _lock(self, name: str) -> trio.Lock:
        return self._locks.setdefault(name, trio.Lock())

    def has(self, name: str, table_id: int) -> bool:
        """Whether this table exists, and not another one of its name."""
        try:
            return self._store.table_id(name) == table_id
        except TableNotFound:
            return False

    @asynccontextmanager
    async def unless_dropped(self, name: str, table_id: int) -> AsyncIterator[None]:
        """Run a block that works with the files of a table; where it fails since the table is dropped, say that.

        Raises:
            TableNotFound: The block has failed, and the table is not there any more.

        Waits:
            After a failure, for a drop of the table.
        """
        try:
            yield
        except TableNotFound:
            raise
        except ScannerError as error:
            async with self._lock(name):  # Its files go before its name does.
                if not self.has(name, table_id):
                    raise TableNotFound(f"table {name!r} was dropped") from error
            raise

    def close_snapshots(self) -> None:
        """Close what lingers, and what is still held, and the images; when nothing reads any more."""
        for _, _, bucket in self.open_buckets():
            bucket.snapshots.close()
            bucket.image.close()

    async def descriptions(self) -> list[TableDescription]:
        """All tables, by name."""
        return await self._run_blocking(self._store.tables)

    async def table(self, name: str, table_id: int | None = None) -> ServedTable:
        """Look a table up.

        Args:
            name: Its name.
            table_id: The only table that is meant; None: whichever has the name.

        Raises:
            TableNotFound: There is none of that name, and the message lists those there are; or the name has gone to
                another table.

        Waits:
            For storage, the first time; else it is a plain lookup.
        """
        served = self._tables.get(name)
        if served is None:
            async with self._lock(name):
                served = self._tables.get(name)
                if served is None:
                    served = await self._run_blocking(functools.partial(self._load, name))
                    self._tables[name] = served
        _require_meant(name, served.table_id, table_id)
        return served

    async def bucket(self, table: ServedTable, index: int) -> ServedBucket:
        """Look a bucket up, and open it on first use.

        Raises:
            BucketNotFound: The table has fewer buckets.
            TableNotFound: The table was dropped meanwhile.
            DataCorrupted: Its files are damaged.
            StoreFailed: They cannot be read.

        Waits:
            For storage, the first time.
        """
        served = table.buckets.get(index)
        if served is not None:
            served.check_served()  # A drop takes its files first, and the table's name last.
            await served.wake()
            return served
        name = table.description.name
        if index >= table.description.buckets:
            raise BucketNotFound(
                f"table {name!r} has no bucket {index}; it has 0 to {table.description.buckets - 1}"
            )
        async with self._lock(name):
            if self._tables.get(name) is not table:
                raise TableNotFound(f"table {name!r} was dropped")
            served = table.buckets.get(index)
            if served is None:
                async with self._room_for_files():
                    served = table.buckets[index] = await self._open_bucket(table, index)
        return served

    async def _open_bucket(self, table: ServedTable, index: int) -> ServedBucket:
        storage, image = await self._run_blocking(functools.partial(self._open_files, table, index))
        return ServedBucket(
            storage,
            self._config,
            self._nursery,
            self._run_blocking,
            activity=self.activity,
            pool=self.snapshots,
            clock_us=self._clock_us,
            floor=self._floor,
            image=image,
            room=self._room_for_files,
        )

    def _open_files(self, table: ServedTable, index: int) -> tuple[Bucket, BucketImage]:
        """Of a bucket, in one go: who is cancelled between them would leave open files that nobody knows of."""
        storage = self._store.bucket(table.description.name, index)
        path = self._store.image_path(table.table_id, index)
        image = BucketImage(path, table.table_id, index, table.description.schema)
        image.open()
        return storage, image

    @asynccontextmanager
    async def _room_for_files(self) -> AsyncIterator[None]:
        """Run the block, which opens the files of one more bucket, when there is room for them.

        Unused buckets close theirs, least recently used first. Room is made for one at a time, so that no two take the
        same; the files of some may be opened at once.

        Raises:
            TooManyFiles: All are used.

        Waits:
            For a commit, where no bucket is unused; for others to open theirs, where these are many, or take all that
            is left.
        """
        async with self._openings:
            async with self._making_room:
                await self._make_room()
                self._opening += 1
            try:
                yield
            finally:
                self._opening -= 1
                self._opened.set()

    async def _make_room(self) -> None:
        while self._spare <= 0:
            self._opened = trio.Event()
            is_open = [bucket for _, _, bucket in self.open_buckets() if bucket.is_open]
            spare = self._config.buckets_open_max - len(is_open) - self._opening
            by_use = iter(sorted(is_open, key=lambda each: each.used_at) if spare <= 0 else ())
            while spare <= 0 and (bucket := next(by_use, None)) is not None:
                await bucket.close_unused()
                spare += not bucket.is_open
            if spare > 0:
                self._spare = spare
                break
            writing = next((bucket for bucket in is_open if bucket.only_written), None)
            if writing is None and (self._opening or self._opened.is_set()):
                # Then there is another one to look at; or one of those in use is not any more.
                with trio.move_on_after(_LOOK_AGAIN_S):
                    await self._opened.wait()
                continue
            if writing is None:
                raise TooManyFiles(
                    f"{len(is_open)} buckets are in use on this server, and it may have the files of"
                    f" {self._config.buckets_open_max} open (buckets_open_max, less if its limit of descriptors, ulimit"
                    " -n, is low); try again later"
                )
            await writing.give_way()
        self._spare -= 1

    async def create(self, description: TableDescription) -> int:
        """Create a table; it is durable when this returns.

        Returns:
            Its id.

        Raises:
            TableExists: The name is taken.
            TooManyTables: The server has as many tables or buckets as it may have.
            StoreFailed: The disk refused.
        """
        async with self._lock(description.name), self._changing:
            self._require_few(await self._run_blocking(self._store.tables), description)
            await self._run_blocking(functools.partial(self._store.create_table, description))
            return self._store.table_id(description.name)

    async def add_column(self, name: str, column: pa.Field, table_id: int | None = None) -> TableDescription:
        """Add a nullable column to a table, behind its last one; it is durable when this returns.

        Scans that run, and those that are continued with a token, keep the columns with which they began.

        Args:
            name: Of the table.
            column: What is added.
            table_id: As for `table`.

        Returns:
            The table as it is now.

        Raises:
            TableNotFound: There is none of that name, or it has gone to another table.
            SchemaMismatch: The column is not nullable, of a type that cannot be stored, or one too many.
            ArgumentInvalid: There is a column of that name, or every change has one.
            StoreFailed: The disk refused.

        Waits:
            For the disk.

        Cancellation:
            The column may have been added.
        """
        if column.name in CHANGE_COLUMN_NAMES:
            # No column is ever dropped, so its tails, groups and streams would have ended for good.
            raise ArgumentInvalid(
                f"a column {column.name!r} cannot be added: every change has one, and the changelog of {name!r} could"
                " not be scanned any more; give it another name"
            )
        async with self._lock(name), self._changing:
            _require_meant(name, self._store.table_id(name), table_id)
            await self._run_blocking(functools.partial(self._store.add_column, name, column))
            schema = self._schema_of(name)
            if (served := self._tables.get(name)) is not None:
                served.schema = schema
                for bucket in served.buckets.values():
                    bucket.wake_tails()
        return schema.description

    async def drop(
        self, name: str, table_id: int | None = None, when_gone: Callable[[], None] = lambda: None
    ) -> None:
        """End what uses a table, with TABLE_NOT_FOUND, and delete it with its rows.

        Args:
            name: Its name.
            table_id: The only table that is meant; None: whichever has the name.
            when_gone: Called once this has removed the table, however the rest goes, also if that is cancelled.

        Raises:
            TableNotFound: There is none of that name, or the name has gone to another table.
            StoreFailed: The disk refused; the table is served again, if it is still there.

        Waits:
            Until its scans are closed and its commits are done, of a large share of a transaction the piece that is
            being written, then for the disk.

        Cancellation:
            The table may be left without its scans, and still be there; dropping it again is fine.
        """
        async with self._lock(name):
            _require_meant(name, self._store.table_id(name), table_id)
            await self._drop(name, when_gone)
        for each in self.after_drop:
            await each()

    async def drop_unwritten(
        self, name: str, table_id: int | None = None, when_gone: Callable[[], None] = lambda: None
    ) -> bool:
        """The same, but only if nothing was ever written to the table or staged for it, and no write is under way.

        Args:
            name: Its name.
            table_id: The only table that is meant; None: whichever has the name.
            when_gone: As above.

        Returns:
            Whether it is gone.

        Raises:
            TableNotFound: There is none of that name, or the name has gone to another table.
            StoreFailed: As above.
            DataCorrupted: The files of a bucket are damaged.
        """
        table = await self.table(name, table_id)
        buckets = [await self.bucket(table, index) for index in range(table.description.buckets)]
        async with self._lock(name):
            if self._tables.get(name) is not table:
                raise TableNotFound(f"table {name!r} was dropped")
            # No waiting between this look and the drop, not for a thread either: rows may be staged meanwhile.
            if self._store.transaction_files(name).used or not all(each.unwritten for each in buckets):
                return False
            await self._drop(name, when_gone)
        for each in self.after_drop:
            await each()
        return True

    async def _drop(self, name: str, when_gone: Callable[[], None]) -> None:
        """Called with the table's lock held; no bucket takes a write from the first moment on."""
        served, table_id = self._tables.get(name), self._store.table_id(name)
        dropped = TableNotFound(f"table {name!r} was dropped")
        buckets = [] if served is None else list(served.buckets.values())
        try:
            for bucket in buckets:
                bucket.refuse(dropped)
            for bucket in buckets:
                await bucket.retire(dropped)
            async with self._changing:
                remove = await self._run_blocking(functools.partial(self._store.drop_table, name))
        finally:
            # It may be gone though some of its files would not go; its name is free then.
            gone = not self.has(name, table_id)
            if gone:
                when_gone()
            if served is not None:
                if gone:
                    del self._tables[name]
                    for bucket in buckets:
                        bucket.image.drop()
                    for callback in served.when_dropped:
                        callback(dropped)
                else:
                    for bucket in buckets:
                        bucket.serve_again()
        # Nobody else would remove them before the next start.
        with trio.CancelScope(shield=True):
            await self._run_blocking(remove)

    def _require_few(self, tables: list[TableDescription], fresh: TableDescription) -> None:
        if any(each.name == fresh.name for each in tables):
            return  # That is what is wrong with it.
        config = self._config
        buckets = sum(each.buckets for each in tables)
        if len(tables) >= config.tables_max:
            raise TooManyTables(
                f"this server has {len(tables)} tables, and no more are allowed (tables_max); drop one first"
            )
        if buckets + fresh.buckets > config.buckets_max:
            raise TooManyTables(
                f"the tables of this server have {buckets} buckets, and {fresh.buckets} more would be above"
                f" {config.buckets_max} (buckets_max); drop a table first, or ask for fewer"
            )

    def _load(self, name: str) -> ServedTable:
        return ServedTable(self._store.table_id(name), self._schema_of(name))

    def _schema_of(self, name: str) -> TableSchema:
        return TableSchema(self._store.table(name), self._store.key_codec(name), self._store.row_codec(name))


def _require_meant(name: str, table_id: int, wanted_id: int | None) -> None:
    if wanted_id not in {None, table_id}:
        raise TableNotFound(
            f"table {name!r} has the id {table_id}, and the request means {wanted_id}, as one without a table_id may:"
            " it was dropped and created anew; look it up again"
        )
