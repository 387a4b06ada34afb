"""The scan builder: immutable, and strict about what the table's description can refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from scanner.client.scan.builder import ScanBuilder
from scanner.client.scan.expressions import Condition, col, parse_where
from scanner.client.scan.plan import ScanMode, ScanPlan, ScanSource
from scanner.data.filters import Operator, Predicate
from scanner.data.keys import KeyCodec, KeyRange, prefix_end
from scanner.data.table import TableDescription
from scanner.errors import ArgumentInvalid, BucketNotFound, ColumnNotFound, KeyInvalid, SchemaMismatch
from tests.support.python_calls import counted_calls

TABLE = TableDescription(
    name="flights",
    schema=pa.schema(
        [("carrier", pa.string()), ("flight", pa.int64()), ("delay", pa.float64()), ("day", pa.date32())]
    ),
    primary_key=("carrier", "flight"),
    buckets=4,
)


class Builder(ScanBuilder):
    def _derive(self, plan: ScanPlan) -> Builder:
        return Builder(plan)


@pytest.fixture
def scan() -> Builder:
    """A scan of everything."""
    return Builder(ScanPlan(table=TABLE))


def test_scan_of_everything_by_default(scan: Builder) -> None:
    """Without being told otherwise, a scan pushes every column and row of every bucket, live."""
    plan = scan.plan
    assert (plan.source, plan.mode, plan.buckets) == (ScanSource.LIVE_KV, ScanMode.PUSH, (0, 1, 2, 3))
    assert plan.credit_bytes is None
    assert (plan.page_depth, plan.page_bytes) == (1, 4 << 20)
    assert scan.schema == TABLE.schema


def test_each_step_returns_a_new_scan(scan: Builder) -> None:
    """A builder method leaves the scan that it is called on as it was."""
    narrowed = scan.select("delay").where(col("delay") > 5).limit(3)
    assert narrowed.plan.columns == ("delay",)
    assert narrowed.plan.row_limit == 3
    assert scan.plan == ScanPlan(table=TABLE)


def test_a_plan_has_a_hash_and_a_scan_a_name(scan: Builder) -> None:
    """Equal plans have equal hashes, with offsets and histories by bucket, too; a scan shows what it reads."""
    plans = [scan.as_of({0: 3}, {0: b"history"}).plan for _ in range(2)]
    assert plans[0] == plans[1]
    assert len({*plans, scan.plan, scan.select("delay").plan}) == 3
    assert repr(scan) == "<Builder of flights: live_kv by push, all columns>"
    shown = scan.with_source("log").with_mode("fetch").select("delay", "day")
    assert repr(shown) == "<Builder of flights: log by fetch, delay, day>"


def test_columns_keep_the_order_asked_for(scan: Builder) -> None:
    """A projection delivers columns in the order of the call."""
    assert scan.select("delay", "carrier").schema.names == ["delay", "carrier"]


def test_unknown_column_is_told_with_the_nearest_and_the_known_ones(scan: Builder) -> None:
    """A mistyped column is refused at once, with a suggestion and the list."""
    with pytest.raises(ColumnNotFound, match=r"'delya'.*did you mean 'delay'.*carrier, flight, delay, day"):
        scan.select("delya")
    with pytest.raises(ColumnNotFound, match="'gate'"):
        scan.where(col("gate") == 1)


def test_of_many_columns_the_nearest_is_told_and_how_many_there_are() -> None:
    """A table may have thousands, whose names nobody reads in a line."""
    schema = pa.schema([(f"measure_{each}", pa.int64()) for each in range(1000)])
    wide = TableDescription(name="wide", schema=schema, primary_key=("measure_0",), buckets=1)
    with pytest.raises(ColumnNotFound, match=r"did you mean 'measure_777'\?.*measure_19 and 980 more$"):
        Builder(ScanPlan(table=wide)).select("measurre_777")


@pytest.mark.parametrize("columns", [(), ("delay", "delay")])
def test_senseless_projection_is_refused(scan: Builder, columns: tuple[str, ...]) -> None:
    """No column at all, or one twice, is no projection."""
    with pytest.raises(ArgumentInvalid):
        scan.select(*columns)


@pytest.mark.parametrize(
    ("condition", "operator", "literals"),
    [
        (col("flight") == 5, Operator.EQUAL, (5,)),
        (col("flight") != 5, Operator.NOT_EQUAL, (5,)),
        (col("flight") < 5, Operator.LESS, (5,)),
        (col("flight") <= 5, Operator.LESS_OR_EQUAL, (5,)),
        (col("flight") > 5, Operator.GREATER, (5,)),
        (col("flight") >= 5, Operator.GREATER_OR_EQUAL, (5,)),
        (col("flight").isin([5, 6]), Operator.IN, (5, 6)),
        (col("flight").is_null(), Operator.IS_NULL, ()),
        (col("flight").is_not_null(), Operator.IS_NOT_NULL, ()),
    ],
)
def test_comparison_becomes_a_predicate(
    scan: Builder, condition: Condition, operator: Operator, literals: tuple[int, ...]
) -> None:
    """Every comparison of a column is one predicate."""
    assert scan.where(condition).plan.predicates == (Predicate("flight", operator, literals),)


def test_a_column_may_have_no_name() -> None:
    """A table can have one, as of the index that pandas writes into a CSV, and conditions as text name it."""
    assert (col("") == 5) == parse_where('"" = 5')


def test_conditions_are_all_joined(scan: Builder) -> None:
    """`&`, several arguments and several calls all mean: and."""
    first, second, third = col("flight") > 1, col("flight") < 9, col("carrier") == "UA"
    joined = scan.where(first & second & third).plan
    assert (
        joined == scan.where(first, second, third).plan == scan.where(first).where(second).where(third).plan
    )


def test_a_condition_is_checked_once(scan: Builder) -> None:
    """A call of `where` looks at its own conditions alone, however many were given by calls before it."""
    condition = col("flight") > 1
    many = scan.where(*(col("flight") > each for each in range(50)))
    assert counted_calls(lambda: many.where(condition)) == counted_calls(lambda: scan.where(condition))


def test_alternatives_and_opposites(scan: Builder) -> None:
    """`|` and `~` make trees, flat where they can be; `between` and `startswith` are comparisons like the others."""
    low, high, name = col("flight") < 1, col("flight") > 9, col("carrier").startswith("U")
    (either,) = (low | high | name).predicates
    assert either.operator is Operator.OR
    assert either.operands == low.predicates + high.predicates + name.predicates
    (opposite,) = (~(low & name)).predicates
    assert opposite.operator is Operator.NOT
    assert opposite.operands[0].operator is Operator.AND
    assert (~~low) == low
    assert col("flight").between(1, 9).predicates == ((col("flight") >= 1) & (col("flight") <= 9)).predicates
    assert scan.where(low | name).where(~high).plan.predicates == (low | name).predicates + (~high).predicates


def test_conditions_are_bounded_in_depth(scan: Builder) -> None:
    """A tree that is deeper than a server reads is refused where it is made."""
    condition = col("flight") > 1
    with pytest.raises(ArgumentInvalid, match="32 levels"):
        for _ in range(20):
            condition = ~(condition & (col("delay") > 1))


def test_text_says_the_same_as_columns(scan: Builder) -> None:
    """`where` takes text, whose columns must exist like all others."""
    text = "flight > 1 and (delay between 1 and 5 or carrier like 'U%') and not (carrier in ('AA', 'B6'))"
    said = (
        (col("flight") > 1)
        & (col("delay").between(1, 5) | col("carrier").startswith("U"))
        & ~col("carrier").isin(["AA", "B6"])
    )
    assert scan.where(text).plan == scan.where(said).plan == scan.where(parse_where(text)).plan
    with pytest.raises(ColumnNotFound, match=r"'delya'.*did you mean 'delay'"):
        scan.where("flight > 1 or not (delya > 1)")


def test_what_conditions_cannot_say_is_refused_with_a_way_out(scan: Builder) -> None:
    """`and` and comparing columns are refused where they are written, never silently dropped."""
    left, right = col("flight") > 1, col("delay") > 1
    with pytest.raises(ArgumentInvalid, match="&"):
        scan.where(left and right)
    with pytest.raises(ArgumentInvalid, match="another column"):
        col("flight") == col("delay")  # noqa: B015
    with pytest.raises(ArgumentInvalid, match="list"):
        col("carrier").isin("UA")
    with pytest.raises(ArgumentInvalid, match="starts with str"):
        col("carrier").startswith(1)  # type: ignore[arg-type]
    with pytest.raises(ArgumentInvalid, match="or text"):
        scan.where(1)  # type: ignore[arg-type]


def test_value_that_does_not_fit_its_column_is_refused(scan: Builder) -> None:
    """A comparison with a value of another kind fails where it is written, not at the server."""
    with pytest.raises(ArgumentInvalid, match="flight"):
        scan.where(col("flight") == "many")


@pytest.mark.parametrize("mode", ["push", "session", ScanMode.SESSION, "PUSH"])
def test_mode_by_name_or_member(scan: Builder, mode: str) -> None:
    """Modes are taken as members or names in any case."""
    assert isinstance(scan.with_mode(mode).plan.mode, ScanMode)


def test_unknown_mode_lists_the_known_ones(scan: Builder) -> None:
    """A mode or source that does not exist is refused with those that do."""
    with pytest.raises(ArgumentInvalid, match="push, session, token, cursor, asof, fetch"):
        scan.with_mode("pull")
    with pytest.raises(ArgumentInvalid, match="live_kv, snapshot, log, hybrid"):
        scan.with_source("disk")


@pytest.mark.parametrize("rows", [-1, 1.5, True, 2**64, "3"])
def test_senseless_limit_is_refused(scan: Builder, rows: object) -> None:
    """A limit is a whole number from 0."""
    with pytest.raises(ArgumentInvalid, match="limit"):
        scan.limit(rows)  # type: ignore[arg-type]


def test_bounds_of_credit_pages_and_buckets(scan: Builder) -> None:
    """Credit and page size start at 1, the depth at 0, and a bucket must exist."""
    assert scan.with_credit(1).with_page_bytes(1).with_page_depth(0).bucket(3).plan.buckets == (3,)
    with pytest.raises(ArgumentInvalid, match="credit"):
        scan.with_credit(0)
    with pytest.raises(ArgumentInvalid, match="a number of bytes or 'auto', not 'much'"):
        scan.with_credit("much")
    assert scan.with_credit(1).with_credit("auto").plan.credit_bytes is None
    with pytest.raises(ArgumentInvalid, match="page size"):
        scan.with_page_bytes(0)
    with pytest.raises(ArgumentInvalid, match="page depth"):
        scan.with_page_depth(-1)
    with pytest.raises(BucketNotFound, match=r"0\.\.3"):
        scan.bucket(4)


def test_offset_of_all_or_of_each_bucket(scan: Builder) -> None:
    """as_of takes one offset, or a dict that names every bucket that is scanned."""
    assert [scan.plan.as_of_bucket(bucket) for bucket in range(4)] == [None] * 4
    assert [scan.as_of(0).plan.as_of_bucket(bucket) for bucket in range(4)] == [0] * 4
    offsets = {2: 7, 0: 5}
    plan = scan.as_of(offsets).plan
    offsets[0] = 6
    assert (plan.as_of_bucket(0), plan.as_of_bucket(2)) == (5, 7)
    with pytest.raises(ArgumentInvalid, match="nothing of bucket 1"):
        plan.as_of_bucket(1)


@pytest.mark.parametrize("offset", [-1, 2**64, "3", 1.5, {4: 1}, {-1: 1}, {0: -1}, {"0": 1}, {0: None}])
def test_senseless_offset_is_refused(scan: Builder, offset: object) -> None:
    """An offset is a whole number from 0, of a bucket that the table has."""
    with pytest.raises(ArgumentInvalid, match="as_of"):
        scan.as_of(offset)  # type: ignore[arg-type]


def test_whole_numbers_of_numpy_are_whole_numbers(scan: Builder) -> None:
    """As they come out of an array: limits, buckets and offsets; what is in the plan is Python's."""
    numbers: Any = np.arange(1, 3)
    one, two = numbers
    plan = scan.limit(two).bucket(one).as_of({one: two}).plan
    assert (plan.row_limit, plan.buckets, plan.as_of_bucket(1)) == (2, (1,), 2)
    assert {type(each) for each in (plan.row_limit, *plan.buckets, plan.as_of_bucket(1))} == {int}
    senseless: Any
    for senseless in (np.float64(1), np.bool_(True), np.arange(3)):
        with pytest.raises(ArgumentInvalid, match="limit"):
            scan.limit(senseless)


@pytest.mark.parametrize("histories", [[b"x"], [], {0: "x"}, {0: None}, {"0": b"x"}, {99: b"x"}])
def test_senseless_histories_are_refused(scan: Builder, histories: object) -> None:
    """They are told by bucket, as octets."""
    with pytest.raises(ArgumentInvalid, match="histor"):
        scan.as_of(1, histories)  # type: ignore[arg-type]


def test_retries_and_forced_cuts(scan: Builder) -> None:
    """Retries start at 0 and are the client's if nothing is said; a forced cut comes after a batch at the earliest."""
    assert (scan.plan.retries, scan.plan.resume_every_batches) == (None, None)
    plan = scan.with_retries(0).resume_every_batches(1).plan
    assert (plan.retries, plan.resume_every_batches) == (0, 1)
    with pytest.raises(ArgumentInvalid, match="retries"):
        scan.with_retries(-1)
    with pytest.raises(ArgumentInvalid, match="batches"):
        scan.resume_every_batches(0)


def test_a_lease_whose_id_is_no_text_is_refused(scan: Builder) -> None:
    """It could not be sent."""
    with pytest.raises(ArgumentInvalid, match="no Unicode text"):
        scan.with_lease("\udcff")


def test_key_range_by_tuple_and_by_name(scan: Builder) -> None:
    """A range takes prefixes of the key as tuples or dicts, and encodes them in key order."""
    codec = KeyCodec(TABLE)
    plan = scan.key_range(("AA",), {"flight": 7, "carrier": "UA"}).plan
    assert plan.key_range == (codec.encode(["AA"]), codec.encode(["UA", 7]))
    assert scan.key_range(end=("B",)).plan.key_range.start == b""
    prefix = codec.encode(["AA"])
    assert scan.key_prefix(("AA",)).plan.key_range == (prefix, prefix_end(prefix))


@pytest.mark.parametrize("end", [(), {}])
def test_key_range_that_ends_with_no_values_has_no_keys(scan: Builder, end: object) -> None:
    """A prefix without values stands before every key; as an end that is not the same as none."""
    least = KeyCodec(TABLE).encode(["", -(2**31)])
    assert b"" < scan.key_range(end=end).plan.key_range.end <= least  # type: ignore[arg-type]
    assert scan.key_range((), None).plan.key_range == KeyRange()


@pytest.mark.parametrize("prefix", [{"flight": 7}, ("AA", 1, 2), "AA", 5])
def test_key_range_that_is_no_prefix_is_refused(scan: Builder, prefix: object) -> None:
    """A range can only begin with the first key column."""
    with pytest.raises(ArgumentInvalid):
        scan.key_range(prefix)  # type: ignore[arg-type]


def test_key_range_with_a_value_of_another_type_is_refused(scan: Builder) -> None:
    """The values of a range must fit the key columns."""
    with pytest.raises((KeyInvalid, SchemaMismatch)):
        scan.key_range(("AA", "seven"))
