"""Rows become requests: gathered, and as upserts and deletes that do what the changes would, one by one."""

from collections.abc import Sequence
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_source import SourceDataError
from spark_source.writing.changes import Operation, Step, gathered, steps
from spark_source.writing.plan import WritePlan

KINDS = ("insert", "update_preimage", "update_postimage", "delete")


def plan(
    key: tuple[str, ...] = ("k",), change_type: str | None = "_change_type", *, of_log: bool = True
) -> WritePlan:
    """Of a table of the columns k, v and w, the last of which no DataFrame here has."""
    return WritePlan(7, key, ("k", "v"), (pa.field("w", pa.int8()),), change_type, of_log)


def batch(
    rows: Sequence[tuple[object, object, str | None]], key: pa.DataType | None = None
) -> pa.RecordBatch:
    """Rows of key, value and kind."""
    return pa.record_batch(
        {
            "k": pa.array([row[0] for row in rows], key or pa.int64()),
            "v": pa.array([row[1] for row in rows], pa.int64()),
            "_change_type": pa.array([row[2] for row in rows], pa.string()),
        }
    )


def applied(table: dict[object, object], done: list[Step]) -> dict[object, object]:
    """The table after these steps."""
    table = dict(table)
    for operation, rows in done:
        for row in rows.to_pylist():
            if operation is Operation.DELETE:
                table.pop(row["k"], None)
            else:
                assert row["w"] is None
                table[row["k"]] = row["v"]
    return table


def test_whole_rows() -> None:
    """Without change kinds every row is upserted, in the table's columns, the absent ones null."""
    rows = pa.record_batch({"v": [1, 2], "k": [3, 3], "x": ["not", "written"]})
    (step,) = steps(rows, plan(change_type=None))
    assert step.operation is Operation.UPSERT
    assert step.rows.to_pylist() == [{"k": 3, "v": 1, "w": None}, {"k": 3, "v": 2, "w": None}]
    assert step.rows.schema.field("w").type == pa.int8()


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 99), st.sampled_from(KINDS)), max_size=30),
    st.sampled_from([pa.int64(), pa.string(), pa.float64(), pa.decimal128(9, 2), pa.binary()]),
    st.booleans(),
)
def test_changes_in_any_order(rows: list[tuple[int, int, str]], kind: pa.DataType, of_log: bool) -> None:
    """Whatever the changes and the key's type, the steps leave the table as the changes do, one by one.

    Where they are not of a log of ours, rows before an update do nothing: they may come behind those after it.
    """

    def key(number: int) -> object:
        if pa.types.is_floating(kind):
            return float(number)
        if pa.types.is_decimal(kind):
            return Decimal(number)
        return {pa.string(): str(number), pa.binary(): bytes([number])}.get(kind, number)

    before: dict[object, object] = {key(number): -1 for number in range(3)}
    expected = dict(before)
    for number, value, change in rows:
        if change == "update_preimage" and not of_log:
            continue
        if change in ("delete", "update_preimage"):
            expected.pop(key(number), None)
        else:
            expected[key(number)] = value
    changes = [(key(number), value, change) for number, value, change in rows]
    done = list(steps(batch(changes, kind), plan(of_log=of_log)))
    assert applied(before, done) == expected
    assert all(step.rows.num_rows for step in done)
    if kind != pa.float64():
        assert [step.operation for step in done] in (
            [],
            [Operation.UPSERT],
            [Operation.DELETE],
            [Operation.DELETE, Operation.UPSERT],
        )


def test_deletes_have_keys_alone() -> None:
    """A delete goes by the key columns, in key order, whatever the others hold."""
    rows = pa.record_batch({"b": [1], "a": [2], "v": [None], "_change_type": ["delete"]})
    (step,) = steps(rows, WritePlan(7, ("a", "b"), ("b", "a", "v"), (), "_change_type"))
    assert step == Step(Operation.DELETE, pa.record_batch({"a": [2], "b": [1]}))


@pytest.mark.parametrize(
    "key", [("b", ".b"), (".b", "b"), ("[1]", "a"), (".none",), ("row", "0"), ("row_max",)]
)
def test_key_columns_of_any_name(key: tuple[str, ...]) -> None:
    """Rows of different keys are all written, whatever the key's columns are called."""
    columns = [[1, 1, 1, 1], [1, 2, 1, 2]][-len(key) :]
    rows = pa.record_batch([*columns, ["insert"] * 4], [*key, "_change_type"])
    (step,) = steps(rows, WritePlan(7, key, key, (), "_change_type"))
    assert step.rows.column(key[-1]).to_pylist() == [1, 2]


def test_floats_that_may_be_one_key() -> None:
    """0.0 and -0.0, and two NaNs, are left to the server in their order: nothing is taken for another."""
    rows = [(0.0, 1, "insert"), (-0.0, 2, "delete"), (float("nan"), 3, "insert"), (float("nan"), 4, "insert")]
    done = list(steps(batch(rows, pa.float64()), plan()))
    assert [(step.operation.name, step.rows.num_rows) for step in done] == [
        ("UPSERT", 1),
        ("DELETE", 1),
        ("UPSERT", 2),
    ]


def test_updates_of_float_keys_are_one_run() -> None:
    """A row before an update goes with the one after it; without that one it is deleted, and in its place."""
    rows = [
        (1.0, 1, "update_preimage"),
        (1.0, 2, "update_postimage"),
        (-0.0, 1, "update_preimage"),
        (0.0, 2, "update_postimage"),
        (2.0, 1, "update_preimage"),
        (3.0, 2, "update_postimage"),
        (4.0, 1, "update_preimage"),
    ]
    done = [
        (step.operation.name, step.rows["k"].to_pylist()) for step in steps(batch(rows, pa.float64()), plan())
    ]
    assert done == [("UPSERT", [1.0, 0.0]), ("DELETE", [2.0]), ("UPSERT", [3.0]), ("DELETE", [4.0])]


@pytest.mark.parametrize(
    ("kind", "shown"), [("upsert", "'upsert'"), ("", "''"), ("DELETE", "'DELETE'"), (None, "null")]
)
def test_kinds_that_are_not_known(kind: str | None, shown: str) -> None:
    """A kind of change that is not known is refused with its value, and nothing is done of its batch."""
    with pytest.raises(
        SourceDataError, match=f"a change of kind {shown} is not known: it is one of insert, "
    ):
        next(steps(batch([(1, 1, "insert"), (2, 2, kind)]), plan()))


@given(st.lists(st.integers(0, 40), max_size=12), st.integers(1, 400))
def test_gathered(sizes: list[int], batch_bytes: int) -> None:
    """Gathering keeps every row in its order; every batch but the last has the bytes that were asked for."""
    numbers = iter(range(10_000))
    batches = [
        pa.record_batch({"k": pa.array([next(numbers) for _ in range(size)], pa.int64())}) for size in sizes
    ]
    found = list(gathered(iter(batches), batch_bytes))
    assert [row for each in found for row in each["k"].to_pylist()] == list(range(sum(sizes)))
    assert all(each.num_rows for each in found)
    assert all(each.nbytes >= batch_bytes for each in found[:-1])


def test_a_batch_that_is_large_enough_is_not_copied() -> None:
    """A batch of the size that is wanted is passed on as it is."""
    given = pa.record_batch({"k": range(100)})
    (found,) = gathered([given], 100)
    assert found is given
