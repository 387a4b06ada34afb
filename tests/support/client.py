"""A client of a real server in the same loop, and a table with rows, for tests of the client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import scanner
from scanner.server.server import Server, open_server

if TYPE_CHECKING:
    from scanner.server.config import ScannerConfig
    from scanner.storage.interface import Store

SCHEMA = pa.schema([("k", pa.int64()), ("text", pa.string()), ("number", pa.float64())])


def rows(count: int, *, first: int = 0, width: int = 20) -> pa.Table:
    """Rows with keys from `first` on; every seventh text is null."""
    keys = range(first, first + count)
    return pa.table(
        {
            "k": list(keys),
            "text": [None if k % 7 == 0 else f"{k:0{width}}" for k in keys],
            "number": [k / 2 for k in keys],
        },
        schema=SCHEMA,
    )


@asynccontextmanager
async def open_client(
    store: Path | Store, config: ScannerConfig | None = None, **options: Any
) -> AsyncIterator[tuple[scanner.Client, Server]]:
    """Serve a store or a directory on a free port, with options of `open_server`, and connect to it."""
    async with open_server(store, config=config, **options) as server:
        async with scanner.connect(f"127.0.0.1:{server.port}") as client:
            yield client, server


@asynccontextmanager
async def open_table(
    data: Path, count: int, *, buckets: int = 3, width: int = 20, config: ScannerConfig | None = None
) -> AsyncIterator[tuple[scanner.Table, Server]]:
    """A table `items` with `count` rows."""
    async with open_client(data, config) as (client, server):
        table = await client.create_table("items", SCHEMA, ["k"], buckets)
        if count:
            await table.write(rows(count, width=width))
        yield table, server
