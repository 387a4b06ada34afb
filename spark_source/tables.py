"""Tables as DataFrames and views: what most notebooks begin with, in fewer words than the options take.

Spark does not tell a source written in Python which rows and columns a query uses, and keeps one reader for each
``load()``. So both are said of the load, and each `TableRead.load` is a load of its own: another condition takes no row
away from anybody else.
"""

from __future__ import annotations

import datetime
import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, functions

from scanner import ArgumentInvalid, TableDescription, parse_where
from scanner.sync import Client
from spark_source.connection import ask
from spark_source.data_source import WeirDataSource
from spark_source.errors import PlainErrors, SourceOptionError, SourceSchemaError
from spark_source.options import SourceOptions, columns_text, refused
from spark_source.schema import spark_schema
from spark_source.stream.options import CHANGE_OPTION_NAMES

_logger = logging.getLogger("weir.spark")
_THRESHOLD = "spark.sql.autoBroadcastJoinThreshold"
_FORMAT = WeirDataSource.name()
_SIZE = re.compile(r"(?P<number>-?[0-9]+)(?P<unit>[kmgtp]?)(i?b)?")


def table(spark: SparkSession, name: str, *, endpoint: str, **options: object) -> TableRead:
    """Begin to read a table.

    Args:
        spark: The session.
        name: Of the table.
        endpoint: ``HOST:PORT`` of the server, reachable from the driver and from every executor.
        options: Those of `WeirDataSource`, such as ``splits=4`` and ``tokenFile="/run/token"``; one that is None is
            left out.

    Raises:
        SourceOptionError: An option is unknown, or given twice, or its value makes no sense.

    Example:
        >>> dear = table(spark, "orders", endpoint="127.0.0.1:9123").where("price > 10").select("id", "price").load()
    """
    return TableRead(spark, _options_of(endpoint, name, options))


@dataclass(frozen=True)
class TableRead:
    """A table, and what of it is to be read: described by its methods, each of which returns another, and loaded."""

    spark: SparkSession
    """The session."""
    options: Mapping[str, str]
    """Those of the load, as `WeirDataSource` takes them."""

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            SourceOptionError: One is unknown, contradicts another, or has a value that makes no sense.
        """
        SourceOptions.parse(self.options)

    def where(self, condition: str) -> TableRead:
        """Read only the rows that meet a condition, too; the server evaluates it.

        Args:
            condition: Such as ``price > 10 AND item IS NOT NULL``; the grammar is that of option ``where``. Whether the
                table has the columns is checked when it is loaded.

        Raises:
            SourceOptionError: It is not one condition.
        """
        try:
            # Alone: what `a) OR (b` says would not all be joined to what was said before.
            parse_where(condition)
        except ArgumentInvalid as error:
            raise refused("where", str(condition), error.message) from None
        before = next((text for each, text in self.options.items() if each.lower() == "where"), None)
        return self._with("where", condition if before is None else f"({before}) AND ({condition})")

    def select(self, *columns: str) -> TableRead:
        """Read only these columns, in this order. The last call wins.

        Raises:
            SourceOptionError: There is none, one is there twice, or a name has a comma in it, or is no text.
        """
        return self._with("columns", columns_text(columns))

    def as_of(self, state: int | Mapping[int, int] | datetime.datetime | str) -> TableRead:
        """Read a state of the past. The last call wins.

        Args:
            state: A log offset of all buckets, or a dict with that of each; or a `datetime` with a time zone: every
                commit before it, and none from it on; or the id of a lease that you hold: what that keeps.

        Raises:
            SourceOptionError: It is none of these, or a time without a zone.
        """
        others = {"asof", "asoftimestamp", "leaseid"}
        rest = replace(
            self, options={each: text for each, text in self.options.items() if each.lower() not in others}
        )
        if isinstance(state, datetime.datetime):
            return rest._with("asOfTimestamp", state.isoformat())
        if isinstance(state, Mapping):
            return rest._with("asOf", ",".join(f"{bucket}:{offset}" for bucket, offset in state.items()))
        return rest._with("leaseId" if isinstance(state, str) else "asOf", str(state))

    def load(self, *, broadcast: bool | None = None) -> DataFrame:
        """The rows as a DataFrame: a load of its own, which reads one state, that of its first use.

        Args:
            broadcast: Send a copy of all rows to each executor in a join, instead of shuffling the other side. None:
                if the table takes no more stored bytes than ``spark.sql.autoBroadcastJoinThreshold``, since Spark
                cannot ask a source written in Python how large it is. Not of an offset or a time of the past: nobody
                knows how large the table was.

        Raises:
            TableNotFound, ColumnNotFound: There is none; the message lists those there are.
            SourceOptionError: A condition or a key does not fit the table.
            ScannerError: The server cannot be asked.

        Waits: For the server's description of the table, and for the size of each of its buckets.
        """
        if broadcast is None:
            broadcast = self._is_small()
        frame = self.spark.read.format(_FORMAT).options(**self.options).load()
        return functions.broadcast(frame) if broadcast else frame

    def _is_small(self) -> bool:
        threshold = _bytes(self.spark.conf.get(_THRESHOLD))
        options = SourceOptions.parse(self.options)
        # A state of the past may have been much larger than the table is now, as before its rows were deleted.
        if threshold <= 0 or options.names_state:
            return False
        with PlainErrors():
            return ask(options, lambda client: _stored_bytes(client, options.table, threshold)) <= threshold

    def _with(self, name: str, text: str) -> TableRead:
        others = {each: value for each, value in self.options.items() if each.lower() != name.lower()}
        return replace(self, options={**others, name: text})


def views(spark: SparkSession, endpoint: str, prefix: str = "", **options: object) -> dict[str, DataFrame]:
    """Make a temporary view of every table that the caller may read, for SQL.

    A view is one load: what it reads is the state of its first use, until it is made anew.

    Args:
        spark: The session; views of these names are replaced.
        endpoint: ``HOST:PORT`` of the server.
        prefix: In front of each table's name, in the name of its view.
        options: More options of every load, as for `table`.

    Returns:
        By table, the DataFrame behind its view. A view is named as its table is, in backticks where SQL needs them. A
        table with a column of a type that Spark SQL does not have is left out, and a warning names it.

    Raises:
        SourceOptionError: An option is unknown, or given twice, or does not fit all tables, or two views would have one
            name, since Spark's names have no case.
        ScannerError: The server cannot be asked. No view has been made.

    Waits: For the server, a few times for each table.
    """
    with PlainErrors():
        options_of_any = SourceOptions.parse(_options_of(endpoint, "any", options))
        found = ask(options_of_any, lambda client: client.tables())
    names = [each.name for each in found if _is_of_spark(each, options_of_any.columns)]
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            problem = (
                f"tables {other!r} and {name!r} would be one view: Spark's names have no case; use table()"
            )
            raise SourceOptionError("table", name, problem)
    frames = {name: table(spark, name, endpoint=endpoint, **options).load() for name in names}
    for name, frame in frames.items():
        frame.createOrReplaceTempView(f"`{prefix}{name}`")
    return frames


def _is_of_spark(found: TableDescription, columns: Sequence[str] | None) -> bool:
    """Whether Spark SQL has the types of all columns that a load of a table has; if not, a warning says so."""
    loaded = [field for field in found.schema if columns is None or field.name in columns]
    try:
        spark_schema(pa.schema(loaded))
    except SourceSchemaError as error:
        _logger.warning("table %s gets no view: %s", found.name, error)
        return False
    return True


def _options_of(endpoint: str, name: str, options: Mapping[str, object]) -> dict[str, str]:
    """The options of a load of a table.

    Raises:
        SourceOptionError: One is given twice, whatever its case: the last one would count, and ``table`` among them
            would have another table read. Or it is of octets, or one of reading changes.
    """
    of_changes = {each.lower() for each in CHANGE_OPTION_NAMES}
    found = {"endpoint": endpoint, "table": name}
    taken = set(found)
    for each, value in options.items():
        if each.lower() in taken:
            raise SourceOptionError(each, None, f"option {each!r} is given twice: leave one of them out")
        if each.lower() in of_changes and value is not None:
            problem = (
                f"option {each!r} is one of reading changes, and table() and views() read rows: read the changes with"
                ' spark.read or spark.readStream, format("weir") and option readChanges=true'
            )
            raise SourceOptionError(each, None, problem)
        taken.add(each.lower())
        if value is not None:
            found[each] = _text(each, value)
    return found


def _stored_bytes(client: Client, name: str, enough: int) -> int:
    """What a table takes at the server, about; counted until it is more than enough."""
    found = client.table(name)
    total = 0
    for bucket in range(found.buckets):
        total += found.split(bucket, splits=1).stored_bytes
        if total > enough:
            break
    return total


def _bytes(setting: str | None) -> int:
    """A size as Spark writes it: a number of bytes, or of the ``k``, ``kb``, ``m``, ``mb`` that follow it; else -1."""
    match = _SIZE.fullmatch((setting or "").strip().lower())
    return -1 if match is None else int(match["number"]) << 10 * " kmgtp".index(match["unit"] or " ")


def _text(option: str, value: object) -> str:
    """An option's value as Spark would write it.

    Raises:
        SourceOptionError: It is, or has in it, octets, which Python writes as no type of a key is written.
    """
    value = _python(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return json.dumps(value, default=lambda each: _text(option, each))
    if isinstance(value, bytes | bytearray):
        raise SourceOptionError(
            option, None, f"option {option!r} is text: write octets in hexadecimal digits"
        )
    return str(value)


def _python(value: object) -> object:
    """The numbers of numpy as Python's, and its arrays as lists, since its own text of them is rounded."""
    if isinstance(value, np.ndarray) and not value.ndim:
        value = value[()]
    if isinstance(value, list | tuple | np.ndarray):
        return [_python(each) for each in value]
    if isinstance(value, np.bool_ | np.number) and not isinstance(value, np.timedelta64 | np.longdouble):
        return value.item()
    return value
