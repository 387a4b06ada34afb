"""Parks scans whose peer takes nothing: one timer for all of a server.

A push scan waits for room in its stream once a batch. A timer for each wait costs more than the rest of the wait, and
nearly none ever fires.

This module knows no stream and no storage.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from typing import NoReturn, Protocol

import trio


class Parkable(Protocol):
    """A scan that can send nothing."""

    def park(self) -> None:
        """Free what it holds in storage; never raises, does not wait."""


class ParkTimer:
    """The scans of one server that wait for their peers to take something."""

    def __init__(self) -> None:
        self._due: dict[Parkable, float] = {}
        self._wakes_at = math.inf
        self._wake = trio.Event()

    def parks(self, scan: Parkable, at: float) -> AbstractContextManager[None]:
        """Park a scan if the block lasts until then; the block goes on.

        Args:
            scan: In no other such block.
            at: Seconds of trio's clock; infinity: never.
        """
        return _Waiting(self, scan, at)

    def begin(self, scan: Parkable, at: float) -> None:
        """`parks`, without a block; `end` follows."""
        self._due[scan] = at
        if at < self._wakes_at:
            self._wake.set()

    def end(self, scan: Parkable) -> None:
        """The scan waits no longer. Idempotent."""
        self._due.pop(scan, None)

    async def run(self) -> NoReturn:
        """Park those that are due.

        Waits:
            For the next one.

        Cancellation:
            No effect; this is how it ends.
        """
        while True:
            # It sleeps on when nobody waits any more: waking for each that begins to wait would cost what this saves.
            self._wakes_at = min(self._due.values(), default=math.inf)
            self._wake = trio.Event()
            with trio.move_on_at(self._wakes_at):
                await self._wake.wait()
            self._park_due(trio.current_time())

    def _park_due(self, now: float) -> None:
        # Not in `run`, which would hold the last of them, and its connection, until another one is due.
        for scan in [scan for scan, at in self._due.items() if at <= now]:
            self.end(scan)
            scan.park()


class _Waiting(AbstractContextManager[None]):
    __slots__ = ("_at", "_scan", "_timer")

    def __init__(self, timer: ParkTimer, scan: Parkable, at: float) -> None:
        self._timer = timer
        self._scan = scan
        self._at = at

    def __enter__(self) -> None:
        self._timer.begin(self._scan, self._at)

    def __exit__(self, *_: object) -> None:
        self._timer.end(self._scan)
