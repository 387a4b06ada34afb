"""What docs/tail.md tells a user to type works, all of it, in order."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import scanner.sync
from tests.support.server import running_server
from tests.support.snippets import run_here

pytestmark = [pytest.mark.socket, pytest.mark.rocks]

ORDERS = pa.table({"id": [1, 2, 3], "item": ["boat", "oar", None], "price": [900.0, 20.5, 3.0]})


def test_every_snippet_runs(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Python in one namespace, as a notebook has it, and commands as a shell reads them."""
    with running_server(tmp_path) as server:
        with scanner.sync.connect(server.endpoint) as client:
            table = client.create_table("orders", ORDERS.schema, ["id"], 4)
            table.write(ORDERS)
            table.delete([(3,)])
        namespace = run_here("docs/tail.md", server.endpoint)
        namespace["client"].close()
    printed = capfdbinary.readouterr()
    assert "['rudder']" in printed.out.decode()
    assert b"go on with: weir tail orders --from 0:" in printed.err
    assert sorted(namespace["copy"]) == [1, 2]
    assert sum(namespace["places"].values()) == 5
    assert sorted(namespace["fold"].to_table()["id"].to_pylist()) == [1, 2, 7, 8]
