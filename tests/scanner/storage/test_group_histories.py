"""What an epoch's history is for: copies of a bucket take of an old epoch's reader what they have, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scanner.storage.group_states import (
    GivenEpochs,
    GroupState,
    decode_group_state,
    encode_group_state,
)
from scanner.storage.lineage import Lineage
from scanner.storage.rocksdb.store import RocksStore
from tests.support.storage_tables import ITEMS, put

GROUP = "a"
_WHAT = st.sampled_from(["read", "start", "copy", "commit", "commit", "store", "fail", "lose", "give"])
_STEPS = st.lists(st.tuples(_WHAT, st.integers(0, 2), st.integers(0, 30)), min_size=20, max_size=40)
_GIVEN = [("commit", 0, 4), ("give", 0, 0), ("read", 0, 0), ("copy", 0, 0)]
_RESTORED = [*_GIVEN, ("commit", 0, 3), ("read", 0, 0), ("commit", 1, 4), ("start", 1, 0)]
"""The copy, when it is started again, is longer than what the reader of the original has read."""
_RESTORED_AGAIN = [*_RESTORED, ("copy", 1, 0), ("commit", 1, 3), ("commit", 2, 3), ("start", 2, 0)]
_BEGUN_LATER = [
    ("commit", 0, 4),
    ("start", 0, 0),
    ("give", 0, 0),
    ("commit", 0, 4),
    ("read", 0, 0),
    ("start", 0, 0),
]
"""The history that the reader reads begins behind its epoch, and it has stored nothing of it."""
_FAILED = [*_GIVEN, ("fail", 0, 0), ("commit", 0, 4), ("read", 0, 0), ("start", 0, 0), ("commit", 0, 4)]
_LOST = [*_GIVEN, ("commit", 0, 2), ("read", 0, 0), ("lose", 0, 1), ("commit", 0, 4), ("start", 0, 0)]


class _Kept(NamedTuple):
    """What is on the disk. Each change is an object of its own: no two copies make the same one."""

    log: tuple[object, ...] = ()
    lineage: Lineage = Lineage()
    state: GroupState | None = None


@dataclass
class _Reader:
    epoch: int
    read: tuple[object, ...]
    """The log up to its position."""


@dataclass(eq=False)
class _Bucket:
    """A bucket of a server that runs; `past` is what was durable, one state after another."""

    past: list[_Kept]
    ids: Iterator[int]
    began: bool = False
    given_epochs: GivenEpochs = field(default_factory=GivenEpochs)
    epoch: int = 0
    """What this server gave out last."""

    @property
    def now(self) -> _Kept:
        return self.past[-1]

    def write(self, changes: int, state: GroupState | None = None) -> None:
        """A commit, as the stores make it."""
        log, lineage, before = self.now
        begun = changes > 0 and not self.began
        if begun:
            lineage = lineage.begin(next(self.ids).to_bytes(16, "big"), len(log), 0)
            self.began = True
        states = {} if before is None else {GROUP: before}
        changed = {} if state is None else {GROUP: state}
        written = self.given_epochs.with_histories(states, changed, lineage.newest, begun=begun)
        self.past.append(
            _Kept(log + tuple(object() for _ in range(changes)), lineage, written.get(GROUP, before))
        )

    def give(self) -> None:
        self.epoch = next(self.ids)
        self.write(0, (self.now.state or GroupState(0))._replace(epoch=self.epoch))

    def accepts(self, reader: _Reader) -> bool:
        """The rule of the coordinator."""
        log, lineage, state = self.now
        end = lineage.end_of(state.epoch_history, len(log)) if state else 0
        return state is not None and state.epoch == reader.epoch and len(reader.read) <= end

    def store(self, reader: _Reader) -> None:
        state, position = self.now.state, len(reader.read)
        assert state is not None
        self.write(0, state._replace(position=position, history=self.now.lineage.history_of(position)))


def _as_format_1(kept: _Kept) -> _Kept:
    if kept.state is None:
        return kept
    old = b"\x01" + encode_group_state(kept.state)[1:-16]
    return kept._replace(state=decode_group_state(GROUP, old))


@pytest.mark.parametrize("form", [1, 2])
@given(steps=_STEPS)
@example(steps=_RESTORED)
@example(steps=_RESTORED_AGAIN)
@example(steps=_BEGUN_LATER)
@example(steps=_FAILED)
@example(steps=_LOST)
def test_a_copy_takes_what_it_has_and_nothing_else(form: int, steps: list[tuple[str, int, int]]) -> None:
    """Written, started, copied, failed and cut at random: a position is taken iff what was read before it is there.

    In format 1 each copy has forgotten the histories of its epochs: what is taken is there all the same.
    """
    ids = iter(range(1, 1000))
    buckets, readers = [_Bucket([_Kept()], ids)], list[_Reader]()

    def started(past: list[_Kept]) -> _Bucket:
        return _Bucket([_as_format_1(each) for each in past] if form == 1 else list(past), ids)

    for what, which, number in steps:
        at = which % len(buckets)
        bucket = buckets[at]
        if what == "commit":
            bucket.write(number % 5 + 1)
        elif what == "give":
            bucket.give()
        elif what == "read" and bucket.epoch:
            readers.append(_Reader(bucket.epoch, bucket.now.log))
        elif what == "store" and readers:
            reader = readers[number % len(readers)]
            if bucket.accepts(reader):
                bucket.store(reader)
        elif what == "start":
            buckets[at] = started(bucket.past)
        elif what == "copy":
            buckets.append(started(bucket.past))
        elif what == "fail":
            bucket.began = False  # It was opened anew by the same server, whose readers go on.
        elif what == "lose":
            buckets[at] = started(bucket.past[: max(1, len(bucket.past) - number)])
        for each in buckets:
            for reader in readers:
                state = each.now.state
                is_there = each.now.log[: len(reader.read)] == reader.read
                accepted = each.accepts(reader)
                assert is_there or not accepted
                if form != 1 and state is not None and state.epoch == reader.epoch:
                    assert accepted == is_there


@pytest.mark.rocks
def test_a_directory_with_a_state_of_format_1_opens(tmp_path: Path) -> None:
    """Of a position in a history that has ended, up to there; what is written of the group anew is of format 2."""
    with RocksStore.open(tmp_path) as store:
        store.create_table(ITEMS)
        bucket = store.bucket("items", 0)
        bucket.commit([[put(number, "x") for number in range(10)]])
        state = GroupState(7, 10, bucket.lineage.newest)
        bucket.commit_prepared(bucket.prepare([]), {GROUP: state})
        assert bucket._lifetime.database is not None
        bucket._lifetime.database.meta.put(b"group/a", b"\x01" + encode_group_state(state)[1:-16])
    for _ in range(2):
        with RocksStore.open(tmp_path) as store:
            bucket = store.bucket("items", 0)
            assert bucket.group_states == {GROUP: state._replace(epoch_history=state.history)}
            bucket.commit([[put(99, "y")], [put(99, "z")]])
            assert bucket.lineage.end_of(bucket.group_states[GROUP].epoch_history, bucket.log_end) == 10
            bucket.commit_prepared(bucket.prepare([]), {GROUP: state})
