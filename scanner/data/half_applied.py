"""A version of a transaction of which states that were taken together have a part: for both ends, and for backups."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HalfApplied:
    """A version of a transaction that some of the leased states have and others do not.

    The server has decided it, could not apply it to all buckets yet, and goes on trying.
    """

    table: str
    """Its name."""
    name: str
    """Of the transaction."""
    version: int
    applied: tuple[int, ...]
    """Buckets whose states have it, ascending."""
    missing: tuple[int, ...]
    """Buckets whose states do not."""

    def __str__(self) -> str:
        return (
            f"version {self.version} of transaction {self.name!r} of table {self.table!r} is half applied: it is in"
            f" buckets {', '.join(map(str, self.applied))}, and not in {', '.join(map(str, self.missing))}"
        )
