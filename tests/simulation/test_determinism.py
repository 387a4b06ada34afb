"""One seed, one history: again in the same process, and in other ones that hash otherwise."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bench.simulation.world import simulate

SEEDS = tuple(range(600, 612))
PROGRAM = """
import sys
from bench.simulation.world import simulate
print([simulate(int(seed)).fingerprint for seed in sys.argv[1:]])
"""


def fingerprints_elsewhere(hash_seed: str) -> str:
    """Of the seeds, as a process of its own has them, with the hash seed that is given."""
    command = [sys.executable, "-c", PROGRAM, *map(str, SEEDS)]
    environment = {"PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize("seed", SEEDS)
def test_again(seed: int) -> None:
    """The second run of a seed is the first one again, event for event."""
    first, second = simulate(seed), simulate(seed)
    assert second.history.events == first.history.events
    assert second.fingerprint == first.fingerprint


def test_elsewhere() -> None:
    """Processes that hash strings otherwise have the same histories as this one."""
    here = str([simulate(seed).fingerprint for seed in SEEDS])
    assert fingerprints_elsewhere("1") == here
    assert fingerprints_elsewhere("2") == here


def test_seeds_differ() -> None:
    """Different seeds are different runs."""
    assert len({simulate(seed).fingerprint for seed in SEEDS}) == len(SEEDS)
