"""Budgets, each alone: what a frame costs, and what the frames that we send earn."""

from __future__ import annotations

import pytest

from transport.errors import RemoteProtocolError
from transport.protocol.abuse import ALLOWANCES, Budgets, Cost
from transport.protocol.clock import Clock


def spent(budgets: Budgets, cost: Cost) -> int:
    """Frames until the budget is empty."""
    count = 0
    with pytest.raises(RemoteProtocolError):
        while True:
            budgets.spend_untrusted(cost)
            count += 1
    return count


@pytest.mark.parametrize("cost", Cost)
def test_a_frame_costs_one(cost: Cost) -> None:
    """A full budget pays for as many frames at one instant as its burst says."""
    assert spent(Budgets(Clock(0.0)), cost) == ALLOWANCES[cost].burst


@pytest.mark.parametrize("cost", [Cost.PING, Cost.IGNORED, Cost.WINDOW_UPDATE, Cost.CONTINUATION])
def test_what_is_sent_is_earned_once(cost: Cost) -> None:
    """Frames and octets that were sent pay for as many frames as the allowance says, and never again."""
    allowance, budgets = ALLOWANCES[cost], Budgets(Clock(0.0))
    spent(budgets, cost)
    for _ in range(3):
        budgets.sent_frames += 20
        assert spent(budgets, cost) == 20 * allowance.per_frame
        budgets.sent_bytes += 1 << 18
        assert spent(budgets, cost) == (1 << 18) * allowance.per_byte


def test_what_is_saved_goes_beyond_a_full_budget() -> None:
    """WINDOW_UPDATEs may answer what was sent long ago; for PINGs a full budget is the most, and half of one before."""
    # What was earned is added when half of the burst is spent.
    for cost, count in ((Cost.WINDOW_UPDATE, 10_000 + 3 * 50_000), (Cost.PING, 100 + 200)):
        budgets = Budgets(Clock(0.0))
        budgets.sent_frames += 50_000
        assert spent(budgets, cost) == count
