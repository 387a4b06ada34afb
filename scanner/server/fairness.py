"""Fairness: what calls share, and in what pieces each gets its part.

One event loop runs all calls, and a task keeps it until it waits. So long work is cut into pieces of a few
milliseconds, and after each piece every other task that can run has a turn (`pass_turn`).

    shared            among                a piece is
    the event loop    push scans, pages    one step of the source: `block_rows_max`, `block_bytes_max` of the config;
                                           or one batch
                      writes               `write_slice_rows_max` rows encoded
                      point reads          the same of keys, or what `Lookup` reads at once
                      demands              one message, for `DEMAND_TURNS` turns of the others
    disk and decoder  push scans           what the consumer has shown that it takes (`SlowStart`)
                      pages                what is missing on the page (`page_step_bytes`)
    snapshots         parked scans         one attempt in `REOPEN_INTERVAL_S`

Bytes on a connection are shared out by the transport.
"""

from __future__ import annotations

from typing import Final

import trio

DEMAND_TURNS: Final = 8
"""Turns of every other task after a demand. Receiving does not wait while a message is buffered, and one DATA frame may
bring hundreds; no consumer needs more than one in a while, so one that floods gets fewer turns than the others."""
REOPEN_INTERVAL_S: Final = 1.0
"""How often a parked scan that finds no room for its snapshot tries again."""
_STEP_BYTES_MIN: Final = 64 * 1024
"""Less would be all overhead."""
_STEP_BYTES_MAX: Final = 1 << 30
"""More than any source reads in one step."""
_PAGE_STEPS: Final = 8
"""A step for a page reads at least this part of the page."""


async def pass_turn(turns: int = 1) -> None:
    """Let every other task that can run have its turn, so many times.

    Cancellation:
        No effect.
    """
    for _ in range(turns):
        await trio.lowlevel.checkpoint()


class SlowStart:
    """The size of a push scan's steps: doubles from 64 KiB with each, and begins anew after a park.

    A consumer that asks for little and then takes nothing costs one small read; one that goes on taking soon gets
    steps as large as its source makes them.
    """

    __slots__ = ("_bytes",)

    def __init__(self) -> None:
        self._bytes = _STEP_BYTES_MIN

    def next_step_bytes(self, credit_bytes: int) -> int:
        """Stored bytes to read in the next step; all that the credit allows, if that is more.

        Args:
            credit_bytes: Credit left.
        """
        size = max(credit_bytes, self._bytes)
        self._bytes = min(2 * self._bytes, _STEP_BYTES_MAX)
        return size

    def restart(self) -> None:
        """Begin anew: the consumer has stalled."""
        self._bytes = _STEP_BYTES_MIN


def page_step_bytes(page_bytes: int, pending_bytes: int) -> int:
    """Stored bytes to read in the next step for a page whose rest is thrown away.

    Args:
        page_bytes: Of the page, above 0.
        pending_bytes: Read for it so far.
    """
    return max(page_bytes - pending_bytes, page_bytes // _PAGE_STEPS, 1)
