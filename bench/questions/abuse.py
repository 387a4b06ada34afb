"""Does a server bear what hostile peers do to it?

Each attack of `bench.attacks` is run again and again against one `weir serve`, twice alone and then beside a
well-behaved client that scans a table. Measured are the resident memory of the server at the peak and afterwards, its
CPU per octet sent by the attacker, and the rate of the well-behaved client during the attack against just before it.

Expected: what a connection may do before it is cut off is worth milliseconds of CPU, so that the client loses less than
the half of the server that one attacker, coming back as fast as it can, would have if both got the same.

What was learned, and is built in: they do not get the same. A turn of the event loop lasts as long as whoever has it
works, and 256 KiB of small frames are a hundred milliseconds of work; the client was left a tenth of its rate, beside a
header hoard nothing. So what came in one read is handed on in turns of about a millisecond, and whoever took long lets
the others have several turns before its next (`transport.driver.Driver._take`).

A slow reader is a consumer like any other until its credit is spent: four of them leave the fifth, who behaves, a fifth
of the rate for that long. That was half a second on one machine and two on another, whose memory was four times slower;
so the rate is taken over five seconds.

What is leaked is added in every round. What the allocator keeps of a buffer of 64 MiB is there after one round and gone
after the next: messages that are never finished added 21 MiB in one run and gave 20 back in another. So an attack that
adds more than the bar is repeated, up to four times, and the least is judged.
"""

from __future__ import annotations

import collections
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from rich.table import Table

import scanner.sync
from bench import attacks
from bench.attacks.peer import Ended, RawPeer
from bench.attacks.scans import TABLE
from bench.harness.bars import Bar, write_json
from bench.harness.errors import BenchFailed
from bench.harness.idle import raise_descriptor_limit
from bench.harness.processes import Peer, running_process
from bench.harness.server import running_server
from transport.errors import error_code_name

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from rich.console import Console

ROWS: Final = 200_000
SOLO_S: Final = 1.0
BESIDE_S: Final = 5.0
SAMPLE_S: Final = 0.01
SETTLE_S: Final = 5.0
RATE_MIN: Final = 0.5
LEFT_BYTES_MAX: Final = 8 << 20
"""What an attack may add to the server's memory that the same attack before had not: what it leaks, give or take."""
ROUNDS_MAX: Final = 4
"""Rounds behind the first in which an attack may show that it adds no more than that."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """What an attacker has done in its time."""

    connections: int
    sent_bytes: int
    endings: dict[str, int]
    """How its connections ended, and how many of them did so."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """One attack."""

    attack: str
    bound: str
    connections: int
    """Opened by the attacker while it was alone."""
    endings: dict[str, int]
    sent_bytes: int
    peak_bytes: int
    """Resident memory of the server, the most while the attacker was alone, above where it was before."""
    kept_bytes: int
    """The same after it had gone: what allocators keep to use again, until the next full collection."""
    left_bytes: int
    """The least that the same attack added to that when it was repeated."""
    cpu_us_per_byte: float
    cpu_us_per_connection: float
    rate_before: float
    """Rows a second of the well-behaved client."""
    rate_during: float

    @property
    def rate_ratio(self) -> float:
        """What the attack leaves of the well-behaved client's rate."""
        return self.rate_during / self.rate_before


# ---------------------------------------------------------------------- the attacker


def attacker(endpoint: str, commands: Connection) -> None:
    """Run attacks by name for a number of seconds, until the process is ended."""
    raise_descriptor_limit()
    while True:
        commands.send(_attack(endpoint, *commands.recv()))


def _attack(endpoint: str, name: str, seconds: float) -> Done:
    attack = attacks.BY_NAME[name]
    deadline = time.monotonic() + seconds
    endings: collections.Counter[str] = collections.Counter()
    held: list[RawPeer] = []
    sent = 0
    while (now := time.monotonic()) < deadline:
        if len(held) == attack.connections:
            if attack.connections > 1:
                time.sleep(deadline - now)  # They are there to be held.
                break
            held.pop().close()
        peer = RawPeer(endpoint, hello=attack.hello, reads=attack.reads)
        try:
            attack.run(peer)
            if not peer.ended:
                held.append(peer)
                endings["borne"] += 1
        except Ended:
            peer.wait_ended(0.1)
        sent += peer.sent_bytes
        if peer.ended or peer.goaway is not None:
            endings["closed" if peer.code is None else error_code_name(peer.code)] += 1
            peer.close()
    for peer in held:
        peer.close()
    return Done(connections=endings.total(), sent_bytes=sent, endings=dict(endings))


# ---------------------------------------------------------------------- the well-behaved client


def well_behaved(endpoint: str, commands: Connection) -> None:
    """Scan the table again and again for a number of seconds and answer with the rows a second, until ended."""
    with scanner.sync.connect(endpoint) as client:
        table = client.table(TABLE)
        while True:
            seconds = commands.recv()
            started, rows = time.monotonic(), 0
            while time.monotonic() < started + seconds:
                with table.new_scan().execute() as batches:
                    for batch in batches:
                        rows += batch.num_rows
                        if time.monotonic() > started + seconds:
                            break
            commands.send(rows / (time.monotonic() - started))


# ---------------------------------------------------------------------- measuring


@dataclass(frozen=True, slots=True)
class _Children:
    """The two clients, each in a process of its own: their pipes."""

    attacker: Connection
    client: Connection


def measure(server: Peer, children: _Children, name: str) -> Measured:
    """One attack, alone and then beside the well-behaved client."""
    before, cpu_before = server.resident_bytes(), server.cpu_s()
    children.attacker.send((name, SOLO_S))
    peak = before
    while not children.attacker.poll(SAMPLE_S):
        peak = max(peak, server.resident_bytes())
    done: Done = children.attacker.recv()
    cpu_s = server.cpu_s() - cpu_before
    after = _settled(server, before)
    left = _left_by_repeating(server, children, name)
    children.client.send(BESIDE_S / 2)
    rate_before: float = children.client.recv()
    children.attacker.send((name, BESIDE_S + 0.5))
    time.sleep(0.3)  # It is at it by now.
    children.client.send(BESIDE_S)
    rate_during: float = children.client.recv()
    children.attacker.recv()
    return Measured(
        attack=name,
        bound=attacks.BY_NAME[name].bound,
        connections=done.connections,
        endings=done.endings,
        sent_bytes=done.sent_bytes,
        peak_bytes=peak - before,
        kept_bytes=after,
        left_bytes=left,
        cpu_us_per_byte=round(cpu_s * 1e6 / max(1, done.sent_bytes), 3),
        cpu_us_per_connection=round(cpu_s * 1e6 / max(1, done.connections)),
        rate_before=round(rate_before),
        rate_during=round(rate_during),
    )


def _left_by_repeating(server: Peer, children: _Children, name: str) -> int:
    """The least that one more round of an attack adds to what the server holds, in bytes."""
    least = None
    for _ in range(ROUNDS_MAX):
        before = server.resident_bytes()
        children.attacker.send((name, SOLO_S))
        children.attacker.recv()
        left = _settled(server, before)
        least = left if least is None else min(least, left)
        if least <= LEFT_BYTES_MAX:
            break
    assert least is not None
    return least


def _settled(server: Peer, before: int) -> int:
    deadline = time.monotonic() + SETTLE_S
    while (left := server.resident_bytes() - before) > LEFT_BYTES_MAX / 2 and time.monotonic() < deadline:
        time.sleep(SAMPLE_S)
    return left


@contextmanager
def _running() -> Iterator[tuple[Peer, _Children]]:
    with tempfile.TemporaryDirectory() as directory, running_server(Path(directory) / "data") as server:
        with scanner.sync.connect(server.endpoint) as client:
            schema = pa.schema([("k", pa.int64()), ("text", pa.string())])
            table = client.create_table(TABLE, schema, ["k"], 1)
            rows = {"k": range(ROWS), "text": [f"{number:050}" for number in range(ROWS)]}
            table.write(pa.table(rows, schema=schema))
        with (
            running_process(attacker, server.endpoint) as (_, attacking),
            running_process(well_behaved, server.endpoint) as (_, behaving),
        ):
            yield server, _Children(attacking, behaving)


def judge(measured: list[Measured]) -> list[Bar]:
    """What must hold of the measurements."""
    slowest = min(measured, key=lambda each: each.rate_ratio)
    fattest = max(measured, key=lambda each: each.left_bytes)
    return [
        Bar(
            name="well-behaved client's rate during the attack / before, the least",
            value=f"{slowest.rate_ratio:.2f} ({slowest.attack})",
            bar=f">= {RATE_MIN}",
            ok=slowest.rate_ratio >= RATE_MIN,
        ),
        Bar(
            name="memory that an attack adds to what it left the first time, the most",
            value=f"{fattest.left_bytes / 2**20:.1f} MiB ({fattest.attack})",
            bar=f"<= {LEFT_BYTES_MAX >> 20} MiB",
            ok=fattest.left_bytes <= LEFT_BYTES_MAX,
        ),
    ]


def run(output: Path | None, console: Console, *, only: tuple[str, ...]) -> list[Bar]:
    """Run the bench, write the JSON, print the table.

    Raises:
        BenchFailed: No attack fits.
    """
    names = [name for name in attacks.BY_NAME if not only or any(part in name for part in only)]
    if not names:
        raise BenchFailed(
            f"no attack has {' or '.join(only)} in its name; there are {', '.join(attacks.BY_NAME)}"
        )
    table = Table(
        "attack",
        "ended",
        "peak MiB",
        "kept MiB",
        "left MiB",
        "CPU µs/octet",
        "CPU ms/connection",
        "client's rate",
    )
    measured: list[Measured] = []
    with _running() as (server, children):
        children.client.send(BESIDE_S)  # Warm-up: everything that a scan loads is loaded.
        children.client.recv()
        for name in names:
            each = measure(server, children, name)
            measured.append(each)
            console.log(f"{name}: rate {each.rate_ratio:.2f}, peak {each.peak_bytes / 2**20:.1f} MiB")
            table.add_row(
                name,
                ", ".join(each.endings),
                f"{each.peak_bytes / 2**20:.1f}",
                f"{each.kept_bytes / 2**20:.1f}",
                f"{each.left_bytes / 2**20:.1f}",
                f"{each.cpu_us_per_byte:.3f}",
                f"{each.cpu_us_per_connection / 1000:.1f}",
                f"{each.rate_ratio:.2f}",
            )
    attacked = [{**asdict(each), "rate_ratio": round(each.rate_ratio, 2)} for each in measured]
    judged = write_json(output, judge(measured), attacks=attacked)
    console.print(table)
    return judged
