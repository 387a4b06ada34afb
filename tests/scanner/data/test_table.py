"""Table descriptions: what they accept, what they refuse and how they say so."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest

from scanner.data.filters import Filter, Operator, Predicate
from scanner.data.table import BUCKETS_MAX, TableDescription, no_table, stored_type
from scanner.errors import ArgumentInvalid, ColumnNotFound, KeyInvalid, ScannerError, SchemaMismatch

_SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.float64())])


def table(**changes: object) -> TableDescription:
    values = {"name": "t", "schema": _SCHEMA, "primary_key": ("b", "a"), "buckets": 4, **changes}
    return TableDescription(**values)


def test_key_columns_become_not_nullable_and_metadata_goes() -> None:
    """The description holds the schema as it is stored; other columns stay nullable."""
    described = table(schema=_SCHEMA.with_metadata({"pandas": "x"}))
    assert [field.nullable for field in described.schema] == [False, False, True]
    assert described.schema.metadata is None
    assert described.column_names == ("a", "b", "c")
    assert described.key_schema.names == ["b", "a"]
    assert described == table(primary_key=["b", "a"])


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"name": ""}, ArgumentInvalid, "table name ''"),
        ({"name": "1a"}, ArgumentInvalid, "'1a'"),
        ({"name": "a/b"}, ArgumentInvalid, "'a/b'"),
        ({"name": "../a"}, ArgumentInvalid, r"'\.\./a'"),
        ({"name": "a\n"}, ArgumentInvalid, "not valid"),
        ({"name": "a" * 129}, ArgumentInvalid, "not valid"),
        ({"buckets": 0}, ArgumentInvalid, "not 0"),
        ({"buckets": BUCKETS_MAX + 1}, ArgumentInvalid, "1 to 1024"),
        ({"primary_key": ()}, KeyInvalid, "at least one"),
        ({"primary_key": ("x",)}, ColumnNotFound, "'x'.*a, b, c"),
        ({"primary_key": ("a", "a")}, ArgumentInvalid, "'a' is named twice"),
        ({"schema": pa.schema([])}, SchemaMismatch, "not 0"),
        ({"schema": pa.schema([("a", pa.int8()), ("a", pa.int8())])}, ArgumentInvalid, "'a' is named twice"),
        (
            {"schema": _SCHEMA.append(pa.field("ü" * 257, pa.int8()))},
            SchemaMismatch,
            "takes 514 bytes; at most 512",
        ),
        ({"schema": _SCHEMA.append(pa.field("u", pa.uint8()))}, SchemaMismatch, "'u' has type uint8"),
        (
            {"schema": _SCHEMA.append(pa.field("d", pa.decimal64(9, 1001)))},
            SchemaMismatch,
            "its scale is at most",
        ),
        (
            {"schema": _SCHEMA.append(pa.field("d", pa.decimal128(9, -1001)))},
            SchemaMismatch,
            "and at least -1000",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(
    changes: dict[str, object], error: type[ScannerError], message: str
) -> None:
    """Each wrong part is a typed error that names it."""
    with pytest.raises(error, match=message):
        table(**changes)


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (pa.large_string(), pa.string()),
        (pa.string_view(), pa.string()),
        (pa.dictionary(pa.int8(), pa.large_string()), pa.string()),
        (pa.large_binary(), pa.binary()),
        (pa.binary(4), pa.binary()),
        (pa.decimal64(5, 2), pa.decimal128(5, 2)),
        (pa.decimal128(38, 3), pa.decimal128(38, 3)),
        (pa.timestamp("ns", "UTC"), pa.timestamp("ns", "UTC")),
    ],
)
def test_other_layouts_of_the_same_values_are_normalised(given: pa.DataType, stored: pa.DataType) -> None:
    """What only differs in its layout is stored as the plain type."""
    assert stored_type("x", given) == stored


@pytest.mark.parametrize(
    "given",
    [
        pa.uint64(),
        pa.float16(),
        pa.date64(),
        pa.time32("s"),
        pa.decimal256(50, 1),
        pa.null(),
        pa.list_(pa.int8()),
    ],
)
def test_types_whose_values_would_change_are_refused(given: pa.DataType) -> None:
    """The error names the column and lists what can be stored."""
    with pytest.raises(SchemaMismatch, match=r"column 'x' has type .* cast it"):
        stored_type("x", given)


def test_a_projection_keeps_the_asked_order() -> None:
    """Columns come as asked; none asked for means all; unknown and repeated ones are refused."""
    described = table()
    assert described.project(["c", "a"]).names == ["c", "a"]
    assert described.project() == described.schema
    with pytest.raises(ColumnNotFound, match=r"'d'.*a, b, c"):
        described.project(["a", "d"])
    with pytest.raises(ArgumentInvalid, match="'a' is named twice"):
        described.project(["a", "a"])


def test_conform_orders_and_casts() -> None:
    """Rows in another column order, layout or integer width are cast to the table's schema."""
    batch = pa.record_batch(
        {
            "c": pa.array([1.5, None]),
            "b": pa.array(["x", "y"], pa.large_string()),
            "a": pa.array([1, 2], pa.uint8()),
        }
    )
    conformed = table().conform(batch)
    assert conformed.schema == table().schema
    assert conformed.to_pylist() == [{"a": 1, "b": "x", "c": 1.5}, {"a": 2, "b": "y", "c": None}]


def test_columns_of_the_types_of_the_table_are_not_asked_for_their_kind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That takes a third of the time in which a row is checked, and each write is checked at both ends."""
    asked: list[object] = []
    monkeypatch.setattr("scanner.data.table.require_castable", lambda given, field: asked.append(given))
    row = {"a": pa.array([1], table().schema.field("a").type), "b": ["x"], "c": [1.5]}
    table().conform(pa.record_batch(row))
    assert asked == []
    table().conform(pa.record_batch({**row, "a": pa.array([1], pa.uint8())}))
    assert asked == [pa.uint8()]


@pytest.mark.parametrize(
    ("columns", "error", "message"),
    [
        ({"a": [1], "b": ["x"]}, SchemaMismatch, r"missing \['c'\]"),
        ({"a": [1], "b": ["x"], "c": [1.0], "d": [1]}, SchemaMismatch, r"unknown \['d'\]"),
        ({"a": ["one"], "b": ["x"], "c": [1.0]}, SchemaMismatch, "column 'a' is string"),
        ({"a": [1.5], "b": ["x"], "c": [1.0]}, SchemaMismatch, "column 'a' is double"),
        ({"a": [1, None], "b": ["x", "y"], "c": [1.0, 1.0]}, KeyInvalid, "'a' is null in row 1"),
    ],
)
def test_rows_that_do_not_fit_are_refused(
    columns: dict[str, list[object]], error: type[ScannerError], message: str
) -> None:
    """Missing, unknown and uncastable columns and null keys are typed errors that name the column."""
    with pytest.raises(error, match=message):
        table().conform(pa.record_batch(columns))


@pytest.mark.parametrize("name", ["a", "c"])
def test_a_column_that_comes_twice_is_named(name: str) -> None:
    """Nothing is missing or unknown then, so the message says what else is wrong."""
    columns = {"a": [1], "b": ["x"], "c": [1.0]}
    names = [*columns, name]
    batch = pa.record_batch([pa.array(columns[each]) for each in names], names=names)
    with pytest.raises(SchemaMismatch, match=rf"missing \[\], unknown \[\], named twice \['{name}'\]"):
        table().conform(batch)


def test_a_null_in_a_column_that_forbids_it_is_refused() -> None:
    """Columns besides the key may be declared not nullable, too."""
    described = table(schema=_SCHEMA.set(2, pa.field("c", pa.float64(), nullable=False)))
    batch = pa.record_batch({"a": [1, 2], "b": ["x", "y"], "c": [1.0, None]})
    with pytest.raises(SchemaMismatch, match="'c' must not be null, and is in row 6"):
        described.conform(batch, first_row=5)


def test_keys_to_delete_are_the_key_columns_alone() -> None:
    """Deletes bring the key columns, in any order, and nothing else."""
    keys = table().conform_keys(pa.record_batch({"a": [1], "b": ["x"]}))
    assert keys.schema == table().key_schema
    with pytest.raises(SchemaMismatch, match=r"unknown \['c'\]"):
        table().conform_keys(pa.record_batch({"a": [1], "b": ["x"], "c": [1.0]}))


def test_buffers_of_a_hostile_peer_are_checked() -> None:
    """Offsets that point outside the data are refused before anything reads through them."""
    offsets = pa.py_buffer(struct.pack("<iii", 0, 1 << 30, 1))
    forged = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"x")])
    batch = pa.RecordBatch.from_arrays(
        [pa.array([1, 2]), forged, pa.array([1.0, 2.0])], names=["a", "b", "c"]
    )
    with pytest.raises(SchemaMismatch, match="column 'b' is not valid Arrow data"):
        table().conform(batch)


def test_a_view_of_octets_that_are_not_there_is_refused_by_its_column() -> None:
    """Arrow has another error for these, which would be one of the server's."""
    view = pa.py_buffer(struct.pack("<i4sii", 20, b"long", 0, 0))
    forged = pa.Array.from_buffers(pa.string_view(), 1, [None, view])
    batch = pa.RecordBatch.from_arrays([pa.array([1]), forged, pa.array([1.0])], names=["a", "b", "c"])
    with pytest.raises(SchemaMismatch, match="column 'b' is not valid Arrow data: View at slot 0"):
        table().conform(batch)


def test_text_that_is_not_utf8_is_refused_by_its_column() -> None:
    """What Spark's `cast(value AS STRING)` makes of any bytes; Arrow calls the column by its place."""
    text = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())
    batch = pa.RecordBatch.from_arrays([text, pa.array([1.0]), pa.array([1])], names=["b", "c", "a"])
    with pytest.raises(SchemaMismatch, match="column 'b' is not valid Arrow data: Invalid UTF8"):
        table().conform(batch)


class CountedSchema:
    """A schema that counts how often its names are listed."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self.listed = 0

    @property
    def names(self) -> list[str]:
        """Those of the schema."""
        self.listed += 1
        return list(self._schema.names)


@pytest.mark.parametrize("name", ["c", "unknown"])
@pytest.mark.parametrize("kind", ["union", "dictionary"])
def test_columns_of_other_types_are_refused_before_their_values_are_looked_at(kind: str, name: str) -> None:
    """Arrow ends the process when it is asked for the size of such a union; 2^40 nulls are written in a few octets."""
    if kind == "union":
        values = pa.array([], pa.int8())
        column = pa.UnionArray.from_sparse(values, [values, values])
    else:
        none = pa.Array.from_buffers(pa.null(), 2**40, [None])
        column = pa.DictionaryArray.from_arrays(pa.array([], pa.int8()), none)
    batch = pa.record_batch({"a": pa.array([], pa.int64()), "b": pa.array([], pa.string()), name: column})
    received = pa.ipc.read_record_batch(batch.serialize(), batch.schema) if kind == "union" else batch
    with pytest.raises(SchemaMismatch, match=r"cannot be stored as double|do not fit the table"):
        table().conform(received, bytes_max=1000)


def test_a_batch_of_many_columns_lists_the_names_of_the_table_as_often_as_one_of_few() -> None:
    """Arrow makes the list anew each time: once for each column, a row of 4096 columns took seconds to be checked."""
    listed = []
    for columns in (2, 50):
        described = table(
            schema=pa.schema([(f"c{each}", pa.int64()) for each in range(columns)]), primary_key=("c0",)
        )
        counted = CountedSchema(described.schema)
        object.__setattr__(described, "schema", counted)
        with pytest.raises(SchemaMismatch, match=r"missing \['c1'"):
            described.conform(pa.record_batch({"c0": [1], **{f"x{each}": [1] for each in range(columns)}}))
        listed.append(counted.listed)
    assert listed[0] == listed[1]


def test_the_errors_about_columns_of_a_wide_table_are_lines_to_read() -> None:
    """At 4096 columns each of them names the first ones, and how many more there are."""
    wide = table(schema=pa.schema([(f"c{each}", pa.int64()) for each in range(4096)]), primary_key=("c0",))
    others = pa.record_batch({f"x{each}": [1] for each in range(4096)})
    known = r"c0, c1, .*, c18, c19 and 4076 more"
    with pytest.raises(ColumnNotFound, match=rf"the columns are {known}$"):
        wide.project(["nope"])
    with pytest.raises(ColumnNotFound, match=rf"; it has {known}$"):
        Filter([Predicate("nope", Operator.IS_NULL)], wide.schema)
    with pytest.raises(
        SchemaMismatch, match=rf"unknown \['x0', .*, 'x19' and 4076 more\].*: {known}$"
    ) as caught:
        wide.conform(others)
    assert len(caught.value.message) < 1000


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ([], "no table 'x'; there are no tables"),
        (["b", "a"], "no table 'x'; the tables are: a, b"),
        ([f"t{number:02}" for number in range(22)], r"t18, t19 and 2 more"),
    ],
)
def test_the_error_names_some_tables(tables: list[str], words: str) -> None:
    """All, if they are few."""
    assert no_table("x", tables).message.endswith(words)
