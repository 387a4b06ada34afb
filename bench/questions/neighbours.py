"""Does one stream that is not read, or hardly, slow the other 99 on its connection?

One server process sends to one client process, 99 calls at once on one connection, messages of 64 KiB. In turn, round
after round: the 99 alone; beside a call that is never read; beside one that is read at a message every 50 ms. Medians
of the 99's speed, and their ratio to the 99 alone.

What was expected: nothing to be seen. The reader of a connection credits the connection's window on receipt, so a call
that is not read shuts its own window only; the sender goes round by round over calls that have window, and one without
leaves the round. What the stalled call costs is its one window, once.
"""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

import transport
from bench.harness.bars import Bar, at_least, write_json
from bench.harness.processes import running_peer
from bench.harness.sheet import Sheet

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from pathlib import Path

    from rich.console import Console

FAST = 99
MESSAGE_BYTES = 64 * 1024
MESSAGES = 128
"""That each of the fast calls carries: 8 MiB."""
SLOW_READ_S = 0.05
ALONE, STALLED, SLOW = "alone", "stalled", "slow"
NEIGHBOURS = (ALONE, STALLED, SLOW)
RATIO_MIN = 0.9
PATH, ENDLESS_PATH = "/bench.Neighbours/Read", "/bench.Neighbours/Endless"


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """The 99 calls beside one kind of neighbour."""

    neighbour: str
    mb_per_second: float
    """Of the 99, median."""
    slowest_s: float
    """Until the last of the 99 had everything, median."""
    rounds: list[float]
    """MB/s."""
    neighbour_bytes: int
    """What the neighbour itself was given, the most of all rounds."""


def neighbours_server(ready: Connection) -> None:
    """Serve both kinds of calls until the process is ended."""
    payload = os.urandom(MESSAGE_BYTES)

    async def read(stream: transport.ServerStream) -> None:
        await stream.receive()
        for _ in range(MESSAGES):
            await stream.send(payload)

    async def endless(stream: transport.ServerStream) -> None:
        await stream.receive()
        while True:
            await stream.send(payload)

    async def main() -> None:
        async with transport.serve({PATH: read, ENDLESS_PATH: endless}) as server:
            ready.send(server.port)
            await trio.sleep_forever()

    trio.run(main)


async def _read_all(client: transport.Client) -> None:
    async with client.open_stream(PATH) as stream:
        await stream.send(b"")
        await stream.send_end()
        got = 0
        while (message := await stream.receive()) is not None:
            got += len(message)
        assert got == MESSAGES * MESSAGE_BYTES


async def _be_slow(stream: transport.Stream) -> None:
    while True:
        await stream.receive()
        await trio.sleep(SLOW_READ_S)


async def _round(port: int, neighbour: str) -> tuple[float, int]:
    """Seconds of the 99, and octets that came for the neighbour."""
    async with transport.connect("127.0.0.1", port) as client:
        if neighbour == ALONE:
            return await _time_the_fast(client), 0
        async with client.open_stream(ENDLESS_PATH) as stream, trio.open_nursery() as nursery:
            await stream.send(b"")
            await stream.receive()
            if neighbour == SLOW:
                nursery.start_soon(_be_slow, stream)
            seconds = await _time_the_fast(client)
            nursery.cancel_scope.cancel()
            return seconds, stream.buffered_bytes + stream.bytes_received


async def _time_the_fast(client: transport.Client) -> float:
    started = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for _ in range(FAST):
            nursery.start_soon(_read_all, client)
    return time.perf_counter() - started


def measure(rounds: int) -> list[Measured]:
    """All kinds of neighbours in turn, `rounds` times, after one round that does not count."""
    seconds: dict[str, list[float]] = {neighbour: [] for neighbour in NEIGHBOURS}
    given = dict.fromkeys(NEIGHBOURS, 0)
    with running_peer(neighbours_server) as server:
        trio.run(_round, server.port, ALONE)
        for at in range(rounds):
            turn = at % len(NEIGHBOURS)  # so that none always comes after the same one
            for neighbour in NEIGHBOURS[turn:] + NEIGHBOURS[:turn]:
                took, neighbour_bytes = trio.run(_round, server.port, neighbour)
                seconds[neighbour].append(took)
                given[neighbour] = max(given[neighbour], neighbour_bytes)
    size = FAST * MESSAGES * MESSAGE_BYTES / 1e6
    return [
        Measured(
            neighbour=neighbour,
            mb_per_second=round(size / statistics.median(took), 1),
            slowest_s=round(statistics.median(took), 3),
            rounds=[round(size / each, 1) for each in took],
            neighbour_bytes=given[neighbour],
        )
        for neighbour, took in seconds.items()
    ]


def bars(measured: list[Measured]) -> list[Bar]:
    """The 99 beside a neighbour, in the speed of the 99 alone."""
    speeds = {row.neighbour: row.mb_per_second for row in measured}
    found = []
    for neighbour in (STALLED, SLOW):
        ratio = speeds[neighbour] / speeds[ALONE]
        name = f"speed of {FAST} streams beside a {neighbour} one / alone"
        found.append(at_least(name, ratio, RATIO_MIN))
    return found


def run(output: Path | None, console: Console, *, rounds: int) -> list[Bar]:
    """Measure, write the JSON, and print."""
    measured = measure(rounds)
    rows = [
        (row.neighbour, f"{row.mb_per_second:.0f}", f"{min(row.rounds):.0f}", f"{max(row.rounds):.0f}",
         f"{row.neighbour_bytes / 1e6:.1f}")
        for row in measured
    ]  # fmt: skip
    title = f"{FAST} streams of 64 KiB messages on one connection, median of {rounds}"
    judged = write_json(output, bars(measured), measured=measured)
    console.print(Sheet(title, ("neighbour", "MB/s", "least", "most", "neighbour had MB"), rows).rich())
    return judged
