"""A writer in a process of its own that updates rows of one table at a rate that can be changed while it runs.

Every update is of a key that is there, so the keys of a table are the same before, during and after. It is the
paced one that matters for a comparison: at a given rate every model has the same writer. "As fast as it goes" depends
on what else takes the two processors; what it came to is therefore measured beside each scan.
"""

from __future__ import annotations

import math
import multiprocessing
import signal
import time
from collections.abc import Callable
from multiprocessing.sharedctypes import Synchronized, SynchronizedArray
from types import TracebackType
from typing import Self

import numpy as np

import scanner.sync
from bench.harness.errors import BenchFailed
from bench.questions.continuation.orders import rows_of

WRITE_ROWS = 500
FLAT_OUT_ROWS = 5_000
"""Of one write: what a write costs beside its rows then hardly counts."""
STOPPED = 0.0
FLAT_OUT = math.inf
_STEP_S = 0.005
_TIMEOUT_S = 300.0
"""Far longer than anything takes on a machine that is busy with something else."""


class Writer:
    """Writes for the length of a block; stopped at first.

    Args:
        endpoint: HOST:PORT of the server.
        table: Name of the table.
        rows: Its keys are 0..rows-1.
        seed: Chooses the keys.
    """

    def __init__(self, endpoint: str, table: str, rows: int, seed: int = 1) -> None:
        context = multiprocessing.get_context("spawn")
        self._wanted: SynchronizedArray[float] = context.Array("d", [STOPPED, 0.0])
        """The rate, and the number of the command that asked for it."""
        self._obeyed: Synchronized[int] = context.Value("q", 0)
        """The number of the last command that is seen; what was written before it is acknowledged."""
        self._written: Synchronized[int] = context.Value("q", -1)
        self._process = context.Process(
            target=write_forever,
            args=(endpoint, table, rows, seed, self._wanted, self._obeyed, self._written),
            daemon=True,
        )

    def __enter__(self) -> Self:
        self._process.start()
        self._wait(lambda: self.written >= 0, "start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.join()

    @property
    def written(self) -> int:
        """Rows that were acknowledged so far."""
        return self._written.value

    def set_rate(self, rows_per_s: float) -> None:
        """Write so many rows a second from now on: `STOPPED`, `FLAT_OUT`, or what is between."""
        with self._wanted:
            self._wanted[:] = [rows_per_s, self._wanted[1] + 1]

    def write(self, rows: int) -> None:
        """Write at least so many rows as fast as it goes, and stop.

        Raises:
            BenchFailed: The writer came to nothing.
        """
        goal = self.written + rows
        self.set_rate(FLAT_OUT)
        self._wait(lambda: self.written >= goal, f"write {rows} rows", _TIMEOUT_S + rows / 1000)
        self.stop()

    def stop(self) -> None:
        """Write nothing from now on; what was sent is acknowledged when this returns.

        Raises:
            BenchFailed: The writer came to nothing.
        """
        self.set_rate(STOPPED)
        number = self._wanted[1]
        self._wait(lambda: self._obeyed.value == number, "stop")

    def _wait(self, done: Callable[[], bool], what: str, timeout_s: float = _TIMEOUT_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not done():
            if not self._process.is_alive() or time.monotonic() > deadline:
                raise BenchFailed(f"the writer did not {what}")
            time.sleep(_STEP_S)


def write_forever(
    endpoint: str,
    table: str,
    rows: int,
    seed: int,
    commands: SynchronizedArray[float],
    obeyed: Synchronized[int],
    written: Synchronized[int],
) -> None:
    """Be the writer, until the process is ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    rng = np.random.default_rng(seed)
    with scanner.sync.connect(endpoint) as client:
        orders = client.table(table)
        written.value = 0
        version, due, paced = 0, 0.0, STOPPED
        while True:
            wanted, number = commands[:]
            obeyed.value = int(number)
            if wanted == STOPPED:
                paced = STOPPED
                time.sleep(_STEP_S)
                continue
            if wanted != paced:  # not to make up for a time in which less was wanted
                due, paced = time.monotonic(), wanted
            version += 1
            ids = np.unique(rng.integers(0, rows, FLAT_OUT_ROWS if wanted == FLAT_OUT else WRITE_ROWS))
            count = len(ids)
            orders.write(rows_of(ids, version))
            written.value += count
            due += count / wanted
            time.sleep(max(0.0, due - time.monotonic()))
