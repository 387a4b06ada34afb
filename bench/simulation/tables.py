"""The tables of the simulation: schemas, the rows that writers make, and conditions that two sides can judge.

Every row that is ever written has a `tag` of its own, so a row tells which write it is from.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from scanner import Condition, col
from scanner.data.table import TableDescription

Key = tuple[object, ...]
Row = tuple[object, ...]

TABLE: Final = "simulated"
PASSING: Final = "passing"
"""Another one of the same columns, which comes and goes."""
KEY_SCHEMAS: Final = (
    (pa.field("id", pa.int64(), nullable=False),),
    (pa.field("name", pa.string(), nullable=False),),
    (pa.field("region", pa.string(), nullable=False), pa.field("id", pa.int32(), nullable=False)),
)
VALUES: Final = (
    pa.field("tag", pa.int64()),
    pa.field("text", pa.string()),
    pa.field("price", pa.float64()),
    pa.field("sold", pa.bool_()),
)
TEXT_LENGTHS: Final = (0, 3, 10, 30, 30, 100, 700)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One condition of a filter, for the builder of a scan and for the model."""

    column: str
    symbol: str
    value: object = None

    def condition(self) -> Condition:
        """As the client takes it."""
        column = col(self.column)
        match self.symbol:
            case "<":
                return column < self.value
            case ">=":
                return column >= self.value
            case "==":
                return column == self.value
            case _:
                return column.is_null()

    def holds(self, cell: object) -> bool:
        """As everybody understands it: a null satisfies `is null` only."""
        if cell is None or self.symbol == "is null":
            return cell is None and self.symbol == "is null"
        return bool(_TESTS[self.symbol](cell, self.value))


_TESTS: Final[Mapping[str, Callable[[Any, Any], object]]] = {
    "<": operator.lt,
    ">=": operator.ge,
    "==": operator.eq,
}


class Rows:
    """Makes keys and rows of one table.

    Args:
        rng: Chooses the key's columns, the keys, and every value.
        keys: How many keys there are; what is written is written to them.
        buckets: Of the table.
    """

    def __init__(self, rng: random.Random, keys: int, buckets: int) -> None:
        self._rng = rng
        key_fields = rng.choice(KEY_SCHEMAS)
        self.schema = pa.schema([*key_fields, *VALUES])
        self.key_columns = tuple(field.name for field in key_fields)
        self.description = TableDescription(TABLE, self.schema, self.key_columns, buckets)
        self.keys = sorted({self._key() for _ in range(keys)})
        """In primary key order."""
        self._tags = 0

    def make(self, keys: Sequence[Key]) -> dict[Key, Row]:
        """A new row for each of the keys."""
        return {key: self._row(key) for key in keys}

    def to_arrow(self, rows: Sequence[Row]) -> pa.RecordBatch:
        """Rows as a batch of all columns."""
        return _batch(rows, self.schema)

    def keys_to_arrow(self, keys: Sequence[Key]) -> pa.RecordBatch:
        """Keys as a batch of the key columns."""
        return _batch(keys, pa.schema([self.schema.field(name) for name in self.key_columns]))

    def comparison(self) -> Comparison:
        """Any condition."""
        return self._rng.choice(
            (
                Comparison("price", "<", self._rng.uniform(0, 100)),
                Comparison("price", ">=", self._rng.uniform(0, 100)),
                Comparison("sold", "==", self._rng.random() < 0.5),
                Comparison("text", "is null"),
                Comparison("tag", ">=", self._rng.randrange(500)),
                Comparison("tag", "<", -1),  # of no row: only heartbeats come
            )
        )

    def _key(self) -> Key:
        rng = self._rng
        match self.key_columns:
            case ("id",):
                return (rng.randrange(-(2**40), 2**40),)
            case ("name",):
                return ("".join(rng.choices("abö\0", k=rng.randrange(12))),)
            case _:
                return (rng.choice(("", "eu", "euro", "us")), rng.randrange(-1000, 1000))

    def _row(self, key: Key) -> Row:
        rng, self._tags = self._rng, self._tags + 1
        text = None if rng.random() < 0.1 else rng.choice("xyz") * rng.choice(TEXT_LENGTHS)
        price = None if rng.random() < 0.1 else round(rng.uniform(0, 100), 2)
        return (*key, self._tags, text, price, rng.choice((True, False, None)))


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    """The rows of a batch, as tuples."""
    return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))


def _batch(rows: Sequence[Row], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True) if rows else ((),) * len(schema)
    arrays = [pa.array(cells, field.type) for cells, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
