"""Other people's clients tail a table, straight and through proxies: many commits, each of one row.

Budgets and numbers of messages are a tenth (`scaled_budgets`), but for HYPOTHESIS_PROFILE=nightly.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import scanner.sync
from scanner.proto.weir.v1 import scanner_pb2 as pb
from tests.interop.conftest import SCALE
from tests.interop.test_small_messages import go

if TYPE_CHECKING:
    from tests.interop.blobs import Served

pytestmark = [
    pytest.mark.socket,
    pytest.mark.rocks,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("scaled_budgets"),
]

CLIENT = Path(__file__).with_name("stock_tail_client.py")
COMMITS = 6_000 // SCALE
CREDIT = 4_000
HANG_S = 500.0
"""More than the slowest machine needs."""
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])


def commit(table: scanner.sync.Table, ids: range) -> None:
    """Write rows, each in a commit of its own."""
    with table.open_writer() as writer:
        for id_ in ids:
            writer.write(pa.table({"id": [id_]}, SCHEMA))


@pytest.fixture(scope="module")
def commits(blobs: Served) -> str:
    """A table of one bucket, with a changelog of one-row commits; its name."""
    with scanner.sync.connect(blobs.endpoint) as client:
        table = client.create_table("commits", SCHEMA, primary_key=["id"], buckets=1, exist_ok=True)
        (log,) = table.offsets()
        commit(table, range(log.end_offset, COMMITS))
    return table.name


def test_grpc_go_tails_and_resumes(endpoint: str, commits: str) -> None:
    """Each change once, in order, also when the connection is cut half-way; the end says where to go on."""
    found = go("tail", endpoint, commits, str(COMMITS // 2))

    assert (found["status"], found["message"]) == ("OK", "")
    assert (found["rows"], found["end_rows"], found["ordinals"]) == (COMMITS, COMMITS, True)
    assert (found["commits"], found["offset"]) == (True, COMMITS)
    assert found["reason"] == pb.ScanEnd.REASON_STOP_OFFSET


def test_grpcio_tails_a_table_that_is_written(
    endpoint: str, blobs: Served, stubs: Path, tmp_path: Path
) -> None:
    """Half is there, the rest is committed while it is tailed; grants that are repeated or lowered change nothing."""
    name = f"live-{tmp_path.name}"
    with scanner.sync.connect(blobs.endpoint) as client:
        table = client.create_table(name, SCHEMA, primary_key=["id"], buckets=1)
        commit(table, range(COMMITS // 2))
        command = [sys.executable, str(CLIENT), str(stubs), endpoint, name, str(COMMITS), str(CREDIT)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=stubs
        ) as tail:
            assert tail.stdout is not None
            assert tail.stdout.readline() == "half\n"
            commit(table, range(COMMITS // 2, COMMITS))
            out, errors = tail.communicate(timeout=HANG_S)
        client.drop_table(name)
    assert tail.returncode == 0, errors
    found = json.loads(out)
    assert (found["rows"], found["offset"], found["whole"]) == (COMMITS, COMMITS, True)
    assert found["overrun"] <= blobs.row_bytes
    assert blobs.overrun_bytes() <= blobs.row_bytes
