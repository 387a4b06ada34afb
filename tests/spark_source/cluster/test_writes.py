"""Writing from a cluster of two executors, and from drivers that are killed: each row once, whatever happens."""

import contextlib
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from scanner.sync import Client, connect
from tests.spark_source.cluster.driver import Driver, DriverError
from tests.spark_source.cluster.gate import open_gate
from tests.spark_source.cluster.processes import WORKERS, Cluster
from tests.spark_source.cluster.programs import save_numbers, stream_files
from tests.spark_source.frames import table_name
from tests.support.server import RunningServer

pytestmark = [pytest.mark.spark, pytest.mark.rocks, pytest.mark.socket, pytest.mark.slow]

ROWS = 2_000
PARTS = 4
STUCK_AFTER = 200_000
"""Octets: more than a task says before its rows, less than its rows have."""
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])


@pytest.fixture
def table(request: pytest.FixtureRequest, client: Client) -> str:
    """A table of its own for each test."""
    name = table_name(request)
    client.create_table(name, SCHEMA, primary_key=["k"], buckets=2)
    return name


def require_every_row_once(client: Client, table: str) -> None:
    """See that the table has each row, and that each was changed once."""
    rows = client.table(table).new_scan().to_arrow()
    assert sorted(rows["k"].to_pylist()) == list(range(ROWS))
    assert sum(each.end_offset for each in client.table(table).offsets()) == ROWS
    assert sum(each.stages for each in client.table(table).transactions()) == 0


def test_an_executor_is_killed(
    cluster: Cluster, driver: Driver, server: RunningServer, client: Client, table: str
) -> None:
    """A task whose executor is killed in the middle of its write is run again, and no row is there twice or missing."""
    with open_gate(server.endpoint, stuck_max=WORKERS, stuck_after=STUCK_AFTER, upward=True) as gate:
        options = {"endpoint": gate.endpoint, "table": table, "batchBytes": "64k"}
        driver.begin(save_numbers, options=options, rows=ROWS, parts=PARTS)
        gate.wait_stuck()
        victim = cluster.executors()[0]
        victim.kill()
        victim.wait()
        assert client.table(table).new_scan().to_arrow().num_rows == 0
        gate.open()
        driver.result()
    require_every_row_once(client, table)


def test_speculative_copies(driver: Driver, server: RunningServer, client: Client, table: str) -> None:
    """The copy of a task that stands still writes its part, while the task is where it was; the part counts once."""
    with open_gate(server.endpoint, stuck_max=1, stuck_after=STUCK_AFTER, upward=True) as gate:
        options = {"endpoint": gate.endpoint, "table": table, "batchBytes": "64k"}
        driver.call(save_numbers, options=options, rows=ROWS, parts=PARTS)
        assert gate.stuck == 1
    require_every_row_once(client, table)


def test_errors_arrive(driver: Driver, server: RunningServer, client: Client, table: str) -> None:
    """What is wrong with a write is told by name."""
    with pytest.raises(DriverError, match=r"TableNotFound"):
        driver.call(save_numbers, options={"endpoint": server.endpoint, "table": "missing"}, rows=1, parts=1)


def kill(driver: Driver) -> None:
    """End a driver and all that it started, at once."""
    family = psutil.Process(driver.child.process.pid).children(recursive=True)
    driver.child.process.kill()
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    driver.child.process.wait()
    psutil.wait_procs(family)


def test_a_driver_is_killed_behind_the_decision(
    cluster: Cluster, driver: Driver, server: RunningServer, client: Client, table: str, tmp_path: Path
) -> None:
    """Once the server has decided, the rows appear without their driver, and its successor adds none twice."""
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "0.json").write_text("\n".join(f'{{"k": {key}, "v": "x"}}' for key in range(ROWS)))
    committed = tmp_path / "checkpoint" / "commits" / "0"

    def decided() -> bool:
        with connect(server.endpoint) as other:
            return any(each.decided_version is not None for each in other.table(table).transactions())

    def streaming(endpoint: str) -> dict[str, object]:
        return {"directory": str(tmp_path), "options": {"endpoint": endpoint, "table": table}}

    with open_gate(server.endpoint, stuck_max=1, stuck_after=0, stuck_when=decided) as gate:
        with cluster.driver(master="local[2]") as killed:
            killed.begin(stream_files, **streaming(gate.endpoint))
            gate.wait_stuck()
            kill(killed)
        assert not committed.exists()
        require_every_row_once(client, table)
        driver.call(stream_files, **streaming(server.endpoint))
        assert committed.exists()
        require_every_row_once(client, table)
