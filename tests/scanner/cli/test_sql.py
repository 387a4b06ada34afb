"""`weir sql`: one SELECT over tables of a server, in DuckDB: what comes out, of which state, and how it fails."""

from __future__ import annotations

import datetime
import decimal
import functools
import inspect
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from io import BytesIO
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

import scanner.sync
from scanner.cli import run
from scanner.cli.sql import aside, run_into, scans_of_one_state
from scanner.cli.sql_tables import Query, Runs, ScannedTable
from scanner.data.literals import Temporal
from tests.support.interrupts import Patient, interrupted_after
from tests.support.server import RunningServer, running_server

pytestmark = [pytest.mark.socket, pytest.mark.rocks]

ITEMS = pa.table(
    {
        "id": pa.array([1, 2, 3, 4], pa.int64()),
        "item": ["boat", "oar", None, "rope \x1b[31m"],
        "price": [900.0, 20.5, 3.0, None],
    }
)
TABLES = {"items", "my-items.old", "Twice", "twice"}
Weir = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def few_tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with a few tables, which no test writes to."""
    with running_server(tmp_path_factory.mktemp("sql") / "data") as running:
        with scanner.sync.connect(running.endpoint) as client:
            client.create_table("items", ITEMS.schema, ["id"], 2).write(ITEMS)
            for name in TABLES - {"items"}:
                client.create_table(name, ITEMS.schema, ["id"], 1).write(ITEMS.slice(0, 1))
        yield running


@pytest.fixture
def server(few_tables: RunningServer) -> Iterator[RunningServer]:
    """The same server; the tables that a test makes go with it."""
    yield few_tables
    with scanner.sync.connect(few_tables.endpoint) as client:
        for table in client.tables():
            if table.name not in TABLES:
                client.drop_table(table.name)


@pytest.fixture
def command(command: Weir) -> Weir:
    """Runs one query; returns its exit code, output and error lines."""
    return functools.partial(command, "sql")


def objects(out: str) -> list[object]:
    """Lines of JSON."""
    return [json.loads(line) for line in out.splitlines()]


def test_every_format(command: Weir, tmp_path: Path) -> None:
    """Rows go where those of `weir scan` go, in the order that the query asks for."""
    query = "SELECT item, price FROM items ORDER BY id"
    code, out, err = command(query)
    assert (code, err) == (0, "")
    assert "boat" in out
    assert "\x1b" not in out
    assert objects(command(query, "--format", "json")[1])[:2] == [
        {"item": "boat", "price": 900.0},
        {"item": "oar", "price": 20.5},
    ]
    assert command(query, "--format", "csv", "-n", 2) == (0, '"item","price"\n"boat",900\n"oar",20.5\n', "")
    assert command(query, "--format", "none") == (0, "4 rows\n", "")
    for name, read in (
        ("rows.parquet", pq.read_table),
        ("rows.arrow", lambda it: pa.ipc.open_file(it).read_all()),
    ):
        assert command(query, "-o", tmp_path / name) == (0, "", "")
        assert read(tmp_path / name).equals(ITEMS.select(["item", "price"]))


def test_columns_of_one_name(command: Weir, tmp_path: Path) -> None:
    """None is lost: the later ones get a number that is no other column's."""
    query = "SELECT a.id, b.id, 7 AS id_1, a.item, b.item FROM items a JOIN items b ON b.id = a.id + 1 WHERE a.id = 1"
    names = ["id", "id_2", "id_1", "item", "item_1"]
    values = [1, 2, 7, "boat", "oar"]
    assert objects(command(query, "--format", "json")[1]) == [dict(zip(names, values, strict=True))]
    assert command(query, "--format", "csv")[1].splitlines()[0] == ",".join(f'"{name}"' for name in names)
    assert command(query)[1].splitlines()[0].split() == names
    path = tmp_path / "rows.parquet"
    assert command(query, "-o", path) == (0, "", "")
    assert pq.read_table(path).to_pylist() == [dict(zip(names, values, strict=True))]


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        (["k", "a", "A"], "DuckDB would call column 'A' of table apart 'A_1': to SQL, names have no case"),
        (["k", "a", "A", "A_1"], "DuckDB would call column 'A' of table apart 'A_1': "),
        (["k", ""], "DuckDB would call column '' of table apart 'v1': "),
    ],
)
def test_columns_that_differ_in_case_alone(
    server: RunningServer, command: Weir, columns: list[str], told: str
) -> None:
    """They would be read, and filtered, as one another: the table is refused, however it is used."""
    rows = pa.table([pa.array([number]) for number in range(len(columns))], columns)
    with scanner.sync.connect(server.endpoint) as client:
        client.create_table("apart", rows.schema, ["k"], 1).write(rows)
    for query in (f'SELECT "{columns[-1] or "k"}" FROM apart', "SELECT * FROM apart"):
        code, out, err = command(query, "--format", "json")
        assert (code, out) == (1, "")
        assert err.startswith(f"weir: {told}")


@pytest.mark.parametrize(
    ("table", "kind"),
    [
        ("thousands", pa.decimal128(5, -3)),
        ("thousandths", pa.decimal128(3, 4)),
        ("tiny", pa.decimal128(38, 39)),
    ],
)
def test_a_decimal_that_duckdb_does_not_have_is_named(
    server: RunningServer, command: Weir, table: str, kind: pa.DataType
) -> None:
    """The message says which column it is, whatever the query reads of the table. DuckDB would leave rows out."""
    rows = pa.table({"k": [1], "odd": pa.nulls(1, kind)})
    with scanner.sync.connect(server.endpoint) as client:
        client.create_table(table, rows.schema, ["k"], 1).write(rows)
    for query in (f"SELECT k FROM {table}", f"SELECT count(*) FROM {table} WHERE odd < 100000"):
        assert command(query) == (
            1,
            "",
            "weir: DuckDB has no decimals with a negative scale, or one above the precision, and column 'odd' of table"
            f" {table} is {kind}; weir scan reads it\n",
        )


def test_a_decimal_that_is_all_fraction(server: RunningServer, command: Weir) -> None:
    """A scale as high as the precision is one that DuckDB has."""
    rows = pa.table({"k": [1], "share": pa.array([decimal.Decimal("0.125")], pa.decimal128(3, 3))})
    with scanner.sync.connect(server.endpoint) as client:
        client.create_table("shares", rows.schema, ["k"], 1).write(rows)
    code, out, _ = command("SELECT share FROM shares WHERE share < 1", "--format", "csv")
    assert (code, out) == (0, '"share"\n0.125\n')


def test_now_is_one_instant(server: RunningServer) -> None:
    """What the server is asked for has the time that DuckDB has when it runs the query: no row falls between two."""
    rows = pa.table({"k": [1], "born": pa.array([0], pa.timestamp("us", "UTC"))})
    with scanner.sync.connect(server.endpoint) as client:
        table = client.create_table("times", rows.schema, ["k"], 1)
        table.write(rows)
        with Query("SELECT now() AS instant FROM times WHERE born < now()") as query:
            uses = query.uses({"times": table.description})
            query.register({"times": table.new_scan()}, uses)
            out = BytesIO()
            with aside(query) as interruptibly:
                assert run_into(query, "arrow", out, None, interruptibly) == 1
    (instant,) = pa.ipc.open_file(out.getvalue()).read_all()["instant"].to_pylist()
    condition = uses["times"].condition
    assert condition is not None
    # DuckDB tells it in the machine's time zone.
    assert condition.literals == (Temporal(f"{instant.astimezone(datetime.UTC):%Y-%m-%dT%H:%M:%S.%f}Z"),)


def test_types_that_no_table_has(command: Weir, tmp_path: Path) -> None:
    """Lists, structures and the like are text where rows are text, and themselves in a file of Parquet."""
    query = "SELECT [1, NULL] AS list, {'day': DATE '2020-02-29'} AS struct, TIME '10:00' AS t, NULL AS n, 1::UBIGINT u"
    assert objects(command(query, "--format", "json")[1]) == [
        {"list": "[1, null]", "struct": '{"day": "2020-02-29"}', "t": "10:00:00", "n": None, "u": 1}
    ]
    assert command(query, "-o", tmp_path / "rows.parquet")[0] == 0
    assert pq.read_table(tmp_path / "rows.parquet")["list"].to_pylist() == [[1, None]]


@pytest.mark.parametrize(
    ("value", "text", "stored"),
    [
        (
            "340282366920938463463374607431768211455::UHUGEINT",
            "340282366920938463463374607431768211455",
            None,
        ),
        ("TIMETZ '12:00:00+01'", "12:00:00+01", pa.string()),
        ("BIT '101'", "101", pa.string()),
        ("12345678901234567890::BIGNUM", "12345678901234567890", pa.string()),
        ("TIME '24:00:00'", "24:00:00", pa.time64("us")),
        ("INTERVAL '1 month 2 days'", "1 month 2 days", pa.month_day_nano_interval()),
        ("1::VARIANT", "1", None),
        ("DATE 'infinity'", "infinity", pa.date32()),
        ("DATE '-infinity'", "-infinity", pa.date32()),
        ("DATE '5881580-07-10'", "5881580-07-10", pa.date32()),
        ("TIMESTAMP 'infinity'", "infinity", pa.timestamp("us")),
        ("TIMESTAMP '-infinity'", "-infinity", pa.timestamp("us")),
        ("TIMESTAMP '294247-01-10 04:00:54.775806'", "294247-01-10T04:00:54.775806", pa.timestamp("us")),
        ("'infinity'::TIMESTAMP_S", "infinity", pa.timestamp("s")),
        ("'-infinity'::TIMESTAMP_NS", "-infinity", pa.timestamp("ns")),
        ("TIMESTAMPTZ 'infinity'", "infinity", None),
        (
            "[340282366920938463463374607431768211455::UHUGEINT]",
            '["340282366920938463463374607431768211455"]',
            None,
        ),
        ("[BIT '1']::BIT[1]", '["1"]', None),
        ("{'size': BIT '1', 'a\"b': [NULL]}", '{"size": "1", "a\\"b": [null]}', None),
        ("MAP {'a': DATE 'infinity'}", '[["a", "infinity"]]', None),
        ("[TIMESTAMP '290000-01-01 00:00:00', NULL]", '["290000-01-01 00:00:00", null]', None),
        ("ROW(BIT '1', 2)", "(1, 2)", pa.string()),
        ("union_value(a := BIT '1')", "1", pa.string()),
    ],
)
def test_values_that_arrow_or_python_does_not_have(
    command: Weir, tmp_path: Path, value: str, text: str, stored: pa.DataType | None
) -> None:
    """They come out as the text that DuckDB writes, not as other values; two columns of one name keep their names."""
    query = f"SELECT {value} AS a, 1 AS a"
    assert objects(command(query, "--format", "json")[1]) == [{"a": text, "a_1": 1}]
    assert command(query, "-o", tmp_path / "rows.arrow")[::2] == (0, "")
    with pa.memory_map(str(tmp_path / "rows.arrow")) as file:
        (column, _) = pa.ipc.open_file(file).schema
    assert stored in {None, column.type}


def test_files_and_names_in_quotes(command: Weir, tmp_path: Path) -> None:
    """A query joins tables with files; a table whose name is no plain word is in double quotes."""
    pq.write_table(pa.table({"id": [1], "owner": ["Ann"]}), tmp_path / "owners.parquet")
    query = f"SELECT o.owner, i.item FROM \"my-items.old\" i JOIN '{tmp_path}/owners.parquet' o USING (id)"
    assert objects(command(query, "--format", "json")[1]) == [{"owner": "Ann", "item": "boat"}]
    assert objects(command("SELECT count(*) AS n FROM ITEMS", "--format", "json")[1]) == [{"n": 4}]
    assert command("SELECT 1 AS one", "--format", "csv") == (0, '"one"\n1\n', "")


def test_a_query_that_begins_with_a_comment(
    server: RunningServer, command: Weir, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """It is taken for an option, and the error says where to write it."""
    query = "-- which?\nSELECT 1 AS one"
    code, out, err = command(query, "--format", "csv")
    assert (code, out) == (2, "")
    assert err.endswith("; if it is a value, write it at the end, behind --; see weir sql --help\n")
    assert run(["sql", "--format", "csv", "-e", server.endpoint, "--", query]) == 0
    assert capfdbinary.readouterr().out == b'"one"\n1\n'


@pytest.mark.parametrize(
    "query", ["FROM read_csv('{}')", "SELECT (SELECT sum(i) FROM read_json(['x', '{}']) t(i))", "FROM '{}'"]
)
def test_a_pipe_is_refused(
    command: Weir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    """DuckDB would read it more than once, and find no rows; a mere value is no file, and a table is none."""
    os.mkfifo(pipe := tmp_path / "rows.csv")
    assert command(query.format(pipe), "--format", "csv") == (
        1,
        "",
        f"weir: {pipe} is no regular file, and files are read more than once; write it to a file first\n",
    )
    assert command(f"SELECT 1 AS one WHERE '{pipe}' <> ''", "--format", "csv") == (0, '"one"\n1\n', "")
    os.mkfifo(tmp_path / "items")
    monkeypatch.chdir(tmp_path)
    assert command("SELECT count(*) AS n FROM items", "--format", "csv") == (0, '"n"\n4\n', "")


def test_a_pipe_beside_which_with_has_its_name(
    command: Weir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What WITH calls so is read; not where the name means the pipe once more, outside of it or in its own query."""
    os.mkfifo(tmp_path / "x")
    monkeypatch.chdir(tmp_path)
    named = "WITH x AS (SELECT 1 AS one) SELECT * FROM x"
    assert command(named, "--format", "csv") == (0, '"one"\n1\n', "")
    for query in (f"SELECT one FROM ({named}), x", "WITH x AS (SELECT * FROM x) SELECT * FROM x"):
        code, out, err = command(query)
        assert (code, out, err.startswith("weir: x is no regular file")) == (1, "", True)


def test_more_rows_than_a_person_looks_at(command: Weir) -> None:
    """A table for people ends after fifty rows, and says so; exactly fifty are all."""
    code, out, err = command("SELECT i FROM range(51) t(i)")
    assert (code, len(out.splitlines())) == (0, 52)
    assert err == "the first 50 rows; --limit N shows more, --format json all of them\n"
    assert command("SELECT i FROM range(50) t(i)")[2] == ""
    assert len(command("SELECT i FROM range(99) t(i)", "-n", 60)[1].splitlines()) == 62
    assert command("SELECT 1 AS one", "-n", 2**64, "--format", "csv") == (0, '"one"\n1\n', "")


def test_explain_and_statistics_tell_what_the_server_is_asked_for(command: Weir) -> None:
    """Columns and conditions of each table, without running anything; or what was scanned, afterwards."""
    query = "SELECT count(*) FROM items a, items b WHERE a.price > 10 AND b.price > 10 AND a.id = b.id"
    code, out, err = command(query, "--explain")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == 'items: columns id, price of 3; rows where not ("price" <= 10.0)'
    assert "PYTHON_ARROW_SCAN" in out
    for words in (("--format", "json"), ("--output", "out.csv"), ("--limit", 0), ("--stats",)):
        code, _, err = command(query, "--explain", *words)
        assert (code, "--explain runs nothing" in err) == (1, True)
    code, _, err = command(query, "--format", "none", "--stats")
    assert code == 0
    for line in err.splitlines():
        assert line.startswith('scan of items (id, price) where not ("price" <= 10.0): 2 rows, ')


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("SELEC 1", 'Parser Error: syntax error at or near "SELEC"'),
        (
            "SELECT nope FROM items",
            'Binder Error: Referenced column "nope" not found in FROM clause! Candidate',
        ),
        (
            "SELECT * FROM nothing",
            "Catalog Error: Table with name nothing does not exist!"
            " The server's tables are: Twice, items, my-items.old, twice\n",
        ),
        ("SELECT * FROM server", "Catalog Error: Table with name server does not exist!"),
        ("SELECT * FROM twice", "'twice' may be any of the tables Twice, twice: to SQL, names have no case"),
        ("SELECT 1; SELECT 2", "weir sql takes one SELECT; "),
        ("DELETE FROM items", "weir sql takes one SELECT; "),
        ("", "weir sql takes one SELECT; "),
        ("PIVOT items ON item USING sum(price)", "PIVOT has to name the values that become columns: "),
        ("/* which? */ SHOW TABLES", "weir sql lists no tables: "),
        ("FROM (SHOW ALL TABLES)", "weir sql lists no tables: "),
        (
            "SELECT item::INTEGER FROM items WHERE id = 1",
            "Conversion Error: Could not convert string 'boat' to INT32",
        ),
        ("SELECT CASE WHEN id = 4 THEN error('no') END FROM items", "Invalid Input Error: no"),
    ],
)
def test_what_cannot_be_run_is_one_line(command: Weir, query: str, told: str) -> None:
    """Exit code 1, and one line that says why; of our own variables nothing is read as a table."""
    code, out, err = command(query, "--format", "json")
    assert (code, out) == (1, "")
    assert err.startswith(f"weir: {told}")
    assert err.count("\n") == 1


def test_a_failure_in_the_middle_leaves_no_file(command: Weir, tmp_path: Path) -> None:
    """A file appears when it is complete."""
    path = tmp_path / "rows.csv"
    code, _, err = command("SELECT CASE WHEN id = 4 THEN error('no') ELSE id END AS x FROM items", "-o", path)
    assert (code, path.exists(), err.count("\n")) == (1, False, 1)
    late = "SELECT CASE WHEN i = 90000 THEN error('no') ELSE repeat('x', 50) END AS x FROM range(100000) t(i)"
    code, _, err = command(late, "-o", path)
    assert (code, path.exists(), err) == (1, False, "weir: Invalid Input Error: no\n")


def test_a_scan_that_fails_tells_our_message(tmp_path: Path) -> None:
    """What happened to the scan is raised as it is, and not in DuckDB's words."""
    with running_server(tmp_path) as server:
        client = scanner.sync.connect(server.endpoint, retries=0)
        table = client.create_table("items", ITEMS.schema, ["id"], 2)
    with client, Query("SELECT * FROM items") as query:
        query.register({"items": table.new_scan()}, {})
        with pytest.raises(Exception, match="reading the"):
            query.connection.sql(query.text).to_arrow_table()
        assert isinstance(query.runs.failure, scanner.ScannerError)


def test_a_scan_that_fails_behind_the_first_rows_tells_our_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also once rows have come out, when Arrow says of it what else it says of files."""
    rows = pa.table({"id": range(150_000), "item": ["x" * 50] * 150_000})
    batch = scanner.sync.Batches.__next__

    def cut(batches: scanner.sync.Batches) -> pa.RecordBatch:
        if batches.statistics().rows > 100_000:  # More than DuckDB keeps before it is asked for rows.
            raise scanner.ServerUnavailable("the connection was lost")
        return batch(batches)

    with running_server(tmp_path) as server, scanner.sync.connect(server.endpoint) as client:
        table = client.create_table("items", rows.schema, ["id"], 1)
        table.write(rows)
        monkeypatch.setattr(scanner.sync.Batches, "__next__", cut)
        with Query("SELECT * FROM items") as query, aside(query) as interruptibly, BytesIO() as file:
            query.register({"items": table.new_scan().with_credit(500_000)}, {})
            with pytest.raises(scanner.ServerUnavailable, match=r"^the connection was lost$"):
                run_into(query, "json", file, None, interruptibly)


def test_all_uses_of_a_table_see_one_state(server: RunningServer) -> None:
    """What is written after the query began is in none of its scans."""
    with scanner.sync.connect(server.endpoint) as client:
        table = client.create_table("written", ITEMS.schema, ["id"], 2)
        table.write(ITEMS)
        with scans_of_one_state(client, ["written"]) as scans:
            runs = Runs()
            dataset = ScannedTable(scans["written"], None, runs)
            first = dataset.scanner().to_reader().read_all()
            table.write(pa.table({"id": [1, 5], "item": ["raft", "mast"], "price": [1.0, 2.0]}))
            table.delete([(2,)])
            second = dataset.scanner(columns=["price", "id"]).to_reader().read_all()
        assert first.num_rows == ITEMS.num_rows
        assert second.sort_by("id").equals(first.select(["price", "id"]).sort_by("id"))
        assert client.list_leases() == []
        assert table.new_scan().to_arrow().num_rows == ITEMS.num_rows


@pytest.mark.parametrize("answered", [True, False])
def test_a_lease_that_ends_is_told_where_it_is_missed(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, answered: bool
) -> None:
    """A query that has its answer succeeds, as where it was stopped for longer than the lease lives."""

    def lost(*_: object) -> None:
        raise scanner.LeaseNotFound("the lease could not be renewed in time")

    with scanner.sync.connect(server.endpoint) as client:
        monkeypatch.setattr("scanner.sync.leases.Lease.__exit__", lost)
        expected = nullcontext() if answered else pytest.raises(scanner.LeaseNotFound)
        with expected, scans_of_one_state(client, ["items"]):
            if not answered:
                raise scanner.ServerUnavailable("the connection was lost")


def test_a_table_that_is_made_anew_meanwhile_is_read_by_its_own_types(
    server: RunningServer, command: Weir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is asked for rows of the table whose state is leased: to DuckDB NaN is above 5."""
    keys = pa.array([1, 2, 3], pa.int64())
    named = Query.tables

    def made_anew(query: Query, known: list[str]) -> list[str]:
        with scanner.sync.connect(server.endpoint) as client:
            client.drop_table("counts")
            counts = pa.table({"id": keys, "n": pa.array([float("nan"), 7.0, 1.0])})
            client.create_table("counts", counts.schema, ["id"], 1).write(counts)
        return named(query, known)

    with scanner.sync.connect(server.endpoint) as client:
        counts = pa.table({"id": keys, "n": pa.array([9, 9, 9], pa.int64())})
        client.create_table("counts", counts.schema, ["id"], 1).write(counts)
    monkeypatch.setattr(Query, "tables", made_anew)
    code, out, _ = command("SELECT id FROM counts WHERE n > 5 ORDER BY id", "--format", "json")
    assert (code, objects(out)) == (0, [{"id": 1}, {"id": 2}])


def test_filters_of_duckdb_are_applied_here_as_well(server: RunningServer) -> None:
    """A dataset leaves out exactly what it is asked to leave out, and needs no column for that to be selected."""
    with scanner.sync.connect(server.endpoint) as client:
        dataset = ScannedTable(client.table("items").new_scan(), None, Runs())
        field = pyarrow.dataset.field
        expression = (field("price") > 10) & field("item").is_valid()
        found = dataset.scanner(columns=["id"], filter=expression).to_reader().read_all()
    assert sorted(found["id"].to_pylist()) == [1, 2]
    assert found.schema.names == ["id"]


def test_duckdb_draws_no_bar_among_the_rows() -> None:
    """Where `__main__` has no file DuckDB takes its program for a person, and tells stdout of a slow query."""
    program = (
        "from scanner.cli.sql_tables import Query\n"
        "with Query('SELECT 1') as query:\n"
        "    print(query.connection.execute(\"SELECT current_setting('enable_progress_bar')\").fetchone())"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "(False,)\n"


def test_nothing_else_of_a_dataset_is_there() -> None:
    """What it inherits would touch an object of C++ that is not there: each of it is refused, none crashes."""
    offered = {name for name, _ in inspect.getmembers(pyarrow.dataset.Dataset) if not name.startswith("_")}
    ours = set(vars(ScannedTable)) - {"__module__", "__doc__"}
    assert offered <= ours
    dataset = ScannedTable.__new__(ScannedTable)
    for name in offered - {"schema", "scanner"}:
        with pytest.raises(NotImplementedError):
            getattr(dataset, name)()


@pytest.mark.parametrize("elsewhere", [False, True])
def test_an_interrupt_ends_a_query_that_waits(tmp_path: Path, *, elsewhere: bool) -> None:
    """Ctrl-C while DuckDB's threads wait for a server that is gone ends the query, whichever thread gets it."""
    patient = Patient()
    with running_server(tmp_path) as gone:
        client = scanner.sync.connect(gone.endpoint, rng=patient)
        table = client.create_table("items", ITEMS.schema, ["id"], 2)
    with client, Query("SELECT count(*) FROM items a, items b WHERE a.id = b.id") as query:
        query.register({"items": table.new_scan()}, {})
        with (
            aside(query) as interruptibly,
            pytest.raises(KeyboardInterrupt),
            interrupted_after(patient.drawn.wait, elsewhere=elsewhere),
        ):
            run_into(query, "none", BytesIO(), None, interruptibly)
        assert query.runs.ended
    with pytest.raises(duckdb.ConnectionException, match="closed"):
        query.connection.execute("SELECT 1")


def test_no_interrupt_is_met_in_duckdb(command: Weir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which would make an error of its own of it, or none: what runs Python within DuckDB is not in the main thread."""
    within = []
    for name in ("uses", "register"):
        function = getattr(Query, name)

        def noted(*arguments: Any, function: Callable[..., Any] = function) -> Any:
            within.append((function.__name__, threading.current_thread() is threading.main_thread()))
            return function(*arguments)

        monkeypatch.setattr(Query, name, noted)
    assert command("SELECT id FROM items", "--format", "csv")[0] == 0
    assert within == [("uses", False), ("register", False)]
