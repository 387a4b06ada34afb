"""What time it is, for what outlives the process: times and ages of commits, ends of leases."""

from __future__ import annotations

import time
from collections.abc import Callable

import trio


class WallClock:
    """Tells the time of the wall as it was when it was made, plus what has passed on trio's clock since.

    So setting the system's clock ends no lease and ages no commit while a server runs: commits are stamped and aged by
    this one clock. The next start takes the system's as it is then. Made inside a trio run.

    Args:
        wall_s: Seconds since 1970 UTC.
    """

    def __init__(self, wall_s: Callable[[], float] = time.time) -> None:
        self._offset_s = wall_s() - trio.current_time()

    def now_s(self) -> float:
        """Seconds since 1970 UTC."""
        return trio.current_time() + self._offset_s

    def now_ms(self) -> int:
        """Milliseconds since 1970 UTC."""
        return round(self.now_s() * 1000)

    def now_us(self) -> int:
        """Microseconds since 1970 UTC."""
        return round(self.now_s() * 1_000_000)
