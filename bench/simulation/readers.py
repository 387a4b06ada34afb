"""Readers of a group: each joins, reads, stores positions, freezes, leaves or dies, and comes again.

At the end those that stay read up to where the log ends, and leave when that is stored.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

import trio

import scanner
from bench.simulation.excuses import taken_away
from bench.simulation.group_tasks import ReaderTask, Stint, StintEnd
from bench.simulation.group_validators import Delivered, Stored
from bench.simulation.history import GroupFailure, History
from bench.simulation.storage import REFUSED
from bench.simulation.tables import TABLE
from bench.simulation.workload import RETRIES
from scanner.data.changes import LOG_OFFSET

if TYPE_CHECKING:
    import pyarrow as pa

    from bench.simulation.connections import Connections
    from bench.simulation.model import Model
    from bench.simulation.serving import Serving
    from bench.simulation.workload import Workload
    from scanner.client.scan.group_scan import GroupBatches

GROUP: Final = "readers"
FOLLOW_S: Final = 1.0
"""How often a reader that gets nothing stores what is left, and looks whether the group has everything."""


class GroupCourse:
    """The way of one group: whether it is at its end, and what has happened to its buckets.

    Args:
        history: Counts what has happened.
        model: Knows where the logs end.
        serving: Knows where they begin.
        writers_done: Set when nobody writes any more.
    """

    def __init__(self, history: History, model: Model, serving: Serving, writers_done: trio.Event) -> None:
        self._history = history
        self._model = model
        self._serving = serving
        self._writers_done = writers_done
        self._last: dict[int, tuple[str, int, int]] = {}
        """By bucket: the reader that was handed something last, its stint, and the restarts of the server by then."""
        self._dead: set[tuple[str, int]] = set()

    @property
    def ended(self) -> bool:
        """Whether all that will ever be written was read and stored; or somebody has failed, who would fail again."""
        if self._history.group_failed:
            return True
        return self._writers_done.is_set() and all(
            self._history.group.position(bucket) == self._model.end(bucket) for bucket in self._buckets
        )

    @property
    def overtaken(self) -> bool:
        """Whether retention has passed a position of the group, which does not keep it."""
        return any(
            self._serving.log_start(bucket) > (self._history.group.position(bucket) or 0)
            for bucket in self._buckets
        )

    @property
    def _buckets(self) -> range:
        return range(self._model.rows.description.buckets)

    def handed(self, who: str, stint: int, bucket: int) -> None:
        """A reader was handed something of a bucket."""
        counts = self._history.counts
        restarts = counts["killed"] + counts["drained"]
        before, its_stint, restarts_before = self._last.get(bucket, (who, stint, restarts))
        counts["group moves"] += before != who
        counts["group moves from dead"] += before != who and (before, its_stint) in self._dead
        counts["group restarts"] += restarts > restarts_before
        self._last[bucket] = who, stint, restarts

    def died(self, who: str, stint: int) -> None:
        """A reader is no more."""
        self._dead.add((who, stint))


class GroupReader:
    """One reader of the group.

    Args:
        who: For the history; its name in the group.
        workload: Of the run.
        connections: Its way to the server.
        history: Told of everything.
        course: Of the group.
    """

    def __init__(
        self, who: str, workload: Workload, connections: Connections, history: History, course: GroupCourse
    ) -> None:
        self._who = who
        self._workload = workload
        self._connections = connections
        self._history = history
        self._course = course

    async def run(self, task: ReaderTask) -> None:
        """Be a member as often as the task says, or until the group is at its end."""
        for number, stint in enumerate(task.stints):
            await trio.sleep(stint.after_s)
            if self._course.ended:
                return
            self._history.add(self._who, "joins", stint=number, end=stint.end.value)
            try:
                with trio.CancelScope() as life:
                    await self._be_member(task, stint, number, life)
            except scanner.ScannerError as error:
                excused = isinstance(error, scanner.OffsetOutOfRange) and self._course.overtaken
                self._history.add(self._who, "failed", error=type(error).__name__)
                self._history.group_failed.append(GroupFailure(self._who, error, excused))
                return

    async def _be_member(self, task: ReaderTask, stint: Stint, number: int, life: trio.CancelScope) -> None:
        reading = _Reading(
            self._who, number, task, stint, self._connections, self._history, self._course, life
        )
        while True:
            try:
                async with self._connections.client() as client:
                    table = await self._connections.again(functools.partial(client.table, TABLE))
                    async with self._scan(table, task).execute() as batches:
                        return await reading.run(batches)
            except scanner.ScannerError as error:
                slow = isinstance(error, scanner.SlowConsumer) and taken_away(self._workload)
                if not slow and REFUSED not in error.message:
                    raise

    def _scan(self, table: scanner.Table, task: ReaderTask) -> scanner.GroupScan:
        scan = table.new_scan().with_source("log").with_credit(task.credit_bytes).with_retries(RETRIES)
        return scan.in_group(GROUP, member=self._who.replace(" ", "-"), auto_commit=not task.commit_every)


class _Reading:
    """What one process of a reader does.

    Args:
        who: The reader.
        number: Of the stint.
        task: Of the reader.
        stint: What is special about this one.
        connections: Its way to the server.
        history: Told of everything.
        course: Of the group.
        life: Cancelled when it dies.
    """

    def __init__(
        self,
        who: str,
        number: int,
        task: ReaderTask,
        stint: Stint,
        connections: Connections,
        history: History,
        course: GroupCourse,
        life: trio.CancelScope,
    ) -> None:
        self._who = who
        self._number = number
        self._name = f"{who} stint {number}"
        self._task = task
        self._stint = stint
        self._connections = connections
        self._history = history
        self._course = course
        self._life = life
        self._batches = 0
        self._to_store: dict[int, tuple[int, int]] = {}
        """By bucket: epoch and position."""

    async def run(self, batches: GroupBatches) -> None:
        """Read, until it is time to go."""
        task, stint = self._task, self._stint
        while (batch := await self._next(batches)) is not None:
            self._take(batch, batches)
            await trio.sleep(task.pause_s)
            if self._batches == stint.freeze_at:
                self._history.add(self._who, "freezes", seconds=stint.frozen_s)
                await self._connections.freeze(stint.frozen_s)
            if task.commit_every and self._batches % task.commit_every == 0:
                await self._store(batches)
            if stint.end is not StintEnd.STAYS and self._batches >= stint.turn_at:
                self._history.add(self._who, stint.end.value)
                if stint.end is StintEnd.DIES:
                    await self._die()
                return

    async def _next(self, batches: GroupBatches) -> pa.RecordBatch | None:
        """The next batch; None: the group is at its end."""
        while not self._course.ended:
            with trio.move_on_after(FOLLOW_S):
                return await anext(batches, None)
            await trio.lowlevel.checkpoint()
            await self._store(batches)
        return None

    def _take(self, batch: pa.RecordBatch, batches: GroupBatches) -> None:
        bucket, epoch = batches.bucket, batches.epoch
        assert bucket is not None
        assert epoch is not None
        self._batches += 1
        offsets = batch[LOG_OFFSET].to_pylist()
        start, end = offsets[0], offsets[0] + len(offsets)
        if offsets != list(range(start, end)):
            self._history.found.append(("continued", self._who, f"bucket {bucket}: a batch of {offsets}"))
        self._history.add(self._who, "handed", bucket=bucket, epoch=epoch, start=start, end=end)
        self._history.group.delivered.append(
            Delivered(trio.current_time(), self._name, bucket, epoch, start, end)
        )
        self._course.handed(self._who, self._number, bucket)
        if batches.positions.get(bucket) == end:
            self._to_store[bucket] = epoch, end

    async def _store(self, batches: GroupBatches) -> None:
        """Store the positions of what it was handed."""
        if not self._task.commit_every:
            return
        wanted, self._to_store = self._to_store, {}
        # Else the bucket has come back meanwhile, by another epoch, and nothing of that one was handed out.
        wanted = {bucket: each for bucket, each in wanted.items() if batches.positions.get(bucket) == each[1]}
        stored, began_at = self._history.group.stored, trio.current_time()
        lost = await batches.commit()
        for bucket, (epoch, position) in wanted.items():
            accepted = bucket not in lost
            stored.append(Stored(began_at, self._name, bucket, epoch, position, accepted))
            what = "stored" if accepted else "refused"
            self._history.add(self._who, what, bucket=bucket, epoch=epoch, position=position)

    async def _die(self) -> None:
        self._course.died(self._who, self._number)
        self._connections.die()
        self._life.cancel()
        await trio.lowlevel.checkpoint()
