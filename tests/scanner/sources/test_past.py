"""What changes have undone, in pieces: bounded in entries and octets, and an error that stays."""

from __future__ import annotations

import pytest

from scanner.data.keys import ALL_KEYS
from scanner.errors import SnapshotLost
from scanner.sources.overlay import OverlayLimits
from scanner.sources.past import PastChanges, SharedPast
from tests.support.images import ANY, changed
from tests.support.scans import filled_store


@pytest.mark.parametrize(("count", "bytes_max"), [(1, ANY), (7, ANY), (ANY, 1), (ANY, 300), (ANY, ANY)])
@pytest.mark.parametrize("overlay_bytes", [500, 1 << 20])
@pytest.mark.parametrize("others", [0, 1])
def test_entries_come_in_bounded_pieces(count: int, bytes_max: int, overlay_bytes: int, others: int) -> None:
    """In key order up to a key, then the rest: what the changed keys had before, nothing twice."""
    store = filled_store(60)
    bucket, encode = store.bucket("items", 0), store.key_codec("items").encode
    start = bucket.log_end
    before = dict(bucket.contents.rows)
    changed(store, list(range(0, 80, 2)), list(range(1, 60, 3)))
    limits = OverlayLimits(bytes_max=overlay_bytes)
    shared = SharedPast(bucket, start, limits)
    *_, past = (PastChanges(shared, bucket.log_end, ALL_KEYS) for _ in range(others + 1))
    while not past.ready:
        past.step()
    found: dict[bytes, bytes | None] = {}
    for last_key in (encode([20]), encode([21]), None):
        reached: bytes | None = b""
        while reached != last_key:
            entries, reached = past.take(last_key, count, bytes_max)
            sizes = [0 if row is None else len(row) for row in entries.rows]
            assert len(sizes) <= count
            assert len(sizes) <= 1 or sum(sizes) <= bytes_max
            for key, row in zip(*entries, strict=True):
                assert key > max(found, default=b"")
                assert last_key is None or key <= last_key
                found[key] = row
        assert past.next_key is None or (last_key is not None and past.next_key > last_key)
    touched = sorted({*range(0, 80, 2), *range(1, 60, 3)})
    assert found == {encode([number]): before.get(encode([number])) for number in touched}
    past.close()
    past.close()


def test_a_log_that_is_cut_meanwhile_is_a_lost_state() -> None:
    """At once, or at the step that comes to it; and again at every further step."""
    store = filled_store(60)
    bucket = store.bucket("items", 0)
    start = bucket.log_end
    changed(store, list(range(30)), [])
    changed(store, list(range(30)), [])
    past = PastChanges(SharedPast(bucket, start, OverlayLimits()), bucket.log_end, ALL_KEYS)
    bucket.truncate_log(bucket.log_end - 10)
    for _ in range(2):
        with pytest.raises(SnapshotLost, match="can no longer be rebuilt"):
            past.step()
    with pytest.raises(SnapshotLost):
        PastChanges(SharedPast(bucket, start, OverlayLimits()), bucket.log_end, ALL_KEYS)
