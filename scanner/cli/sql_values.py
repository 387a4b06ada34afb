"""Answers of DuckDB whose values Arrow or Python would not have: asked for as the text that DuckDB writes.

To Arrow the greatest UHUGEINT is -1, a TIMETZ has no offset, a BIT or a BIGNUM is octets of DuckDB's own, and infinite
days and times are finite ones. To Python 24:00:00 is midnight, and days and times end with the year 9999; a VARIANT is
octets to it.

Invariant: of every value that is cast here, DuckDB's text is what comes out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from duckdb.sqltypes import DuckDBPyType

from scanner.cli.cells import times_to_text
from scanner.cli.sql_tables import quoted

if TYPE_CHECKING:
    from duckdb import DuckDBPyRelation

_NOT_OF_ARROW: Final = frozenset({"uhugeint", "bignum", "bit", "time with time zone"})
_NOT_OF_TEXT: Final = _NOT_OF_ARROW | {"time", "time_ns", "interval", "variant", "geometry"}
_NOT_OF_JSON: Final = _NOT_OF_TEXT | {
    "blob",
    "date",
    "timestamp",
    "timestamp_s",
    "timestamp_ms",
    "timestamp_ns",
    "timestamp with time zone",
    "timestamptz_ns",
}
"""In a list, a structure or a map, which a text format shows as JSON. Outside of them these have a form of ours."""
_INFINITE: Final = {
    kind: {"infinity": (1 << bits) - 1, "-infinity": 1 - (1 << bits)}
    for kind, bits in ((pa.int32(), 31), (pa.int64(), 63))
}
_NESTED: Final = frozenset({"list", "array", "struct", "map", "tuple", "union"})


def faithful(relation: DuckDBPyRelation, *, in_text: bool) -> DuckDBPyRelation:
    """The same rows, with columns cast to text where something would be lost on the way.

    Args:
        relation: Of the query. The columns of the result may have other names.
        in_text: Whether the rows go to a text format.
    """
    casts = [
        _cast(each, _NOT_OF_TEXT if in_text else _NOT_OF_ARROW, in_text=in_text) for each in relation.types
    ]
    if not any(casts):
        return relation
    columns = (f"#{place}" if to is None else f"CAST(#{place} AS {to})" for place, to in enumerate(casts, 1))
    return relation.project(", ".join(columns))


def is_time(kind: pa.DataType) -> bool:
    """Whether a column of Arrow has days or times that DuckDB may have meant to be infinite."""
    return bool(pa.types.is_date32(kind) or pa.types.is_timestamp(kind))


def texts_of_times(column: pa.Array) -> pa.Array:
    """Days or times as text; those that are infinite to DuckDB as it writes them."""
    numbers = column.cast(pa.int32() if pa.types.is_date32(column.type) else pa.int64())
    texts = times_to_text(column)
    for text, number in _INFINITE[numbers.type].items():
        texts = pc.if_else(pc.equal(numbers, pa.scalar(number, numbers.type)), text, texts)
    return texts


def _cast(kind: DuckDBPyType, lossy: frozenset[str], *, in_text: bool) -> str | None:
    """The type to cast to, in SQL; None: all values come out as they are.

    Args:
        kind: Of the column, or of a part of it.
        lossy: Types that are cast to text.
        in_text: As `faithful` has it.
    """
    if kind.id in lossy:
        return "VARCHAR"
    if kind.id not in _NESTED:
        return None
    parts = [(name, each) for name, each in kind.children if isinstance(each, DuckDBPyType)]
    inside = _NOT_OF_JSON if in_text else lossy
    casts = [_cast(each, inside, in_text=in_text) for _, each in parts]
    if not any(casts):
        return None
    types = [str(each) if to is None else to for (_, each), to in zip(parts, casts, strict=True)]
    match kind.id:
        case "list":
            return f"{types[0]}[]"
        case "array":
            return f"{types[0]}[{dict(kind.children)['size']}]"
        case "map":
            return f"MAP({', '.join(types)})"
        case "struct":
            fields = (f"{quoted(name)} {each}" for (name, _), each in zip(parts, types, strict=True))
            return f"STRUCT({', '.join(fields)})"
    return "VARCHAR"
