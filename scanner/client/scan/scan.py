"""A scan of a table, and one as a reader of a group, as a trio client describes and runs them."""

from __future__ import annotations

import dataclasses
import datetime
from contextlib import AbstractAsyncContextManager

import pyarrow as pa
import trio

from scanner.client.arguments import flag, require_text
from scanner.client.connection import Connection
from scanner.client.offsets import offsets_at
from scanner.client.scan.builder import ScanBuilder
from scanner.client.scan.folded import FoldedScan, TableAt, folded_scan
from scanner.client.scan.group_scan import GroupBatches, open_group_scan
from scanner.client.scan.plan import ScanPlan
from scanner.client.scan.table_scan import Batches, open_scan
from scanner.errors import OffsetOutOfRange


class Scan(ScanBuilder):
    """A scan of a table: described by its builder methods, run by `execute`, any number of times."""

    def __init__(self, connection: Connection, plan: ScanPlan) -> None:
        super().__init__(plan)
        self._connection = connection

    def with_plan(self, plan: ScanPlan) -> Scan:
        """The scan that `plan` describes, on the same connection."""
        return Scan(self._connection, plan)

    _derive = with_plan

    def execute(self) -> AbstractAsyncContextManager[Batches]:
        """Run the scan for the length of a block; leaving the block early ends it at the server, too.

        An asynchronous generator that yields inside the block has to be left by `contextlib.aclosing`: one that is
        dropped half-way leaves it in another task, and the program hangs.

        Example:
            >>> async with scan.execute() as batches:
            ...     async for batch in batches: ...
            >>> batches.statistics().rows
        """
        return open_scan(self._connection, self._plan)

    def in_group(self, group: str, *, member: str = "", auto_commit: bool = False) -> GroupScan:
        """Share the buckets of the table out among the readers of a group (source LOG).

        Args:
            group: Its name: 1 to 100 of A-Z, a-z, 0-9, `_`, `.`, `:` and `-`. It is begun if the table has none of that
                name. Where it has stored a position, reading begins there, elsewhere at `start_at`.
            member: Names this reader, likewise. One that joins under a name that is in use takes its place. Empty: a
                name is made up.
            auto_commit: Store the positions of what was handed out by itself: when the next batch is asked for, once a
                second or when none waits, and when the block ends well. A batch is stored as dealt with when the next
                one is asked for.

        Raises:
            ArgumentInvalid: A name is no Unicode text. What else is wrong with it the server says.
        """
        require_text("the name of the reader group", group)
        require_text("the name of the reader", member)
        return GroupScan(
            self._connection,
            dataclasses.replace(
                self._plan, group=group, member=member, auto_commit=flag("auto_commit", auto_commit)
            ),
        )

    async def to_arrow(self) -> pa.Table:
        """Run the scan and collect every row.

        Raises:
            ArgumentInvalid: The scan is endless.
            ScannerError: The scan failed.
        """
        self.plan.require_end("to_arrow()")
        async with self.execute() as batches:
            return pa.Table.from_batches([batch async for batch in batches], schema=batches.schema)

    async def to_table(self, at: TableAt = None) -> pa.Table:
        """Fold a snapshot and its changes, source HYBRID, to the table as it is at some offsets, in no defined order.

        The filter and the columns of the scan count; key columns that were not selected are fetched all the same.

        Args:
            at: None: where the scan stops (`stop_at`), or else as of now. An offset, or a dict with one for each
                bucket: as of these, which `as_of` or the changelog must reach back to. A `datetime` (without a zone:
                UTC): with every commit before it, and none from it on, so that `start_at` the same time goes on.

        Raises:
            ArgumentInvalid: The source is another, there is a limit, a column is none of the table's, the time is in
                the future, or an offset is inside a commit.
            OffsetOutOfRange: An offset is not in the changelog, or the time may be before it.
            SnapshotLost: The changelog does not reach back to where the snapshot is as of.
            ScannerError: The scan failed.

        Waits:
            For every row and change, and for threads that fold them.

        Cancellation:
            Ends the scan.
        """
        folded = await self.folded(at)
        fold = folded.new_fold()
        async with open_scan(self._connection, folded.plan) as batches:
            async for batch in batches:
                await trio.to_thread.run_sync(fold.apply, batch)
        return await trio.to_thread.run_sync(folded.finish, fold)

    async def folded(self, at: TableAt) -> FoldedScan:
        """What `to_table` runs, and folds."""
        if not isinstance(at, datetime.datetime):
            return folded_scan(self._plan, at)
        folded_scan(self._plan, None)  # Refuses before the server is asked.
        offsets = {}
        for each in await offsets_at(self._connection, self._plan.table, self._plan.table_id, at):
            if each.bucket in self._plan.buckets and not each.is_kept:
                raise OffsetOutOfRange(
                    f"{self._plan.table.name} bucket {each.bucket}: the changelog begins at {each.start_offset}, and"
                    f" what was before is gone: the table at {at.isoformat()} cannot be told",
                    oldest_offset=each.start_offset,
                )
            offsets[each.bucket] = each.at_offset
        return folded_scan(self._plan, offsets)


class GroupScan(ScanBuilder):
    """A scan of the changes of a table as a reader of a group; made by `Scan.in_group`."""

    def __init__(self, connection: Connection, plan: ScanPlan) -> None:
        super().__init__(plan)
        self._connection = connection

    def with_plan(self, plan: ScanPlan) -> GroupScan:
        """The scan that `plan` describes, on the same connection."""
        return GroupScan(self._connection, plan)

    _derive = with_plan

    def execute(self) -> AbstractAsyncContextManager[GroupBatches]:
        """Join the group for the length of a block, and read what is this reader's of it.

        Example:
            >>> async with orders.new_scan().with_source("log").in_group("billing").execute() as batches:
            ...     async for batch in batches:
            ...         ...
            ...         await batches.commit()
        """
        return open_group_scan(self._connection, self._plan)
