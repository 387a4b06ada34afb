"""Runs leave nothing behind in their process."""

from __future__ import annotations

import gc

import psutil

from bench.simulation.world import simulate

WARM_UP_SEEDS = 15
SEEDS = 45
OBJECTS_MAX = 2_000
"""Containers that all those runs may leave: caches of libraries that are still being filled."""
BYTES_MAX = 30_000_000


def test_runs_do_not_pile_up() -> None:
    """After forty-five more runs the process has no more objects, and next to no more memory, than before them."""
    for seed in range(WARM_UP_SEEDS):
        simulate(seed)
    gc.collect()
    objects, resident = len(gc.get_objects()), psutil.Process().memory_info().rss
    for seed in range(WARM_UP_SEEDS, WARM_UP_SEEDS + SEEDS):
        simulate(seed)
    gc.collect()
    assert len(gc.get_objects()) - objects < OBJECTS_MAX
    assert psutil.Process().memory_info().rss - resident < BYTES_MAX
