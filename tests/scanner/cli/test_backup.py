"""`weir backup` and `weir restore` as an operator runs them, beside a server that is written to."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa
import pytest

import scanner.cli.backup
import scanner.sync
from scanner.data.digest import combine_digests
from scanner.errors import StoreFailed
from scanner.storage.rocksdb import catalog
from scanner.storage.rocksdb.backup_manifest import list_backups
from scanner.storage.rocksdb.backups import BackupWriter
from tests.support.processes import weir
from tests.support.server import running_server
from tests.support.storage_damage import flip
from tests.support.transactions import refuse_shares

if TYPE_CHECKING:
    from tests.scanner.cli.conftest import Weir

pytestmark = [pytest.mark.socket, pytest.mark.rocks, pytest.mark.slow]

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])


def rows(first: int, count: int, text: str) -> pa.Table:
    """Some rows."""
    return pa.table({"id": range(first, first + count), "text": [text] * count}, schema=SCHEMA)


def test_a_table_that_is_written_to(tmp_path: Path, weir_here: Weir) -> None:
    """What is restored is the table as of the backup's offsets, row by row and by digest, though writers went on."""
    data, destination, restored = tmp_path / "data", tmp_path / "backups", tmp_path / "the copy"
    with running_server(data) as server, scanner.sync.connect(server.endpoint) as client:
        table = client.create_table("orders", SCHEMA, primary_key=["id"], buckets=3)
        table.write(rows(0, 2000, "before"))
        ends = threading.Event()
        writing = threading.Event()

        def write() -> None:
            with scanner.sync.connect(server.endpoint) as other:
                number = 0
                while not ends.is_set():
                    other.table("orders").write(rows(number % 3000, 100, f"text {number}"))
                    other.table("orders").delete([(number % 2000,)])
                    number += 37
                    writing.set()

        writer = threading.Thread(target=write)
        writer.start()
        try:
            assert writing.wait()
            made = weir("backup", destination, "--data", data, "-e", server.endpoint, "--json")
        finally:
            ends.set()
            writer.join()
        assert (made.returncode, made.stderr) == (0, ""), made
        backup = json.loads(made.stdout)
        table.write(rows(0, 2000, "after"))
        buckets = backup["tables"][0]["buckets"]
        offsets = {each["index"]: each["log_offset"] for each in buckets}
        assert all(each.end_offset > offsets[each.bucket] for each in table.offsets())
        with table.new_scan().as_of(offsets).execute() as batches:
            expected = pa.Table.from_batches(list(batches))
        digest = combine_digests(each["digest"] for each in buckets)
        assert batches.statistics().digest == digest
        assert client.list_leases() == []
        listed = weir_here("backup", destination, "--list")
        assert listed.stdout.splitlines()[-1].startswith(backup["backup_id"])
    again = weir_here("restore", destination / backup["backup_id"], restored)
    assert (again.returncode, again.stderr) == (0, ""), again
    assert again.stdout.endswith(f"; start a server with: weir serve --data '{restored}'\n")
    looked = weir_here("doctor", restored)
    assert (looked.returncode, looked.stdout[:30]) == (0, "0 errors, 0 warnings, 0 notes "), looked
    with running_server(restored) as server, scanner.sync.connect(server.endpoint) as client:
        with client.table("orders").new_scan().execute() as batches:
            found = pa.Table.from_batches(list(batches))
        assert batches.statistics().digest == digest
        assert found.sort_by("id") == expected.sort_by("id")


def test_a_catalog_is_not_parsed_for_each_table(
    tmp_path: Path, weir_here: Weir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names all tables: a backup of thousands would take time that goes with their square."""
    data, parse, parsed = tmp_path / "data", catalog._catalog_of, list[int]()

    def count(content: dict[str, Any]) -> catalog.CatalogFile:
        parsed.append(len(content["tables"]))
        return parse(content)

    with running_server(data) as server, scanner.sync.connect(server.endpoint) as client:
        for name in ("a", "b", "c"):
            client.create_table(name, SCHEMA, primary_key=["id"], buckets=1)
        monkeypatch.setattr(catalog, "_catalog_of", count)
        made = weir_here("backup", tmp_path / "backups", "--data", data, "-e", server.endpoint)
    assert (made.returncode, parsed) == (0, [3]), made


def test_an_id_of_a_lease_from_before_begins_none(tmp_path: Path, weir_here: Weir) -> None:
    """The restored server cannot know what became of it: LEASE_NOT_FOUND, instead of a lease of another state."""
    data, destination, restored = tmp_path / "data", tmp_path / "backups", tmp_path / "restored"
    target = scanner.LeaseTarget("orders", state="log")
    with running_server(data) as server, scanner.sync.connect(server.endpoint) as client:
        table = client.create_table("orders", SCHEMA, primary_key=["id"], buckets=1)
        table.write(rows(0, 10, "before"))
        made = weir_here("backup", destination, "--data", data, "-e", server.endpoint, "--json")
        assert (made.returncode, made.stderr) == (0, ""), made
        begun = time.monotonic()
        with client.acquire_lease(target, lease_id="job", if_absent=True, id_age_s=0) as lease:
            assert lease.offsets("orders") == {0: 10}
    again = weir_here("restore", destination / json.loads(made.stdout)["backup_id"], restored)
    assert (again.returncode, again.stderr) == (0, ""), again
    with running_server(restored) as server, scanner.sync.connect(server.endpoint) as client:
        client.table("orders").write(rows(0, 10, "after"))
        with pytest.raises(scanner.LeaseNotFound, match="may have ended"):
            client.acquire_lease(target, lease_id="job", if_absent=True, id_age_s=time.monotonic() - begun)
        with client.acquire_lease(target, lease_id="job", if_absent=True) as lease:
            assert lease.offsets("orders") == {0: 30}


def test_ids_of_tables_are_not_given_again(tmp_path: Path, weir_here: Weir) -> None:
    """Who means a table that was made after the backup is told, where the restored server has one of its name."""
    data, destination, restored = tmp_path / "data", tmp_path / "backups", tmp_path / "restored"
    with running_server(data) as server, scanner.sync.connect(server.endpoint) as client:
        client.create_table("orders", SCHEMA, primary_key=["id"], buckets=1)
        made = weir_here("backup", destination, "--data", data, "-e", server.endpoint, "--json")
        assert (made.returncode, made.stderr) == (0, ""), made
        lost = client.create_table("items", SCHEMA, primary_key=["id"], buckets=1).table_id
    again = weir_here("restore", destination / json.loads(made.stdout)["backup_id"], restored)
    assert (again.returncode, again.stderr) == (0, ""), again
    with running_server(restored) as server, scanner.sync.connect(server.endpoint) as client:
        table = client.create_table("items", SCHEMA, primary_key=["id"], buckets=1)
        table.write(rows(0, 10, "another table's"))
        with pytest.raises(scanner.TableNotFound, match="created anew"):
            table.new_scan().with_table_id(lost).to_arrow()


def test_what_was_staged_before_is_missed(tmp_path: Path, kept_port: int, weir_here: Weir) -> None:
    """No backup has stages: who stages on in the same attempt is told, and nothing is decided; a new one is whole."""
    data, destination, restored = tmp_path / "data", tmp_path / "backups", tmp_path / "restored"
    with contextlib.ExitStack() as stack:
        with running_server(data, port=kept_port) as server:
            client = stack.enter_context(scanner.sync.connect(server.endpoint))
            table = client.create_table("orders", SCHEMA, primary_key=["id"], buckets=2)
            version = table.transaction("load", 7)
            version.stage(rows(0, 10, "before"), part=0, attempt=0)
            made = weir_here("backup", destination, "--data", data, "-e", server.endpoint, "--json")
            assert (made.returncode, made.stderr) == (0, ""), made
        again = weir_here("restore", destination / json.loads(made.stdout)["backup_id"], restored)
        assert (again.returncode, again.stderr) == (0, ""), again
        with running_server(restored, port=kept_port):
            version.stage(rows(10, 5, "after"), part=0, attempt=0)
            with pytest.raises(
                scanner.StageNotFound,
                match=r"at least 15 rows and keys were staged, and 5 are there: .* restored",
            ):
                version.publish({0: 0})
            assert table.new_scan().to_arrow().num_rows == 0
            version.stage(rows(0, 15, "after"), part=0, attempt=1)
            assert version.publish({0: 1}).decided
            assert table.new_scan().to_arrow()["text"].to_pylist() == ["after"] * 15


def test_what_fails_says_so(tmp_path: Path, weir_here: Weir) -> None:
    """Another server's directory, a damaged backup and a DATA that is not empty are one line and exit code 1."""
    data, destination = tmp_path / "data", tmp_path / "backups"
    with running_server(data) as server, scanner.sync.connect(server.endpoint) as client:
        client.create_table("orders", SCHEMA, primary_key=["id"]).write(rows(0, 100, "text"))
        with running_server(tmp_path / "other") as other, scanner.sync.connect(other.endpoint) as its:
            for name in ("orders", "more"):
                its.create_table(name, SCHEMA, primary_key=["id"]).write(rows(0, 100, "text"))
            for which, endpoint in ((tmp_path / "other", server.endpoint), (data, other.endpoint)):
                wrong = weir_here("backup", destination, "--data", which, "-e", endpoint)
                assert (wrong.returncode, wrong.stdout, wrong.stderr.count("\n")) == (1, "", 1)
                assert "is not the data directory of this server" in wrong.stderr
        nothing = weir_here("backup", destination, "--data", tmp_path / "none", "-e", server.endpoint)
        assert (nothing.returncode, nothing.stderr.count("\n")) == (1, 1)
        assert sorted(path.name for path in destination.iterdir()) == ["BACKUPS", "LOCK"]
        assert weir_here("backup", destination, "--data", data, "-e", server.endpoint).returncode == 0
    (backup,) = (path for path in destination.iterdir() if path.is_dir())
    taken = weir_here("restore", backup, data)
    assert (taken.returncode, taken.stderr.count("\n")) == (1, 1)
    flip(next(backup.rglob("*.sst")), 10)
    damaged = weir_here("restore", backup, tmp_path / "restored")
    assert (damaged.returncode, damaged.stdout, damaged.stderr.count("\n")) == (1, "", 1)
    assert "is damaged" in damaged.stderr
    assert not (tmp_path / "restored").exists()


def test_a_backup_that_is_interrupted_at_its_end_is_named(
    tmp_path: Path, weir_here: Weir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is whole by then, and the end of the connection takes time, too."""
    data, destination = tmp_path / "data", tmp_path / "backups"
    close = scanner.sync.Client.close

    def interrupted(client: scanner.sync.Client) -> NoReturn:
        close(client)
        raise KeyboardInterrupt

    with running_server(data) as server:
        monkeypatch.setattr(scanner.sync.Client, "close", interrupted)
        # The output is that of the test as well.
        monkeypatch.setattr("scanner.cli.forget_output", lambda: None)
        made = weir_here("backup", destination, "--data", data, "-e", server.endpoint)
    (found,) = list_backups(destination)
    assert (made.returncode, made.stderr) == (130, "weir: interrupted\n")
    assert made.stdout.startswith(f"backup {found.directory}: 0 tables")


def test_a_damaged_table_does_not_cost_the_others(tmp_path: Path, weir_here: Weir) -> None:
    """The others are backed up; the damaged one is named, and the exit code is 1."""
    data, destination = tmp_path / "data", tmp_path / "backups"
    with running_server(data) as server, scanner.sync.connect(server.endpoint) as client:
        for name in ("bad", "good"):
            client.create_table(name, SCHEMA, primary_key=["id"]).write(rows(0, 100, "text"))
    flip(data / "tables" / "000000" / "table.json", 100)
    with running_server(data) as server:
        made = weir_here("backup", destination, "--data", data, "-e", server.endpoint)
    assert made.returncode == 1
    assert "1 table, 100 rows" in made.stdout
    assert "table 'bad' is not in the backup" in made.stderr
    assert made.stderr.splitlines()[-1].endswith("lacks 1 damaged table: bad")


def test_an_answer_that_names_no_checkpoint_is_told(
    tmp_path: Path, weir_here: Weir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease of which the answer lacks a bucket is one line, and exit code 1."""
    data = tmp_path / "data"
    monkeypatch.setattr(scanner.sync.leases.Lease, "buckets", ())
    with running_server(data) as server, scanner.sync.connect(server.endpoint) as client:
        client.create_table("orders", SCHEMA, primary_key=["id"]).write(rows(0, 100, "text"))
        made = weir_here("backup", tmp_path / "backups", "--data", data, "-e", server.endpoint)
    assert made.returncode == 1
    assert made.stderr.splitlines()[0] == (
        "table 'orders' is not in the backup: the server's answer names no checkpoint of bucket 0 of orders"
    )


def test_a_lease_that_ends_behind_the_last_file_costs_nothing(
    tmp_path: Path, weir_here: Weir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An administrator may drop it, or its time be over: what was copied is whole."""
    data, destination = tmp_path / "data", tmp_path / "backups"
    leave = scanner.sync.leases.Lease.__exit__

    def lost(self: scanner.sync.leases.Lease, *error: Any) -> NoReturn:
        leave(self, *error)
        raise scanner.LeaseNotFound("it was dropped")

    with running_server(data) as server, scanner.sync.connect(server.endpoint) as client:
        client.create_table("orders", SCHEMA, primary_key=["id"], buckets=2).write(rows(0, 10, "text"))
        monkeypatch.setattr(scanner.sync.leases.Lease, "__exit__", lost)
        done = weir_here("backup", destination, "--data", data, "-e", server.endpoint)
    assert (done.returncode, done.stderr) == (0, "")
    assert [each.backup.rows for each in list_backups(destination) if each.backup is not None] == [10]


def test_a_lease_of_which_the_answer_is_lost_is_over_soon(
    tmp_path: Path, weir_here: Weir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time is a minute until it is known to be there, and then what a copy takes."""
    data, times = tmp_path / "data", list[float]()
    acquire, look = scanner.sync.Client.acquire_lease, scanner.cli.backup._checkpoint

    def note_time(client: scanner.sync.Client) -> None:
        times.extend(each.ttl_s for each in client.list_leases())

    with running_server(data) as server, scanner.sync.connect(server.endpoint) as client:

        def acquired(*args: Any, **options: Any) -> Any:
            lease = acquire(*args, **options)
            note_time(client)
            return lease

        def looked(*args: Any) -> Any:
            note_time(client)
            return look(*args)

        monkeypatch.setattr(scanner.sync.Client, "acquire_lease", acquired)
        monkeypatch.setattr(scanner.cli.backup, "_checkpoint", looked)
        client.create_table("orders", SCHEMA, primary_key=["id"]).write(rows(0, 100, "text"))
        made = weir_here("backup", tmp_path / "backups", "--data", data, "-e", server.endpoint)
    assert made.returncode == 0, made
    assert (times[0], {*times[1:]}) == (60, {600})


@pytest.mark.parametrize("again", [False, True], ids=["for good", "and made anew"])
@pytest.mark.parametrize("at", ["the look for its checkpoints", "its copying"])
def test_a_table_that_is_dropped_meanwhile(
    tmp_path: Path, weir_here: Weir, monkeypatch: pytest.MonkeyPatch, at: str, again: bool
) -> None:
    """It does not cost the others: it is passed over and named, or the one that has its name now is backed up."""
    data, destination = tmp_path / "data", tmp_path / "backups"
    where: tuple[object, str] = (BackupWriter, "_add_bucket")
    if at == "the look for its checkpoints":
        where = (scanner.cli.backup, "_checkpoint")
    go_on = getattr(*where)
    with running_server(data) as server, scanner.sync.connect(server.endpoint) as client:
        for name in ("gone", "stays"):
            client.create_table(name, SCHEMA, primary_key=["id"]).write(rows(0, 100, "text"))

        def drop(*args: Any) -> object:
            monkeypatch.undo()
            client.drop_table("gone")
            if again:
                client.create_table("gone", SCHEMA, primary_key=["id"]).write(rows(0, 10, "new"))
            return go_on(*args)

        monkeypatch.setattr(*where, drop)
        made = weir_here("backup", destination, "--data", data, "-e", server.endpoint)
    assert made.returncode == 0, made
    assert made.stderr == ("" if again else "table 'gone' was dropped meanwhile\n")
    assert ("2 tables, 110 rows" if again else "1 table, 100 rows") in made.stdout


def test_a_version_that_could_not_be_applied_is_named(
    tmp_path: Path, weir_here: Weir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the buckets that have it and have not: by the backup, its manifest and list, the restore, other leases."""
    data, destination, restored = tmp_path / "data", tmp_path / "backups", tmp_path / "restored"
    refuse_shares(monkeypatch, bucket=1)
    with running_server(data) as server, scanner.sync.connect(server.endpoint) as client:
        table = client.create_table("orders", SCHEMA, primary_key=["id"], buckets=3)
        table.write(rows(0, 30, "before"))
        load = table.transaction("nightly", 7)
        load.stage(rows(0, 30, "after"), part=0, attempt=0)
        with pytest.raises(StoreFailed, match="is decided"):
            load.publish({0: 0})
        backup = weir_here("backup", destination, "--data", data, "-e", server.endpoint, "--json")
        leased = weir_here("leases", "acquire", "orders", "--state", "log", "-e", server.endpoint)
        asked = weir_here("sql", "SELECT DISTINCT text FROM orders", "-e", server.endpoint)
    half = "version 7 of transaction 'nightly' of table 'orders' is half applied: it is in buckets 0, 2, and not in 1"
    for done in (leased, asked):
        assert (done.returncode, done.stderr) == (0, f"{half}\n")
    assert backup.returncode == 0
    made = json.loads(backup.stdout)
    assert made["tables"][0]["half_applied"] == [
        {"table": "orders", "name": "nightly", "version": 7, "applied": [0, 2], "missing": [1]}
    ]
    said = f"backup {made['backup_id']}: {half}\n"
    assert backup.stderr == said
    again = weir_here("restore", destination / made["backup_id"], restored)
    assert (again.returncode, again.stderr) == (0, said)
    (listed,) = list_backups(destination)
    assert listed.backup is not None
    assert listed.backup.warnings == [half]
    assert "nightly" in weir_here("backup", destination, "--list").stdout
