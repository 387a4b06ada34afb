"""A server in a process of its own that can be asked what it holds, killed, and started again on the same port.

It is `scanner.server.server.open_server` as `weir serve` runs it, with two differences: it tells its statistics over a
pipe, and its buffers and its patience can be made small, so that minutes of a real server's life fit into seconds.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Self

import psutil
import trio

from bench.harness.errors import BenchFailed
from bench.harness.idle import raise_descriptor_limit
from bench.harness.ports import free_port
from scanner.cli.warm_up import warm_up
from scanner.server.config import ScannerConfig
from scanner.server.log import log_scan
from scanner.server.pull import fetch
from scanner.server.server import Server, open_server
from scanner.sources import log_blocks
from scanner.storage.rocksdb.config import StorageConfig
from scanner.wire.arrow_ipc import EncodedRows, encode_rows
from transport import TransportConfig

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

    import pyarrow as pa

READY_TIMEOUT_S = 120.0
EXIT_TIMEOUT_S = 100.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What differs from a server as it comes."""

    park_after_s: float = ScannerConfig().park_after_s
    linger_s: float = ScannerConfig().snapshot_linger_s
    write_buffer_bytes: int = StorageConfig().bucket_write_buffer_bytes
    """Smaller: more files, and compaction that begins sooner."""
    scans_max: int = ScannerConfig().scans_max
    """For more tails than a server takes by itself."""
    images: str = ScannerConfig().images
    """`off`: every scan reads the row store, however often it comes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """What a server says that it holds, and has done."""

    iterators: int
    """Scans that hold a RocksDB iterator, or may."""
    snapshots: int
    """RocksDB snapshots, held or lingering."""
    parked: int
    sessions: int
    page_snapshots: int
    """Scans by token between two pages."""
    seeks: int
    """Since its start."""
    calls: int
    """Since its start."""
    sent_bytes: int
    """Octets written to sockets since its start."""
    scan_rows: int
    """Rows that push streams have delivered, as far as the server knows."""
    encoded_rows: int = 0
    """Changes that were encoded for tails and fetches since its start."""
    read_sources: Mapping[str, int] = field(default_factory=dict)
    """Scans and pages continued, by what they were read from."""


class ServerProcess:
    """A server for the length of a block.

    Args:
        data: Its directory; made by the server, and kept when it ends.
        settings: See there.

    Raises:
        BenchFailed: It does not come up, or not in time.
    """

    def __init__(self, data: Path, settings: Settings | None = None) -> None:
        self._data = data
        self._settings = settings or Settings()
        self._port = free_port()
        self._process: SpawnProcess | None = None
        self._pipe: Connection | None = None

    @property
    def endpoint(self) -> str:
        """HOST:PORT, the same after a restart."""
        return f"127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.is_alive():
            self._process.terminate()
            self._process.join(EXIT_TIMEOUT_S)
        self.kill()

    def start(self) -> None:
        """Start it, and wait until it listens."""
        context = multiprocessing.get_context("spawn")
        self._pipe, far = context.Pipe()
        self._process = context.Process(
            target=serve, args=(self._data, self._port, self._settings, far), daemon=True
        )
        self._process.start()
        far.close()
        if not self._pipe.poll(READY_TIMEOUT_S):
            raise BenchFailed(f"the server was not ready within {READY_TIMEOUT_S:.0f} s")
        try:
            self._pipe.recv()
        except EOFError as error:
            raise BenchFailed("the server ended before it listened") from error

    def kill(self) -> None:
        """End it at once, as `kill -9` does. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None

    def held(self) -> Held:
        """Ask it what it holds now."""
        assert self._pipe is not None
        self._pipe.send("held")
        if not self._pipe.poll(READY_TIMEOUT_S):
            raise BenchFailed(f"the server did not answer within {READY_TIMEOUT_S:.0f} s")
        answer = self._pipe.recv()
        assert isinstance(answer, Held)
        return answer

    def resident_bytes(self) -> int:
        """The resident memory of its process now."""
        assert self._process is not None
        assert self._process.pid is not None
        return int(psutil.Process(self._process.pid).memory_info().rss)

    def cpu_s(self) -> float:
        """CPU seconds of its process so far."""
        assert self._process is not None
        assert self._process.pid is not None
        times = psutil.Process(self._process.pid).cpu_times()
        return float(times.user + times.system)

    def table_file_bytes(self) -> int:
        """Bytes of RocksDB's table files now, those that only a pinned snapshot keeps included."""
        total = 0
        for folder, _, names in os.walk(self._data):
            for name in names:
                if name.endswith(".sst"):
                    try:
                        total += os.stat(os.path.join(folder, name)).st_size
                    except FileNotFoundError:  # compaction has deleted it meanwhile
                        continue
        return total


def serve(data: Path, port: int, settings: Settings, pipe: Connection) -> None:
    """Run a server until SIGTERM, or until whoever started it is gone."""
    # A Ctrl-C at the terminal reaches the bench, which ends its processes in good order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    trio.run(_serve, data, port, settings, pipe)


async def _serve(data: Path, port: int, settings: Settings, pipe: Connection) -> None:
    raise_descriptor_limit()
    encoded = EncodedChanges()
    warm_up()
    config = ScannerConfig(
        park_after_s=settings.park_after_s,
        snapshot_linger_s=settings.linger_s,
        scans_max=settings.scans_max,
        images=settings.images,
    )
    storage = StorageConfig(bucket_write_buffer_bytes=settings.write_buffer_bytes)
    serving = open_server(
        data,
        "127.0.0.1",
        port,
        config,
        storage_config=storage,
        transport_config=TransportConfig(drain_timeout_s=1.0),
    )
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with serving as server, trio.open_nursery() as nursery:
            pipe.send("ready")
            nursery.start_soon(_answer_forever, server, encoded, pipe, nursery.cancel_scope)
            await anext(signals)
            nursery.cancel_scope.cancel()


async def _answer_forever(
    server: Server, encoded: EncodedChanges, pipe: Connection, scope: trio.CancelScope
) -> None:
    receive = functools.partial(trio.to_thread.run_sync, pipe.recv, abandon_on_cancel=True)
    while True:
        try:
            await receive()
        except EOFError:
            scope.cancel()
            return
        pipe.send(_held(server, encoded))


def _held(server: Server, encoded: EncodedChanges) -> Held:
    now = server.statistics()
    return Held(
        iterators=now.iterators_open,
        snapshots=now.snapshots_open,
        parked=now.scans_parked,
        sessions=now.sessions_open,
        page_snapshots=now.page_snapshots_kept,
        seeks=now.activity.seeks,
        calls=now.transport.totals.streams,
        sent_bytes=now.transport.totals.bytes_sent,
        scan_rows=now.activity.scan_rows,
        encoded_rows=encoded.rows,
        read_sources={str(read_source): count for read_source, count in now.activity.scans_resumed.items()},
    )


class EncodedChanges:
    """Counts what is encoded for tails and fetches, where it is done: in this process from now on."""

    def __init__(self) -> None:
        self.rows = 0
        modules: tuple[ModuleType, ...] = (log_blocks, log_scan, fetch)
        for module in modules:
            module.encode_rows = self._encode  # type: ignore[attr-defined]

    def _encode(self, batch: pa.RecordBatch) -> EncodedRows:
        self.rows += batch.num_rows
        return encode_rows(batch)
