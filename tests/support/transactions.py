"""What tests of transactions share: a table, its rows by plain values, and what a table must look like."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from scanner.errors import StoreFailed
from scanner.server.transactions.completion import Applier

if TYPE_CHECKING:
    import pytest

    import scanner

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
BUCKETS = 3
BEFORE = dict.fromkeys(range(20), "old")


def rows(pairs: Mapping[int, str | None]) -> pa.Table:
    """Rows by their keys."""
    return pa.table({"id": list(pairs), "text": list(pairs.values())}, schema=SCHEMA)


def keys(numbers: Iterable[int]) -> pa.Table:
    """Keys to delete."""
    return pa.table({"id": list(numbers)}, schema=pa.schema([SCHEMA.field("id")]))


async def make_table(client: scanner.Client, name: str = "t") -> scanner.Table:
    """A table with `BEFORE` in it."""
    table = await client.create_table(name, SCHEMA, ["id"], BUCKETS)
    await table.write(rows(BEFORE))
    return table


async def contents(table: scanner.Table) -> dict[int, str | None]:
    """The rows of a table, by key."""
    found = await table.new_scan().to_arrow()
    return dict(zip(found["id"].to_pylist(), found["text"].to_pylist(), strict=True))


async def changes(table: scanner.Table) -> list[tuple[str, int, str | None]]:
    """The changelog of all buckets, bucket by bucket."""
    found = await table.new_scan().with_source("log").start_at("earliest").stop_at("end").to_arrow()
    columns = (found["_change_type"], found["id"], found["text"])
    return sorted(zip(*(column.to_pylist() for column in columns), strict=True))


def refuse_shares(patch: pytest.MonkeyPatch, bucket: int) -> None:
    """A bucket applies no share of a transaction, as on a disk that refuses."""
    real = Applier._apply_share

    async def apply(*arguments: Any) -> Any:
        if arguments[3] == bucket:
            raise StoreFailed("the disk refused")
        return await real(*arguments)

    patch.setattr(Applier, "_apply_share", apply)
