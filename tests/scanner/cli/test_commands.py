"""The commands in this process, against a server in another thread: what they print and how they fail."""

from __future__ import annotations

import decimal
import errno
import io
import json
import os
import re
import shlex
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NoReturn

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trio

import scanner.sync
from scanner.cli import run, weir
from scanner.cli.repeated_keys import RepeatedKeys
from scanner.client.writer import shown_progress
from scanner.errors import DiskFull, KeyInvalid, ServerUnavailable
from tests.support.server import RunningServer, running_server

pytestmark = [pytest.mark.socket, pytest.mark.rocks]

WIDE_CSV = ",".join(f"c{i}" for i in range(100)) + "\n" + ",".join(map(str, range(100))) + "\n"
CSV = "id,name,price\n" + "".join(f"{i},name {i},{i / 4}\n" for i in range(200)) + "200,,NA\n"
Weir = Callable[..., tuple[int, str, str]]


@pytest.fixture
def never_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server on a busy machine that takes half a second to drop a table is not told of."""
    monkeypatch.setattr("scanner.cli.load._SILENT_S_MAX", 600)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server for the tests of this file."""
    with running_server(tmp_path_factory.mktemp("data")) as running:
        yield running


@pytest.fixture
def csv_file(tmp_path: Path) -> Path:
    """201 rows, the last with nulls."""
    path = tmp_path / "items.csv"
    path.write_text(CSV)
    return path


@pytest.fixture
def items(command: Weir, csv_file: Path) -> Iterator[str]:
    """A loaded table."""
    code, out, _ = command("load", csv_file, "--primary-key", "id", "--buckets", "2")
    assert code == 0
    assert out.startswith("loaded 201 rows into items")
    yield "items"
    assert command("drop", "items", "--yes")[0] == 0


def one_line(result: tuple[int, str, str], *, code: int = 1) -> str:
    """The only error line of a failed command."""
    assert result[0] == code
    assert result[1] == ""
    (line,) = result[2].splitlines()
    assert line.startswith("weir: ")
    return line


def last_line(result: tuple[int, str, str]) -> str:
    """The error line of a load that failed, behind what it says of types."""
    *before, line = result[2].splitlines()
    assert all(each.startswith("types found: ") for each in before)
    return one_line((*result[:2], line))


def test_tables_and_describe(command: Weir, items: str) -> None:
    """A loaded table is listed, and described with types, key and offsets."""
    assert "items" in command("tables")[1]
    described = command("describe", items)[1]
    assert "primary key id; 2 buckets" in described
    assert "double" in described


@pytest.mark.parametrize("mode", ["push", "session", "token", "cursor", "asof"])
def test_scan_as_json(command: Weir, items: str, mode: str) -> None:
    """One object per line, all rows, columns as asked for."""
    code, out, err = command("scan", items, "--mode", mode, "--format", "json", "--columns", "price,id")
    rows = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert list(rows[0]) == ["price", "id"]
    assert {row["id"]: row["price"] for row in rows} == {i: i / 4 for i in range(200)} | {200: None}


def test_scan_as_table_is_short(command: Weir, items: str) -> None:
    """A table shows a screenful and says so; a limit is taken at its word."""
    _, out, err = command("scan", items)
    assert len(out.splitlines()) == 52
    assert "the first 50 rows" in err
    err = command("scan", items, "--stats")[2]
    assert re.findall(r"^rows +(.*)$", err, re.MULTILINE) == ["51 (the last of them is not shown)"]
    _, out, err = command("scan", items, "--limit", "60")
    assert len(out.splitlines()) == 62
    assert err == ""


def test_scan_into_parquet(command: Weir, items: str, tmp_path: Path) -> None:
    """A file gets its format from its name, and what it cost is told apart from it."""
    path = tmp_path / "out.parquet"
    code, out, err = command("scan", items, "-o", path, "--stats", "--retries", 0)
    assert (code, out) == (0, "")
    assert pq.read_table(path).num_rows == 201
    assert "requests" in err
    assert "resumes         0" in err
    assert "read from       now" in err
    assert "log offset" in err


def test_statistics_of_buckets_that_a_limit_leaves_out(command: Weir, items: str) -> None:
    """What the first bucket has all of is not asked of the second."""
    err = command("scan", items, "--limit", 3, "--format", "none", "--stats")[2]
    assert re.search(r"^bucket 0 +rows 3, log offset .* LIMIT\nbucket 1 +not begun$", err, re.MULTILINE)


@pytest.mark.parametrize("kind", ["csv", "arrow", "parquet"])
def test_what_is_scanned_into_a_file_is_loaded_again(
    command: Weir, items: str, tmp_path: Path, kind: str
) -> None:
    """A table that is loaded from a file of another one has the same rows, by their digest."""
    path = tmp_path / f"copy.{kind}"
    assert command("scan", items, "-o", path) == (0, "", "")
    assert command("load", path, "-k", "id", "--buckets", "2")[0] == 0
    digests = [
        re.findall(r"^digest +(.*)$", command("scan", name, "--format", "none", "--stats")[2], re.MULTILINE)
        for name in (items, "copy")
    ]
    assert digests[0] == digests[1]
    assert len(digests[0][0]) == 8
    assert command("drop", "copy", "--yes")[0] == 0


def test_scan_where(command: Weir, items: str) -> None:
    """Conditions are read by the type of their column; several are all required."""
    out = command("scan", items, "--where", "price >= 1.5", "-w", "name = 'name 7'", "--format", "json")[1]
    assert json.loads(out) == {"id": 7, "name": "name 7", "price": 1.75}
    assert command("scan", items, "-w", "name is null", "--format", "none")[1] == "1 row\n"
    assert (
        command("scan", items, "-w", "name is not null", "-w", "id != 3", "--format", "none")[1]
        == "199 rows\n"
    )


def test_scan_where_means_all_that_is_typed(command: Weir, items: str) -> None:
    """Alternatives, lists, prefixes and opposites are answered; what is not understood is refused, never half taken."""
    for text, rows in [
        ("name = 'name 7' or id = 2", 2),
        ("id in (1, 2, 3, 999)", 3),
        ("id not in (1, 2, 3)", 198),
        ("name like 'name 1%' and id between 10 and 19", 10),
        ("not (name = 'name 7')", 199),
        ("price < 1e300 and (id >= 100 or id < 1000000000000)", 200),
        ("id = 2.5", 0),
    ]:
        assert command("scan", items, "-w", text, "--format", "none")[1] == f"{rows} rows\n", text
    for mistake, text in [
        ("quote it: 'boat'", "name = boat or id = 2"),
        ("use is null", "name = null"),
        ("did not understand 'boat' behind 'name = rowing'", "name = rowing boat"),
        ("one % behind it", "name like '%7'"),
        ("does not fit column 'id' of type int64: it is a number", "id = '7'"),
        ("does not fit column 'name' of type string: it is text", "name = 7"),
    ]:
        assert mistake in one_line(command("scan", items, "-w", text))


@pytest.mark.parametrize("mode", ["push", "asof"])
def test_scan_as_of(command: Weir, items: str, mode: str) -> None:
    """A table is shown as it was in front of an offset of its log, one for all buckets or one for each."""
    command("delete", items, "1", "2", "3")
    assert command("scan", items, "--format", "none")[1] == "198 rows\n"
    assert command("scan", items, "--as-of", "0", "--mode", mode, "--format", "none")[1] == "0 rows\n"
    assert command("scan", items, "--as-of", "5", "--mode", mode, "--format", "none")[1] == "10 rows\n"
    options = ["--as-of", "0:7", "--as-of", "1:20"]
    err = command("scan", items, *options, "--mode", mode, "--format", "none", "--stats")[2]
    assert "rows 7, log offset 7," in err
    assert "rows 20, log offset 20," in err


def test_delete_by_key(command: Weir, items: str) -> None:
    """Keys are deleted; one that is not there is no error."""
    assert command("delete", items, "1", "2", "777")[1] == "deleted 2 rows of items\n"
    assert command("scan", items, "--format", "none")[1] == "199 rows\n"
    assert "int64" in one_line(command("delete", items, "one"))
    assert "form id" in one_line(command("delete", items, "1,2"))
    for other in ("5.0", "0x5", "5_0"):
        assert "int64" in one_line(command("delete", items, other))


def test_loading_again_replaces(command: Weir, items: str, csv_file: Path) -> None:
    """A second load of the same keys leaves as many rows; another key or bucket count is refused."""
    assert command("load", csv_file)[0] == 0
    assert command("scan", items, "--format", "none")[1] == "201 rows\n"
    assert "primary key id" in one_line(command("load", csv_file, "-k", "name"))
    assert "2 buckets" in one_line(command("load", csv_file, "--buckets", "3"))


def test_a_table_that_another_load_makes_meanwhile(
    command: Weir, items: str, csv_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is told to drop the rows that the other one has just loaded."""
    monkeypatch.setattr("scanner.cli.load._existing", lambda *_: None)
    failed = last_line(command("load", csv_file, "-k", "id"))
    assert failed == (
        f"weir: table items was made by somebody else while {csv_file} was read;"
        " load it again, or choose another --table"
    )
    assert command("scan", items, "--format", "none")[1] == "201 rows\n"


def test_an_interrupted_load_says_what_is_there(
    command: Weir, server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the middle: how many rows are in the table, and what to do about the others."""
    batches = 0

    def add(self: RepeatedKeys, batch: pa.RecordBatch) -> None:
        nonlocal batches
        batches += 1
        if batches == 20:  # More than a writer has in flight.
            raise KeyboardInterrupt

    monkeypatch.setattr(RepeatedKeys, "add", add)
    path = tmp_path / "half.parquet"
    rows = pa.table({"id": range(600_000)}, schema=pa.schema([pa.field("id", pa.int64(), nullable=False)]))
    pq.write_table(rows, path)
    code, _, err = command("load", path, "-k", "id")
    assert (code, err.splitlines()[-1]) == (130, "weir: interrupted")
    (found,) = re.findall(r"table half has (\d+) of the file's rows, or some more; load it again", err)
    with scanner.sync.connect(server.endpoint) as client:
        assert 0 < int(found) <= client.table("half").new_scan().to_arrow().num_rows < 600_000


def test_a_load_that_is_interrupted_at_its_end_says_that_all_is_there(
    command: Weir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the connection takes time, too, and so does looking for keys that repeat."""
    close = scanner.sync.Client.close

    def interrupted(closed: scanner.sync.Client | RepeatedKeys) -> NoReturn:
        if isinstance(closed, scanner.sync.Client):
            close(closed)
        raise KeyboardInterrupt

    path = tmp_path / "all.parquet"
    pq.write_table(pa.table({"id": [1]}), path)
    with monkeypatch.context() as patch:
        patch.setattr(scanner.sync.Client, "close", interrupted)
        patch.setattr("scanner.cli.forget_output", lambda: None)  # The output is that of the test as well.
        code, out, err = command("load", path, "-k", "id")
    assert (code, out.partition(" in ")[0], err) == (130, "loaded 1 row into all", "weir: interrupted\n")
    monkeypatch.setattr(RepeatedKeys, "count", property(interrupted))
    code, _, err = command("load", path)
    told = "table all has all of the file's rows; whether keys repeat was not looked at"
    assert (code, err) == (130, f"{told}\nweir: interrupted\n")
    assert command("drop", "all", "--yes")[0] == 0


def test_a_load_that_is_interrupted_while_its_table_is_made_says_so(
    command: Weir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server may have made it before the call was given up, and the next load would meet it."""
    create = scanner.sync.Client.create_table

    def interrupted(*args: Any) -> NoReturn:
        create(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(scanner.sync.Client, "create_table", interrupted)
    path = tmp_path / "unsure.parquet"
    pq.write_table(pa.table({"id": [1]}), path)
    code, out, err = command("load", path, "-k", "id")
    assert (code, out) == (130, "")
    assert err == (
        "table unsure may have been made, without rows; load it again, or drop it\nweir: interrupted\n"
    )
    assert command("load", path)[0] == 0
    assert command("drop", "unsure", "--yes")[0] == 0


def test_an_interrupted_load_says_what_it_waits_for_and_can_be_interrupted_again(
    command: Weir, server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server does not answer, before the first row and when the new table is to be dropped: Ctrl-C, and again."""
    said = threading.Event()

    class Frozen:
        def write(self, rows: pa.RecordBatch) -> None:
            raise KeyboardInterrupt

    def note(message: str) -> None:
        click.echo(message, err=True)
        said.set()

    def drop(_table: scanner.sync.Table) -> bool:
        said.wait()
        raise KeyboardInterrupt

    monkeypatch.setattr(scanner.sync.Table, "open_writer", lambda *_: nullcontext(Frozen()))
    monkeypatch.setattr(scanner.sync.Table, "drop_unwritten", drop)
    monkeypatch.setattr("scanner.cli.load.note", note)
    path = tmp_path / "frozen.parquet"
    pq.write_table(pa.table({"id": [1]}), path)
    assert command("load", path, "-k", "id") == (
        130,
        "",
        "waiting for the server to drop table frozen, which was made for the file; Ctrl-C ends that\n"
        "table frozen was made, and may be there, with some of the file's rows or none; load it again for all of them\n"
        "weir: interrupted\n",
    )
    assert command("drop", "frozen", "--yes")[0] == 0


def test_a_load_without_a_thread_drops_its_table_all_the_same(
    command: Weir, server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says in one line what it lacks, and leaves nothing: a thread would only tell that the server is waited for."""

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    path = tmp_path / "threadless.parquet"
    pq.write_table(pa.table({"id": [1]}), path)
    monkeypatch.setattr(scanner.sync.Table, "open_writer", refuse)
    monkeypatch.setattr(threading.Timer, "start", refuse)
    told = one_line(command("load", path, "-k", "id"))
    assert (
        told
        == "weir: can't start new thread: raise the limit of processes (ulimit -u), or make room in memory"
    )
    with scanner.sync.connect(server.endpoint) as client:
        assert "threadless" not in [each.name for each in client.tables()]


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (8193, "weir: no memory is left (8192 to 8193 rows were loaded before)"),
        (1, "weir: no memory is left; make room, or raise the limit (ulimit -v)"),
    ],
)
def test_a_load_without_memory_says_what_is_there(
    command: Weir, items: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, told: str
) -> None:
    """In one line, with what was loaded before."""

    class Full:
        def write(self, rows: pa.RecordBatch) -> None:
            if rows.num_rows == 1:
                raise MemoryError

    def open_writer(
        _table: scanner.sync.Table, advance: Callable[[int], None]
    ) -> AbstractContextManager[Full]:
        advance(rows - 1)
        return nullcontext(Full())

    monkeypatch.setattr(scanner.sync.Table, "open_writer", open_writer)
    path = tmp_path / "items.parquet"
    pq.write_table(pa.table({"id": range(rows), "name": ["a"] * rows, "price": [0.0] * rows}), path)
    assert one_line(command("load", path, "--table", items)) == told


def test_a_load_that_fails_counts_what_may_be_there(
    command: Weir, items: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that were sent and are not acknowledged yet may be in the table, or not."""

    class Unanswered:
        def write(self, rows: pa.RecordBatch) -> None:
            pass

    monkeypatch.setattr(scanner.sync.Table, "open_writer", lambda *_: nullcontext(Unanswered()))
    path = tmp_path / "items.parquet"
    ids = pa.array([*range(8192), None], pa.int64())
    rows = [ids, pa.nulls(len(ids), pa.string()), pa.nulls(len(ids), pa.float64())]
    pq.write_table(pa.table(rows, ["id", "name", "price"]), path)
    message = one_line(command("load", path))
    assert message.endswith("null in row 8193; give every row a key (0 to 8192 rows were loaded before)")

    def add(self: RepeatedKeys, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 1:
            raise KeyInvalid("it is too long")

    monkeypatch.setattr(RepeatedKeys, "add", add)
    pq.write_table(pa.table([pa.array(range(8193)), *rows[1:]], ["id", "name", "price"]), path)
    assert one_line(command("load", path)) == "weir: it is too long (0 to 8192 rows were loaded before)"


def test_a_load_that_the_server_refuses_counts_once(
    command: Weir, items: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the write says of the rows before it is said by the load."""

    class Refused:
        def write(self, rows: pa.RecordBatch) -> None:
            if rows.num_rows == 1:
                raise DiskFull(f"no room{shown_progress(0)}")

    monkeypatch.setattr(scanner.sync.Table, "open_writer", lambda *_: nullcontext(Refused()))
    path = tmp_path / "items.parquet"
    pq.write_table(pa.table({"id": range(8193), "name": ["a"] * 8193, "price": [0.0] * 8193}), path)
    told = one_line(command("load", path, "--table", items))
    assert told == "weir: no room (0 to 8193 rows were loaded before)"


@pytest.mark.parametrize("error", [DiskFull("no room"), MemoryError()])
def test_a_load_that_fails_amid_a_batch_counts_its_rows(
    command: Weir, items: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Rows of a batch go out in several requests where they are wide, so some of them may be there, too."""

    def open_writer(
        _table: scanner.sync.Table, advance: Callable[[int], None]
    ) -> AbstractContextManager[Cut]:
        return nullcontext(Cut(advance))

    class Cut:
        def __init__(self, advance: Callable[[int], None]) -> None:
            self._advance = advance

        def write(self, rows: pa.RecordBatch) -> None:
            self._advance(5)
            raise error

    monkeypatch.setattr(scanner.sync.Table, "open_writer", open_writer)
    path = tmp_path / "items.parquet"
    pq.write_table(pa.table({"id": range(9), "name": ["a"] * 9, "price": [0.0] * 9}), path)
    told = one_line(command("load", path, "--table", items))
    assert told.endswith("(5 to 9 rows were loaded before)")


@pytest.mark.parametrize("key", ["id", "n"])
def test_a_value_that_does_not_fit_is_named_by_its_row_of_the_file(
    command: Weir, tmp_path: Path, never_slow: None, key: str
) -> None:
    """Rows are written some thousands at a time, and counted from 1. A key is looked at before the rest of its row."""
    path = tmp_path / "far.parquet"
    rows = 8200
    numbers = pa.array([*range(rows - 1), 2**63], pa.uint64())
    pq.write_table(pa.table({"id": range(rows), "n": numbers}), path)
    message = one_line(command("load", path, "-k", key, "--types", "n=int64"))
    assert message.startswith(
        f"weir: {path}: column 'n' is uint64 and cannot be stored as int64: row {rows} holds {2**63},"
    )
    assert "far" not in command("tables")[1]


def test_a_load_whose_server_is_gone_does_not_wait_for_it_twice(
    command: Weir, items: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To drop the table that it made it would have to connect again, for half a minute. It is said to be there."""

    class Gone:
        def write(self, rows: pa.RecordBatch) -> None:
            raise ServerUnavailable("the server is gone")

    monkeypatch.setattr(scanner.sync.Table, "open_writer", lambda *_: nullcontext(Gone()))
    monkeypatch.setattr(scanner.sync.Table, "drop_unwritten", lambda _: pytest.fail("it asked the server"))
    path = tmp_path / "items.parquet"
    pq.write_table(pa.table({"id": [1]}), path)
    assert command("load", path, "--primary-key", "id", "--table", "made") == (
        1,
        "",
        "table made was made, and may be there, with some of the file's rows or none; load it again for all of them\n"
        "weir: the server is gone\n",
    )


@pytest.mark.parametrize(
    ("content", "words", "message"),
    [
        ("a,b\n1,2\n", ["-k", "id"], "no column 'id' for the primary key; it has a, b"),
        ("a,b\n1,2\n", [], "--primary-key COLUMNS, out of a, b"),
        (WIDE_CSV, ["-k", "id"], "c18, c19 and 80 more"),
        (WIDE_CSV, ["-k", "c0", "--types", "c=string"], "c18, c19 and 80 more"),
        (',"a, b"\n1,2\n', [], '--primary-key COLUMNS, out of "", "a, b"'),
        ("a,b\n1,2\n,3\n", ["-k", "a"], "'a' is null in row 2"),
        ("a,b\n1\n", ["-k", "a"], "line 2 has 1 value,"),
        ("a,b\n1,2\n", ["-k", "a", "--types", "c=string"], "no column 'c' for --types; it has a, b"),
        ("a,b\n1,2\n", ["-k", "a", "--types", "b"], "write NAME=TYPE"),
        (
            "a,b\n1,2\n",
            ["-k", "a", "--types", "b=varchar"],
            "'varchar' is no type of a column; types are such as bool",
        ),
        ("a,b\n1,2\n", ["-k", "a", "--types", "b=decimal(99,2)"], "'decimal(99,2)' is no type"),
        ("a,b\n1,caf\udce9\n", ["-k", "a"], "octet 0xE9 on line 2; name its encoding"),
        ('a,b\n1,"c\n', ["-k", "a"], "the quote on line 2 is never closed"),
        ("a,b\n1\n", ["-k", "a", "-t", "no/name"], "table name 'no/name' is not valid"),  # Said first.
        ("a,b\n1,2\n", ["-k", "a", "-t", ""], "table name '' is not valid"),
    ],
)
def test_load_that_makes_no_sense(
    command: Weir, tmp_path: Path, content: str, words: list[str], message: str, never_slow: None
) -> None:
    """Each mistake is one line that says what to do, and leaves no table behind."""
    path = tmp_path / "fresh.csv"
    path.write_text(content, errors="surrogateescape")
    assert message in last_line(command("load", path, *words))
    assert "fresh" not in command("tables")[1]


def test_columns_of_any_name_are_loaded_and_chosen(command: Weir, tmp_path: Path) -> None:
    """The index that pandas writes has no name, and a name may have a comma."""
    path = tmp_path / "priced.csv"
    path.write_text(',"Price, USD",b\n7,2.5,x\n')
    assert command("load", path, "-k", '""')[0] == 0
    chosen = command("scan", "priced", "-c", '"Price, USD",""', "--format", "csv")
    assert chosen == (0, '"Price, USD",""\n2.5,7\n', "")
    assert command("drop", "priced", "--yes")[0] == 0


def test_load_loses_no_digit(command: Weir, tmp_path: Path) -> None:
    """Keys beyond int64, zeros in front and long decimals arrive as they were written, and the types are told."""
    path = tmp_path / "exact.csv"
    path.write_text(
        "id,zip,price\n9223372036854775808,01234,12345678901234567.89\n9223372036854775809,1,0.5\n"
    )
    code, out, err = command("load", path, "-k", "id")
    assert (code, out[:26]) == (0, "loaded 2 rows into exact i")
    assert err == (
        "types found: id decimal128(38, 0), zip string, price decimal128(38, 2); --types NAME=TYPE takes others\n"
    )
    rows = [json.loads(line) for line in command("scan", "exact", "--format", "json")[1].splitlines()]
    assert sorted(map(str, rows)) == [
        str({"id": "9223372036854775808", "zip": "01234", "price": "12345678901234567.89"}),
        str({"id": "9223372036854775809", "zip": "1", "price": "0.50"}),
    ]
    assert command("drop", "exact", "--yes")[0] == 0


@pytest.mark.usefixtures("never_slow")
def test_a_file_with_types_is_stored_as_it_is_told(command: Weir, tmp_path: Path) -> None:
    """What no table has becomes what one has, value by value, or nothing is made."""
    path = tmp_path / "counts.parquet"
    pq.write_table(pa.table({"id": pa.array([1, 2**63 - 1, 2**40], pa.uint64()), "n": [1, 2, None]}), path)
    load = ["load", path, "-k", "id"]
    assert one_line(command(*load)) == (
        "weir: column 'id' has type uint64, which cannot be stored; --types id=int64 casts it"
    )
    assert "has no column 'c' for --types; it has id, n" in one_line(command(*load, "--types", "c=int8"))
    assert "an integer is no string" in one_line(command(*load, "--types", "id=string"))
    assert "holds 9223372036854775807, which is no int32" in one_line(command(*load, "--types", "id=int32"))
    assert command("describe", "counts")[0] == 1
    assert command(*load, "--types", "id=int64,n=int16")[::2] == (0, "")
    assert "n       int16" in command("describe", "counts")[1]
    assert command("get", "counts", "9223372036854775807", "--format", "json")[1:] == (
        '{"id": 9223372036854775807, "n": 2}\n',
        "",
    )
    assert command(*load, "--types", "n=int16")[::2] == (0, "")
    assert "is int16; leave it out of --types" in one_line(command(*load, "--types", "n=int64"))
    assert command("drop", "counts", "--yes")[0] == 0


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1, None], pa.uint64()),
        pa.array([1.5, None], pa.float16()),
        pa.array([decimal.Decimal("1.50"), None], pa.decimal256(50, 2)),
        pa.array([86_400_000, None], pa.date64()),
        pa.nulls(2),
    ],
    ids=lambda values: str(values.type),
)
def test_the_type_that_is_advised_is_taken(command: Weir, tmp_path: Path, values: pa.Array) -> None:
    """In a shell: a decimal's has a comma and parentheses."""
    path = tmp_path / "advised.arrow"
    table = pa.table({"id": [1, 2], "n": values})
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)
    advice = re.search(r"; (--types .*) casts it", command("load", path, "-k", "id")[2])
    assert advice is not None
    assert command("load", path, "-k", "id", *shlex.split(advice[1]))[::2] == (0, "")
    assert command("drop", "advised", "--yes")[0] == 0


def test_a_column_is_named_in_types_as_the_messages_name_it(command: Weir, tmp_path: Path) -> None:
    """In double quotes where its name has a comma, a blank at an end, or a quote, or is empty."""
    names = ["a,b", " x", 'c"d"', "f(a=1)", ""]
    path = tmp_path / "named.parquet"
    columns = dict.fromkeys(names, pa.array([1], pa.uint64()))
    pq.write_table(pa.table({"id": [1], **columns}), path)
    given = list[str]()
    while (answer := command("load", path, "-k", "id", *given))[0]:
        advice = re.search(r"; (--types .*) casts it", answer[2])
        assert advice is not None, answer
        given += shlex.split(advice[1])
    assert len(given) == 2 * len(names)
    assert command("drop", "named", "--yes")[0] == 0
    together = ",".join(given[1::2])
    assert command("load", path, "-k", "id", "--types", together)[::2] == (0, "")
    assert command("drop", "named", "--yes")[0] == 0


def test_load_as_it_is_told(command: Weir, tmp_path: Path) -> None:
    """Types, delimiter, quote, encoding and nulls are options; those that make no sense are refused."""
    path = tmp_path / "told.csv"
    path.write_bytes("id|n|s\n1|2|'é|'\n2|-|\n".encode("latin-1"))
    options = ["--delimiter", "|", "--quote", "'", "--encoding", "latin-1", "--null-value", "-"]
    types = ["--types", "id=int8,n=decimal(4,1)", "--types", "s=string"]
    code, _, err = command("load", path, "-k", "id", *options, *types)
    assert (code, err) == (0, "")
    rows = [json.loads(line) for line in command("scan", "told", "--format", "json")[1].splitlines()]
    assert sorted(rows, key=lambda row: row["id"]) == [
        {"id": 1, "n": "2.0", "s": "é|"},
        {"id": 2, "n": None, "s": ""},
    ]
    assert "is int8; leave it out of --types" in one_line(
        command("load", path, *options, "--types", "id=string")
    )
    assert command("drop", "told", "--yes")[0] == 0
    for words, message in [
        (["--delimiter", "ab"], "--delimiter takes one ASCII character"),
        (["--quote", "é"], "--quote takes one ASCII character"),
        (["--delimiter", "'", "--quote", "'"], "are both"),
        (["--encoding", "klingon"], "no encoding 'klingon'"),
        (["--encoding", "base64"], "no encoding 'base64'"),
        (["--encoding", "undefined"], "no encoding 'undefined'"),
    ]:
        assert message in one_line(command("load", path, "-k", "id", *words), code=2)


def test_load_that_fails_drops_its_table_unless_others_wrote_to_it(
    command: Weir, server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, never_slow: None
) -> None:
    """A load that fails before its first row takes back the table that it made, and never the rows of others."""
    path = tmp_path / "shared.csv"
    path.write_text('id,n\n"",1\n')
    assert "give every row a key" in one_line(
        command("load", path, "-k", "id", "--types", "id=int64,n=int64")
    )
    with scanner.sync.connect(server.endpoint) as client:
        assert "shared" not in [each.name for each in client.tables()]

        def check(*_: object) -> None:
            client.table("shared").write(pa.table({"id": [1], "n": [1]}))
            raise KeyInvalid("no key")

        monkeypatch.setattr("scanner.cli.load._require_columns", check)
        assert "no key" in one_line(command("load", path, "-k", "id", "--types", "id=int64,n=int64"))
        assert client.table("shared").new_scan().to_arrow().num_rows == 1
    assert command("drop", "shared", "--yes")[0] == 0


def test_keys_that_a_file_repeats_are_told(command: Weir, tmp_path: Path) -> None:
    """Rows that later ones of the same file replace are counted, in a new table and in one that is there."""
    path = tmp_path / "twice.csv"
    path.write_text("id,n\n1,a\n1,b\n2,c\n1,d\n")
    for attempt in range(2):
        code, out, err = command("load", path, "-k", "id")
        assert (code, out[:26]) == (0, "loaded 4 rows into twice i"), attempt
        assert "2 rows have the key of an earlier row of the file, and replaced it: 2 different keys" in err
    assert command("scan", "twice", "--format", "none")[1] == "2 rows\n"
    assert command("drop", "twice", "--yes")[0] == 0


def test_a_command_without_descriptors_says_so(
    command: Weir, server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server is there; to start another one would not help."""

    async def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(trio, "open_tcp_stream", refuse)
    told = one_line(command("tables"))
    assert told.endswith(f"cannot connect to {server.endpoint}: {os.strerror(errno.EMFILE)}")


def test_a_load_that_does_not_add_up_fails(
    command: Weir, server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new table has as many new rows as its file has keys; where somebody else wrote one of them, both is said."""
    path = tmp_path / "counted.csv"
    path.write_text("id,n\n1,1\n2,2\n2,3\n")
    with scanner.sync.connect(server.endpoint) as client:

        def check(*_: object) -> None:
            client.table("counted").write(pa.table({"id": [1], "n": [0]}))

        monkeypatch.setattr("scanner.cli.load._require_columns", check)
        told = one_line(command("load", path, "-k", "id", "--types", "id=int64,n=int64"))
    assert "of 3 rows, 1 of them with the key of an earlier one, 3 were acknowledged and 1 were new" in told
    assert "somebody else writes to it, or rows are missing" in told
    assert command("drop", "counted", "--yes")[0] == 0


def test_a_table_is_dropped_where_the_answer_is_yes(
    command: Weir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any other one leaves it, and says so; it is no interrupt."""
    path = tmp_path / "asked.csv"
    path.write_text("id\n1\n")
    assert command("load", path, "-k", "id")[0] == 0
    for answer, code, told in [
        ("n\n", 1, "weir: table asked was not dropped"),
        ("\n", 1, "weir: table asked was not dropped"),
        ("y\n", 0, "dropped asked"),
    ]:
        terminal = io.StringIO(answer)
        monkeypatch.setattr(terminal, "isatty", lambda: True)
        monkeypatch.setattr("sys.stdin", terminal)
        ended, _, err = command("drop", "asked")
        assert (
            ended,
            err.splitlines()[-1].removeprefix("Drop table asked and everything in it? [y/N]: "),
        ) == (
            code,
            told,
        )
    assert "no table 'asked'" in one_line(command("drop", "asked"))


def test_file_that_does_not_fit_the_table(command: Weir, items: str, tmp_path: Path) -> None:
    """Missing and unknown columns, and values of another type, are told by name."""
    path = tmp_path / "items.csv"
    for content, message in [
        ("id,name\n1,a\n", "no column price"),
        ("id,name,price,more\n1,a,1,1\n", "no column more"),
        (WIDE_CSV, "no column id, name, price, which table items has; it has c0, c1,"),
        (WIDE_CSV, "c18, c19 and 80 more"),
        ("id,name,price\nx,a,1\n", "'x'"),
    ]:
        path.write_text(content)
        assert message in one_line(command("load", path))
    parquet = tmp_path / "items.parquet"
    pq.write_table(pa.table({"id": ["x"], "name": ["a"], "price": [1.0]}), parquet)
    assert "id" in one_line(command("load", parquet))
    for words in (
        ("--delimiter", ";"),
        ("--quote", "none"),
        ("--encoding", "latin-1"),
        ("--null-value", "a"),
    ):
        assert f"is no CSV: leave {words[0]} out" in one_line(command("load", parquet, *words))


def test_scan_that_makes_no_sense(command: Weir, items: str, tmp_path: Path) -> None:
    """Unknown tables, columns, modes, formats and conditions are one line each that lists what there is."""
    assert "items" in one_line(command("scan", "item"))
    assert "did you mean 'price'" in one_line(command("scan", items, "-c", "prise"))
    assert "'push', 'session'" in one_line(command("scan", items, "--mode", "pull"), code=2)
    assert "'csv', 'json', 'arrow', 'parquet', 'none'" in one_line(
        command("scan", items, "--format", "xml"), code=2
    )
    assert "did you mean 'price'" in one_line(command("scan", items, "-w", "id = 1 or prise > 1"))
    assert "quote it: 'much'" in one_line(command("scan", items, "-w", "price > much"))
    assert "cannot read the condition" in one_line(command("scan", items, "-w", "price"))
    for mistake, words in [
        ("BUCKET:OFFSET for each", ["yesterday"]),
        ("BUCKET:OFFSET for each", ["1", "2"]),
        ("names bucket 0 twice", ["0:1", "0:2"]),
        ("--as-of says nothing of bucket 1; write --as-of BUCKET:OFFSET", ["0:1"]),
        ("--as-of names bucket 2; the table has buckets 0..1", ["0:1", "1:1", "2:1"]),
        ("changelog of table", ["999999"]),
    ]:
        options = [word for text in words for word in ("--as-of", text)]
        assert mistake in one_line(command("scan", items, *options))
    assert "mode cursor reads what is there now" in one_line(
        command("scan", items, "--as-of", "1", "--mode", "cursor")
    )
    for option in (["--snapshot"], ["--lease", "nightly"]):
        message = one_line(command("scan", items, "--as-of", "1", *option))
        assert message == f"weir: --as-of and {option[0]} both say which state is read; leave one out"
        message = one_line(command("scan", items, "--mode", "session", *option))
        assert message == f"weir: {option[0]} is for mode push; the others read what is there now"
    assert "--credit is for mode push" in one_line(
        command("scan", items, "--credit", "1M", "--mode", "session")
    )
    assert "colour" in one_line(command("scan", items, "-w", "colour = red"))
    assert "missing" in one_line(command("scan", items, "-o", tmp_path / "missing" / "x.json"))
    assert "--limit" in one_line(command("scan", items, "--limit", "-1"), code=2)


def test_drop_asks_first(command: Weir, items: str) -> None:
    """Dropping without a terminal to ask on needs --yes; a table that is not there is told first."""
    assert "--yes" in one_line(command("drop", items))
    assert "nope" in one_line(command("drop", "nope"))


def test_unreachable_server(capsys: pytest.CaptureFixture[str]) -> None:
    """Where nobody answers, one line says how to start a server there, if that is this machine."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert run(["tables", "-e", f"127.0.0.1:{port}"]) == 1
    assert f"weir serve --data DIR --host 127.0.0.1 --port {port}" in capsys.readouterr().err
    assert run(["tables", "-e", f"far.invalid:{port}"]) == 1
    assert "weir serve --data" not in capsys.readouterr().err
    assert run(["tables", "-e", "nonsense:port"]) == 1
    assert "HOST:PORT" in capsys.readouterr().err


def test_serve_refuses_to_be_open_to_everyone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Plaintext beyond the loopback interface has to be asked for."""
    assert run(["serve", "--data", str(tmp_path), "--host", "0.0.0.0"]) == 1
    assert "--insecure-bind-any" in capsys.readouterr().err


def test_serve_of_metrics_without_a_port(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An address of metrics that nobody serves is no word that is passed over."""
    assert run(["serve", "--data", str(tmp_path), "--metrics-host", "0.0.0.0"]) == 1
    assert "--metrics-host needs --metrics-port" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["", *weir.list_commands(click.Context(weir))])
def test_help_has_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every command's help shows how it is used, and that of a group is not taken for a listing."""
    command = weir.get_command(click.Context(weir), name)
    for below in ("", *getattr(command, "commands", ())):
        words = f"{name} {below}".split()
        assert run([*words, "--help"]) == 0
        assert " ".join(["weir", *words]) in capsys.readouterr().out.partition("Example:")[2]
