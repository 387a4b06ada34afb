"""A stock grpcio client, in a process that has nothing of weir but stubs made from its .proto files, scans a table."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import scanner.sync
from tests.support.server import RunningServer, running_server

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.socket, pytest.mark.rocks, pytest.mark.slow]

CLIENT = Path(__file__).with_name("stock_scan_client.py")
ROWS = 20_000
BUCKETS = 2
EXHAUSTED = 1
ROW_MESSAGE_BYTES_MAX = 1_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with one table."""
    with running_server(tmp_path_factory.mktemp("data")) as running:
        with scanner.sync.connect(running.endpoint) as client:
            schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
            table = client.create_table("numbers", schema, primary_key=["id"], buckets=BUCKETS)
            ids = list(range(ROWS))
            table.write(pa.table({"id": ids, "text": [f"row {each}" for each in ids]}))
        yield running


def run(stubs: Path, server: RunningServer, credit: int, *buckets: int) -> subprocess.CompletedProcess[str]:
    """The stranger."""
    words = [str(stubs), server.endpoint, "numbers", *map(str, (credit, *buckets))]
    command = [sys.executable, str(CLIENT), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, cwd=stubs)


def our_digests(server: RunningServer) -> list[int | None]:
    """What our own client's scan of each bucket ends with."""
    with scanner.sync.connect(server.endpoint) as client:
        found = client.table("numbers").new_scan().execute()
        with found as batches:
            for _ in batches:
                pass
        return [bucket.digest for bucket in batches.statistics().buckets]


@pytest.mark.parametrize("credit", [0, 50_000], ids=["window-only", "credit"])
def test_a_stock_client_gets_every_row(stubs: Path, server: RunningServer, credit: int) -> None:
    """Both buckets together have each row once, in key order, with the digest that our client gets."""
    done = run(stubs, server, credit, *range(BUCKETS))
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]

    assert [each["status"] for each in found] == ["OK"] * BUCKETS
    assert all(each["ids"] == sorted(each["ids"]) for each in found)
    assert sorted(id_ for each in found for id_ in each["ids"]) == list(range(ROWS))
    assert [each["end"]["rows"] for each in found] == [len(each["ids"]) for each in found]
    assert [each["end"]["reason"] for each in found] == [EXHAUSTED] * BUCKETS
    assert [each["end"]["digest"] for each in found] == our_digests(server)
    assert max(each["overrun"] for each in found) <= ROW_MESSAGE_BYTES_MAX


def test_a_stock_client_reads_the_reason_of_a_refusal(stubs: Path, server: RunningServer) -> None:
    """An unknown bucket is NOT_FOUND, in one line that says what there is."""
    done = run(stubs, server, 0, 7)

    assert done.returncode != 0
    assert "NOT_FOUND" in done.stderr
    assert "table 'numbers' has no bucket 7; it has 0 to 1" in done.stderr.replace("\\'", "'")
