"""A server process that is killed with -9 around a decision, and clients whose answers are lost."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import scanner.sync
from tests.support.nightly import everyday
from tests.support.processes import served_by, weir
from tests.support.server import running_server
from tests.support.transactions import SCHEMA

pytestmark = [pytest.mark.socket, pytest.mark.rocks, pytest.mark.slow]

ROWS = 4000
PARTS = 4
DYING = """
import os, signal, sys, threading
from scanner.cli import run
from scanner.storage.rocksdb import bucket

real, left = bucket.RocksBucket.commit_prepared, [int(sys.argv.pop(1))]
one_at_a_time = threading.Lock()  # Else what counts as made may be cut off.

def commit(self, prepared, groups=None, applied=None, requests=None, *, unfinished=False):
    with one_at_a_time:
        if applied or unfinished:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        real(self, prepared, groups, applied, requests, unfinished=unfinished)

bucket.RocksBucket.commit_prepared = commit
import scanner.server.config as config
config.ScannerConfig.__init__.__kwdefaults__["transaction_piece_bytes"] = 4000
sys.exit(run(["serve", "--data", sys.argv[1], "--port", "0"]))
"""
"""A server that kills itself before the commit of a share that the first argument counts."""


def part_of(number: int) -> pa.Table:
    """The rows of one part."""
    ids = range(number, ROWS, PARTS)
    return pa.table({"id": list(ids), "text": [f"row {each}" for each in ids]}, schema=SCHEMA)


@pytest.mark.parametrize("commits", everyday([0, 1, 13], nightly=[0, 1, 5, 13]))
def test_killed_after_the_decision_and_nobody_publishes_again(tmp_path: Path, commits: int) -> None:
    """The publisher never gets an answer; the next server completes the version, each row once."""
    with served_by(sys.executable, "-c", DYING, commits, tmp_path / "data") as (process, endpoint):
        with scanner.sync.connect(endpoint, retries=0) as client:
            table = client.create_table("t", SCHEMA, ["id"], 2)
            version = table.transaction("load", 1)
            for number in range(PARTS):
                version.stage(part_of(number), part=number, attempt=0)
            with pytest.raises(scanner.ServerUnavailable, match="during Publish"):
                version.publish(dict.fromkeys(range(PARTS), 0))
        assert process.wait() == -signal.SIGKILL
    doctor = weir("doctor", tmp_path / "data")
    assert doctor.returncode == 0
    assert ("a transaction was being applied" in doctor.stdout) == (commits > 0)
    assert " 0 notes in " in doctor.stdout
    with running_server(tmp_path / "data") as running:
        running.wait_until(lambda server: not server.statistics().transactions_unapplied)
        with scanner.sync.connect(running.endpoint) as client:
            table = client.table("t")
            assert sorted(table.new_scan().to_arrow()["id"].to_pylist()) == list(range(ROWS))
            assert sum(each.end_offset for each in table.offsets()) == ROWS
            again = table.transaction("load", 1).publish({})
            assert (again.decided, again.attempts) == (False, dict.fromkeys(range(PARTS), 0))
            assert sum(end - start for _, start, end in again.ranges) == ROWS


def test_a_share_is_what_it_was_recorded_as(tmp_path: Path) -> None:
    """What `publish` says of the changes is what the changelog has there."""
    with running_server(tmp_path / "data") as running:
        with scanner.sync.connect(running.endpoint) as client:
            table = client.create_table("t", SCHEMA, ["id"], 2)
            table.write(part_of(0))
            version = table.transaction("load", 1)
            version.stage(part_of(1), part=1, attempt=0)
            ranges = version.publish({1: 0}).ranges
            scan = table.new_scan().with_source("log").start_at({at: start for at, start, _ in ranges})
            found = scan.stop_at({at: end for at, _, end in ranges}).to_arrow()
            assert sorted(found["id"].to_pylist()) == part_of(1)["id"].to_pylist()
