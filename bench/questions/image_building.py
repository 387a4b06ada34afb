"""What does making an image cost the scans and writes beside it, and would a process of its own cost less?

One bucket of a table of some 80 octets a row. One client scans ten rows at a time, from keys spread over the table, and
writes ten rows after every tenth scan. It does so beside nothing else, then while the server makes an image of the
bucket in a thread, then while a process of its own makes one of a checkpoint, at the lowest priority and the same share
of a core, and so on in turn. Measured are the times of the scans and of the writes, and the CPU of all.

What was expected: reading takes the event loop for milliseconds at a time, decoding and encoding take the GIL in a
thread; a short scan waits for either. A process takes neither, and costs a start, a checkpoint and its own memory.

What was found with 2 000 000 rows and 4 rounds, on two cores that eight others used too (load 4 to 9): a ten-row scan
takes 5.1 ms beside nothing, 6.7 beside the thread, 7.3 beside the process (p99: 12.8, 20.7 and 23.5), and a write 3.8,
5.3 and 5.1 ms. So what a short scan feels is the core and the disk, not the GIL, and a process is no better; at the
lowest priority it also took six times as long. The server keeps its thread.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil
from rich.table import Table

import scanner.sync
from bench.harness.bars import Bar, at_most, write_json
from bench.harness.errors import BenchFailed
from bench.harness.processes import Peer, running_process
from bench.harness.server import running_server
from bench.questions.image import LOAD_ROWS, SCHEMA, sample_rows
from scanner.data.keys import KeyCodec
from scanner.data.rows import RowCodec, keys_of_rows
from scanner.sources.image_builder import ImageBuilder
from scanner.storage.images.format import ImageHeader, block_payload_bytes
from scanner.storage.images.writer import ImageWriter
from scanner.storage.rocksdb.catalog import load_catalog
from scanner.storage.rocksdb.checkpoints import list_checkpoints, open_checkpoint
from scanner.storage.rocksdb.config import StorageConfig
from scanner.storage.rocksdb.data_directory import bucket_name, checkpoints_directory
from scanner.storage.rocksdb.database import RocksResources

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from rich.console import Console

TABLE: Final = "rows"
SCAN_ROWS: Final = 10
IDLE_S: Final = 10.0
"""How long it is measured beside nothing, each time."""
RATIO_MAX: Final = 2.0
CORE_SHARE: Final = 0.2
"""That the process takes, as the server's thread does."""
_STEP: Final = 7919
"""From a scan's key to that of the next, a prime: the keys are spread."""
_NOTHING, _SERVER, _PROCESS = "nothing", "an image by the server", "an image by a process"


@dataclass(frozen=True, slots=True)
class Beside:
    """Scans and writes beside one thing."""

    what: str
    seconds: float
    scan_s: list[float]
    write_s: list[float]
    cpu_share: float
    """Of one core, by the server and by the process."""


def run(output: Path | None, console: Console, *, rows: int, rounds: int) -> list[Bar]:
    """Measure, write the JSON, and print."""
    with (
        tempfile.TemporaryDirectory() as folder,
        running_server(Path(folder) / "data", "--checkpoint-interval", "0") as server,
        scanner.sync.connect(server.endpoint) as client,
    ):
        data = Path(folder) / "data"
        table = client.create_table(TABLE, SCHEMA, primary_key=["id"], buckets=1)
        for start in range(0, rows, LOAD_ROWS):
            table.write(sample_rows(range(start, min(rows, start + LOAD_ROWS)), 0))
        found = []
        for _ in range(rounds):
            with _running(lambda: time.sleep(IDLE_S)) as goes_on:
                found.append(_measure(table, rows, _NOTHING, goes_on))
            with _running(lambda: _make(server)) as goes_on:
                found.append(_measure(table, rows, _SERVER, goes_on))
            with _running(lambda: _make_beside(server, data)) as goes_on:
                found.append(_measure(table, rows, _PROCESS, goes_on))
    judged = write_json(output, bars(found), measured=found)
    console.print(_shown(found))
    return judged


def bars(found: list[Beside]) -> list[Bar]:
    """What must hold: a short scan hardly notices."""
    ratio = _percentile(_scans(_SERVER, found), 99) / _percentile(_scans(_NOTHING, found), 99)
    what = "p99 of a ten-row scan while the server makes an image, by that while it does not"
    return [at_most(what, ratio, RATIO_MAX)]


@contextmanager
def _running(make: Callable[[], None]) -> Iterator[Callable[[], bool]]:
    """Run something in a thread for the length of a block, or longer; tells whether it still runs."""
    failures: list[Exception] = []

    def target() -> None:
        try:
            make()
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    yield thread.is_alive
    thread.join()
    if failures:
        raise failures[0]


def _make(server: Peer) -> None:
    with scanner.sync.connect(server.endpoint) as client:
        client.make_images(TABLE)


def _make_beside(server: Peer, data: Path) -> None:
    with scanner.sync.connect(server.endpoint) as client:
        client.checkpoint(TABLE)
    image = data.with_name("image")
    with running_process(build, data, TABLE, image) as (_, done):
        done.recv()


def build(data: Path, table: str, path: Path, done: Connection) -> None:
    """Write an image of the newest checkpoint of a table's only bucket, at the lowest priority; then say so.

    Args:
        data: The data directory of a server that runs.
        table: Has one bucket, and a checkpoint.
        path: Of the image.
        done: Gets None at the end.
    """
    os.nice(19)
    catalog = load_catalog(data)
    assert catalog is not None
    entry = catalog.tables[table]
    schema, key_codec = entry.description.schema, KeyCodec(entry.description)
    codec = RowCodec(schema, entry.schema_id, dict(enumerate(entry.older_schemas)))
    directory = checkpoints_directory(data, entry.table_id) / bucket_name(0)
    checkpoint = list_checkpoints(directory)[-1]
    resources = RocksResources(StorageConfig(block_cache_bytes=8 << 20))
    snapshot = open_checkpoint(
        directory,
        checkpoint.checkpoint_id,
        resources,
        lambda rows: keys_of_rows(rows, codec, key_codec),
        lambda _: None,
    )
    header = ImageHeader(
        entry.table_id, 0, entry.schema_id, checkpoint.log_offset, checkpoint.history, schema
    )
    writer = ImageWriter(path, header, 1 << 40)
    builder = ImageBuilder(snapshot.scan(), writer, codec, key_codec, block_payload_bytes(1))
    more = True
    while more:
        begun_at = time.process_time()
        more = builder.read()
        builder.write()
        time.sleep((time.process_time() - begun_at) * (1 / CORE_SHARE - 1))
    writer.finish()
    snapshot.close()
    done.send(None)


def _measure(table: scanner.sync.Table, rows: int, what: str, goes_on: Callable[[], bool]) -> Beside:
    scan_s: list[float] = []
    write_s: list[float] = []
    cpu, started = _cpu_s(), time.perf_counter()
    at = 0
    while goes_on():
        at = (at + _STEP) % (rows - SCAN_ROWS)
        begun = time.perf_counter()
        table.new_scan().key_range((at,), (at + SCAN_ROWS,)).to_arrow()
        scan_s.append(time.perf_counter() - begun)
        if len(scan_s) % 10 == 0:
            begun = time.perf_counter()
            table.write(sample_rows(range(at, at + SCAN_ROWS), 1))
            write_s.append(time.perf_counter() - begun)
    seconds = time.perf_counter() - started
    if len(write_s) < 2:
        raise BenchFailed(f"{what} was over after {seconds:.2f} s, too soon to measure: take more --rows")
    return Beside(what, seconds, scan_s, write_s, (_cpu_s() - cpu) / seconds)


def _cpu_s() -> float:
    """CPU seconds of the children of this process, those that have ended included."""
    this = psutil.Process()
    ended = this.cpu_times()
    return float(
        ended.children_user
        + ended.children_system
        + sum(sum(child.cpu_times()[:2]) for child in this.children())
    )


def _scans(what: str, found: list[Beside]) -> list[float]:
    return [seconds for each in found if each.what == what for seconds in each.scan_s]


def _writes(what: str, found: list[Beside]) -> list[float]:
    return [seconds for each in found if each.what == what for seconds in each.write_s]


def _percentile(seconds: list[float], percent: int) -> float:
    return statistics.quantiles(seconds, n=100, method="inclusive")[percent - 1]


def _shown(found: list[Beside]) -> Table:
    shown = Table(
        "beside", "seconds", "scans", "p50, ms", "p99", "max", "writes: p50, ms", "p99", "max", "CPU"
    )
    for what in (_NOTHING, _SERVER, _PROCESS):
        these = [each for each in found if each.what == what]
        cells = []
        for times in (_scans(what, found), _writes(what, found)):
            cells += [f"{1000 * _percentile(times, percent):.1f}" for percent in (50, 99)]
            cells.append(f"{1000 * max(times):.1f}")
        shown.add_row(
            what,
            f"{sum(each.seconds for each in these):.0f}",
            str(len(_scans(what, found))),
            *cells,
            f"{statistics.median(each.cpu_share for each in these):.2f}",
        )
    return shown
