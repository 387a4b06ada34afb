"""What is in a data directory and whose it is: nothing is lost, whatever fails, is copied back, or lies around."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from dataclasses import replace
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest

from scanner.errors import DataCorrupted, StoreFailed
from scanner.storage.rocksdb.adopt import rebuild_catalog
from scanner.storage.rocksdb.backups import begin_backup
from scanner.storage.rocksdb.catalog import (
    CatalogReader,
    load_catalog,
    load_table_entry,
    save_table_entry,
)
from scanner.storage.rocksdb.data_directory import acquire_lock, hold_still
from scanner.storage.rocksdb.envelope import seal
from scanner.storage.rocksdb.store import RocksStore
from tests.support.faulty_disk import faulty_disk
from tests.support.storage_tables import (
    contents,
    make_tables,
    names_in,
    one_bucket,
    rows_by_table,
)

# --- a catalog that is read again and again ---


def test_a_catalog_is_parsed_where_it_has_changed(tmp_path: Path) -> None:
    """A reader has what is there now: tables that came and went, damage, and what replaces it."""
    reader, path = CatalogReader(tmp_path), tmp_path / "catalog.json"
    assert reader.read() is None
    make_tables(tmp_path, "one")
    first, text = reader.read(), path.read_bytes()
    assert first is not None
    assert list(first.tables) == ["one"]
    assert reader.read() is first
    make_tables(tmp_path, "two")
    second = reader.read()
    assert second == load_catalog(tmp_path)
    assert second != first
    path.write_bytes(text[:-2] + b"]\n")
    for _ in range(2):
        with pytest.raises(DataCorrupted, match=r"its checksum is wrong.*weir adopt"):
            reader.read()
    path.write_bytes(text)
    assert reader.read() == first
    path.unlink()
    assert reader.read() is None


# --- what the catalog does not name ---


def test_an_older_catalog_loses_no_table(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A table that a restored catalog does not know is left, named in one line, and its id is not given again."""
    make_tables(tmp_path, "one")
    older = (tmp_path / "catalog.json").read_bytes()
    make_tables(tmp_path, "two")
    (tmp_path / "catalog.json").write_bytes(older)
    with RocksStore.open(tmp_path) as store:
        assert [each.name for each in store.tables()] == ["one"]
        store.create_table(one_bucket("three"))
        assert store.table_id("three") == 2
    assert names_in(tmp_path / "tables") == ["000000", "000001", "000002"]
    (line,) = [each for each in caplog.messages if "000001" in each]
    assert "holds table 'two', which the catalog does not name" in line
    assert f"weir adopt --data {tmp_path} 000001" in line


def test_a_directory_under_another_name_is_told_to_get_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not where that is there, too, as beside a copy; to adopt it is advised when it has its name."""
    make_tables(tmp_path, "one", "two")
    tables = tmp_path / "tables"
    shutil.copytree(tables / "000000", tables / "000007")
    with RocksStore.open(tmp_path):
        pass
    (line,) = caplog.messages
    assert "000007 holds the table of 000000, which is there, too: move this one away" in line
    caplog.clear()
    (tables / "000000").rename(tmp_path.parent / f"{tmp_path.name}-moved")
    with RocksStore.open(tmp_path):
        pass
    assert any("holds the table of 000000, so give it that name first" in each for each in caplog.messages)
    (tables / "000007").rename(tables / "000000")
    assert rows_by_table(tmp_path).keys() == {"one", "two"}


def test_ids_are_remembered_where_nothing_else_knows_them(tmp_path: Path) -> None:
    """Neither an older catalog nor a directory that was moved away brings an id back."""
    make_tables(tmp_path, "one")
    older = (tmp_path / "catalog.json").read_bytes()
    make_tables(tmp_path, "two")
    (tmp_path / "catalog.json").write_bytes(older)
    (tmp_path / "tables" / "000001").rename(tmp_path.parent / f"{tmp_path.name}-moved")
    make_tables(tmp_path, "three")
    (tmp_path / "documents" / "table_ids.json").unlink()
    (tmp_path / "tables" / "000041.bak").mkdir()
    (tmp_path / "checkpoints" / "000050" / "0000").mkdir(parents=True)
    make_tables(tmp_path, "four")
    assert names_in(tmp_path / "tables") == ["000000", "000002", "000041.bak", "000051"]


def test_foreign_things_are_left_and_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Copies, notes, links and odd names beside tables and checkpoints stay; each start says one line for each."""
    make_tables(tmp_path, "one")
    tables, checkpoints = tmp_path / "tables", tmp_path / "checkpoints"
    checkpoints.mkdir()
    shutil.copytree(tables / "000000", tables / "000000.bak")
    shutil.copytree(tables / "000000", tables / "000099")
    for strange in (tables / "notes.txt", tables / "000007.dropped", checkpoints / "x.creating"):
        strange.write_text("mine")
    for strange in (tables / "7.dropped", tables / "0000007.dropped"):
        (strange / "0000").mkdir(parents=True)
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
        assert rows_by_table(tmp_path) == {"one": {1: "one"}}
        lines = [each for each in caplog.messages if "left as it is" in each]
        assert len(lines) == len([each for each in foreign if each.parent in (tables, checkpoints)]) == 9
    assert all(path.exists() or path.is_symlink() for path in foreign)
    assert all(path.read_bytes() == content for path, content in foreign.items() if content is not None)


def test_what_others_put_into_a_table_outlives_its_drop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A drop removes what the server made, and says what it left."""
    make_tables(tmp_path, "one")
    for parent in (tmp_path / "tables" / "000000", tmp_path / "tables" / "000000" / "copies"):
        parent.mkdir(exist_ok=True)
        (parent / "notes.txt").write_text("mine")
    with RocksStore.open(tmp_path) as store:
        store.drop_table("one")()
    left = tmp_path / "tables" / "000000.dropped"
    assert [each.read_text() for each in (left / "notes.txt", left / "copies" / "notes.txt")] == ["mine"] * 2
    assert "because others put copies, notes.txt into it" in caplog.text
    assert rows_by_table(tmp_path) == {}
    assert names_in(left) == ["copies", "notes.txt"]


def test_a_name_that_rocksdb_takes_for_another_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a locale of Latin-1 it would make tables in a directory beside this one."""
    monkeypatch.setattr(os, "fsencode", lambda path: str(path).encode("latin-1"))
    seen = "d\u00c3\u00a4ta"  # What Python takes "data" in UTF-8, with an umlaut, for.
    with pytest.raises(StoreFailed, match=r"LC_ALL=C\.UTF-8"):
        RocksStore.open(tmp_path / seen)
    assert names_in(tmp_path) == []


def test_a_table_that_is_a_link_is_dropped(tmp_path: Path) -> None:
    """An administrator has put it on another disk; or that is gone."""
    make_tables(tmp_path / "data", "one", "two")
    tables = tmp_path / "data" / "tables"
    for name in ("000000", "000001"):
        (tables / name).rename(tmp_path / name)
        (tables / name).symlink_to(tmp_path / name)
    shutil.rmtree(tmp_path / "000001")
    with RocksStore.open(tmp_path / "data") as store:
        store.drop_table("one")()
        store.drop_table("two")()
    assert names_in(tables) == names_in(tmp_path / "000000") == []


def test_what_is_marked_is_finished_or_undone(tmp_path: Path) -> None:
    """The catalog decides what becomes of a table that was being made or dropped when the server ended."""
    make_tables(tmp_path, "made", "kept")
    tables = tmp_path / "tables"
    (tables / "000000").rename(tables / "000000.creating")
    (tables / "000001").rename(tables / "000001.dropping")
    for gone in ("000005.creating", "000006.dropping", "000007.dropped"):
        shutil.copytree(tables / "000000.creating", tables / gone)
    assert rows_by_table(tmp_path) == {"made": {1: "made"}, "kept": {1: "kept"}}
    assert names_in(tables) == ["000000", "000001"]


def test_the_rest_of_a_dropped_table_does_not_become_the_table(tmp_path: Path) -> None:
    """A table of an older catalog whose drop was under way is gone, in one line, and not there in part."""
    make_tables(tmp_path, "one")
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
        store.create_table(one_bucket("one"))
        assert (in_the_way / "0000").is_dir()
        assert store.table_id("one") == 1


# --- the catalog and the tables' own words ---


@pytest.mark.parametrize("change", ["another table", "older", "digit", "gone", "newer format"])
def test_a_table_that_is_not_the_catalogs_is_refused_alone(
    tmp_path: Path, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One line says what disagrees and what to do; the other tables are served, and nothing is removed."""
    make_tables(tmp_path, "one", "two")
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
            lambda: store.drop_table("one")(),
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


def test_a_table_whose_directory_cannot_be_looked_at_is_refused_alone(tmp_path: Path) -> None:
    """As one behind a link to a disk that is dead, or closed to the server: the other tables are served."""
    make_tables(tmp_path, "one", "two")
    directory, elsewhere = tmp_path / "tables" / "000000", tmp_path / "elsewhere"
    directory.rename(elsewhere)
    directory.symlink_to("x" * 300)
    with RocksStore.open(tmp_path) as store:
        for act in (lambda: store.bucket("one", 0), lambda: store.drop_table("one")()):
            with pytest.raises(StoreFailed, match="000000: File name too long"):
                act()
        assert contents(store.bucket("two", 0)) == {1: "two"}
    directory.unlink()
    directory.symlink_to(elsewhere)
    assert rows_by_table(tmp_path) == {"one": {1: "one"}, "two": {1: "two"}}


def test_a_table_whose_directory_is_gone_can_be_dropped(tmp_path: Path) -> None:
    """There is nothing that could be lost by it."""
    make_tables(tmp_path, "one")
    shutil.rmtree(tmp_path / "tables" / "000000")
    with RocksStore.open(tmp_path) as store:
        store.drop_table("one")()
    assert rows_by_table(tmp_path) == {}


def test_a_column_that_the_catalog_lost_comes_from_the_table(tmp_path: Path) -> None:
    """With a catalog of before the column, rows of after it are read all the same."""
    make_tables(tmp_path, "one")
    older = (tmp_path / "catalog.json").read_bytes()
    with RocksStore.open(tmp_path) as store:
        store.add_column("one", pa.field("more", pa.int8()))
        newer = store.table("one")
    (tmp_path / "catalog.json").write_bytes(older)
    for _ in range(2):
        with RocksStore.open(tmp_path) as store:
            assert store.table("one") == newer
            assert store.row_codec("one").schema_id == 1


def test_a_lock_that_is_a_link_is_refused(tmp_path: Path) -> None:
    """In a directory that another user has made, as in /tmp, it could lead to any file of ours."""
    victim, path = tmp_path / "victim", tmp_path / "data"
    victim.write_text("ours")
    victim.chmod(0o644)
    path.mkdir()
    (path / "LOCK").symlink_to(victim)
    with pytest.raises(StoreFailed, match=r"data/LOCK: .*symbolic link"):
        RocksStore.open(path)
    assert (victim.read_text(), victim.stat().st_mode & 0o777) == ("ours", 0o644)


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
    make_tables(tmp_path, "one")
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
    make_tables(tmp_path, "one")
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
        make_tables(path, "one")
        assert rows_by_table(path) == {"one": {1: "one"}}
        if not faults.hit:
            break
    assert at > 8


@pytest.mark.parametrize("kept", ["FORMAT", "catalog.json", "LOCK"])
def test_a_catalog_is_rebuilt_in_a_directory_that_has_one_of_its_files(tmp_path: Path, kept: str) -> None:
    """A restored directory has no LOCK before a server has opened it, and a copy may have been made without it."""
    make_tables(tmp_path, "one")
    for name in {"FORMAT", "catalog.json", "LOCK"} - {kept}:
        (tmp_path / name).unlink()
    named, _ = rebuild_catalog(tmp_path)
    assert [each.name for each in named] == ["one"]
    assert rows_by_table(tmp_path) == {"one": {1: "one"}}


def test_a_new_lock_belongs_to_whom_the_directory_belongs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whom root makes it for, by `weir adopt`, opens it as well; one that is there already is nobody's to give away."""
    owner = tmp_path.stat()
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "fchown", lambda _descriptor, user, group: given.append((user, group)))
    monkeypatch.setattr(os, "geteuid", lambda: owner.st_uid + 1)
    for _ in range(2):
        os.close(acquire_lock(tmp_path))
    assert given == [(owner.st_uid, owner.st_gid)]


def test_a_file_system_without_locks_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As NFS is that is mounted without them, or whose server has none."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    told = "LOCK: No locks available; its file system takes no locks"
    with pytest.raises(StoreFailed, match=told):
        acquire_lock(tmp_path)
    with pytest.raises(StoreFailed, match=told), hold_still(tmp_path):
        pass
    with pytest.raises(StoreFailed, match=told), begin_backup(tmp_path / "data", tmp_path / "backups", 0):
        pass


def test_a_catalog_is_rebuilt_in_a_data_directory_alone(tmp_path: Path) -> None:
    """What has `tables/` and nothing else may be anything."""
    (tmp_path / "tables").mkdir()
    with pytest.raises(StoreFailed, match="is no data directory of weir"):
        rebuild_catalog(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["tables"]


def test_a_rebuilt_catalog_names_what_is_whole_and_of_two_of_one_name_the_newer(tmp_path: Path) -> None:
    """The others are left, each with the reason; the catalog from before is kept."""
    make_tables(tmp_path, "one", "two", "three", "four")
    tables = tmp_path / "tables"
    entry = load_table_entry(tables / "000001")
    assert entry is not None
    save_table_entry(tables / "000001", replace(entry, description=replace(entry.description, name="one")))
    shutil.rmtree(tables / "000002" / "0000")
    (tables / "000003" / "table.json").unlink()
    before = (tmp_path / "catalog.json").read_bytes()
    named, left = rebuild_catalog(tmp_path)
    assert [each.name for each in named] == ["one"]
    assert [each.directory for each in left] == ["000003", "000002", "000000"]
    for each, problem in zip(
        left, ("has no table.json", "lacks bucket 0", "a newer table has the name"), strict=True
    ):
        assert problem in each.problem
    catalog = load_catalog(tmp_path)
    assert catalog is not None
    assert catalog.tables["one"].table_id == 1
    assert (tmp_path / "catalog.json.before-0").read_bytes() == before


def test_of_two_tables_of_one_name_that_with_the_higher_id_is_the_newer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the one whose directory's name sorts behind: ids have six digits or more."""
    monkeypatch.setattr("scanner.storage.rocksdb.data_directory.secrets.randbelow", lambda _: 999_999)
    make_tables(tmp_path, "one", "two")
    older, newer = tmp_path / "tables" / "999999", tmp_path / "tables" / "1000000"
    entry = load_table_entry(older)
    assert entry is not None
    save_table_entry(older, replace(entry, description=replace(entry.description, name="two")))
    _, left = rebuild_catalog(tmp_path)
    assert newer.is_dir()
    assert [each.directory for each in left] == ["999999"]
