"""One ``load()``: what all copies of its reader have in common, and no other load has."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from scanner import TableNotFound

if TYPE_CHECKING:
    from scanner.sync import Table


def new_lease_id() -> str:
    """An id that nobody has."""
    return f"spark-{secrets.token_hex(8)}"


@dataclass(frozen=True, slots=True)
class Load:
    """Names the state that a ``load()`` reads."""

    id: str
    """Of its leases, or the beginning of their ids."""
    made_at_s: float
    """When the id was made up, seconds since 1970 by the clock of the driver."""
    table_id: int | None = None
    """Of the table whose schema Spark was told; None: Spark was given the schema, and has not asked."""

    @classmethod
    def new(cls) -> Load:
        """One that nobody has."""
        return cls(new_lease_id(), time.time())

    def of_table(self, table_id: int) -> Load:
        """The same load, of the table whose schema Spark is told."""
        return replace(self, table_id=table_id)

    def require_table(self, table: Table) -> None:
        """Check that a table is the one whose schema Spark was told.

        Raises:
            TableNotFound: It is another one of the same name.
        """
        if self.table_id not in (None, table.table_id):
            raise TableNotFound(
                f"table {table.name!r} was dropped and created anew since it was loaded; load the DataFrame again"
            )

    @property
    def age_s(self) -> float:
        """How long ago that was, seconds, 0 or more."""
        return max(0.0, time.time() - self.made_at_s)
