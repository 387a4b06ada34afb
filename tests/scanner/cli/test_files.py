"""Files that `weir load` reads."""

from __future__ import annotations

import datetime
import gzip
import zipfile
from pathlib import Path

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scanner.cli.files import NULL_VALUES_DEFAULT, RowFile, open_file

CSV = "id,name,price,day,at,flag,none\n1,ann,1.5,2013-01-01,2013-01-01T10:00:00Z,true,\n2,NA,NA,,NA,NULL,\n"


def read(source: RowFile) -> pa.Table:
    """All rows."""
    return pa.Table.from_batches(list(source.batches()), schema=source.schema)


def opened(path: Path, schema: pa.Schema | None = None) -> RowFile:
    """The file as `weir load` opens it by default."""
    return open_file(path, NULL_VALUES_DEFAULT, schema)


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
        ("1", "99999999999999999999", pa.float64()),
    ],
)
def test_type_fits_the_whole_file(tmp_path: Path, early: str, late: str, expected: pa.DataType) -> None:
    """A value far down decides as well: the first type that fits all values is taken."""
    path = tmp_path / "data.csv"
    lines = [f"{i},{early}" for i in range(300_000)] + [f"300000,{late}"]
    path.write_text("id,value\n" + "\n".join(lines) + "\n")
    source = opened(path)
    assert source.schema.field("value").type == expected
    assert source.rows == 300_001
    assert sum(batch.num_rows for batch in source.batches()) == 300_001


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


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("data.csv", b"a,b\n1,2\n3\n", "cannot be read as CSV"),
        ("data.csv", b"", "empty|cannot be read"),
        ("data.json", b"{}", "neither Parquet nor CSV"),
        ("data.parquet", b"PAR1 not really", "not a Parquet file"),
        ("data.zip", b"PK not really", "cannot be read"),
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


@pytest.mark.parametrize("members", [[], ["a.csv", "b.csv"], ["a.txt"]])
def test_zip_must_hold_one_csv(tmp_path: Path, members: list[str]) -> None:
    """A zip with no CSV or several is refused."""
    path = tmp_path / "data.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for member in members:
            archive.writestr(member, "a\n1\n")
    with pytest.raises(click.ClickException, match="exactly one"):
        opened(path)
