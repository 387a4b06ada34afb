"""`weir load` of a file, as a user runs it, into a server that is started for it."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from pathlib import Path

from bench.harness.errors import BenchFailed
from bench.harness.server import running_server

BUCKETS = 4


def timed_load(scratch: Path, file: Path, rows: int, buckets: int = BUCKETS) -> tuple[float, float]:
    """Load a file into a new table.

    Args:
        scratch: Gets the data directory; it must not exist.
        file: A Parquet file with a key column `id`.
        rows: That are in it.
        buckets: Of the table.

    Returns:
        Rows a second, from the start of the command to its end: by the clock, and by the processor's time of client and
        server.

    Raises:
        BenchFailed: The load failed.
    """
    weir = str(Path(sys.executable).with_name("weir"))
    with running_server(scratch) as server:
        command = [weir, "load", str(file), "-k", "id", "--buckets", str(buckets), "-e", server.endpoint]
        cpu, started = server.cpu_s() + _children_cpu_s(), time.perf_counter()
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except subprocess.CalledProcessError as error:
            raise BenchFailed(f"weir load failed: {error.stderr}") from error
        seconds = time.perf_counter() - started
        cpu = server.cpu_s() + _children_cpu_s() - cpu
    return rows / seconds, rows / cpu


def _children_cpu_s() -> float:
    """Of the processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
