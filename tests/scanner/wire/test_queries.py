"""Queries from a peer: what is too much costs no more than it takes to see that."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from scanner.errors import ArgumentInvalid
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.proto.weir.v1 import tables_pb2, transactions_pb2
from scanner.wire.fields import require_few_fields
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


LONG = 20_000
ROWS = transactions_pb2.StageRequest.ROWS_FIELD_NUMBER
EMPTY_ROWS = bytes([ROWS << 3 | 2, 0])


def inside_rows(octets: bytes) -> bytes:
    """A message of one field, which is not in order if that is to be so long."""
    assert 2**14 <= len(octets) < 2**21
    size = bytes([len(octets) & 0x7F | 0x80, len(octets) >> 7 & 0x7F | 0x80, len(octets) >> 14])
    return EMPTY_ROWS[:1] + size + octets


@pytest.mark.parametrize(
    "message",
    [
        EMPTY_ROWS * LONG,
        bytes([9 << 3, 1]) * LONG,  # numbers
        bytes([9 << 3 | 1, *bytes(8)]) * LONG,
        bytes([9 << 3 | 5, *bytes(4)]) * LONG,
        bytes([9 << 3 | 3, 9 << 3 | 4]) * LONG,  # groups
        inside_rows(bytes([9 << 3, 1]) * LONG),
        inside_rows(bytes([9 << 3, 1]) * 10_000 + b"\x0a") + EMPTY_ROWS * 64,  # One that ends in a field.
    ],
)
def test_a_long_request_of_many_fields_is_refused(message: bytes) -> None:
    """Before it is parsed, of whichever kinds they are."""
    with pytest.raises(ArgumentInvalid, match=rf"a request of {len(message)} octets has more than 64 fields"):
        require_few_fields(message, inside=ROWS)


@pytest.mark.parametrize(
    "message",
    [
        tables_pb2.WriteRequest(
            table="t", arrow_stream=bytes(LONG), writer_id=bytes(16), sequence=2**63
        ).SerializeToString(),
        transactions_pb2.StageRequest(
            rows=transactions_pb2.StageRows(arrow_stream=EMPTY_ROWS * LONG)
        ).SerializeToString(),
        EMPTY_ROWS * 100,  # It is short.
        bytes([9 << 3 | 2, 0xFF, 0xFF, 0x7F, *bytes(LONG)]),  # It ends in the middle of a field,
        bytes([9 << 3, *[0x80] * LONG]),  # or of a number.
    ],
)
def test_what_is_not_of_many_fields_is_left_to_the_parser(message: bytes) -> None:
    """What is long may be rows, and what is no message has an error of its own."""
    require_few_fields(bytearray(message), inside=ROWS)
