"""A bucket whose files cannot be opened: an error of weir's, and a server that starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from scanner import StoreFailed
from tests.support.client import open_client

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])


async def test_a_file_of_rocksdict_that_cannot_be_read(tmp_path: Path) -> None:
    """What the system refuses rocksdict is STORE_FAILED to whoever writes, and no unforeseen error; rows are read."""
    async with open_client(tmp_path) as (client, _):
        await (await client.create_table("orders", SCHEMA, ["id"], 1)).write(
            pa.table({"id": [1]}, schema=SCHEMA)
        )
    config = tmp_path / "tables/000000/0000/rocksdict-config.json"
    config.unlink()
    config.mkdir()
    async with open_client(tmp_path) as (client, _):
        orders = await client.table("orders")
        assert (await orders.new_scan().to_arrow())["id"].to_pylist() == [1]
        with pytest.raises(StoreFailed):
            await orders.write(pa.table({"id": [2]}, schema=SCHEMA))
