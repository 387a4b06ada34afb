"""What Spark carries from the driver to the executors is read by the release of weir that made it, or refused.

Another release may read it without an error and do something else: what its classes do has changed, and a dataclass
with slots has its values by their places, so that one field more or less moves those behind it.
"""

from __future__ import annotations

from typing import Any, TypeVar

from scanner.extras import installed_version
from spark_source.errors import SourceError

T = TypeVar("T")


class OfOneRelease:
    """Base of the readers and writers, which Spark pickles.

    Invariant: nothing of a copy is read before its release is known to be the same.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _begin_copy, (type(self), installed_version()), self.__getstate__()


def _begin_copy(kind: type[T], release: str) -> T:
    """A copy without its state, which pickle reads afterwards.

    Raises:
        SourceError: It is of another release.
    """
    if release != installed_version():
        raise SourceError(
            f"the driver has weir {release}, and this Python {installed_version()}: install the same version on the"
            " driver and in the Python of every executor"
        )
    return kind.__new__(kind)
