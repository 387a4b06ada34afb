"""What a server does before it listens, so that streams, heartbeats and PINGs do not wait for it later.

What is imported stays, so the garbage collector need not look at it again. And it comes less often than by Python's
default: a commit to ten thousand tails makes as many objects that soon go, none of them in a cycle, and to look for
cycles in all that a server holds took a quarter of the time (`python -m bench tail --part idle`).

pyarrow looks for pandas the first time that it makes an array of Python objects, and imports it, which takes a second
of the event loop; a server has no use for it. It is told here that there is none. pyarrow asks once and remembers.
"""

from __future__ import annotations

import gc
import sys
from importlib.abc import MetaPathFinder
from typing import Final

import pyarrow as pa

_YOUNG_OBJECTS_MAX: Final = 10_000
"""Made and not freed before the garbage collector looks for cycles among them; Python's default is 700."""


def warm_up() -> None:
    """Make this process one that only serves: nothing is imported later, pandas never, and garbage seldom collected."""
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
    gc.set_threshold(_YOUNG_OBJECTS_MAX, *gc.get_threshold()[1:])


class _NoPandas(MetaPathFinder):
    """Says that pandas is not installed."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        """Refuse pandas, and leave the rest to others."""
        if fullname == "pandas":
            raise ModuleNotFoundError("a server does without pandas", name=fullname)
