"""How fast is a scan, and a call, beside what people would otherwise take?

    scans       one bucket, or four, of rows of two widths, read whole to Arrow batches in a client process of its own:
                by weir in every model with and without an image; by Arrow Flight and grpcio over the same RocksDB
                iteration and decoding (storage) or from batches in the server's memory, each at the batch size that
                was best of three tries; from Parquet and by DuckDB. `local` is iteration and decoding alone. Flight
                hands batches of its memory over in C++ (memory), or through Python as a server does that has something
                to do for each (generator)
    tls         the same through TLS, with one certificate, narrow rows of one bucket: push, session and the peers
    cold        the same by servers that have just started, of files that are not in the page cache
    first       ten rows: until the first batch
    concurrent  1, 4, 16 and 64 scans of a whole table at once, alone, and beside a writer of 8192-row requests
    far         from an image over 0 and 50 ms: push beside `session`, and push to a consumer that takes 100 MB/s
    growth      with the rows, their width and the buckets: curves and their exponents
    calls       unary calls of a hundred octets, one and a hundred in flight, beside grpcio, grpc.aio and grpclib

Rounds are interleaved; kept are medians, least and most, and the medians of the rounds' ratios. All but `cold` is warm,
and all memory was used before (`bench.harness.memory`). Of whole scans in a row the first is not timed, and the median
counts of as many others as take 0.4 s together: whoever timed one scan of 40 ms saw the same code at 0.8 and at 1.2 of
Flight. The peers are not asked to be isolated, resumable or checksummed; weir is. A part that fails is a bar that is
missed, and the others go on. Writes: `python -m bench writes`. How TLS compares with grpcio's, message by message, is
judged by `python -m bench transport`.

What profiles taught (py-spy on the server, 86-octet rows): of 355 ns of the server's CPU a row 124 are rocksdict's
iterator, 75 joining its rows, 49 decoding, 30 the kernel's copy to the socket; encoding, both checksums and the token
are 20. Among 64 scans a new one waited for a second: it needs rounds of the event loop, and each had a step of all.

Of a whole scan of an image no function of ours has more than 2 % of the server's time: a third is the kernel's copy,
the rest a thousand calls a block, which cost four times as much as in a loop, since the block's 2 MiB go through a
cache of 1 MiB between them. What helped was to make fewer: a time limit on each wait (trio's `move_on_after`) was a
fifth of Python's part, and reading and verifying a block again for each scan a quarter of the server's time. What did
not: sending from the page cache (`sendfile`), whose work for each page costs what the copy did; a larger or a smaller
send buffer; a thread for sending, which waits for the interpreter's lock before and after each write (1 KiB rows from
the row store: 0.74 to 0.84 of the rows a second, with whatever switch interval); and waiting for the socket after each
read that did not fill its room, which made many small reads of few large ones (8 % slower). Where memory is slow,
Python's calls suffer more than C's: phases of a machine change the ratios. A client that keeps 72 MB of batches in
memory that was idle for seconds took 0.21 us a row instead of 0.03, where the host takes such memory back; the blocking
client adds 0.15 ms for each batch that it hands to the caller's thread (`push trio` and `to_arrow` do not).

Of a small call no function has more than a tenth, and a profile shows nothing. A list of the steps of trio's tasks at
both ends, by the clock (`trio.abc.Instrument`), does: what a call waits for is rounds of the event loop, three at the
server and four at the client. One at each end was the writer's task that was woken to write; `Driver.write_now` does
without. Of the 2 ms of ten rows 1.2 are one step of the server: a quarter is decoding ten rows, which is NumPy's and
Arrow's cost of a block of any size, a fifth to open the state and to choose what to read, an eighth the write.

The phase of the machine decides some bars. The same code took 1.33 ms and, in a slow phase, 2.87 ms for the first of
ten rows, and 60 and 144 ns of its own for a row; the trees of both days, by turns in one run, differ by no more than
the noise (rows of a KiB from the row store: 0.90, 1.01 and 1.02). These rows are where one thread is behind Flight: of
2.8 us of the server's CPU a row 1.6 are reading and decoding, and Flight sends from other threads meanwhile.

Beside a writer, crowds that took their turns from the least to the most showed 64 scans at 0.8 of the rate of four, and
from the most to the least at 1.05: whoever comes later passes more versions of the rows in RocksDB's memtable. So
another crowd is the first in each round.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.harness.bars import Bar, machine, write_document
from bench.harness.certificates import make_certificates
from bench.harness.spread import as_document
from bench.peers import cold, crowding, far, growth, scans, unary
from bench.peers.report import sheets
from bench.peers.rows import WIDTHS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

Log = Callable[[str], object]
PARTS: Final = ("scans", "tls", "cold", "first", "concurrent", "far", "growth", "calls")
TEN_ROW_REPEATS: Final = 100
COLD_ROUNDS: Final = 3
"""At most: each starts seven servers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """How much is measured."""

    parts: Sequence[str]
    """Of `PARTS`."""
    rows: int
    """Of the largest table of narrow rows; wide ones get an eighth of them."""
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
    """Measure part by part, write the JSON after each part and print its tables, draw."""
    document: dict[str, Any] = {"bench": "peers", "machine": machine(), "scale": asdict(scale), "seconds": {}}
    bars: list[Bar] = []
    for number, part in enumerate(scale.parts):
        console.rule(f"{part}, part {number + 1} of {len(scale.parts)}")
        started = time.monotonic()
        bars += _measure(part, scale, console, document)
        document["seconds"][part] = round(time.monotonic() - started)
        document["bars"] = bars
        write_document(output, document)
        for sheet in sheets(document, part) if part in document else ():
            console.print(sheet.rich())
    if plots is not None:
        from bench.peers.plots import draw  # It takes a second to load.

        for path in draw(document, plots):
            console.log(f"drawn: {path}")
    return bars


def _measure(part: str, scale: Scale, console: Console, document: dict[str, Any]) -> list[Bar]:
    """One part into the document; if it fails, that is its only bar."""
    try:
        document[part], bars = _MEASURES[part](scale, console.log)
    except Exception as error:
        console.print_exception()
        return [Bar(f"{part} was measured", f"{type(error).__name__}: {error}", "without an error", ok=False)]
    return bars


def _scans(scale: Scale, log: Log) -> tuple[object, list[Bar]]:
    found = []
    for name, count in itertools.product(scale.widths, scale.buckets):
        rows = scale.rows if name == "86" else max(1, scale.rows // 8)
        found += scans.measure(WIDTHS[name], rows, count, scale.rounds, log)
    return [as_document(each) for each in found], scans.judge(found)


def _tls(scale: Scale, log: Log) -> tuple[object, list[Bar]]:
    with tempfile.TemporaryDirectory() as directory:
        certificates = make_certificates(Path(directory))
        found = scans.measure(WIDTHS["86"], scale.rows, 1, scale.rounds, log, certificates)
    return [as_document(each) for each in found], []


def _cold(scale: Scale, log: Log) -> tuple[object, list[Bar]]:
    found = cold.measure(WIDTHS["86"], scale.rows, min(scale.rounds, COLD_ROUNDS), log)
    return [as_document(each) for each in found], []


def _first(scale: Scale, log: Log) -> tuple[object, list[Bar]]:
    found = crowding.measure_first(scale.crowd_rows, TEN_ROW_REPEATS, scale.rounds, log)
    return crowding.as_documents(found), crowding.judge(found)


def _concurrent(scale: Scale, log: Log) -> tuple[object, list[Bar]]:
    found = crowding.measure_crowds(scale.crowd_rows, scale.crowds, scale.rounds, log)
    measured = {"crowds": crowding.as_documents(found), "exponents": crowding.exponents(found)}
    return measured, crowding.judge(found)


def _far(scale: Scale, log: Log) -> tuple[object, list[Bar]]:
    found = far.measure(scale.far_rows, scale.rounds, log)
    return [as_document(each) for each in found], far.judge(found)


def _growth(scale: Scale, log: Log) -> tuple[object, list[Bar]]:
    found = growth.measure(scale.rows, scale.rounds, log)
    measured = {"tables": [as_document(each) for each in found], "exponents": growth.exponents(found)}
    return measured, growth.judge(found)


def _calls(scale: Scale, log: Log) -> tuple[object, list[Bar]]:
    found = unary.measure(scale.call_count, scale.rounds, log)
    return [as_document(each) for each in found], unary.judge(found)


_MEASURES: Final[dict[str, Callable[[Scale, Log], tuple[object, list[Bar]]]]] = {
    "scans": _scans,
    "tls": _tls,
    "cold": _cold,
    "first": _first,
    "concurrent": _concurrent,
    "far": _far,
    "growth": _growth,
    "calls": _calls,
}
