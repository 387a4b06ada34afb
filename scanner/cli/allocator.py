"""How the process of a server keeps memory that it will soon want again.

A scan makes and frees a few blocks of a megabyte for every block of rows. glibc gives the end of its heap back to the
kernel whenever some megabytes of it are free, or not, as what else is in use happens to lie; the kernel then clears and
maps the same pages again for the next block. The test of this module bounds the page faults that
are left with the thresholds below.

What many scans or calls have used at once is another matter. One small object behind gigabytes of free memory keeps
them in the process, so what stays free for a while is given back from the middle of the heap, too.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

import trio

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_TRIM_THRESHOLD_BYTES: Final = 32 << 20
"""Free memory at the end of a heap from which on it is given back."""
_MMAP_THRESHOLD_BYTES: Final = 4 << 20
"""What is larger is mapped alone, and given back when it is freed. Not below a block of rows and a batch."""

_SPARE_BYTES: Final = 256 << 20
"""Free memory of the heaps that may stay there."""
_LOOK_INTERVAL_S: Final = 60.0


class _Mallinfo(ctypes.Structure):
    """`struct mallinfo2` of glibc, malloc.h."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    )


def keep_freed_memory() -> bool:
    """Tell glibc to give less back to the kernel: the end of a heap from 32 MiB on.

    Returns:
        Whether it does; False: the C library is another one, and left alone.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    settings = ((_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES), (_M_TRIM_THRESHOLD, _TRIM_THRESHOLD_BYTES))
    return all(mallopt(parameter, value) for parameter, value in settings)


class FreeMemory:
    """What the heaps of this process hold free. With another C library than glibc, or an old one, it does nothing."""

    def __init__(self) -> None:
        self._free_before = 0
        self._library: Any = None
        try:
            library = ctypes.CDLL(None)
            library.mallinfo2.restype = _Mallinfo
            library.malloc_trim.argtypes = (ctypes.c_size_t,)
        except (AttributeError, OSError, TypeError):
            return
        self._library = library

    def give_back(self) -> bool:
        """Give memory back to the kernel if much was free the last time, too.

        Other threads that want memory wait meanwhile, some tenths of a second for gigabytes.

        Returns:
            Whether it was tried.
        """
        if self._library is None:
            return False
        free = self._library.mallinfo2().fordblks
        spare, self._free_before = min(free, self._free_before), free
        if spare <= _SPARE_BYTES:
            return False
        self._library.malloc_trim(_TRIM_THRESHOLD_BYTES)
        return True


async def give_back_free_memory() -> None:
    """Look once a minute for memory that stays free, and give it back, until cancelled."""
    memory = FreeMemory()
    while True:
        await trio.sleep(_LOOK_INTERVAL_S)
        await trio.to_thread.run_sync(memory.give_back)
