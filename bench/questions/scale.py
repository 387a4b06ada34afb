"""What do ten thousand idle streams cost one server process, and what of it grows faster than their number?

One server process, one client process, loopback. 10 000 calls that wait for the server to say something, over 100
connections and over 10 000; for each: time to open, resident memory of the server for each, its CPU while nothing
happens (PINGs included), and how long it takes until a message to all has reached the first, the median and the last.
Then the price of the n-th call on one connection, for n to 5 000, through both ends of this transport and, beside it,
what h2 alone takes for its part.

What was expected: some kilobytes a call, for its task at the server and the state of its stream; tens of kilobytes a
connection. A message to all is one task switch and one write for each call; so it takes about as long as as many small
writes.

What was learned, and is built in:

* A receive buffer of 256 KiB was 80 % of what a connection cost: Python fills memory that it makes, so all of it was
  resident. It is 4 KiB now until reads fill it, and again after a hundred that do not.
* h2 walks all its streams whenever one is opened, so that n calls cost n² steps: that curve is in the table. The
  walk only counts for a limit, which is kept here anyway, and forgets closed streams; it takes place each time the
  streams have grown by a quarter.
* Counting a connection's running handlers by its nursery's children copied a set of all of them for each call.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import h2.config
import h2.connection
import h2.settings
import trio

import transport
from bench.harness.bars import Bar, at_most, write_json
from bench.harness.idle import (
    STREAMS_MAX,
    WAIT_PATH,
    idle_client,
    idle_server,
    raise_descriptor_limit,
)
from bench.harness.processes import running_peer, running_worker
from bench.harness.sheet import Sheet

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

STREAMS = 10_000
SHARED_CONNECTIONS = 100
STREAM_BYTES_MAX = 25_000
FLAT_RATIO_MAX = 3
"""What the last calls on a connection may cost, in those of the first."""
IDLE_S = 10.0
DESCRIPTORS_SPARE = 200
CURVE = (1, 100, 500, 1_000, 2_000, 3_000, 4_000, 5_000)
CURVE_WINDOW = 50
"""Calls over which a point of the curve is the median."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Idle:
    """Very many idle calls."""

    streams: int
    connections: int
    open_s: float
    """Until all were open and answered once."""
    bytes_each: int
    """Resident memory that the server took for each call, its part of a connection included."""
    resident_bytes: int
    """Of the server process, all in all."""
    idle_cpu: float
    """Of the server process: seconds of CPU a second, while nothing happens."""
    tell_first_s: float
    """A message to all: until the first call had it."""
    tell_median_s: float
    tell_last_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """The n-th call on one connection."""

    n: int
    open_us: float
    """Until it was answered, both ends in one process."""
    h2_us: float
    """What bare h2 takes to make the request at one end and to read it at the other."""


# ---------------------------------------------------------------------- idle calls


def measure_idle(streams: int, connections: int, idle_s: float = IDLE_S) -> Idle:
    """Open `streams` idle calls over `connections` connections, and see what they cost."""
    with running_peer(idle_server) as server, running_worker(idle_client, server.port) as client:
        client.do(("open", 2, 2))  # what the first call of a process loads is nobody's own cost
        before = server.resident_bytes()
        open_s = client.do(("open", connections, streams // connections))
        resident = server.resident_bytes()
        cpu_s = server.cpu_s()
        time.sleep(idle_s)
        idle_cpu = (server.cpu_s() - cpu_s) / idle_s
        latencies = sorted(client.do(("tell",)))
    return Idle(
        streams=streams,
        connections=connections,
        open_s=round(open_s, 2),
        bytes_each=(resident - before) // streams,
        resident_bytes=resident,
        idle_cpu=round(idle_cpu, 4),
        tell_first_s=round(latencies[0], 4),
        tell_median_s=round(statistics.median(latencies), 4),
        tell_last_s=round(latencies[-1], 4),
    )


# ---------------------------------------------------------------------- the n-th call


def measure_curve(points: tuple[int, ...] = CURVE) -> list[Point]:
    """What the n-th call on one connection costs, in this transport and in bare h2."""
    ours = trio.run(_open_many, points[-1] + CURVE_WINDOW)
    bare = _h2_open_many(points[-1] + CURVE_WINDOW)
    return [Point(n=n, open_us=_around(ours, n), h2_us=_around(bare, n)) for n in points]


def _around(seconds: list[float], n: int) -> float:
    at = max(0, n - CURVE_WINDOW)
    return round(statistics.median(seconds[at : at + 2 * CURVE_WINDOW]) * 1e6, 1)


async def _open_many(count: int) -> list[float]:
    """Open calls one after another over one connection, and keep them; the seconds that each took."""
    seconds: list[float] = []

    async def wait(stream: transport.ServerStream) -> None:
        await stream.receive()
        await stream.send(b"open")
        await trio.sleep_forever()

    async def call(client: transport.Client, *, task_status: trio.TaskStatus[None]) -> None:
        started = time.perf_counter()
        async with client.open_stream(WAIT_PATH) as stream:
            await stream.send(b"wait")
            await stream.receive()
            seconds.append(time.perf_counter() - started)
            task_status.started()
            await trio.sleep_forever()

    config = transport.TransportConfig(streams_max=STREAMS_MAX)
    async with (
        transport.serve({WAIT_PATH: wait}, config=config) as server,
        transport.connect(server.host, server.port) as client,
        trio.open_nursery() as calls,
    ):
        for _ in range(count):
            await calls.start(call, client)
        calls.cancel_scope.cancel()
    return seconds


def _h2_open_many(count: int) -> list[float]:
    """As `_open_many`, with h2's own state machines and nothing else."""
    ends = [h2.connection.H2Connection(h2.config.H2Configuration(client_side=side)) for side in (True, False)]
    client, server = ends
    server.local_settings[h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS] = STREAMS_MAX
    server.local_settings.acknowledge()
    for end in ends:
        end.initiate_connection()
    for _ in range(2):
        server.receive_data(client.data_to_send())
        client.receive_data(server.data_to_send())
    headers = [
        (":method", "POST"), (":scheme", "http"), (":path", WAIT_PATH), (":authority", "localhost"),
        ("te", "trailers"), ("content-type", "application/grpc"),
    ]  # fmt: skip
    seconds = []
    for at in range(count):
        started = time.perf_counter()
        client.send_headers(2 * at + 1, headers)
        server.receive_data(client.data_to_send())
        seconds.append(time.perf_counter() - started)
    return seconds


# ---------------------------------------------------------------------- the bench


def bars(idle: list[Idle], curve: list[Point]) -> list[Bar]:
    """What must hold: memory of a stream on a shared connection, and calls that do not grow dearer."""
    shared = [case for case in idle if case.connections < case.streams]
    found = [
        at_most(
            f"resident bytes of each of {case.streams} streams on {case.connections} connections",
            case.bytes_each,
            STREAM_BYTES_MAX,
        )
        for case in shared
    ]
    ratio = curve[-1].open_us / curve[0].open_us
    name = f"cost of call {curve[-1].n} on a connection / call {curve[0].n}"
    return [*found, at_most(name, ratio, FLAT_RATIO_MAX)]


def _cases(console: Console) -> list[tuple[int, int]]:
    """10 000 streams over 100 connections and over one each, as far as descriptors go."""
    allowed = raise_descriptor_limit() - DESCRIPTORS_SPARE
    alone = min(STREAMS, allowed)
    if alone < STREAMS:
        console.print(f"only {alone} connections: this process may not have more descriptors")
    return [(STREAMS, SHARED_CONNECTIONS), (alone, alone)]


def _idle_table(idle: list[Idle]) -> Sheet:
    columns: dict[str, Callable[[Idle], str]] = {
        "streams": lambda case: f"{case.streams}",
        "connec-\ntions": lambda case: f"{case.connections}",
        "open s": lambda case: f"{case.open_s:.1f}",
        "KB each": lambda case: f"{case.bytes_each / 1e3:.1f}",
        "server\nMB": lambda case: f"{case.resident_bytes / 1e6:.0f}",
        "idle\nCPU %": lambda case: f"{case.idle_cpu * 100:.1f}",
        "to all, ms:\nfirst": lambda case: f"{case.tell_first_s * 1e3:.0f}",
        "median": lambda case: f"{case.tell_median_s * 1e3:.0f}",
        "last": lambda case: f"{case.tell_last_s * 1e3:.0f}",
    }
    rows = [[cell(case) for cell in columns.values()] for case in idle]
    return Sheet("idle streams on one server process", list(columns), rows)


def _curve_table(curve: list[Point]) -> Sheet:
    rows = [(f"{point.n}", f"{point.open_us:.0f}", f"{point.h2_us:.0f}") for point in curve]
    headings = ("n", "weir, both ends", "h2 alone, both ends")
    return Sheet("µs to open the n-th call on one connection", headings, rows)


def run(output: Path | None, console: Console) -> list[Bar]:
    """Measure, write the JSON, and print."""
    idle = []
    for streams, connections in _cases(console):
        console.print(f"{streams} streams over {connections} connections ...")
        idle.append(measure_idle(streams, connections))
    curve = measure_curve()
    judged = write_json(output, bars(idle, curve), idle=idle, curve=curve)
    console.print(_idle_table(idle).rich())
    console.print(_curve_table(curve).rich())
    return judged
