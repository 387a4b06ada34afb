"""Where a tail begins and ends: decided when it is opened, from what the log has then; and when it has everything."""

from __future__ import annotations

import datetime
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bench.simulation.serving import clock_us
from bench.simulation.workload import State, TailStart, TailStop
from scanner import ScanSource
from scanner.proto.weir.v1 import scanner_pb2 as pb

if TYPE_CHECKING:
    import trio

    from bench.simulation.history import ScanRecord
    from bench.simulation.model import Model
    from bench.simulation.serving import Serving
    from bench.simulation.workload import ScanTask
    from scanner.client.scan.plan import LogStart, LogStop

SOURCES: Final = {ScanSource.LOG: pb.SCAN_SOURCE_LOG, ScanSource.HYBRID: pb.SCAN_SOURCE_HYBRID}


@dataclass(frozen=True, kw_only=True, slots=True)
class TailBounds:
    """What a tail asks for, as the product's builder takes it."""

    start: LogStart
    stop: LogStop
    earliest: Mapping[int, int]
    """By bucket: it begins there, or later."""


def choose_bounds(
    task: ScanTask, promised: Mapping[int, int], model: Model, serving: Serving, rng: random.Random
) -> TailBounds:
    """What a tail that is opened now asks for.

    Args:
        task: Its task.
        promised: By bucket, the offset that its snapshot is as of, if that was chosen.
        model: Knows where commits end.
        serving: Knows how far back the logs reach.
        rng: Chooses.
    """
    assert task.tail is not None
    earliest = {bucket: serving.log_start(bucket) for bucket in range(model.rows.description.buckets)}
    start: LogStart = "earliest"
    if task.tail.source is ScanSource.HYBRID:
        earliest = dict(promised) or {bucket: model.end(bucket) for bucket in earliest}
    elif task.tail.start is TailStart.LATEST:
        start, earliest = "latest", {bucket: model.end(bucket) for bucket in earliest}
    elif task.tail.start is TailStart.OFFSET:
        earliest = {bucket: _bookmark(model, bucket, at, rng) for bucket, at in earliest.items()}
        start = earliest
    elif task.tail.start is TailStart.TIME:
        times = [
            commit.timestamp_us
            for bucket, at in earliest.items()
            for commit in model.commits(bucket)
            # The commits of one moment have later times, which are still in the future where nothing has happened.
            if commit.start >= at and commit.timestamp_us <= clock_us()
        ]
        if times:
            time_us = rng.choice(times)
            start = datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(
                microseconds=time_us
            )
            earliest = {bucket: max(at, model.offset_at(bucket, time_us)) for bucket, at in earliest.items()}
    stop: LogStop = None
    if task.tail.stop is not TailStop.NEVER:
        stop = "end"
    # A snapshot of now is as of an offset that nobody knows yet.
    known = task.tail.source is ScanSource.LOG or task.state is State.PAST
    if task.tail.stop is TailStop.OFFSET and known:
        stop = {bucket: _bookmark(model, bucket, at, rng) for bucket, at in earliest.items()}
    return TailBounds(start=start, stop=stop, earliest=earliest)


def _bookmark(model: Model, bucket: int, at_least: int, rng: random.Random) -> int:
    return rng.choice([offset for offset in model.offsets(bucket) if offset >= at_least] or [at_least])


class Following:
    """Tells a tail that has no end when it may be left.

    Args:
        model: Knows what was committed.
        writers_done: Set when nobody writes any more.
    """

    def __init__(self, model: Model, writers_done: trio.Event) -> None:
        self._model = model
        self._writers_done = writers_done

    def has_all(self, record: ScanRecord) -> bool:
        """Whether a tail was told that it has everything that will ever be written."""
        task = record.task
        if task.tail is None or task.tail.stop is not TailStop.NEVER or not self._writers_done.is_set():
            return False
        buckets = range(self._model.rows.description.buckets) if task.bucket is None else (task.bucket,)
        return all(self._stands(record, bucket) >= self._model.end(bucket) for bucket in buckets)

    @staticmethod
    def _stands(record: ScanRecord, bucket: int) -> int:
        told = record.buckets.get(bucket)
        begun = told.log_offset if told is not None else None
        in_log = record.task.tail is not None and record.task.tail.source is ScanSource.LOG
        return max(record.reached(bucket), begun if in_log and begun is not None else -1)
