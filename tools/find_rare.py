"""Finds seeds of the simulation for the rare happenings of `tests/simulation/rare.py`.

Run `python -m tools.find_rare --seeds 600` when `test_what_is_rare_has_happened` fails: for each happening that its
seed does not have any more, it prints others that do, the cheapest first. It takes some minutes.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict

from bench.questions.simulate import line_of, run_seeds
from tests.simulation.rare import RARE
from tests.support.happenings import seeing


def main() -> None:
    """Print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=600, help="how many to look at, beside those of rare.py")
    wanted = {what: happening for each in RARE.values() for what, happening in each.items()}
    found: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for seed in {*range(parser.parse_args().seeds), *RARE}:
        began_s = time.process_time()
        with seeing(happening.place for happening in wanted.values()) as seen:
            simulated = run_seeds(seed, 1)
        for violations in simulated.violations.values():
            print(line_of(seed, violations))
        cost_s = round(time.process_time() - began_s, 2)
        for what, happening in wanted.items():
            if happening in seen:
                found[what].append((cost_s, seed))
    for seed, each in RARE.items():
        for what in each:
            if seed not in [other for _, other in found[what]]:
                print(f"{seed}: {what}: (seconds, seed) {sorted(found[what])[:5]}")


if __name__ == "__main__":
    main()
