"""`weir transactions` as an operator runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import scanner.sync
from tests.support.server import running_server
from tests.support.transactions import SCHEMA, rows

if TYPE_CHECKING:
    from tests.scanner.cli.conftest import Weir

pytestmark = [pytest.mark.socket, pytest.mark.rocks]


def test_names_versions_and_stages(tmp_path: Path, weir_here: Weir) -> None:
    """A table for people, a line of JSON each for programs, and a note where there is nothing."""
    with running_server(tmp_path / "data") as running:
        with scanner.sync.connect(running.endpoint) as client:
            table = client.create_table("orders", SCHEMA, ["id"], 2)
            at = ("--endpoint", running.endpoint)
            none = weir_here("transactions", "orders", *at)
            assert (none.returncode, none.stdout) == (0, "")
            assert "no transactions" in none.stderr
            table.transaction("load", 7).publish({})
            table.transaction("load", 8).stage(rows({1: "a"}), part=0, attempt=0)
            shown = weir_here("transactions", "orders", *at)
            assert "decided version" in shown.stdout
            [line] = weir_here("transactions", "orders", "--json", *at).stdout.splitlines()
            found = json.loads(line)
            assert (found["name"], found["decided_version"], found["applied"], found["stages"]) == (
                "load",
                7,
                True,
                1,
            )
