"""A writer that changes orders and their items all the time, and knows what the tables hold.

Each step updates some orders with their items, takes others away, and puts back some of those that it took. The rows
that it wrote are kept here; so the state of a moment between two of its steps is known without asking the server.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import scanner.sync
from bench.harness.background import Background
from bench.tpch.data import parquet_file, read_rows

UPDATED: Final = 24
DELETED: Final = 8
GONE_MAX: Final = 64
"""From here on a step puts back as many orders as the last one took."""
PAUSE_S: Final = 0.05
STOP_S: Final = 30.0
CHANGED_TABLES: Final = ("orders", "lineitem")

Row = dict[str, Any]


class Refresh(Background):
    """Writes from the start of the `with` block to its end.

    Args:
        endpoint: HOST:PORT of the server.
        directory: Where the Parquet files are that the tables were loaded from.
        seed: Chooses the orders.
        pause_s: Between two steps, at least 0.
    """

    def __init__(self, endpoint: str, directory: Path, seed: int, pause_s: float = PAUSE_S) -> None:
        super().__init__(STOP_S)
        self._endpoint = endpoint
        self._pause_s = pause_s
        self._rng = random.Random(seed)
        self._loaded = {name: pa.concat_tables(read_rows(directory, name)) for name in CHANGED_TABLES}
        self._orders = self._loaded["orders"]["o_orderkey"].to_pylist()
        self._items = _positions(self._loaded["lineitem"]["l_orderkey"].to_pylist())
        self._order_at = {key: [position] for position, key in enumerate(self._orders)}
        self._now: dict[int, tuple[list[Row], list[Row]]] = {}
        self._gone: deque[int] = deque()
        self.between_steps = self.changed
        """Held for a step; whoever holds it sees the tables as `export` tells them. Notified of each step."""
        self.steps = 0
        """How many have been taken."""

    def wait_steps(self, steps: int) -> None:
        """Wait until so many have been taken.

        Raises:
            BenchFailed: The writer failed.
        """
        self.wait_for(lambda: self.steps >= steps)

    def export(self, directory: Path) -> None:
        """Write both tables as they are now as Parquet. `between_steps` has to be held."""
        for number, (name, loaded) in enumerate(self._loaded.items()):
            # Orders that were changed, or taken away, or both.
            changed = pa.array(sorted(self._now), pa.int64())
            kept = loaded.filter(pc.invert(pc.is_in(loaded.column(0), value_set=changed)))
            rows = [row for now in self._now.values() for row in now[number]]
            newer = pa.Table.from_pylist(rows, schema=loaded.schema)
            pq.write_table(pa.concat_tables([kept, newer]), parquet_file(directory, name))

    def _run(self) -> None:
        with scanner.sync.connect(self._endpoint) as client:
            tables = [client.table(name) for name in CHANGED_TABLES]
            while not self.stopping.wait(self._pause_s):
                with self.between_steps:
                    self._step(*tables)
                    self.steps += 1
                    self.between_steps.notify_all()

    def _step(self, orders: scanner.sync.Table, lineitem: scanner.sync.Table) -> None:
        back = [self._gone.popleft() for _ in range(DELETED)] if len(self._gone) >= GONE_MAX else []
        absent = {*self._gone, *back}
        drawn = [
            key
            for key in self._rng.sample(self._orders, UPDATED + DELETED + len(absent))
            if key not in absent
        ]
        updated, deleted = drawn[:UPDATED] + back, drawn[UPDATED : UPDATED + DELETED]
        changed = {key: self._changed(key) for key in updated}
        self._write(orders, (now[0] for now in changed.values()))
        self._write(lineitem, (now[1] for now in changed.values()))
        orders.delete([(key,) for key in deleted])
        lineitem.delete(
            [(row["l_orderkey"], row["l_linenumber"]) for key in deleted for row in self._rows(key)[1]]
        )
        self._now |= changed
        self._now |= {key: ([], []) for key in deleted}
        self._gone += deleted

    def _changed(self, key: int) -> tuple[list[Row], list[Row]]:
        """An order and its items, with other amounts than they have."""
        (order,), items = self._rows(key)
        cents = self._rng.randrange(100_000, 50_000_000)
        order = {**order, "o_totalprice": _decimal(cents)}
        items = [
            {
                **item,
                "l_quantity": _decimal(100 * self._rng.randrange(1, 51)),
                "l_extendedprice": _decimal(self._rng.randrange(90_000, 10_000_000)),
                "l_discount": _decimal(self._rng.randrange(0, 11)),
            }
            for item in items
        ]
        return [order], items

    def _rows(self, key: int) -> tuple[list[Row], list[Row]]:
        """What there was of an order and its items when they were there last."""
        if (now := self._now.get(key)) is not None and now[0]:
            return now
        positions = (self._order_at[key], self._items.get(key, []))
        order, items = (
            self._loaded[name].take(at).to_pylist()
            for name, at in zip(CHANGED_TABLES, positions, strict=True)
        )
        return order, items

    @staticmethod
    def _write(table: scanner.sync.Table, rows: Iterable[list[Row]]) -> None:
        table.write(pa.Table.from_pylist([row for each in rows for row in each], schema=table.schema))


def _decimal(cents: int) -> Decimal:
    return Decimal(cents).scaleb(-2)


def _positions(keys: list[int]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for position, key in enumerate(keys):
        found.setdefault(key, []).append(position)
    return found
