"""Caps of the pull models: slots per bucket and per server."""

from __future__ import annotations

import pytest

from scanner.errors import TooManyScans
from scanner.server.pull.slots import Slots


def test_caps() -> None:
    """The one too many is refused with what to do, retriably, as often as it is asked for."""
    slots = Slots("things", 1, 2)
    slots.reserve("a")
    for _ in range(2):
        with pytest.raises(
            TooManyScans, match="1 things are open on this bucket, and 1 are allowed"
        ) as caught:
            slots.reserve("a")
    assert caught.value.retriable
    slots.reserve("b")
    with pytest.raises(TooManyScans, match="2 things are open on this server"):
        slots.reserve("c")


def test_slot_is_given_back_once() -> None:
    """Whoever holds it last gives it back; a reservation that was handed over holds nothing."""
    slots = Slots("things", 1, 2)
    first = slots.reserve("a")
    second = first.hand_over()
    slots.release(first)
    with pytest.raises(TooManyScans):
        slots.reserve("a")
    for _ in range(2):
        slots.release(second)
    slots.reserve("a")
    with pytest.raises(TooManyScans):
        slots.reserve("a")
