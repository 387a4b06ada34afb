"""The rows that every peer reads: of two widths, in key order, made without chance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMA: Final = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("name", pa.string()),
        ("price", pa.float64()),
        ("stock", pa.int32()),
    ]
)
PRIMARY_KEY: Final = ("id",)
_PIECE_ROWS: Final = 100_000


@dataclass(frozen=True, slots=True)
class Width:
    """How long a row is."""

    name: str
    text_bytes: int
    """Of its one column of text."""


WIDTHS: Final = {"86": Width("86 B", 48), "256": Width("256 B", 218), "1024": Width("1 KiB", 986)}
"""By the bytes of a stored row."""


def pieces(width: Width, rows: int) -> Iterator[pa.Table]:
    """The rows with the ids 0 to `rows` - 1, a hundred thousand at a time."""
    for start in range(0, rows, _PIECE_ROWS):
        yield rows_of(width, range(start, min(rows, start + _PIECE_ROWS)))


def rows_of(width: Width, ids: range) -> pa.Table:
    """The rows of some ids."""
    return pa.table(
        {
            "id": ids,
            "name": [f"{number:0{width.text_bytes}}" for number in ids],
            "price": [number / 4 for number in ids],
            "stock": [number % 1000 for number in ids],
        },
        schema=SCHEMA,
    )
