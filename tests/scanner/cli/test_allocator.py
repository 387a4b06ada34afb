"""Memory that a server frees and wants again stays with its process."""

from __future__ import annotations

import subprocess
import sys

FAULTS = """
import resource
from scanner.cli.allocator import keep_freed_memory

kept = keep_freed_memory()

def use():
    blocks = [bytes(1 << 20) for _ in range(8)]

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

for _ in range(3):
    use()
before = faults()
for _ in range(20):
    use()
print(kept, faults() - before)
"""
"""In a process of its own: it changes its process for good."""

SPARE = """
import os
from scanner.cli.allocator import FreeMemory, keep_freed_memory

def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20

keep_freed_memory()
memory = FreeMemory()
blocks = [(b"x" * (1 << 20), bytes(4_000)) for _ in range(320)]
blocks = [small for large, small in blocks]
held, first = resident(), memory.give_back()
print(first, memory.give_back(), held - resident())
"""
"""Small objects that live keep 320 MiB of free memory between them in the process."""


def test_memory_that_is_wanted_again_causes_no_page_faults() -> None:
    """Eight blocks of a mebibyte, freed and made anew, are the same pages; else each time 2048 faults."""
    run = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    kept, faults = run.stdout.split()
    # Another C library than glibc is left alone.
    assert kept == "False" or int(faults) < 2048


def test_memory_that_stays_free_is_given_back() -> None:
    """Not at the first look: it might be wanted at once. By itself glibc gives none back: the end of its heap lives."""
    run = subprocess.run([sys.executable, "-c", SPARE], capture_output=True, text=True, check=True)
    first, second, given_back = run.stdout.split()
    assert first == "False"
    # Another C library than glibc is left alone.
    assert second == "False" or int(given_back) > 256
