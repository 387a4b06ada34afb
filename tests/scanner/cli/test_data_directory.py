"""A data directory as its operators meet it: copied back, damaged, moved, and looked at by others."""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import scanner.sync
from scanner.cli.serve import _warn_of_owner
from scanner.errors import DataCorrupted, ScannerError, StoreFailed
from scanner.storage.rocksdb.store import RocksStore
from tests.support.processes import serving
from tests.support.server import running_server

if TYPE_CHECKING:
    from tests.scanner.cli.conftest import Weir

pytestmark = [pytest.mark.socket, pytest.mark.rocks, pytest.mark.slow]

ROWS = pa.table({"id": [1, 2, 3], "text": ["grep me, if you can"] * 3})


@pytest.fixture
def lax_umask() -> Iterator[None]:
    """A umask that lets everybody read, as most systems have it."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def create(endpoint: str, name: str) -> None:
    """Make a table of three rows in two buckets."""
    with scanner.sync.connect(endpoint) as client:
        client.create_table(name, ROWS.schema, primary_key=["id"], buckets=2).write(ROWS)


def rows_of(endpoint: str, name: str) -> int:
    """How many rows a scan gives."""
    with scanner.sync.connect(endpoint) as client:
        return int(client.table(name).new_scan().to_arrow().num_rows)


def refusal(data: Path, weir_here: Weir) -> str:
    """The one line with which `weir serve` refuses a data directory."""
    served = weir_here("serve", "--data", data, "--port", 0)
    assert (served.returncode, served.stdout, served.stderr.count("\n")) == (1, "", 1), served
    return served.stderr


def test_an_older_catalog_loses_no_table(tmp_path: Path, weir_here: Weir) -> None:
    """A catalog that is restored from before a table: the start says so in one line, and how to get it back."""
    data = tmp_path / "our data"
    RocksStore.open(data).close()  # By this process, where table ids begin with 0.
    with serving(data) as (_, endpoint):
        create(endpoint, "one")
        older = (data / "catalog.json").read_bytes()
        create(endpoint, "two")
    (data / "catalog.json").write_bytes(older)
    (data / "tables" / "000000.bak").mkdir()
    (data / "tables" / "stray").touch()
    with serving(data) as (server, endpoint):
        assert rows_of(endpoint, "one") == 3
        create(endpoint, "three")
        listed = weir_here("adopt", "--data", data)
        assert (listed.returncode, "in use by process" in listed.stderr) == (1, True)
        server.terminate()
        assert server.stderr is not None
        warnings = [line for line in server.stderr if "WARNING" in line]
    assert sorted(path.name for path in (data / "tables").iterdir()) == [
        "000000",
        "000000.bak",
        "000001",
        "000002",
        "stray",
    ]
    assert len(warnings) == 3
    assert f"weir adopt --data '{data}' 000001" in warnings[1]
    assert "two" in weir_here("adopt", "--data", data).stdout
    adopted = weir_here("adopt", "--data", data, "000001", "--as", "deux")
    assert (adopted.returncode, adopted.stdout) == (0, "the catalog names table deux in 000001\n")
    with running_server(data) as server_here:
        assert [rows_of(server_here.endpoint, name) for name in ("one", "deux", "three")] == [3, 3, 3]


@pytest.mark.parametrize("damage", ["truncated", "digit", "gone", "no FORMAT"])
def test_a_damaged_catalog_is_made_anew(tmp_path: Path, weir_here: Weir, damage: str) -> None:
    """The start refuses it in one line, and the command of that line brings every table back."""
    data = tmp_path / "our data"
    with running_server(data) as server:
        create(server.endpoint, "one")
        create(server.endpoint, "two")
    path = data / ("FORMAT" if damage == "no FORMAT" else "catalog.json")
    content = path.read_bytes()
    changed = {"truncated": content[:100], "digit": content.replace(b'"buckets": 2', b'"buckets": 1')}
    path.unlink()
    if damage in changed:
        path.write_bytes(changed[damage])
    line = refusal(data, weir_here)
    assert str(path) in line
    assert f"weir adopt --data '{data}' --rebuild" in line
    rebuilt = weir_here("adopt", "--data", data, "--rebuild")
    assert (rebuilt.returncode, rebuilt.stdout) == (0, "the catalog names 2 tables: one, two\n")
    with running_server(data) as server:
        assert [rows_of(server.endpoint, name) for name in ("one", "two")] == [3, 3]
        create(server.endpoint, "three")
    assert (data / "tables" / "000002").is_dir()


def test_one_digit_of_the_leases_is_no_other_state(tmp_path: Path, weir_here: Weir) -> None:
    """Whichever digit is changed in a document, the start says which file is damaged and what to do."""
    data = tmp_path / "data"
    with running_server(data) as server:
        create(server.endpoint, "one")
        with scanner.sync.connect(server.endpoint) as client:
            client.checkpoint("one")
            client.acquire_lease("one", lease_id="kept", ttl_s=600)
    for name, advice in (
        ("leases.json", "start without leases"),
        ("token_keys.json", "resume token invalid"),
    ):
        path = data / "documents" / name
        content = path.read_bytes()
        digits = [at for at, byte in enumerate(content) if chr(byte).isdigit()]
        assert len(digits) > 20
        for at in (digits[0], digits[len(digits) // 2], digits[-1]):
            other = b"%d" % ((content[at] - 47) % 10)
            path.write_bytes(content[:at] + other + content[at + 1 :])
            with pytest.raises(DataCorrupted, match=f"{path} is damaged.*{advice}") as caught:
                with running_server(data):
                    pass
            assert "\n" not in str(caught.value)
        path.write_bytes(content)
    path = data / "documents" / "leases.json"
    path.write_bytes(path.read_bytes().replace(b'"log_offset": ', b'"log_offset": 1'))
    assert f"{path} is damaged: its checksum is wrong; restore leases.json from a copy" in refusal(
        data, weir_here
    )


def test_rows_are_for_their_user_only(lax_umask: None, weir_here: Weir) -> None:
    """Whatever the umask is, every directory is 0700 and every file 0600, RocksDB's own and later ones included."""
    with tempfile.TemporaryDirectory() as outside:
        os.chmod(outside, 0o755)
        data = Path(outside) / "data"
        with serving(data) as (_, endpoint):
            create(endpoint, "one")
            assert weir_here("checkpoint", "one", "-e", endpoint).returncode == 0
            paths = [data, *data.rglob("*")]
            modes = {stat.S_IMODE(path.stat().st_mode) & ~0o700 for path in paths}
            assert modes == {0}
            assert {stat.S_IMODE(path.stat().st_mode) for path in paths if path.is_dir()} == {0o700}
            assert len([path for path in paths if path.suffix in {".sst", ".log"}]) >= 4
            if os.geteuid() == 0:
                # What the modes say is what another user gets.
                looked = subprocess.run(
                    ["ls", str(data)],
                    user=65534,
                    group=65534,
                    extra_groups=[],
                    capture_output=True,
                    check=False,
                )
                assert looked.returncode != 0
                assert looked.stdout == b""


def test_a_lax_directory_is_tightened(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A data directory that others could read is theirs no longer once it was opened, which one line says."""
    data = tmp_path / "data"
    with running_server(data) as server:
        create(server.endpoint, "one")
        with scanner.sync.connect(server.endpoint) as client:
            client.make_images("one")
    for path in (data, *data.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    with running_server(data):
        pass
    assert [stat.S_IMODE(path.stat().st_mode) & 0o077 for path in data.glob("tables/*/*")] == [0, 0, 0]
    images = [data / "images", *data.glob("images/*"), *data.glob("images/*/*.image")]
    assert [stat.S_IMODE(path.stat().st_mode) & 0o077 for path in images] == [0, 0, 0, 0]
    assert stat.S_IMODE((data / "catalog.json").stat().st_mode) == 0o600
    assert len([line for line in caplog.messages if "was open to others" in line]) == 1


def test_a_directory_whose_file_system_keeps_no_modes_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where a change of modes has no effect, as on exFAT, nothing says that others may read rows no longer."""
    tmp_path.chmod(0o755)
    monkeypatch.setattr(os, "chmod", lambda path, mode: None)
    with running_server(tmp_path):
        pass
    (told,) = caplog.messages
    assert told.startswith(
        f"others than the server's user may read rows in {tmp_path}: its file system keeps no"
    )


def test_a_directory_of_another_user_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What root's server makes there, that user's cannot open. Of one's own directory, or of none, nothing is said."""
    _warn_of_owner(tmp_path)
    _warn_of_owner(tmp_path / "none")
    assert not caplog.messages
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    _warn_of_owner(tmp_path)
    (told,) = caplog.messages
    assert told.startswith(f"{tmp_path} belongs to user {owner}, and this server runs as user {owner + 1}: ")


def test_a_directory_that_is_moved_away_takes_no_new_tables(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is made where the directory was, or in a copy that took its place; the line says what happened."""
    data, moved = tmp_path / "data", tmp_path / "moved"
    with running_server(data) as server, scanner.sync.connect(server.endpoint) as client:
        create(server.endpoint, "one")
        data.rename(moved)
        for replaced in (False, True):
            if replaced:
                data.mkdir()
            acts = (
                lambda: client.create_table("late", ROWS.schema, primary_key=["id"]),
                lambda: client.acquire_lease("one"),
                lambda: client.checkpoint("one"),
            )
            for act in acts:
                caplog.clear()
                with pytest.raises(StoreFailed, match="the server's log has the details") as caught:
                    act()
                assert "\n" not in str(caught.value)
                # Clients are told no path of the server.
                assert "was moved or replaced" in caplog.text
            with pytest.raises(StoreFailed, match="the data is not where it was"):
                client.make_images("one")
        assert list(data.iterdir()) == []
    with running_server(moved) as server:
        with pytest.raises(ScannerError, match="no table 'late'"):
            rows_of(server.endpoint, "late")
