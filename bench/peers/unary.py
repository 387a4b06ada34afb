"""Unary calls by weir and its peers, one and a hundred in flight, in interleaved rounds."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from bench.harness.bars import Bar, at_least
from bench.harness.processes import running_peer, running_worker
from bench.harness.spread import ratio
from bench.peers import calls

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

OVER_MIN: Final = {"grpcio": 1.0, "grpc.aio": 0.8, "grpclib": 0.8}
"""By peer: what weir's calls a second must be, of its own."""
IN_FLIGHT: Final = (1, 100)


@dataclass(kw_only=True, slots=True)
class Called:
    """Unary calls by one way, over all rounds."""

    way: str
    in_flight: int
    calls_per_s: list[float] = field(default_factory=list)
    server_us_per_call: list[float] = field(default_factory=list)
    client_us_per_call: list[float] = field(default_factory=list)
    server_resident_bytes: int = 0
    client_resident_bytes: int = 0


def measure(count: int, rounds: int, log: Callable[[str], object]) -> list[Called]:
    """Make so many calls by every way in every round.

    Raises:
        BenchFailed: A process did not answer.
    """
    found = [
        Called(way=way, in_flight=in_flight) for in_flight, way in itertools.product(IN_FLIGHT, calls.SERVERS)
    ]
    with ExitStack() as stack:
        peers = {way: stack.enter_context(running_peer(target)) for way, target in calls.SERVERS.items()}
        # One client each: grpcio's own threads would work beside the next way's calls.
        workers = {way: stack.enter_context(running_worker(calls.caller)) for way in peers}
        for number in range(rounds):
            log(f"calls: round {number + 1} of {rounds}")
            for called in found:
                peer = peers[called.way]
                before = peer.cpu_s()
                asked = calls.Calling(way=called.way, port=peer.port, calls=count, in_flight=called.in_flight)
                cost: calls.CallCost = workers[called.way].do(asked)
                called.calls_per_s.append(round(count / cost.seconds))
                called.client_us_per_call.append(round(cost.cpu_s * 1e6 / count, 1))
                called.server_us_per_call.append(round((peer.cpu_s() - before) * 1e6 / count, 1))
                called.server_resident_bytes = max(called.server_resident_bytes, peer.resident_bytes())
                called.client_resident_bytes = max(called.client_resident_bytes, cost.resident_bytes)
    return found


def judge(called: Sequence[Called]) -> list[Bar]:
    """What must hold of calls."""
    found = []
    rates = {(each.way, each.in_flight): each.calls_per_s for each in called}
    for in_flight in dict.fromkeys(each.in_flight for each in called):
        for peer, least in OVER_MIN.items():
            value = ratio(rates["weir", in_flight], rates[peer, in_flight])
            found.append(at_least(f"calls over {peer}, {in_flight} in flight", value, least))
    return found
