"""Memory that the machine has used before: a virtual machine gets it from its host page by page, at the first touch.

Whoever happens to be given a new page pays for that. A scan of an image to a client that keeps its batches took 0.22 us
of the client's CPU a row; 0.04 when the memory was not new. How long it takes here, the first time and then:

    time python -c "from bench.harness.memory import touch_memory; touch_memory()"

Some hosts are told what is free for two seconds, and take it back (`/sys/module/page_reporting`): there it is all new
again a minute later. So what is measured while others have their turn does all once more, right before.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Final

import psutil

_BYTES_MAX: Final = 8 << 30
_FREE_SHARE: Final = 0.5
_CGROUPS: Final = {
    Path("/sys/fs/cgroup"): ("memory.max", "memory.current"),
    Path("/sys/fs/cgroup/memory"): ("memory.limit_in_bytes", "memory.usage_in_bytes"),
}
"""Where a container says what it may use, and uses."""


def touch_memory() -> None:
    """Write to each page of half of what is free, in huge pages where there are any, and give it back.

    Seconds; the first time on a machine most of a minute. What is measured then is likely to get these pages.
    """
    pages = min(int(_free_bytes() * _FREE_SHARE), _BYTES_MAX) // mmap.PAGESIZE
    if not pages:
        return
    with mmap.mmap(-1, pages * mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        if hasattr(mmap, "MADV_HUGEPAGE"):  # Linux's
            memory.madvise(mmap.MADV_HUGEPAGE)
        memory[:: mmap.PAGESIZE] = bytes(pages)


def _free_bytes() -> int:
    """What this process may still use, of the machine's memory and of its container's."""
    free: int = psutil.virtual_memory().available
    for directory, (limit, usage) in _CGROUPS.items():
        try:
            limit_bytes, usage_bytes = (int((directory / name).read_text()) for name in (limit, usage))
        except (OSError, ValueError):  # there is none, or it is "max"
            continue
        free = min(free, max(0, limit_bytes - usage_bytes))
    return free
