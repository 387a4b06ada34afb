"""The server of a run: started on a disk in memory, killed, drained and started again, over one network.

A kill is the end of a process as others see it: every connection is reset at once, nothing is said. What the server's
tasks still do while they are cancelled reaches nobody, and what they leave open is found out: it counts as held.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import trio

from bench.harness.images import damage_image, give_image
from bench.simulation.storage import DiskFaults, RecordingStore, WriteFault
from bench.simulation.tables import PASSING, TABLE
from bench.simulation.threads import Threads
from scanner.server.clock import WallClock
from scanner.server.server import Server, open_server
from scanner.storage.memory.store import MemoryDisk

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

    from bench.simulation.history import History
    from bench.simulation.network import Network
    from bench.simulation.storage import OnCommit, OnGroupStates, OnOther
    from bench.simulation.workload import Workload
    from scanner.server.tables.bucket import ServedBucket

EPOCH_US = 1_700_000_000_000_000
"""Time of the virtual clock's zero, for commit timestamps."""


def clock_us() -> int:
    """Microseconds since 1970, by the virtual clock."""
    return EPOCH_US + round(trio.current_time() * 1e6)


class Serving:
    """The server's life.

    Args:
        workload: Its configuration.
        network: Where it listens.
        history: Told of starts and ends.
        on_commit: Told of every commit.
        on_group_states: Told what becomes of reader groups.
        images: Directory of images; None: there are none.
        on_other: Told of commits to other tables.
    """

    def __init__(
        self,
        workload: Workload,
        network: Network,
        history: History,
        on_commit: OnCommit,
        on_group_states: OnGroupStates,
        images: Path | None = None,
        on_other: OnOther = lambda *_: None,
    ) -> None:
        self._workload = workload
        self._network = network
        self._history = history
        self._on_commit = on_commit
        self._on_group_states = on_group_states
        self._images = images
        self._on_other = on_other
        self.faults = DiskFaults(tell=lambda what, bucket: history.add("storage", what, bucket=bucket))
        self._threads = Threads(
            workload.storage_s_max, workload.holds, self.faults, history, workload.rng("storage")
        )
        self.cut_by_force: Counter[int] = Counter()
        """Where each bucket's log was cut off whoever needed it."""
        self._disk = MemoryDisk()
        self._ended = trio.Event()
        self._scope = trio.CancelScope()
        self.server: Server | None = None
        """None while nobody answers."""
        self.store = self._open_store()
        """Over the same disk for the whole run; opened anew for each server."""

    def _open_store(self) -> RecordingStore:
        return RecordingStore(
            self._on_commit,
            clock_us,
            self._disk,
            self._on_group_states,
            self._images,
            self.faults,
            self._on_other,
        )

    async def start(self, nursery: trio.Nursery) -> None:
        """Serve; returns when connections are taken."""
        self._scope, self._ended = trio.CancelScope(), trio.Event()
        await nursery.start(self._serve)

    async def _serve(self, task_status: trio.TaskStatus[None]) -> None:
        listener = self._network.listen()
        try:
            with self._scope:
                async with open_server(
                    self.store,
                    config=self._workload.server_config,
                    transport_config=self._workload.transport_config,
                    listener=listener,
                    run_blocking=self._threads.run,
                    clock=WallClock(lambda: EPOCH_US / 1e6 + trio.current_time()),
                ) as self.server:
                    self._history.add("server", "started")
                    task_status.started()
                    await trio.sleep_forever()
        finally:
            self.server = None
            self._ended.set()

    async def kill(self, what: str = "killed") -> None:
        """End it from one moment to the next; returns when all its tasks are gone.

        Args:
            what: As the history calls it.
        """
        self._history.add("server", what)
        self._network.reset_all()
        await self._end()

    async def drain(self) -> None:
        """End it in good order, as SIGTERM does."""
        assert self.server is not None
        self._history.add("server", "draining")
        in_time = await self.server.drain()
        self._history.add("server", "drained", in_time=in_time)
        await self._end()

    async def _end(self) -> None:
        assert self.server is not None
        activity = self.server.statistics().activity
        self._history.counts["parks"] += activity.scans_parked
        self._history.counts["duplicate writes"] += activity.duplicate_writes
        for read_source, count in activity.scans_resumed.items():
            self._history.counts[f"resumed from {read_source}"] += count
        for read_source, count in activity.scans_read.items():
            self._history.counts[f"read from {read_source}"] += count
        self._scope.cancel()
        await self._ended.wait()
        left = self.iterators_open()
        if left:
            self._history.left["iterators after the server's end"] = left
        self.store.close()
        self.store = self._open_store()

    def held(self) -> dict[str, int]:
        """What the running server holds for others, by kind."""
        assert self.server is not None
        now = self.server.statistics()
        return {
            "connections": now.transport.connections,
            "streams": now.transport.streams,
            "bytes buffered": now.transport.buffered_bytes + now.transport.unsent_bytes,
            "push scans": now.push_scans_open,
            "parked scans": now.scans_parked,
            "sessions": now.sessions_open,
            "members of groups": now.group_members,
            "iterators": now.iterators_open,
            "snapshots": now.snapshots_open,
            "pins": sum(len(bucket.pins) for bucket in self._served_buckets()),
            "iterators in storage": self.iterators_open(),
        }

    def empty_registry(self) -> None:
        """Close every snapshot that only lingers."""
        for bucket in self._served_buckets():
            bucket.snapshots.clear()
        self._history.add("server", "emptied")

    def fail_write(self, bucket: int, *, durable: bool, refusals: int) -> None:
        """Have the next write to a bucket fail, of either table; see `WriteFault`."""
        self.faults.next_writes |= {
            (table, bucket): WriteFault(durable, refusals) for table in (TABLE, PASSING)
        }
        self._history.add("server", "will_refuse", bucket=bucket, durable=durable, refusals=refusals)

    def _served_buckets(self) -> list[ServedBucket]:
        assert self.server is not None
        tables = self.server._services.catalog._tables.values()
        return [bucket for table in tables for bucket in table.buckets.values()]

    def iterators_open(self) -> int:
        """Iterators and snapshots that storage knows to be open, whatever the server believes."""
        buckets = self._workload.rows.description.buckets
        return sum(self.store.bucket(TABLE, index).open_iterators for index in range(buckets))

    def truncate(self, bucket: int, keep: float) -> None:
        """Drop the oldest changes of a bucket, down to a part of what there is."""
        log = self.store.bucket(TABLE, bucket)
        if log.failure is not None:
            return
        offset = log.log_end - int((log.log_end - log.log_start) * keep)
        log.truncate_log(offset)
        self.cut_by_force[bucket] = log.log_start
        self._history.add("server", "truncated", bucket=bucket, log_start=log.log_start)

    async def make_image(self, bucket: int, rows_max: int) -> None:
        """Give a bucket an image as of now, in place of the one that it may have.

        Args:
            bucket: Its index.
            rows_max: Rows of a block.
        """
        assert self.server is not None
        catalog = self.server._services.catalog
        served = await catalog.bucket(await catalog.table(TABLE), bucket)
        async with served.between_commits():
            give_image(served, self.store, TABLE, bucket, rows_max)
        self._history.add("server", "imaged", bucket=bucket)

    def drop_image(self, bucket: int) -> None:
        """Remove the image of a bucket, if it has one."""
        assert self.server is not None
        buckets = self.server._services.catalog.open_buckets()
        dropped = [served.image.drop() for _, index, served in buckets if index == bucket]
        self._history.add("server", "image_dropped" if any(dropped) else "no_image", bucket=bucket)

    def damage_image(self, bucket: int, rng: Random) -> None:
        """Damage the file of a bucket's image, if it has one."""
        path = self.store.image_path(self.store.table_id(TABLE), bucket)
        assert path is not None
        there = path.exists()
        if there:
            damage_image(path, rng)
        self._history.add("server", "image_damaged" if there else "no_image", bucket=bucket)

    def log_start(self, bucket: int) -> int:
        """The oldest offset that the log still has."""
        return self.store.bucket(TABLE, bucket).log_start
