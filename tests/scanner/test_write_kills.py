"""A server process that is killed with -9 around a commit, and a writer that goes on at the next one."""

from __future__ import annotations

import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

import scanner.sync
from tests.support.client import SCHEMA, rows
from tests.support.processes import served_by
from tests.support.server import running_server

pytestmark = [pytest.mark.socket, pytest.mark.rocks, pytest.mark.slow]

BUCKETS = 3
REQUESTS = 8
ROWS = 30
"""Of a request; some of them in every bucket."""
DYING = """
import os, signal, sys
from scanner.cli import run
from scanner.storage.rocksdb import bucket

real, left, late = bucket.RocksBucket.commit_prepared, [int(sys.argv.pop(1))], int(sys.argv.pop(1))

def commit(self, *arguments, **options):
    left[0] -= 1
    if late or left[0] >= 0:
        real(self, *arguments, **options)
    if left[0] < 0:
        os.kill(os.getpid(), signal.SIGKILL)

bucket.RocksBucket.commit_prepared = commit
sys.exit(run(["serve", "--data", sys.argv[1], "--port", sys.argv[2]]))
"""
"""A server that kills itself at the commit that the first argument counts, or, with the second one, right behind it."""


@pytest.mark.parametrize(("commits", "late"), [(0, False), (0, True), (2, True), (4, False)])
def test_a_write_goes_on_at_the_next_server(tmp_path: Path, kept_port: int, commits: int, late: bool) -> None:
    """Whatever it was killed at, each row is in the table, and each change in the changelog once."""
    data = tmp_path / "data"
    command = (sys.executable, "-c", DYING, commits, int(late), data, kept_port)
    with ExitStack() as stack:
        process, endpoint = stack.enter_context(served_by(*command))

        def serve_again() -> int:
            code = process.wait()
            stack.enter_context(running_server(data, port=kept_port))
            return code

        pool = stack.enter_context(ThreadPoolExecutor(1))
        client = stack.enter_context(scanner.sync.connect(endpoint))
        table = client.create_table("t", SCHEMA, ["k"], BUCKETS)
        ended = pool.submit(serve_again)
        with table.open_writer() as writer:
            for number in range(REQUESTS):
                writer.write(rows(ROWS, first=number * ROWS))
        assert ended.result() == -signal.SIGKILL
        assert writer.result.rows == REQUESTS * ROWS
        assert sorted(table.new_scan().to_arrow()["k"].to_pylist()) == list(range(REQUESTS * ROWS))
        ends = {each.bucket: each.end_offset for each in table.offsets()}
        assert sum(ends.values()) == REQUESTS * ROWS
        assert sum(end - start for _, start, end in writer.result.ranges) == REQUESTS * ROWS
