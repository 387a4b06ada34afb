"""One seed, one history: again in the same process, and in other ones that hash otherwise."""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
import trio

from bench.simulation.world import simulate
from tests.support.nightly import everyday

if TYPE_CHECKING:
    from bench.simulation.history import History

SEEDS = (596, 607, *range(600, everyday(603, nightly=607)))
"""596 has a tail by long poll, 607 a reader group."""
PROGRAM = """
import sys
from bench.simulation.world import simulate
print([simulate(int(seed)).fingerprint for seed in sys.argv[1:]])
"""


@functools.cache
def first(seed: int) -> History:
    """The first run of a seed in this process, made once for all tests that compare with it."""
    return simulate(seed).history


def here(seed: int) -> str:
    """The fingerprint of a seed in this process."""
    return first(seed).fingerprint()


def fingerprints_elsewhere(hash_seed: str, seeds: Sequence[int]) -> str:
    """Of some seeds, as a process of its own has them, with the hash seed that is given."""
    command = [sys.executable, "-c", PROGRAM, *map(str, seeds)]
    environment = {"PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize("seed", SEEDS)
def test_again(seed: int) -> None:
    """The second run of a seed is the first one again, event for event."""
    again = simulate(seed)
    assert again.history.events == first(seed).events
    assert again.fingerprint == here(seed)


def test_elsewhere() -> None:
    """Processes that hash strings otherwise have the same histories as this one."""
    for hash_seed, seeds in (("1", SEEDS[::2]), ("2", SEEDS[1::2])):
        assert fingerprints_elsewhere(hash_seed, seeds) == str([here(seed) for seed in seeds])


def test_beside_other_runs() -> None:
    """A run of trio in another thread of the process, such as `scanner.sync` has, changes nothing."""
    alone = [here(seed) for seed in SEEDS[:4]]
    with running_beside():
        assert [simulate(seed).fingerprint for seed in SEEDS[:4]] == alone


@contextmanager
def running_beside() -> Iterator[None]:
    """Three tasks in another thread that are never done with being scheduled."""
    ended = threading.Event()

    async def turn() -> None:
        while not ended.is_set():
            await trio.lowlevel.checkpoint()

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(turn)

    thread = threading.Thread(target=trio.run, args=(run,))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_seeds_differ() -> None:
    """Different seeds are different runs."""
    assert len({here(seed) for seed in SEEDS}) == len(SEEDS)
