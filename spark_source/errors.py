"""What a user of the Spark source can get wrong.

Failures of the server and of the network keep their own classes (`scanner.ScannerError`); the classes here
say that an option or a schema has to change. All of them cross Spark's pickle boundary unharmed, because
every argument is passed to `Exception.__init__`.
"""

from __future__ import annotations

import datetime
import difflib
import logging
from collections.abc import Iterable
from types import TracebackType
from typing import Final

from scanner import ScannerError

_SHOWN_CHARACTERS_MAX: Final = 200
_LISTED_MAX: Final = 20
_logger = logging.getLogger("weir.spark")


class SourceError(Exception):
    """Base of what the Spark source raises on purpose."""


class SourceOptionError(SourceError):
    """An option of ``spark.read.format("weir")`` is unknown, missing or has a value that makes no sense.

    Args:
        option: The option's name, spelled as the documentation spells it; one that is unknown as the user did.
        value: The value as given; None if the option is missing.
        problem: One line: what is wrong and what is allowed.
    """

    def __init__(self, option: str, value: str | None, problem: str) -> None:
        super().__init__(option, value, problem)
        self.option = option
        self.value = value
        self.problem = problem

    def __str__(self) -> str:
        return self.problem


def shown(value: str | None) -> str:
    """A value as messages quote it: the beginning, if it is long. `SourceOptionError.value` has all of it."""
    if value is None or len(value) <= _SHOWN_CHARACTERS_MAX:
        return repr(value)
    return repr(f"{value[:_SHOWN_CHARACTERS_MAX]}...")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint at the known name that is nearest, to be put behind what is wrong; empty: none is near."""
    spelled = {each.lower(): each for each in known}
    nearest = difflib.get_close_matches(name.lower(), spelled, n=1)
    return f"; did you mean {spelled[nearest[0]]!r}?" if nearest else ""


def listed(names: Iterable[str]) -> str:
    """Column names as an error lists them: all, if they are few, else the first ones and how many more there are."""
    names = list(names)
    more = len(names) - _LISTED_MAX
    return ", ".join(names[:_LISTED_MAX]) + (f" and {more} more" if more > 0 else "")


class SourceUnsupportedError(SourceError):
    """The source does not do this yet; its one argument says in a line what it does not do, and what to do instead."""


class SourceSchemaError(SourceError):
    """A column cannot be read into the Spark type that is asked for.

    Args:
        column: The column's name.
        problem: One line: what is wrong and what to do about it.
    """

    def __init__(self, column: str, problem: str) -> None:
        super().__init__(column, problem)
        self.column = column
        self.problem = problem

    def __str__(self) -> str:
        return self.problem


class SourceDataLossError(SourceError):
    """Changes that a read wants are not kept any more, because retention has passed them.

    Args:
        table: Name of the table.
        bucket: Its bucket.
        start: The first offset that is wanted, or the time since which all changes are.
        end: One past the last one; None: there is no end.
        oldest: The oldest offset that is kept.
    """

    def __init__(
        self, table: str, bucket: int, start: int | datetime.datetime, end: int | None, oldest: int
    ) -> None:
        super().__init__(table, bucket, start, end, oldest)
        self.table = table
        self.bucket = bucket
        self.start = start
        self.end = end
        self.oldest = oldest

    def __str__(self) -> str:
        if isinstance(self.start, int):
            until = "on" if self.end is None else f"to {self.end}"
            wanted = f"from offset {self.start} {until}"
        else:
            wanted = f"since {self.start.isoformat()}"
        return (
            f"table {self.table}, bucket {self.bucket}: the changes {wanted} are wanted, and"
            f" the oldest that are kept begin at {self.oldest}; set option failOnDataLoss to false to go on from there,"
            " without the changes in between, or begin elsewhere: with other starting options, a stream with a new"
            " checkpoint, too"
        )


class SourceMissingBatchesError(SourceError):
    """Micro-batches before the one that is to be written are not in the table, which gets none behind the gap.

    Args:
        table: Name of the table.
        batch: The number of the micro-batch.
        newest: That of the query's newest one in the table; None: it has none of the query.
    """

    def __init__(self, table: str, batch: int, newest: int | None) -> None:
        super().__init__(table, batch, newest)
        self.table = table
        self.batch = batch
        self.newest = newest

    def __str__(self) -> str:
        return (
            f"{self.problem}. Perhaps it was restored from a backup, or created anew, or a copy of the checkpoint went"
            " on with another table: begin anew with a new checkpoint, or set option failOnMissingBatches to false to"
            " go on without the rows of the batches between"
        )

    @property
    def problem(self) -> str:
        """What is missing."""
        there = "no batch" if self.newest is None else f"batches up to {self.newest}"
        return f"table {self.table} has {there} of this query, and this is batch {self.batch}"


class SourceDataError(SourceError):
    """A row of a DataFrame cannot be written; its one argument says in a line why, and what to do."""


class PlainErrors:
    """A block whose `ScannerError` or `SourceError` leaves it as a user of Spark is to see it: without its origins.

    Spark prints every frame and every cause of what a source raises. Those of a failed connection are forty lines of
    threads and event loops, around the one that helps. They are logged, level debug.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, ScannerError | SourceError):
            _logger.debug("%s", error, exc_info=error)
            assert traceback is not None
            traceback.tb_next = None  # The frame of the block is left. To raise it here would add this one.
            error.__cause__ = None
