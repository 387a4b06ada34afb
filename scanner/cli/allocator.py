"""How the process of a server keeps memory that it will soon want again.

A scan makes and frees a few blocks of a megabyte for every block of rows. glibc gives the end of its heap back to the
kernel whenever some megabytes of it are free, or not, as what else is in use happens to lie; the kernel then clears and
maps the same pages again for the next block. The test of this module bounds the page faults that
are left with the thresholds below.
"""

from __future__ import annotations

import ctypes
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_TRIM_THRESHOLD_BYTES: Final = 32 << 20
"""Free memory at the end of a heap from which on it is given back."""
_MMAP_THRESHOLD_BYTES: Final = 4 << 20
"""What is larger is mapped alone, and given back when it is freed. Not below a block of rows and a batch."""


def keep_freed_memory() -> bool:
    """Tell glibc to give less back to the kernel; at most 32 MiB a heap more stay with the process.

    Returns:
        Whether it does; False: the C library is another one, and left alone.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    settings = ((_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES), (_M_TRIM_THRESHOLD, _TRIM_THRESHOLD_BYTES))
    return all(mallopt(parameter, value) for parameter, value in settings)
