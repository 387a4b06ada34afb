"""Turns: order within a bucket, fairness between buckets, and a plain queue that the same test finds unfair."""

from __future__ import annotations

import functools
from collections import Counter, deque
from typing import Protocol

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.client.scan.turns import Delivery, Turns

BATCH = pa.record_batch({"k": [1]})
NO_ROWS = BATCH.slice(0, 0)
BUCKETS = 4
Step = tuple[int, bool] | None
"""A bucket that gets a batch, with rows or without; None: the consumer takes one."""
steps = st.lists(st.none() | st.tuples(st.integers(0, BUCKETS - 1), st.booleans()), max_size=120)


class Queue(Protocol):
    """What is tested."""

    def put(self, delivery: Delivery) -> None:
        """Add a batch."""

    def take(self) -> Delivery:
        """Take one."""


class Fifo:
    """First come, first served: a bucket with much holds up the others."""

    def __init__(self) -> None:
        self._waiting: deque[Delivery] = deque()

    def put(self, delivery: Delivery) -> None:
        """Add a batch behind all others."""
        self._waiting.append(delivery)

    def take(self) -> Delivery:
        """Take the oldest."""
        return self._waiting.popleft()


def delivery(bucket: int, position: int, *, rows: bool = True) -> Delivery:
    """A batch, or what only moves the position."""
    return Delivery(bucket, BATCH if rows else NO_ROWS, 10 if rows else 0, lambda: None, position)


def run(queue: Queue, script: list[Step]) -> None:
    """Put and take, then take all that is left; raise where an order or somebody's turn is not kept."""
    waiting: dict[int, deque[int]] = {bucket: deque() for bucket in range(BUCKETS)}
    """By bucket, the positions of the batches with rows that are due."""
    newest: dict[int, int] = {}
    passed: dict[int, Counter[int]] = {bucket: Counter() for bucket in range(BUCKETS)}
    """By bucket, what others got since it had its turn, or had nothing."""

    def take() -> None:
        taken = queue.take()
        if taken.size:
            assert waiting[taken.bucket].popleft() == taken.position
        assert taken.position is not None
        assert taken.position > newest.get(taken.bucket, -1)
        newest[taken.bucket] = taken.position
        for bucket in range(BUCKETS):
            if bucket == taken.bucket or not held[bucket]:
                passed[bucket].clear()
            else:
                passed[bucket][taken.bucket] += 1
                assert passed[bucket][taken.bucket] <= 1, (
                    f"bucket {bucket} waits for more than one of another"
                )
        if taken.position == last[taken.bucket]:
            held[taken.bucket] = False

    held = dict.fromkeys(range(BUCKETS), False)
    last: dict[int, int] = {}
    for number, step in enumerate(script):
        if step is None:
            if any(held.values()):
                take()
            continue
        bucket, rows = step
        held[bucket], last[bucket] = True, number
        if rows:
            waiting[bucket].append(number)
        queue.put(delivery(bucket, number, rows=rows))
    while any(held.values()):
        take()
    assert newest == last
    assert not any(waiting.values())


@given(steps)
def test_buckets_take_turns(script: list[Step]) -> None:
    """Whatever comes when: each bucket in its order, nothing lost, and nobody waits for two of another."""
    run(Turns(), script)


def test_a_plain_queue_is_found_unfair() -> None:
    """A hot bucket's batches before a quiet one's."""
    script: list[Step] = [(0, True), (0, True), (1, True)]
    run(Turns(), script)
    with pytest.raises(AssertionError, match="bucket 1 waits"):
        run(Fifo(), script)


def test_heartbeats_do_not_collect() -> None:
    """What has no rows joins what has none before it, and says all that both said."""
    turns = Turns()
    turns.put(Delivery(0, NO_ROWS, 0, lambda: None, position=5, snapshot_end=5))
    turns.put(Delivery(0, NO_ROWS, 0, lambda: None, commit_time_floor_us=7))
    turns.put(Delivery(0, NO_ROWS, 0, lambda: None, position=9))
    turns.put(delivery(0, 12))
    turns.put(delivery(0, 13, rows=False))
    joined, rows, after = (turns.take() for _ in range(3))
    assert (joined.position, joined.snapshot_end, joined.commit_time_floor_us) == (9, 5, 7)
    assert (rows.position, after.position) == (12, 13)
    assert not turns.ready


def test_what_was_joined_counts_as_consumed() -> None:
    """Each delivery is told once, whoever counts them, whether the consumer has taken it or another has joined it."""
    told: list[int] = []
    turns = Turns()
    for position in range(4):
        rows = position == 2
        turns.put(
            Delivery(
                0, BATCH if rows else NO_ROWS, 10 if rows else 0, functools.partial(told.append, position)
            )
        )
    assert told == [0]
    while turns.ready:
        turns.take().consumed()
    assert told == [0, 1, 2, 3]


def test_what_a_bucket_has() -> None:
    """Until its last batch is taken, or all are dropped."""
    turns = Turns()
    assert not turns.has(3)
    turns.put(delivery(3, 1))
    turns.put(delivery(3, 2))
    turns.take()
    assert turns.has(3)
    turns.clear()
    assert not turns.has(3)
    assert not turns.ready
