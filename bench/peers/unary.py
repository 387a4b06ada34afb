"""Unary calls by weir and its peers, one and a hundred in flight, in interleaved rounds."""

from __future__ import annotations

import itertools
import statistics
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from rich.table import Table

from bench.harness.bars import Bar
from bench.peers import calls
from bench.peers.processes import running_peer, running_worker
from bench.peers.scans import ratio

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

OVER_GRPCIO_MIN: Final = 1.0
OVER_AIO_MIN: Final = 0.8
IN_FLIGHT: Final = (1, 100)


@dataclass(kw_only=True, slots=True)
class Called:
    """Unary calls by one way, over all rounds."""

    way: str
    in_flight: int
    calls_per_s: list[float] = field(default_factory=list)
    server_us_per_call: list[float] = field(default_factory=list)
    client_us_per_call: list[float] = field(default_factory=list)


def measure(count: int, rounds: int, console: Console) -> list[Called]:
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
            console.log(f"calls: round {number + 1} of {rounds}")
            for called in found:
                peer = peers[called.way]
                before = peer.cpu_s()
                asked = calls.Calling(way=called.way, port=peer.port, calls=count, in_flight=called.in_flight)
                cost: calls.CallCost = workers[called.way].do(asked)
                called.calls_per_s.append(round(count / cost.seconds))
                called.client_us_per_call.append(round(cost.cpu_s * 1e6 / count, 1))
                called.server_us_per_call.append(round((peer.cpu_s() - before) * 1e6 / count, 1))
    return found


def judge(called: Sequence[Called]) -> list[Bar]:
    """What must hold of calls."""
    found = []
    rates = {(each.way, each.in_flight): each.calls_per_s for each in called}
    for in_flight in dict.fromkeys(each.in_flight for each in called):
        for peer, least in (("grpcio", OVER_GRPCIO_MIN), ("grpc.aio", OVER_AIO_MIN)):
            value = ratio(rates["weir", in_flight], rates[peer, in_flight])
            found.append(
                Bar(f"calls over {peer}, {in_flight} in flight", value, f">= {least}", value >= least)
            )
    return found


def show(called: Sequence[Called]) -> Table:
    """All of them."""
    table = Table(title="unary calls of 100 octets: medians", padding=0)
    for heading in ("", "in flight", "calls/s", "weir is", "server us", "client us"):
        table.add_column(heading, justify="right" if heading else "left")
    weir = {each.in_flight: each.calls_per_s for each in called if each.way == "weir"}
    for each in called:
        table.add_row(
            each.way,
            str(each.in_flight),
            f"{statistics.median(each.calls_per_s):,.0f}",
            f"{ratio(weir[each.in_flight], each.calls_per_s):.2f}",
            f"{statistics.median(each.server_us_per_call):.0f}",
            f"{statistics.median(each.client_us_per_call):.0f}",
        )
    return table
