"""A scan as an Arrow stream: what pyarrow, polars and DuckDB make of it, also cut, dropped or interrupted."""

from __future__ import annotations

import datetime
import gc
import itertools
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never

import duckdb
import polars
import pyarrow as pa
import pytest

import scanner.sync
from scanner import ScannerError, SchemaMismatch, StallReason, col
from tests.scanner.sync.test_client import interrupt_once, threads, wait_released
from tests.support.client import SCHEMA, rows
from tests.support.interrupts import interrupted_behind
from tests.support.server import RunningServer, running_server

if TYPE_CHECKING:
    from transport import ServerStream

pytestmark = [pytest.mark.socket, pytest.mark.rocks]

ROWS = 20_000
CREDIT = 300_000
"""Far less than the table's 10 MB."""


def make_table(client: scanner.sync.Client) -> scanner.sync.Table:
    """A table of 20 000 rows, about 10 MB."""
    table = client.create_table("items", SCHEMA, ["k"], buckets=3)
    table.write(rows(ROWS, width=500))
    return table


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with such a table, in a thread of its own."""
    with running_server(tmp_path_factory.mktemp("scan") / "data") as running:
        with scanner.sync.connect(running.endpoint) as client:
            make_table(client)
        yield running


@pytest.fixture
def table(server: RunningServer) -> Iterator[scanner.sync.Table]:
    """Its table, by a client of its own; no test leaves another state, or a scan."""
    with scanner.sync.connect(server.endpoint) as client:
        yield client.table("items")
    server.wait_until(lambda it: it.statistics().push_scans_open == 0)


@pytest.fixture
def scan(table: scanner.sync.Table) -> scanner.sync.Scan:
    """A scan of it that has to be read bit by bit."""
    return table.new_scan().with_credit(CREDIT)


def keys_of(table: pa.Table) -> list[int]:
    """Keys, ascending."""
    keys: list[int] = table["k"].sort().to_pylist()
    return keys


def test_pyarrow_reads_a_scan_as_often_as_it_likes(
    table: scanner.sync.Table, scan: scanner.sync.Scan
) -> None:
    """Each use is a scan of its own, as of then."""
    first = pa.table(scan)
    assert (keys_of(first), first.schema) == (list(range(ROWS)), scan.schema)
    table.delete([(0,)])
    assert keys_of(pa.table(scan)) == list(range(1, ROWS))
    table.write(rows(1, width=500))


def test_polars_reads_a_scan(scan: scanner.sync.Scan) -> None:
    """A data frame of polars is made of it in every way there is."""
    expected = polars.DataFrame(pa.table(scan)).sort("k")
    for found in (polars.DataFrame(scan), scan.to_polars(), polars.from_arrow(scan.to_batches())):
        assert isinstance(found, polars.DataFrame)
        assert found.sort("k").equals(expected)


def test_polars_keeps_every_name(server: RunningServer) -> None:
    """It would call a column without a name `column_1`, which may be that of another."""
    rows = pa.table({"k": [1], "": ["a"], "column_1": ["b"]})
    with scanner.sync.connect(server.endpoint) as client:
        table = client.create_table("names", rows.schema, ["k"], buckets=1)
        table.write(rows)
        frame = table.new_scan().to_polars()
        assert frame.to_dict(as_series=False) == rows.to_pydict()
        table.write(frame)
        client.drop_table("names")


@pytest.mark.parametrize("seconds", [2**63 - 1, -(2**63), (2**63 - 1) // 1000 + 1])
def test_polars_gets_no_seconds_that_it_has_not(server: RunningServer, seconds: int) -> None:
    """It makes milliseconds of them, and would make 1970 of the first time that there is."""
    reached = (2**63 - 1) // 1000
    kind = pa.timestamp("s", "UTC")
    rows = pa.table({"k": [1, 2, 3], "seen": pa.array([reached, -reached, None], pa.int64()).cast(kind)})
    with scanner.sync.connect(server.endpoint) as client:
        table = client.create_table("far", rows.schema, ["k"], buckets=1)
        table.write(rows)
        scan = table.new_scan()
        found = scan.to_polars().sort("k")["seen"].to_physical().to_list()
        assert found == [reached * 1000, -reached * 1000, None]
        table.write(pa.table({"k": [2], "seen": pa.array([seconds], pa.int64()).cast(kind)}))
        with pytest.raises(SchemaMismatch, match="column 'seen' has a time that is too far away for polars"):
            scan.to_polars()
        assert scan.select("k").to_polars().height == 3
        client.drop_table("far")


@pytest.mark.parametrize("kind", [pa.decimal128(5, -2), pa.decimal128(5, 7)])
def test_polars_gets_no_decimals_that_it_has_not(server: RunningServer, kind: pa.DataType) -> None:
    """It says "Decimal scale is not a valid integer", and not of which column."""
    with scanner.sync.connect(server.endpoint) as client:
        schema = pa.schema([("k", pa.int64()), ("price", kind)])
        scan = client.create_table("decimals", schema, ["k"], buckets=1).new_scan()
        with pytest.raises(SchemaMismatch, match="column 'price' is decimal128"):
            scan.to_polars()
        assert scan.select("k").to_polars().height == 0
        client.drop_table("decimals")


def test_polars_gets_times_of_an_offset_in_utc(server: RunningServer) -> None:
    """It has no zones but those with a name."""
    at = datetime.datetime(2013, 7, 1, 12, tzinfo=datetime.UTC)
    rows = pa.table(
        {
            "k": [1],
            "offset": pa.array([at], pa.timestamp("us", "+05:30")),
            "name": pa.array([at], pa.timestamp("us", "Asia/Kolkata")),
        }
    )
    with scanner.sync.connect(server.endpoint) as client:
        table = client.create_table("zones", rows.schema, ["k"], buckets=1)
        table.write(rows)
        frame = table.new_scan().to_polars()
        client.drop_table("zones")
    assert frame.row(0) == (1, at, at)
    assert [getattr(kind, "time_zone", None) for kind in frame.dtypes] == [None, "UTC", "Asia/Kolkata"]


def test_duckdb_reads_a_scan_with_many_threads(scan: scanner.sync.Scan) -> None:
    """DuckDB pulls from threads of its own, and twice in a query that names the scan twice."""
    connection = duckdb.connect(config={"threads": 4})
    assert connection.from_arrow(scan).aggregate("count(*), sum(k)").fetchall() == [
        (ROWS, ROWS * (ROWS - 1) // 2)
    ]
    connection.register("items", scan)
    query = "SELECT count(*), min(a.number) FROM items a JOIN items b ON a.k = b.k + 1 WHERE a.k > 10"
    assert connection.execute(query).fetchall() == [(ROWS - 11, 5.5)]


def test_a_scan_without_rows_has_a_schema(table: scanner.sync.Table) -> None:
    """Columns and types are there without a single batch."""
    scan = table.new_scan().select("number", "k").where(col("k") < 0)
    assert pa.table(scan).equals(scan.schema.empty_table())
    assert scan.to_batches().read_all().schema == scan.schema
    assert polars.DataFrame(scan).schema == {"number": polars.Float64, "k": polars.Int64}
    assert duckdb.from_arrow(scan).columns == ["number", "k"]
    assert duckdb.from_arrow(scan).fetchall() == []


def test_requested_types_are_given_or_refused(table: scanner.sync.Table) -> None:
    """A consumer may ask for other types of the same columns; for other columns it may not."""
    scan = table.new_scan().where(col("k") < 10)
    wider = pa.schema([("k", pa.int64()), ("text", pa.large_string()), ("number", pa.float64())])
    found = pa.RecordBatchReader.from_stream(scan, schema=wider).read_all()
    assert found.schema.field("text").type == pa.large_string()
    assert keys_of(found) == list(range(10))
    with pytest.raises(ValueError, match="field names"):
        pa.RecordBatchReader.from_stream(scan, schema=pa.schema([("k", pa.int64())]))


def test_nothing_is_scanned_before_the_first_batch_is_asked_for(
    server: RunningServer, scan: scanner.sync.Scan
) -> None:
    """A reader, and what DuckDB registers, cost the server nothing until they are read."""
    unread = scan.to_batches()
    relation = duckdb.from_arrow(scan)
    assert relation.columns == scan.schema.names
    assert server.ask(lambda it: it.statistics().push_scans_open) == 0
    assert next(unread).num_rows > 0


@pytest.mark.parametrize("consumer", ["pyarrow", "duckdb"])
def test_a_stream_dropped_half_way_ends_the_scan(server: RunningServer, consumer: str) -> None:
    """The server's snapshot is released as soon as the consumer lets the stream go, and no thread is left."""
    before = threads()
    with scanner.sync.connect(server.endpoint) as client:
        scan = client.table("items").new_scan().with_credit(CREDIT)
        stream = pa.RecordBatchReader.from_stream(scan)
        if consumer == "duckdb":
            connection = duckdb.connect()
            # It counts the views of values, not the values: all rows of this table fit into its buffer, as it is.
            connection.execute("SET streaming_buffer_size = '50KB'")
            stream = connection.from_arrow(scan).to_arrow_reader(1_000)
            del connection
        assert stream.read_next_batch().num_rows > 0
        assert server.ask(lambda it: it.statistics().push_scans_open) > 0
        del stream
        gc.collect()
        server.wait_until(lambda it: it.statistics().push_scans_open == 0)
        wait_released(server)
    assert threads() == before


def test_a_stream_may_be_closed_half_way(server: RunningServer, scan: scanner.sync.Scan) -> None:
    """Whoever has imported the stream closes it as pyarrow does, in a `with` block."""
    with pa.RecordBatchReader.from_stream(scan) as reader:
        assert reader.read_next_batch().num_rows > 0
    server.wait_until(lambda it: it.statistics().push_scans_open == 0)


def test_a_limit_of_duckdb_ends_the_scan(server: RunningServer, scan: scanner.sync.Scan) -> None:
    """DuckDB stops pulling when it has its rows."""
    assert len(duckdb.from_arrow(scan).limit(5).fetchall()) == 5
    server.wait_until(lambda it: it.statistics().push_scans_open == 0)


CONSUMERS: dict[str, tuple[Callable[[Any], object], type[Exception]]] = {
    "pyarrow": (lambda stream: pa.table(stream), pa.ArrowInvalid),
    "polars": (lambda stream: polars.DataFrame(stream), polars.exceptions.ComputeError),
    "duckdb": (lambda stream: duckdb.from_arrow(stream).fetchall(), duckdb.Error),
}


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_a_failure_in_mid_stream_is_an_error_with_its_message(tmp_path: Path, consumer: str) -> None:
    """A server that goes away in the middle is never an end of the data: the consumer raises, and says what we say."""
    read, error = CONSUMERS[consumer]
    with ExitStack() as stack:
        server = stack.enter_context(running_server(tmp_path))
        running = stack.pop_all()
        with scanner.sync.connect(server.endpoint, retries=0) as client:
            with make_table(client).new_scan().with_credit(CREDIT).execute() as batches:
                assert next(batches).num_rows > 0
                running.close()
                with pytest.raises(error) as raised:
                    read(batches)
                with pytest.raises(ScannerError) as failure:
                    next(batches)
    assert failure.value.message in str(raised.value)


def test_a_failure_stays_one(tmp_path: Path) -> None:
    """A reader raises what the scan raised, of its own class, and again when it is asked again."""
    with running_server(tmp_path) as server:
        client = scanner.sync.connect(server.endpoint, retries=0)
        reader = make_table(client).new_scan().with_credit(CREDIT).to_batches()
        assert next(reader).num_rows > 0
    with client:
        with pytest.raises(ScannerError) as first:
            reader.read_all()
        with pytest.raises(ScannerError) as second:
            reader.read_next_batch()
    assert second.value is first.value


def test_a_refusal_is_an_error_with_its_message(table: scanner.sync.Table) -> None:
    """What the server refuses at once fails the consumer, too."""
    scan = table.new_scan().with_lease("nobody-has-this")
    with pytest.raises(scanner.LeaseNotFound) as refused:
        scan.to_batches().read_all()
    for read, error in CONSUMERS.values():
        with pytest.raises(error) as raised:
            read(scan)
        assert refused.value.message in str(raised.value)


def test_any_thread_may_pull(scan: scanner.sync.Scan) -> None:
    """A reader is opened in one thread and read in others, one after another."""
    reader = scan.to_batches()
    counts = [next(reader).num_rows]

    def pull() -> None:
        counts.append(next(reader).num_rows)

    for _ in range(5):
        thread = threading.Thread(target=pull)
        thread.start()
        thread.join(60)
    assert len(counts) == 6
    assert sum(counts) + reader.read_all().num_rows == ROWS


def waits_for_credit(stream: ServerStream) -> bool:
    """Whether credit alone keeps the server from sending more on a stream."""
    return stream.stall is StallReason.CREDIT


def test_a_slow_consumer_is_never_overrun_through_the_stream(
    server: RunningServer, scan: scanner.sync.Scan
) -> None:
    """While whoever has the C stream does not pull, no more than the credit, and a row per bucket, comes to us."""
    row_bytes = 2_000
    with scan.execute() as batches:
        with pa.RecordBatchReader.from_stream(batches) as reader:
            count = reader.read_next_batch().num_rows
            server.wait_until(lambda it: sum(waits_for_credit(each) for each in it.running()) == 3)
            assert batches.statistics().bytes_received <= CREDIT + 3 * row_bytes
            count += sum(batch.num_rows for batch in reader)
    statistics = batches.statistics()
    assert count == statistics.rows == ROWS
    assert statistics.held_bytes_max <= CREDIT + 3 * row_bytes
    assert statistics.overrun_bytes <= row_bytes


def test_an_interrupt_loses_no_batch_of_a_reader(
    scan: scanner.sync.Scan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C is KeyboardInterrupt in a reader, and whoever goes on gets every row."""
    reader = scan.to_batches()
    count = next(reader).num_rows
    interrupt_once(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        next(reader)
    assert count + reader.read_all().num_rows == ROWS


def test_an_interrupt_behind_the_taking_loses_no_batch_of_a_reader(scan: scanner.sync.Scan) -> None:
    """Wherever Python looks for signals while a batch is handed to pyarrow: whoever goes on gets every row."""
    for call in itertools.count(1):
        reader = scan.to_batches()
        count = next(reader).num_rows
        with suppress(KeyboardInterrupt), interrupted_behind(call, "scanner.sync.scan") as came:
            count += next(reader).num_rows
        assert count + reader.read_all().num_rows == ROWS, came
        if not came:
            break


def test_an_interrupt_behind_the_opening_leaves_nothing_open(
    server: RunningServer, scan: scanner.sync.Scan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever goes on reads the scan that is open, and no second one stays open beside it."""
    reader = scan.to_batches()
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("scanner.sync.scan.HandOver", interrupted)
        next(reader)
    assert reader.read_all().num_rows == ROWS
    server.wait_until(lambda it: it.statistics().push_scans_open == 0)


def interrupted(*_: object) -> Never:
    """Ctrl-C comes here."""
    raise KeyboardInterrupt


def test_an_interrupt_ends_what_pulls_from_c(
    server: RunningServer, scan: scanner.sync.Scan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Consumers in C have no interrupts: they fail, with words that say so, and the scan is released."""
    interrupt_once(monkeypatch)
    with pytest.raises(pa.ArrowInvalid, match="interrupted while waiting for the rows of a scan"):
        pa.table(scan)
    server.wait_until(lambda it: it.statistics().push_scans_open == 0)
    # Behind the last batch, too, where it waits for the end at the server.
    monkeypatch.setattr("scanner.sync.scan._LazyBatches._left", interrupted)
    with pytest.raises(pa.ArrowInvalid, match="interrupted while waiting for the rows of a scan"):
        pa.table(scan)


QUIET_FORK = ("-W", "ignore:This process:DeprecationWarning")
"""Python 3.12 and later warn of a fork beside threads, as the client's is."""

FORKED = """
import os, sys
import pyarrow as pa
import weir.sync

with weir.sync.connect(sys.argv[1]) as client:
    reader = client.table("items").new_scan().with_credit(300_000).to_batches()
    count = next(reader).num_rows
    child = os.fork()
    if not child:
        try:
            reader.read_all()
        except RuntimeError as error:
            print(error, flush=True)
        del reader
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    print(count + reader.read_all().num_rows)
"""


def test_a_forked_process_is_told_and_harms_nothing(server: RunningServer) -> None:
    """In a child process a reader raises instead of waiting for ever, and the parent's goes on."""
    done = subprocess.run(
        [sys.executable, *QUIET_FORK, "-c", FORKED, server.endpoint],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    told, count = done.stdout.splitlines()
    assert told == "this client belongs to the process that forked this one; connect again here"
    assert int(count) == ROWS


FORKED_BLOCKS = """
import os, sys
import weir.sync

with weir.sync.connect(sys.argv[1]) as client:
    items = client.table("items")
    scan = items.new_scan().with_credit(300_000)
    with client.acquire_lease("items"), items.open_writer(), scan.execute() as batches:
        count = next(batches).num_rows
        child = os.fork()
        if not child:
            sys.exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        print(count + sum(batch.num_rows for batch in batches))
"""


def test_a_forked_process_exits_out_of_its_parents_blocks(server: RunningServer) -> None:
    """With its own exit code; the parent's blocks go on."""
    done = subprocess.run(
        [sys.executable, *QUIET_FORK, "-c", FORKED_BLOCKS, server.endpoint],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stderr, done.returncode) == ("", 0)
    assert int(done.stdout) == ROWS
