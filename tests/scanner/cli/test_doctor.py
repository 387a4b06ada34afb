"""`weir doctor` as an operator runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from rich.console import Console
from rich.progress import Progress

import scanner.sync
from scanner.cli.doctor import _layout
from tests.support.processes import serving
from tests.support.server import running_server
from tests.support.storage_damage import flip

if TYPE_CHECKING:
    from tests.scanner.cli.conftest import Weir

pytestmark = [pytest.mark.socket, pytest.mark.rocks, pytest.mark.slow]

ROWS = pa.table({"id": range(1000), "text": ["some text"] * 1000})


def test_a_directory_that_was_served(tmp_path: Path, weir_here: Weir) -> None:
    """Refused while it is served; whole after a crash; damage is a line with its loss and advice, and exit code 1."""
    data = tmp_path / "data"
    with serving(data) as (server, endpoint):
        with scanner.sync.connect(endpoint) as client:
            table = client.create_table("orders", ROWS.schema, primary_key=["id"], buckets=3)
            table.write(ROWS)
            client.checkpoint("orders")
            table.write(ROWS.slice(0, 10))
        served = weir_here("doctor", data)
        assert (served.returncode, served.stdout, served.stderr.count("\n")) == (2, "", 1)
        assert f"in use by process {server.pid}" in served.stderr
        server.kill()
    whole = weir_here("doctor", data)
    assert (whole.returncode, whole.stderr) == (0, "")
    assert whole.stdout == (
        "0 errors, 0 warnings, 0 notes in 1 table, 3 buckets, 3 checkpoints, 2 documents, 2000 rows, 2020 changes\n"
    )
    (file,) = data.glob("tables/*/0001/MANIFEST-*")
    flip(file, 60)
    damaged = weir_here("doctor", data)
    assert damaged.returncode == 1
    error, summary = damaged.stdout.splitlines()
    assert error.startswith(f"error {file.parent.relative_to(data)}: ")
    assert "; lost: every row and change of the bucket; do: restore a backup" in error
    assert summary.startswith("1 error, ")
    as_json = weir_here("doctor", data, "--json")
    first, last = map(json.loads, as_json.stdout.splitlines())
    assert (as_json.returncode, first["severity"], last["summary"]["errors"]) == (1, "error", 1)


def test_the_bar_tells_how_far_it_is_at_a_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    """Its long path leaves room for that on a terminal of 80 columns."""
    bar = Progress(*_layout())
    path = "checkpoints/1795807644/0003/000000-74992-1795807644725709-a62e3bd96e465c980c8509411e6b2e69"
    bar.add_task(path, total=100, completed=37, records=12_345_678)
    Console(width=80).print(bar.get_renderable())
    shown = capsys.readouterr().out
    assert shown.startswith("checkpoints/1795807644/0003")
    assert " 37% 12345678 rows and changes -:--:--" in shown


def test_what_is_no_data_directory(tmp_path: Path, weir_here: Weir) -> None:
    """A directory that is something else's, or not there, is exit code 2 and one line."""
    for path in (tmp_path, tmp_path / "none"):
        refused = weir_here("doctor", path)
        assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)


def test_rows_of_added_columns(tmp_path: Path, weir_here: Weir) -> None:
    """Rows and changes of older schemas are read as what they are."""
    with running_server(tmp_path / "data") as server, scanner.sync.connect(server.endpoint) as client:
        table = client.create_table("orders", ROWS.schema, primary_key=["id"])
        table.write(ROWS)
        table.add_column(pa.field("price", pa.float64()))
        wider = ROWS.append_column("price", pa.array([1.5] * 1000))
        client.table("orders").write(wider.slice(0, 500))
        client.table("orders").delete([(700,)])
    looked = weir_here("doctor", tmp_path / "data", "--json")
    assert looked.returncode == 0, looked.stdout
    assert json.loads(looked.stdout.splitlines()[-1])["summary"]["rows"] == 999
