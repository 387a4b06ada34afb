"""Files that `weir load` reads."""

from __future__ import annotations

import csv
import datetime
import decimal
import gzip
import io
import json
import os
import struct
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.cli.cells import times_to_text
from scanner.cli.csv_text import CsvBlock, CsvDialect, CsvText
from scanner.cli.csv_types import ColumnTypes
from scanner.cli.files import CsvOptions, RowFile, open_file
from tests.support.arrow_values import STORED_TYPES

CSV = "id,name,price,day,at,flag,none\n1,ann,1.5,2013-01-01,2013-01-01T10:00:00Z,true,\n2,NA,NA,,NA,NULL,\n"


def read(source: RowFile) -> pa.Table:
    """All rows."""
    return pa.Table.from_batches(list(source.batches()), schema=source.schema)


def opened(path: Path, schema: pa.Schema | None = None, options: CsvOptions | None = None) -> RowFile:
    """The file as `weir load` opens it by default."""
    return open_file(path, options or CsvOptions(), schema)


@pytest.fixture(params=["data.csv", "data.csv.gz", "data.zip", "data.CSV"])
def csv_file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The same CSV, packed in every way."""
    path = tmp_path / str(request.param)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(CSV.encode()))
    elif path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("folder/data.csv", CSV)
            archive.writestr("__MACOSX/folder/data.csv", "")
            archive.writestr("readme.txt", "about")
    else:
        path.write_text(CSV)
    return path


def test_csv_types_and_nulls(csv_file: Path) -> None:
    """Types are found in the file, and empty, NA and NULL are null, strings included."""
    source = opened(csv_file)
    assert source.rows == 2
    assert [str(field.type) for field in source.schema] == [
        "int64", "string", "double", "date32[day]", "timestamp[s, tz=UTC]", "bool", "string",
    ]  # fmt: skip
    first, second = read(source).to_pylist()
    assert (first["id"], first["day"], first["flag"]) == (1, datetime.date(2013, 1, 1), True)
    assert second == {
        "id": 2,
        "name": None,
        "price": None,
        "day": None,
        "at": None,
        "flag": None,
        "none": None,
    }


@pytest.mark.parametrize(
    ("early", "late", "expected"),
    [
        ("1", "1.5", pa.float64()),
        ("1", "x", pa.string()),
        ("", "7", pa.int64()),
        ("", "2013-01-01", pa.date32()),
        ("true", "maybe", pa.string()),
        ("2013-01-01", "2013-01-01 10:00:00", pa.timestamp("s")),
        ("2013-01-01", "never", pa.string()),
        ("1", "99999999999999999999", pa.decimal128(38, 0)),
        ("1", "9223372036854775807", pa.int64()),
        ("1", "-9223372036854775809", pa.decimal128(38, 0)),
        ("1", "9" * 39, pa.string()),
        ("1", "01234", pa.string()),
        ("1", "+1", pa.string()),
        ("1", "0x1", pa.string()),
        ("1", "1_0", pa.string()),
        ("1", " 5", pa.int64()),
        ("1.5", "0.30000000000000004", pa.float64()),
        ("1.5", "1e308", pa.float64()),
        ("1.5", "1e309", pa.string()),
        ("1.5", "1e-400", pa.string()),
        ("1.5", "NaN", pa.float64()),
        ("1.5", "-Infinity", pa.float64()),
        ("1.5", "-0", pa.float64()),
        ("1.5", "007.5", pa.string()),
        ("1.5", "12345678901234567.89", pa.decimal128(38, 2)),
        ("0.5", "9007199254740993", pa.decimal128(38, 1)),
        ("1e5", "12345678901234567.89", pa.string()),
        ("true", "1", pa.string()),
        ("2013-01-01", "2013-02-30", pa.string()),
        ("2013-01-01 10:00", "2013-01-01 10:00:00.5", pa.timestamp("us")),
        ("2013-01-01 10:00", "2013-01-01 10:00:00.123456789", pa.timestamp("ns")),
        ("9999-12-31 10:00", "2013-01-01 10:00:00.123456789", pa.string()),
        ("2013-01-01T10:00:00Z", "2013-01-01T10:00:00.5+02:00", pa.timestamp("us", "UTC")),
        ("2013-01-01T10:00:00Z", "2013-01-01T10:00:00", pa.string()),
    ],
)
def test_type_fits_the_whole_file(tmp_path: Path, early: str, late: str, expected: pa.DataType) -> None:
    """A value far down decides as well: the first type that fits all values is taken."""
    path = tmp_path / "data.csv"
    lines = [f"{i:06},{early},{'x' * 90}" for i in range(30_000)] + [f"030000,{late},"]
    path.write_text("id,value,text\n" + "\n".join(lines) + "\n")
    assert path.stat().st_size > 2 << 20  # More than one block.
    source = opened(path)
    assert source.schema.field("value").type == expected
    assert source.rows == 30_001
    assert read(source).num_rows == 30_001


def test_table_decides_the_types_of_a_csv(tmp_path: Path) -> None:
    """For a table that exists, its types are used; a value that does not fit is told with its row."""
    path = tmp_path / "data.csv"
    path.write_text("id,code\n1,007\n")
    schema = pa.schema([("id", pa.int32()), ("code", pa.string())])
    assert read(opened(path, schema)).to_pylist() == [{"id": 1, "code": "007"}]
    path.write_text("id,code\none,007\n")
    with pytest.raises(click.ClickException, match="one"):
        read(opened(path, schema))


def test_quoted_newlines(tmp_path: Path) -> None:
    """A quoted cell may hold line breaks and commas."""
    path = tmp_path / "data.csv"
    path.write_text('id,text\n1,"a\nb,c"\n')
    assert read(opened(path)).to_pylist() == [{"id": 1, "text": "a\nb,c"}]


def test_parquet(tmp_path: Path) -> None:
    """A Parquet file keeps its types and is known by its content."""
    path = tmp_path / "anything.bin"
    table = pa.table({"id": pa.array([1, 2], pa.int32()), "at": pa.array([None, 5], pa.timestamp("us"))})
    pq.write_table(table, path)
    source = opened(path)
    assert source.rows == 2
    assert read(source).equals(table)


@pytest.mark.parametrize(("rows", "group_rows"), [(400_000, 20_000), (100_000, 7)])
def test_parquet_is_not_held_as_a_whole(tmp_path: Path, rows: int, group_rows: int) -> None:
    """Row groups that were read are freed, if not before the next one is begun; small ones make no small batches."""
    path = tmp_path / "groups.parquet"
    table = pa.table({"id": range(rows), "at": pa.array(range(rows), pa.timestamp("us"))})
    pq.write_table(
        table,
        path,
        group_rows,
        compression="none",
        use_dictionary=False,
        use_deprecated_int96_timestamps=True,
    )
    source = opened(path)
    before = most = pa.total_allocated_bytes()
    taken = batches = 0
    for batch in source.batches():
        assert batch.column("id")[0].as_py() == taken
        taken, batches = taken + batch.num_rows, batches + 1
        most = max(most, pa.total_allocated_bytes())
    assert taken == rows
    assert batches <= rows / 5000
    assert most - before < path.stat().st_size / 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("data.csv", b"a,b\n1,2\n3\n", "line 3 has 1 value, but the header has 2"),
        ("data.csv", b'a,b\n1,"x\ny"\n2,3,4\n', "line 4 has 3 values"),
        ("data.csv", b'a,b\n1,"abc\n2,def\n', "the quote on line 2 is never closed"),
        ("data.csv", b'a,b\n1,"abc\n2,"def"\n', "begins on line 2, is followed by more text on line 3"),
        ("data.csv", b'a,b\n1,"a""b"c\n', "quoted value is followed by more text on line 2"),
        ("data.csv", b'a,b\n1,5" pipe\n', "quote within an unquoted value on line 2; .*--quote none"),
        ("data.csv", b'a,b\n1,"5\\" x"\n', "not behind a backslash"),
        ("data.csv", b'a,b\n1,"5\\""\n', "never closed; .*not behind a backslash"),
        ("data.csv", b"a,b\n1,caf\xe9\n", "octet 0xE9 on line 2; .*--encoding"),
        ("data.csv", b"\xff\xfea\0,\0b\0", "not UTF-8: octet 0xFF on line 1; .*--encoding"),
        ("data.csv", "a,b\n1,2\n".encode("utf-16-le"), "has a NUL in the name of a column"),
        ("data.csv", "№,b\n1,2\n".encode("utf-16-le"), "NUL in the name of a column; .*--encoding NAME"),
        ("data.csv", b"a,a\n1,2\n", "two columns 'a'"),
        ("data.csv", b"", "empty|cannot be read"),
        ("data.csv", b"a,b\n1,x\ry\n", "has 1 value, .* begins with 'y'; a carriage return alone ends a row"),
        ("data.csv", b"PAR1\x15\x80", "has Parquet in it, not CSV; .*name it .parquet"),
        ("data.csv.gz", gzip.compress(b"ARROW1\0\0\xff", mtime=0), "has Arrow in it, not CSV; unpack it"),
        ("data.csv", "a,b\n1,2\n".encode("utf-16"), "octet 0xFF on line 1; .*--encoding utf-16"),
        ("data.csv", b"\xfej\xf3\xf0,b\n1,2\n", "octet 0xFE on line 1; .*--encoding cp1252"),
        ("data.csv", b"PAR1,b\n1,caf\xe9\n", "octet 0xE9 on line 2; .*--encoding"),
        ("data.csv", b"\xff\xff\xff\xff\x10\0\0\0", "has a stream of Arrow in it, not CSV"),
        ("data.arrows", b"\xff\xff\xff\xff\x10\0\0\0", "stream of Arrow, not a file"),
        ("data.json", b"{}", "neither Parquet, Arrow nor CSV"),
        ("data.parquet", b"PAR1 not really", "not a Parquet file"),
        ("data.zip", b"PK\x03\x04 not really", "cannot be read"),
        ("data.csv.gz", b"\x1f\x8b not really", "cannot be read"),
        ("empty.dat", b"", "empty"),
    ],
)
def test_unreadable_file_is_told(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    """A file that cannot be read is one message that names it."""
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(click.ClickException, match=message) as failure:
        opened(path)
    assert name in failure.value.format_message()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PAR1\x15\x80", "has Parquet in it"),
        (b"ARROW1\0\0", "has Arrow in it"),
        (b"\xff\xff\xff\xff\x10\0\0\0", "has a stream of Arrow in it"),
    ],
)
def test_what_is_no_csv_is_told_whatever_encoding_is_said(
    tmp_path: Path, content: bytes, message: str
) -> None:
    """Latin 1 has a character for every octet."""
    path = tmp_path / "data.csv"
    path.write_bytes(content)
    with pytest.raises(click.ClickException, match=message):
        opened(path, options=CsvOptions(dialect=CsvDialect(encoding="latin-1")))


@pytest.mark.parametrize("name", ["data.parquet", "data.arrow"])
def test_columns_of_one_name_are_refused(tmp_path: Path, name: str) -> None:
    """As in a CSV: a table has no place for both."""
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], names=["id", "a", "id"])
    path = tmp_path / name
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table)
    with pytest.raises(click.ClickException, match="two columns 'id'; rename one of them"):
        opened(path)


@pytest.mark.parametrize("header", ["PK,name", "PKEY,name", "PK"])
def test_a_first_column_that_is_called_pk_makes_no_zip(tmp_path: Path, header: str) -> None:
    """Files that are packed begin with the same two letters."""
    path = tmp_path / "data.csv"
    path.write_text(f"{header}\n{header.replace('name', 'x')}\n")
    assert read(opened(path)).num_rows == 1
    assert opened(path).schema.names == header.split(",")


@pytest.mark.parametrize("members", [[], ["a.csv", "b.csv"], ["a.txt"]])
def test_zip_must_hold_one_csv(tmp_path: Path, members: list[str]) -> None:
    """A zip with no CSV or several is refused."""
    path = tmp_path / "data.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for member in members:
            archive.writestr(member, "a\n1\n")
    with pytest.raises(click.ClickException, match="exactly one"):
        opened(path)


def test_each_cell_keeps_its_digits(tmp_path: Path) -> None:
    """Numbers that no int64 and no float64 holds are decimals, and postal codes are text."""
    path = tmp_path / "data.csv"
    path.write_text(
        "id,zip,price\n9223372036854775808,01234,12345678901234567.89\n9223372036854775809,1,0.5\n"
    )
    assert read(opened(path)).to_pydict() == {
        "id": [decimal.Decimal(9223372036854775808), decimal.Decimal(9223372036854775809)],
        "zip": ["01234", "1"],
        "price": [decimal.Decimal("12345678901234567.89"), decimal.Decimal("0.50")],
    }


def test_types_that_are_given(tmp_path: Path) -> None:
    """Types that the user gives are taken, the others found; a value that does not fit is told with its line."""
    path = tmp_path / "data.csv"
    path.write_text('id,n,"a\nb"\n1,2,x\n\n2,"3","y\nz"\n3,4.5,z\n')
    source = opened(path, options=CsvOptions(types={"id": pa.string(), "n": pa.float32()}))
    assert source.found_types == ("a\nb",)
    assert read(source).to_pydict() == {
        "id": ["1", "2", "3"],
        "n": [2.0, 3.0, 4.5],
        "a\nb": ["x", "y\nz", "z"],
    }
    with pytest.raises(click.ClickException, match=r"'4\.5' in column 'n' on line 7 is no int8"):
        read(opened(path, options=CsvOptions(types={"n": pa.int8()})))
    with pytest.raises(click.ClickException, match="no column 'm'"):
        opened(path, options=CsvOptions(types={"m": pa.int8()}))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.int64(), "0x10"),
        (pa.int8(), "128"),
        (pa.float64(), "1e400"),
        (pa.decimal128(4, 2), "1.234"),
        (pa.decimal128(38, 0), "3.5e38"),
        (pa.decimal128(38, 0), "3" + 38 * "4"),
        (pa.decimal128(38, 38), "99999"),
        (pa.decimal128(5, 0), f"0.{'0' * 38}1"),
        (pa.timestamp("s"), "2013-01-01 00:00:00.5"),
        (pa.timestamp("s"), "2013-01-01 00:00:00Z"),
        (pa.timestamp("s"), "2013-01-01T00:00:00+01"),
        (pa.timestamp("s", "UTC"), "2013-01-01 00:00:00"),
        (pa.timestamp("ns"), "9999-12-31 00:00:00"),
        (pa.binary(), "plain"),
        (pa.bool_(), "maybe"),
    ],
)
def test_text_that_is_not_of_its_type(tmp_path: Path, kind: pa.DataType, text: str) -> None:
    """What would lose something, or be guessed, is refused."""
    path = tmp_path / "data.csv"
    path.write_text(f"id,value\n1,{text}\n")
    with pytest.raises(click.ClickException, match="in column 'value' on line 2 is no"):
        read(opened(path, options=CsvOptions(types={"value": kind})))


@pytest.mark.parametrize(
    ("kind", "texts", "values"),
    [
        (
            pa.decimal128(38, 2),
            ["1.5", "1.5E3", "-2.50000", "NA", "007"],
            ["1.50", "1500.00", "-2.50", None, "7.00"],
        ),
        (pa.decimal128(38, 0), ["9" * 38, "-1e37", "5.0"], ["9" * 38, "-1" + 37 * "0", "5"]),
        (pa.decimal128(2, 4), [".0025", "25e-4"], ["0.0025", "0.0025"]),
    ],
)
def test_decimals_however_they_are_written(
    tmp_path: Path, kind: pa.DataType, texts: list[str], values: list[str | None]
) -> None:
    """With an exponent, and with zeros that the type has no place for, a number is what it is."""
    path = tmp_path / "data.csv"
    path.write_text("id,value\n" + "".join(f"1,{text}\n" for text in texts))
    cells = read(opened(path, options=CsvOptions(types={"value": kind}))).column("value")
    assert cells.type == kind
    assert cells.to_pylist() == [None if value is None else decimal.Decimal(value) for value in values]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_the_first_time_of_a_unit_is_read_as_it_is_written(
    tmp_path: Path, unit: str, zone: str | None
) -> None:
    """NumPy, which reads times that Arrow does not, takes it for no time at all."""
    times = pa.array([-(2**63), -(2**63) + 1, 2**63 - 1], pa.int64()).cast(pa.timestamp(unit, zone))
    path = tmp_path / "data.csv"
    path.write_text("\n".join(["t", *times_to_text(times).to_pylist()]))
    assert (
        read(opened(path, options=CsvOptions(types={"t": times.type}))).column("t").combine_chunks() == times
    )


def test_null_and_empty(tmp_path: Path) -> None:
    """In quotes a string is never null; a number is null either way, since there is no empty number."""
    path = tmp_path / "data.csv"
    path.write_text('id,text,number\n1,,""\n2,"",\n3,NA,"NA"\n4,"NA",5\n')
    assert read(opened(path)).to_pydict() == {
        "id": [1, 2, 3, 4], "text": [None, "", None, "NA"], "number": [None, None, None, 5],
    }  # fmt: skip


@pytest.mark.parametrize("breaks", ["\n", "\r\n", "\r"])
def test_dialects(tmp_path: Path, breaks: str) -> None:
    """Delimiter, quote, encoding and line breaks are as they are said to be."""
    path = tmp_path / "data.txt"
    path.write_bytes(breaks.join(["id;text", "1;'a;''é'", '2;5" pipe', ""]).encode("utf-16"))
    dialect = CsvDialect(delimiter=";", quote="'", encoding="utf-16")
    assert read(opened(path, options=CsvOptions(dialect=dialect))).to_pydict() == {
        "id": [1, 2], "text": ["a;'é", '5" pipe'],
    }  # fmt: skip
    path.write_bytes(b'id,text\n1,"a\n')
    assert read(opened(path, options=CsvOptions(dialect=CsvDialect(quote=None)))).column(1).to_pylist() == [
        '"a'
    ]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("v\na\rb\nc\n", 2),
        ('v\r\na\r\n"x\ry"\r\nb\rc\r\n', 4),
        ("v\rw\nx\n", 1),
        ("k,v\n1,a\n\r2,b\n", 3),
    ],
)
def test_a_carriage_return_in_a_value_without_quotes_ends_no_row(
    tmp_path: Path, content: str, line: int
) -> None:
    """What makes more rows of one, or is lost, is refused. Several in front of a line feed end a row."""
    path = tmp_path / "data.csv"
    path.write_bytes(content.encode())
    with pytest.raises(click.ClickException, match=f"line {line} has a carriage return in it"):
        opened(path)
    path.write_bytes(b'v\r\r\na\r\r\n"b\rc"\r\r\n')
    assert read(opened(path)).to_pydict() == {"v": ["a", "b\rc"]}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32-le"])
@pytest.mark.parametrize("text", ["id,name\n1,\ufeffann\n", '"id","name"\n1,\ufeffann\n'])
def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path: Path, encoding: str, text: str) -> None:
    """In front of the file, whichever encoding it is named; in a value it is a character."""
    path = tmp_path / "data.csv"
    mark = "" if encoding in {"utf-8-sig", "utf-16"} else "\ufeff"  # These write one themselves.
    path.write_bytes((mark + text).encode(encoding))
    options = CsvOptions(dialect=CsvDialect(encoding=encoding))
    assert read(opened(path, options=options)).to_pylist() == [{"id": 1, "name": "\ufeffann"}]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_a_missing_byte_order_mark_is_told(tmp_path: Path, encoding: str) -> None:
    """Python says of no octet that it is at fault: without a mark none is."""
    path = tmp_path / "data.csv"
    path.write_bytes("id,name\n1,ann\n".encode(f"{encoding}-le"))
    options = CsvOptions(dialect=CsvDialect(encoding=encoding))
    with pytest.raises(click.ClickException, match=f"data.csv cannot be read as {encoding}: .* BOM; .*-le"):
        opened(path, options=options)


def test_the_encoding_that_is_advised(tmp_path: Path) -> None:
    """It is the one of Windows: by Latin 1 its quotes and the sign of the euro are control characters."""
    path = tmp_path / "data.csv"
    text = "price\n5 € \u201ccafé\u201d\n"
    path.write_bytes(text.encode("cp1252"))
    with pytest.raises(click.ClickException, match=r"octet 0x80 on line 2; .* --encoding cp1252$"):
        opened(path)
    told = CsvOptions(dialect=CsvDialect(encoding="cp1252"))
    assert read(opened(path, options=told)).column(0).to_pylist() == [text.splitlines()[1]]


@pytest.mark.parametrize("said", [None, "utf-16", "utf-16-le"])
@pytest.mark.parametrize("encoding", ["utf-32", "utf-32-le", "utf-32-be"])
def test_the_wide_encoding_that_is_advised(tmp_path: Path, encoding: str, said: str | None) -> None:
    """It is the file's; by another one of its kind the file would be refused once more."""
    path = tmp_path / "data.csv"
    path.write_bytes("id,name\n1,é\n".encode(encoding))
    with pytest.raises(click.ClickException, match=f"data.csv .* {encoding}$"):
        opened(path, options=CsvOptions(dialect=CsvDialect(encoding=said)))
    told = CsvOptions(dialect=CsvDialect(encoding=encoding))
    assert read(opened(path, options=told)).to_pylist() == [{"id": 1, "name": "é"}]


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_the_last_cell_is_null_without_a_line_break_behind_it(tmp_path: Path, end: str) -> None:
    """An empty cell at the very end is null, though the value in front of it is in quotes; and "" is not."""
    path = tmp_path / "data.csv"
    path.write_bytes(b'name,note\nann,old\n"bo",' + end.encode())
    assert read(opened(path)).column("note").to_pylist() == ["old", None]
    path.write_bytes(b'name,note\nann,old\n"bo",""' + end.encode())
    assert read(opened(path)).column("note").to_pylist() == ["old", ""]


@pytest.mark.parametrize("kind", [each for each in STORED_TYPES if each != pa.string()], ids=str)
def test_a_null_in_quotes(tmp_path: Path, kind: pa.DataType) -> None:
    """Of any type but strings it is one: some programs put quotes around all values."""
    path = tmp_path / "data.csv"
    path.write_text('"id","value"\n"1",""\n"2","NULL"\n')
    source = opened(path, options=CsvOptions(types={"value": kind}))
    assert read(source).column("value").to_pylist() == [None, None]


@pytest.mark.parametrize("name", ["data.tsv", "DATA.TSV", "data.Tsv.txt"])
def test_tabs_by_the_name(tmp_path: Path, name: str) -> None:
    """In capital letters, too, as Windows has it."""
    path = tmp_path / name
    path.write_text("id\tnote\n1\ta,b\n")
    assert read(opened(path)).to_pydict() == {"id": [1], "note": ["a,b"]}


@pytest.mark.parametrize("member", ["data.tsv", "folder/DATA.TSV"])
def test_tabs_by_the_name_in_a_zip(tmp_path: Path, member: str) -> None:
    """The name of what is in it says so, whatever that of the zip."""
    path = tmp_path / "data.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, "id\tnote\n1\ta,b\n")
    assert read(opened(path)).to_pydict() == {"id": [1], "note": ["a,b"]}


def test_a_byte_order_mark_in_front_of_a_block_is_kept(tmp_path: Path) -> None:
    """The first value of a row may begin with that character, also behind the header and where a block begins."""
    path = tmp_path / "data.csv"
    values = [
        "\ufeffann",
        "\ufeff" + "b" * 2_000_000,
    ]  # The second one begins a block, since it ends in a later one.
    path.write_text(f"name,id\n{values[0]},1\n{values[1]},2\n", encoding="utf-8")
    assert read(opened(path)).column("name").to_pylist() == values


def test_values_longer_than_a_block(tmp_path: Path) -> None:
    """A value of megabytes, with quotes and line breaks in it, comes through between short rows."""
    path = tmp_path / "data.csv"
    long = 'line\nof, "quoted" text\n' * 200_000
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerows([("id", "text"), (1, "a"), (2, long), (3, "b")])
    assert read(opened(path)).to_pydict() == {"id": [1, 2, 3], "text": ["a", long, "b"]}


def test_an_open_quote_does_not_take_the_rest_of_the_file(tmp_path: Path) -> None:
    """A quote that is never closed is told with its line, however much follows it."""
    path = tmp_path / "data.csv"
    path.write_text('id,text\n1,"open\n' + f"2,{'x' * 1000}\n" * 70_000)
    with pytest.raises(click.ClickException, match="the quote on line 2 is never closed"):
        opened(path)


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (("1500-01-01T00:00:00", "2020-01-01T00:00:00.5"), pa.timestamp("us")),
        (("2020-01-01T00:00:00.123456",), pa.timestamp("us")),
        (("2020-01-01T00:00:00.1234567",), pa.timestamp("ns")),
        (("2020-01-01T00:00:00.5", "2020-01-01T00:00:00.123456789"), pa.timestamp("ns")),
        (("1500-01-01T00:00:00", "2020-01-01T00:00:00.5", "2020-01-01T00:00:00.123456789"), pa.string()),
        (("2020-01-01T00:00:00.123456789", "2020-01-01T00:00:00.5", "1500-01-01T00:00:00"), pa.string()),
    ],
)
def test_one_unit_of_time_does_for_all_cells(cells: tuple[str, ...], kind: pa.DataType) -> None:
    """Nanoseconds do not reach the year 1500, in whichever look it was seen."""
    types = ColumnTypes(pa.array([], pa.string()))
    for cell in cells:
        types.see(pa.array([cell]))
    assert types.found == kind


def test_types_of_many_columns_are_found_in_few_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some blocks are looked at together: of a wide file each has a few cells of a column."""
    path = tmp_path / "data.csv"
    wide = "x" * 600_000
    path.write_text("id,text\n" + "".join(f"{row},{wide}\n" for row in range(28)) + "1.5,y\n")
    looks = list[int]()
    see = ColumnTypes.see

    def count(types: ColumnTypes, texts: pa.Array) -> None:
        looks.append(len(texts))
        see(types, texts)

    monkeypatch.setattr(ColumnTypes, "see", count)
    source = opened(path)
    assert (source.rows, source.schema.field("id").type) == (29, pa.float64())
    assert 1 < len(looks) / 2 < 4
    assert sum(looks) == 2 * 29


def test_types_are_found_in_one_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is read once for its types, whatever the order in which they are given up, and once for its rows."""
    path = tmp_path / "data.csv"
    names = [f"c{number}" for number in range(30)]
    kinds = ["", "1", "true", "2013-01-01", "2013-01-01 10:00", "2013-01-01 10:00Z", "1.5", "x"]
    path.write_text("\n".join([",".join(names), *(",".join([kind] * 30) for kind in kinds)]) + "\n")
    readings = []
    original = CsvText.blocks

    def counted(self: CsvText, on_read: Callable[[int], None] | None = None) -> Iterator[CsvBlock]:
        readings.append(self.path)
        return original(self, on_read)

    monkeypatch.setattr(CsvText, "blocks", counted)
    assert read(opened(path)).num_rows == 8
    assert len(readings) == 2
    assert read(opened(path, pa.schema([(name, pa.string()) for name in names]))).num_rows == 8
    assert len(readings) == 3


@given(
    st.lists(
        st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0")), min_size=3, max_size=3),
        min_size=1,
    ),
    st.integers(1, 40),
)
def test_any_text_is_read_as_the_standard_library_writes_it(rows: list[list[str]], block_bytes: int) -> None:
    """Cells of any characters, cut into blocks anywhere, come back as they were."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("scanner.cli.csv_text._BLOCK_BYTES", block_bytes)
        path = Path(folder) / "data.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n")
            writer.writerows([["a", "b", "c"], *rows])
        types = dict.fromkeys("abc", pa.string())
        table = read(opened(path, options=CsvOptions(types=types)))
    assert [list(row.values()) for row in table.to_pylist()] == rows


@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
@pytest.mark.parametrize("version", [pa.ipc.MetadataVersion.V4, pa.ipc.MetadataVersion.V5])
def test_arrow_files_of_every_version(
    tmp_path: Path, codec: str | None, version: pa.ipc.MetadataVersion
) -> None:
    """Read as they were written; pyarrow would take the compressed octets of a V4 file for values."""
    file = tmp_path / "data.arrow"
    texts = pa.array(["a", "b", "a"]).dictionary_encode()
    batch = pa.record_batch({"k": pa.array([123456789, 1, 2]), "s": texts})
    options = pa.ipc.IpcWriteOptions(compression=codec, metadata_version=version)
    with pa.ipc.new_file(file, batch.schema, options=options) as writer:
        writer.write_batch(batch)
        writer.write_batch(batch)
    if codec is not None and version == pa.ipc.MetadataVersion.V4:
        with pytest.raises(click.ClickException, match="compressed under metadata version V4"):
            open_file(file, CsvOptions())
    else:
        assert list(open_file(file, CsvOptions()).batches()) == [batch, batch]


_BLOCK = struct.Struct("<qi4xq")
"""What a footer says of a record batch: where it is, and the octets of its metadata and of its body."""


@pytest.mark.parametrize("damage", ["in front", "end mark", "too long"])
def test_arrow_files_whose_footer_is_damaged(tmp_path: Path, damage: str) -> None:
    """Its footer names for a batch a place in front of the file, the end mark, or a size past any: it is refused."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, pa.schema([("id", pa.int64())])) as writer:
        writer.write_batch(pa.record_batch([[1, 2, 3]], ["id"]))
    content, message = sink.getvalue().to_pybytes(), b"\xff" * 4
    batch = content.index(message, content.index(message) + len(message))  # Behind the schema.
    named_at = content.rindex(struct.pack("<q", batch))
    at, metadata_bytes, body_bytes = _BLOCK.unpack_from(content, named_at)
    if damage == "too long":
        body_bytes = 2**63 - 1
    else:
        at = -8 if damage == "in front" else content.rindex(message)
    block = _BLOCK.pack(at, metadata_bytes, body_bytes)
    file = tmp_path / "data.arrow"
    file.write_bytes(content[:named_at] + block + content[named_at + len(block) :])
    with pytest.raises(click.ClickException, match="not an Arrow file that can be read"):
        open_file(file, CsvOptions())


def test_a_parquet_file_of_which_a_checksum_is_wrong(tmp_path: Path) -> None:
    """Where a checksum stands beside a page, as in files of Spark, another value is not taken for what was written."""
    path = tmp_path / "data.parquet"
    table = pa.table({"id": [1], "name": ["Anna Lena"]})
    pq.write_table(
        table,
        path,
        compression="none",
        use_dictionary=False,
        write_statistics=False,
        write_page_checksum=True,
    )
    assert read(opened(path)) == table
    path.write_bytes(path.read_bytes().replace(b"Anna Lena", b"Anna Lene"))
    source = opened(path)
    with pytest.raises(click.ClickException, match=r"not a Parquet file that can be read: .*checksum"):
        read(source)


def test_arrow_files_whose_values_are_damaged(tmp_path: Path) -> None:
    """A row that names a value past its dictionary is no row: the file is refused, by the batch that has it."""
    sound = pa.DictionaryArray.from_arrays([0, 1], ["a", "b"])
    broken = pa.DictionaryArray.from_arrays(pa.array([0, 99], pa.int64()), pa.array(["a", "b"]), safe=False)
    path = tmp_path / "data.arrow"
    with pa.ipc.new_file(path, pa.schema([("s", sound.type)])) as writer:
        writer.write_batch(pa.record_batch([sound], ["s"]))
        writer.write_batch(pa.record_batch([broken], ["s"]))
    batches = open_file(path, CsvOptions()).batches()
    assert next(batches).column(0).to_pylist() == ["a", "b"]
    with pytest.raises(click.ClickException, match=r"not an Arrow file that can be read: .*99"):
        next(batches)


def test_arrow_files(tmp_path: Path) -> None:
    """An Arrow IPC file keeps its types and is known by its content."""
    path = tmp_path / "anything.bin"
    table = pa.table(
        {"id": pa.array([1, 2], pa.int8()), "at": pa.array([None, 2**60], pa.timestamp("s", "UTC"))}
    )
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)
    assert opened(path).rows == 2
    assert read(opened(path)).equals(table)


def _replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_text("id,b,a\n" + path.read_text().partition("\n")[2])  # As long, and with the same types.
    os.utime(other, ns=(0, 0))
    other.replace(path)


def _replace_by_as_old(path: Path) -> None:
    """As both may be out of an archive, or a store that gives every file the same time."""
    before = path.stat()
    _replace(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _write_anew(path: Path) -> None:
    """It may get the number of the one that is gone, unless that is open."""
    text = path.read_text()
    path.unlink()
    path.write_text(text.replace("a,b", "b,a"))


def _append(path: Path) -> None:
    with path.open("a") as file:
        file.write("9,9,9\n")


@pytest.mark.parametrize(
    "change", [_replace, _replace_by_as_old, _append, lambda path: os.truncate(path, 100), Path.unlink]
)
def test_a_file_that_changes_while_it_is_read(tmp_path: Path, change: Callable[[Path], None]) -> None:
    """Nothing of another file is taken for what was found in this one, and no row is missed without a word."""
    path = tmp_path / "data.csv"
    rows = "".join(f"{number},{number},{number}\n" for number in range(100_000))
    path.write_text(f"id,a,b\n{rows}")
    source = opened(path)
    batches = source.batches()
    next(batches)
    change(path)
    for remaining in (batches, source.batches()):
        with pytest.raises(click.ClickException, match="has changed while it was read"):
            next(remaining)


@pytest.mark.parametrize("change", [_replace, _write_anew])
def test_another_file_of_the_same_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None]
) -> None:
    """The clock of a disk ticks slowly: two files of an archive may have the same times, all of them."""
    stat = Path.stat

    def timeless(path: Path, **options: bool) -> SimpleNamespace:
        found = stat(path, **options)
        same = {name: getattr(found, name) for name in ("st_mode", "st_dev", "st_ino", "st_size")}
        return SimpleNamespace(**same, st_mtime_ns=0, st_ctime_ns=0)

    monkeypatch.setattr(Path, "stat", timeless)
    path = tmp_path / "data.csv"
    path.write_text("id,a,b\n1,2,3\n")
    source = opened(path)
    assert read(source).num_rows == 1
    change(path)
    with pytest.raises(click.ClickException, match="has changed while it was read"):
        next(source.batches())


def test_an_interrupt_when_the_header_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends the reading; where Python ends a generator that is forgotten, it would be lost."""
    path = tmp_path / "data.csv"
    path.write_text("id\n1\n")
    close = io.FileIO.close

    def interrupted(file: io.FileIO) -> None:
        close(file)
        raise KeyboardInterrupt

    monkeypatch.setattr("scanner.cli.csv_text._Watched.close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        opened(path)


def test_a_name_that_is_no_utf_8(tmp_path: Path) -> None:
    """Names of files are octets: a file is read, whatever its name is."""
    rows = pa.table({"k": [1, 2]})
    path = tmp_path / os.fsdecode(b"caf\xe9")
    path.mkdir()
    (path / "rows.csv").write_text("k\n1\n2\n")
    with (path / "rows.parquet").open("wb") as file:
        pq.write_table(rows, file)
    with (path / "rows.arrow").open("wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
        writer.write_table(rows)
    for name in ("rows.csv", "rows.parquet", "rows.arrow"):
        assert read(opened(path / name)).equals(rows)


def test_pipes_are_refused(tmp_path: Path) -> None:
    """What can be read only once is refused, rather than read without its beginning."""
    path = tmp_path / "pipe.csv"
    os.mkfifo(path)
    with pytest.raises(click.ClickException, match="no regular file"):
        opened(path)


def test_old_timestamps_of_parquet_are_instants(tmp_path: Path) -> None:
    """INT96, which Spark writes by default, is microseconds of UTC, up to the year 9999."""
    path = tmp_path / "spark.parquet"
    days = [0, 15705, 2932896]  # 1970, 2013, the last day of 9999
    times = pa.array([day * 86_400_000_000 + 5 for day in days], pa.timestamp("us"))
    pq.write_table(pa.table({"id": [1, 2, 3], "at": times}), path, use_deprecated_int96_timestamps=True)
    source = opened(path)
    assert source.schema.field("at").type == pa.timestamp("us", "UTC")
    assert read(source).column("at").cast(pa.int64()).to_pylist() == times.cast(pa.int64()).to_pylist()


def test_old_timestamps_of_parquet_keep_their_nanoseconds(tmp_path: Path) -> None:
    """INT96 has nanoseconds: where one is no whole number of microseconds, the column counts nanoseconds."""
    path = tmp_path / "pandas.parquet"
    stamps = [1_700_000_000_123_456_789, -1, None, 1_700_000_000_000_000_000]
    table = pa.table({"id": range(4), "at": pa.array(stamps, pa.timestamp("ns"))})
    pq.write_table(table, path, use_deprecated_int96_timestamps=True)
    source = opened(path)
    assert source.schema.field("at").type == pa.timestamp("ns", "UTC")
    assert read(source).column("at").cast(pa.int64()).to_pylist() == stamps


def test_old_timestamps_that_no_unit_holds_are_refused(tmp_path: Path) -> None:
    """Nanoseconds beside the year 9999 are refused, and neither cut off nor wrapped around."""
    path = tmp_path / "both.parquet"
    far = pa.array([253_402_300_799_000_000], pa.timestamp("us"))
    table = pa.table({"id": [1], "far": far, "fine": pa.array([1], pa.timestamp("ns"))})
    pq.write_table(table, path, use_deprecated_int96_timestamps=True)
    with pytest.raises(click.ClickException, match="have nanoseconds, and years"):
        opened(path)


@pytest.mark.parametrize(
    ("told", "refused"),
    [
        ({}, {"day", "at", "old"}),
        ({"org.apache.spark.version": "3.0.1"}, {"old"}),
        ({"org.apache.spark.version": "4.3.0"}, set()),
        ({"org.apache.spark.version": "4.3.0", "org.apache.spark.legacyDateTime": ""}, {"day", "at"}),
        ({"org.apache.spark.version": "4.3.0", "org.apache.spark.legacyINT96": ""}, {"old"}),
    ],
)
def test_days_of_the_julian_calendar_are_refused(
    tmp_path: Path, told: dict[str, str], refused: set[str]
) -> None:
    """Old versions of Spark, and new ones that are told to, write other days and times of old than Arrow reads."""
    path = tmp_path / "spark.parquet"
    of_spark = {"org.apache.spark.sql.parquet.row.metadata": "{}", **told}
    epoch, second = datetime.datetime(1900, 1, 1), datetime.timedelta(seconds=1)
    for name, first, before in (
        ("day", datetime.date(1582, 10, 15), datetime.date(1582, 10, 14)),
        ("at", epoch, epoch - second),
        ("old", epoch, epoch - second),
    ):
        for value in (first, before):
            rows = pa.table({"id": [1, 2], name: [value, None]}).replace_schema_metadata(of_spark)
            pq.write_table(rows, path, use_deprecated_int96_timestamps=name == "old")
            source = opened(path)
            if value == before and name in refused:
                with pytest.raises(click.ClickException, match=f"column '{name}' has a value before 1"):
                    read(source)
            else:
                assert read(source).num_rows == 2


def test_what_is_no_schema_of_spark_is_told(tmp_path: Path) -> None:
    """Octets in the footer that are no JSON make the file one that cannot be read."""
    path = tmp_path / "spark.parquet"
    of_spark = {"org.apache.spark.sql.parquet.row.metadata": "{"}
    pq.write_table(pa.table({"id": [1]}).replace_schema_metadata(of_spark), path)
    with pytest.raises(click.ClickException, match="not a Parquet file that can be read: Expecting"):
        opened(path)


@pytest.mark.parametrize("name", ["data.parquet", "data.arrow"])
def test_types_that_others_have_defined_are_refused(tmp_path: Path, name: str) -> None:
    """The months of pandas are integers from 1970 on where nobody knows them."""
    path = tmp_path / name
    months = pa.field("month", pa.int64(), metadata={"ARROW:extension:name": "pandas.period"})
    table = pa.table([[1], [648]], pa.schema([("id", pa.int64()), months]))
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    with pytest.raises(click.ClickException, match=r"'month' is of type pandas\.period"):
        opened(path)


@pytest.mark.parametrize("kind", ["interval day to second", "interval year to month"])
def test_intervals_are_refused(tmp_path: Path, kind: str) -> None:
    """Spark stores intervals as integers and says so beside them: they are refused by the column's name."""
    path = tmp_path / "spark.parquet"
    fields = [{"name": "id", "type": "long"}, {"name": "took", "type": kind}]
    metadata = {"org.apache.spark.sql.parquet.row.metadata": json.dumps({"type": "struct", "fields": fields})}
    table = pa.table({"id": [1], "took": [7]})
    with pq.ParquetWriter(path, table.schema) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(metadata)
    with pytest.raises(click.ClickException, match=f"'took' is of type {kind}"):
        opened(path)
    pq.write_table(pa.table({"id": [1], "took": pa.array([7], pa.duration("s"))}), path)
    with pytest.raises(click.ClickException, match=r"'took' is of type duration\[s\]"):
        opened(path)


def test_intervals_of_parquet_java_are_refused(tmp_path: Path) -> None:
    """It calls them nulls beside their twelve octets, and Arrow reads nulls."""
    path = tmp_path / "java.parquet"
    column = pa.array([bytes(16)], pa.uuid())
    pq.write_table(pa.table({"id": [1], "took": column}), path, store_schema=False)
    data = path.read_bytes()
    # Of the footer: the length of the type, 16, and what it means, which is the eleventh instead of the 14th.
    patched = data.replace(b"\x15\x0e\x15\x20", b"\x15\x0e\x15\x18").replace(b"took\x6c\xec", b"took\x6c\xbc")
    path.write_bytes(patched)
    assert pq.read_schema(path).field("took").type == pa.null()
    with pytest.raises(click.ClickException, match="'took' is of type interval"):
        opened(path)


def test_enums_of_parquet_are_texts(tmp_path: Path) -> None:
    """As Avro and Protocol Buffers write them; Arrow reads octets."""
    path = tmp_path / "avro.parquet"
    table = pa.table({"id": [1, 2, 3], "colour": ["red", None, "grün"]})
    pq.write_table(table, path, store_schema=False)
    # Of the footer: a text, by its old name and its new one.
    path.write_bytes(path.read_bytes().replace(b"\x25\x00\x4c\x1c", b"\x25\x08\x4c\x4c"))
    assert pq.read_schema(path).field("colour").type == pa.binary()
    assert read(opened(path)).equals(table)
