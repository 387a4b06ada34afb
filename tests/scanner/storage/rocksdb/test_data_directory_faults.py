"""Whatever fails while tables are made, dropped and changed, and wherever a server is killed: no table is lost."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scanner.errors import ScannerError, StoreClosed, StoreFailed
from scanner.storage.rocksdb.catalog import (
    CatalogFile,
    TableEntry,
    load_catalog,
    load_table_entry,
    save_catalog,
)
from scanner.storage.rocksdb.store import RocksStore
from tests.support.faulty_disk import faulty_disk
from tests.support.storage_tables import (
    make_tables,
    names_in,
    one_bucket,
    put,
    rows_by_table,
)


@pytest.mark.parametrize("kill", [True, False], ids=["killed", "error"])
@pytest.mark.parametrize("act", ["create", "drop", "add column"])
def test_wherever_it_stops_no_table_is_lost(tmp_path: Path, act: str, kill: bool) -> None:
    """At every single step: the act is done or it is not, other tables have their rows, and nothing is left over."""
    make_tables(tmp_path, "other")
    (tmp_path / "tables" / "000900").mkdir()
    ids: set[int] = {0, 900}
    for at in count():
        if act != "create":
            make_tables(tmp_path, "it")
        store = RocksStore.open(tmp_path)
        failed: BaseException | None = None
        with faulty_disk(at, kill=kill) as faults:
            try:
                if act == "create":
                    store.create_table(one_bucket("it"))
                elif act == "drop":
                    store.drop_table("it")()
                else:
                    store.add_column("it", pa.field("more", pa.int8()))
            except ScannerError as error:
                failed = error
        if not kill:
            # The others go on without a restart, and so does this one if it is there.
            for each in store.tables():
                store.bucket(each.name, 0).commit([[put(2, "later")]])
        store.close()
        rows = rows_by_table(tmp_path)
        assert rows.pop("other")[1] == "other"
        it = rows.pop("it", None)
        assert rows == {}
        if act == "add column":
            assert it is not None
        if it is not None and act != "create":
            assert it[1] == "it"
        if not faults.hit:
            assert failed is None
            assert (it is None) == (act == "drop")
            break
        if not kill and failed is None and act == "create":
            assert it is not None
        left = names_in(tmp_path / "tables")
        assert len(left) == 2 + (it is not None), left
        assert "000900" in left
        with RocksStore.open(tmp_path) as again:
            if it is not None:
                if act == "create":
                    assert again.table_id("it") not in ids
                    ids.add(again.table_id("it"))
                again.drop_table("it")()
    assert at > 5


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    acts=st.lists(
        st.tuples(
            st.sampled_from(["create", "drop", "write", "write", "add column", "catalog back"]),
            st.sampled_from("ab"),
            st.none() | st.tuples(st.integers(0, 14), st.booleans()),
        ),
        min_size=8,
        max_size=16,
    )
)
def test_random_histories_lose_nothing(
    tmp_path_factory: pytest.TempPathFactory, acts: list[tuple[str, str, tuple[int, bool] | None]]
) -> None:
    """Creates, drops, writes and older catalogs, each with a fault or a kill: every acknowledged row is on the disk.

    A table that an older catalog hides is in its directory still, and its id is not given to another one.
    """
    path = tmp_path_factory.mktemp("history")
    make_tables(path, "a")
    store = RocksStore.open(path)
    catalogs = [(path / "catalog.json").read_bytes()]
    seen: dict[str, int] = {}
    rows = {identity: {1} for identity in unique_of(path).values()}
    maybe_dropped: set[str] = set()
    for number, (act, name, fault) in enumerate(acts):
        before = {each.name for each in store.tables()}
        unique = unique_of(path)
        if act == "catalog back":
            store.close()
            (path / "catalog.json").write_bytes(catalogs[number % len(catalogs)])
            store = RocksStore.open(path)
        else:
            at, kill = fault or (1000, False)
            done = False
            with faulty_disk(at, kill=kill):
                try:
                    if act == "create" and name not in before:
                        store.create_table(one_bucket(name))
                    elif act == "drop" and name in before:
                        maybe_dropped.add(unique[name])
                        store.drop_table(name)()
                    elif act == "write" and name in before:
                        store.bucket(name, 0).commit([[put(2 + number, name)]])
                    elif act == "add column" and name in before:
                        store.add_column(name, pa.field(f"c{number}", pa.int8()))
                    done = True
                except ScannerError:
                    pass
            if act == "write" and name in before and done:
                rows.setdefault(unique[name], set()).add(2 + number)
            if kill:
                store.close()
                store = RocksStore.open(path)
        catalogs.append((path / "catalog.json").read_bytes())
        for each, identity in unique_of(path).items():
            assert seen.setdefault(identity, store.table_id(each)) == store.table_id(each)
        assert len(set(seen.values())) == len(seen)
    store.close()
    # Bring back by hand what older catalogs hide, and look.
    entries = {entry.unique_id: entry for entry in all_entries(path) if entry.unique_id in rows}
    assert set(rows) - maybe_dropped <= set(entries)
    for unique_id, entry in entries.items():
        save_catalog(path, CatalogFile(tables={entry.description.name: entry}))
        with RocksStore.open(path) as store:
            assert set(contents_of(store, entry.description.name)) == rows[unique_id]


def all_entries(path: Path) -> list[TableEntry]:
    """What the directories of tables say of themselves, whatever the catalog names."""
    entries = [
        load_table_entry(path / "tables" / name) for name in names_in(path / "tables") if name.isdigit()
    ]
    return [entry for entry in entries if entry is not None]


def contents_of(store: RocksStore, name: str) -> list[int]:
    """Keys of a table whose columns may have become more."""
    scan = store.bucket(name, 0).open_snapshot().scan()
    try:
        keys: list[int] = []
        while read := scan.read(1000, 1 << 20):
            keys += store.row_codec(name).decode(read.rows, ["id"]).column(0).to_pylist()
        return keys
    finally:
        scan.close()


def unique_of(path: Path) -> dict[str, str]:
    """The unique id of every table of the catalog, by name."""
    catalog = load_catalog(path)
    assert catalog is not None
    return {name: entry.unique_id for name, entry in catalog.tables.items()}


def test_nobody_opens_a_bucket_that_is_being_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read in the middle of a drop is told that the bucket is closed; should the disk refuse, it is served again."""
    make_tables(tmp_path, "it")
    seen: list[str] = []

    def mark(*_: object) -> Path:
        with pytest.raises(StoreClosed) as caught:
            bucket.open_reader()
        seen.append(caught.value.message)
        raise StoreFailed("the disk refused")

    with RocksStore.open(tmp_path) as store:
        bucket = store.bucket("it", 0)
        bucket.open_reader().close()
        with monkeypatch.context() as patch:
            patch.setattr("scanner.storage.rocksdb.store.mark_dropping", mark)
            with pytest.raises(StoreFailed, match="refused"):
                store.drop_table("it")()
        bucket.open_reader().close()
        store.drop_table("it")()
    assert "is being dropped" in seen[0]
