"""Rows a second through Spark, and CPU seconds of the processes that they go through, as the kernel counts them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

import psutil

from bench.harness.spread import ratio


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


@dataclass(frozen=True, slots=True)
class Measured:
    """The rounds of one way."""

    rows_per_s: list[float] = field(default_factory=list)
    cpu_us_per_row: list[dict[str, float]] = field(default_factory=list)

    def over(self, other: Measured) -> float:
        """Rows a second by those of another way."""
        return ratio(self.rows_per_s, other.rows_per_s)

    def cells(self, other: Measured, processes: Iterable[str]) -> tuple[str, ...]:
        """Medians for a table: rows a second, by those of another way, and the CPU of some processes for a row."""
        return (
            f"{statistics.median(self.rows_per_s):,.0f}",
            f"{self.over(other):.2f}",
            *(f"{statistics.median(of[name] for of in self.cpu_us_per_row):.2f}" for name in processes),
        )


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
