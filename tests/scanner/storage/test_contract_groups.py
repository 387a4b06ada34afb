"""What every store remembers of reader groups: with its commits, through restarts, and nothing but what was written."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.errors import DataCorrupted
from scanner.storage.group_states import (
    GivenEpochs,
    GroupState,
    decode_group_names,
    decode_group_state,
    encode_group_names,
    encode_group_state,
)
from scanner.storage.lineage import NO_HISTORY
from tests.support.storage_tables import changes_of, put

if TYPE_CHECKING:
    from scanner.storage.interface import Bucket, Store

HISTORY = bytes(range(16))
OTHER_HISTORY = HISTORY[::-1]
IDS = st.binary(min_size=16, max_size=16)
NUMBERS = st.integers(0, 2**64 - 1)
STATES = st.builds(GroupState, NUMBERS, st.none() | NUMBERS, IDS, IDS)


def write(bucket: Bucket, **states: GroupState | None) -> None:
    """A commit of group states alone."""
    bucket.commit_prepared(bucket.prepare([]), states)


def test_a_state_comes_back_after_a_restart(store: Store, restart: Callable[[Store], Store]) -> None:
    """The last one written, of each group, in each bucket by itself."""
    first, second = store.bucket("items", 0), store.bucket("items", 1)
    assert first.group_states == {}
    write(first, a=GroupState(1), b=GroupState(7, 0))
    write(first, a=GroupState(2, 5, HISTORY))
    write(second, a=GroupState(9))
    store = restart(store)
    assert store.bucket("items", 0).group_states == {"a": GroupState(2, 5, HISTORY), "b": GroupState(7, 0)}
    assert store.bucket("items", 1).group_states == {"a": GroupState(9)}


def test_a_forgotten_group_stays_forgotten(store: Store, restart: Callable[[Store], Store]) -> None:
    """Also one that never was, and also when it is the last one."""
    bucket = store.bucket("items", 0)
    write(bucket, a=GroupState(1), b=GroupState(2))
    write(bucket, a=None, c=None)
    assert bucket.group_states == {"b": GroupState(2)}
    write(bucket, b=None)
    store = restart(store)
    assert store.bucket("items", 0).group_states == {}


def test_states_and_rows_share_a_commit(store: Store, restart: Callable[[Store], Store]) -> None:
    """Both are there afterwards; a commit of states alone makes no change and no history."""
    bucket = store.bucket("items", 0)
    write(bucket, a=GroupState(1))
    assert (bucket.log_end, bucket.lineage.histories) == (0, ())
    bucket.commit_prepared(bucket.prepare([[put(1, "x")]]), {"a": GroupState(2)})
    store = restart(store)
    bucket = store.bucket("items", 0)
    assert changes_of(bucket) == [("+I", 1, "x")]
    assert bucket.group_states == {"a": GroupState(2, epoch_history=bucket.lineage.newest)}
    assert len(bucket.lineage.histories) == 1


def test_an_epoch_has_the_newest_history_that_its_reader_can_have_read(
    store: Store, restart: Callable[[Store], Store]
) -> None:
    """It goes on with the bucket that was told of it, over a failure, too, and stays where that was restarted."""

    def histories() -> dict[str, bytes]:
        return {name: state.epoch_history for name, state in bucket.group_states.items()}

    bucket = store.bucket("items", 0)
    write(bucket, a=GroupState(1, epoch_history=HISTORY))
    assert histories() == {"a": NO_HISTORY}
    bucket.commit_prepared(bucket.prepare([[put(1, "x")]]), {"b": GroupState(1)})
    assert histories() == dict.fromkeys("ab", bucket.lineage.newest)
    bucket.reopen(writable=True)
    bucket.commit([[put(2, "x")]])
    first = bucket.lineage.newest
    assert histories() == dict.fromkeys("ab", first)

    store = restart(store)
    bucket = store.bucket("items", 0)
    write(bucket, c=GroupState(1))
    assert histories() == dict.fromkeys("abc", first)
    bucket.commit_prepared(bucket.prepare([[put(3, "x")]]), {"a": GroupState(1, 1, HISTORY)})
    second = bucket.lineage.newest
    assert first != second
    assert histories() == {"a": first, "b": first, "c": second}
    write(bucket, b=GroupState(2, epoch_history=first))
    assert histories() == {"a": first, "b": second, "c": second}

    before = bucket.group_states
    store = restart(store)
    bucket = store.bucket("items", 0)
    assert bucket.group_states == before
    bucket.commit([[put(4, "x")]])
    assert bucket.group_states == before


def test_an_epoch_that_was_not_stored_leaves_the_one_before_alone() -> None:
    """Its commit fails: the older epoch, of an earlier server, does not go on into the history that is begun then."""
    given_epochs, stored = GivenEpochs(), {"a": GroupState(1, epoch_history=HISTORY)}
    write_next = given_epochs.with_histories
    assert write_next(stored, {"a": GroupState(2)}, HISTORY, begun=False) == {
        "a": GroupState(2, epoch_history=HISTORY)
    }
    assert write_next(stored, {}, OTHER_HISTORY, begun=True) == {}
    assert write_next(stored, {"a": GroupState(1, 5, OTHER_HISTORY)}, OTHER_HISTORY, begun=False) == {
        "a": GroupState(1, 5, OTHER_HISTORY, HISTORY)
    }


def test_a_bucket_keeps_nothing_of_groups_that_are_gone() -> None:
    """Under however many names they were, in a bucket that is served for months; the one that stays goes on."""

    class Name(str):
        """A name that tells whether anything still has it."""

    given_epochs, gone = GivenEpochs(), list[weakref.ref[Name]]()
    write_next, stored = given_epochs.with_histories, {"stays": GroupState(7, epoch_history=HISTORY)}
    assert write_next({}, {"stays": GroupState(7)}, HISTORY, begun=False) == stored
    for number in range(20):
        name = Name(f"job-{number}")
        gone.append(weakref.ref(name))
        write_next(stored, {name: GroupState(1)}, HISTORY, begun=False)
        write_next({**stored, name: GroupState(1)}, {name: None}, HISTORY, begun=False)
        del name
    assert write_next(stored, {}, OTHER_HISTORY, begun=True) == {
        "stays": GroupState(7, epoch_history=OTHER_HISTORY)
    }
    assert [name() for name in gone] == [None] * len(gone)


@given(STATES)
def test_a_state_is_read_as_it_was_written(state: GroupState) -> None:
    """Whatever it holds; cut short, or of another format, it is damage."""
    encoded = encode_group_state(state)
    assert decode_group_state("a", encoded) == state
    for damaged in (None, b"", encoded[:-1], encoded + b"\0", b"\x09" + encoded[1:]):
        with pytest.raises(DataCorrupted, match="reader group a"):
            decode_group_state("a", damaged)


@given(NUMBERS, st.none() | NUMBERS, IDS)
def test_a_state_of_format_1_is_read(epoch: int, position: int | None, history: bytes) -> None:
    """It has no history of the epoch: that of the position stands for it, which is no newer. Cut, it is damage."""
    encoded = b"\x01" + encode_group_state(GroupState(epoch, position, history))[1:-16]
    assert decode_group_state("a", encoded) == GroupState(epoch, position, history, history)
    for damaged in (encoded[:-1], encoded + b"\0", encoded[:1]):
        with pytest.raises(DataCorrupted, match="reader group a is missing or damaged"):
            decode_group_state("a", damaged)


@given(st.sets(st.text("abc-.:_09", min_size=1), max_size=20))
def test_the_list_of_groups_is_read_as_it_was_written(names: set[str]) -> None:
    """In alphabetical order; nothing is an empty list."""
    assert decode_group_names(encode_group_names(list(names))) == sorted(names)
    assert decode_group_names(None) == []
    with pytest.raises(DataCorrupted):
        decode_group_names(b"\xff")
