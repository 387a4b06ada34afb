"""What was changed since an image: the last change of a key below an offset, for the cost of what is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from scanner.data.keys import ALL_KEYS, KeyRange
from scanner.sources.image_delta import ImageDelta
from scanner.storage.interface import ChangeKind
from tests.support.changes import read_changes
from tests.support.images import ANY, changed
from tests.support.scans import filled_store

if TYPE_CHECKING:
    from scanner.sources.image_delta import DeltaChanges
    from scanner.storage.memory.bucket import MemoryBucket


def taken(changes: DeltaChanges, count: int = ANY, bytes_max: int = ANY) -> dict[bytes, bytes | None]:
    """All entries of a scan's changes, once they are ready."""
    while not changes.ready:
        changes.step()
    found: dict[bytes, bytes | None] = {}
    reached: bytes | None = b""
    while reached is not None:
        entries, reached = changes.take(None, count, bytes_max)
        assert len(entries.keys) <= count
        for key, row in zip(*entries, strict=True):
            assert key > max(found, default=b"")
            assert reached is None or key <= reached
            found[key] = row
    return found


def folded(bucket: MemoryBucket, start: int, end: int, key_range: KeyRange) -> dict[bytes, bytes | None]:
    """What the changes [start, end) leave of the keys that they touch."""
    state: dict[bytes, bytes | None] = {}
    for change in read_changes(bucket, start, end) if start < end else []:
        put = change.kind in (ChangeKind.INSERT, ChangeKind.UPDATE_AFTER)
        state[change.key] = change.row if put else None
    low, high = key_range
    return {key: row for key, row in state.items() if low <= key and (not high or key < high)}


@given(data=st.data())
def test_every_offset_shows_the_last_change_below_it(data: st.DataObject) -> None:
    """As of any offset, in any range, however much is taken at once, while others extend the same delta."""
    number = st.integers(-20, 20)
    store = filled_store(10)
    bucket, codec = store.bucket("items", 0), store.key_codec("items")
    start = bucket.log_end
    delta = ImageDelta(bucket, start, ANY)
    for _ in range(data.draw(st.integers(0, 4))):
        changed(
            store,
            data.draw(st.lists(number, unique=True, max_size=8)),
            data.draw(st.lists(number, unique=True, max_size=8)),
        )
        if data.draw(st.booleans()):
            taken(delta.as_of(data.draw(st.integers(start, bucket.log_end)), ALL_KEYS))
    for log_offset in range(start, bucket.log_end + 1):
        low, high = data.draw(number), data.draw(number)
        key_range = KeyRange(
            codec.encode([low]) if data.draw(st.booleans()) else b"",
            codec.encode([high]) if data.draw(st.booleans()) else b"",
        )
        count, bytes_max = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 500))
        found = taken(delta.as_of(log_offset, key_range), count, bytes_max)
        assert found == folded(bucket, start, log_offset, key_range)


def test_a_commit_costs_its_own_changes() -> None:
    """With five thousand keys changed before, a commit of one more is one step; then every scan of it is ready."""
    store = filled_store(0)
    bucket = store.bucket("items", 0)
    delta = ImageDelta(bucket, 0, ANY)
    changed(store, list(range(5_000)), [])
    taken(delta.as_of(bucket.log_end, ALL_KEYS))
    for number in range(3):
        changed(store, [number], [])
        changes = delta.as_of(bucket.log_end, ALL_KEYS)
        changes.step()
        assert changes.ready
        assert delta.as_of(bucket.log_end, ALL_KEYS).ready
    assert delta.as_of(bucket.log_end - 1, ALL_KEYS).ready


def test_what_a_scan_has_read_meanwhile_is_not_read_again() -> None:
    """Whoever goes on to an older offset, beside a scan of a newer one, finds nothing to read, and nothing wrong."""
    store = filled_store(0)
    bucket = store.bucket("items", 0)
    delta = ImageDelta(bucket, 0, ANY)
    changed(store, [1], [])
    older = bucket.log_end
    changed(store, [2], [])
    taken(delta.as_of(bucket.log_end, ALL_KEYS))
    assert len(delta.read(older)) == 0
    assert delta.end == bucket.log_end


@given(data=st.data())
def test_a_state_names_what_a_block_is(data: st.DataObject) -> None:
    """As of offsets with one name a block has the same entries; one without a name may have any."""
    number = st.integers(0, 19)
    store = filled_store(0)
    bucket, codec = store.bucket("items", 0), store.key_codec("items")
    delta, first = ImageDelta(bucket, 0, ANY), codec.encode([0])[-1]
    counted = data.draw(st.integers(0, 3))
    seen: dict[object, dict[bytes, bytes | None]] = {}
    for count in range(4):
        if count == counted:
            delta.count_blocks(lambda key: (key[-1] - first) // 5)
        changed(
            store,
            data.draw(st.lists(number, unique=True, max_size=3)),
            data.draw(st.lists(number, max_size=3)),
        )
        for log_offset in (bucket.log_end, data.draw(st.integers(0, bucket.log_end))):
            taken(delta.as_of(log_offset, ALL_KEYS))
            for block in range(4):
                key_range = KeyRange(codec.encode([5 * block]), codec.encode([5 * block + 5]))
                name = delta.as_of(log_offset, key_range).state_of(block)
                entries = taken(delta.as_of(log_offset, key_range))
                assert name is None or seen.setdefault((block, name), entries) == entries
                newest = log_offset == bucket.log_end and count >= counted
                assert (name is not None) == bool(entries) or not newest


def test_entries_can_be_passed_over() -> None:
    """Up to and with a key; what is behind it is still to be taken."""
    store = filled_store(0)
    bucket, codec = store.bucket("items", 0), store.key_codec("items")
    delta = ImageDelta(bucket, 0, ANY)
    changed(store, [1, 2, 3], [])
    changes = delta.as_of(bucket.log_end, ALL_KEYS)
    changes.step()
    changes.pass_over(codec.encode([2]))
    changes.pass_over(codec.encode([1]))
    assert list(taken(changes)) == [codec.encode([3])]


def test_blocks_that_are_touched_are_counted() -> None:
    """Once each, by any change; changes that were not read yet are taken to be spread as those that were."""
    store = filled_store(0)
    bucket = store.bucket("items", 0)
    delta = ImageDelta(bucket, 0, ANY)
    first = store.key_codec("items").encode([0])
    delta.count_blocks(lambda key: (key[-1] - first[-1]) // 10)
    changed(store, [1, 2, 15], [])
    assert delta.blocks_touched(bucket.log_end) == 0
    taken(delta.as_of(bucket.log_end, ALL_KEYS))
    assert delta.blocks_touched(bucket.log_end) == 2
    changed(store, [3, 16, 17], [])
    assert delta.blocks_touched(bucket.log_end) == 4
    taken(delta.as_of(bucket.log_end, ALL_KEYS))
    assert delta.blocks_touched(bucket.log_end) == 2
