"""Windows that are held: when they are used all the same."""

from __future__ import annotations

import math

from tests.support.pair import Peer
from transport.protocol.flow_control import SendWindow
from transport.protocol.small_frames import HOLD_S, Held, worth_a_frame


def test_half_of_a_tiny_window_is_worth_a_frame() -> None:
    """A peer that never gave more than three octets is served by single ones."""
    for largest, least in ((1, 1), (2, 1), (3, 1), (4, 2)):
        window = SendWindow(largest)
        window.claim(largest)
        for available in range(1, largest + 1):
            window.open_untrusted(1, None)
            assert worth_a_frame(window, 100) == (available >= least), (largest, available)


def test_a_window_that_was_large_once_is_not_used_bit_by_bit() -> None:
    """Half of the largest that the peer ever gave counts, also where WINDOW_UPDATEs made it so."""
    window = SendWindow(10)
    window.open_untrusted(990, None)
    window.claim(1_000)
    window.open_untrusted(499, None)
    assert not worth_a_frame(window, 5_000)
    window.open_untrusted(1, None)
    assert worth_a_frame(window, 5_000)


def test_what_is_held_is_due_at_its_deadline() -> None:
    """At that very instant, and not again: a timer that is set for the deadline does not spin."""
    peer, held = Peer(), Held()
    peer.request(1)
    peer.request(3)
    first, second = peer.core.streams.values()
    held.hold_stream(first, 1.0)
    held.hold_stream(second, 2.0)
    held.hold_stream(first, 3.0)
    held.hold_connection(1.5)
    assert held.deadline == 1.0 + HOLD_S
    assert held.due(held.deadline) == [first]
    assert held.deadline == 1.5 + HOLD_S
    assert held.due(held.deadline) == []
    assert held.deadline == 2.0 + HOLD_S
    assert held.due(held.deadline) == [second]
    assert held.deadline == math.inf
