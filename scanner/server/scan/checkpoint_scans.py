"""Scans of source SNAPSHOT: a retained checkpoint, the newest one or the one that a lease names.

A checkpoint is a state as of a log offset like any other. So such a scan is one as of that offset, read from the
checkpoint while that exists; when it is continued after the checkpoint was deleted, another of the
`scanner.server.scan.read_sources` shows the same rows, or the scan fails with SNAPSHOT_LOST.

This module knows no wire and no stream.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from scanner.errors import SnapshotLost
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.server.retention.lease_registry import BucketKey, LeaseKey

if TYPE_CHECKING:
    from scanner.server.retention.checkpoints import BucketCheckpoints, Checkpoints
    from scanner.server.retention.lease_manager import LeaseKeeper
    from scanner.server.scan.kv_scan import KvScan
    from scanner.server.scan.opener import ScanOpener
    from scanner.server.scan.tokens import TokenState
    from scanner.server.tables.catalog import Catalog
    from scanner.wire.queries import ScanQuery

_Opened = TypeVar("_Opened")


class SnapshotScans:
    """Opens and continues scans of checkpoints.

    Args:
        opener: Opens scans of buckets.
        catalog: Table catalog.
        checkpoints: Checkpoints of all buckets.
        leases: Lease manager.
    """

    def __init__(
        self, opener: ScanOpener, catalog: Catalog, checkpoints: Checkpoints, leases: LeaseKeeper
    ) -> None:
        self._opener = opener
        self._catalog = catalog
        self._checkpoints = checkpoints
        self._leases = leases

    async def open(self, query: ScanQuery, principal: str, lease_id: str = "") -> KvScan:
        """Open a scan from its beginning.

        Args:
            query: What to deliver.
            principal: Name of the caller, whose lease it is.
            lease_id: The lease that names the state; empty: the newest checkpoint.

        Raises:
            LeaseNotFound: There is no such lease, or it keeps nothing of the bucket.
            SnapshotLost: There is no checkpoint; the message says how to make one.
            ScannerError: Those of `ScanOpener.open`.

        Waits:
            As `ScanOpener.open`, and for the disk while the checkpoint is opened.
        """
        table = await self._catalog.table(query.table, query.table_id)
        checkpoints = await self._checkpoints.of(table, query.bucket)
        if lease_id:
            key = BucketKey(table.table_id, query.bucket)
            state = self._leases.state_of(LeaseKey(principal, lease_id), query.table, key)
            log_offset, history = state.log_offset, state.history
        elif checkpoints.newest is not None:
            log_offset, history = checkpoints.newest.log_offset, checkpoints.newest.history
        else:
            raise SnapshotLost(
                f"bucket {query.bucket} of table {query.table!r} has no checkpoint yet; make one with"
                f" weir checkpoint {query.table}, acquire a lease, which makes one, or scan LIVE_KV",
                oldest_offset=checkpoints.bucket.storage.log_start,
            )
        open_scan = functools.partial(
            self._opener.open,
            query,
            principal,
            log_offset=log_offset,
            table_id=table.table_id,
            history=history,
            source=pb.SCAN_SOURCE_SNAPSHOT,
        )
        return self._reopened_here(await self._opened(checkpoints, log_offset, open_scan))

    async def resume(self, query: ScanQuery, principal: str, state: TokenState) -> KvScan:
        """Continue a scan with its token: from the same checkpoint, or from another read source as of its offset.

        The lease that the scan began with is not asked for again.

        Raises:
            SnapshotLost: Both the checkpoint and the log that it needs are gone.
            ScannerError: Those of `ScanOpener.open`.

        Waits:
            As `open`.
        """
        table = await self._catalog.table(query.table, query.table_id)
        checkpoints = await self._checkpoints.of(table, query.bucket)
        open_scan = functools.partial(
            self._opener.open,
            query,
            principal,
            log_offset=state.log_offset,
            position=state.position,
            table_id=state.table_id,
            history=state.history,
            source=pb.SCAN_SOURCE_SNAPSHOT,
        )
        return self._reopened_here(await self._opened(checkpoints, state.log_offset, open_scan))

    def _reopened_here(self, opened: KvScan) -> KvScan:
        """Have the checkpoint opened first when the scan is reopened."""
        opened.scan.reopener = functools.partial(self.reopen, opened)
        return opened

    async def reopen(self, opened: KvScan) -> None:
        """Go on with a parked scan, as `resume`.

        Raises:
            SnapshotLost: Both the checkpoint and the log that it needs are gone.
            ScannerError: Those of `ScanOpener.reopen`.

        Cancellation:
            The scan stays parked.
        """
        checkpoints = await self._checkpoints.of(opened.table, opened.query.bucket)
        reopen = functools.partial(self._opener.reopen, opened)
        await self._opened(checkpoints, opened.log_offset, reopen)

    async def _opened(
        self, checkpoints: BucketCheckpoints, log_offset: int, open_scan: Callable[[], Awaitable[_Opened]]
    ) -> _Opened:
        """Have the opener open a scan while the checkpoint of this state is open, if there is one.

        The opener finds it among the bucket's snapshots.
        """
        bucket = checkpoints.bucket
        while (checkpoint := checkpoints.as_of(log_offset)) is not None:
            async with bucket.between_commits():
                # Opened anew after a failed write only behind this, storage would close the checkpoint with it.
                openings = bucket.storage_openings
            try:
                hold = await checkpoints.open(checkpoint)
            except SnapshotLost:
                break  # It is being deleted; the opener looks for another read source.
            try:
                return await open_scan()
            except SnapshotLost:
                if bucket.storage_openings == openings:
                    raise
                # Another write has failed since.
            finally:
                hold.release(linger=False)
        return await open_scan()
