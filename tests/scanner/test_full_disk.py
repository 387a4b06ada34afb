"""A full disk: writes are refused, scans are served, and writes are taken again by themselves when there is room."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

import scanner.sync
from scanner.errors import DiskFull, StoreFailed
from scanner.server.config import ScannerConfig
from scanner.storage.rocksdb.bucket import RocksBucket
from scanner.storage.rocksdb.config import StorageConfig
from tests.support.file_limit import file_size_limit
from tests.support.nightly import everyday
from tests.support.server import RunningServer, running_server
from tests.support.small_disk import SmallDisk, small_disk

pytestmark = [pytest.mark.socket, pytest.mark.rocks]

_MIB = 1024 * 1024
_DISK_BYTES = 64 * _MIB
_WRITERS = 2
_ROWS = 20
_SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
_CONFIG = ScannerConfig(disk_check_interval_s=0.02)
_STORAGE = StorageConfig(bucket_write_buffer_bytes=256 * 1024, write_buffers_bytes=_MIB)
_NO_RESERVE = StorageConfig(
    bucket_write_buffer_bytes=256 * 1024, write_buffers_bytes=_MIB, disk_reserve_bytes=0
)


def _rows(start: int, count: int = _ROWS, size: int = 2000) -> pa.Table:
    ids = range(start, start + count)
    return pa.table({"id": list(ids), "text": [f"{each:x}" * (size // 8) for each in ids]}, schema=_SCHEMA)


def _ids(client: scanner.sync.Client, name: str = "t") -> set[int]:
    with client.table(name).new_scan().select("id").execute() as batches:
        return {each for batch in batches for each in batch["id"].to_pylist()}


def _takes_writes(running: RunningServer) -> None:
    running.wait_until(lambda server: not server.statistics().disk_read_only)


class _Writer:
    """Writes rows of its own until it is refused, and remembers which were acknowledged."""

    def __init__(self, number: int) -> None:
        self._next = number * 10**9
        self.acknowledged: set[int] = set()
        self.tried: set[int] = set()
        self.refusals: list[StoreFailed] = []

    def write_until(self, endpoint: str, refused: threading.Event) -> None:
        """Write until a write is refused, by whatever is wrong with the disk."""
        with scanner.sync.connect(endpoint) as client:
            while True:
                ids = set(range(self._next, self._next + _ROWS))
                self.tried |= ids
                try:
                    client.table("t").write(_rows(self._next))
                except StoreFailed as error:
                    self.refusals.append(error)
                    refused.set()
                    return
                finally:
                    self._next += _ROWS
                self.acknowledged |= ids


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("storage", [_STORAGE, _NO_RESERVE], ids=["reserve", "no reserve"])
def test_a_disk_filled_and_freed_again_and_again(
    tmp_path: Path, storage: StorageConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writers fill the disk together with somebody else: every acknowledged row is there, scans go on, no restart."""
    # A bucket whose write has failed is tried again after a second, and later and later: the test would only wait.
    monkeypatch.setattr("scanner.server.tables.bucket._RECOVER_DELAY_S_MIN", 0.05)
    with small_disk(tmp_path / "disk", _DISK_BYTES) as disk:
        if storage is _NO_RESERVE and not disk.is_real:
            return  # Nothing would ever refuse.
        with running_server(disk.path / "data", _CONFIG, storage_config=storage) as running:
            with scanner.sync.connect(running.endpoint) as client:
                client.create_table("t", _SCHEMA, primary_key=["id"], buckets=2)
                writers = [_Writer(number) for number in range(_WRITERS)]
                for cycle in range(everyday(6, nightly=20)):
                    _fill_under_writers(disk, running, writers)
                    found = _ids(client)
                    for writer in writers:
                        own = {each for each in found if each in writer.tried}
                        assert writer.acknowledged <= own, cycle
                    assert found <= set().union(*(writer.tried for writer in writers))
                    disk.free()
                    _delete(running, client, found)
                    assert _ids(client) == set()
                    for writer in writers:
                        writer.acknowledged.clear()
                kinds = {type(refusal) for writer in writers for refusal in writer.refusals}
                assert kinds <= {DiskFull, StoreFailed}
                # Without a reserve RocksDB sees the writes, and nobody knows what became of them.
                assert (StoreFailed if storage is _NO_RESERVE else DiskFull) in kinds


def _delete(running: RunningServer, client: scanner.sync.Client, ids: set[int]) -> None:
    """Delete, again if it is refused: what failed while the disk was full may be found out by the first write after."""
    while True:
        _takes_writes(running)
        with suppress(StoreFailed):
            client.table("t").delete([(each,) for each in sorted(ids)])
            return


def _fill_under_writers(disk: SmallDisk, running: RunningServer, writers: list[_Writer]) -> None:
    refused = threading.Event()
    with ThreadPoolExecutor(_WRITERS) as threads:
        ends = [threads.submit(writer.write_until, running.endpoint, refused) for writer in writers]
        while not all(end.done() for end in ends):
            disk.fill()
        for end in ends:
            end.result()


def test_a_failed_write_ends_no_scan_and_the_bucket_recovers(tmp_path: Path) -> None:
    """A file that may not grow: the scan that runs goes on in its state, new ones are served, then writes are taken."""
    with running_server(tmp_path, _CONFIG, storage_config=_NO_RESERVE) as running:
        with scanner.sync.connect(running.endpoint) as client:
            table = client.create_table("t", _SCHEMA, primary_key=["id"], buckets=1)
            table.write(_rows(0, 4000, 400))
            with table.new_scan().select("id").with_credit(8192).execute() as batches:
                seen = set(next(batches)["id"].to_pylist())
                with file_size_limit(64 * 1024):
                    with pytest.raises(StoreFailed):
                        table.write(_rows(10_000, 400))
                    assert set(range(4000)) <= _ids(client)
                    with pytest.raises(StoreFailed):
                        table.write(_rows(10_000, 400))
                _takes_writes(running)
                table.write(_rows(20_000, 10))
                for batch in batches:
                    seen |= set(batch["id"].to_pylist())
            assert seen == set(range(4000))
            assert set(range(4000)) | set(range(20_000, 20_010)) <= _ids(client)


def test_images_make_room_for_rows(tmp_path: Path) -> None:
    """Writes are refused for lack of room: the image goes, writes are taken again, and no row is missing."""
    with (
        small_disk(tmp_path / "disk", _DISK_BYTES) as disk,
        # RocksDB's buffers are as large as they are by default, so no files come and go.
        running_server(disk.path / "data", _CONFIG) as running,
        scanner.sync.connect(running.endpoint) as client,
    ):
        table = client.create_table("t", _SCHEMA, primary_key=["id"], buckets=1)
        for start in range(0, 4000, 500):
            table.write(_rows(start, 500, size=8000))
        (made,) = client.make_images("t")
        assert made.disk_bytes >= 8 * _MIB
        # So much and no more: not what the image gives back.
        (disk.path / "others").write_bytes(bytes(disk.free_bytes - _MIB))
        running.wait_until(lambda server: not server.statistics().images)
        _takes_writes(running)
        table.write(_rows(4000))
        assert _ids(client) == set(range(4000 + _ROWS))
        (state,) = client.image_states("t")
        assert state.image is None


def test_an_idle_table_outlives_failed_checkpoints(tmp_path: Path) -> None:
    """Two checkpoints that fail for want of room leave an idle table readable, and no links behind."""
    with running_server(tmp_path, _CONFIG, storage_config=_NO_RESERVE) as running:
        with scanner.sync.connect(running.endpoint) as client:
            table = client.create_table("t", _SCHEMA, primary_key=["id"], buckets=1)
            table.write(_rows(0, 100))
            with file_size_limit(300):
                for _ in range(2):
                    with pytest.raises(StoreFailed):
                        client.checkpoint("t")
                assert _ids(client) == set(range(100))
            assert not [each for each in tmp_path.glob("checkpoints/*/*/*") if each.is_dir()]
            _takes_writes(running)
            table.write(_rows(100, 100))
            assert _ids(client) == set(range(200))
            client.checkpoint("t")


def test_a_write_that_has_room_in_some_buckets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error does not say that nothing was written where some buckets have their rows, and does not name files."""
    require_room = RocksBucket._require_room

    def has_room(bucket: RocksBucket, wanted_bytes: int) -> None:
        if bucket._path.name == "0001":
            raise DiskFull(f"the disk of {bucket._path} is full: nothing was written")
        require_room(bucket, wanted_bytes)

    with running_server(tmp_path) as running, scanner.sync.connect(running.endpoint) as client:
        table = client.create_table("t", _SCHEMA, primary_key=["id"], buckets=3)
        monkeypatch.setattr(RocksBucket, "_require_room", has_room)
        with pytest.raises(DiskFull) as refused:
            table.write(_rows(0, 100))
        assert "of the 3 buckets of this request, 2 have their rows" in refused.value.message
        assert 0 < len(_ids(client)) < 100
        for wrong in ("nothing was written", str(tmp_path)):
            assert wrong not in refused.value.message


def test_a_drop_works_on_a_full_disk(tmp_path: Path) -> None:
    """The ballast makes room for the catalog; it is made again when there is room."""
    with small_disk(tmp_path / "disk", _DISK_BYTES) as disk:
        data = disk.path / "data"
        with running_server(data, _CONFIG, storage_config=_STORAGE) as running:
            with scanner.sync.connect(running.endpoint) as client:
                for name in ("t", "other"):
                    client.create_table(name, _SCHEMA, primary_key=["id"], buckets=1).write(_rows(0, 100))
                assert (data / "BALLAST").stat().st_size > 0
                disk.fill()
                with pytest.raises(DiskFull, match="disk is full"):
                    client.table("other").write(_rows(100, 100))
                client.drop_table("t")
                assert [each.name for each in client.tables()] == ["other"]
                assert _ids(client, "other") == set(range(100))
                disk.free()
                _takes_writes(running)
                running.wait_until(lambda _: (data / "BALLAST").exists())
                client.table("other").write(_rows(100, 100))


def test_a_server_starts_and_serves_on_a_full_disk(tmp_path: Path) -> None:
    """Its buckets are opened for reading only, and take writes once there is room."""
    with small_disk(tmp_path / "disk", _DISK_BYTES) as disk:
        with running_server(disk.path / "data", _CONFIG, storage_config=_STORAGE) as running:
            with scanner.sync.connect(running.endpoint) as client:
                client.create_table("t", _SCHEMA, primary_key=["id"], buckets=2).write(_rows(0, 100))
            disk.fill()
        with running_server(disk.path / "data", _CONFIG, storage_config=_STORAGE) as running:
            disk.fill()
            with scanner.sync.connect(running.endpoint) as client:
                assert _ids(client) == set(range(100))
                with pytest.raises(DiskFull):
                    client.table("t").write(_rows(100, 100))
                disk.free()
                _takes_writes(running)
                client.table("t").write(_rows(100, 100))
                assert _ids(client) == set(range(200))


def test_a_refused_drop_leaves_the_table_usable(tmp_path: Path) -> None:
    """The disk refuses the new catalog: the table is there, with its rows, and takes writes."""
    with running_server(tmp_path, _CONFIG, storage_config=_NO_RESERVE) as running:
        with scanner.sync.connect(running.endpoint) as client:
            table = client.create_table("t", _SCHEMA, primary_key=["id"], buckets=1)
            table.write(_rows(0, 100))
            with file_size_limit(16), pytest.raises(StoreFailed):
                client.drop_table("t")
            assert _ids(client) == set(range(100))
            table.write(_rows(100, 100))
            assert _ids(client) == set(range(200))


def test_metrics_and_one_log_line_say_when_it_begins_and_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """However many writes are refused, the log has a line for the beginning and one for the end."""
    with small_disk(tmp_path / "disk", _DISK_BYTES) as disk:
        with running_server(disk.path / "data", _CONFIG, storage_config=_STORAGE) as running:
            with scanner.sync.connect(running.endpoint) as client:
                table = client.create_table("t", _SCHEMA, primary_key=["id"], buckets=1)
                disk.fill(_MIB)
                for _ in range(5):
                    with pytest.raises(DiskFull):
                        table.write(_rows(0))
                running.wait_until(lambda server: server.statistics().disk_read_only)
                running.wait_until(lambda server: (server.statistics().disk_free_bytes or 0) <= _MIB)
                disk.free()
                _takes_writes(running)
                table.write(_rows(0))
    said = [each.getMessage() for each in caplog.records if each.name == "scanner.storage.rocksdb.space"]
    assert [("is full" in each, "has room again" in each) for each in said] == [(True, False), (False, True)]
