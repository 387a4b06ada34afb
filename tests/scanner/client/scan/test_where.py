"""Conditions as text: what is understood, what it means, and that everything else is refused whole."""

from __future__ import annotations

import subprocess
import sys
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.client.scan.expressions import Condition, col, parse_where
from scanner.client.scan.where import _Where
from scanner.data.literals import Temporal
from scanner.errors import ArgumentInvalid

if TYPE_CHECKING:
    from scanner.data.filters import LiteralValue

A, B, C = col("a"), col("b"), col("c")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = 1", A == 1),
        ("a == -1", A == -1),
        ("a <> 1", A != 1),
        ("a!=1", A != 1),
        ("1 < a", A > 1),
        ("'if' = a", A == "if"),
        ("(1) >= (a)", A <= 1),
        ("a = 0.5", Decimal("0.5") == A),
        ("a = -1.50e3", Decimal("-1.50e3") == A),
        ("a = 99999999999999999999", A == 99999999999999999999),
        ("a = 'it''s'", A == "it's"),
        ("a = 'x\\n'", A == "x\\n"),
        ("a = '-- no comment; /* nor this */'", A == "-- no comment; /* nor this */"),
        ("a = X'00fF'", A == b"\x00\xff"),
        ("a = x''", A == b""),
        ("a = true AND b = FALSE", (A == True) & (B == False)),  # noqa: E712
        ("a >= DATE '2013-07-01'", Temporal("2013-07-01") <= A),
        ("a < TIMESTAMP '2013-07-01 12:00:00.123456789+02'", Temporal("2013-07-01 12:00:00.123456789+02") > A),
        ("a is null", A.is_null()),
        ("a is not null", A.is_not_null()),
        ("not a is null", A.is_not_null()),
        ("a in (1, 'x')", A.isin([1, "x"])),
        ("a not in (1)", ~A.isin([1])),
        ("a like 'x%'", A.startswith("x")),
        ("a like '%'", A.startswith("")),
        ("a not like 'x%'", ~A.startswith("x")),
        ("a between 1 and 2 and b = 1", A.between(1, 2) & (B == 1)),
        ("a not between 1 and 2", ~A.between(1, 2)),
        ("a = 1 or b = 2 and c = 3", (A == 1) | ((B == 2) & (C == 3))),
        ("(a = 1 or b = 2) and c = 3", ((A == 1) | (B == 2)) & (C == 3)),
        ("not a = 1 and b = 2", ~(A == 1) & (B == 2)),
        ("not (a = 1 and b = 2)", ~((A == 1) & (B == 2))),
        ("a = 1 or (b = 2 or c = 3)", (A == 1) | (B == 2) | (C == 3)),
        ('"a b" = 1', col("a b") == 1),
        ('"say ""hi""" = 1', col('say "hi"') == 1),
        ("date = 1 and timestamp > 2 and order = 3", (col("date") == 1) & (col("timestamp") > 2) & (col("order") == 3)),
        ("Ä = 1", col("Ä") == 1),
        ("a\n=\t1", A == 1),
    ],
)  # fmt: skip
def test_what_is_understood(text: str, said: Condition) -> None:
    """Each form says the same as the one that is written in Python."""
    found = parse_where(text)
    assert found == said
    kinds = [[type(value) for leaf in each.leaves() for value in leaf.literals] for each in found.predicates]
    assert kinds == [[type(v) for leaf in each.leaves() for v in leaf.literals] for each in said.predicates]


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("", "an empty condition"),
        (" ", "an empty condition"),
        ("item = boat or id = 2", "item = boat'; boat on this side is no value; if it is text, quote it: 'boat'"),
        ("origin = JFK", "quote it: 'JFK'"),
        ('item = "boat"', "not compared with each other; text is in single quotes"),
        ("item = rowing boat", "'boat' behind 'item = rowing'"),
        ("item = null", "use is null"),
        ("item != null", "use is null"),
        ("item in ('a', null)", "use is null"),
        ("item between null and 5", "use is null"),
        ("item is 5", "did not understand"),
        ("item is true", "is goes with null"),
        ("item is not true", "is goes with null"),
        ("item is distinct from 5", "did not understand"),
        ("sold", "write sold = true"),
        ("a = 1 and sold", "write sold = true"),
        ("not sold", "write sold = true"),
        ("true", "did not understand"),
        ("a = 1 or true", "did not understand"),
        ("1 = 1", "a column is compared with a value"),
        ("1 < a < 5", "a column is compared with a value"),
        ("a = 1 = true", "a column is compared with a value"),
        ("a = 1 is null", "is no value"),
        ("a + 1 = 2", "a column is compared with a value"),
        ("a = 1 + 1", "is no value"),
        ("a = - -1", "is no value"),
        ("a = -b", "is no value"),
        ("a = -'1'", "is no value"),
        ("upper(a) = 'X'", "a column is compared with a value"),
        ("a = now()", "is no value"),
        ("a = 2013-01-01", "is no value"),
        ("a = 0x1f", "decimal digits"),
        ("a = X'0'", "even number"),
        ("a = X'zz'", "a character makes no sense"),
        ("a = N'x'", "is no value"),
        ("a = E'x'", "behind"),
        ("a = 1_000", "behind 'a = 1'"),
        ("a = 'x' 'y'", "is no value"),
        ("a = 'x", "a quote is not closed"),
        ("a = $1", "no value"),
        ("a = ?", "is no value"),
        (":a = 1", "a column is compared with a value"),
        ("a.b = 1", 'double quotes: "a.b"'),
        ("a = b.c", "is no value"),
        ("a like 'x'", "one % behind it"),
        ("a like '%x'", "one % behind it"),
        ("a like 'a_b%'", "one % behind it"),
        ("a like 'a%b%'", "one % behind it"),
        ("a like 'a\\%'", "one % behind it"),
        ("a like 5", "one % behind it"),
        ("a like 'x!%' escape '!'", "did not understand"),
        ("a like any ('x%')", "is no value"),
        ("a ilike 'x%'", "did not understand"),
        ("a rlike 'x'", "did not understand"),
        ("a in ()", "list of values"),
        ("a in 1", "did not understand"),
        ("a in (b)", "quote it: 'b'"),
        ("a in (select 1)", "did not understand"),
        ("a in ((1, 2))", "is no value"),
        ("a in unnest(b)", "did not understand"),
        ("a in (1,,2)", "did not understand ',,'"),
        ("a in (, 1)", "did not understand '(,'"),
        ("a in (1, )", "did not understand ', )'"),
        ("a in [, 1]", "did not understand '[,'"),
        ("a in [1,]", "did not understand ',]'"),
        ("a in (+, 1)", "did not understand '+,'"),
        ("a in (1, +)", "did not understand '+)'"),
        ("a between symmetric 1 and 2", "did not understand"),
        ("b = 1 and a between 1 2", "between LOW and HIGH"),
        ("a not is null", "did not understand 'not is'"),
        ("! a = 1", "write not"),
        ("a ! in (1)", "write not"),
        ("a between 1 and b", "quote it: 'b'"),
        ("a = 1 -- or b = 2", "behind"),
        ("a = 1 /* x */", "behind"),
        ("a /*+ x */ = 1", "behind"),
        ("a = 1 # x", "behind"),
        ("a = 1; b = 2", "did not understand ';'"),
        ("a = 1;", "did not understand ';'"),
        ("a = 1 ;\n;", "did not understand ';'"),
        ("a = 1 b", "'b' behind 'a = 1'"),
        ("a = 1 or", "behind"),
        ("a = 1)", "behind"),
        ("(a = 1", "behind"),
        ("a = 1 xor b = 2", "behind"),
        ("a = 1 limit 5", "behind"),
        ("if = 1", "did not understand 'if = 1'"),
        ("IF(a = 1, b = 1, c = 1)", "did not understand 'IF("),
        ("a = 1 order by b", "behind"),
        ("a as b", "behind"),
        ("select 1", "select"),
        ("exists (select 1)", "did not understand"),
        ("a = cast(1 as int)", "is no value"),
        ("a = 1::int", "is no value"),
        ("a = DATE '2013-07-01 12:00'", "no date alone"),
        ("a = DATE '2013-02-29'", "no date or timestamp"),
        ("a = DATE 'tomorrow'", "no date or timestamp"),
        ("a = TIMESTAMP(3) '2013-07-01 12:00:00.123456'", "did not understand"),
        ("a = DATE '2013-07-01' + 1", "is no value"),
        ("a = INTERVAL '1' day", "is no value"),
        ("a at time zone 'UTC' = 1", "a column is compared with a value"),
        ("(a, b) = (1, 2)", "a column is compared with a value"),
        ("a || b = 'x'", "a column is compared with a value"),
        ("a -> 'b' = 1", "a column is compared with a value"),
        ("a[0] = 1", "did not understand"),
        ("* = 1", "a column is compared with a value"),
        ("case when a = 1 then true end", "did not understand"),
        ("a = 1e99999", "no number that can be compared"),
        ("a = '\udcff'", "no Unicode text"),
        ("a = " + "1" * 5000, "no number that can be compared"),
        ("a = 1 and " * 30_000 + "a = 1", "too long"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused_in_one_line(
    text: str, mistake: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is left out or guessed: the line shows what was not understood, and what to write."""
    with pytest.raises(ArgumentInvalid) as refused:
        parse_where(text)
    assert not caplog.records
    assert mistake in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 700


@pytest.mark.parametrize(
    "text",
    [
        "(" * 5000 + "a = 1" + ")" * 5000,
        "a = " + "{" * 20_000,
        "case when " * 5000 + "a = 1",
        "map<int," * 5000,
        "not " * 5000 + "a = 1",
        "a = " + "-" * 5000 + "1",
    ],
)
def test_deep_nesting_is_refused(text: str) -> None:
    """Depth costs neither the stack nor much time."""
    with pytest.raises(ArgumentInvalid, match=r"nested too deeply|no value"):
        parse_where(text)


def test_long_chains_are_flat() -> None:
    """Many alternatives are one predicate, however long the text is."""
    (found,) = parse_where(" or ".join(f"a = {number}" for number in range(3000))).predicates
    assert len(found.operands) == 3000
    assert found.depth == 2


VALUES: st.SearchStrategy[LiteralValue] = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.decimals(allow_nan=False, allow_infinity=False, places=4),
    st.text(),
    st.binary(),
)


@given(st.text(min_size=1), VALUES)
def test_every_name_and_value_can_be_written(name: str, value: LiteralValue) -> None:
    """Quoted as SQL does it, any name and any text come through unchanged."""
    quoted = '"' + name.replace('"', '""') + '"'
    match value:
        case str():
            written = "'" + value.replace("'", "''") + "'"
        case bytes():
            written = f"X'{value.hex()}'"
        case _:
            written = str(value)
    assert parse_where(f"{quoted} = {written}") == (col(name) == value)


WORDS = "a b = <> < >= 1 -2.5 'x' true and not in ( ) , like 'x%' is null between or".split()


@given(
    st.text("ab =<>!()'\"%_,.;-/*+0123456789xXnotadriskelbwu\\\n:$?[]{}#@", max_size=24)
    | st.lists(st.sampled_from(WORDS), max_size=7).map(" ".join)
    | st.lists(st.sampled_from(["a = 1", "b is null", "a in (1, 'x')", "not", "or"]), max_size=3).map(
        " and ".join
    )
)
def test_any_text_is_understood_or_refused(text: str) -> None:
    """Whatever is typed, the answer is a condition or one line."""
    try:
        found = parse_where(text)
    except ArgumentInvalid as error:
        assert "\n" not in error.message  # noqa: PT017
    else:
        assert found.predicates


def test_the_parser_is_sqlglots_own() -> None:
    """Where sqlglot is compiled (`sqlglot[c]`), a parser of a class derived from its own cannot be made."""
    assert _Where.parser_class.__module__.startswith("sqlglot.")


def test_the_parser_is_loaded_by_those_who_need_it_alone() -> None:
    """Neither the clients nor the server import sqlglot."""
    program = (
        "import sys, scanner.sync, scanner.server.server;"
        " print(any(name.startswith('sqlglot') for name in sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"


@pytest.mark.parametrize("text", ["v" * 100_000, "v = 1 " + "w" * 100_000, "v = " + "w" * 100_000])
def test_a_long_condition_is_not_repeated_in_full(text: str) -> None:
    """Its beginning is enough to know it by."""
    with pytest.raises(ArgumentInvalid) as refused:
        parse_where(text)
    assert len(refused.value.message) < 1_000
