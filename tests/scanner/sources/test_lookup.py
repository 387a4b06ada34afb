"""Point reads of one bucket, as of every offset: what folding the changelog gives, in bounded pieces."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from scanner.errors import SnapshotLost
from scanner.sources.lookup import Lookup, PastTooLarge
from scanner.storage.memory.store import MemoryStore
from tests.support.storage_tables import ITEMS, delete, item_key, items_of, put, puts, replayed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scanner.storage.interface import Bucket


def bucket_with(*groups: Sequence[tuple[int, str | None]]) -> Bucket:
    """A bucket with commits of rows."""
    store = MemoryStore()
    store.create_table(ITEMS)
    bucket = store.bucket("items", 0)
    for group in groups:
        bucket.commit([puts(group)])
    return bucket


def found(bucket: Bucket, numbers: list[int], log_offset: int, bytes_max: int = 1 << 20) -> list[str | None]:
    """The texts of items as of an offset, "absent" for those that are not there."""
    reader = bucket.open_reader()
    keys = [item_key(number) for number in numbers]
    rows = [row for piece in Lookup(bucket, reader, keys, log_offset, bytes_max).pieces() for row in piece]
    reader.close()
    return ["absent" if row is None else items_of([row])[0][1] for row in rows]


def test_every_offset_shows_the_fold_of_the_changes_before_it() -> None:
    """Also offsets inside an update, where the key is absent, and with keys that were asked for twice."""
    rng = random.Random(5)
    bucket = bucket_with()
    for turn in range(60):
        number = rng.randrange(8)
        bucket.commit([[delete(number) if rng.random() < 0.3 else put(number, f"{turn}"), put(9, None)]])
    numbers = [*range(10), 3, 3]
    for log_offset in range(bucket.log_end + 1):
        state = replayed(bucket, log_offset)
        assert found(bucket, numbers, log_offset) == [state.get(number, "absent") for number in numbers]


def test_pieces_are_bounded() -> None:
    """Neither many small rows nor some large ones come at once, and walking changes is cut into pieces as well."""
    bucket = bucket_with([(number, "x" * (400_000 if number < 10 else 1)) for number in range(6000)])
    reader = bucket.open_reader()
    keys = [item_key(number) for number in range(6000)]
    pieces = list(Lookup(bucket, reader, keys, bucket.log_end, 1 << 20).pieces())
    assert max(map(len, pieces)) == 256
    assert max(sum(len(row or b"") for row in piece) for piece in pieces) < 1_048_576 + 400_100
    walked = list(Lookup(bucket, reader, keys, 0, 1 << 20).pieces())
    assert walked[:3] == [[], [], []]
    assert all(row is None for piece in walked for row in piece)


def test_the_walk_ends_when_every_key_was_met() -> None:
    """Changes behind the last key that is asked for are not read."""
    bucket = bucket_with([(1, "a")], [(1, "b")], [(number, "x") for number in range(2, 9000)])
    reader = bucket.open_reader()
    pieces = list(Lookup(bucket, reader, [item_key(1)], 1, 1 << 20).pieces())
    assert [len(piece) for piece in pieces] == [0, 1]


def test_what_the_changes_tell_is_bounded() -> None:
    """Rows of the past that take too much are an error, but for a single one."""
    bucket = bucket_with([(1, "x" * 1000), (2, "x" * 1000)], [(1, "y"), (2, "y")])
    assert found(bucket, [1], 2, bytes_max=100) == ["x" * 1000]
    with pytest.raises(PastTooLarge):
        found(bucket, [1, 2], 2, bytes_max=100)


def test_changes_that_go_while_they_are_walked_are_a_lost_state() -> None:
    """A truncation in the middle is SNAPSHOT_LOST with the offset that is left, never the rows of now."""
    bucket = bucket_with(*([(number, str(number))] for number in range(5000)))
    reader = bucket.open_reader()
    pieces = Lookup(bucket, reader, [item_key(0)], 1, 1 << 20).pieces()
    next(pieces)
    bucket.truncate_log(4000)
    with pytest.raises(SnapshotLost, match="the log starts at 4000") as caught:
        list(pieces)
    assert caught.value.oldest_offset == 4000
