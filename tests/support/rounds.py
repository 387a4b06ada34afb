"""Rounds of the event loop, counted by a task that takes one step a round."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


class Rounds:
    """Counts the rounds of the event loop."""

    def __init__(self) -> None:
        self.count = 0

    async def run(self) -> None:
        """Take one step a round, until cancelled."""
        while True:
            self.count += 1
            await trio.lowlevel.checkpoint()


@asynccontextmanager
async def counted_rounds() -> AsyncIterator[Rounds]:
    """Count rounds while the block runs."""
    rounds = Rounds()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rounds.run)
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        yield rounds
        nursery.cancel_scope.cancel()
