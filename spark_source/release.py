"""What Spark carries from the driver to the executors is read by the release of weir that made it, or refused.

Another release may read it without an error and do something else: what its classes do has changed, and a dataclass
with slots has its values by their places, so that one field more or less moves those behind it.
"""

from __future__ import annotations

import importlib.metadata
from functools import cache
from typing import Any, TypeVar

from scanner.extras import DISTRIBUTION
from spark_source.errors import SourceError

T = TypeVar("T")


class OfOneRelease:
    """Base of the readers and writers, which Spark pickles.

    Invariant: nothing of a copy is read before its release is known to be the same.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _begin_copy, (type(self), installed_release()), self.__getstate__()


@cache
def installed_release() -> str:
    """The version of weir that this Python has installed."""
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:  # It runs from a directory of sources.
        return "unknown"


def _begin_copy(kind: type[T], release: str) -> T:
    """A copy without its state, which pickle reads afterwards.

    Raises:
        SourceError: It is of another release.
    """
    if release != installed_release():
        raise SourceError(
            f"the driver has weir {release}, and this Python {installed_release()}: install the same version on the"
            " driver and in the Python of every executor"
        )
    return kind.__new__(kind)
