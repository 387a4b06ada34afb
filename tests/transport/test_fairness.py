"""How connections share an event loop: rounds that are given, counted by a task that takes one step a round."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from tests.support.rounds import Rounds, counted_rounds
from transport.fairness import CallStarts, TurnDebt

if TYPE_CHECKING:
    from trio.testing import MockClock


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


class Begun:
    """Calls that take some time to begin, by a clock that nothing else moves."""

    def __init__(self, clock: MockClock, rounds: Rounds, nursery: trio.Nursery, seconds: list[float]) -> None:
        self._clock, self._rounds, self._nursery, self._seconds = clock, rounds, nursery, seconds
        self.numbers: list[int] = []
        self.at: Counter[int] = Counter()
        """Calls that began, by the number of the round."""
        self.dropped = 0

    def call(self, number: int) -> _Numbered:
        """One more."""
        return _Numbered(self, number)

    def begin(self, number: int) -> None:
        """As a server begins a call: in a task of its own."""
        self.numbers.append(number)
        self._nursery.start_soon(self._work, self._seconds[number])

    async def _work(self, seconds: float) -> None:
        self._clock.jump(seconds)
        self.at[self._rounds.count] += 1


class _Numbered:
    def __init__(self, begun: Begun, number: int) -> None:
        self._begun, self._number = begun, number

    @property
    def over(self) -> bool:
        return self._number < 0

    def begin(self) -> None:
        self._begun.begin(self._number)

    def drop(self) -> None:
        self._begun.dropped += 1


def _batches(begun: Begun) -> list[int]:
    """Calls of each batch; a batch may begin in two rounds next to each other, and six are between two batches."""
    sizes, last = list[int](), -10
    for at, count in sorted(begun.at.items()):
        if at - last <= 1:
            sizes[-1] += count
        else:
            assert at - last >= 5
            sizes.append(count)
        last = at
    return sizes


DEAR, CHEAP = 0.001_5, 0.000_01


@pytest.mark.parametrize(
    ("seconds", "batches"),
    [
        ([DEAR] * 10, [1] * 10),
        ([CHEAP] * 40, [1, 2, 4, 8, 16, 9]),
        ([0.000_4] * 10, [1, 2, 2, 2, 2, 1]),
        ([CHEAP] * 15 + [DEAR] * 20, [1, 2, 4, 8, 16, 1, 1, 1, 1]),
    ],
    ids=["dear", "cheap", "between", "cheap, then dear"],
)
async def test_calls_begin_in_batches(
    seconds: list[float], batches: list[int], mock_clock: MockClock
) -> None:
    """In their order, with rounds of the others between; many at once only where many take next to no time."""
    starts = CallStarts(1_000)
    async with counted_rounds() as rounds, trio.open_nursery() as nursery:
        begun = Begun(mock_clock, rounds, nursery, seconds)
        for number in range(len(seconds)):
            starts.add(begun.call(number), nursery)
    assert begun.numbers == list(range(len(seconds)))
    assert _batches(begun) == batches


async def test_calls_of_a_lost_connection_do_not_begin(mock_clock: MockClock) -> None:
    """What waits when the connection goes is dropped, and none of it twice."""
    starts = CallStarts(1_000)
    async with counted_rounds() as rounds, trio.open_nursery() as nursery:
        begun = Begun(mock_clock, rounds, nursery, [DEAR] * 10)
        async with trio.open_nursery() as connection:
            for number in range(10):
                starts.add(begun.call(number), connection)
            await trio.lowlevel.checkpoint()
            connection.cancel_scope.cancel()
    assert begun.numbers == [0]
    assert begun.dropped == 9


async def test_calls_that_are_over_do_not_pile_up(mock_clock: MockClock) -> None:
    """While calls wait for others to end, those that were reset meanwhile are dropped, and the others stay."""
    starts = CallStarts(2)
    for _ in range(2):
        starts.begun()
    async with counted_rounds() as rounds, trio.open_nursery() as nursery:
        begun = Begun(mock_clock, rounds, nursery, [CHEAP] * 2)
        for number in (0, *[-1] * 50, 1):
            starts.add(begun.call(number), nursery)
        assert begun.dropped >= 48
        for _ in range(10):
            await trio.lowlevel.checkpoint()
        assert begun.numbers == []
        starts.ended()
    assert begun.numbers == [0, 1]


async def test_no_batch_has_more_calls_than_may_run(mock_clock: MockClock) -> None:
    """Calls that are cheap begin many at once, and no more than there is room for; the others as these end."""
    starts = CallStarts(20)

    class Running(Begun):
        def begin(self, number: int) -> None:
            starts.begun()
            super().begin(number)

    async with counted_rounds() as rounds, trio.open_nursery() as nursery:
        begun = Running(mock_clock, rounds, nursery, [CHEAP] * 40)
        for number in range(40):
            starts.add(begun.call(number), nursery)
        for _ in range(100):
            await trio.lowlevel.checkpoint()
        assert begun.numbers == list(range(20))
        for _ in range(20):
            starts.ended()
    assert begun.numbers == list(range(40))
