"""One ``load()``: what all copies of its reader have in common, and no other load has."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Load:
    """Names the state that a ``load()`` reads."""

    id: str
    """Of its leases, or the beginning of their ids."""
    made_at_s: float
    """When the id was made up, seconds since 1970 by the clock of the driver."""

    @classmethod
    def new(cls) -> Load:
        """One that nobody has."""
        return cls(f"spark-{secrets.token_hex(8)}", time.time())

    @property
    def age_s(self) -> float:
        """How long ago that was, seconds, 0 or more."""
        return max(0.0, time.time() - self.made_at_s)
