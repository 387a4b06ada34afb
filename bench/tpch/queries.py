"""The 22 queries of TPC-H, with the specification's validation parameters, and whether two answers are equal.

All of their results are integers, decimals, dates and texts: nothing is to be rounded, so answers are compared exactly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUERIES: Final = range(1, 23)
IN_EVERY_MODE: Final = (1, 3, 6, 12, 14)
"""Those that are run in every mode: a scan with an aggregate, joins of two and three tables."""
_TEXTS: Final = Path(__file__).with_name("queries")
_FRACTION: Final = Decimal("0.0001")

Answer = Sequence[tuple[object, ...]]
"""The rows of a result, in its order."""


def query_text(number: int, scale: float) -> str:
    """A query as Spark's SQL.

    Args:
        number: One of `QUERIES`.
        scale: The scale factor of the data, of which query 11 has a parameter.
    """
    text = (_TEXTS / f"{number:02}.sql").read_text(encoding="utf-8")
    return text.replace(":fraction", f"{_FRACTION / Decimal(str(scale)):f}")


def ask(spark: SparkSession, number: int, scale: float) -> Answer:
    """What a query answers over the tables that the session has views of."""
    return [tuple(row) for row in spark.sql(query_text(number, scale)).collect()]


def difference(expected: Answer, found: Answer) -> str | None:
    """How two answers differ, in one line; None: they are equal, row by row, in whatever order."""
    missing, extra = Counter(expected) - Counter(found), Counter(found) - Counter(expected)
    if not missing and not extra:
        return None
    parts = [f"{missing.total()} rows of {len(expected)} are missing, {extra.total()} are not expected"]
    parts += [f"{name} {next(iter(rows))}" for name, rows in (("missing", missing), ("found", extra)) if rows]
    return "; ".join(parts)
