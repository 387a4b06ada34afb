"""Reading on a cluster of two executors: exact, whatever happens to executors, tasks and the server meanwhile."""

import contextlib
from pathlib import Path

import pyarrow as pa
import pytest

from scanner.sync import Client, connect
from tests.spark_source.cluster.driver import Driver, DriverError
from tests.spark_source.cluster.gate import open_gate
from tests.spark_source.cluster.processes import WORKERS, Cluster
from tests.spark_source.cluster.programs import read_rows, read_rows_and_count_copies, stream_changes
from tests.support.server import RunningServer, running_server

pytestmark = [pytest.mark.spark, pytest.mark.rocks, pytest.mark.socket, pytest.mark.slow]

BUCKETS = 4
ROWS = 2_000
TABLE = "clustered"
STUCK_AFTER = 100_000
"""Octets: more than planning takes, less than a bucket has."""


def numbered(word: str) -> pa.Table:
    """Rows of about a KiB each."""
    texts = [f"{word} {row} ".ljust(1_000, ".") for row in range(ROWS)]
    return pa.table({"k": pa.array(range(ROWS), pa.int64()), "s": texts})


EXPECTED = [[row["k"], row["s"]] for row in numbered("first").to_pylist()]


def make_table(client: Client) -> None:
    """A table of `ROWS` rows in `BUCKETS` buckets."""
    rows = numbered("first")
    client.create_table(TABLE, rows.schema, primary_key=["k"], buckets=BUCKETS).write(rows)


@pytest.fixture(scope="module")
def table(server: RunningServer) -> None:
    """The table, on the server of the session."""
    with connect(server.endpoint) as client:
        make_table(client)


def options(endpoint: str) -> dict[str, str]:
    """Of a read of the table; with little on its way to a task, so that it stands where it is stuck."""
    return {"endpoint": endpoint, "table": TABLE, "creditBytes": "64k"}


def test_reads_are_exact(cluster: Cluster, driver: Driver, server: RunningServer, table: None) -> None:
    """Every row arrives once, from executors on both workers."""
    assert driver.call(read_rows, options=options(server.endpoint)) == EXPECTED
    assert len(cluster.executors()) == WORKERS


def test_an_executor_is_killed(cluster: Cluster, driver: Driver, server: RunningServer, table: None) -> None:
    """A task whose executor is killed in the middle of its read is run again, and no row comes twice or not at all."""
    with open_gate(server.endpoint, stuck_max=WORKERS, stuck_after=STUCK_AFTER) as gate:
        driver.begin(read_rows, options=options(gate.endpoint))
        gate.wait_stuck()
        victim = cluster.executors()[0]
        victim.kill()
        victim.wait()
        gate.open()
        assert driver.result() == EXPECTED
        assert victim.pid not in [executor.pid for executor in cluster.executors()]


def test_an_executor_of_a_stream_is_killed(
    cluster: Cluster, driver: Driver, server: RunningServer, client: Client, table: None, tmp_path: Path
) -> None:
    """In the middle of a micro-batch: every change is in the sink once."""
    with open_gate(server.endpoint, stuck_max=WORKERS, stuck_after=STUCK_AFTER) as gate:
        given = options(gate.endpoint) | {"startingOffsets": "earliest"}
        driver.begin(stream_changes, options=given, directory=str(tmp_path))
        gate.wait_stuck()
        victim = cluster.executors()[0]
        victim.kill()
        victim.wait()
        gate.open()
        changes = driver.result()
    assert [[key, text] for key, text, _, _ in changes] == EXPECTED
    assert {kind for _, _, kind, _ in changes} == {"insert"}
    ends = [each.end_offset for each in client.table(TABLE).offsets()]
    assert sorted(at for *_, at in changes) == sorted(at for end in ends for at in range(end))


def test_speculative_copies(driver: Driver, server: RunningServer, table: None) -> None:
    """The copy of a task that stands still delivers its bucket, while the task is where it was."""
    with open_gate(server.endpoint, stuck_max=1, stuck_after=STUCK_AFTER) as gate:
        rows, copies = driver.call(read_rows_and_count_copies, options=options(gate.endpoint))
        assert gate.stuck == 1
    assert rows == EXPECTED
    assert copies == 1


def test_the_server_is_restarted(driver: Driver, tmp_path: Path, kept_port: int) -> None:
    """Tasks in the middle of their reads go on from where they were, and the others begin, in the planned state."""
    with contextlib.ExitStack() as stack:
        with running_server(tmp_path, port=kept_port) as server:
            with connect(server.endpoint) as client:
                make_table(client)
            gate = stack.enter_context(open_gate(server.endpoint, stuck_max=WORKERS, stuck_after=STUCK_AFTER))
            driver.begin(read_rows, options=options(gate.endpoint))
            gate.wait_stuck()
        with running_server(tmp_path, port=kept_port) as server:
            with connect(server.endpoint) as client:
                client.table(TABLE).write(numbered("second"))
            gate.open()
            assert driver.result() == EXPECTED


def test_errors_arrive(driver: Driver, server: RunningServer) -> None:
    """What fails in an executor is told by name."""
    with pytest.raises(DriverError, match=r"scanner\.errors\.TableNotFound"):
        driver.call(read_rows, options={"endpoint": server.endpoint, "table": "missing"})
