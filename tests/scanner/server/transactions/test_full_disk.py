"""Transactions on a full disk: nothing is decided that has no room, and what is decided is applied when there is."""

from __future__ import annotations

from pathlib import Path

import pytest

import scanner.sync
from scanner.errors import DiskFull
from scanner.server.config import ScannerConfig
from scanner.storage.rocksdb.config import StorageConfig
from tests.support.server import running_server
from tests.support.small_disk import small_disk
from tests.support.transactions import BEFORE, SCHEMA, rows

pytestmark = [pytest.mark.socket, pytest.mark.rocks]

MIB = 1024 * 1024
STORAGE = StorageConfig(bucket_write_buffer_bytes=256 * 1024, write_buffers_bytes=MIB)
CONFIG = ScannerConfig(disk_check_interval_s=0.02, transaction_piece_bytes=20_000)
NEW: dict[int, str | None] = {number: f"{number:x}" * 200 for number in range(1000)}


def test_nothing_is_decided_without_room(tmp_path: Path) -> None:
    """Neither staged nor published; what was staged before is published when there is room again."""
    with small_disk(tmp_path / "disk", 64 * MIB) as disk:
        with running_server(disk.path / "data", CONFIG, storage_config=STORAGE) as running:
            with scanner.sync.connect(running.endpoint, retries=0) as client:
                table = client.create_table("t", SCHEMA, ["id"], 2)
                table.write(rows(BEFORE))
                version = table.transaction("load", 1)
                version.stage(rows(NEW), part=0, attempt=0)
                disk.fill()
                for act in (
                    lambda: version.stage(rows(NEW), part=1, attempt=0),
                    lambda: version.publish({0: 0}),
                ):
                    with pytest.raises(DiskFull):
                        act()
                assert [each.decided_version for each in table.transactions()] == [None]
                assert table.new_scan().to_arrow().num_rows == len(BEFORE)
                disk.free()
                running.wait_until(lambda server: not server.statistics().disk_read_only)
                assert version.publish({0: 0}).decided
                assert table.new_scan().to_arrow().num_rows == len(NEW)


def test_what_is_decided_is_applied_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills after the decision, in the middle of a share: it is undone, and completed by itself later."""
    from scanner.storage.rocksdb.bucket import RocksBucket

    real, pieces = RocksBucket.commit_prepared, [0]
    with small_disk(tmp_path / "disk", 64 * MIB) as disk:

        def commit(self: RocksBucket, *args: object, **kwargs: object) -> None:
            pieces[0] += bool(kwargs.get("unfinished"))
            if pieces[0] == 4:
                disk.fill()
            real(self, *args, **kwargs)  # type: ignore[arg-type]

        monkeypatch.setattr(RocksBucket, "commit_prepared", commit)
        with running_server(disk.path / "data", CONFIG, storage_config=STORAGE) as running:
            with scanner.sync.connect(running.endpoint, retries=0) as client:
                table = client.create_table("t", SCHEMA, ["id"], 2)
                version = table.transaction("load", 1)
                version.stage(rows(NEW), part=0, attempt=0)
                with pytest.raises(DiskFull):
                    version.publish({0: 0})
                assert [(each.decided_version, each.applied) for each in table.transactions()] == [(1, False)]
                disk.free()
                running.wait_until(lambda server: not server.statistics().transactions_unapplied)
                assert table.new_scan().to_arrow().num_rows == len(NEW)
                assert sum(each.end_offset for each in table.offsets()) == len(NEW)
