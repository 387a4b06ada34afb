"""`weir get`: rows by keys as people type them, and an exit code that tells whether all were there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import scanner.sync
from scanner.cli import run
from tests.support.server import RunningServer, running_server

pytestmark = [pytest.mark.socket, pytest.mark.rocks]

SCHEMA = pa.schema([("day", pa.date32()), ("id", pa.int64()), ("text", pa.string())])
Weir = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with a table of three rows."""
    with running_server(tmp_path_factory.mktemp("data")) as running:
        with scanner.sync.connect(running.endpoint) as client:
            table = client.create_table("items", SCHEMA, ["day", "id"], 2)
            ids, texts = [1, 2, 3], ["one", None, "three \x1b[31m"]
            days = pa.array([0, 1, 2], pa.int32()).cast(pa.date32())
            table.write(pa.table([days, pa.array(ids), pa.array(texts)], schema=SCHEMA))
        yield running


def test_rows_in_the_order_of_the_keys(command: Weir) -> None:
    """All found: exit code 0, and nothing on standard error."""
    code, out, err = command(
        "get", "items", "1970-01-03,3", "1970-01-01,1", "--format", "json", "-c", "id,text"
    )
    assert (code, err) == (0, "")
    assert [json.loads(line)["id"] for line in out.splitlines()] == [3, 1]
    assert "\x1b" not in out


def test_a_missing_key_is_named_and_fails(command: Weir) -> None:
    """The rows that are there are written, the other keys are told as they were typed, and the exit code is 1."""
    code, out, err = command("get", "items", "1970-01-01,1", "1970-01-01,2", "--format", "csv", "-c", "text")
    assert (code, out.splitlines()[1:]) == (1, ['"one"'])
    assert err == "weir: table items has no row of key 1970-01-01,2\n"
    many = command("get", "items", *(f"1970-01-01,{number}" for number in range(10, 15)), "--format", "none")
    assert many[:2] == (1, "0 rows\n")
    assert many[2].endswith("of key 1970-01-01,10 1970-01-01,11 1970-01-01,12 and 2 others\n")


def test_a_key_that_begins_with_a_minus(
    server: RunningServer, command: Weir, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Alone it is taken for an option, and the error says what to write; behind -- it is a key."""
    with scanner.sync.connect(server.endpoint) as client:
        table = client.create_table("stations", pa.schema([("id", pa.int64())]), ["id"], 1)
        table.write(pa.table({"id": [-1, -7]}))
    for name in ("get", "delete"):
        code, out, err = command(name, "stations", "-7")
        assert (code, out) == (2, "")
        assert err.endswith(
            f"'-7'; if it is a value, write it at the end, behind --; see weir {name} --help\n"
        )
    words = ["stations", "-e", server.endpoint, "--", "-7", "-1"]
    assert run(["get", "--format", "csv", *words]) == 0
    assert capfdbinary.readouterr().out == b'"id"\n-7\n-1\n'
    assert run(["delete", *words]) == 0
    assert capfdbinary.readouterr().out == b"deleted 2 rows of stations\n"


def test_a_table_for_people_and_a_file(command: Weir, tmp_path: Path) -> None:
    """Format table by default, and what -o ends in."""
    code, out, _ = command("get", "items", "1970-01-02,2")
    assert code == 0
    assert "1970-01-02" in out
    path = tmp_path / "rows.parquet"
    assert command("get", "items", "1970-01-02,2", "-o", path) == (0, "", "")
    assert pq.read_table(path).column("id").to_pylist() == [2]


def test_as_of_an_offset(command: Weir) -> None:
    """At the log's beginning there is nothing; an offset that is not there yet is refused."""
    assert command("get", "items", "1970-01-01,1", "--as-of", "0", "--format", "json")[:2] == (1, "")
    code, _, err = command("get", "items", "1970-01-01,1", "--as-of", "99")
    assert code == 1
    assert "there is no state as of 99 yet" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["1970-01-01"], "does not have the form day,id"),
        (["1970-01-01,x"], "'x' is no int64"),
        (["1970-01-01,1.0"], "'1.0' is no int64"),
        (["1970-01-01,1", "--columns", "nope"], "no column 'nope'"),
        (["1970-01-01,1", "--columns", ""], "--columns needs at least one column"),
        (["1970-01-01,1", "--as-of", "x"], "cannot read --as-of"),
        (["1970-01-01,1", "--as-of", "7:0"], "--as-of names bucket 7; the table has buckets 0..1"),
    ],
)
def test_what_cannot_be_read_is_one_line(command: Weir, words: list[str], message: str) -> None:
    """A key or an option that makes no sense prints no row."""
    code, out, err = command("get", "items", *words)
    assert (code, out) == (1, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_each_key_is_read_by_itself(server: RunningServer, command: Weir) -> None:
    """A quote that a key does not close takes in no other key, and no line break is left out of a value."""
    schema = pa.schema([("key", pa.string()), ("number", pa.float64())])
    with scanner.sync.connect(server.endpoint) as client:
        table = client.create_table("texts", schema, ["key"], 1)
        table.write(pa.table([['"x', "xy", "y", "x"], [1.0, 2.0, 3.0, 4.0]], schema=schema))
    for keys in (['"x', "y"], ["x\n"], ["x\r"], ["x\ny"], ['"x"y']):
        for verb in ("get", "delete"):
            code, out, err = command(verb, "texts", *keys)
            assert (code, out, len(err.splitlines())) == (1, "", 1), keys
            assert "is no CSV record" in err
    code, out, _ = command("get", "texts", '"""x"', "y", "--format", "json", "-c", "number")
    assert (code, [json.loads(line)["number"] for line in out.splitlines()]) == (0, [1.0, 3.0])


def test_a_float_that_is_not_the_number_is_no_key(server: RunningServer, command: Weir) -> None:
    """A whole number is that number or refused, as in a filter; one with a point is the nearest float."""
    schema = pa.schema([("key", pa.float64()), ("text", pa.string())])
    with scanner.sync.connect(server.endpoint) as client:
        table = client.create_table("floats", schema, ["key"], 1)
        table.write(pa.table([[2.0**53, 0.1, float("inf")], ["large", "small", "endless"]], schema=schema))
    for key in ("9007199254740993", "1e400"):
        code, out, err = command("get", "floats", key)
        assert (code, out) == (1, "")
        assert f"'{key}' is no double" in err
    found = command("get", "floats", "9007199254740992", "0.1", "inf", "--format", "csv", "-c", "text")
    assert found == (0, '"text"\n"large"\n"small"\n"endless"\n', "")


def test_a_float32_is_the_nearest_to_what_has_a_point(server: RunningServer, command: Weir) -> None:
    """So a key is named as a CSV shows it, though none is 0.1; other whole numbers that are none stay refused."""
    schema = pa.schema([("key", pa.float32()), ("text", pa.string())])
    with scanner.sync.connect(server.endpoint) as client:
        table = client.create_table("narrow", schema, ["key"], 1)
        table.write(pa.table([[0.1, 2.0**24, 355591072.0], ["small", "large", "larger"]], schema=schema))
    _, shown, _ = command("scan", "narrow", "--format", "csv", "-c", "key,text")
    words = [line.partition(",")[0] for line in shown.splitlines()[1:]]
    assert {"0.1", "355591070"} < set(words)
    found = command("get", "narrow", *words, "--format", "csv")
    assert found == (0, shown, "")
    for key in ("16777217", "355591071", "1e39"):
        code, out, err = command("get", "narrow", key)
        assert (code, out) == (1, "")
        assert f"'{key}' is no float" in err


def test_a_float32_is_rounded_once(server: RunningServer, command: Weir) -> None:
    """The nearest float64 is half-way between the two, and names the other one."""
    schema = pa.schema([("key", pa.float32()), ("text", pa.string())])
    with scanner.sync.connect(server.endpoint) as client:
        table = client.create_table("once", schema, ["key"], 1)
        table.write(pa.table([[16777216.0, 16777218.0], ["below", "nearest"]], schema=schema))
    found = command("get", "once", " 16777217.0000000001", "--format", "csv", "-c", "text")
    assert found == (0, '"text"\n"nearest"\n', "")


def test_days_and_times_are_named_as_a_csv_shows_them(server: RunningServer, command: Weir) -> None:
    """To the first and the last that there are, in years of seven digits and of twelve."""
    schema = pa.schema([("day", pa.date32()), ("at", pa.timestamp("s"))])
    days = pa.array([-(2**31), 0, 2**31 - 1], pa.int32()).cast(pa.date32())
    times = pa.array([2**63 - 1, -(2**63), 2**62], pa.int64()).view(pa.timestamp("s"))
    with scanner.sync.connect(server.endpoint) as client:
        table = client.create_table("times", schema, ["day", "at"], 1)
        table.write(pa.table([days, times], schema=schema))
    _, shown, _ = command("scan", "times", "--format", "csv")
    words = shown.splitlines()[1:]
    assert '"5881580-07-11","146138514283-06-19T07:45:04"' in words
    assert command("get", "times", "--format", "csv", *words) == (0, shown, "")


def test_octets_are_named_as_a_csv_shows_them(server: RunningServer, command: Weir) -> None:
    """Every key of octets can be read and deleted by what `weir scan` wrote, and by its text if it is one."""
    schema = pa.schema([("key", pa.binary()), ("number", pa.int64())])
    keys = [b"\x00\xff", b"\\xff", b"abc", b"\xff"]
    with scanner.sync.connect(server.endpoint) as client:
        table = client.create_table("octets", schema, ["key"], 1)
        table.write(pa.table([keys, [0, 1, 2, 3]], schema=schema))
        _, shown, _ = command("scan", "octets", "--format", "csv")
        words = [line.partition(",")[0].strip('"') for line in shown.splitlines()[1:]]
        assert command("get", "octets", *words, "--format", "csv") == (0, shown, "")
        assert command("get", "octets", "abc", "--format", "csv", "-c", "number") == (0, '"number"\n2\n', "")
        for verb in ("get", "delete"):
            code, out, err = command(verb, "octets", "\\xabc")
            assert (code, out) == (1, "")
            assert "is no binary" in err
        assert command("delete", "octets", words[0]) == (0, "deleted 1 row of octets\n", "")
        assert table.get(pa.table([keys], names=["key"])).found == (False, True, True, True)
