"""What docs/tail.md tells a user to type works, all of it, in order."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import scanner.sync
from scanner.cli import run
from tests.support.server import running_server

pytestmark = [pytest.mark.socket, pytest.mark.rocks]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tail.md"
SNIPPET = re.compile(r"^```(?P<language>\w+)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
ENDPOINT = "127.0.0.1:9123"
ORDERS = pa.table({"id": [1, 2, 3], "item": ["boat", "oar", None], "price": [900.0, 20.5, 3.0]})


def test_every_snippet_runs(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Python in one namespace, as a notebook has it, and commands as a shell reads them."""
    namespace: dict[str, Any] = {}
    with running_server(tmp_path) as server:
        with scanner.sync.connect(server.endpoint) as client:
            table = client.create_table("orders", ORDERS.schema, ["id"], 4)
            table.write(ORDERS)
            table.delete([(3,)])
        for snippet in SNIPPET.finditer(PAGE.read_text(encoding="utf-8")):
            if snippet["language"] == "python":
                exec(compile(snippet["code"].replace(ENDPOINT, server.endpoint), PAGE, "exec"), namespace)
                continue
            for line in snippet["code"].splitlines():
                program, *words = shlex.split(line.removeprefix("$ "))
                assert (program, run([*words, "-e", server.endpoint])) == ("weir", 0)
        namespace["client"].close()
    printed = capfdbinary.readouterr()
    assert "['rudder']" in printed.out.decode()
    assert b"go on with: weir tail orders --from 0:" in printed.err
    assert sorted(namespace["copy"]) == [1, 2]
    assert sum(namespace["places"].values()) == 5
    assert sorted(namespace["fold"].to_table()["id"].to_pylist()) == [1, 2, 7, 8]
