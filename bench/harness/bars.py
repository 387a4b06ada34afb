"""What every bench has in its JSON: bars with what was measured, and the machine it was measured on."""

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class Bar:
    """One thing that must be so."""

    name: str
    value: object
    """What was measured."""
    bar: str
    """What it must be."""
    ok: bool


def failures(bars: Sequence[Bar]) -> list[str]:
    """One line per bar that is missed."""
    return [f"{bar.name}: {bar.value}, must be {bar.bar}" for bar in bars if not bar.ok]


def machine() -> dict[str, object]:
    """What the numbers were measured on."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
    }
