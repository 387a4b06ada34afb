"""What does it take to read a bucket as of an offset that a million changes have passed since?

A bucket of a million rows, then a million changes spread evenly over its keys (updates, a tenth deletes, some new
keys). A fresh process reads it live, and then as of the offset in front of the changes: the overlay of what the keys
had is built from the changelog, spilling to disk past its memory limit, and merged with the live rows. Measured are the
changes a second while it is built, the rows a second after, the longest step of either, and the memory; then the same
scan again, cut three times and opened again by its position.

What was expected: reading, cutting and decoding a change takes about a microsecond, as does sorting it out to disk and
back; so two seconds for a million, and half of the live scan's speed after that.

What was found with `python -m bench as-of`, on two cores that others used too, by CPU: 600 000 changes a second, then
560 000 rows a second (live 2 300 000). The overlay of half a million keys accounts for 48 MiB of its 64, the process
grew by 36, and 26 MiB were spilled. A resumed scan walks all the changes again, whatever is left of its range.
"""

from __future__ import annotations

import multiprocessing
import random
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import psutil
import pyarrow as pa
from rich.table import Table

from bench.harness.bars import Bar, at_most, write_json
from scanner.data.keys import ALL_KEYS
from scanner.data.position import START, Position
from scanner.data.table import TableDescription
from scanner.sources.as_of import AsOfScan
from scanner.sources.kv import KvSource
from scanner.sources.overlay import OverlayLimits
from scanner.sources.past import SharedPast
from scanner.storage.interface import Mutation
from scanner.storage.rocksdb.store import RocksStore
from scanner.wire.queries import ScanQuery

if TYPE_CHECKING:
    from rich.console import Console

    from scanner.storage.interface import Bucket, BucketScan

P = ParamSpec("P")
T = TypeVar("T")

MIB = 1024 * 1024
TABLE = TableDescription(
    "items",
    pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("price", pa.float64())]),
    ("id",),
    1,
)
COMMIT_ROWS = 10_000
NEW_KEYS = 0.05
"""Of the keys that are changed, how many were not there before."""
DELETES = 0.1
BLOCK_ROWS, BLOCK_BYTES = 8192, 1024 * 1024
"""A step of the source, as the server has it by default."""
PAYLOAD_BYTES = 1024 * 1024
CUTS = 3
SPARE_BYTES = 48 * 1024 * 1024
"""What resident memory may grow by beside the overlay: blocks that are decoded, pools, and what malloc keeps."""
SAMPLE_STEPS = 16
"""Steps between two looks at resident memory; a look costs as much as a small step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """What the bucket was before the changes."""

    log_offset: int
    rows: int
    digest: int
    changes: int
    """Of the changelog since then."""
    load_s: float


@dataclass(kw_only=True, slots=True)
class Pass:
    """One scan to its end."""

    rows: int = 0
    digest: int = 0
    entries: int = 0
    """Of the overlay."""
    build_s: float = 0.0
    """Until the overlay was there."""
    read_s: float = 0.0
    """From there to the end."""
    build_cpu_s: float = 0.0
    read_cpu_s: float = 0.0
    build_step_ms: float = 0.0
    """CPU of the longest step while it was built: what the server's other tasks wait for on a machine of its own."""
    read_step_ms: float = 0.0
    overlay_bytes: int = 0
    """The most that the overlay took in memory, by its own account."""
    spilled_bytes: int = 0
    resident_growth_bytes: int = 0
    """From before the scan to the most during it."""
    close_ms: float = 0.0
    """Freeing what was left."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """Everything."""

    prepared: Prepared
    bytes_max: int
    """The overlay's memory limit."""
    live: Pass
    """The bucket as it is now."""
    as_of: Pass
    cut: Pass
    """The same in pieces; times are sums."""


def prepare(directory: Path, rows: int, changes: int, request_rows: int = COMMIT_ROWS) -> Prepared:
    """Load a bucket, see what it holds, and change it, by so many rows in one request."""
    started = time.perf_counter()
    store = RocksStore.open(directory)
    try:
        store.create_table(TABLE)
        bucket = store.bucket(TABLE.name, 0)
        for start in range(0, rows, COMMIT_ROWS):
            bucket.commit([_upserts(store, range(start, min(rows, start + COMMIT_ROWS)), "old")])
        log_offset = bucket.log_end
        before = Pass()
        _drive(_source(store, bucket.open_snapshot().scan()), None, before)
        _change(store, bucket, rows, log_offset + changes, request_rows)
        return Prepared(
            log_offset=log_offset,
            rows=rows,
            digest=before.digest,
            changes=bucket.log_end - log_offset,
            load_s=round(time.perf_counter() - started, 2),
        )
    finally:
        store.close()


def _change(store: RocksStore, bucket: Bucket, rows: int, log_end: int, request_rows: int) -> None:
    rng = random.Random(rows)
    while bucket.log_end < log_end:
        ids = [rng.randrange(int(rows * (1 + NEW_KEYS)) + 1) for _ in range(min(COMMIT_ROWS, rows))]
        mutations = [
            Mutation(each.key, None) if rng.random() < DELETES else each
            for each in _upserts(store, ids, "new")
        ]
        starts = range(0, len(mutations), request_rows)
        bucket.commit([mutations[start : start + request_rows] for start in starts])


def _upserts(store: RocksStore, ids: range | list[int], word: str) -> list[Mutation]:
    batch = pa.record_batch(
        [
            pa.array(ids, pa.int64()),
            pa.array([f"{word}-{number}-of-a-name-of-usual-length" for number in ids]),
            pa.array([number / 4 for number in ids]),
        ],
        schema=TABLE.schema,
    )
    keys = store.key_codec(TABLE.name).encode_batch(batch)
    return list(map(Mutation, keys, store.row_codec(TABLE.name).encode_batch(batch)))


def measure(directory: Path, prepared: Prepared, bytes_max: int) -> Measured:
    """Scan live, as of the offset, and as of the offset in pieces."""
    store = RocksStore.open(directory)
    try:
        bucket = store.bucket(TABLE.name, 0)
        limits = OverlayLimits(bytes_max=bytes_max, directory=directory)
        # What the first reads load (the block cache, Arrow's pools) is nobody's own cost.
        _drive(_source(store, bucket.open_snapshot().scan()), None, Pass())
        for offset in range(prepared.log_offset, bucket.log_end, COMMIT_ROWS):
            bucket.read_change_block(offset, min(bucket.log_end, offset + COMMIT_ROWS), PAYLOAD_BYTES)
        live = Pass()
        _drive(_source(store, bucket.open_snapshot().scan()), None, live)
        whole = Pass()
        scan = _as_of(bucket, prepared.log_offset, START, limits)
        _drive(_source(store, scan), scan, whole)
        cut = Pass()
        position = START
        for part in range(1, CUTS + 2):
            stop_rows = prepared.rows * part // (CUTS + 1) if part <= CUTS else None
            scan = _as_of(bucket, prepared.log_offset, position, limits)
            position = _drive(_source(store, scan, position), scan, cut, stop_rows)
        return Measured(prepared=prepared, bytes_max=bytes_max, live=live, as_of=whole, cut=cut)
    finally:
        store.close()


def _as_of(bucket: Bucket, log_offset: int, position: Position, limits: OverlayLimits) -> AsOfScan:
    key_range = position.remaining(ALL_KEYS)
    return AsOfScan(bucket.open_snapshot().scan(key_range), SharedPast(bucket, log_offset, limits), key_range)


def _source(store: RocksStore, scan: BucketScan, position: Position = START) -> KvSource:
    return KvSource(
        scan,
        TABLE,
        store.row_codec(TABLE.name),
        ScanQuery(table=TABLE.name),
        position=position,
        block_rows_max=BLOCK_ROWS,
        block_bytes_max=BLOCK_BYTES,
    )


def _drive(source: KvSource, scan: AsOfScan | None, found: Pass, stop_rows: int | None = None) -> Position:
    """Scan as the push service does, to the end or up to some rows, and add what it took to `found`."""
    memory = psutil.Process()
    resident = memory.memory_info().rss
    started = built = time.perf_counter()
    cpu_started = cpu_built = time.process_time()
    steps = 0
    while source.end is None and (stop_rows is None or source.rows < stop_rows):
        building = scan is not None and not scan.past.ready
        before = time.thread_time()
        if source.wants_step:
            source.step()
        while source.take(PAYLOAD_BYTES, BLOCK_ROWS) is not None:
            pass
        took_ms = round((time.thread_time() - before) * 1000, 2)
        if building:
            built, cpu_built = time.perf_counter(), time.process_time()
            found.build_step_ms = max(found.build_step_ms, took_ms)
        else:
            found.read_step_ms = max(found.read_step_ms, took_ms)
        if scan is not None:
            found.overlay_bytes = max(found.overlay_bytes, scan.past.overlay.memory_bytes)
        steps += 1
        if steps % SAMPLE_STEPS == 0:
            found.resident_growth_bytes = max(
                found.resident_growth_bytes, memory.memory_info().rss - resident
            )
    found.build_s = round(found.build_s + built - started, 3)
    found.read_s = round(found.read_s + time.perf_counter() - built, 3)
    found.build_cpu_s = round(found.build_cpu_s + cpu_built - cpu_started, 3)
    found.read_cpu_s = round(found.read_cpu_s + time.process_time() - cpu_built, 3)
    found.rows, found.digest = source.rows, source.digest
    if scan is not None:
        found.entries = scan.past.overlay.entries
        found.spilled_bytes = max(found.spilled_bytes, scan.past.overlay.spilled_bytes)
    position = source.position
    before = time.thread_time()
    source.close()
    found.close_ms = max(found.close_ms, round((time.thread_time() - before) * 1000, 2))
    return position


def bars(measured: Measured) -> list[Bar]:
    """What must hold: exactly the state at that time, whole and in pieces, in the memory that is allowed."""
    then = (measured.prepared.rows, f"{measured.prepared.digest:08x}")
    growth_max = measured.bytes_max + SPARE_BYTES
    found = []
    for name, scan in (("as-of scan", measured.as_of), ("as-of scan cut three times", measured.cut)):
        outcome = (scan.rows, f"{scan.digest:08x}")
        found += [
            Bar(f"{name}: rows and digest", outcome, f"= {then}", outcome == then),
            at_most(f"{name}: bytes of the overlay", scan.overlay_bytes, measured.bytes_max),
            at_most(f"{name}: bytes that resident memory grew by", scan.resident_growth_bytes, growth_max),
        ]
    return found


def figures(measured: Measured) -> dict[str, float]:
    """The speeds, by the clock and by the CPU: where others use the machine too, only the latter can be compared."""
    live, as_of, changes = measured.live, measured.as_of, measured.prepared.changes
    return {
        "changes_per_s": _rate(changes, as_of.build_s),
        "rows_per_s": _rate(as_of.rows, as_of.read_s),
        "live_rows_per_s": _rate(live.rows, live.read_s),
        "changes_per_cpu_s": _rate(changes, as_of.build_cpu_s),
        "rows_per_cpu_s": _rate(as_of.rows, as_of.read_cpu_s),
        "live_rows_per_cpu_s": _rate(live.rows, live.read_cpu_s),
    }


def _rate(count: int, seconds: float) -> float:
    return round(count / max(seconds, 1e-6))


def _table(measured: Measured) -> Table:
    speeds = figures(measured)
    table = Table(
        title=f"{measured.prepared.rows} rows as of {measured.prepared.changes} changes ago",
        caption=f"{speeds['changes_per_s']:,.0f} changes/s, then {speeds['rows_per_s']:,.0f} rows/s;"
        f" live {speeds['live_rows_per_s']:,.0f} rows/s.\nBy CPU: {speeds['changes_per_cpu_s']:,.0f} changes/s,"
        f" then {speeds['rows_per_cpu_s']:,.0f} rows/s; live {speeds['live_rows_per_cpu_s']:,.0f} rows/s.",
        padding=0,
    )
    table.add_column("scan")
    columns: dict[str, Callable[[Pass], str]] = {
        "rows": lambda scan: f"{scan.rows}",
        "build s": lambda scan: f"{scan.build_s:.2f}",
        "read s": lambda scan: f"{scan.read_s:.2f}",
        "CPU ms:\nbuild step": lambda scan: f"{scan.build_step_ms:.1f}",
        "read step": lambda scan: f"{scan.read_step_ms:.1f}",
        "close": lambda scan: f"{scan.close_ms:.1f}",
        "overlay\nMiB": lambda scan: f"{scan.overlay_bytes / MIB:.1f}",
        "spilled\nMiB": lambda scan: f"{scan.spilled_bytes / MIB:.1f}",
        "process grew\nMiB": lambda scan: f"{scan.resident_growth_bytes / MIB:.1f}",
    }
    for heading in columns:
        table.add_column(heading, justify="right")
    for name, scan in (("live", measured.live), ("as of", measured.as_of), ("as of, cut", measured.cut)):
        table.add_row(name, *(cell(scan) for cell in columns.values()))
    return table


def run(
    output: Path | None, console: Console, *, rows: int, changes: int, request_rows: int, memory_mib: int
) -> list[Bar]:
    """Measure, write the JSON, and print."""
    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory) / "data"
        console.print(f"loading {rows} rows and {changes} changes ...")
        prepared: Prepared = _in_fresh_process(prepare, data, rows, changes, request_rows)
        console.print("scanning ...")
        measured: Measured = _in_fresh_process(measure, data, prepared, memory_mib * MIB)
    judged = write_json(output, bars(measured), figures=figures(measured), measured=measured)
    console.print(_table(measured))
    return judged


def _in_fresh_process(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What was loaded before must not count, so each part has a process of its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args, **kwargs).result()
