"""What conditions say of primary keys: the key ranges, or the very keys, outside of which no row can match.

Keys are ordered as their columns are (`scanner.data.keys`), so conditions that fix the first columns of the key, and
bound the next one, leave a few ranges. What is found is never too little: a condition that is not understood here, an
operand of NOT, or a column behind the first one that is not fixed leaves every key. The condition itself is still to be
evaluated.

It takes time in proportion to the literals, but for sorting them, and what it finds is bounded: `RANGES_MAX` ranges, of
which no end is longer than a key (`KEY_BYTES_MAX`). Beyond that ranges are joined: fewer, and wider.

How a literal stands among a column's values is asked of `scanner.data.comparisons`, which evaluates: what has a
fraction, is out of range, NaN or a zero with a sign is here what it is there.

Pure: this module knows no scan.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from scanner.data.comparisons import cell_at_most, cells_equal
from scanner.data.filters import Operator, Predicate
from scanner.data.keys import ALL_KEYS, KEY_BYTES_MAX, KeyCodec, KeyRange, escaped, prefix_end, successor

if TYPE_CHECKING:
    import pyarrow as pa

    from scanner.data.table import TableDescription

RANGES_MAX: Final = 10_000
"""Of one answer; so many keys, or beginnings of keys, are multiplied."""
_ORDERS: Final = (
    Operator.EQUAL,
    Operator.LESS,
    Operator.LESS_OR_EQUAL,
    Operator.GREATER,
    Operator.GREATER_OR_EQUAL,
)


@dataclass(frozen=True, slots=True)
class KeyConditions:
    """What is left of the keys of a table."""

    ranges: tuple[KeyRange, ...]
    """Ascending, apart from one another, and not too many: the key of every row that matches is in one. None: no row
    matches."""
    keys: tuple[bytes, ...] | None
    """Every row that matches has one of these keys, ascending; None: that is not known."""

    @property
    def bounds(self) -> KeyRange | None:
        """The smallest range that has all of them; None: no row matches."""
        return KeyRange(self.ranges[0].start, self.ranges[-1].end) if self.ranges else None


class _Cells(NamedTuple):
    """Values of one key column that lie side by side, as the encodings in [start, end)."""

    start: bytes
    end: bytes
    """Empty: to the last one."""
    is_one: bool = False
    """It is one value, whose encoding is `start`."""


_ALL_CELLS: Final[Sequence[_Cells]] = (_Cells(b"", b""),)


def key_conditions(
    predicates: Sequence[Predicate], table: TableDescription, ranges_max: int = RANGES_MAX
) -> KeyConditions:
    """Find the keys that rows can have for which all predicates are true.

    Args:
        predicates: Of which each fits the table, as `scanner.data.filters.Filter` checks.
        table: Its key.
        ranges_max: Of the answer, 1 or more.

    Raises:
        ArgumentInvalid: A literal does not fit its column.
    """
    codec = KeyCodec(table)
    prefixes = [b""]
    for place, field in enumerate(table.key_schema):
        cells = _intersection([_cells_of(each, codec, place, field) for each in predicates])
        if cells == _ALL_CELLS:
            break
        cells = _coarser(cells, ranges_max // len(prefixes))
        if not all(each.is_one for each in cells):
            return KeyConditions(_merged(_below(prefix, each) for prefix in prefixes for each in cells), None)
        found = (prefix + each.start for prefix in prefixes for each in cells)
        # No row has a longer key.
        prefixes = [each for each in found if len(each) <= KEY_BYTES_MAX]
        if not prefixes:
            return KeyConditions((), ())
    else:
        return KeyConditions(tuple(KeyRange(key, successor(key)) for key in prefixes), tuple(prefixes))
    if prefixes == [b""]:
        return KeyConditions((ALL_KEYS,), None)
    return KeyConditions(_merged(KeyRange(prefix, prefix_end(prefix)) for prefix in prefixes), None)


def _cells_of(predicate: Predicate, codec: KeyCodec, place: int, field: pa.Field) -> Sequence[_Cells]:
    """The values of a key column that a row can have for which a predicate is true: ascending, apart."""
    operator = predicate.operator
    if operator in (Operator.AND, Operator.OR):
        parts = [_cells_of(each, codec, place, field) for each in predicate.operands]
        return _intersection(parts) if operator is Operator.AND else _union(parts)
    if predicate.operands or predicate.column != field.name:
        return _ALL_CELLS
    if operator is Operator.IN:
        encoded = codec.encode_cells(place, cells_equal(predicate.literals, field))
        return tuple(_one(each) for each in sorted(set(encoded)))
    if operator is Operator.STARTS_WITH:
        return _starting_with(predicate.literals[0])
    if operator in _ORDERS:
        return _compared(predicate, codec, place, field)
    return _ALL_CELLS


def _compared(predicate: Predicate, codec: KeyCodec, place: int, field: pa.Field) -> Sequence[_Cells]:
    operator, (literal,) = predicate.operator, predicate.literals
    found = cell_at_most(literal, field)
    if found is None:
        return ()
    below, exact = found
    is_above = operator in (Operator.GREATER, Operator.GREATER_OR_EQUAL)
    if below is None:
        return _ALL_CELLS if is_above else ()
    (cell,) = codec.encode_cells(place, below)
    after = prefix_end(cell)
    if operator is Operator.EQUAL:
        return (_one(cell),) if exact else ()
    if operator is Operator.GREATER_OR_EQUAL and exact:
        return (_Cells(cell, b""),)
    if is_above:
        return (_Cells(after, b""),) if after else ()
    if operator is Operator.LESS and exact:
        return (_Cells(b"", cell),)
    return (_Cells(b"", after),)


def _starting_with(literal: object) -> Sequence[_Cells]:
    if not isinstance(literal, str | bytes) or not literal:
        return _ALL_CELLS
    prefix = escaped(literal.encode() if isinstance(literal, str) else literal)
    return (_Cells(prefix, prefix_end(prefix)),)


def _one(cell: bytes) -> _Cells:
    return _Cells(cell, prefix_end(cell), is_one=True)


def _intersection(parts: Sequence[Sequence[_Cells]]) -> Sequence[_Cells]:
    """What ascending sequences have in common; two by two, so that each cell is looked at a few times only."""
    if len(parts) < 2:
        return parts[0] if parts else _ALL_CELLS
    half = len(parts) // 2
    return _in_both(_intersection(parts[:half]), _intersection(parts[half:]))


def _in_both(first: Sequence[_Cells], second: Sequence[_Cells]) -> Sequence[_Cells]:
    """What two ascending sequences have in common."""
    common: list[_Cells] = []
    i = j = 0
    while i < len(first) and j < len(second):
        one, other = first[i], second[j]
        start = max(one.start, other.start)
        end = min((each.end for each in (one, other) if each.end), default=b"")
        if not end or start < end:
            common.append(_Cells(start, end, one.is_one or other.is_one))
        # The one that ends first has nothing in common with what follows in the other.
        if one.end and (not other.end or one.end <= other.end):
            i += 1
        else:
            j += 1
    return tuple(common)


def _union(parts: Sequence[Sequence[_Cells]]) -> Sequence[_Cells]:
    """What is in one of several ascending sequences; what touches without overlapping stays apart."""
    joined: list[_Cells] = []
    for each in sorted(set(itertools.chain.from_iterable(parts))):
        last = joined[-1] if joined else None
        if last is None or (last.end and last.end <= each.start):
            joined.append(each)
        elif last.end and (not each.end or each.end > last.end):
            joined[-1] = _Cells(last.start, each.end)
    return tuple(joined)


def _coarser(cells: Sequence[_Cells], count_max: int) -> Sequence[_Cells]:
    """The same cells, and those between neighbours where there would be too many."""
    if len(cells) <= count_max:
        return cells
    step = -(-len(cells) // count_max)
    return tuple(
        _Cells(cells[first].start, cells[min(first + step, len(cells)) - 1].end)
        for first in range(0, len(cells), step)
    )


def _below(prefix: bytes, cells: _Cells) -> KeyRange:
    """The keys that begin with a prefix, and go on with one of the cells."""
    return KeyRange(prefix + cells.start, prefix + cells.end if cells.end else prefix_end(prefix))


def _merged(ranges: Iterable[KeyRange]) -> tuple[KeyRange, ...]:
    """Ranges by their starts, ascending: those that touch or overlap as one, and no end longer than a key."""
    merged: list[KeyRange] = []
    for start, end in map(_clipped, ranges):
        last = merged[-1] if merged else None
        if last is None or (last.end and last.end < start):
            merged.append(KeyRange(start, end))
        elif last.end:
            merged[-1] = KeyRange(last.start, max(last.end, end) if end else b"")
    return tuple(merged)


def _clipped(key_range: KeyRange) -> KeyRange:
    """A range that has the same keys and perhaps more, of which no end is longer than a key."""
    start, end = key_range
    return KeyRange(
        start[:KEY_BYTES_MAX], end if len(end) <= KEY_BYTES_MAX else prefix_end(end[:KEY_BYTES_MAX])
    )
