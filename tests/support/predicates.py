"""Hypothesis strategies for filters: literals of every kind, and trees of predicates on any columns."""

from __future__ import annotations

from hypothesis import strategies as st

from scanner.data.filters import LiteralValue, Operator, Predicate
from scanner.data.literals import Temporal

COMBINATIONS = (Operator.AND, Operator.OR, Operator.NOT)

_TEMPORALS = st.one_of(
    st.dates().map(lambda date: Temporal(date.isoformat())),
    st.datetimes().map(lambda moment: Temporal(moment.isoformat())),
    st.datetimes().map(lambda moment: Temporal(f"{moment.isoformat(' ')}+02:00")),
)
LITERALS: st.SearchStrategy[LiteralValue] = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    st.decimals(allow_nan=False, allow_infinity=False, places=3),
    _TEMPORALS,
)


@st.composite
def comparisons(draw: st.DrawFn) -> Predicate:
    """One comparison, of any column."""
    column = draw(st.text(max_size=5))
    operator = draw(st.sampled_from([each for each in Operator if each not in COMBINATIONS]))
    if operator in (Operator.IS_NULL, Operator.IS_NOT_NULL):
        return Predicate(column, operator)
    count_max = 4 if operator is Operator.IN else 1
    return Predicate(column, operator, tuple(draw(st.lists(LITERALS, min_size=1, max_size=count_max))))


def combined(operands: st.SearchStrategy[Predicate]) -> st.SearchStrategy[Predicate]:
    """Predicates that are made of others."""
    several = st.lists(operands, min_size=2, max_size=3).map(tuple)
    return st.one_of(
        operands.map(lambda operand: Predicate("", Operator.NOT, (), (operand,))),
        st.builds(Predicate, st.just(""), st.sampled_from([Operator.AND, Operator.OR]), st.just(()), several),
    )


PREDICATES = st.recursive(comparisons(), combined, max_leaves=6)
"""Trees of predicates."""
