"""What an inspection of a data directory finds. Pure data."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Severity(enum.Enum):
    """How bad a finding is."""

    ERROR = "error"
    """Something is lost, wrong, or not served."""
    WARNING = "warning"
    """Nothing is lost now; it needs attention."""
    NOTE = "note"
    """Worth knowing; nothing has to be done."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found."""

    severity: Severity
    where: str
    """The file or directory, relative to the data directory."""
    problem: str
    """What is wrong."""
    lost: str = ""
    """What is lost by it; empty: nothing."""
    advice: str = ""
    """What to do; empty: nothing."""


@dataclass(slots=True)
class Counts:
    """How much an inspection has looked at."""

    tables: int = 0
    buckets: int = 0
    checkpoints: int = 0
    documents: int = 0
    rows: int = 0
    """Of buckets and checkpoints."""
    changes: int = 0
