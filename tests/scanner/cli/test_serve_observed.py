"""`weir serve` as it is operated: its metrics port, its log, and its end by `weir drain`."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import scanner.sync
from tests.support.processes import TIMEOUT_S, serving

if TYPE_CHECKING:
    from tests.scanner.cli.conftest import Weir

pytestmark = [pytest.mark.socket, pytest.mark.rocks, pytest.mark.slow]


def test_metrics_log_and_drain(tmp_path: Path, weir_here: Weir) -> None:
    """The metrics' address is told, a scan leaves its line, and a drain by call ends the process in good order."""
    with serving(tmp_path, "--metrics-port", 0, "--log-level", "info") as (process, endpoint):
        assert process.stderr is not None
        # Above it the log says how many files may be open.
        line = next(line for line in process.stderr if line.startswith("weir: "))
        told = re.fullmatch(r"weir: metrics at (http://127\.0\.0\.1:\d+/metrics)\n", line)
        assert told is not None
        with scanner.sync.connect(endpoint) as client:
            table = client.create_table("items", pa.schema([("id", pa.int64())]), ["id"], 1)
            table.write(pa.table({"id": [1, 2, 3]}))
            assert table.new_scan().to_arrow().num_rows == 3
        with urllib.request.urlopen(told[1], timeout=TIMEOUT_S) as answer:
            metrics = answer.read().decode()
        drained = weir_here("drain", "-e", endpoint)
        assert (drained.returncode, drained.stdout) == (0, "")
        assert process.wait(TIMEOUT_S) == 0
        log = process.stderr.read()
    assert 'weir_scans_ended_total{reason="exhausted"} 1.0' in metrics
    assert "INFO weir.scans: scan ended reason=exhausted table=items bucket=0 source=LIVE_KV rows=3 " in log
    assert "Traceback" not in log
