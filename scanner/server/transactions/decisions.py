"""What was decided of a transaction, and the document that keeps it.

Pure: this module knows no files and no tasks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scanner.errors import DataCorrupted
from scanner.storage.transactions import AppliedShare


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The newest decided version of a transaction name."""

    table_id: int
    name: str
    version: int
    attempts: Mapping[int, int]
    """By part, the attempt that counts."""
    buckets: tuple[int, ...]
    """Those that have something to apply, ascending."""
    stages: int = 0
    """How many stages count; 0: an older server has not written that."""
    overwrite: bool = False
    """Whether the rows that no part names are deleted."""
    decided_ms: int
    """When, in milliseconds since 1970 UTC."""
    order: int
    """Its place among the decisions of its table: versions are applied to a bucket as they were decided."""
    shares: Mapping[int, AppliedShare] | None = None
    """By bucket, the changes that it made; None: not every bucket has applied it."""

    @property
    def place(self) -> tuple[int, int]:
        """Sorts the decisions of a table as they were made; those that an older server wrote have times alone."""
        return self.order, self.decided_ms

    @property
    def applied(self) -> bool:
        """Whether every bucket has applied it."""
        return self.shares is not None

    def to_document(self) -> bytes:
        """As text for a file."""
        shares = None if self.shares is None else [[at, *share[1:]] for at, share in self.shares.items()]
        document = {
            "table_id": self.table_id,
            "name": self.name,
            "version": self.version,
            "attempts": sorted(self.attempts.items()),
            "buckets": self.buckets,
            "stages": self.stages,
            "overwrite": self.overwrite,
            "decided_ms": self.decided_ms,
            "order": self.order,
            "shares": shares,
        }
        return json.dumps(document).encode() + b"\n"

    @classmethod
    def from_document(cls, content: bytes, table_id: int, name: str) -> Decision:
        """Read what `to_document` wrote.

        Args:
            content: The text.
            table_id: Whose it must be.
            name: Of which transaction it must be.

        Raises:
            DataCorrupted: It is something else, or another table's.
        """
        try:
            found: Any = json.loads(content)
            version, shares = int(found["version"]), found["shares"]
            decision = cls(
                table_id=int(found["table_id"]),
                name=str(found["name"]),
                version=version,
                attempts={int(part): int(attempt) for part, attempt in found["attempts"]},
                buckets=tuple(map(int, found["buckets"])),
                # Older servers wrote none of these.
                stages=int(found.get("stages", 0)),
                overwrite=bool(found.get("overwrite", False)),
                decided_ms=int(found["decided_ms"]),
                order=int(found.get("order", 0)),
                shares=None
                if shares is None
                else {int(at): AppliedShare(version, int(start), int(end)) for at, start, end in shares},
            )
        except (ValueError, KeyError, TypeError) as error:
            raise DataCorrupted(f"the decision of transaction {name} cannot be read: {error!r}") from error
        if (decision.table_id, decision.name) != (table_id, name):
            raise DataCorrupted(
                f"the decision of transaction {name} is that of {decision.name} of table {decision.table_id}:"
                " its file was copied"
            )
        return decision
