"""What a server does before it listens, so that streams, heartbeats and PINGs do not wait for it later.

What is imported stays, so the garbage collector need not look at it again. How often it comes is left as it is: less
often would make a commit to ten thousand tails cheaper, but what dead connections had received waits for it (60 MiB
more after the unfinished messages of `python -m bench abuse`).

pyarrow looks for pandas when it first makes an array of Python objects: it does so here, where it is told that there is
none. It asks once and remembers.
"""

from __future__ import annotations

import gc
import sys

import pyarrow as pa

from scanner.cli.without_pandas import NO_PANDAS


def warm_up() -> None:
    """Make this process one that only serves: nothing is imported later, and pandas never."""
    import numpy.ma  # noqa: F401  # numpy imports it by itself when it is first needed

    if "pandas" not in sys.modules:
        sys.meta_path.insert(0, NO_PANDAS)
        try:
            pa.array([0])
        finally:
            sys.meta_path.remove(NO_PANDAS)
    gc.collect()
    gc.freeze()
