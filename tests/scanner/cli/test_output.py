"""What `weir scan` writes."""

from __future__ import annotations

import datetime
import decimal
import gc
import io
import json
import re
import sys
from pathlib import Path

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.cells import cell_len

from scanner.cli.cells import times_to_text
from scanner.cli.display import print_table, table_lines
from scanner.cli.files import CsvOptions, open_file
from scanner.cli.output import format_of, json_values, open_rows

BATCH = pa.record_batch(
    {
        "n": pa.array([1, None], pa.int64()),
        "f": pa.array([float("nan"), float("-inf")]),
        "s": ["ü[red]", None],
        "b": pa.array([b"\x00\xff", None], pa.binary()),
        "d": pa.array([datetime.date(2013, 1, 2), None]),
        "t": pa.array([0, None], pa.timestamp("us", "UTC")),
        "m": pa.array([decimal.Decimal("1.50"), None]),
        "x": [True, None],
    }
)


def written(kind: str) -> bytes:
    """The sample in one format."""
    file = io.BytesIO()
    rows = open_rows(kind, file, BATCH.schema)
    rows.write(BATCH)
    rows.close()
    return file.getvalue()


def test_json_is_one_object_per_line() -> None:
    """Every type has a form that any JSON parser takes."""
    lines = written("json").decode().splitlines()
    first, second = (json.loads(line, parse_constant=pytest.fail) for line in lines)
    assert first == {
        "n": 1, "f": "NaN", "s": "ü[red]", "b": "AP8=", "d": "2013-01-02", "t": "1970-01-01T00:00:00.000000Z",
        "m": "1.50", "x": True,
    }  # fmt: skip
    assert second == dict.fromkeys(BATCH.schema.names) | {"f": "-Infinity"}


def test_parquet_reads_back() -> None:
    """Parquet through a stream that cannot seek keeps every value and type."""
    table = pq.read_table(pa.BufferReader(written("parquet")))
    assert table.schema == BATCH.schema
    assert table.drop_columns(["f"]).to_pylist() == BATCH.drop_columns(["f"]).to_pylist()


def test_parquet_has_checksums() -> None:
    """A value that is damaged afterwards is not taken for another one by a reader that looks."""
    file = io.BytesIO()
    batch = pa.record_batch({"name": ["Anna Lena"]})
    rows = open_rows("parquet", file, batch.schema)
    rows.write(batch)
    rows.close()
    damaged = file.getvalue().replace(b"Anna Lena", b"Anna Lene", 1)
    with pytest.raises(OSError, match="checksum"):
        pq.read_table(pa.BufferReader(damaged), page_checksum_verification=True)


@pytest.mark.parametrize("closed", [False, True])
def test_parquet_that_is_given_up_is_not_read(closed: bool) -> None:
    """A pipe or a file that a scan was written to when it failed must not look like all of its rows."""
    file = io.BytesIO()
    rows = open_rows("parquet", file, BATCH.schema)
    rows.write(BATCH)
    cut = file.getvalue()
    if closed:
        file.close()
    del rows
    gc.collect()
    assert closed or file.getvalue() == cut
    with pytest.raises(pa.ArrowInvalid, match="magic"):
        pq.read_table(pa.BufferReader(cut))


def test_table_shows_markup_as_it_is() -> None:
    """A table cuts nothing off where no terminal does, and cells are no markup."""
    text = written("table").decode()
    assert "ü[red]" in text
    assert text.splitlines()[0].split() == BATCH.schema.names


def test_none_writes_nothing() -> None:
    """Format none only reads."""
    assert written("none") == b""


def test_numbers_stand_to_the_right() -> None:
    """Numbers are aligned by their last digit."""
    out = io.StringIO()
    print_table({"n": [1, 1000], "s": ["a", "b"]}, out)
    assert out.getvalue().splitlines()[2].startswith("   1  a")


@pytest.mark.parametrize(
    ("kind", "output", "expected"),
    [
        (None, None, "table"),
        (None, Path("a.parquet"), "parquet"),
        (None, Path("a.jsonl"), "json"),
        (None, Path("a.CSV"), "csv"),
        (None, Path("a.arrow"), "arrow"),
        ("table", Path("a.txt"), "table"),
        ("json", Path("a.parquet"), "json"),
    ],
)
def test_format_by_option_or_ending(kind: str | None, output: Path | None, expected: str) -> None:
    """What is said counts first, then the file's name."""
    assert format_of(kind, output) == expected


@pytest.mark.parametrize("name", ["a.txt", "a.xyz", "a", "null"])
def test_name_that_says_no_format(name: str) -> None:
    """A file whose name says no format is refused, rather than filled with a table of 50 rows."""
    with pytest.raises(click.ClickException, match=r"says no format; say --format, or .*\.csv"):
        format_of(None, Path(name))


STAMPS = {
    "D": (pa.date32(), 2**31),
    "s": (pa.timestamp("s"), 2**63),
    "ms": (pa.timestamp("ms", "UTC"), 2**63),
    "us": (pa.timestamp("us", "+02:00"), 2**63),
    "ns": (pa.timestamp("ns", "America/New_York"), 2**63),
}


@pytest.mark.parametrize("unit", STAMPS)
def test_json_of_every_time(unit: str) -> None:
    """Dates and times of every year are told as such, in their zone with its offset as ISO 8601 has it."""
    kind, end = STAMPS[unit]
    numbers = [-end, -end + 1, -1, 0, 1, 1_700_000_000, 253402300799, 253402300800, end - 1, None]
    if unit == "D":
        numbers = [-end, -719163, -719162, 0, 2932896, 2932897, end - 1, None]
    file = io.BytesIO()
    batch = pa.record_batch({"t": pa.array(numbers, pa.int32() if unit == "D" else pa.int64()).cast(kind)})
    rows = open_rows("json", file, batch.schema)
    rows.write(batch)
    rows.close()
    texts = [json.loads(line)["t"] for line in file.getvalue().decode().splitlines()]
    assert texts[-1] is None
    form = r"-?\d{4,}-\d\d-\d\d" + ("" if unit == "D" else r"T\d\d:\d\d:\d\d(\.\d{3,9})?(Z|[-+]\d\d:\d\d)?")
    for text in texts[:-1]:
        assert re.fullmatch(form, text)
        assert (re.search(r"T.*(Z|[-+]\d\d:\d\d)$", text) is not None) == (unit in {"ms", "us", "ns"})
    assert len(set(texts)) == len(texts)


def test_times_that_are_known() -> None:
    """Some times as they are printed."""
    for kind, number, text in [
        (pa.timestamp("us", "+02:00"), 0, "1970-01-01T02:00:00.000000+02:00"),
        (pa.timestamp("s", "Asia/Kolkata"), 0, "1970-01-01T05:30:00+05:30"),
        (pa.timestamp("s"), -(2**63), "-292277022657-01-27T08:29:52"),
        (pa.timestamp("s"), 2**63 - 1, "292277026596-12-04T15:30:07"),
        (pa.timestamp("us", "Europe/Berlin"), 2**63 - 1, "294247-01-10T04:00:54.775807Z"),
        (pa.timestamp("s", "Europe/Berln"), 0, "1970-01-01T00:00:00Z"),
        (pa.timestamp("s", "../UTC"), None, None),
        (pa.date32(), -719529, "-0001-12-31"),
        (pa.timestamp("ms"), -62135596800001, "0000-12-31T23:59:59.999"),
    ]:
        integers = pa.int32() if pa.types.is_date(kind) else pa.int64()
        assert times_to_text(pa.array([number], integers).cast(kind)).to_pylist() == [text]


def test_what_a_terminal_obeys_is_shown() -> None:
    """In a table control characters of values and of names are written out, so that a tab moves no cell."""
    out = io.StringIO()
    print_table(
        {"a\x1b[31m": ["x\x1b[2J\ty", "\x9b1m", "line\nline", "\u202eevil"], "b": ["1", "2", "3", "4"]}, out
    )
    assert [line.split() for line in out.getvalue().splitlines() if "─" not in line] == [
        ["a\\x1b[31m", "b"],
        ["x\\x1b[2J\\ty", "1"],
        ["\\x9b1m", "2"],
        ["line\\nline", "3"],
        ["\\u202eevil", "4"],
    ]


@pytest.mark.parametrize("kind", ["table", "vertical"])
def test_what_people_see_is_in_the_encoding_of_standard_output(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """To a terminal of Latin 1 the UTF-8 of a capital U with a circumflex would begin a command; a file is UTF-8."""
    batch = pa.record_batch({"name": ["Û", "漢"]})
    octets = []
    for encoding in ("latin-1", "utf-8"):
        shown = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding))
        writer = open_rows(kind, sys.stdout.buffer, batch.schema)
        writer.write(batch)
        writer.close()
        octets.append(shown.getvalue())
    assert b"\xdb\n" in octets[0]
    assert b"\\u6f22\n" in octets[0]
    with io.BytesIO() as file:
        writer = open_rows(kind, file, batch.schema)
        writer.write(batch)
        writer.close()
        assert file.getvalue() == octets[1]
    assert "Û\n" in octets[1].decode()


def test_json_with_what_a_terminal_obeys() -> None:
    """JSON says it by its number, in names and in values, and means the same."""
    file = io.BytesIO()
    batch = pa.record_batch({"a\x9b": ["\x1b[2J\x7f\x9b1m\u202e"]})
    open_rows("json", file, batch.schema).write(batch)
    assert file.getvalue().decode().isascii()
    assert json.loads(file.getvalue()) == batch.to_pylist()[0]


def test_columns_that_fit() -> None:
    """At 80 columns whole columns are shown, the others named, and a value of a megabyte takes no second line."""
    columns = {
        f"column {number}": [number, "x" * 1_000_000][: 1 + number % 2] * (2 - number % 2)
        for number in range(30)
    }
    lines = table_lines(columns, 80)
    assert max(map(cell_len, lines)) <= 80
    assert lines[0].split("  ")[0] == "column 0"
    assert "…" in lines[3]
    shown = sum(f"column {number}" in lines[0] for number in range(30))
    assert 2 <= shown < 30
    assert any(
        line.startswith(f"{30 - shown} columns do not fit ('| cat' shows all): column {shown}")
        for line in lines
    )
    wide = table_lines(columns, None)
    assert len(wide[3]) > 1_000_000


def test_one_column_wider_than_the_terminal() -> None:
    """The first column is always shown, as far as it goes; wide characters count twice."""
    lines = table_lines({"a": ["漢字" * 100]}, 20)
    assert [cell_len(line) for line in lines][1:] == [20, 20]
    assert lines[2].endswith("…")


@pytest.mark.parametrize("width", [1, 2, 3])
def test_a_table_on_a_terminal_of_hardly_any_columns(width: int) -> None:
    """One column is shown, and under it the beginning of what is said of the others."""
    lines = table_lines({"a": [1], "b": [2]}, width)
    assert lines[0] == "a"
    assert lines[3:5] == ["", "1 co"]


def test_vertical_format_shows_everything() -> None:
    """Each row is a block with a line for each column."""
    assert written("vertical").decode().splitlines()[:5] == [
        "── row 1 ──",
        "n  1",
        "f  NaN",
        "s  ü[red]",
        "b  AP8=",
    ]


CELLS = pa.record_batch(
    {
        "id": pa.array(range(6), pa.int64()),
        'na"me,\nof\ttext': ["", None, "NA", 'quote " and, comma', "two\nlines\r\nand \x00", " ü "],
        "i8": pa.array([127, -128, 0, None, 1, 2], pa.int8()),
        "f64": pa.array([float("nan"), float("-inf"), -0.0, 5e-324, 1.7976931348623157e308, None]),
        "f32": pa.array([float("inf"), 0.1, -0.0, 1e-45, None, 16777216.0], pa.float32()),
        "flag": [True, False, None, True, True, False],
        "money": pa.array(
            [decimal.Decimal("-0.01"), decimal.Decimal("12345678901234567.89"), None, None, None, None],
            pa.decimal128(38, 2),
        ),
        "day": pa.array([-(2**31), 2**31 - 1, 0, -719163, 2932897, None], pa.int32()).cast(pa.date32()),
        "s": pa.array([-(2**53), 2**53, 0, -1, None, 1], pa.int64()).cast(pa.timestamp("s")),
        "ms": pa.array([-(2**63) + 1, 2**63 - 1, 0, -1, None, 1], pa.int64()).cast(pa.timestamp("ms", "UTC")),
        "us": pa.array([-(2**63) + 1, 2**63 - 1, 0, -1, None, 1], pa.int64()).cast(
            pa.timestamp("us", "Asia/Tokyo")
        ),
        "ns": pa.array([-(2**63) + 1, 2**63 - 1, 0, -1, None, 1], pa.int64()).cast(
            pa.timestamp("ns", "-03:30")
        ),
        "octets": pa.array([b"", b"\x00\xff", None, b"\\x", b"text", b"\n"], pa.binary()),
    }
)


@pytest.mark.parametrize("kind", ["csv", "arrow", "parquet"])
def test_what_is_written_is_read_again(tmp_path: Path, kind: str) -> None:
    """Each format that `weir load` reads brings back every value: of each type, its extremes, null and empty."""
    path = tmp_path / f"rows.{kind}"
    with path.open("wb") as file:
        rows = open_rows(kind, file, CELLS.schema)
        rows.write(CELLS)
        rows.write(CELLS.slice(0, 0))
        rows.close()
    source = open_file(path, CsvOptions(), CELLS.schema)
    batch = pa.Table.from_batches(source.batches()).combine_chunks().to_batches()[0]
    assert batch.schema.names == CELLS.schema.names
    for each in CELLS.schema:  # Parquet has no seconds.
        column = batch.column(each.name).cast(each.type)
        assert str(as_is(column)) == str(as_is(CELLS.column(each.name))), each.name


@pytest.mark.parametrize(
    ("scale", "texts"),
    [
        (38, ["1.05E-36", None, "-9E-38"]),
        (39, ["1.05E-37", None, "-9E-39"]),
        (1000, ["1.05E-998", None, "-9E-1000"]),
        (-38, ["1.05E+40", None, "-9E+38"]),
        (-39, ["1.05E+41", None, "-9E+39"]),
    ],
)
def test_decimals_of_every_scale(tmp_path: Path, scale: int, texts: list[str | None]) -> None:
    """JSON and CSV have each value, also where Arrow has no text of it: what the CSV has is read again."""
    octets = b"".join(each.to_bytes(16, "little", signed=True) for each in (7, 105, 0, -9))
    buffers = [pa.py_buffer(bytes([0b1011])), pa.py_buffer(octets)]
    values = pa.Array.from_buffers(pa.decimal128(5, scale), 4, buffers)[1:]
    batch = pa.record_batch({"n": [1, 2, 3], "x": values})
    assert json_values(batch.column("x")) == texts
    path = tmp_path / "rows.csv"
    with path.open("wb") as file:
        rows = open_rows("csv", file, batch.schema)
        rows.write(batch)
        rows.close()
    (read,) = open_file(path, CsvOptions(), batch.schema).batches()
    assert read.column("x").equals(values)


def test_parquet_refuses_what_it_cannot_hold() -> None:
    """Seconds become milliseconds in Parquet: a year that these do not reach is refused."""
    batch = pa.record_batch({"t": pa.array([2**63 - 1], pa.int64()).cast(pa.timestamp("s"))})
    with pytest.raises(click.ClickException, match="choose --format arrow"):
        open_rows("parquet", io.BytesIO(), batch.schema).write(batch)


@pytest.mark.parametrize(
    "kind", [pa.decimal128(2, -2), pa.decimal128(3, 5), pa.month_day_nano_interval()], ids=str
)
def test_parquet_refuses_types_that_it_has_not(kind: pa.DataType) -> None:
    """That is told of the columns, and not of the file."""
    with pytest.raises(click.ClickException, match=r"cannot hold these columns: .*choose --format arrow"):
        open_rows("parquet", io.BytesIO(), pa.schema([("d", kind)]))


def as_is(column: pa.Array) -> list[object]:
    """A column's values in a form that Python's calendar does not bound."""
    numbers = pa.types.is_timestamp(column.type) or pa.types.is_date(column.type)
    plain = column.cast(pa.int32() if pa.types.is_date(column.type) else pa.int64()) if numbers else column
    return [str(column.type), *plain.to_pylist()]


def test_csv_of_one_column_refuses_null() -> None:
    """Null in the only column would be an empty line, which every reader skips."""
    batch = pa.record_batch({"a": ["x", None]})
    with pytest.raises(click.ClickException, match="column 'a' has a null"):
        open_rows("csv", io.BytesIO(), batch.schema).write(batch)
