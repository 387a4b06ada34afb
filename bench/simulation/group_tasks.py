"""What the readers of a group are to do: decided from the seed, like the rest of a workload."""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass
from typing import Final

STINTS_MAX: Final = 3


class StintEnd(enum.Enum):
    """How a reader ceases to be one."""

    STAYS = "stays"
    """It does not, until the group has read everything."""
    LEAVES = "leaves"
    """In good order."""
    DIES = "dies"
    """From one moment to the next: its connections are reset, and it says nothing any more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stint:
    """One membership of a reader, by a process of its own."""

    after_s: float
    """Pause before it joins."""
    end: StintEnd
    turn_at: int
    """Batches until it leaves or dies."""
    freeze_at: int
    """Batches until it freezes; 0: it does not."""
    frozen_s: float
    """For so long it does nothing, and nothing gets through to it or from it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReaderTask:
    """One reader of a group."""

    stints: tuple[Stint, ...]
    commit_every: int
    """Batches after which it stores positions; 0: they are stored by themselves."""
    credit_bytes: int
    pause_s: float
    """After each batch."""


def reader_tasks(rng: random.Random) -> list[ReaderTask]:
    """Two or three readers of one group, the first of which stays."""
    return [reader_task(rng, stays=number == 0) for number in range(rng.choice((2, 2, 3)))]


def reader_task(rng: random.Random, *, stays: bool) -> ReaderTask:
    """Any reader.

    Args:
        rng: Decides.
        stays: Whether it comes again until it stays.
    """
    stints = [stint(rng)]
    while len(stints) < STINTS_MAX and stints[-1].end is not StintEnd.STAYS and rng.random() < 0.7:
        stints.append(stint(rng))
    if stays and stints[-1].end is not StintEnd.STAYS:
        stints.append(stint(rng, StintEnd.STAYS))
    return ReaderTask(
        stints=tuple(stints),
        commit_every=rng.choice((0, 1, 1, 2, 5)),
        credit_bytes=rng.choice((700, 6_000, 1 << 20)),
        pause_s=rng.choice((0.0, 0.02, 0.1)),
    )


def stint(rng: random.Random, end: StintEnd | None = None) -> Stint:
    """Any membership; it ends in a way that is given, or in any."""
    return Stint(
        after_s=rng.choice((0.0, 0.0, 0.1, 1.0)),
        end=rng.choice(tuple(StintEnd)) if end is None else end,
        turn_at=rng.choice((1, 2, 4)),
        freeze_at=rng.choice((0, 0, 1, 2, 4)),
        frozen_s=rng.choice((1.0, 4.0)),
    )
