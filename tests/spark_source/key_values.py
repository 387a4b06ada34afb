"""Tables of keys `k` and values `v`: rows to write, what a table has, and what changes make of an empty one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from scanner.sync import Client, Table


def kv_rows(start: int, stop: int, value: str = "a") -> pa.Table:
    """Rows of the keys from `start` to before `stop`, all of one value."""
    return pa.table(
        {"k": pa.array(range(start, stop), pa.int64()), "v": pa.array([value] * (stop - start), pa.string())}
    )


def contents(table: Table) -> dict[int, str | None]:
    """Values of the table, by key; each key is there once."""
    rows = table.new_scan().to_arrow().to_pylist()
    assert len({row["k"] for row in rows}) == len(rows)
    return {row["k"]: row["v"] for row in rows}


def changes(client: Client, table: str) -> int:
    """How many changes the table's logs have."""
    return sum(each.end_offset for each in client.table(table).offsets())


def folded(rows: Iterable[dict[str, Any]]) -> dict[int, str]:
    """What the changes make of an empty table; order within a key is that of the log."""
    result: dict[int, str] = {}
    for row in rows:
        if row["_change_type"] in ("insert", "update_postimage"):
            result[row["k"]] = row["v"]
        else:
            assert result.pop(row["k"]) == row["v"]
    return result
