"""`weir serve` as it is operated: its metrics port, its log, and its end by `weir drain`."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import scanner.sync

if TYPE_CHECKING:
    from tests.scanner.cli.conftest import Weir

pytestmark = [pytest.mark.socket, pytest.mark.rocks, pytest.mark.slow]

WEIR = [sys.executable, "-m", "scanner.cli"]
TIMEOUT_S = 100
"""Far longer than anything takes: only what will never come takes it."""


def test_metrics_log_and_drain(tmp_path: Path, weir_here: Weir) -> None:
    """The metrics' address is told, a scan leaves its line, and a drain by call ends the process in good order."""
    options = "--port 0 --metrics-port 0 --log-level info --data".split()
    command = [*WEIR, "serve", *options, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            # Above it the log says how many files may be open.
            line = next(line for line in process.stderr if line.startswith("weir: "))
            told = re.fullmatch(r"weir: metrics at (http://127\.0\.0\.1:\d+/metrics)\n", line)
            assert told is not None
            endpoint = process.stdout.readline().split()[-1]
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
        finally:
            process.kill()
    assert 'weir_scans_ended_total{reason="exhausted"} 1.0' in metrics
    assert "INFO weir.scans: scan ended reason=exhausted table=items bucket=0 source=LIVE_KV rows=3 " in log
    assert "Traceback" not in log
