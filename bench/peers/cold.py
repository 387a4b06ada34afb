"""Full scans by a server that has just started, of files that are not in the page cache. Nothing is judged by them.

Before each scan the server is started anew and the kernel is asked to forget the files of the table; how much was then
fetched from the disk is measured, too. Where that is nothing the files are not on a disk, and a scan was not cold.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.harness.processes import Peer, running_peer, running_worker
from bench.peers.reading import Reading, reader
from bench.peers.scans import Scanned, Way, measure_scan, warm_up
from bench.peers.servers import TABLE, Stored, running_weir, store
from bench.peers.serving import serve_flight, serve_grpcio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.peers.rows import Width

WAYS: Final = (
    "push",
    "session",
    "push, image",
    "session, image",
    "flight storage",
    "grpcio storage",
    "parquet",
    "duckdb",
)


def measure(width: Width, rows: int, rounds: int, log: Callable[[str], object]) -> list[Scanned]:
    """Read a table of one bucket by every way in every round, each time as if for the first time.

    Raises:
        BenchFailed: A way read another number of rows, or a process did not answer.
    """
    found = [Scanned(width=width.name, buckets=1, way=way, rows=rows) for way in WAYS]
    with tempfile.TemporaryDirectory() as directory, running_worker(reader) as worker:
        stored = store(Path(directory), width, rows, 1)
        for number in range(rounds + 1):  # The first one is for what the client loads.
            log(f"cold: round {number} of {rounds}")
            for scanned in found:
                with _cold(scanned.way, stored) as way:
                    if number:
                        measure_scan(way, worker, rows, scanned)
                    else:
                        warm_up(way, worker, rows, scanned)
    return found


@contextmanager
def _cold(name: str, stored: Stored) -> Iterator[Way]:
    """One way, with a server that nobody has asked anything, and without its files in the page cache."""
    how, _, kind = name.partition(" ")
    how = how.rstrip(",")
    directory = stored.image if kind == "image" else stored.plain
    if how in ("parquet", "duckdb"):
        forget(stored.parquet)
        yield Way(name, None, Reading(way=how, place=str(stored.parquet), table=TABLE, buckets=1))
        return
    with _server(how, directory) as peer:
        forget(directory)
        yield Way(name, peer, Reading(way=how, place=peer.endpoint, table=TABLE, buckets=1))


def _server(how: str, directory: Path) -> AbstractContextManager[Peer]:
    if how == "flight":
        return running_peer(serve_flight, directory, None)
    if how == "grpcio":
        return running_peer(serve_grpcio, directory, None)
    return running_weir(directory)


def forget(path: Path) -> None:
    """Write a file, or all files of a directory, to the disk, and drop them from the page cache."""
    for each in path.rglob("*") if path.is_dir() else [path]:
        if not each.is_file():
            continue
        descriptor = os.open(each, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
