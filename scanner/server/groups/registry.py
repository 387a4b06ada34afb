"""The reader groups of a server: found, begun and deleted.

Invariants:

1. A group is there from its first member on, and until it is deleted or its table dropped; a restart keeps it. One
   whose members have left before anything of it could be stored is none, and takes no other's place.
2. A group that has members is not deleted, and none joins one that is being deleted.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from scanner.errors import GroupNotEmpty, GroupNotFound, ScannerError, TooManyGroups
from scanner.server.groups.coordinator import Member, ReaderGroup
from scanner.storage.group_states import FORGOTTEN

if TYPE_CHECKING:
    from scanner.server.config import ScannerConfig
    from scanner.server.tables.bucket import ServedBucket
    from scanner.server.tables.catalog import Catalog, ServedTable


class ReaderGroups:
    """All groups of all tables.

    Args:
        catalog: Table catalog of the server.
        config: Bounds.
        nursery: Runs what shares the buckets out.
        now_ms: Tells the time, milliseconds since 1970 UTC.
    """

    def __init__(
        self, catalog: Catalog, config: ScannerConfig, nursery: trio.Nursery, now_ms: Callable[[], int]
    ) -> None:
        self._catalog = catalog
        self._config = config
        self._nursery = nursery
        self._now_ms = now_ms
        self._groups: dict[int, dict[str, ReaderGroup]] = {}
        """Those in use, by table id and name."""
        self._changing: weakref.WeakKeyDictionary[ServedTable, trio.Lock] = weakref.WeakKeyDictionary()
        """By table: held while a group of it is begun, joined or deleted."""

    @property
    def members(self) -> int:
        """Members of all groups, now."""
        return sum(len(group.members) for groups in self._groups.values() for group in groups.values())

    async def join(
        self, table: str, name: str, member: str, instance: bytes, table_id: int | None = None
    ) -> tuple[ReaderGroup, Member]:
        """Take a reader into a group, which is begun if there is none of that name.

        Args:
            table: Name of the table.
            name: Of the group.
            member: Name of the reader.
            instance: Tells it from another reader of its name.
            table_id: The only table that is meant; None: whichever has the name.

        Raises:
            TableNotFound: There is no such table, or its name has gone to another one.
            TooManyGroups: The table has as many groups as it may have.
            TooManyScans: The group has as many members as it may have.
            ScannerError: Storage failed.

        Waits:
            For storage.

        Cancellation:
            The reader did not join.
        """
        served = await self._catalog.table(table, table_id)
        async with self.changing(served):
            buckets = await self._buckets(served)
            group = self._find(served, buckets, name) or self._begin(served, buckets, name)
            joined = group.join(member, instance)
            if not group.balancing:
                group.balancing = True
                self._nursery.start_soon(group.balance)
            return group, joined

    async def group(self, table: str, name: str, table_id: int | None = None) -> ReaderGroup:
        """Find a group.

        Raises:
            TableNotFound: There is no such table, or its name has gone to another one.
            GroupNotFound: It has no such group.
            ScannerError: Storage failed.

        Waits:
            For storage.
        """
        return await self._found(await self._catalog.table(table, table_id), name)

    async def names(self, table: str, table_id: int | None = None) -> dict[str, int]:
        """The groups of a table, by name: how many members each has.

        Raises:
            TableNotFound: There is no such table, or its name has gone to another one.
            ScannerError: Storage failed.

        Waits:
            For storage.
        """
        served = await self._catalog.table(table, table_id)
        stored = self._stored(await self._buckets(served))
        live = {name: len(group.members) for name, group in self._groups.get(served.table_id, {}).items()}
        return {name: live.get(name, 0) for name in sorted(stored | {name for name in live if live[name]})}

    async def delete(self, table: str, name: str, table_id: int | None = None) -> None:
        """Forget a group and its positions.

        Raises:
            TableNotFound: There is no such table, or its name has gone to another one.
            GroupNotFound: It has no such group.
            GroupNotEmpty: The group has members.
            ScannerError: Storage failed; the group may be forgotten in a part of the buckets.

        Waits:
            For positions that are being stored, the ends of the group's scans, and storage.

        Cancellation:
            As if storage had failed.
        """
        served = await self._catalog.table(table, table_id)
        async with self.changing(served):
            group = await self._found(served, name)
            if group.members:
                raise GroupNotEmpty(
                    f"reader group {name!r} of table {table!r} has members: {', '.join(group.members)}; end them first"
                )
            await group.forget()
            self._groups.get(served.table_id, {}).pop(name, None)

    def drain(self, error: ScannerError) -> None:
        """Take out the members of whom no scan goes on; all at once, so that no bucket goes to one that goes next."""
        for groups in self._groups.values():
            for group in groups.values():
                group.drain(error)

    def changing(self, served: ServedTable) -> trio.Lock:
        """Held while a group of a table is begun, joined or deleted; that waits for what its buckets have to commit."""
        return self._changing.setdefault(served, trio.Lock())

    async def _found(self, served: ServedTable, name: str) -> ReaderGroup:
        group = self._find(served, await self._buckets(served), name)
        if group is None:
            raise GroupNotFound(f"table {served.description.name!r} has no reader group {name!r}")
        return group

    def _find(self, served: ServedTable, buckets: list[ServedBucket], name: str) -> ReaderGroup | None:
        group = self._groups.get(served.table_id, {}).get(name)
        if group is not None or name not in self._stored(buckets):
            return group
        return self._make(served, buckets, name)

    def _begin(self, served: ServedTable, buckets: list[ServedBucket], name: str) -> ReaderGroup:
        groups = self._groups.get(served.table_id, {})
        for nothing in [each.name for each in groups.values() if not (each.balancing or each.stored)]:
            del groups[nothing]
        names = self._stored(buckets) | set(groups)
        if len(names) >= self._config.groups_per_table_max:
            table = served.description.name
            raise TooManyGroups(
                f"table {table!r} has {len(names)} reader groups, and no more are allowed; delete one first"
            )
        return self._make(served, buckets, name)

    def _make(self, served: ServedTable, buckets: list[ServedBucket], name: str) -> ReaderGroup:
        groups = self._groups.get(served.table_id)
        if groups is None:
            groups = self._groups[served.table_id] = {}
            served.when_dropped.append(functools.partial(self._dropped, served.table_id))
        activity = self._catalog.activity
        group = groups[name] = ReaderGroup(
            name,
            served.description.name,
            buckets,
            self._config,
            self._now_ms,
            activity.count_group_assignment,
            activity.count_group_refusal,
        )
        return group

    def _dropped(self, table_id: int, error: ScannerError) -> None:
        for group in self._groups.pop(table_id, {}).values():
            group.end(error)

    async def _buckets(self, served: ServedTable) -> list[ServedBucket]:
        return [await self._catalog.bucket(served, index) for index in range(served.description.buckets)]

    @staticmethod
    def _stored(buckets: list[ServedBucket]) -> set[str]:
        return {name for bucket in buckets for name in bucket.storage.group_states if name != FORGOTTEN}
