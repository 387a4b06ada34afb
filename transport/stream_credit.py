"""The sender's credit of a call, as something to wait for."""

from __future__ import annotations

import trio

from transport.credit import SendCredit


class StreamCredit(SendCredit):
    """A sender's credit that can be waited for."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        super().__init__()
        self._waiting = trio.lowlevel.ParkingLot()

    def raise_limit(self, limit: int) -> bool:
        """See `SendCredit`; wakes who waits for credit."""
        raised = super().raise_limit(limit)
        if raised:
            self._waiting.unpark_all()
        return raised

    def remove_limit(self) -> None:
        """See `SendCredit`; wakes who waits for credit."""
        super().remove_limit()
        self._waiting.unpark_all()

    async def wait_change(self) -> None:
        """Wait until the limit goes up or away, or `wake` is called."""
        await self._waiting.park()

    def wake(self) -> None:
        """Wake who waits, to look at something else than the limit."""
        self._waiting.unpark_all()
