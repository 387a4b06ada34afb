"""What every store remembers of its writers' requests: with its commits, through restarts, and so many of them."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.errors import DataCorrupted, SequenceInvalid
from scanner.storage import writers
from scanner.storage.writers import (
    SEQUENCES_KEPT,
    AppliedRequest,
    KnownWriters,
    RequestNumber,
    Writer,
    decode_writer,
    encode_writer,
    find_request,
)
from tests.support.storage_tables import changes_of, delete, put

if TYPE_CHECKING:
    from scanner.storage.interface import Bucket, Mutation, Store

ONE, TWO = bytes(16), bytes(range(16))
NUMBERS = st.integers(0, 2**64 - 1)
APPLIED = st.builds(AppliedRequest, NUMBERS, NUMBERS, NUMBERS, st.integers(0, 2**32 - 1))
WRITERS = st.builds(
    Writer, st.binary(min_size=16, max_size=16), st.lists(APPLIED, min_size=1, max_size=20).map(tuple)
)


def write(bucket: Bucket, writer_id: bytes, sequence: int, *mutations: Mutation) -> AppliedRequest:
    """A commit of one request."""
    prepared = bucket.prepare([mutations])
    request = AppliedRequest(sequence, *prepared.offsets[0], 7)
    bucket.commit_prepared(prepared, requests={writer_id: [request]})
    return request


def test_a_request_is_remembered_with_its_changes(store: Store, restart: Callable[[Store], Store]) -> None:
    """Each writer's by itself, in each bucket by itself, and also one that has changed nothing."""
    first, second = store.bucket("items", 0), store.bucket("items", 1)
    assert first.requests_of(ONE) == ()
    made = write(first, ONE, 1, put(1, "a")), write(first, ONE, 3, put(1, "b"), put(2, "b"))
    nothing = write(first, TWO, 1, delete(9))
    other = write(second, ONE, 2, put(3, "c"))
    for _ in range(2):
        assert first.requests_of(ONE) == made == ((1, 0, 1, 7), (3, 1, 4, 7))
        assert first.requests_of(TWO) == (nothing,) == ((1, 4, 4, 7),)
        assert second.requests_of(ONE) == (other,)
        assert second.requests_of(TWO) == ()
        assert len(changes_of(first)) == 4
        store = restart(store)
        first, second = store.bucket("items", 0), store.bucket("items", 1)


def test_the_newest_requests_of_a_writer_are_remembered(
    store: Store, restart: Callable[[Store], Store]
) -> None:
    """As many as it may have on their way, however far apart their numbers are."""
    bucket = store.bucket("items", 0)
    numbers = [*range(1, 30), 35, 1000, 2**40]
    for sequence in numbers:
        write(bucket, ONE, sequence, put(1, f"{sequence}"))
    kept = numbers[-SEQUENCES_KEPT:]
    assert [each.sequence for each in bucket.requests_of(ONE)] == kept
    assert [each.sequence for each in restart(store).bucket("items", 0).requests_of(ONE)] == kept


def test_writers_that_have_not_written_for_long_are_forgotten(
    store: Store, restart: Callable[[Store], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that wrote last stays, however it comes to its place; after a restart as before."""
    monkeypatch.setattr(writers, "WRITERS_MAX", 3)
    ids = [bytes([number]) * 16 for number in range(6)]
    bucket = store.bucket("items", 0)
    for number in (0, 1, 2, 0, 3):
        write(bucket, ids[number], 1 + len(changes_of(bucket)), put(1, f"{number}"))
    for _ in range(2):
        assert [bool(bucket.requests_of(each)) for each in ids] == [True, False, True, True, False, False]
        store = restart(store)
        bucket = store.bucket("items", 0)
    together = {each: [AppliedRequest(1, 9, 9, 7)] for each in (ids[4], ids[2], ids[5])}
    bucket.commit_prepared(bucket.prepare([]), requests=together)
    for _ in range(2):
        assert [bool(bucket.requests_of(each)) for each in ids] == [False, False, True, False, True, True]
        store = restart(store)
        bucket = store.bucket("items", 0)


def test_after_a_restart_the_one_that_has_not_written_for_longest_is_forgotten_first(
    store: Store, restart: Callable[[Store], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever place it has: a writer that is writing would be taken for one that nobody knows."""
    monkeypatch.setattr(writers, "WRITERS_MAX", 3)
    ids = [bytes([number]) * 16 for number in range(4)]
    bucket = store.bucket("items", 0)
    for number in (0, 1, 2, 0):
        write(bucket, ids[number], 1 + len(changes_of(bucket)), put(1, f"{number}"))
    bucket = restart(store).bucket("items", 0)
    write(bucket, ids[3], 1 + len(changes_of(bucket)), put(1, "3"))
    assert [bool(bucket.requests_of(each)) for each in ids] == [True, False, True, True]


@given(st.lists(st.dictionaries(st.integers(0, 9), st.integers(1, 3), max_size=4), max_size=40))
def test_places_are_taken_without_gaps(commits: list[dict[int, int]]) -> None:
    """What storage keeps says what is known, at any time: no place has two writers, and no writer two places."""
    known, stored = KnownWriters(), dict[int, bytes]()
    model = dict[bytes, tuple[AppliedRequest, ...]]()
    sequence = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writers, "WRITERS_MAX", 5)
        for commit in commits:
            requests = dict[bytes, list[AppliedRequest]]()
            for number, count in commit.items():
                for _ in range(count):
                    sequence += 1
                    requests.setdefault(bytes([number]) * 16, []).append(
                        AppliedRequest(sequence, sequence, sequence + 1, 0)
                    )
            updated = known.updated(requests)
            known.take(updated)
            stored |= updated
            for writer_id, applied in requests.items():
                model[writer_id] = (*model.pop(writer_id, ()), *applied)[-SEQUENCES_KEPT:]
            model = dict(list(model.items())[-5:])
            again = KnownWriters(stored[place] for place in range(len(stored)))
            for number in range(10):
                writer_id = bytes([number]) * 16
                expected = model.get(writer_id, ())
                assert known.requests_of(writer_id) == again.requests_of(writer_id) == expected


def test_a_request_is_found_or_new_or_too_late() -> None:
    """By its number, and by what it asks for."""
    applied = AppliedRequest(3, 10, 12, 7), AppliedRequest(5, 12, 12, 8)
    assert find_request((), RequestNumber(ONE, 1, 7)) is None
    assert find_request(applied, RequestNumber(ONE, 6, 7)) is None
    assert find_request(applied, RequestNumber(ONE, 3, 7)) == applied[0]
    assert find_request(applied, RequestNumber(ONE, 5, 8)) == applied[1]
    for late in (1, 2, 4):
        with pytest.raises(
            SequenceInvalid, match=f"request {late} of this writer comes after its request 5.* refused"
        ):
            find_request(applied, RequestNumber(ONE, late, 7))
    with pytest.raises(SequenceInvalid, match="was applied with other rows"):
        find_request(applied, RequestNumber(ONE, 3, 8))
    remembered = tuple(AppliedRequest(each, each, each, 7) for each in range(10, 10 * SEQUENCES_KEPT + 1, 10))
    with pytest.raises(SequenceInvalid, match="nobody knows whether it was applied"):
        find_request(remembered, RequestNumber(ONE, 9, 7))
    with pytest.raises(SequenceInvalid, match="was not applied"):
        find_request(remembered, RequestNumber(ONE, 11, 7))


def test_what_is_known_of_writers_takes_little_memory() -> None:
    """A bucket keeps it for as long as the server runs: all writers with all of their numbers, in less than 1 MiB."""
    known = KnownWriters()
    tracemalloc.start()
    try:
        for number in range(writers.WRITERS_MAX):
            applied = [
                AppliedRequest(2**40 + each, 2**40 + number, 2**41 + each, 2**31 + each)
                for each in range(SEQUENCES_KEPT)
            ]
            known.take(known.updated({number.to_bytes(16, "big"): applied}))
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(known.requests_of((0).to_bytes(16, "big"))) == SEQUENCES_KEPT
    assert taken < 1024 * 1024


@given(WRITERS)
def test_records_come_back(writer: Writer) -> None:
    """Whatever the numbers are."""
    assert decode_writer(encode_writer(writer)) == writer


@given(st.binary(max_size=100))
def test_damaged_records_are_refused(value: bytes) -> None:
    """Never is something else made of them."""
    with suppress(DataCorrupted):
        assert encode_writer(decode_writer(value)) == value
