"""The inspection of data directories that are whole, and of those that are damaged in each way."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rocksdict import WriteBatch

from scanner.errors import ArgumentInvalid, DiskFull, StoreFailed, StoreLocked, TooManyFiles
from scanner.server.inspection import Inspection
from scanner.server.retention.lease_registry import LEASES_DOCUMENT, LeasedState, LeaseKey, LeaseRegistry
from scanner.storage.lineage import NO_HISTORY
from scanner.storage.rocksdb.catalog import load_table_entry, save_table_entry
from scanner.storage.rocksdb.database import open_database
from scanner.storage.rocksdb.durable_end import DurableEnd, write_durable_end
from scanner.storage.rocksdb.findings import Finding, Severity
from scanner.storage.rocksdb.store import RocksStore
from tests.support.storage_damage import delete_change, flip, raw_database
from tests.support.storage_tables import delete, item_key, one_bucket, put, puts

if TYPE_CHECKING:
    from scanner.storage.rocksdb.database import Database, RocksResources

pytestmark = pytest.mark.rocks

NOW_MS = 1_000_000


def fill(store: RocksStore) -> None:
    """A table of one bucket with three entries: inserts, updates, deletes."""
    store.create_table(one_bucket("items"))
    bucket = store.bucket("items", 0)
    bucket.commit([puts((number, f"text {number}") for number in range(100))])
    bucket.commit([puts((number, f"other {number}") for number in range(50))])
    bucket.commit([[delete(number) for number in range(40, 60)]])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A whole data directory with a checkpoint and a document."""
    path = tmp_path / "data"
    with RocksStore.open(path) as store:
        fill(store)
        store.create_checkpoint("items", 0)
        store.bucket("items", 0).commit([[put(7, "after the checkpoint")]])
        image = store.image_path(store.table_id("items"), 0)
        image.parent.mkdir(parents=True)
        image.touch()
    for each in path.rglob("*"):
        each.chmod(0o700 if each.is_dir() else 0o600)
    return path


def inspected(path: Path) -> list[Finding]:
    """What is found."""
    return list(Inspection(path, now_ms=NOW_MS, keys_max=1000).findings())


def state_of(path: Path) -> dict[str, tuple[int, int, int, int]]:
    """Everything that could change in a directory."""
    found = {str(each.relative_to(path)): each.lstat() for each in (path, *path.rglob("*"))}
    return {name: (of.st_mode, of.st_size, of.st_mtime_ns, of.st_ctime_ns) for name, of in found.items()}


@pytest.mark.parametrize("keys_max", [5, 1000])
def test_a_whole_directory_has_no_findings_and_is_not_changed(data: Path, keys_max: int) -> None:
    """All is looked at, nothing is found, and no file is touched: not its times, its mode nor its name."""
    before = state_of(data)
    inspection = Inspection(data, now_ms=NOW_MS, keys_max=keys_max)
    assert list(inspection.findings()) == []
    assert state_of(data) == before
    counts = inspection.counts
    assert (counts.tables, counts.buckets, counts.checkpoints, counts.documents) == (1, 1, 1, 1)
    # Rows of the bucket and of its checkpoint; changes likewise.
    assert (counts.rows, counts.changes) == (80 + 80, 220 + 222)


def progress_of(data: Path, keys_max: int = 1000) -> list[tuple[str, int, int, int]]:
    """What an inspection tells of its progress."""
    told: list[tuple[str, int, int, int]] = []
    inspection = Inspection(
        data, now_ms=NOW_MS, on_progress=lambda *progress: told.append(progress), keys_max=keys_max
    )
    list(inspection.findings())
    return told


def records_of(told: list[tuple[str, int, int, int]]) -> dict[str, int]:
    """Rows and changes that were read of each database in all."""
    return {what[:18]: records for what, _, _, records in told}


def test_everything_is_read_once_unless_it_disagrees(data: Path) -> None:
    """Each row and change of a database; those of a bucket again where keys are looked at octet by octet."""
    assert records_of(progress_of(data)) == {"tables/000000/0000": 80 + 222, "checkpoints/000000": 80 + 220}
    change_row(data)
    assert records_of(progress_of(data))["tables/000000/0000"] == 2 * (80 + 222)


def test_progress_is_of_the_octets_of_all_databases(data: Path) -> None:
    """It grows up to all of them, also where a bucket is read in parts."""
    databases = [data / "tables" / "000000" / "0000", *data.glob("checkpoints/000000/0000/*")]
    octets = [sum(file.stat().st_size for file in each.iterdir()) for each in databases]
    told = progress_of(data)
    assert [(done, total) for _, done, total, _ in told] == sorted(
        (done, total) for _, done, total, _ in told
    )
    assert {total for _, _, total, _ in told} == {sum(octets)}
    done = {what[:18]: done for what, done, _, _ in told}
    assert done == {"tables/000000/0000": octets[0], "checkpoints/000000": sum(octets)}
    in_parts = [done for what, done, _, _ in progress_of(data, keys_max=5) if what.startswith("tables")]
    assert len(in_parts) > 4
    assert in_parts[-1] == octets[0]


def test_a_truncated_log_is_compared_as_far_as_it_reaches(tmp_path: Path) -> None:
    """After retention the log no longer explains all rows, and that is no finding."""
    with RocksStore.open(tmp_path) as store:
        fill(store)
        store.bucket("items", 0).truncate_log(150)
        store.bucket("items", 0).flush()
        assert store.bucket("items", 0).log_start == 100
    assert [each for each in inspected(tmp_path) if each.severity is not Severity.NOTE] == []


def test_a_directory_that_a_server_has_open(data: Path) -> None:
    """It is not inspected while it changes; while it is inspected no server opens it, and two may inspect it."""
    with RocksStore.open(data), pytest.raises(StoreLocked, match=f"process {os.getpid()}"):
        inspected(data)
    (data / "foreign").touch(0o600)
    findings = Inspection(data, now_ms=NOW_MS).findings()
    assert next(findings).where == "foreign"
    with pytest.raises(StoreLocked, match="inspected by weir doctor"):
        RocksStore.open(data)
    assert len(inspected(data)) == 1
    assert list(findings) == []
    RocksStore.open(data).close()


def test_what_is_no_data_directory(tmp_path: Path) -> None:
    """A directory of something else is refused, and stays as it is."""
    (tmp_path / "file").touch()
    with pytest.raises(ArgumentInvalid, match="no data directory"):
        inspected(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def _table(data: Path) -> Path:
    return data / "tables" / "000000"


def change_row(data: Path) -> None:
    """Another row under a key, behind the log's back."""
    with raw_database(data) as raw:
        raw.get_column_family("kv").put(item_key(1), put(1, "other than the log").row)


def swap_rows(data: Path) -> None:
    """A row of another key."""
    with raw_database(data) as raw:
        raw.get_column_family("kv").put(item_key(1), put(2, "of two").row)


def remove_row(data: Path) -> None:
    """A row that is gone, and its change is not."""
    with raw_database(data) as raw:
        raw.get_column_family("kv").delete(item_key(1))


def add_row(data: Path) -> None:
    """A row that no change made."""
    with raw_database(data) as raw:
        raw.get_column_family("kv").put(item_key(1000), put(1000, "who?").row)


def behind_the_end(data: Path) -> None:
    """The range of the log ends before its last change."""
    with raw_database(data) as raw:
        batch = WriteBatch(raw_mode=True)
        log = raw.get_column_family("log")
        last = max(key for key in log.keys() if isinstance(key, bytes))  # noqa: SIM118
        batch.put(last[:7] + b"\xff" + last[8:], b"x", raw.get_column_family_handle("log"))
        raw.write(batch)


def damage_block(data: Path) -> None:
    """One octet of the largest table file is another one."""
    path = max(_table(data).glob("0000/*.sst"), key=lambda path: path.stat().st_size)
    flip(path, 40)


def remove_current(data: Path) -> None:
    """A database without the file that it begins with."""
    (_table(data) / "0000" / "CURRENT").unlink()


def remove_bucket(data: Path) -> None:
    """A bucket that is gone."""
    shutil.rmtree(_table(data) / "0000")


def damage_table(data: Path) -> None:
    """A damaged table.json."""
    flip(_table(data) / "table.json", 100)


def exchange_table(data: Path) -> None:
    """A table.json of another table."""
    entry = load_table_entry(_table(data))
    assert entry is not None
    save_table_entry(_table(data), type(entry)(table_id=0, description=one_bucket("others")))


def lose_tail(data: Path) -> None:
    """A durable end behind the log's."""
    entry = load_table_entry(_table(data))
    assert entry is not None
    write_durable_end(_table(data) / "0000", entry.bucket_identity(0), DurableEnd(300, bytes(16)))


def damage_checkpoint(data: Path) -> None:
    """A checkpoint that lacks a file."""
    next(data.glob("checkpoints/000000/0000/*/CURRENT")).unlink()


def rename_checkpoint(data: Path) -> None:
    """A checkpoint under the name of another one."""
    (path,) = data.glob("checkpoints/000000/0000/*")
    path.rename(path.with_name(path.name.replace("000000-", "000009-", 1)))


def lease_nothing(data: Path) -> None:
    """A lease on a checkpoint that is not there."""
    keep(data, checkpoint_id=5, log_offset=220)


def keep(data: Path, checkpoint_id: int | None, log_offset: int, table_id: int = 0) -> None:
    """Write a lease down."""
    with RocksStore.open(data) as store:
        history = store.bucket("items", 0).lineage.history_of(log_offset) if log_offset else NO_HISTORY
        state = LeasedState(
            table="items",
            table_id=table_id,
            bucket=0,
            checkpoint_id=checkpoint_id,
            log_offset=log_offset,
            history=history,
        )
        registry = LeaseRegistry()
        lease = registry.acquire(LeaseKey("ann", "l"), [state], ttl_ms=1000, now_ms=NOW_MS)
        assert lease is not None
        store.write_document(LEASES_DOCUMENT, LeaseRegistry.to_document([lease]))


DAMAGES: list[tuple[Callable[[Path], object], str, str]] = [
    (change_row, "tables/000000/0000", "1 keys have another row than the changelog leaves them with"),
    (swap_rows, "tables/000000/0000", "1 rows (the first one: (1,)) of another key"),
    (remove_row, "tables/000000/0000", "1 keys lack the row that the changelog leaves them with"),
    (add_row, "tables/000000/0000", "1 keys have a row that the changelog does not explain"),
    (lambda data: delete_change(data, 100), "tables/000000/0000", "the changelog has a hole at offset 100"),
    (lambda data: delete_change(data, 0), "tables/000000/0000", "the changelog has a hole at offset 0"),
    (lambda data: delete_change(data, 220), "tables/000000/0000", "the changelog ends at offset 220, and"),
    (behind_the_end, "tables/000000/0000", "there are changes behind the changelog's end"),
    (damage_block, "tables/000000/0000", "cannot be read"),
    (remove_current, "tables/000000/0000", "its files are gone"),
    (remove_bucket, "tables/000000/0000", "its files are gone"),
    (damage_table, "tables/000000", "table.json is damaged"),
    (exchange_table, "tables/000000", "table.json and the catalog disagree"),
    (lose_tail, "tables/000000/0000", "was durable up to 300"),
    (lambda data: flip(data / "catalog.json", 100), "catalog.json", "its checksum is wrong"),
    (lambda data: (data / "catalog.json").unlink(), "catalog.json", "is gone"),
    (lambda data: flip(data / "FORMAT", 100), "FORMAT", "its checksum is wrong"),
    (lambda data: (data / "FORMAT").unlink(), "FORMAT", "is gone"),
    (
        lambda data: flip(data / "documents/table_ids.json", 70),
        "documents/table_ids.json",
        "its checksum is wrong",
    ),
    (
        lambda data: (data / "documents/commit_time_floor.json").write_text("junk"),
        "documents/commit_time_floor.json",
        "is damaged",
    ),
    (damage_checkpoint, "checkpoints/000000/0000/000000-220", "its files are gone"),
    (rename_checkpoint, "checkpoints/000000/0000/000009-220", "is not Checkpoint"),
    (lease_nothing, "documents/leases.json", "there is no sound checkpoint 5"),
]


@pytest.mark.parametrize(("damage", "where", "problem"), DAMAGES)
def test_damage_is_found(data: Path, damage: Callable[[Path], object], where: str, problem: str) -> None:
    """Each kind of damage is an error at the place where it is, and the first error is that one."""
    damage(data)
    before = state_of(data)
    errors = [each for each in inspected(data) if each.severity is Severity.ERROR]
    assert errors[0].where.startswith(where), errors
    assert problem in errors[0].problem, errors
    assert errors[0].lost
    assert "\n" not in "".join(errors[0].problem)
    assert state_of(data) == before


@pytest.mark.parametrize("where", ["tables", "checkpoints"])
@pytest.mark.parametrize("kind", [DiskFull, TooManyFiles])
def test_what_this_process_lacks_is_no_damage(
    data: Path, monkeypatch: pytest.MonkeyPatch, kind: type[StoreFailed], where: str
) -> None:
    """Without room for temporary files, or for open ones, the inspection ends; no bucket is said to be lost."""

    def refuse(path: Path, resources: RocksResources, *, read_only: bool) -> Database:
        (file,) = path.glob("MANIFEST-*")
        if where in file.readlink().parts:
            raise kind(f"{path}: no more of that")
        return open_database(path, resources, read_only=read_only)

    monkeypatch.setattr("scanner.storage.rocksdb.untouched.open_database", refuse)
    with pytest.raises(kind) as raised:
        inspected(data)
    assert ("temporary files" in raised.value.message) == (kind is DiskFull)


def test_a_table_that_cannot_be_looked_at_is_a_finding(data: Path) -> None:
    """As one behind a link to a dead disk: the inspection goes on."""
    (table,) = (data / "tables").iterdir()
    table.rename(data.parent / "elsewhere")
    table.symlink_to("x" * 300)
    (finding,) = (each for each in inspected(data) if each.severity is Severity.ERROR)
    assert "File name too long" in finding.problem


def test_no_place_for_temporary_files(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That is what is said, and nothing of the buckets, which are whole."""
    monkeypatch.setattr(tempfile, "tempdir", str(data / "none"))
    with pytest.raises(DiskFull, match=r"no temporary files can be made: .*TMPDIR"):
        inspected(data)


def test_no_descriptor_for_temporary_files(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That is what is said: a full disk would be looked for in vain."""
    open_file = os.open

    def refuse(path: str | Path, *arguments: Any, **options: Any) -> int:
        if Path(path).name.startswith("weir-links-"):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        return open_file(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(TooManyFiles, match=r"no temporary files can be made: .*ulimit"):
        inspected(data)


def test_what_a_killed_inspection_left_is_removed(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Links of a process that is gone; what one has locked that runs, and what is none of ours, stays as it is."""
    place = tmp_path / "temporary"
    for name in ("weir-links-left", "weir-links-used", "weir-links-new", "weir-links-foreign", "weir-others"):
        (place / name).mkdir(parents=True)
        if not name.endswith("new"):
            (place / name / "000007.sst").symlink_to(data / "FORMAT")
    for name in ("LOG", "MANIFEST-000005", "000012.log"):
        (place / "weir-links-left" / name).touch()
    (place / "weir-links-foreign" / "mine").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    used = os.open(place / "weir-links-used", os.O_RDONLY)
    try:
        fcntl.flock(used, fcntl.LOCK_EX)
        assert inspected(data) == []
    finally:
        os.close(used)
    left = sorted(str(each.relative_to(place)) for each in place.rglob("*"))
    assert left == [
        "weir-links-foreign",
        "weir-links-foreign/000007.sst",
        "weir-links-foreign/mine",
        "weir-links-new",
        "weir-links-used",
        "weir-links-used/000007.sst",
        "weir-others",
        "weir-others/000007.sst",
    ]


def test_leases_that_are_kept_are_no_finding(data: Path) -> None:
    """A lease whose checkpoint is there, and one on the log alone, are fine; one of a table that is gone is not."""
    keep(data, checkpoint_id=0, log_offset=220)
    assert [each for each in inspected(data) if each.severity is Severity.ERROR] == []
    keep(data, checkpoint_id=None, log_offset=200)
    assert [each for each in inspected(data) if each.severity is Severity.ERROR] == []
    keep(data, checkpoint_id=None, log_offset=0, table_id=3)
    (error,) = [each for each in inspected(data) if each.severity is Severity.ERROR]
    assert "there is no such table" in error.problem


def test_leases_of_a_table_that_was_dropped_are_no_damage(data: Path) -> None:
    """A server that is killed within a drop forgets them at its next start, unless the table can come back."""
    keep(data, checkpoint_id=0, log_offset=220)
    with RocksStore.open(data) as store:
        store.drop_table("items")()
    (found,) = inspected(data)
    assert found.severity is Severity.NOTE
    assert "items[0] as of offset 220, and that table was dropped; the next start forgets" in found.problem
    (data / "tables" / "000000").mkdir(0o700)
    (error,) = [each for each in inspected(data) if each.severity is Severity.ERROR]
    assert "there is no such table" in error.problem


def test_a_loss_stays_on_record(data: Path) -> None:
    """What was lost before the newest history began is a warning for ever: it was said when it happened."""
    lose_tail(data)
    with RocksStore.open(data) as store:
        store.bucket("items", 0).commit([[put(1, "next")]])
    findings = [each for each in inspected(data) if each.severity is not Severity.NOTE]
    assert [(each.severity, each.lost) for each in findings] == [
        (Severity.WARNING, "78 acknowledged changes")
    ]


def test_what_is_no_document_does_not_count_as_one(data: Path) -> None:
    """Neither a copy that somebody made nor what a crash left unfinished was looked at."""
    for name in ("leases.json.bak", "leases.json~"):
        (data / "documents" / name).touch(0o600)
    inspection = Inspection(data, now_ms=0)
    assert [each.where for each in inspection.findings()] == ["documents/leases.json.bak"]
    assert inspection.counts.documents == 1


def test_strays_and_modes(data: Path) -> None:
    """What nobody knows and what others may read is told, as no error."""
    (data / "tables" / "000005").mkdir(0o700)
    (data / "tables" / "000000" / "0007").mkdir(0o700)
    (data / "tables" / "000009.dropped").mkdir(0o700)
    data = data.rename(data.with_name("a copy"))
    for name in ("leases.json.bak", ".leases.json.swp"):
        (data / "documents" / name).touch(0o600)
    data.chmod(0o755)
    findings = inspected(data)
    assert {(each.severity, each.where) for each in findings} == {
        (Severity.WARNING, "."),
        (Severity.WARNING, "tables/000005"),
        (Severity.WARNING, "tables/000009.dropped"),
        (Severity.NOTE, "tables/000000/0007"),
        (Severity.NOTE, "documents/leases.json.bak"),
        (Severity.NOTE, "documents/.leases.json.swp"),
    }
    assert [each.advice for each in findings if each.where == "."] == [
        f"chmod -R go= '{data}'; the next start does it for what is weir's; where it has no effect, mount the file"
        " system for that user alone (umask=077)"
    ]


def test_a_database_that_an_interrupted_drop_left_is_looked_at(data: Path) -> None:
    """A table under the name of a drop that was not finished is the catalog's, and is inspected there."""
    _table(data).rename(_table(data).with_name("000000.dropping"))
    inspection = Inspection(data, now_ms=NOW_MS)
    assert [each.severity for each in inspection.findings()] == [Severity.WARNING]
    assert inspection.counts.rows == 160
