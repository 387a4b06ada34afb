"""What docs/clients.md tells a user to type works, all of it, in order."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import scanner.sync
from tests.support.server import running_server
from tests.support.snippets import run_here, snippets

pytestmark = [pytest.mark.socket, pytest.mark.rocks]

PAGE = "docs/clients.md"
ORDERS = pa.table({"id": [1, 2, 3], "item": ["boat", "oar", None], "price": [900.0, 20.5, 3.0]})


def test_a_cancelled_task_ends_the_scan_and_its_thread(tmp_path: Path) -> None:
    """The way for asyncio: a task that waits for a server that is gone ends, with its thread, when it is cancelled."""
    waiting = threading.Event()

    class Patient(Random):
        """Draws delays that nobody lives to see."""

        def uniform(self, a: float, b: float) -> float:
            waiting.set()
            return 1e6

    with running_server(tmp_path) as server:
        client = scanner.sync.connect(server.endpoint, rng=Patient())
        scan = client.create_table("orders", ORDERS.schema, ["id"], 4).new_scan()
    namespace: dict[str, Any] = {}
    (code,) = [each.code for each in snippets(PAGE) if "async def batches_of" in each.code]
    exec(compile(code.partition("\n\nasync def main")[0], PAGE, "exec"), namespace)

    async def main() -> None:
        task = asyncio.ensure_future(anext(namespace["batches_of"](scan)))
        await asyncio.to_thread(waiting.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with client:
        asyncio.run(main())  # It waits for the threads that it had.


def test_every_snippet_runs(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Python in one namespace, as a notebook has it, and commands as a shell reads them."""
    with running_server(tmp_path) as server:
        with scanner.sync.connect(server.endpoint) as client:
            client.create_table("orders", ORDERS.schema, ["id"], 4).write(ORDERS)
        namespace = run_here(PAGE, server.endpoint)
    printed = capfdbinary.readouterr().out.decode()
    assert printed.splitlines()[-1] == "True"
    assert "PYTHON_ARROW_SCAN" in printed
    assert namespace["table"].num_rows == namespace["frame"].shape[0] == 2
    assert namespace["total"] == [(920.5,)]
    assert sorted(namespace["pairs"]) == [(1, 2), (1, 3), (2, 3)]
    assert namespace["batches"].statistics().rows == namespace["first"].num_rows + namespace["rest"].num_rows
