"""`weir sql`."""

from __future__ import annotations

import atexit
import gc
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar

import click
import duckdb
import pyarrow as pa

from scanner.cli.app import Failure, connected, endpoint_option, example, fail, note
from scanner.cli.destination import destination
from scanner.cli.output import (
    BINARY,
    FIRST_ROWS_NOTE,
    FOR_PEOPLE,
    ROWS_SHOWN,
    format_of,
    open_rows,
    output_options,
)
from scanner.cli.sql_pushdown import text_of
from scanner.cli.sql_tables import Query
from scanner.cli.sql_values import faithful, is_time, texts_of_times
from scanner.cli.units import counted
from scanner.client.leases import LeaseState, LeaseTarget
from scanner.data.table import stored_type
from scanner.errors import LeaseNotFound, SchemaMismatch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scanner.cli.sql_pushdown import TableUse
    from scanner.data.table import TableDescription
    from scanner.sync import Client, Scan

_BATCH_ROWS: Final = 65_536
LEASE_TTL_S: Final = 60.0
"""How long the state is kept for nobody if this process is killed; it is renewed while the query runs."""

_SIGNALS_SEEN_S: Final = 0.5
"""How long a signal may wait for its handler."""
_T = TypeVar("_T")

# At the end of the process DuckDB complains of what is left of it, if the garbage collector may not look there.
atexit.register(gc.unfreeze)


@click.command(
    epilog=example(
        'weir sql "SELECT carrier, avg(dep_delay) FROM flights GROUP BY carrier"',
        "weir sql \"SELECT * FROM orders JOIN 'b.csv' USING (order_id)\" -o joined.csv",
        'weir sql "SELECT count(*) FROM flights WHERE dep_delay > 60" --explain',
    )
)
@click.argument("query")
@click.option(
    "--explain",
    is_flag=True,
    help="Run nothing: show the scans that the server would get, and DuckDB's plan.",
)
@click.option("--limit", "-n", type=click.IntRange(0), metavar="ROWS", help="Stop after this many rows.")
@output_options
@click.option("--stats", is_flag=True, help="Print at the end, on standard error, what was scanned.")
@endpoint_option
def sql(
    query: str,
    explain: bool,
    limit: int | None,
    kind: str | None,
    output: Path | None,
    stats: bool,
    endpoint: str,
) -> None:
    """Run one SELECT over tables, in DuckDB, on this machine.

    Columns that are not needed, and rows that the conditions on one table leave out, stay at the server. All uses of a
    table see the same state: one log offset for each bucket, kept by a lease while the query runs. QUERY may read files
    as well: 'data.parquet'. Put a table name that is not a plain word in double quotes. Columns of the same name, as
    after a join, are numbered: id, id_1.

    Formats table and vertical show the first 50 rows unless --limit says otherwise; csv, json (one object per line),
    arrow and parquet take all of them; none only counts. A file appears when it is complete.
    """
    if explain and (kind is not None or output is not None or limit is not None or stats):
        fail("--explain runs nothing: leave --format, --output, --limit and --stats out")
    form = "none" if explain else format_of(kind, output)
    with ExitStack() as stack:
        prepared = stack.enter_context(Query(query))
        client = stack.enter_context(connected(endpoint))
        names = prepared.tables([each.name for each in client.tables()])
        interruptibly = stack.enter_context(aside(prepared))
        scans = (
            {name: client.table(name).new_scan() for name in names}
            if explain
            else stack.enter_context(scans_of_one_state(client, names))
        )
        # Not as they were listed: a table that was made anew since has other types, and others of its rows fit.
        tables = {name: scan.plan.table for name, scan in scans.items()}
        uses = interruptibly(lambda: prepared.uses(tables))
        interruptibly(lambda: prepared.register(scans, uses))
        if explain:
            _explain(prepared, tables, uses)
            return
        with destination(form, output) as file:
            rows = run_into(prepared, form, file, limit, interruptibly)
    if stats:
        _tell_scans(prepared)
    if form == "none":
        click.echo(counted(rows, "row"))


@contextmanager
def scans_of_one_state(client: Client, names: Sequence[str]) -> Iterator[dict[str, Scan]]:
    """Scans of whole tables, as of one log offset for each bucket, however often they are run in the block.

    Args:
        client: Connected.
        names: Of tables.
    """
    if not names:
        yield {}
        return
    targets = [LeaseTarget(name, state=LeaseState.LOG) for name in names]
    done = False
    try:
        with client.acquire_lease(*targets, ttl_s=LEASE_TTL_S) as lease:
            for half in lease.half_applied:
                note(str(half))
            yield {name: client.table(name).new_scan().with_lease(lease) for name in names}
            done = True
    except LeaseNotFound:
        if not done:  # A scan that has its rows has them of that state, though the lease has ended since.
            raise


@contextmanager
def aside(query: Query) -> Iterator[Callable[[Callable[[], Any]], Any]]:
    """Runs functions that call DuckDB, in a thread of their own; Ctrl-C ends the wait for them, and the scans.

    Ctrl-C is for the main thread, and not to be met in DuckDB: that has threads of its own wait for rows, and makes an
    error of its own of an interrupt.
    """
    # Not a Future: where an interrupt takes the lock of its condition, there is a RuntimeError.
    functions: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
    answers: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()

    def work() -> None:
        for function in iter(functions.get, None):
            try:
                answers.put((function(), None))
            except (Exception, KeyboardInterrupt, SystemExit, GeneratorExit) as error:
                answers.put((None, error))

    def interruptibly(function: Callable[[], Any]) -> Any:
        try:
            functions.put(function)
            answer, error = _next_of(answers)
        except KeyboardInterrupt:
            query.runs.end()
            query.connection.interrupt()
            raise
        if error is None:
            return answer
        try:
            raise error
        finally:
            del error  # Else its traceback holds this frame, which holds it: what DuckDB has open would stay.

    thread = threading.Thread(target=work, name="weir sql", daemon=True)
    thread.start()
    try:
        yield interruptibly
    finally:
        functions.put(None)
        thread.join()


def _next_of(answers: SimpleQueue[_T]) -> _T:
    # Not in one piece: a signal that another thread got, or that came just before the wait, does not end it.
    while True:
        with suppress(Empty):
            return answers.get(timeout=_SIGNALS_SEEN_S)


def run_into(
    query: Query,
    form: str,
    file: IO[bytes],
    limit: int | None,
    interruptibly: Callable[[Callable[[], Any]], Any],
) -> int:
    """Run a query into a file.

    Args:
        query: With its tables.
        form: Of the rows.
        file: Not closed.
        limit: Rows at most; None: all of them, or as many as a person looks at.
        interruptibly: See `aside`.

    Returns:
        How many rows were written.

    Raises:
        Failure: DuckDB failed.
        ScannerError: A scan failed.
    """
    shortened = form in FOR_PEOPLE and limit is None
    rows_max = ROWS_SHOWN if shortened else limit
    written = 0
    try:
        relation = interruptibly(lambda: query.connection.sql(query.text))
        answer = faithful(relation, in_text=form not in BINARY)
        reader = interruptibly(lambda: answer.to_arrow_reader(_BATCH_ROWS))
        found = pa.schema(
            [each.with_name(name) for each, name in zip(reader.schema, relation.columns, strict=True)]
        )
        schema = _named_apart(found if form in BINARY else _plain_schema(found))
        writer = open_rows(form, file, schema, picked_by="SELECT")
        more = False
        while (batch := interruptibly(lambda: next(reader, None))) is not None:
            kept = batch if rows_max is None else batch.slice(0, min(rows_max - written, batch.num_rows))
            writer.write(_plain(kept, schema))
            written += kept.num_rows
            more = kept.num_rows < batch.num_rows
            if more or (written == rows_max and not shortened):
                break
    except (duckdb.Error, pa.ArrowException) as error:
        raise query.runs.failure or Failure(query.told(error)) from None
    except OSError as error:
        if error.errno is not None:  # The system's, of the output.
            raise
        # Arrow's, of what failed behind the first rows.
        raise query.runs.failure or Failure(query.told(error)) from None
    if query.runs.failure is not None:  # An answer without it would be one without some rows.
        raise query.runs.failure
    writer.close()
    if shortened and more:
        note(FIRST_ROWS_NOTE)
    return written


def _plain_schema(schema: pa.Schema) -> pa.Schema:
    """The columns as text formats write them: times, and DuckDB's types that no table has become text."""
    return pa.schema([(each.name, each.type if _is_plain(each.type) else pa.string()) for each in schema])


def _named_apart(schema: pa.Schema) -> pa.Schema:
    """The columns with names of their own: `a`, `a`, as of a join, become `a` and `a_1`.

    An object of JSON has one value for a name, and most readers of the other formats find the first column of it.
    """
    taken = set(schema.names)
    seen = set[str]()
    fields = []
    for each in schema:
        name, number = each.name, 0
        while name in seen or (number and name in taken):
            number += 1
            name = f"{each.name}_{number}"
        seen.add(name)
        fields.append(each.with_name(name))
    return pa.schema(fields, schema.metadata)


def _is_plain(kind: pa.DataType) -> bool:
    if pa.types.is_integer(kind):
        return True
    if is_time(kind):
        return False
    try:
        return bool(stored_type("", kind) == kind)
    except SchemaMismatch:
        return False


def _plain(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = [
        column if column.type == each.type else _texts(column)
        for column, each in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _texts(column: pa.Array) -> pa.Array:
    if is_time(column.type):
        return texts_of_times(column)
    return pa.array(map(_text, column.to_pylist()), pa.string())


def _text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return (
        json.dumps(value, default=str, ensure_ascii=False) if isinstance(value, list | dict) else str(value)
    )


def _explain(query: Query, tables: Mapping[str, TableDescription], uses: Mapping[str, TableUse]) -> None:
    for name, table in tables.items():
        use = uses.get(name)
        if use is None:
            click.echo(f"{name}: the columns that DuckDB asks for, all rows")
            continue
        columns = [each for each in table.column_names if each in use.columns]
        condition = "all rows" if use.condition is None else f"rows where {text_of(use.condition)}"
        click.echo(
            f"{name}: columns {', '.join(columns) or 'none'} of {len(table.column_names)}; {condition}"
        )
    try:
        for _, plan in query.connection.execute(f"EXPLAIN {query.text}").fetchall():
            click.echo(plan)
    except duckdb.Error as error:
        raise Failure(query.told(error)) from None


def _tell_scans(query: Query) -> None:
    for run in query.runs.scans:
        where = "" if run.condition is None else f" where {text_of(run.condition)}"
        done = run.statistics
        told = "not ended" if done is None else f"{counted(done.rows, 'row')}, {done.bytes_received} bytes"
        if done is not None and done.buckets_skipped:
            told += f", {counted(len(done.buckets_skipped), 'bucket')} skipped"
        note(f"scan of {run.table} ({', '.join(run.columns)}){where}: {told}")
