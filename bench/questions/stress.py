"""Does a server that is treated badly for as long as you like stay right, stay small, and hold nothing afterwards?

One real `weir serve`. Against it: consumers of every kind (`bench.harness.consumers`), each connection over a path
with a fault of its own or none (`bench.harness.fault_proxy`); writers that change the table all the time
(`bench.harness.ledger`); processes that are killed while they scan. Every scan that comes to its end is judged, row by
row, by an oracle that was told of every acknowledged write.

At the end everybody leaves, and the server is asked what it still holds. It must be nothing: no stream, no octet
buffered, no iterator or snapshot, no session, no socket. Sessions whose client vanished, and connections that fell
silent, are allowed the time that they have by contract (`--session-ttl`, keepalive); nothing else is. Then it must end
with status 0 on SIGTERM.

The ceiling on resident memory is over what the loaded, idle server had. What may be held at once is at most: for each
stream its send buffer and one decoded block (1 MiB each), for each session its last page, memtables and caches of four
RocksDB buckets.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import trio

import scanner
import transport
from bench.harness.bars import Bar, none_of, some_of, write_json
from bench.harness.consumers import Consumer, Findings
from bench.harness.fault_proxy import FaultProxy, open_fault_proxy
from bench.harness.holdings import Holdings, ask_holdings
from bench.harness.ledger import BUCKETS, SCHEMA, TABLE, Ledger, Writer, rows
from bench.harness.server import running_server

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

    from bench.harness.processes import Peer

ROWS, ROWS_SHORT = 60_000, 12_000
CONSUMERS = 16
WRITERS = 3
SESSION_TTL_S = 5.0
SHORT_S = 100.0
"""A run shorter than this has fewer rows, and no path that falls silent: noticing that takes half a minute."""
QUIET_S = 45.0
"""Time in which a server notices everybody who has gone: a silent peer after 30 s."""
POLL_S = 0.25
CEILING_BYTES = 400_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Stressed:
    """What became of it."""

    seed: int
    seconds: float
    findings: Findings
    commits: int
    broken: dict[str, int]
    """Connections broken, by fault."""
    loaded_bytes: int
    """Resident memory of the server with the table loaded, idle."""
    peak_bytes: int
    end_bytes: int
    held: Holdings
    """When the server had had its time to notice that everybody left."""
    quiet_s: float
    """How much of that time it took."""


class Stress:
    """One run.

    Args:
        server: Fresh.
        seconds: How long consumers and writers go on.
        seed: Chooses everything.
    """

    def __init__(self, server: Peer, seconds: float, seed: int) -> None:
        self._server = server
        self._process = psutil.Process(server.pid)
        self._seconds = seconds
        self._seed = seed
        self._findings = Findings()
        self._peak_bytes = 0

    async def run(self, status: Status | None) -> Stressed:
        """Load the table, let everybody at it, and see what is left."""
        async with scanner.connect(self._server.endpoint) as client:
            ledger = await _load(client, ROWS if self._seconds >= SHORT_S else ROWS_SHORT)
        loaded = self._server.resident_bytes()
        async with open_fault_proxy(self._server.endpoint, self._rng("proxy")) as proxy:
            await self._let_loose(ledger, proxy, status)
            started = trio.current_time()
            held = await self._wait_quiet()
        return Stressed(
            seed=self._seed,
            seconds=self._seconds,
            findings=self._findings,
            commits=ledger.commits,
            broken={fault.value: count for fault, count in proxy.struck.items()},
            loaded_bytes=loaded,
            peak_bytes=self._peak_bytes,
            end_bytes=self._server.resident_bytes(),
            held=held,
            quiet_s=round(trio.current_time() - started, 1),
        )

    def _rng(self, name: str) -> random.Random:
        return random.Random(f"{self._seed} {name}")

    async def _let_loose(self, ledger: Ledger, proxy: FaultProxy, status: Status | None) -> None:
        ending = trio.Event()
        async with (
            scanner.connect(self._server.endpoint) as client,
            _watching(self._watch, proxy, ledger, status),
        ):
            table = await client.table(TABLE)
            async with trio.open_nursery() as nursery:
                for number in range(WRITERS):
                    writer = Writer(ledger, number, WRITERS, self._rng(f"writer {number}"))
                    nursery.start_soon(writer.run, table, ending)
                for number in range(CONSUMERS):
                    consumer = Consumer(
                        proxy, ledger, self._findings, self._rng(f"consumer {number}"), self._server.endpoint,
                        silence=self._seconds >= SHORT_S,
                    )  # fmt: skip
                    nursery.start_soon(consumer.run, ending)
                await trio.sleep(self._seconds)
                ending.set()

    async def _watch(self, proxy: FaultProxy, ledger: Ledger, status: Status | None) -> None:
        started = trio.current_time()
        while True:
            resident = self._server.resident_bytes()
            self._peak_bytes = max(self._peak_bytes, resident)
            if status is not None:
                found = self._findings
                status.update(
                    f"{trio.current_time() - started:.0f} of {self._seconds:.0f} s: "
                    f"{found.verified.total()} scans right, {len(found.wrong)} wrong, {found.left.total()} left, "
                    f"{found.broken.total()} broken, {proxy.struck.total()} faults, {ledger.commits} commits, "
                    f"{resident / 1e6:.0f} MB"
                )
            await trio.sleep(POLL_S)

    async def _wait_quiet(self) -> Holdings:
        """Ask what the server holds until it is nothing, or its time is over."""
        host, _, port = self._server.endpoint.rpartition(":")
        deadline = trio.current_time() + QUIET_S
        async with transport.connect(host, int(port)) as client:
            while True:
                held = await ask_holdings(client, self._process)
                if held.nothing or trio.current_time() > deadline:
                    return held
                await trio.sleep(POLL_S)


@asynccontextmanager
async def _watching(watch: object, *arguments: object) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch, *arguments)  # type: ignore[arg-type]
        yield
        nursery.cancel_scope.cancel()


async def _load(client: scanner.Client, count: int) -> Ledger:
    """Make the table, and read back which bucket each key is in."""
    table = await client.create_table(TABLE, SCHEMA, primary_key=["id"], buckets=BUCKETS)
    await table.write(rows(list(range(count)), 0))
    parts = {}
    for bucket in range(BUCKETS):
        scan = table.new_scan().bucket(bucket)
        (offset,) = (each.end_offset for each in await table.offsets() if each.bucket == bucket)
        parts[bucket] = (await scan.to_arrow(), offset)
    return Ledger(parts)


def bars(stressed: Stressed) -> list[Bar]:
    """What must hold."""
    found, held = stressed.findings, stressed.held
    grown = stressed.peak_bytes - stressed.loaded_bytes
    first = f"; the first: {found.wrong[0]}" if found.wrong else ""
    return [
        Bar("scans that were wrong, errors without a reason", f"{len(found.wrong)}{first}", "= 0", not found.wrong),
        some_of("complete scans judged right", found.verified.total()),
        some_of("scans resumed over another connection", found.resumes),
        some_of("commits during the scans", stressed.commits),
        Bar("connections broken by faults", sum(stressed.broken.values()), "> 0", bool(stressed.broken)),
        Bar("server's resident memory, peak over loaded, MB", round(grown / 1e6, 1), f"<= {CEILING_BYTES / 1e6:.0f}",
            grown <= CEILING_BYTES),
        *(
            none_of(f"left at the end: {name}", value)
            for name, value in (
                ("streams (and their tasks)", held.streams),
                ("bytes buffered", held.buffered_bytes),
                ("iterators and snapshots", held.snapshots),
                ("sessions", held.sessions),
                ("sockets", held.connections),
            )
        ),
    ]  # fmt: skip


def run(output: Path | None, console: Console, *, seconds: float, seed: int | None) -> list[Bar]:
    """Stress a server, write the JSON, and print what happened.

    Raises:
        BenchFailed: The server did not start, or did not end with status 0.
    """
    seed = random.randrange(1_000_000) if seed is None else seed
    console.print(f"stress for {seconds:.0f} s, seed {seed}")
    started = time.monotonic()
    options = ("--session-ttl", str(SESSION_TTL_S))
    with tempfile.TemporaryDirectory() as data, running_server(Path(data) / "data", *options) as server:
        stress = Stress(server, seconds, seed)
        if console.is_terminal:
            with console.status("loading") as status:
                stressed = trio.run(stress.run, status)
        else:
            stressed = trio.run(stress.run, None)
    judged = write_json(output, bars(stressed), **_document(stressed))
    _print(console, stressed, time.monotonic() - started)
    return judged


def _print(console: Console, stressed: Stressed, seconds: float) -> None:
    found = stressed.findings
    kinds = ", ".join(f"{kind.value} {count}" for kind, count in found.verified.most_common())
    faults = ", ".join(f"{name} {count}" for name, count in stressed.broken.items())
    console.print(
        f"scans that came to their end and are right: {found.verified.total()} ({kinds}), {found.rows} rows"
    )
    console.print(
        f"left early or killed: {found.left.total()}; ended by a fault: {found.broken.total()} ({faults});"
        f" refused by a cap: {found.refused}; resumed: {found.resumes}; commits: {stressed.commits}"
    )
    console.print(
        f"server: {stressed.loaded_bytes / 1e6:.0f} MB loaded, {stressed.peak_bytes / 1e6:.0f} MB at the peak,"
        f" {stressed.end_bytes / 1e6:.0f} MB at the end; held nothing {stressed.quiet_s} s after the last consumer"
        if stressed.held.nothing
        else f"server still holds {stressed.held}"
    )
    for wrong in found.wrong[:20]:
        console.print(f"WRONG {wrong}", markup=False)
    console.print(f"took {seconds:.0f} s")


def _document(stressed: Stressed) -> dict[str, object]:
    found = stressed.findings
    return {
        "seed": stressed.seed,
        "seconds": stressed.seconds,
        "verified": {kind.value: count for kind, count in found.verified.items()},
        "left": {kind.value: count for kind, count in found.left.items()},
        "ended_by_fault": {kind.value: count for kind, count in found.broken.items()},
        "refused": found.refused,
        "resumes": found.resumes,
        "rows": found.rows,
        "wrong": found.wrong,
        "commits": stressed.commits,
        "faults": stressed.broken,
        "loaded_bytes": stressed.loaded_bytes,
        "peak_bytes": stressed.peak_bytes,
        "end_bytes": stressed.end_bytes,
        "held": stressed.held,
        "quiet_s": stressed.quiet_s,
    }
