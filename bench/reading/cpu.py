"""CPU seconds of the processes that a read in Spark goes through, as the kernel counts them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import psutil


@dataclass(frozen=True, slots=True)
class Cpu:
    """CPU seconds of each, user and system."""

    server: float
    workers: float
    """Spark's Python processes, those that have ended included."""
    jvm: float

    def __sub__(self, other: Self) -> Cpu:
        return Cpu(self.server - other.server, self.workers - other.workers, self.jvm - other.jvm)

    def per_row_us(self, rows: int) -> dict[str, float]:
        """Microseconds of each for a row."""
        return {
            "server": round(self.server / rows * 1e6, 3),
            "workers": round(self.workers / rows * 1e6, 3),
            "jvm": round(self.jvm / rows * 1e6, 3),
        }


def cpu_now(server_pid: int, jvm_pid: int) -> Cpu:
    """What they have used so far.

    Args:
        server_pid: Of `weir serve`.
        jvm_pid: Of Spark, whose descendants are its Python processes.
    """
    jvm = psutil.Process(jvm_pid)
    workers = 0.0
    for worker in jvm.children(recursive=True):
        try:
            times = worker.cpu_times()
        except psutil.NoSuchProcess:
            continue  # Its parent has its time now.
        workers += times.user + times.system + times.children_user + times.children_system
    return Cpu(_own(psutil.Process(server_pid)), workers, _own(jvm))


def _own(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
