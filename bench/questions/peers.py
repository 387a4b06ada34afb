"""How fast is a scan, and a call, beside what people would otherwise take?

    scans       one bucket, or four, of rows of two widths, read whole to Arrow batches in a client process of its own:
                by weir in every model with and without an image; by Arrow Flight and grpcio over the same RocksDB
                iteration and decoding (storage) or from batches in the server's memory, each at the batch size that
                was best in a first round; from Parquet and by DuckDB. `local` is iteration and decoding alone
    first       ten rows: until the first batch
    concurrent  1, 4, 16 and 64 scans of a whole table at once, alone, and beside a writer of 8192-row requests
    far         from an image over 0 and 50 ms: push beside `session`, and push to a consumer that takes 100 MB/s
    growth      with the rows, their width and the buckets: curves and their exponents
    calls       unary calls of a hundred octets, one and a hundred in flight, beside grpcio and grpc.aio

Rounds are interleaved; medians and the medians of the rounds' ratios are kept. All is warm. The peers are not asked to
be isolated, resumable or checksummed; weir is. Writes: `python -m bench writes`. TLS: `python -m bench transport`.

What profiles taught (py-spy on the server, 86-octet rows): of 355 ns of the server's CPU a row 124 are rocksdict's
iterator, 75 joining its rows, 49 decoding, 30 the kernel's copy to the socket; encoding, both checksums and the token
are 20. Among 64 scans a new one waited for a second: it needs rounds of the event loop, and each had a step of all.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from bench.harness.bars import Bar, machine
from bench.peers import crowding, far, growth, scans, unary
from bench.peers.rows import WIDTHS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from rich.console import Console

PARTS: Final = ("scans", "first", "concurrent", "far", "growth", "calls")
TEN_ROW_REPEATS: Final = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """How much is measured."""

    parts: Sequence[str]
    """Of `PARTS`."""
    rows: int
    """Of a table of narrow rows that is scanned whole; wide ones get an eighth of them."""
    widths: Sequence[str]
    """Names in `WIDTHS`."""
    buckets: Sequence[int]
    crowds: Sequence[int]
    """Scans at once."""
    crowd_rows: int
    """Of the table that each of them reads, at least those of a writer's request."""
    far_rows: int
    rounds: int
    call_count: int
    """Calls of a round."""


def run(output: Path | None, plots: Path | None, console: Console, *, scale: Scale) -> list[Bar]:
    """Measure part by part, print the tables, write the JSON after each part, draw.

    Args:
        output: Where the JSON goes; None: nowhere.
        plots: Where the pictures go; None: nowhere.
        console: Where progress and the tables go.
        scale: How much.

    Raises:
        BenchFailed: A way read fewer rows than there are, or a process did not answer.
    """
    document: dict[str, Any] = {"bench": "peers", "machine": machine(), "scale": asdict(scale), "bars": []}
    bars: list[Bar] = []
    for part in scale.parts:
        measured, found = _MEASURES[part](scale, console)
        document[part] = measured
        bars += found
        document["bars"] = [asdict(bar) for bar in bars]
        if output is not None:
            output.parent.mkdir(parents=True, exist_ok=True)
            output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if plots is not None:
        from bench.peers.plots import draw  # It takes a second to load.

        for path in draw(document, plots):
            console.log(f"drawn: {path}")
    return bars


def _scans(scale: Scale, console: Console) -> tuple[object, list[Bar]]:
    found = []
    for name, count in itertools.product(scale.widths, scale.buckets):
        rows = scale.rows if name == "86" else max(1, scale.rows // 8)
        measured = scans.measure(WIDTHS[name], rows, count, scale.rounds, console)
        console.print(scans.show(measured))
        found += measured
    return [asdict(each) for each in found], scans.judge(found)


def _first(scale: Scale, console: Console) -> tuple[object, list[Bar]]:
    found = crowding.measure_first(scale.crowd_rows, TEN_ROW_REPEATS, scale.rounds, console)
    console.print(crowding.show(found))
    return crowding.as_document(found), crowding.judge(found)


def _concurrent(scale: Scale, console: Console) -> tuple[object, list[Bar]]:
    found = crowding.measure_crowds(scale.crowd_rows, scale.crowds, scale.rounds, console)
    console.print(crowding.show(found))
    return crowding.as_document(found), crowding.judge(found)


def _far(scale: Scale, console: Console) -> tuple[object, list[Bar]]:
    found = far.measure(scale.far_rows, scale.rounds, console)
    console.print(far.show(found))
    return [asdict(each) for each in found], far.judge(found)


def _growth(scale: Scale, console: Console) -> tuple[object, list[Bar]]:
    found = growth.measure(scale.rows, scale.rounds, console)
    console.print(growth.show(found))
    measured = {"tables": [asdict(each) for each in found], "exponents": growth.exponents(found)}
    return measured, growth.judge(found)


def _calls(scale: Scale, console: Console) -> tuple[object, list[Bar]]:
    found = unary.measure(scale.call_count, scale.rounds, console)
    console.print(unary.show(found))
    return [asdict(each) for each in found], unary.judge(found)


_MEASURES: Final[dict[str, Callable[[Scale, Console], tuple[object, list[Bar]]]]] = {
    "scans": _scans,
    "first": _first,
    "concurrent": _concurrent,
    "far": _far,
    "growth": _growth,
    "calls": _calls,
}
