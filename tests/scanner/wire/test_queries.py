"""Queries from a peer: what is too much costs no more than it takes to see that."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from scanner.errors import ArgumentInvalid
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.wire.queries import query_from_proto

NAMES = 1000
LEAF = pb.Predicate(column="a", operator=pb.Predicate.OPERATOR_IS_NULL)


class Name(str):
    """A string that counts how often strings of its kind are compared."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return super().__eq__(other)

    __hash__ = str.__hash__


class Unread(list[pb.Predicate]):
    """Predicates that may be counted, and not looked at."""

    def __iter__(self) -> Iterator[pb.Predicate]:
        raise AssertionError("they were looked at")


def query(**fields: Any) -> Any:
    """A message as it is read, with these fields."""
    return SimpleNamespace(table="t", bucket=0, **fields)


def test_a_column_that_comes_twice_behind_many_others_is_told_at_once() -> None:
    """Nothing is compared with all the others."""
    columns = [Name(index) for index in range(NAMES)] + [Name("a"), Name("a")]
    Name.compared = 0
    with pytest.raises(ArgumentInvalid, match="asks for column 'a' more than once"):
        query_from_proto(query(columns=columns), predicates_max=64, literals_max=100)
    assert Name.compared < 10 * NAMES


@pytest.mark.parametrize("nested", [False, True])
def test_a_filter_of_too_many_predicates_is_not_looked_through(*, nested: bool) -> None:
    """That there are too many is known from their number, on whichever level they are."""
    many = Unread([LEAF] * NAMES)
    predicates = [SimpleNamespace(operands=many, literals=[])] if nested else many
    with pytest.raises(ArgumentInvalid, match=rf"{NAMES + nested} predicates at least, and 64 are allowed"):
        query_from_proto(query(columns=[], filter=predicates), predicates_max=64, literals_max=100)


@pytest.mark.parametrize(
    ("predicates_max", "literals_max", "told"), [(3, 9, "4 predicates"), (4, 1, "2 literals")]
)
def test_predicates_and_literals_of_all_levels_count(
    predicates_max: int, literals_max: int, told: str
) -> None:
    """Two comparisons in an AND in a NOT are four predicates."""
    same = pb.Predicate(column="a", operator=pb.Predicate.OPERATOR_EQUAL, literals=[pb.Literal(integer=1)])
    both = pb.Predicate(operator=pb.Predicate.OPERATOR_AND, operands=[same, same])
    message = pb.ScanQuery(
        table="t", filter=[pb.Predicate(operator=pb.Predicate.OPERATOR_NOT, operands=[both])]
    )
    assert query_from_proto(message, predicates_max=4, literals_max=2).predicates
    with pytest.raises(ArgumentInvalid, match=f"the filter has {told}"):
        query_from_proto(message, predicates_max=predicates_max, literals_max=literals_max)
