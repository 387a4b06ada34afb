"""What a server does before it listens, so that streams, heartbeats and PINGs do not wait for it later.

What is imported stays, so the garbage collector need not look at it again. How often it comes is left as it is: less
often would make a commit to ten thousand tails cheaper, but what dead connections had received waits for it (60 MiB
more after the unfinished messages of `python -m bench abuse`).

pyarrow looks for pandas the first time that it makes an array of Python objects, and imports it, which takes a second
of the event loop; a server has no use for it. It is told here that there is none. pyarrow asks once and remembers.
"""

from __future__ import annotations

import gc
import sys
from importlib.abc import MetaPathFinder

import pyarrow as pa


def warm_up() -> None:
    """Make this process one that only serves: nothing is imported later, and pandas never."""
    import numpy.ma  # noqa: F401  # numpy imports it by itself when it is first needed

    if "pandas" not in sys.modules:
        finder = _NoPandas()
        sys.meta_path.insert(0, finder)
        try:
            pa.array([0])
        finally:
            sys.meta_path.remove(finder)
    gc.collect()
    gc.freeze()


class _NoPandas(MetaPathFinder):
    """Says that pandas is not installed."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        """Refuse pandas, and leave the rest to others."""
        if fullname == "pandas":
            raise ModuleNotFoundError("a server does without pandas", name=fullname)
