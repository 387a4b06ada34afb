"""What a server imports before it listens, so that nothing is imported while streams, heartbeats and PINGs wait.

pyarrow looks for pandas the first time that it makes an array of Python objects, and imports it, which takes a second
of the event loop; a server has no use for it. It is told here that there is none. pyarrow asks once and remembers.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder

import pyarrow as pa


def warm_up() -> None:
    """Leave nothing to be imported later, and keep pandas out of this process. For a process that only serves."""
    import numpy.ma  # noqa: F401  # numpy imports it by itself when it is first needed

    if "pandas" not in sys.modules:
        finder = _NoPandas()
        sys.meta_path.insert(0, finder)
        try:
            pa.array([0])
        finally:
            sys.meta_path.remove(finder)


class _NoPandas(MetaPathFinder):
    """Says that pandas is not installed."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        """Refuse pandas, and leave the rest to others."""
        if fullname == "pandas":
            raise ModuleNotFoundError("a server does without pandas", name=fullname)
