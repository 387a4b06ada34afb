"""Scans that are opened and not fed, that find nothing, or whose credit makes no sense.

They need a table `abuse` with an int64 key `k`; `python -m bench abuse` and the tests make one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.attacks.attack import WIDE, Attack, call, open_call
from scanner.proto.weir.v1 import scanner_pb2 as pb
from tests.support import wire

if TYPE_CHECKING:
    from bench.attacks.peer import RawPeer

TABLE = "abuse"
CREDIT_MAX = 2**63 - 1
_NEVER = pb.Predicate(column="k", operator=pb.Predicate.OPERATOR_LESS, literals=[pb.Literal(integer=-1)])
_FETCH_HEADERS = wire.encode(call("/weir.v1.Scanner/FetchLog"))
_LATE_S = 0.6
"""An age at which the reset of a call is free, and no more than that."""


def open_message(**query: object) -> bytes:
    """The message that opens a scan of bucket 0."""
    opening = pb.ScanOpen(
        source=pb.SCAN_SOURCE_LIVE_KV,
        query=pb.ScanQuery(table=TABLE, bucket=0, **query),  # type: ignore[arg-type]
    )
    return wire.message(pb.ScanRequest(open=opening).SerializeToString())


def demand(limit: int) -> bytes:
    """A message that grants credit."""
    return wire.message(pb.ScanRequest(demand=pb.Demand(bytes_limit=limit)).SerializeToString())


def open_scan(stream_id: int, credit: int = CREDIT_MAX) -> bytes:
    """The frames of a scan of everything, with credit."""
    opening = open_message() + (demand(credit) if credit else b"")
    return open_call(stream_id) + wire.data(stream_id, opening)


def late_resets(peer: RawPeer) -> None:
    """Read the whole changelog in vain by as many calls as may be open, reset them when that is free, and again."""
    request = pb.FetchLogRequest(
        query=pb.ScanQuery(table=TABLE, filter=[_NEVER]),
        positions=[pb.FetchPosition(bucket=0, start=pb.LogStart(earliest=True))],
        max_wait_ms=30_000,
    )
    body = wire.message(request.SerializeToString())
    for _ in range(3):
        streams = peer.streams(900)
        peer.send(
            b"".join(open_call(sid, _FETCH_HEADERS) + wire.data(sid, body, end=True) for sid in streams)
        )
        peer.wait_answer()  # The calls have been read, and are as old as that at least:
        peer.wait(lambda _peer: False, _LATE_S)
        peer.send(b"".join(map(wire.reset, streams)))
        peer.wait_answer()


def zero_credit(peer: RawPeer) -> None:
    """Open scans, and never grant anything."""
    peer.send(b"".join(open_scan(sid, 0) for sid in peer.streams(400)))
    peer.wait_answer()


def no_match(peer: RawPeer) -> None:
    """Scan everything with a filter that nothing passes."""
    for _ in range(2):
        streams = peer.streams(2)
        opening = open_message(filter=[_NEVER]) + demand(CREDIT_MAX)
        peer.send(b"".join(open_call(sid) + wire.data(sid, opening) for sid in streams))
        if not peer.wait(lambda peer, all_of=streams: peer.status.keys() >= set(all_of)):  # type: ignore[misc]
            return


def credit_overflow(peer: RawPeer) -> None:
    """Grant more than can be counted."""
    for _ in range(20):
        streams = peer.streams(50)
        peer.send(b"".join(open_scan(sid, CREDIT_MAX + 1) for sid in streams))
        peer.wait(lambda peer, last=streams[-1]: last in peer.status)  # type: ignore[misc]


def credit_backwards(peer: RawPeer) -> None:
    """Grant less and less, a thousand times a scan."""
    less = b"".join(demand(limit) for limit in range(3_000, 2_000, -1))
    for sid in peer.streams(20):
        peer.send(open_call(sid) + wire.data(sid, open_message()) + wire.data(sid, less))
    peer.wait_answer()


ATTACKS = (
    Attack(
        name="zero-credit scans",
        run=zero_credit,
        bound="scans_max of the server; a scan without credit reads nothing",
        connections=2,
    ),
    Attack(
        name="filter that matches nothing",
        run=no_match,
        hello=WIDE,
        bound="a block of block_rows_max a turn; heartbeats say how far it is",
    ),
    Attack(
        name="late resets",
        run=late_resets,
        bound="streams_max calls of half a second each, whose work ends with them; scans_max of the server",
    ),
    Attack(
        name="credit overflow", run=credit_overflow, hello=WIDE, bound="CREDIT_INVALID (INVALID_ARGUMENT)"
    ),
    Attack(name="credit backwards", run=credit_backwards, hello=WIDE, bound="ignored"),
)
