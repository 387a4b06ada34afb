"""How much credit does a scan need, over lines of 0 to 100 ms, and does the credit that sizes itself find that out?

One bucket of rows of a kilobyte is scanned whole, from its image, so that the server is quick, over a line that delays
and does not limit (`bench.harness.links`), with fixed credit and with `with_credit("auto")`: each round every
combination once, interleaved, medians over the rounds. Beside the rate stands the most that waited for the consumer at
once. A consumer that lags, by a pause at each batch, is scanned for with the largest credit and the one that sizes
itself.

Expected: a fixed credit gives its size for each round trip, and beyond that what server and client do together. The one
that sizes itself begins with 8 MiB, so that a scan over a long line loses the round trips in which it doubles, three at
most, and a consumer that lags has 8 MiB waiting at most, whatever the line.

Found by `python -m bench credit-sizes --rounds 3 --megabytes 120` on two cores that nine others shared, so that single
rates are off by a quarter, and the bar of the rate was missed at 1 and at 5 ms, where no credit binds; MB/s:

    credit     0 ms   1 ms   5 ms   20 ms   50 ms   100 ms   most that waits for a consumer that lags
    2 MiB       119    111     77      56      31       18
    8 MiB       101    120    105     105      70       39
    32 MiB      115     86    137     111     110       90   29 to 31 MiB
    auto        172     92    101      96     138       90   7 to 8 MiB
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import trio
from rich.table import Table

import scanner
from bench.harness.bars import Bar, at_least, at_most, write_json
from bench.harness.links import Link
from bench.questions.continuation.serving import ServerProcess

if TYPE_CHECKING:
    from rich.console import Console

TABLE: Final = "lines"
ROW_BYTES: Final = 1024
MIB: Final = 1 << 20
AUTO: Final = "auto"
CREDITS: Final[tuple[int | str, ...]] = (2 * MIB, 8 * MIB, 32 * MIB, AUTO)
ROUND_TRIPS_MS: Final = (0, 1, 5, 20, 50, 100)
LAG_S: Final = 0.01
"""A consumer that lags takes this long for each batch."""
RATE_SHARE_MIN: Final = 0.8
"""Of the best fixed credit's rate, over the same line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scanned:
    """Scans of one credit over one line: medians."""

    credit: str
    round_trip_ms: int
    lags: bool
    mb_per_s: float
    """Message bytes, in millions."""
    held_bytes_max: int
    """That waited for the consumer at once."""


async def scan_once(
    endpoint: str, credit: int | str, round_trip_ms: int, rows: int, lag_s: float
) -> tuple[float, int]:
    """One scan: message bytes a second, and the most that waited; the connection is open before."""
    async with trio.open_nursery() as nursery:
        link = Link(endpoint, nursery, round_trip_ms / 1000)
        async with scanner.connect(endpoint, dial=link.dial, rng=Random(5)) as client:
            scan = (await client.table(TABLE)).new_scan().with_credit(credit)
            began_at = time.perf_counter()
            found = 0
            async with scan.execute() as batches:
                async for batch in batches:
                    found += batch.num_rows
                    if lag_s:
                        await trio.sleep(lag_s)
            seconds = time.perf_counter() - began_at
        nursery.cancel_scope.cancel()
    assert found == rows, (found, rows)
    done = batches.statistics()
    return done.bytes_received / seconds, done.held_bytes_max


async def fill(endpoint: str, rows: int) -> None:
    """Write the table."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])
    rng = Random(5)
    texts = [rng.randbytes(ROW_BYTES // 2).hex() for _ in range(1_000)]
    async with scanner.connect(endpoint) as client:
        table = await client.create_table(TABLE, schema, ["id"], 1)
        for start in range(0, rows, 10_000):
            ids = range(start, min(rows, start + 10_000))
            text = [texts[id_ % 1_000] for id_ in ids]
            await table.write(pa.table({"id": list(ids), "text": text}, schema))
        await client.make_images(TABLE)


async def measure(endpoint: str, rows: int, rounds: int, console: Console) -> list[Scanned]:
    """Every credit over every line, in each round once."""
    await fill(endpoint, rows)
    found: dict[tuple[int | str, int, bool], list[tuple[float, int]]] = defaultdict(list)
    for number in range(rounds):
        for round_trip_ms in ROUND_TRIPS_MS:
            console.print(f"round {number + 1} of {rounds}: {round_trip_ms} ms", style="dim")
            for credit in CREDITS:
                for lag_s in (0.0, LAG_S) if credit in (CREDITS[-2], AUTO) else (0.0,):
                    one = await scan_once(endpoint, credit, round_trip_ms, rows, lag_s)
                    found[credit, round_trip_ms, lag_s > 0].append(one)
    return [
        Scanned(
            credit=credit if isinstance(credit, str) else f"{credit // MIB} MiB",
            round_trip_ms=round_trip_ms,
            lags=lags,
            mb_per_s=statistics.median(rate for rate, _ in scans) / 1e6,
            held_bytes_max=round(statistics.median(held for _, held in scans)),
        )
        for (credit, round_trip_ms, lags), scans in found.items()
    ]


def bars(measured: list[Scanned]) -> list[Bar]:
    """What must be so: about the rate of the best fixed credit, and little held for a consumer that lags."""
    found = []
    for round_trip_ms in ROUND_TRIPS_MS:
        here = [each for each in measured if each.round_trip_ms == round_trip_ms]
        (sized,) = [each for each in here if each.credit == AUTO and not each.lags]
        best = max(each.mb_per_s for each in here if each.credit != AUTO and not each.lags)
        share = sized.mb_per_s / best
        name = f"rate by itself, of the best fixed credit's, at {round_trip_ms} ms"
        found.append(at_least(name, share, RATE_SHARE_MIN))
        (lagging,) = [each for each in here if each.credit == AUTO and each.lags]
        held_max = 8 * MIB + ROW_BYTES + 512
        name = f"bytes that wait for a consumer that lags, at {round_trip_ms} ms"
        found.append(at_most(name, lagging.held_bytes_max, held_max))
    return found


def run(output: Path | None, console: Console, *, rounds: int, megabytes: int) -> list[Bar]:
    """Measure, write the JSON, and print."""
    with (
        tempfile.TemporaryDirectory(prefix="weir-credit-") as directory,
        ServerProcess(Path(directory)) as server,
    ):
        rows = megabytes * 1_000_000 // ROW_BYTES
        measured = trio.run(measure, server.endpoint, rows, rounds, console)
    table = Table(
        title=f"MB/s, and MiB that waited at most; {megabytes} MB in one bucket, median of {rounds}"
    )
    for heading in ("credit", *(f"{each} ms" for each in ROUND_TRIPS_MS)):
        table.add_column(heading, justify="left" if heading == "credit" else "right")
    for lags in (False, True):
        for credit in dict.fromkeys(each.credit for each in measured):
            own = [each for each in measured if (each.credit, each.lags) == (credit, lags)]
            cells = [f"{each.mb_per_s:.0f} ({each.held_bytes_max / MIB:.1f})" for each in own]
            if not cells:
                continue
            table.add_row(f"{credit}{', lags' if lags else ''}", *cells)
    judged = write_json(output, bars(measured), measured=measured)
    console.print(table)
    return judged
