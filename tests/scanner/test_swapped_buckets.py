"""Directories of buckets that changed places: refused, never another table's rows or keys in two places."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from scanner import DataCorrupted
from tests.support.client import open_client

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])


@pytest.mark.parametrize(
    ("one", "other"),
    [("000000/0000", "000000/0001"), ("000000/0000", "000001/0000")],
    ids=["same table", "two tables"],
)
async def test_a_swapped_bucket_is_refused(tmp_path: Path, one: str, other: str) -> None:
    """Buckets under each other's names answer scans and writes with DATA_CORRUPTED; back in place they are whole."""
    rows = pa.table({"id": list(range(20)), "text": ["boat"] * 20}, schema=SCHEMA)
    async with open_client(tmp_path) as (client, _):
        for name in ("orders", "parcels"):
            await (await client.create_table(name, SCHEMA, ["id"], 2)).write(rows)
    swap(tmp_path / "tables" / one, tmp_path / "tables" / other)
    async with open_client(tmp_path) as (client, _):
        orders = await client.table("orders")
        with pytest.raises(DataCorrupted):
            await orders.new_scan().to_arrow()
        with pytest.raises(DataCorrupted):
            await orders.write(rows)
    swap(tmp_path / "tables" / one, tmp_path / "tables" / other)
    async with open_client(tmp_path) as (client, _):
        found = await (await client.table("orders")).new_scan().to_arrow()
        assert found.sort_by("id") == rows


def swap(one: Path, other: Path) -> None:
    """Let two directories change places."""
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)
