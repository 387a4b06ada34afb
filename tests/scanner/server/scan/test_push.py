"""What the request side of a push scan says, as a pure state machine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.errors import ArgumentInvalid, CreditInvalid
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.server.scan.push_requests import RequestSide
from transport import SendCredit

LIMIT_MAX = 2**63 - 1


def demand(limit: int) -> bytes:
    """A demand, as it arrives."""
    return pb.ScanRequest(demand=pb.Demand(bytes_limit=limit)).SerializeToString()


@given(st.lists(st.integers(0, LIMIT_MAX), min_size=1))
def test_the_limit_is_the_highest_demand(limits: list[int]) -> None:
    """Lost, repeated and reordered demands cannot change what is allowed in the end."""
    credit = SendCredit()
    side = RequestSide(credit)
    for limit in limits:
        side.receive(demand(limit))
    side.receive_end()

    assert credit.limit == max(limits)


def test_without_a_demand_half_closing_removes_the_limit() -> None:
    """Window-only mode begins with the half-close, not before."""
    credit = SendCredit()
    side = RequestSide(credit)
    limits = [credit.limit]
    side.receive_end()
    limits.append(credit.limit)

    assert limits == [0, None]
    assert side.half_closed


def test_a_demand_of_nothing_is_a_demand() -> None:
    """A client that demands 0 bytes and half-closes gets no batch."""
    credit = SendCredit()
    side = RequestSide(credit)
    side.receive(demand(0))
    side.receive_end()

    assert credit.limit == 0


def test_a_demand_past_what_can_be_counted_is_refused() -> None:
    """2^63 - 1 is allowed, 2^63 is not, and changes nothing."""
    credit = SendCredit()
    side = RequestSide(credit)
    side.receive(demand(LIMIT_MAX))
    with pytest.raises(CreditInvalid):
        side.receive(demand(LIMIT_MAX + 1))

    assert credit.limit == LIMIT_MAX


def test_a_drain_is_remembered() -> None:
    """Draining begins with the message and does not end."""
    side = RequestSide(SendCredit())
    side.receive(pb.ScanRequest(drain=pb.Drain()).SerializeToString())
    side.receive(demand(1))

    assert side.draining


def test_a_long_request_is_not_read() -> None:
    """A demand is short; what is not holds millions of messages, which would be parsed while everybody waits."""
    side = RequestSide(SendCredit())
    with pytest.raises(ArgumentInvalid, match="65537 octets is too large"):
        side.receive(bytes(65_537))


@given(st.binary())
def test_random_bytes_parse_or_raise_one_error(data: bytes) -> None:
    """Whatever a client sends, it is understood or refused by type."""
    try:
        RequestSide(SendCredit()).receive(data)
    except (ArgumentInvalid, CreditInvalid):
        return
