"""Descriptors: the limit is raised at the start, and sixty tables fit into 256 of them."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import scanner.sync
from scanner.cli.descriptors import buckets_within, files_within, raise_files_limit
from scanner.errors import TooManyFiles, TooManyTables
from scanner.server.config import ScannerConfig
from scanner.server.services.point_reads import GetService
from scanner.server.tables.bucket import ServedBucket
from scanner.server.tables.catalog import Catalog, ServedTable
from tests.support.server import running_server

if TYPE_CHECKING:
    from scanner.server.server import Server

pytestmark = [pytest.mark.socket, pytest.mark.rocks]

_TABLES = 60
_SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])


@pytest.mark.slow
def test_sixty_tables_with_256_descriptors(tmp_path: Path) -> None:
    """A server process that may open few files serves, writes and scans more tables than fit, and says its limit."""
    command = [sys.executable, "-m", "scanner.cli", "serve", "--port", "0", "--data", str(tmp_path / "data")]
    limit = ["prlimit", "--nofile=64:256"]  # It raises the first to the second.
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen([*limit, *command], stdout=subprocess.PIPE, stderr=log, text=True)
    assert server.stdout is not None
    try:
        endpoint = server.stdout.readline().split()[-1]
        with scanner.sync.connect(endpoint) as client:
            for number in range(_TABLES):
                table = client.create_table(f"t{number}", _SCHEMA, primary_key=["id"], buckets=1)
                table.write(pa.table({"id": [number]}, schema=_SCHEMA))
            for number in range(_TABLES):
                client.table(f"t{number}").write(pa.table({"id": [number + 1000]}, schema=_SCHEMA))
                rows = client.table(f"t{number}").new_scan().to_arrow()["id"].to_pylist()
                assert sorted(rows) == [number, number + 1000]
    finally:
        server.terminate()
        server.wait()
        server.stdout.close()
    said = (tmp_path / "log").read_text()
    assert "256 files may be open at once" in said
    assert "Too many open files" not in said


def test_the_limit_is_raised_to_what_is_allowed() -> None:
    """The soft limit becomes the hard one, and the number of buckets follows from it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard // 2, hard))
        assert raise_files_limit() == hard
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (buckets_within(256), buckets_within(1 << 20)) == (9, 2048)
    assert (buckets_within(1), files_within(1), files_within(1 << 20)) == (1, 16, 256)


def test_more_buckets_in_use_than_may_be_open(tmp_path: Path) -> None:
    """One that is idle is closed for another; where none is, the error names descriptors, and passes."""
    config = ScannerConfig(buckets_open_max=1, snapshot_linger_s=0)
    with running_server(tmp_path, config) as running, scanner.sync.connect(running.endpoint) as client:
        tables = [client.create_table(name, _SCHEMA, primary_key=["id"], buckets=1) for name in ("a", "b")]
        for table in tables:
            table.write(pa.table({"id": list(range(5000))}, schema=_SCHEMA))
        with tables[0].new_scan().with_credit(1024).with_retries(0).execute() as batches:
            next(batches)
            with pytest.raises(TooManyFiles, match="ulimit -n"):
                tables[1].new_scan().with_retries(0).to_arrow()
        assert len(tables[1].new_scan().to_arrow()) == 5000
        assert len(tables[0].new_scan().to_arrow()) == 5000


def test_an_idle_bucket_closes_its_files_and_keeps_what_it_promised(tmp_path: Path) -> None:
    """Its leases and tokens are as good as before, and no history begins with the next write."""
    config = ScannerConfig(bucket_idle_close_s=0.05, snapshot_linger_s=0)
    with running_server(tmp_path, config) as running, scanner.sync.connect(running.endpoint) as client:
        table = client.create_table("t", _SCHEMA, primary_key=["id"], buckets=1)
        table.write(pa.table({"id": [1]}, schema=_SCHEMA))
        with client.acquire_lease("t") as lease:
            running.wait_until(lambda server: not any(bucket.is_open for bucket in _buckets(server)))
            table.write(pa.table({"id": [2]}, schema=_SCHEMA))
            assert running.ask(lambda server: len(_buckets(server)[0].storage.lineage.histories)) == 1
            assert table.new_scan().with_lease(lease).to_arrow()["id"].to_pylist() == [1]
            assert sorted(table.new_scan().to_arrow()["id"].to_pylist()) == [1, 2]


def test_a_point_read_of_more_buckets_than_may_be_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has one open at a time. That one cannot make room for another, also while it is written to."""
    read_by, refused = [], []
    make_room, give_way, look_up = Catalog._make_room, ServedBucket.give_way, GetService._look_up

    async def make_room_of_written(catalog: Catalog) -> None:
        for _, _, bucket in catalog.open_buckets():
            if bucket.is_open:
                bucket.submit(())
        await make_room(catalog)

    async def noted_give_way(bucket: ServedBucket) -> None:
        read_by.append(bucket.point_reads)
        await give_way(bucket)

    async def look_up_beside_others(service: GetService, part: Any, table: ServedTable, *rest: Any) -> None:
        with pytest.raises(TooManyFiles, match="ulimit -n"):
            await service._catalog.bucket(table, 1 - part.index)
        refused.append(part.index)
        await look_up(service, part, table, *rest)

    config = ScannerConfig(buckets_open_max=1, snapshot_linger_s=0)
    with running_server(tmp_path, config) as running, scanner.sync.connect(running.endpoint) as client:
        table = client.create_table("t", _SCHEMA, primary_key=["id"], buckets=2)
        table.write(pa.table({"id": list(range(100))}, schema=_SCHEMA))
        monkeypatch.setattr(Catalog, "_make_room", make_room_of_written)
        monkeypatch.setattr(ServedBucket, "give_way", noted_give_way)
        monkeypatch.setattr(GetService, "_look_up", look_up_beside_others)
        with scanner.sync.connect(running.endpoint, retries=0) as once:
            assert once.table("t").get([(number,) for number in range(100)]).rows.num_rows == 100
        assert refused == [0, 1]
        assert not any(read_by)
        assert not any(running.ask(lambda server: [bucket.point_reads for bucket in _buckets(server)]))


def _buckets(server: Server) -> list[ServedBucket]:
    return [bucket for _, _, bucket in server._services.catalog.open_buckets()]


def test_a_server_has_so_many_tables_and_buckets(tmp_path: Path) -> None:
    """One more than the config allows is refused, and says which limit it is."""
    config = ScannerConfig(tables_max=2, buckets_max=5)
    with running_server(tmp_path, config) as running, scanner.sync.connect(running.endpoint) as client:
        client.create_table("a", _SCHEMA, primary_key=["id"], buckets=3)
        with pytest.raises(TooManyTables, match="buckets_max"):
            client.create_table("b", _SCHEMA, primary_key=["id"], buckets=3)
        client.create_table("b", _SCHEMA, primary_key=["id"], buckets=2)
        with pytest.raises(TooManyTables, match="tables_max"):
            client.create_table("c", _SCHEMA, primary_key=["id"], buckets=1)
        client.drop_table("a")
        client.create_table("c", _SCHEMA, primary_key=["id"], buckets=1)


@pytest.mark.parametrize("rows_at_once", [1, 1000])
def test_a_write_to_more_buckets_than_may_be_open(tmp_path: Path, rows_at_once: int) -> None:
    """Its commits make room for each other: all of it is written, and no more buckets are open than may be."""
    config = ScannerConfig(buckets_open_max=3, snapshot_linger_s=0)
    with running_server(tmp_path, config) as running, scanner.sync.connect(running.endpoint) as client:
        table = client.create_table("t", _SCHEMA, primary_key=["id"], buckets=16)
        for start in range(0, 2 * rows_at_once, rows_at_once):
            result = table.write(pa.table({"id": list(range(start, start + rows_at_once))}, schema=_SCHEMA))
            assert result.rows == rows_at_once
            assert running.ask(lambda server: sum(bucket.is_open for bucket in _buckets(server))) <= 3
        assert sum(each.end_offset for each in table.offsets()) == 2 * rows_at_once
