"""Five hundred seeds: nothing is wrong in any, and everything that can happen has happened."""

from __future__ import annotations

from collections import Counter

import pytest

from bench.questions.simulate import MUST_HAPPEN, line_of, run_seeds

SEEDS = 500
BLOCK_SEEDS = 50
"""Of one test: none takes longer than some tens of seconds on a busy machine."""


@pytest.fixture(scope="module")
def happened() -> Counter[str]:
    """What the blocks that were run have seen, and how many seeds that was."""
    return Counter()


@pytest.mark.parametrize("first_seed", range(0, SEEDS, BLOCK_SEEDS))
def test_seeds(first_seed: int, happened: Counter[str], counts: Counter[str]) -> None:
    """No seed of the block violates anything; one that does is told with the command that replays it."""
    simulated = run_seeds(first_seed, BLOCK_SEEDS)
    happened.update(simulated.happened)
    happened["seeds"] += simulated.seeds
    counts.update({"seeds": simulated.seeds, "simulated scans": simulated.happened["scans"]})
    assert [line_of(seed, found) for seed, found in simulated.violations.items()] == []


def test_everything_has_happened(happened: Counter[str]) -> None:
    """Over all seeds each kind of fault, and each way to go on after it, has happened at least once."""
    missing = [name for what, name in MUST_HAPPEN.items() if not happened[what]]
    assert not missing or happened["seeds"] < SEEDS
