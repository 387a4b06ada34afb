"""A scan that names its table by id reads that table or fails, however it travels, also where it goes on."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

import scanner.sync
from scanner import ArgumentInvalid, ScanSource, TableNotFound
from tests.support.client import SCHEMA, rows
from tests.support.server import RunningServer, running_server

pytestmark = [pytest.mark.socket, pytest.mark.rocks]

ROWS = 3_000
MODES_OF_STATES = ("push", "session", "token", "cursor", "asof")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server in a thread of its own."""
    with running_server(tmp_path_factory.mktemp("weir")) as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[scanner.sync.Client]:
    """A client of it; there is a table, and none afterwards."""
    with scanner.sync.connect(server.endpoint) as client:
        client.create_table("items", SCHEMA, ["k"], buckets=2).write(rows(ROWS))
        yield client
        client.drop_table("items")


def planned(client: scanner.sync.Client) -> scanner.sync.Scan:
    """A scan of the table that has the name now."""
    table = client.table("items")
    return table.new_scan().with_table_id(table.table_id)


def replace_table(client: scanner.sync.Client) -> None:
    """Drop the table, and give its name, columns and number of rows to another."""
    client.drop_table("items")
    client.create_table("items", SCHEMA, ["k"], buckets=2).write(rows(ROWS))


@pytest.mark.parametrize("mode", MODES_OF_STATES)
def test_a_table_that_was_replaced(client: scanner.sync.Client, mode: str) -> None:
    """The table of that id is read; another one of its name is not, by push or by pull."""
    scan = planned(client).with_mode(mode)
    assert scan.to_arrow().num_rows == ROWS
    replace_table(client)
    with pytest.raises(TableNotFound, match="dropped and created anew"):
        scan.to_arrow()


@pytest.mark.parametrize("source", [ScanSource.LOG, ScanSource.HYBRID])
def test_changes(client: scanner.sync.Client, source: ScanSource) -> None:
    """So it is where the changes are read."""
    scan = planned(client).with_source(source).stop_at("end")
    assert scan.to_arrow().num_rows == ROWS
    replace_table(client)
    with pytest.raises(TableNotFound, match="dropped and created anew"):
        scan.to_arrow()


def test_checkpoints(client: scanner.sync.Client) -> None:
    """So it is where a checkpoint is read."""
    client.checkpoint("items")
    scan = planned(client).with_source(ScanSource.SNAPSHOT)
    assert scan.to_arrow().num_rows == ROWS
    replace_table(client)
    client.checkpoint("items")
    with pytest.raises(TableNotFound, match="dropped and created anew"):
        scan.to_arrow()


@pytest.mark.parametrize("mode", MODES_OF_STATES)
def test_a_scan_that_goes_on(client: scanner.sync.Client, mode: str) -> None:
    """The id is named at each call of a scan, and no part of what a resume token was made for."""
    scan = planned(client).with_mode(mode).with_page_bytes(16_384)
    if mode == "push":
        scan = scan.with_credit(16_384).resume_every_batches(1)
    assert scan.to_arrow().num_rows == ROWS
    assert client.scan(scan.plan).to_arrow().num_rows == ROWS


def test_a_plan_from_elsewhere(server: RunningServer, client: scanner.sync.Client) -> None:
    """A plan that crossed a pickle is run on another connection, and the table is not looked up for it."""
    plan = pickle.loads(pickle.dumps(planned(client).select("k").where("k < 100").bucket(1).plan))
    with scanner.sync.connect(server.endpoint) as other:
        found = other.scan(plan).to_arrow()
    expected = client.table("items").new_scan().select("k").where("k < 100").bucket(1).to_arrow()
    assert found.equals(expected)


@pytest.mark.parametrize("table_id", [-1, 1 << 64, True, "1"])
def test_no_id(client: scanner.sync.Client, table_id: int) -> None:
    """What is no id is refused before the server is asked."""
    with pytest.raises(ArgumentInvalid, match="table id"):
        client.table("items").new_scan().with_table_id(table_id)
