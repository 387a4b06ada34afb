"""What every store's readers of single rows do: one state, whatever happens to the bucket afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scanner.errors import StoreClosed
from tests.support.storage_tables import delete, item_key, items_of, put, puts

if TYPE_CHECKING:
    from collections.abc import Callable

    from scanner.storage.interface import BucketReader, Store


def text_of(reader: BucketReader, number: int) -> str | None:
    """The text of an item; None where there is no row."""
    row = reader.get(item_key(number))
    return None if row is None else items_of([row])[0][1]


def test_a_reader_has_the_rows_of_its_keys_and_no_others(store: Store) -> None:
    """A key that is there has its row, and one that is not, or is only the beginning of one, has none."""
    bucket = store.bucket("items", 0)
    bucket.commit([puts([(1, "one"), (2, "two"), (-3, "x" * 100_000)])])
    reader = bucket.open_reader()
    assert [text_of(reader, number) for number in (2, 0, -3, 1, 2, 99)] == [
        "two",
        None,
        "x" * 100_000,
        "one",
        "two",
        None,
    ]
    assert reader.get(item_key(1)[:-1]) is reader.get(item_key(1) + b"\0") is reader.get(b"") is None
    reader.close()


def test_a_reader_shows_its_offset_whatever_is_committed_later(store: Store) -> None:
    """Rows that are replaced, deleted, added, truncated or compacted afterwards are as they were."""
    bucket = store.bucket("items", 0)
    bucket.commit([puts((number, "old") for number in range(20))])
    reader = bucket.open_reader()
    bucket.commit([[put(6, "new"), delete(7), put(99, "new")]])
    bucket.truncate_log(bucket.log_end)
    bucket.compact()
    later = bucket.open_reader()
    assert (reader.log_offset, later.log_offset) == (20, 24)
    assert [text_of(reader, number) for number in (5, 6, 7, 99)] == ["old", "old", "old", None]
    assert [text_of(later, number) for number in (5, 6, 7, 99)] == ["old", "new", None, "new"]
    reader.close()
    assert text_of(later, 6) == "new"
    later.close()


def test_a_reader_of_an_empty_bucket_stays_empty(store: Store) -> None:
    """Nothing is as exact a state as any other."""
    bucket = store.bucket("items", 0)
    reader = bucket.open_reader()
    bucket.commit([[put(1, "later")]])
    assert (reader.log_offset, text_of(reader, 1)) == (0, None)
    reader.close()


def test_a_closed_reader_reads_nothing_and_holds_nothing(store: Store) -> None:
    """Closing twice is fine; the count of what is open says when a reader was left open."""
    bucket = store.bucket("items", 0)
    bucket.commit([[put(1, "one")]])
    before = bucket.open_iterators
    reader = bucket.open_reader()
    assert bucket.open_iterators == before + 1
    reader.close()
    reader.close()
    assert bucket.open_iterators == before
    with pytest.raises(StoreClosed):
        reader.get(item_key(1))


def test_readers_left_open_do_not_keep_a_store_from_closing(
    store: Store, restart: Callable[[Store], Store]
) -> None:
    """The directory is free at once, and the reader says that it was closed."""
    bucket = store.bucket("items", 0)
    bucket.commit([[put(1, "one")]])
    readers = [bucket.open_reader(), bucket.open_reader()]
    assert text_of(readers[0], 2) is None  # An error of rocksdict's that was caught holds nothing either.
    again = restart(store)
    for reader in readers:
        with pytest.raises(StoreClosed):
            reader.get(item_key(1))
    assert text_of(again.bucket("items", 0).open_reader(), 1) == "one"
