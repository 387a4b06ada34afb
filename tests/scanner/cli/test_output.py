"""What `weir scan` writes."""

from __future__ import annotations

import datetime
import decimal
import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scanner.cli.output import format_of, open_rows, print_table, replaced_when_complete

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
    assert out.getvalue().splitlines()[2].startswith("   1   a")


@pytest.mark.parametrize(
    ("kind", "output", "expected"),
    [
        (None, None, "table"),
        (None, Path("a.parquet"), "parquet"),
        (None, Path("a.jsonl"), "json"),
        (None, Path("a.txt"), "table"),
        ("json", Path("a.parquet"), "json"),
    ],
)
def test_format_by_option_or_ending(kind: str | None, output: Path | None, expected: str) -> None:
    """What is said counts first, then the file's name."""
    assert format_of(kind, output) == expected


def test_file_appears_complete_or_not_at_all(tmp_path: Path) -> None:
    """A failure leaves the old file and no other; success replaces it."""
    path = tmp_path / "out"
    path.write_text("old")
    with pytest.raises(KeyError):
        with replaced_when_complete(path) as file:
            file.write(b"half")
            raise KeyError
    assert [each.name for each in tmp_path.iterdir()] == ["out"]
    assert path.read_text() == "old"
    with replaced_when_complete(path) as file:
        file.write(b"new")
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 != 0o600
