"""What is in a data directory and whose it is: nothing is lost, whatever fails, is copied back, or lies around."""

from __future__ import annotations

import json
import shutil
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scanner.errors import DataCorrupted, ScannerError, StoreFailed
from scanner.storage.catalog import Catalog, TableEntry, load_catalog, load_table_entry, save_catalog
from scanner.storage.envelope import seal
from scanner.storage.store import RocksStore
from scanner.table import TableDescription
from tests.support.faulty_disk import faulty_disk
from tests.support.storage_tables import ITEMS, contents, put


def table(name: str) -> TableDescription:
    """A table of one bucket, like `ITEMS` else."""
    return TableDescription(name, ITEMS.schema, ITEMS.primary_key, 1)


def make(path: Path, *names: str) -> None:
    """Create tables, each with one row that is its name."""
    with RocksStore.open(path) as store:
        for name in names:
            store.create_table(table(name))
            store.bucket(name, 0).commit([[put(1, name)]])


def found(path: Path) -> dict[str, dict[int, str | None]]:
    """The rows of every table, by name."""
    with RocksStore.open(path) as store:
        return {each.name: contents(store.bucket(each.name, 0)) for each in store.tables()}


def names_in(directory: Path) -> list[str]:
    """What is in a directory."""
    return sorted(path.name for path in directory.iterdir())


# --- what the catalog does not name ---


def test_an_older_catalog_loses_no_table(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A table that a restored catalog does not know is left, named in one line, and its id is not given again."""
    make(tmp_path, "one")
    older = (tmp_path / "catalog.json").read_bytes()
    make(tmp_path, "two")
    (tmp_path / "catalog.json").write_bytes(older)
    with RocksStore.open(tmp_path) as store:
        assert [each.name for each in store.tables()] == ["one"]
        store.create_table(table("three"))
        assert store.table_id("three") == 2
    assert names_in(tmp_path / "tables") == ["000000", "000001", "000002"]
    (line,) = [each for each in caplog.messages if "000001" in each]
    assert "holds table 'two', which the catalog does not name" in line
    assert f"weir adopt --data {tmp_path} 000001" in line


def test_ids_are_remembered_where_nothing_else_knows_them(tmp_path: Path) -> None:
    """Neither an older catalog nor a directory that was moved away brings an id back."""
    make(tmp_path, "one")
    older = (tmp_path / "catalog.json").read_bytes()
    make(tmp_path, "two")
    (tmp_path / "catalog.json").write_bytes(older)
    (tmp_path / "tables" / "000001").rename(tmp_path.parent / f"{tmp_path.name}-moved")
    make(tmp_path, "three")
    (tmp_path / "documents" / "table_ids.json").unlink()
    (tmp_path / "tables" / "000041.bak").mkdir()
    (tmp_path / "checkpoints" / "000050" / "0000").mkdir(parents=True)
    make(tmp_path, "four")
    assert names_in(tmp_path / "tables") == ["000000", "000002", "000041.bak", "000051"]


def test_foreign_things_are_left_and_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Copies, notes, links and odd names beside tables and checkpoints stay; each start says one line for each."""
    make(tmp_path, "one")
    tables, checkpoints = tmp_path / "tables", tmp_path / "checkpoints"
    checkpoints.mkdir()
    shutil.copytree(tables / "000000", tables / "000000.bak")
    shutil.copytree(tables / "000000", tables / "000099")
    for strange in (tables / "notes.txt", tables / "000007.dropped", checkpoints / "x.creating"):
        strange.write_text("mine")
    (tables / "7.dropped").mkdir()
    (tables / "000008.creating").symlink_to(tables / "000000")
    (checkpoints / "000012").mkdir()
    foreign = {
        path: path.read_bytes() if path.is_file() else None
        for parent in (tables, checkpoints)
        for path in parent.rglob("*")
        if "000000/" not in f"{path}/"
    }
    for _ in range(2):
        caplog.clear()
        assert found(tmp_path) == {"one": {1: "one"}}
        lines = [each for each in caplog.messages if "left as it is" in each]
        assert len(lines) == len([each for each in foreign if each.parent in (tables, checkpoints)]) == 8
    assert all(path.exists() or path.is_symlink() for path in foreign)
    assert all(path.read_bytes() == content for path, content in foreign.items() if content is not None)


def test_what_others_put_into_a_table_outlives_its_drop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A drop removes what the server made, and says what it left."""
    make(tmp_path, "one")
    (tmp_path / "tables" / "000000" / "notes.txt").write_text("mine")
    with RocksStore.open(tmp_path) as store:
        store.drop_table("one")
    assert (tmp_path / "tables" / "000000.dropped" / "notes.txt").read_text() == "mine"
    assert "because others put notes.txt into it" in caplog.text
    assert found(tmp_path) == {}
    assert names_in(tmp_path / "tables" / "000000.dropped") == ["notes.txt"]


def test_what_is_marked_is_finished_or_undone(tmp_path: Path) -> None:
    """The catalog decides what becomes of a table that was being made or dropped when the server ended."""
    make(tmp_path, "made", "kept")
    tables = tmp_path / "tables"
    (tables / "000000").rename(tables / "000000.creating")
    (tables / "000001").rename(tables / "000001.dropping")
    for gone in ("000005.creating", "000006.dropping", "000007.dropped"):
        shutil.copytree(tables / "000000.creating", tables / gone)
    assert found(tmp_path) == {"made": {1: "made"}, "kept": {1: "kept"}}
    assert names_in(tables) == ["000000", "000001"]


def test_the_rest_of_a_dropped_table_does_not_become_the_table(tmp_path: Path) -> None:
    """A table of an older catalog whose drop was under way is gone, in one line, and not there in part."""
    make(tmp_path, "one")
    (tmp_path / "tables" / "000000").rename(tmp_path / "tables" / "000000.dropped")
    with RocksStore.open(tmp_path) as store, pytest.raises(DataCorrupted, match=r"'one' is refused.*is gone"):
        store.bucket("one", 0)
    assert names_in(tmp_path / "tables") == ["000000.dropped"]


def test_a_directory_in_the_way_of_a_new_table_stays(tmp_path: Path) -> None:
    """A create that fails removes nothing that it did not make."""
    with RocksStore.open(tmp_path) as store:
        in_the_way = tmp_path / "tables" / "000000.creating"
        in_the_way.mkdir()
        (in_the_way / "0000").mkdir()
        store.create_table(table("one"))
        assert (in_the_way / "0000").is_dir()
        assert store.table_id("one") == 1


# --- the catalog and the tables' own words ---


@pytest.mark.parametrize("change", ["another table", "older", "digit", "gone", "newer format"])
def test_a_table_that_is_not_the_catalogs_is_refused_alone(
    tmp_path: Path, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One line says what disagrees and what to do; the other tables are served, and nothing is removed."""
    make(tmp_path, "one", "two")
    path = tmp_path / "tables" / "000000" / "table.json"
    if change == "another table":
        path.write_bytes((tmp_path / "tables" / "000001" / "table.json").read_bytes())
    elif change == "older":
        older = path.read_bytes()
        with RocksStore.open(tmp_path) as store:
            store.add_column("one", pa.field("more", pa.int8()))
        path.write_bytes(older)
    elif change == "digit":
        path.write_bytes(path.read_bytes().replace(b'"table_id": 0', b'"table_id": 1'))
    elif change == "newer format":
        path.write_bytes(seal("table.json", b"{}", 99))
    else:
        path.unlink()
    with RocksStore.open(tmp_path) as store:
        for act in (
            lambda: store.bucket("one", 0),
            lambda: store.drop_table("one"),
            lambda: store.add_column("one", pa.field("x", pa.int8())),
        ):
            with pytest.raises(
                (DataCorrupted, StoreFailed), match=r"'one' is refused: .*table\.json"
            ) as caught:
                act()
            assert "\n" not in str(caught.value)
        assert contents(store.bucket("two", 0)) == {1: "two"}
        assert len([each for each in caplog.messages if "'one' is refused" in each]) == 1
    assert (tmp_path / "tables" / "000000" / "0000" / "CURRENT").exists()


def test_a_table_whose_directory_is_gone_can_be_dropped(tmp_path: Path) -> None:
    """There is nothing that could be lost by it."""
    make(tmp_path, "one")
    shutil.rmtree(tmp_path / "tables" / "000000")
    with RocksStore.open(tmp_path) as store:
        store.drop_table("one")
    assert found(tmp_path) == {}


def test_a_column_that_the_catalog_lost_comes_from_the_table(tmp_path: Path) -> None:
    """With a catalog of before the column, rows of after it are read all the same."""
    make(tmp_path, "one")
    older = (tmp_path / "catalog.json").read_bytes()
    with RocksStore.open(tmp_path) as store:
        store.add_column("one", pa.field("more", pa.int8()))
        newer = store.table("one")
    (tmp_path / "catalog.json").write_bytes(older)
    for _ in range(2):
        with RocksStore.open(tmp_path) as store:
            assert store.table("one") == newer
            assert store.row_codec("one").schema_id == 1


# --- formats ---


def test_format_1_is_refused_with_the_way_out(tmp_path: Path) -> None:
    """It was never released; the line says how the rows are brought over, and nothing is changed."""
    (tmp_path / "tables").mkdir()
    (tmp_path / "LOCK").touch()
    (tmp_path / "catalog.json").write_text(json.dumps({"format": 1, "crc32c": 0, "catalog": {}}))
    with pytest.raises(
        StoreFailed, match=r"format 1, which was never released.*weir scan.*weir load"
    ) as caught:
        RocksStore.open(tmp_path)
    assert "\n" not in str(caught.value)
    assert names_in(tmp_path) == ["LOCK", "catalog.json", "tables"]


@pytest.mark.parametrize("name", ["FORMAT", "catalog.json", "documents/leases.json"])
@pytest.mark.parametrize(
    ("format_number", "message"),
    [(99, "has format 99, and this version reads 2: use a newer weir"), (1, "has format 1, and its data")],
)
def test_what_is_of_another_format_is_refused(
    tmp_path: Path, name: str, format_number: int, message: str
) -> None:
    """A newer format, and a document that disagrees with its data directory, are each refused in one line."""
    make(tmp_path, "one")
    with RocksStore.open(tmp_path) as store:
        store.write_document("leases.json", b"{}")
    path = tmp_path / name
    content = path.read_bytes().split(b"\n", 1)[1]
    path.write_bytes(seal(path.name, content, format_number))
    with pytest.raises((DataCorrupted, StoreFailed), match=message) as caught:
        with RocksStore.open(tmp_path) as store:
            store.read_document("leases.json")
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_format_that_is_gone_is_refused(tmp_path: Path) -> None:
    """A data directory that does not say what it is is not guessed at."""
    make(tmp_path, "one")
    (tmp_path / "FORMAT").unlink()
    with pytest.raises(DataCorrupted, match=r"FORMAT is gone; .*weir adopt --data .* --rebuild"):
        RocksStore.open(tmp_path)


def test_a_first_start_that_was_interrupted_is_begun_again(tmp_path: Path) -> None:
    """Whatever of the first start is there, the next one makes a data directory of it."""
    for at in count():
        path = tmp_path / str(at)
        with faulty_disk(at, kill=True) as faults:
            RocksStore.open(path).close()
        RocksStore.open(path).close()
        make(path, "one")
        assert found(path) == {"one": {1: "one"}}
        if not faults.hit:
            break
    assert at > 8


# --- faults ---


@pytest.mark.parametrize("kill", [True, False], ids=["killed", "error"])
@pytest.mark.parametrize("act", ["create", "drop", "add column"])
def test_wherever_it_stops_no_table_is_lost(tmp_path: Path, act: str, kill: bool) -> None:
    """At every single step: the act is done or it is not, other tables have their rows, and nothing is left over."""
    make(tmp_path, "other")
    (tmp_path / "tables" / "000900").mkdir()
    ids: set[int] = {0, 900}
    for at in count():
        if act != "create":
            make(tmp_path, "it")
        store = RocksStore.open(tmp_path)
        failed: BaseException | None = None
        with faulty_disk(at, kill=kill) as faults:
            try:
                if act == "create":
                    store.create_table(table("it"))
                elif act == "drop":
                    store.drop_table("it")
                else:
                    store.add_column("it", pa.field("more", pa.int8()))
            except ScannerError as error:
                failed = error
        if not kill:
            # The others go on without a restart, and so does this one if it is there.
            for each in store.tables():
                store.bucket(each.name, 0).commit([[put(2, "later")]])
        store.close()
        rows = found(tmp_path)
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
                again.drop_table("it")
    assert at > 5


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    acts=st.lists(
        st.tuples(
            st.sampled_from(["create", "drop", "write", "add column", "catalog back"]),
            st.sampled_from("abc"),
            st.none() | st.tuples(st.integers(0, 25), st.booleans()),
        ),
        min_size=3,
        max_size=10,
    )
)
def test_random_histories_lose_nothing(
    tmp_path_factory: pytest.TempPathFactory, acts: list[tuple[str, str, tuple[int, bool] | None]]
) -> None:
    """Creates, drops, writes and older catalogs, each with a fault or a kill: every acknowledged row is on the disk.

    A table that an older catalog hides is in its directory still, and its id is not given to another one.
    """
    path = tmp_path_factory.mktemp("history")
    store = RocksStore.open(path)
    catalogs = [(path / "catalog.json").read_bytes()]
    seen: dict[str, int] = {}
    rows: dict[str, set[int]] = {}
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
                        store.create_table(table(name))
                    elif act == "drop" and name in before:
                        maybe_dropped.add(unique[name])
                        store.drop_table(name)
                    elif act == "write" and name in before:
                        store.bucket(name, 0).commit([[put(number, name)]])
                    elif act == "add column" and name in before:
                        store.add_column(name, pa.field(f"c{number}", pa.int8()))
                    done = True
                except ScannerError:
                    pass
            if act == "write" and name in before and done:
                rows.setdefault(unique[name], set()).add(number)
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
        save_catalog(path, Catalog(tables={entry.description.name: entry}))
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
    scan = store.bucket(name, 0).open_scan()
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
