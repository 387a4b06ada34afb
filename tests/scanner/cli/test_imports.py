"""A real `weir serve` imports nothing once it listens: an import would hold up every stream, heartbeat and PING."""

from __future__ import annotations

import datetime
import decimal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pyarrow as pa
import pytest

import scanner
import scanner.sync
from scanner import col

pytestmark = [pytest.mark.socket, pytest.mark.rocks]

TIMEOUT_S = 100
NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
SCHEMA = pa.schema(
    [
        ("k", pa.int64()),
        ("s", pa.string()),
        ("at", pa.timestamp("us", tz="Europe/Berlin")),
        ("day", pa.date32()),
        ("price", pa.decimal128(10, 2)),
        ("f", pa.float64()),
        ("b", pa.binary()),
        ("yes", pa.bool_()),
        ("naive", pa.timestamp("ms")),
    ]
)
ROW = ("x", NOW, NOW.date(), decimal.Decimal("1.50"), 1.5, b"b", True, NOW.replace(tzinfo=None))
ROWS = pa.Table.from_pylist(
    [dict(zip(SCHEMA.names, (key, *ROW), strict=True)) for key in range(2_000)], schema=SCHEMA
)


def use(endpoint: str) -> None:
    """Do everything that a server can do, for the first time."""
    with scanner.sync.connect(endpoint) as client:
        table = client.create_table("t", SCHEMA, ["k", "s", "at"], buckets=2)
        table.write(ROWS)
        table.delete([(1, "x", NOW)])
        for mode in ("session", "token", "cursor", "asof"):
            table.new_scan().with_mode(mode).with_page_bytes(20_000).to_arrow()
        for name, value in zip(SCHEMA.names[1:], ROW, strict=True):
            assert table.new_scan().where(col(name) == value).to_arrow().num_rows == 1_999
        offsets = {each.bucket: each.end_offset // 2 for each in table.offsets()}
        assert table.new_scan().as_of(offsets).to_arrow().num_rows < 1_999
        client.checkpoint("t")
        with client.acquire_lease("t") as lease:
            table.new_scan().with_lease(lease).to_arrow()
        for source, mode in (("log", "push"), ("hybrid", "push"), ("log", "fetch")):
            changes = table.new_scan().with_source(source).with_mode(mode).stop_at("end")
            assert changes.to_arrow().num_rows >= 1_999
        with table.new_scan().with_source("log").stop_at("end").in_group("g").execute() as batches:
            for _ in batches:
                assert batches.commit() == ()
        assert len(table.groups()) == 1
        client.compact_log("t")
        client.list_streams()
        client.list_snapshots()
        with pytest.raises(scanner.TableNotFound):
            client.table("nothing")
        with pytest.raises(scanner.SchemaMismatch):
            table.write(ROWS.select(["k", "s"]))
        client.drop_table("t")
        client.drain()


def test_nothing_is_imported_behind_listening(tmp_path: Path) -> None:
    """No first scan, write, page, lease, checkpoint, filter, error, scrape or drain imports a module."""
    command = [sys.executable, "-X", "importtime", "-m", "scanner.cli", "serve", "--port", "0"]
    command += ["--metrics-port", "0", "--log-level", "info", "--data", str(tmp_path / "data")]
    told = tmp_path / "stderr"
    with (
        told.open("wb") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            endpoint = process.stdout.readline().split()[-1]
            before = told.read_text()
            url = next(line for line in before.splitlines() if "metrics at" in line).split()[-1]
            with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
                assert answer.status == 200
            use(endpoint)
            assert process.wait(TIMEOUT_S) == 0
        finally:
            process.kill()
    after = told.read_text()[len(before) :]
    serving = after.partition("weir: ending")[0]
    assert [line for line in serving.splitlines() if line.startswith("import time:")] == []
    assert "pandas.core" not in before
    assert "scan ended" in serving
