"""Which columns the scan of one bucket asks for: those of the query, or all of the scan's by name. Pure.

A query that selects none asks for all. As long as no bucket of the scan has begun it stays so: a table that has more
columns than this client knows is refused. From then on the scan's columns are named: what is added to the table
meanwhile is not this scan's, though some buckets are opened late, or again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scanner.errors import ScannerError, SchemaMismatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scanner.proto.weir.v1 import scanner_pb2 as pb


class AskedColumns:
    """What is asked of one bucket, from one opening to the next.

    Args:
        names: The scan's columns.
        begun: Whether the scan has begun, in whichever bucket.
    """

    def __init__(self, names: Sequence[str], begun: Callable[[], bool]) -> None:
        self._names = names
        self._begun = begun
        self._named = False
        self._opening = False
        """Whether the bucket is being opened anew, and its columns are not named."""

    def open_anew(self) -> None:
        """The bucket is opened without a token, which would hold for the columns that it was made for."""
        self._named = self._begun()
        self._opening = not self._named

    def opened(self) -> None:
        """The bucket has begun: what fails from now on failed for another reason."""
        self._opening = False

    def put_into(self, query: pb.ScanQuery) -> None:
        """Name the columns, if that is what the bucket is asked for."""
        if self._named:
            query.columns[:] = self._names

    def asked_too_early(self, error: ScannerError) -> bool:
        """Whether an opening failed for a column that was added when the scan had begun elsewhere.

        It is to be repeated then, by name, which can be so once.
        """
        return isinstance(error, SchemaMismatch) and self._opening and self._begun()


def as_asked() -> AskedColumns:
    """Those of the query, whatever happens."""
    return AskedColumns((), lambda: False)
