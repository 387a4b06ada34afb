"""`weir add-column`: types as people write them, and what it says."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import scanner.sync
from scanner.cli import run
from scanner.cli.cells import parse_types
from scanner.cli.types import parse_type
from scanner.errors import ArgumentInvalid
from tests.support.arrow_values import STORED_TYPES
from tests.support.server import running_server


@pytest.mark.parametrize("data_type", STORED_TYPES, ids=str)
def test_a_type_is_read_as_it_is_printed(data_type: pa.DataType) -> None:
    """What `weir describe` says of a column makes another one of its type, and is a type of a CSV's columns."""
    assert parse_type(str(data_type)) == data_type
    assert parse_types([f"a=b={data_type}"]) == {"a=b": data_type}


@pytest.mark.parametrize(
    ("text", "data_type"),
    [
        ("date", pa.date32()),
        ("double", pa.float64()),
        ("float", pa.float32()),
        ("boolean", pa.bool_()),
        ("decimal(5,2)", pa.decimal128(5, 2)),
        ("decimal[5, 2]", pa.decimal128(5, 2)),
        ("timestamp(ms,UTC)", pa.timestamp("ms", "UTC")),
    ],
)
def test_types_have_other_names(text: str, data_type: pa.DataType) -> None:
    """As people write them, in both places."""
    assert parse_type(text) == data_type
    assert parse_types([f"a={text}"]) == {"a": data_type}


@pytest.mark.parametrize(
    "text", ["", "integer?", "decimal128(99, 2)", "timestamp[h]", "list<int8>", "uint8", "i8"]
)
def test_what_is_no_type_is_refused(text: str) -> None:
    """In one line, with examples of what is one."""
    with pytest.raises(ArgumentInvalid, match="is no type of a column; types are such as"):
        parse_type(text)


@pytest.mark.parametrize("zone", ["Europe/Berln", "America", "+25:00"])
def test_a_zone_that_is_none_is_no_type(zone: str) -> None:
    """Neither of a column that is added nor of one of a CSV; a table would have it for ever."""
    text = f"timestamp[us, tz={zone}]"
    for read in (parse_type, lambda text: parse_types([f"seen={text}"])):
        with pytest.raises(ArgumentInvalid, match="knows no time zone"):
            read(text)


@pytest.mark.socket
@pytest.mark.rocks
def test_a_column_is_added(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It is there for whoever looks, null in the rows that were; the errors are one line each."""
    rows = pa.table({"id": [1, 2]})
    with running_server(tmp_path / "data") as server:
        with scanner.sync.connect(server.endpoint) as client:
            client.create_table("items", rows.schema, primary_key=["id"]).write(rows)
        at = ["-e", server.endpoint]
        assert run(["add-column", "items", "fare", "decimal128(12, 2)", *at]) == 0
        assert capfd.readouterr().err == "added column fare to items\n"
        for wrong in (
            ["items", "fare", "int8"],
            ["items", "", "int8"],
            ["items", "x", "uint8"],
            ["items", "x", "nothing"],
            ["none", "x", "int8"],
        ):
            assert run(["add-column", *wrong, *at]) == 1
            assert capfd.readouterr().err.count("\n") == 1
        with scanner.sync.connect(server.endpoint) as client:
            table = client.table("items")
            assert table.schema.field("fare").type == pa.decimal128(12, 2)
            table.add_column(pa.field("more", pa.bool_()))
            assert table.schema.names == ["id", "fare", "more"]
            table.write(pa.table({"id": [3], "fare": pa.array([None], pa.decimal128(12, 2)), "more": [True]}))
            found = table.new_scan().to_arrow().sort_by("id")
            assert found.column("more").to_pylist() == [None, None, True]
