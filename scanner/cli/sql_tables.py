"""The tables of a server as DuckDB reads them: datasets of pyarrow, which DuckDB asks for columns and rows.

pyarrow documents that a dataset of others is a subclass with a schema and a scanner ("Extending PyArrow Datasets"), and
DuckDB hands such a scanner the columns that it needs and the filters that it will not apply itself.

Invariants:

1. Whatever DuckDB asks to be filtered is filtered here, by Arrow, in every batch. What the server has left out before
   are rows that the query cannot look at (`scanner.cli.sql_pushdown`).
2. All scans of a table, in one query, read the state that the query's lease keeps: one log offset for each bucket.
3. A failure of a scan is kept, because DuckDB tells its message alone.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

import duckdb
import pyarrow as pa
import pyarrow.dataset

from scanner.cli.app import fail
from scanner.cli.sql_pushdown import TableUse, table_uses
from scanner.client.scan.expressions import Condition

if TYPE_CHECKING:
    from types import TracebackType

    from scanner.client.scan.statistics import ScanStatistics
    from scanner.data.filters import Predicate
    from scanner.data.table import TableDescription
    from scanner.sync import Batches, Scan

_UNSOUND: Final = "statistics_propagation,empty_result_pullup"
"""Optimizers that would conclude something from the planned tables' being empty."""
_UNTOLD: Final = "late_materialization,distinct_aggregate_rewrite"
"""Optimizers that make plans which DuckDB 2.0 cannot tell (it answers with an internal error): of the first rows in an
order, and of a distinct count beside an aggregate of another type."""
_SETTINGS: Final[dict[str, str | bool | int | float | list[str]]] = {"python_enable_replacements": "false"}
"""A name that is no table is an error, and not a variable of ours."""
_NO_TABLE: Final = re.compile(r"Catalog Error: Table with name .*? does not exist!")
"""Behind it DuckDB names a near table of its own, and knows none of those that the statement does not name."""
_CLOSING_S: Final = 10.0
_CLOSING_STEP_S: Final = 0.01


@dataclass(slots=True)
class ScanRun:
    """One scan that DuckDB had made."""

    table: str
    columns: tuple[str, ...]
    condition: Predicate | None
    statistics: ScanStatistics | None = None
    """None until it ended, or was left."""


@dataclass(slots=True)
class Runs:
    """What the scans of a query did, and the first that failed."""

    scans: list[ScanRun] = field(default_factory=list)
    failure: Exception | None = None
    running: list[Batches] = field(default_factory=list)
    ended: bool = False

    def end(self) -> None:
        """End the scans that run, and let none begin; from any thread."""
        self.ended = True
        for each in tuple(self.running):
            each.close()


class ScannedTable(pyarrow.dataset.Dataset):  # type: ignore[misc]  # pyarrow has no annotations
    """A table of a server as a dataset, for `scanner(...).to_reader()` and for nothing else.

    Args:
        scan: Of all columns and rows, of the state that is to be read.
        condition: Of the rows that are looked at; None: all of them.
        runs: Told of every scan.
    """

    def __init__(self, scan: Scan, condition: Predicate | None, runs: Runs) -> None:
        # The base class has nothing to begin with: its own constructor refuses to be called.
        self._scan = scan
        self._condition = condition
        self._runs = runs

    @property
    def schema(self) -> pa.Schema:
        """All columns."""
        return self._scan.schema

    def scanner(
        self, columns: Sequence[str] | None = None, filter: Any = None, **options: object
    ) -> ScannedRows:
        """What to read.

        Args:
            columns: Those wanted, in this order; None: all.
            filter: An expression of pyarrow that is true of the rows wanted; None: all of them.
            options: Of how Arrow reads files, which means nothing here.
        """
        return ScannedRows(self._scan, columns, filter, self._condition, self._runs)

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise NotImplementedError("only scanner(columns=..., filter=...).to_reader() reads a table of weir")

    # What is inherited works on an object of Arrow's C++, which this has none of.
    get_fragments = filter = replace_schema = to_batches = to_table = _refuse
    take = head = count_rows = sort_by = join = join_asof = __reduce__ = _refuse
    partition_expression = property(_refuse)


class ScannedRows:
    """One scan of a table; see `ScannedTable.scanner`."""

    def __init__(
        self, scan: Scan, columns: Sequence[str] | None, filter: Any, condition: Predicate | None, runs: Runs
    ) -> None:
        self._columns = list(columns) if columns else list(scan.schema.names)
        needed = set(self._columns) | set(_columns_of(filter, scan.schema))
        self._scan = scan.select(*(name for name in scan.schema.names if name in needed))
        if condition is not None:
            self._scan = self._scan.where(Condition((condition,)))
        self._filter = filter
        self._run = ScanRun(scan.plan.table.name, self._scan.plan.columns, condition)
        self._runs = runs

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows; the scan begins when the first batch is asked for, and ends when the reader is dropped."""
        schema = pa.schema([self._scan.schema.field(name) for name in self._columns])
        return pa.RecordBatchReader.from_batches(schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        self._runs.scans.append(self._run)
        try:
            with self._scan.execute() as batches:
                self._runs.running.append(batches)
                if self._runs.ended:
                    batches.close()
                try:
                    for batch in batches:
                        passed = batch if self._filter is None else batch.filter(self._filter)
                        yield passed.select(self._columns)
                finally:
                    self._runs.running.remove(batches)
                    self._run.statistics = batches.statistics()
        except Exception as error:
            self._runs.failure = self._runs.failure or error
            raise


def _columns_of(expression: Any, schema: pa.Schema) -> list[str]:
    """The columns that an expression of pyarrow names: those without which it cannot be bound."""
    if expression is None:
        return []
    return [
        name for name in schema.names if not _binds(expression, schema.remove(schema.get_field_index(name)))
    ]


def _binds(expression: Any, schema: pa.Schema) -> bool:
    try:
        schema.empty_table().filter(expression)
    except pa.ArrowInvalid:
        return False
    return True


def _close(connection: duckdb.DuckDBPyConnection) -> None:
    """Close a connection that has nothing on a disk.

    DuckDB refuses while a thread of its own is in a scan, even in one that has been ended, and tells nobody when that
    thread has left. After ten seconds the connection is left to the end of the process.
    """
    until = time.monotonic() + _CLOSING_S
    while time.monotonic() < until:
        try:
            connection.close()
        except duckdb.Error:
            time.sleep(_CLOSING_STEP_S)
        else:
            return


class Query:
    """One SELECT over tables of a server, in a DuckDB of its own; use it in a `with` block.

    Args:
        text: The statement.

    Raises:
        Failure: It is not one SELECT, cannot be read, or reads a pipe.
        UnicodeEncodeError: It is no text; DuckDB's binding would answer with a TypeError.
    """

    def __init__(self, text: str) -> None:
        text.encode()
        self.text = text
        self.runs = Runs()
        self._known: Sequence[str] = ()
        self.connection = duckdb.connect(config=_SETTINGS)
        try:
            # In a notebook, and wherever `__main__` has no file, DuckDB writes one to stdout, among the rows.
            self.connection.execute("SET enable_progress_bar = false")
            self._named = self._names()
        except BaseException:
            self.connection.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.runs.end()
        _close(self.connection)

    def tables(self, known: Sequence[str]) -> list[str]:
        """Those of the server's tables that the statement names, as the server spells them.

        Args:
            known: Names of the server's tables.

        Raises:
            Failure: A name fits several of them, since SQL's have no case, or none, and is that of a pipe.
        """
        self._known = known
        found = {}
        for name in self._named:
            fitting = [each for each in known if each.casefold() == name.casefold()]
            # To DuckDB a name that is no table may be that of a file.
            if not fitting and _is_irregular(name) and not self._is_of_with(name):
                _refuse_irregular(name)
            if len(fitting) > 1:
                fail(f"{name!r} may be any of the tables {', '.join(fitting)}: to SQL, names have no case")
            found.update(dict.fromkeys(fitting))
        return list(found)

    def uses(self, tables: Mapping[str, TableDescription]) -> dict[str, TableUse]:
        """What the statement needs of each table; a table that nothing is known of is not in it.

        Args:
            tables: Those that it names.
        """
        # In the transaction in which it is run: now() is one instant there, and a constant in the plan.
        self.connection.begin()
        try:
            self.connection.execute(f"SET disabled_optimizers = '{_UNSOUND},{_UNTOLD}'")
            plan = self._plan(tables)
        except duckdb.Error:
            self.connection.rollback()
            return {}  # What is wrong with it, if anything, comes out when it is run.
        finally:
            self.connection.execute("RESET disabled_optimizers")
        return table_uses(plan)

    def register(self, scans: Mapping[str, Scan], uses: Mapping[str, TableUse]) -> None:
        """Let the statement find its tables.

        Args:
            scans: By name; each reads all of the state that is to be seen.
            uses: What is known of them.

        Raises:
            Failure: DuckDB has no such type as a column, or takes two columns for one.
        """
        for name, scan in scans.items():
            _require_decimals(name, scan.schema)
            condition = uses[name].condition if name in uses else None
            try:
                self.connection.register(name, ScannedTable(scan, condition, self.runs))
                called = self.connection.sql(f"FROM {quoted(name)}").columns
            except duckdb.Error as error:
                fail(f"DuckDB cannot read table {name}: {first_line(error)}")
            # What it calls otherwise would be read, or filtered, as the column that has that name.
            for column, other in zip(scan.schema.names, called, strict=True):
                if other != column:
                    fail(
                        f"DuckDB would call column {column!r} of table {name} {other!r}: to SQL, names have no case,"
                        " and none is empty; weir scan reads it"
                    )

    def told(self, error: Exception) -> str:
        """What DuckDB says, in one line; behind a name that is no table come the server's tables, and not DuckDB's."""
        line = first_line(error)
        missing = _NO_TABLE.match(line)
        if missing is None:
            return line
        return f"{missing[0]} The server's tables are: {', '.join(self._known) or '(none)'}"

    def _is_of_with(self, name: str) -> bool:
        """Whether the statement means what its WITH calls so, wherever it has the name. DuckDB opens no such file."""
        try:
            return name not in self.connection.get_table_names(self.text)
        except duckdb.Error:
            return False

    def _plan(self, tables: Mapping[str, TableDescription]) -> str:
        """DuckDB's plan of the statement over empty tables of these columns, which are gone afterwards."""
        run = self.connection.execute
        for number, (name, table) in enumerate(tables.items()):
            self.connection.register(f"schema of {number}", table.schema.empty_table())
            run(f'CREATE TABLE {quoted(name)} AS FROM "schema of {number}"')
        text = "'" + self.text.replace("'", "''") + "'"
        (plan,) = run(f"SELECT json_serialize_plan({text}, optimize := true)").fetchall()[0]
        for number, name in enumerate(tables):
            run(f"DROP TABLE {quoted(name)}")
            self.connection.unregister(f"schema of {number}")
        return str(plan)

    def _names(self) -> list[str]:
        try:
            statements = self.connection.extract_statements(self.text)
            if [each.type for each in statements] == [duckdb.StatementType.MULTI]:
                fail("PIVOT has to name the values that become columns: ON column IN ('a', 'b')")
            if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
                fail("weir sql takes one SELECT; it changes nothing, and --explain tells how it is read")
            question = "SELECT json_serialize_sql(?)"
            (tree,) = self.connection.execute(question, [self.text]).fetchall()[0]
        except duckdb.Error as error:
            fail(first_line(error))
        nodes = list(_nodes(json.loads(tree)))
        if any(node.get("show_type") == "SHOW_SPECIAL" for node in nodes):
            fail("weir sql lists no tables: DuckDB knows those that a query names; weir tables does")
        for node in nodes:
            if node.get("type") == "TABLE_FUNCTION":
                for text in filter(_is_irregular, _texts(node)):
                    _refuse_irregular(text)
        return sorted({str(node["table_name"]) for node in nodes if node.get("type") == "BASE_TABLE"})


def _require_decimals(table: str, schema: pa.Schema) -> None:
    """Refuse decimals that DuckDB does not have: it leaves rows out, or tells of an internal error and of no column.

    Raises:
        Failure: A column is of such a type.
    """
    for each in schema:
        if pa.types.is_decimal(each.type) and not 0 <= each.type.scale <= each.type.precision:
            fail(
                "DuckDB has no decimals with a negative scale, or one above the precision, and column"
                f" {each.name!r} of table {table} is {each.type}; weir scan reads it"
            )


def _is_irregular(name: str) -> bool:
    """Whether a name is that of a pipe or a device."""
    return os.path.exists(name) and not (os.path.isfile(name) or os.path.isdir(name))


def _refuse_irregular(name: str) -> NoReturn:
    """Refuse a pipe or a device. DuckDB opens a file whenever it binds the statement: the rows of a pipe are gone then.

    Raises:
        Failure: Always.
    """
    fail(f"{name} is no regular file, and files are read more than once; write it to a file first")


def quoted(name: str) -> str:
    """A name as SQL has it."""
    return '"' + name.replace('"', '""') + '"'


def first_line(error: Exception) -> str:
    """What DuckDB says, without the text of the statement and a stack."""
    return " ".join(str(error).partition("\n\n")[0].split())


def _texts(tree: object) -> Iterator[str]:
    """The strings that are written in a part of the statement."""
    for node in _nodes(tree):
        literal = node.get("literal")
        if isinstance(literal, dict) and literal.get("kind") == "STRING":
            yield str(literal["text"])


def _nodes(tree: object) -> Iterator[dict[str, Any]]:
    """The nodes of a syntax tree of DuckDB, those of tables and of its own expressions (WITH) among them."""
    pending = [tree]
    while pending:
        each = pending.pop()
        if isinstance(each, dict):
            yield each
            pending.extend(each.values())
        elif isinstance(each, list):
            pending.extend(each)
