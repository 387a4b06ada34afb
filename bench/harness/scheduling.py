"""Which of trio's tasks runs first, where several can: drawn from a seed, by the switch that Hypothesis uses."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, MutableSequence
from contextlib import contextmanager
from random import Random
from typing import Any

import trio


@contextmanager
def seeded_scheduling(seed: int | str) -> Iterator[Callable[[], None]]:
    """Take chance out of the order of this thread's tasks, for a block; other threads keep theirs.

    Yields:
        Begins anew with what the seed draws: what does the same from there on has the same order.
    """
    scheduler = trio._core._run
    deterministic, drawn = scheduler._ALLOW_DETERMINISTIC_SCHEDULING, scheduler._r
    own = Random(seed)
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    scheduler._r = _Scheduling(drawn, own)
    try:
        yield lambda: own.seed(seed)
    finally:
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING = deterministic  # type: ignore[misc]
        scheduler._r = drawn


class _Scheduling(Random):
    """The generators of trio's schedulers: one for the thread that makes this, one for those that run trio beside it.

    Args:
        others: For the other threads.
        own: For this thread.
    """

    def __init__(self, others: Random, own: Random) -> None:
        super().__init__()
        self._thread = threading.get_ident()
        self._others, self._own = others, own

    def random(self) -> float:
        """See `random.Random`."""
        return self._rng().random()

    def shuffle(self, x: MutableSequence[Any]) -> None:
        """See `random.Random`. Most turns of trio have one task, for which nothing is drawn."""
        if len(x) > 1:
            self._rng().shuffle(x)

    def _rng(self) -> Random:
        return self._own if threading.get_ident() == self._thread else self._others
