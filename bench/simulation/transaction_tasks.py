"""What chance decides of writers of transactions."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

TRANSACTION_CHANCE: Final = 0.2


@dataclass(frozen=True, slots=True)
class TransactionTask:
    """One writer of transactions."""

    versions: int
    keys_max: int
    """Keys of one version, at most."""
    pause_s: float


def transaction_tasks(rng: random.Random) -> list[TransactionTask]:
    """The writers of transactions of a run, if there are any."""
    if rng.random() >= TRANSACTION_CHANCE:
        return []
    return [
        TransactionTask(
            versions=rng.randint(1, 5),
            keys_max=rng.choice((1, 5, 40)),
            pause_s=rng.choice((0.001, 0.2, 1.0)),
        )
        for _ in range(rng.choice((1, 1, 2)))
    ]
