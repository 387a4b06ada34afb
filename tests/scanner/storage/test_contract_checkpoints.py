"""What every store keeps beside its tables: checkpoints, table ids, documents."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from scanner.data.keys import KeyRange
from scanner.errors import (
    ArgumentInvalid,
    BucketNotFound,
    SnapshotLost,
    StoreClosed,
    TableNotFound,
)
from tests.support.storage_tables import ITEMS, contents, delete, drain, item_key, put, puts

if TYPE_CHECKING:
    from scanner.storage.interface import Store

_OLD = [(number, "old") for number in range(40)]


def _rows_of(store: Store, checkpoint_id: int, index: int = 0) -> list[tuple[int, str | None]]:
    snapshot = store.open_checkpoint("items", index, checkpoint_id)
    rows = drain(snapshot.scan())
    snapshot.close()
    return rows


def test_a_checkpoint_keeps_its_rows(store: Store, restart: Callable[[Store], Store]) -> None:
    """Exactly the rows as of its offset: after later commits, a truncation, a compaction and a restart."""
    bucket = store.bucket("items", 0)
    bucket.commit([puts(_OLD)])
    checkpoint = store.create_checkpoint("items", 0)
    assert checkpoint.log_offset == 40
    assert checkpoint.timestamp_us > 1_600_000_000_000_000
    bucket.commit([[put(6, "new"), delete(7), put(99, "new")]])
    assert _rows_of(store, checkpoint.checkpoint_id) == _OLD
    bucket.truncate_log(bucket.log_end)
    bucket.compact()
    assert _rows_of(store, checkpoint.checkpoint_id) == _OLD
    store = restart(store)
    assert store.checkpoints("items", 0) == [checkpoint]
    assert _rows_of(store, checkpoint.checkpoint_id) == _OLD
    snapshot = store.open_checkpoint("items", 0, checkpoint.checkpoint_id)
    assert snapshot.log_offset == snapshot.scan().log_offset == 40
    assert drain(snapshot.scan(KeyRange(item_key(3), item_key(5)))) == _OLD[3:5]
    assert contents(store.bucket("items", 0))[6] == "new"


def test_checkpoints_are_listed_by_age_and_never_confused(
    store: Store, restart: Callable[[Store], Store]
) -> None:
    """Each shows its own state; an id is never used again, not even that of the newest after a restart."""
    bucket = store.bucket("items", 0)
    made = []
    for number in range(3):
        bucket.commit([[put(number, "x")]])
        made.append(store.create_checkpoint("items", 0))
    made.append(store.create_checkpoint("items", 0))
    assert store.checkpoints("items", 0) == made
    assert [each.log_offset for each in made] == [1, 2, 3, 3]
    assert [len(_rows_of(store, each.checkpoint_id)) for each in made] == [1, 2, 3, 3]
    assert store.checkpoints("items", 1) == []
    store.drop_checkpoint("items", 0, made[3].checkpoint_id)
    store.drop_checkpoint("items", 0, made[0].checkpoint_id)
    store.drop_checkpoint("items", 0, made[0].checkpoint_id)
    store = restart(store)
    assert store.checkpoints("items", 0) == made[1:3]
    again = store.create_checkpoint("items", 0)
    assert again.checkpoint_id > made[3].checkpoint_id
    assert store.checkpoints("items", 0) == [*made[1:3], again]


def test_a_checkpoint_of_an_empty_bucket_is_empty(store: Store) -> None:
    """Nothing is as exact a state as any other."""
    checkpoint = store.create_checkpoint("items", 1)
    store.bucket("items", 1).commit([puts(_OLD)])
    assert checkpoint.log_offset == 0
    assert _rows_of(store, checkpoint.checkpoint_id, 1) == []


def test_a_checkpoint_that_is_dropped_while_it_is_open_goes_on(store: Store) -> None:
    """Who has it open reads it to the end; who comes later finds it lost."""
    bucket = store.bucket("items", 0)
    bucket.commit([puts(_OLD)])
    checkpoint_id = store.create_checkpoint("items", 0).checkpoint_id
    snapshot = store.open_checkpoint("items", 0, checkpoint_id)
    scan = snapshot.scan()
    scan.read(1, 1)
    store.drop_checkpoint("items", 0, checkpoint_id)
    with pytest.raises(SnapshotLost, match="no checkpoint"):
        store.open_checkpoint("items", 0, checkpoint_id)
    bucket.commit([[delete(number) for number in range(40)]])
    assert drain(scan) == _OLD[1:]
    assert drain(snapshot.scan()) == _OLD
    snapshot.close()


@pytest.mark.parametrize("ending", ["drop", "close"])
def test_checkpoints_end_with_their_table(
    store: Store, restart: Callable[[Store], Store], ending: str
) -> None:
    """Open ones raise StoreClosed after a drop or a close; a drop removes them for good."""
    store.bucket("items", 0).commit([puts(_OLD)])
    checkpoint = store.create_checkpoint("items", 0)
    snapshot = store.open_checkpoint("items", 0, checkpoint.checkpoint_id)
    scan = snapshot.scan()
    if ending == "drop":
        store.drop_table("items")()
    else:
        store.close()
    for ask in (lambda: scan.read(1, 1), snapshot.scan):
        with pytest.raises(StoreClosed):
            ask()
    if ending == "drop":
        store.create_table(ITEMS)
    store = restart(store)
    assert store.checkpoints("items", 0) == ([] if ending == "drop" else [checkpoint])


def test_a_checkpoint_of_another_table_is_not_touched(store: Store) -> None:
    """Who means a table that was dropped is told so: the new one of its name has checkpoints of the same ids."""
    old_id = store.table_id("items")
    store.drop_table("items")()
    store.create_table(ITEMS)
    checkpoint = store.create_checkpoint("items", 0)
    for call in (store.open_checkpoint, store.drop_checkpoint):
        with pytest.raises(TableNotFound, match="created again"):
            call("items", 0, checkpoint.checkpoint_id, old_id)
    assert store.checkpoints("items", 0) == [checkpoint]
    store.open_checkpoint("items", 0, checkpoint.checkpoint_id, store.table_id("items")).close()
    store.drop_checkpoint("items", 0, checkpoint.checkpoint_id, store.table_id("items"))
    assert store.checkpoints("items", 0) == []


def test_checkpoints_of_what_is_not_there_are_refused(store: Store) -> None:
    """Unknown tables, buckets and checkpoints are typed errors; so is a closed store."""
    for ask in (
        store.create_checkpoint,
        store.checkpoints,
        lambda name, index: store.open_checkpoint(name, index, 0),
        lambda name, index: store.drop_checkpoint(name, index, 0),
    ):
        with pytest.raises(TableNotFound):
            ask("nothing", 0)
        with pytest.raises(BucketNotFound):
            ask("items", 2)
    with pytest.raises(SnapshotLost):
        store.open_checkpoint("items", 0, 0)
    store.close()
    for ask in (store.create_checkpoint, store.checkpoints):
        with pytest.raises(StoreClosed):
            ask("items", 0)


def test_a_table_id_is_of_one_table_for_ever(store: Store, restart: Callable[[Store], Store]) -> None:
    """It survives a restart, and a table of the same name after a drop has another."""
    first = store.table_id("items")
    store = restart(store)
    assert store.table_id("items") == first
    store.drop_table("items")()
    with pytest.raises(TableNotFound):
        store.table_id("items")
    store = restart(store)
    store.create_table(ITEMS)
    assert store.table_id("items") != first


def test_documents_survive_a_restart(store: Store, restart: Callable[[Store], Store]) -> None:
    """What was written is read, whole, by name; the newest wins; an unknown one is None."""
    assert store.read_document("keys.json") is None
    store.write_document("keys.json", b"one")
    store.write_document("keys.json", b"\x00\xff" * 5000)
    store.write_document("other", b"")
    store = restart(store)
    assert store.read_document("keys.json") == b"\x00\xff" * 5000
    assert store.read_document("other") == b""
    assert store.read_document("nothing") is None


def test_names_that_are_no_documents_are_refused(store: Store) -> None:
    """No name leads out of the directory or onto something else."""
    for name in ("", "a/b", "../catalog.json", ".hidden", "A", "keys~", "x" * 65, "a\n"):
        with pytest.raises(ArgumentInvalid):
            store.write_document(name, b"")
        with pytest.raises(ArgumentInvalid):
            store.read_document(name)


def test_a_closed_store_has_no_documents(store: Store) -> None:
    """Documents are the store's; after close they raise StoreClosed."""
    store.close()
    with pytest.raises(StoreClosed):
        store.read_document("keys.json")
    with pytest.raises(StoreClosed):
        store.write_document("keys.json", b"")
