"""How connections share an event loop: rounds that are given, counted by a task that takes one step a round."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from transport.fairness import CallStarts, TurnDebt


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


@pytest.mark.parametrize(("seconds", "expected"), [(0.0, 0), (0.000_24, 0), (0.001, 4), (3.0, 100)])
async def test_a_long_turn_is_paid_for(seconds: float, expected: int) -> None:
    """One round for each quarter of a millisecond, a hundred at most; and as many again for a failed connection."""
    debt = TurnDebt()
    async with counted_rounds() as rounds:
        before = rounds.count
        await debt.pay_for(seconds)
        paid = rounds.count
        await debt.pay_again()
        assert abs(paid - before - expected) <= 1
        assert abs(rounds.count - paid - expected) <= 1


async def test_calls_begin_one_after_another() -> None:
    """Of ten calls opened at once each begins in turn, with rounds of the others between; a cancelled one does not."""
    starts, begun = CallStarts(), list[tuple[int, int]]()

    async def begin(number: int, scope: trio.CancelScope, rounds: Rounds) -> None:
        with scope:
            await starts.wait_turn()
            begun.append((number, rounds.count))

    async with counted_rounds() as rounds, trio.open_nursery() as nursery:
        for number in range(10):
            scope = trio.CancelScope()
            nursery.start_soon(begin, number, scope, rounds)
            if number == 5:
                scope.cancel()
    assert sorted(number for number, _ in begun) == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    times = [at for _, at in begun]
    assert all(later - earlier >= 6 for earlier, later in itertools.pairwise(times))
