"""What every store keeps of transactions: stages whole or absent, decisions, and shares that are seen whole or not."""

from __future__ import annotations

import sys
import threading
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.errors import DataCorrupted, StoreFailed, TableNotFound
from scanner.storage.interface import Mutation
from scanner.storage.memory.store import MemoryStore
from scanner.storage.memory.transaction_files import MemoryStageSource
from scanner.storage.stage_frames import (
    count_mutations,
    find_frames,
    head_frame,
    mutation_frames,
    read_frame,
    read_mutations,
    tail_frame,
)
from scanner.storage.transactions import ALL_KNOWN, AppliedShare, StageKey, decode_applied, encode_applied
from tests.support.changes import read_changes
from tests.support.storage_tables import ITEMS, changes_of, contents, delete, put, puts

if TYPE_CHECKING:
    from scanner.storage.interface import Bucket, Store
    from scanner.storage.transactions import TransactionFiles

KEY = StageKey("load", 7, 3, 1, 1, 1_700_000_000_000, bytes(range(16)))
NEW = {ALL_KNOWN: AppliedShare(0, 0, 0)}
"""What a bucket has applied that was just made."""
MUTATIONS = st.builds(Mutation, st.binary(max_size=20), st.none() | st.binary(max_size=60))


def staged(table_id: int, key: StageKey, routed: dict[int, list[Mutation]]) -> list[bytes]:
    """The frames of a stage."""
    frames = list(mutation_frames(routed))
    counts = len(frames), sum(count for _, count in frames)
    return [head_frame(table_id, key), *(frame for frame, _ in frames), tail_frame(*counts)]


def write_stage(files: TransactionFiles, key: StageKey, routed: dict[int, list[Mutation]]) -> None:
    """A stage, durable."""
    sink = files.open_sink(key)
    sink.append(staged(files.table_id, key, routed))
    sink.finish(key)


def read_stage(
    files: TransactionFiles, key: StageKey, bucket: int | None = None
) -> dict[int, list[Mutation]]:
    """What a stage holds, by bucket."""
    source = files.open_source(key)
    found: dict[int, list[Mutation]] = {}
    if bucket is None:
        for index, mutations in read_mutations(source, files.table_id, key):
            found.setdefault(index, []).extend(mutations)
    else:
        for at in find_frames(source, files.table_id, key).of(bucket):
            found.setdefault(bucket, []).extend(read_frame(source, at, bucket, key))
    source.close()
    return found


def apply(bucket: Bucket, mutations: list[Mutation], *, unfinished: bool, **applied: AppliedShare) -> None:
    """A commit of one request."""
    prepared = bucket.prepare([mutations] if mutations else [])
    bucket.commit_prepared(prepared, applied=applied, unfinished=unfinished)


def test_a_stage_is_read_as_it_was_written_after_a_restart(
    store: Store, restart: Callable[[Store], Store]
) -> None:
    """All of it, or what one bucket has of it, in order; and the store lists it with its size."""
    routed = {0: [put(1, "a"), delete(2), put(1, "b")], 1: [put(3, None)]}
    write_stage(store.transaction_files("items"), KEY, routed)
    files = restart(store).transaction_files("items")
    assert [(each.key, each.size) for each in files.stages()] == [(KEY, files.open_source(KEY).size)]
    assert read_stage(files, KEY) == routed
    assert read_stage(files, KEY, 1) == {1: routed[1]}


def test_a_stage_that_was_not_finished_is_not_there(store: Store, restart: Callable[[Store], Store]) -> None:
    """Given up, or cut off by a restart; one that was finished cannot be given up."""
    files = store.transaction_files("items")
    used = [files.used]
    given_up = files.open_sink(KEY)
    used.append(files.used)
    assert used == [False, True]
    given_up.discard()
    files.open_sink(KEY._replace(part=4)).append([b"x"])
    key = KEY._replace(part=5)
    done = files.open_sink(key)
    done.append([b"y"])
    later = key._replace(staged_ms=key.staged_ms + 1)
    done.finish(later)
    done.discard()
    files = restart(store).transaction_files("items")
    assert [each.key for each in files.stages()] == [later]
    with pytest.raises(DataCorrupted):
        files.open_source(KEY)


def test_stages_and_decisions_are_dropped(store: Store, restart: Callable[[Store], Store]) -> None:
    """Those that are named and no other; what is not there is no error."""
    files = store.transaction_files("items")
    other = KEY._replace(name="..")
    write_stage(files, KEY, {0: [put(1, "a")]})
    write_stage(files, other, {0: [put(1, "a")]})
    files.write_decision("load", b"first")
    files.write_decision("load", b"second")
    assert files.decisions() == {"load": b"second"}
    files.drop_stages([KEY, KEY])
    files = restart(store).transaction_files("items")
    assert [each.key for each in files.stages()] == [other]
    assert files.decisions() == {"load": b"second"}
    files.drop_decision("load")
    files.drop_decision("load")
    assert files.decisions() == {}


def test_a_stage_is_begun_while_the_last_of_its_name_goes(store: Store) -> None:
    """Whenever that is, in another thread, there is a place for it."""
    files = store.transaction_files("items")
    done = threading.Event()

    def drop() -> None:
        while not done.is_set():
            files.drop_decision(KEY.name)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # So that the threads take turns in the middle of things.
    with ThreadPoolExecutor(1) as thread:
        dropping = thread.submit(drop)
        try:
            for _ in range(400):
                files.open_sink(KEY).discard()
        finally:
            done.set()
            sys.setswitchinterval(interval)
        dropping.result()
    write_stage(files, KEY, {0: [put(1, "a")]})
    assert read_stage(files, KEY) == {0: [put(1, "a")]}


def test_a_dropped_table_takes_its_transactions_along(store: Store) -> None:
    """One of the same name that is created later has none."""
    files = store.transaction_files("items")
    write_stage(files, KEY, {0: [put(1, "a")]})
    files.write_decision("load", b"x")
    store.drop_table("items")()
    with pytest.raises(TableNotFound):
        store.transaction_files("items")
    store.create_table(ITEMS)
    again = store.transaction_files("items")
    assert (again.stages(), again.decisions()) == ([], {})
    assert again.table_id != files.table_id


def test_what_was_applied_comes_back_after_a_restart(store: Store, restart: Callable[[Store], Store]) -> None:
    """With the rows of its commit; a commit without changes makes no history, and what is forgotten stays so."""
    bucket = store.bucket("items", 0)
    apply(bucket, [], unfinished=False, empty=AppliedShare(1, 0, 0))
    assert (bucket.log_end, bucket.lineage.histories) == (0, ())
    apply(bucket, [put(1, "x")], unfinished=False, load=AppliedShare(5, 0, 1))
    store = restart(store)
    bucket = store.bucket("items", 0)
    assert bucket.applied_shares == {**NEW, "empty": AppliedShare(1, 0, 0), "load": AppliedShare(5, 0, 1)}
    bucket.commit_prepared(bucket.prepare([]), applied={"load": None, "never": None})
    assert restart(store).bucket("items", 0).applied_shares == {**NEW, "empty": AppliedShare(1, 0, 0)}


def test_an_unfinished_share_is_seen_when_its_last_part_is_written(
    store: Store, restart: Callable[[Store], Store]
) -> None:
    """Until then the log ends where it did and nothing can be opened; afterwards the parts follow each other."""
    bucket = store.bucket("items", 0)
    bucket.commit([puts((number, "old") for number in range(4))])
    before = bucket.open_snapshot().scan()
    apply(bucket, [put(0, "new"), delete(1)], unfinished=True)
    apply(bucket, [put(0, "newer"), put(9, "more")], unfinished=True)
    assert bucket.log_end == 4
    for opening in (bucket.open_snapshot, bucket.open_reader, lambda: store.create_checkpoint("items", 0)):
        with pytest.raises(StoreFailed):
            opening()
    assert [len(before.read(10, 1000).rows)] == [4]
    apply(bucket, [], unfinished=False, load=AppliedShare(5, 4, 10))
    expected = {0: "newer", 2: "old", 3: "old", 9: "more"}
    for again in (False, True):
        each = restart(store).bucket("items", 0) if again else bucket
        assert contents(each) == expected
        assert changes_of(each, 4) == [
            ("-U", 0, "old"),
            ("+U", 0, "new"),
            ("-D", 1, "old"),
            ("-U", 0, "new"),
            ("+U", 0, "newer"),
            ("+I", 9, "more"),
        ]
        assert each.applied_shares == {**NEW, "load": AppliedShare(5, 4, 10)}
        assert len(each.lineage.histories) == 1


def test_an_unfinished_share_keeps_its_bucket_from_being_closed_as_idle(store: Store) -> None:
    """Its first part would be undone, and the last one would show what comes after it alone."""
    bucket = store.bucket("items", 0)
    apply(bucket, [put(0, "first")], unfinished=True)
    bucket.close_idle()
    apply(bucket, [put(1, "second")], unfinished=True)
    apply(bucket, [], unfinished=False, load=AppliedShare(5, 0, 2))
    assert contents(bucket) == {0: "first", 1: "second"}


@pytest.mark.parametrize("anew", ["restart", "reopen"])
def test_an_unfinished_share_is_undone_when_the_bucket_is_opened_anew(
    store: Store, restart: Callable[[Store], Store], anew: str
) -> None:
    """Every row is what it was, the log ends where it did, and the share can be applied again."""
    bucket = store.bucket("items", 0)
    bucket.commit([puts((number, "old") for number in range(4))])
    apply(bucket, [put(0, "new"), delete(1), put(7, "x"), delete(7)], unfinished=True)
    apply(bucket, [put(1, "again"), delete(0), put(9, "more")], unfinished=True)
    if anew == "restart":
        store = restart(store)
        bucket = store.bucket("items", 0)
    else:
        bucket.reopen(writable=True)
    assert contents(bucket) == dict.fromkeys(range(4), "old")
    assert (bucket.log_end, bucket.applied_shares) == (4, NEW)
    apply(bucket, [put(0, "new")], unfinished=True)
    apply(bucket, [put(5, "five")], unfinished=False)
    assert contents(restart(store).bucket("items", 0)) == {
        **dict.fromkeys(range(1, 4), "old"),
        0: "new",
        5: "five",
    }


@given(st.dictionaries(st.integers(0, 5), st.lists(MUTATIONS, min_size=1, max_size=8), max_size=4))
def test_a_damaged_stage_is_found(routed: dict[int, list[Mutation]]) -> None:
    """Whatever octet is wrong, wherever it is cut off: nothing else is read from it, and nothing large is allocated.

    Nor without one of its frames, or with one of them twice, though each of them is whole.
    """
    frames = staged(1, KEY, routed)
    whole = b"".join(frames)
    found: dict[int, list[Mutation]] = {}
    for index, mutations in read_mutations(MemoryStageSource(whole), 1, KEY):
        found.setdefault(index, []).extend(mutations)
    assert found == routed
    places = find_frames(MemoryStageSource(whole), 1, KEY)
    for bucket in range(5):
        frames_of = [read_frame(MemoryStageSource(whole), at, bucket, KEY) for at in places.of(bucket)]
        assert [each for frame in frames_of for each in frame] == routed.get(bucket, [])
        for at in places.of(bucket):
            with pytest.raises(DataCorrupted, match="was changed"):
                read_frame(MemoryStageSource(whole), at, bucket + 1, KEY)
    assert count_mutations(MemoryStageSource(whole), KEY) == sum(map(len, routed.values()))
    damaged = [whole[:at] for at in range(0, len(whole), 7)]
    damaged += [whole[:at] + bytes([whole[at] ^ 0x81]) + whole[at + 1 :] for at in range(0, len(whole), 5)]
    damaged += [whole + b"\0", whole + whole]
    for content in damaged:
        with pytest.raises(DataCorrupted):
            list(read_mutations(_Bounded(content), 1, KEY))
    for at in range(len(frames)):
        for content in b"".join(frames[:at] + frames[at + 1 :]), b"".join(frames[: at + 1] + frames[at:]):
            with pytest.raises(DataCorrupted):
                list(read_mutations(_Bounded(content), 1, KEY))
            with pytest.raises(DataCorrupted):
                find_frames(_Bounded(content), 1, KEY)
    for content in *(whole[:at] for at in range(0, len(whole), 7)), whole[:-1] + bytes([whole[-1] ^ 0x81]):
        with pytest.raises(DataCorrupted):
            count_mutations(_Bounded(content), KEY)
    for other in (KEY._replace(attempt=2), KEY._replace(version=8), KEY._replace(session=bytes(16))):
        with pytest.raises(DataCorrupted):
            list(read_mutations(MemoryStageSource(whole), 1, other))
    with pytest.raises(DataCorrupted):
        list(read_mutations(MemoryStageSource(whole), 2, KEY))


class _Bounded(MemoryStageSource):
    """Asked for no more than there is."""

    def read(self, offset: int, size: int) -> bytes:
        assert size <= max(20, self.size - offset)
        return super().read(offset, size)


@given(st.builds(AppliedShare, *[st.integers(0, 2**63 - 1)] * 3))
def test_a_record_of_what_was_applied_is_read_as_it_was_written(share: AppliedShare) -> None:
    """Cut short, or of another format, it is damage."""
    encoded = encode_applied(share)
    assert decode_applied("load", encoded) == share
    for damaged in (None, b"", encoded[:-1], encoded + b"\0", b"\x09" + encoded[1:]):
        with pytest.raises(DataCorrupted):
            decode_applied("load", damaged)


def test_what_was_applied_is_kept_in_the_format_of_earlier_versions() -> None:
    """Big-endian, behind the number of the format."""
    numbers = (3, 1_000, 1_250)
    assert encode_applied(AppliedShare(*numbers)) == b"\1" + b"".join(each.to_bytes(8) for each in numbers)


def test_memory_forgets_an_unfinished_share_with_its_bucket() -> None:
    """The fake keeps nothing of it where a restart would find it."""
    store = MemoryStore()
    store.create_table(ITEMS)
    apply(store.bucket("items", 0), [put(1, "x")], unfinished=True)
    assert contents(MemoryStore(disk=store.disk).bucket("items", 0)) == {}


def test_a_share_in_pieces_has_one_place_in_time(store: Store, restart: Callable[[Store], Store]) -> None:
    """A time between two of its pieces is in front of all of them, so no state of a time shows a part; nor later."""
    bucket = store.bucket("items", 0)
    bucket.commit([[put(1, "old")]])
    for number in range(3):
        apply(bucket, [put(number, "new"), put(number + 10, "new")], unfinished=True)
    apply(bucket, [], unfinished=False, load=AppliedShare(1, 1, bucket.log_end))
    bucket.commit([[put(1, "newer")]])
    bucket = restart(store).bucket("items", 0)
    assert [bucket.entry_at(offset).continues for offset in (0, 1, 3, 6, 8)] == [
        False,
        False,
        True,
        True,
        False,
    ]
    changes = list(read_changes(bucket, 0, bucket.log_end))
    share = changes[1:-2]
    assert len({change.timestamp_us for change in share}) == 3
    for time in {change.timestamp_us for change in share}:
        assert (bucket.offset_at(time), bucket.offset_at(time - 1)) == (1, 1)
    assert bucket.offset_at(share[-1].timestamp_us + 1) == bucket.log_end - 2
    end = bucket.log_end
    assert [bucket.share_start(offset) for offset in range(end + 2)] == [0, *[1] * 7, 8, 8, end, end + 1]
    for offset in range(end - 2):
        bucket.truncate_log(offset)
        assert bucket.log_start == min(offset, 1)
    bucket.truncate_log(end - 2)
    assert bucket.truncated_commit_us == share[-1].timestamp_us


def test_a_share_begins_with_the_first_piece_that_changes_something(store: Store) -> None:
    """A time between the commit before it and that piece is behind that commit."""
    bucket = store.bucket("items", 0)
    bucket.commit([[put(1, "old")]])
    bucket.commit([[put(2, "old")]])
    before_us = bucket.newest_commit_us
    for mutation in (delete(8), delete(9), put(3, "new"), put(4, "new")):
        apply(bucket, [mutation], unfinished=True)
    apply(bucket, [], unfinished=False, load=AppliedShare(1, 2, bucket.log_end))
    assert [bucket.entry_at(offset).continues for offset in range(4)] == [False, False, False, True]
    assert bucket.offset_at(before_us + 1) == bucket.offset_at(bucket.newest_commit_us) == 2
    bucket.truncate_log(2)
    assert bucket.truncated_commit_us == before_us


def test_the_places_of_frames_take_few_octets() -> None:
    """A stage may have millions: none is kept as a number of Python's, and those of one bucket are no copy of all."""
    buckets, frames = 50, 100_000
    frame_of = [next(mutation_frames({each: [Mutation(b"key", b"row")]}))[0] for each in range(buckets)]
    head, tail = head_frame(1, KEY), tail_frame(frames, frames)
    source = MemoryStageSource(b"".join([head, *frame_of * (frames // buckets), tail]))
    tracemalloc.start()
    places = find_frames(source, 1, KEY)
    kept, most = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    found = sum(1 for _ in places.of(7))
    _, most_of_one = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found == frames // buckets
    assert kept < 14 * frames
    assert most < 60 * frames
    assert most_of_one - kept < 4 * frames
