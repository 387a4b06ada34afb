"""Key conditions: no row that matches is ever outside of them, and what they are meant to find is found."""

from __future__ import annotations

import datetime
import itertools
from bisect import bisect_right
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.client.scan.expressions import col, parse_where
from scanner.data.filters import Filter, LiteralValue, Operator, Predicate
from scanner.data.key_conditions import RANGES_MAX, KeyConditions, key_conditions
from scanner.data.keys import ALL_KEYS, KEY_BYTES_MAX, KeyCodec, KeyRange
from scanner.data.literals import Temporal
from scanner.data.table import TableDescription

TEXTS = st.text(st.sampled_from("\0\1ab\xff\U0010ffff"), max_size=3)
OCTETS = st.binary(max_size=2) | st.sampled_from([b"\0", b"\0\0", b"\xff", b"\xff\xff", b"a\0", b"a\xff"])
FLOATS = st.floats(width=32) | st.sampled_from([0.0, -0.0, float("nan"), float("inf"), -float("inf")])
DAY = datetime.datetime(2013, 7, 1)
MOMENTS = st.integers(-5, 5).map(lambda count: DAY + datetime.timedelta(milliseconds=500 * count))
NUMBERS = st.integers(-3, 3) | st.sampled_from([127, -128, 300, 2**63 - 1, -(2**63)])
DECIMALS = st.integers(-300, 300).map(lambda count: Decimal(count) / 100)
WIDE = st.sampled_from(
    [Decimal(sign * (10**38 - less)) for sign in (1, -1) for less in (1, 2)]
) | NUMBERS.map(Decimal)

COLUMNS: dict[pa.DataType, tuple[st.SearchStrategy[Any], st.SearchStrategy[LiteralValue]]] = {
    pa.bool_(): (st.booleans(), st.booleans()),
    pa.int8(): (st.integers(-3, 3) | st.sampled_from([127, -128]), NUMBERS | FLOATS | DECIMALS),
    pa.int64(): (NUMBERS, NUMBERS | FLOATS | DECIMALS),
    pa.float32(): (FLOATS, FLOATS | NUMBERS | DECIMALS),
    pa.float64(): (FLOATS | st.just(0.1), FLOATS | NUMBERS | DECIMALS | st.just(Decimal("0.1"))),
    pa.decimal128(5, 2): (DECIMALS, DECIMALS | NUMBERS | st.just(Decimal("1.005"))),
    pa.decimal128(38, 0): (WIDE, WIDE | NUMBERS | st.just(Decimal("0.5"))),
    pa.decimal128(4, -2): (st.integers(-3, 3).map(lambda count: Decimal(count) * 100), DECIMALS | WIDE),
    pa.string(): (TEXTS, TEXTS),
    pa.binary(): (OCTETS, OCTETS),
    pa.date32(): (MOMENTS.map(datetime.datetime.date), MOMENTS.map(lambda at: Temporal(at.isoformat()))),
    pa.timestamp("s"): (
        MOMENTS.map(lambda at: at.replace(microsecond=0)),
        MOMENTS.map(lambda at: Temporal(at.isoformat())),
    ),
    pa.timestamp("ns"): (
        MOMENTS,
        MOMENTS.map(lambda at: Temporal(f"{at:%Y-%m-%d %H:%M:%S}.000000001"))
        | st.sampled_from([Temporal("1500-01-01"), Temporal("9999-12-31T23:59:59.9999999999")]),
    ),
    pa.timestamp("us", "UTC"): (
        MOMENTS.map(lambda at: at.replace(tzinfo=datetime.UTC)),
        MOMENTS.map(lambda at: Temporal(f"{at.isoformat()}+02:00"))
        | MOMENTS.map(lambda at: Temporal(f"{at}Z")),
    ),
}
"""Of each type that a key can have: cells, and what they are compared with."""
ORDERS = [
    Operator.EQUAL,
    Operator.NOT_EQUAL,
    Operator.LESS,
    Operator.LESS_OR_EQUAL,
    Operator.GREATER,
    Operator.GREATER_OR_EQUAL,
]


@st.composite
def comparisons(draw: st.DrawFn, schema: pa.Schema) -> Predicate:
    """One comparison of any column."""
    field = draw(st.sampled_from(list(schema)))
    literals = COLUMNS[field.type][1]
    texts = pa.types.is_string(field.type) or pa.types.is_binary(field.type)
    others = [Operator.IN, Operator.IS_NULL, Operator.IS_NOT_NULL, *([Operator.STARTS_WITH] if texts else [])]
    operator = draw(st.sampled_from([*ORDERS, *others]))
    if operator in (Operator.IS_NULL, Operator.IS_NOT_NULL):
        return Predicate(field.name, operator)
    count = draw(st.integers(1, 4)) if operator is Operator.IN else 1
    return Predicate(field.name, operator, tuple(draw(literals) for _ in range(count)))


def trees(schema: pa.Schema) -> st.SearchStrategy[Predicate]:
    """Comparisons, combined."""

    def combined(parts: st.SearchStrategy[Predicate]) -> st.SearchStrategy[Predicate]:
        several = st.lists(parts, min_size=2, max_size=3).map(tuple)
        either = st.sampled_from([Operator.AND, Operator.OR])
        return st.one_of(
            st.builds(Predicate, st.just(""), either, st.just(()), several),
            parts.map(lambda part: Predicate("", Operator.NOT, (), (part,))),
        )

    return st.recursive(comparisons(schema), combined, max_leaves=5)


@st.composite
def cases(draw: st.DrawFn) -> tuple[TableDescription, pa.RecordBatch, list[Predicate]]:
    """A table, rows of it, and a filter."""
    kinds = draw(st.lists(st.sampled_from(list(COLUMNS)), min_size=1, max_size=3))
    fields = [pa.field(f"k{place}", kind) for place, kind in enumerate(kinds)] + [pa.field("v", pa.int64())]
    schema = pa.schema(fields)
    table = TableDescription("t", schema, tuple(schema.names[:-1]), 4)
    count = draw(st.integers(1, 8))
    rows = [pa.array([draw(COLUMNS[each.type][0]) for _ in range(count)], each.type) for each in fields]
    filters = draw(st.lists(trees(schema), min_size=1, max_size=4))
    return table, pa.RecordBatch.from_arrays(rows, schema=schema), filters


@given(cases(), st.sampled_from([1, 2, 3, RANGES_MAX]))
def test_no_row_that_matches_is_left_out(
    case: tuple[TableDescription, pa.RecordBatch, list[Predicate]], ranges_max: int
) -> None:
    """Against plain evaluation, over all types: its key is in a range, within the bounds, and among the keys."""
    table, rows, filters = case
    found = key_conditions(filters, table, ranges_max)
    assert len(found.ranges) <= ranges_max
    passing = Filter(filters, table.schema).mask(rows).to_pylist()
    for key, passes in zip(KeyCodec(table).encode_batch(rows), passing, strict=True):
        if passes:
            assert any(has(each, key) for each in found.ranges)
            assert found.bounds is not None
            assert has(found.bounds, key)
            assert found.keys is None or key in found.keys
    assert list(found.ranges) == sorted(found.ranges)
    assert all(
        one.end and one.end <= other.start for one, other in zip(found.ranges, found.ranges[1:], strict=False)
    )


def has(key_range: KeyRange, key: bytes) -> bool:
    """Whether a key is in a range."""
    return key_range.start <= key and (not key_range.end or key < key_range.end)


TABLE = TableDescription(
    "orders",
    pa.schema([("region", pa.string()), ("id", pa.int64()), ("price", pa.float64())]),
    ("region", "id"),
    8,
)
CODEC = KeyCodec(TABLE)


def found_of(text: str) -> KeyConditions:
    """What a filter in words says of the keys of `orders`."""
    return key_conditions(parse_where(text).predicates, TABLE)


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        ("region = 'b'", ["b"], ["b\0"]),
        ("region >= 'b' and region < 'd'", ["b"], ["d"]),
        ("region between 'b' and 'c'", ["b"], ["c\0"]),
        ("region = 'b' and id >= 5", ["b", 5], ["b\0"]),
        ("region = 'b' and id between 5 and 7 and price > 3", ["b", 5], ["b", 8]),
        ("region in ('b') and id < 2.5", ["b"], ["b", 3]),
        ("region = 'b' and not (id = 3)", ["b"], ["b\0"]),
        ("region > 'b' and region > 'c'", ["c\0"], []),
        ("(region = 'b' or region = 'c') and id = 3 and region = 'c'", ["c", 3], ["c", 4]),
    ],
)
def test_conditions_become_a_range(text: str, start: list[object], end: list[object]) -> None:
    """From the first key that can match up to the last one; ends may be any key in between two."""
    (found,) = found_of(text).ranges
    ids = [["b", number] for number in range(-1, 10)] + [["b\0", 1], ["c", 2], ["c", 3], ["c", 4], ["d", 1]]
    wanted = KeyRange(CODEC.encode(start), CODEC.encode(end))
    assert [key for key in ids if has(found, CODEC.encode(key))] == [
        key for key in ids if has(wanted, CODEC.encode(key))
    ]


@pytest.mark.parametrize(
    "text", ["price = 3", "id = 3", "region != 'b'", "region = 'b' or price = 3", "not (region = 'b')"]
)
def test_what_says_nothing_of_the_first_column_leaves_every_key(text: str) -> None:
    """It is the server's to evaluate."""
    assert found_of(text) == KeyConditions((ALL_KEYS,), None)


@pytest.mark.parametrize("text", ["region = 'a' and region = 'b'", "region = 'a' and id = 2.5"])
def test_what_contradicts_itself_leaves_no_key(text: str) -> None:
    """Nothing has to be read."""
    assert found_of(text).ranges == ()
    assert found_of(text).bounds is None


def test_a_whole_key_is_known() -> None:
    """Equality and IN over all key columns leave the very keys, each once, and ascending."""
    found = found_of("region in ('c', 'a', 'a') and (id = 5 or id in (3, 5.0))")
    keys = [CODEC.encode(key) for key in (["a", 3], ["a", 5], ["c", 3], ["c", 5])]
    assert found.keys == tuple(keys)
    assert found.ranges == tuple(KeyRange(key, key + b"\0") for key in keys)


@pytest.mark.parametrize("kind", list(COLUMNS), ids=str)
def test_no_cell_at_all_is_encoded_as_none(kind: pa.DataType) -> None:
    """Of an IN whose literals are none of the column's values nothing is left to encode, whatever the type."""
    table = TableDescription("t", pa.schema([pa.field("k", kind, nullable=False)]), ("k",), 1)
    assert KeyCodec(table).encode_cells(0, pa.array([], kind)) == []
    if pa.types.is_decimal(kind):
        found = key_conditions([Predicate("k", Operator.IN, (Decimal("0.001"),))], table)
        assert found == KeyConditions((), ())


def test_a_prefix_of_a_string_is_a_range() -> None:
    """Of the first column, or of the one behind those that are fixed."""
    (found,) = key_conditions(col("region").startswith("a\0").predicates, TABLE).ranges
    assert has(found, CODEC.encode(["a\0", 1]))
    assert has(found, CODEC.encode(["a\0b", 1]))
    assert not has(found, CODEC.encode(["a", 1]))
    assert not has(found, CODEC.encode(["b", 1]))


def test_very_many_keys_are_not_multiplied() -> None:
    """Of two hundred times two hundred the second ones are joined to ranges, by fours; here those touch, too."""
    regions = ", ".join(f"'{number:04}'" for number in range(200))
    ids = ", ".join(str(number) for number in range(200))
    found = found_of(f"region in ({regions}) and id in ({ids})")
    assert found.keys is None
    assert len(found.ranges) == 200
    assert found.ranges[0] == KeyRange(CODEC.encode(["0000", 0]), CODEC.encode(["0000", 200]))
    assert found.bounds == KeyRange(CODEC.encode(["0000", 0]), CODEC.encode(["0199", 200]))


class _Counted(bytes):
    """A cell that counts how often it is compared."""

    compared = 0

    def __lt__(self, other: bytes) -> bool:
        _Counted.compared += 1
        return bytes.__lt__(self, other)

    def __le__(self, other: bytes) -> bool:
        _Counted.compared += 1
        return bytes.__le__(self, other)

    def __gt__(self, other: bytes) -> bool:
        _Counted.compared += 1
        return bytes.__gt__(self, other)


@pytest.mark.parametrize("operator", [Operator.OR, Operator.AND])
def test_many_operands_take_time_in_proportion(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two thousand equalities, joined by OR, and of as many ranges by AND, a cell is compared a few times."""
    encode = KeyCodec.encode_cells
    monkeypatch.setattr(KeyCodec, "encode_cells", lambda *args: [_Counted(cell) for cell in encode(*args)])
    _Counted.compared = 0
    table = TableDescription("t", pa.schema([("id", pa.int64())]), ("id",), 1)
    count = 2_000
    if operator is Operator.OR:
        leaves = [Predicate("id", Operator.EQUAL, (number * 7919 % count,)) for number in range(count)]
    else:
        sides = (Operator.LESS, -1), (Operator.GREATER, 1)
        leaves = [
            Predicate("", Operator.OR, (), tuple(Predicate("id", side, (5 * at + to,)) for side, to in sides))
            for at in range(count)
        ]
    found = key_conditions([Predicate("", operator, (), tuple(leaves))], table)
    assert len(found.ranges) == (count if operator is Operator.OR else count + 1)
    assert _Counted.compared < 60 * count


def test_more_ranges_than_are_allowed_are_joined() -> None:
    """Every key stays in one of them, and none is beyond the first and the last."""
    table = TableDescription("t", pa.schema([("id", pa.int64())]), ("id",), 1)
    numbers = range(0, 30 * RANGES_MAX, 7)
    found = key_conditions([Predicate("id", Operator.IN, tuple(numbers))], table)
    codec = KeyCodec(table)
    assert len(numbers) > len(found.ranges) > RANGES_MAX // 2
    assert len(found.ranges) <= RANGES_MAX
    assert found.bounds == KeyRange(codec.encode([numbers[0]]), codec.encode([numbers[-1] + 1]))
    starts = [each.start for each in found.ranges]
    for number in numbers[::99]:
        key = codec.encode([number])
        assert has(found.ranges[bisect_right(starts, key) - 1], key)


LONG = "a" * KEY_BYTES_MAX


@pytest.mark.parametrize("tail", ["", "b", "\0" * KEY_BYTES_MAX, "\x7f"])
@pytest.mark.parametrize("operator", [*ORDERS, Operator.IN, Operator.STARTS_WITH])
def test_a_literal_longer_than_a_key_makes_no_end_longer_than_one(operator: Operator, tail: str) -> None:
    """Neither alone nor behind another column; and every key that can match is in the ranges."""
    schema = pa.schema([("a", pa.string()), ("b", pa.string())])
    table = TableDescription("t", schema, ("a", "b"), 1)
    codec = KeyCodec(table)
    rows = [
        ("a", ""),
        ("a", LONG[:-6]),
        ("a", "b"),
        (LONG[:-6], ""),
        (LONG[:-7], "a"),
        ("b", LONG[:-6]),
        ("b", "b"),
    ]
    keys = {row: codec.encode(row) for row in rows}
    for predicates in (
        [Predicate("a", operator, (LONG + tail,))],
        [Predicate("a", Operator.EQUAL, ("a",)), Predicate("b", operator, (LONG[:-4] + tail,))],
        [Predicate("a", Operator.IN, ("a", "b")), Predicate("b", operator, (LONG + tail,))],
    ):
        found = key_conditions(predicates, table)
        ends = [end for each in found.ranges for end in each]
        assert max(map(len, ends), default=0) <= KEY_BYTES_MAX
        assert found.keys is None or max(map(len, found.keys), default=0) <= KEY_BYTES_MAX
        batch = pa.RecordBatch.from_pylist([dict(zip("ab", row, strict=True)) for row in rows], schema)
        passing = Filter(predicates, schema).mask(batch).to_pylist()
        for row, passes in zip(rows, passing, strict=True):
            assert not passes or any(has(each, keys[row]) for each in found.ranges)
        assert all(one.end < other.start for one, other in itertools.pairwise(found.ranges))


def test_a_value_that_no_key_can_hold_leaves_no_key() -> None:
    """Equality with it, alone or as the last of what would be a whole key."""
    for text in (
        f"region = '{LONG}'",
        f"region = '{LONG}' and id = 3",
        f"region in ('{LONG[:-1]}') and id = 3",
    ):
        assert found_of(text) == KeyConditions((), ())
