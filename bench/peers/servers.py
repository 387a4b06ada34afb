"""The servers that are compared, each with the same rows."""

from __future__ import annotations

import shutil
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq

import scanner.sync
from bench.harness.ports import free_port
from bench.harness.processes import Peer, running_peer
from bench.harness.server import running_server
from bench.peers.rows import PRIMARY_KEY, SCHEMA, Width, pieces
from bench.peers.serving import serve_flight, serve_grpcio

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bench.harness.certificates import Certificates

TABLE: Final = "rows"
_ROW_GROUP_ROWS: Final = 122_880


@dataclass(frozen=True, slots=True)
class Stored:
    """The same rows at rest; a data directory has one server at a time."""

    plain: Path
    """Data directory without images."""
    image: Path
    """One with a fresh image of every bucket."""
    parquet: Path
    buckets: int

    def copy_of(self, name: str) -> Path:
        """The data directory once more, for a server beside the others."""
        place = self.plain.with_name(name)
        return place if place.exists() else Path(shutil.copytree(self.plain, place))


@dataclass(frozen=True, slots=True)
class Servers:
    """One of each, at work."""

    weir: Peer
    image: Peer
    """weir with images."""
    image_metrics_port: int
    peers: Mapping[str, Peer]
    """`flight` and `grpcio`."""


def load(
    endpoint: str, width: Width, rows: int, buckets: int, parquet: Path | None = None, table: str = TABLE
) -> None:
    """Write the rows to a new table of a server and, if it is asked for, to a file."""
    with ExitStack() as stack:
        client = stack.enter_context(scanner.sync.connect(endpoint))
        file = None
        if parquet is not None:
            # No text comes twice: without a dictionary and by LZ4 the file is smaller, and read in half of the CPU.
            file = stack.enter_context(
                pq.ParquetWriter(parquet, SCHEMA, compression="lz4", use_dictionary=False)
            )
        target = client.create_table(table, SCHEMA, list(PRIMARY_KEY), buckets)
        for piece in pieces(width, rows):
            target.write(piece)
            if file is not None:
                file.write_table(piece, row_group_size=_ROW_GROUP_ROWS)


def store(scratch: Path, width: Width, rows: int, buckets: int) -> Stored:
    """Load the rows into a directory, with images and without, and into a file."""
    stored = Stored(scratch / "weir", scratch / "image", scratch / "rows.parquet", buckets)
    with running_server(stored.plain) as server:
        load(server.endpoint, width, rows, buckets, stored.parquet)
    shutil.copytree(stored.plain, stored.image)
    with running_server(stored.image) as server, scanner.sync.connect(server.endpoint) as client:
        client.make_images(TABLE)
    return stored


@contextmanager
def running_weir(
    data: Path, certificates: Certificates | None = None, metrics_port: int | None = None
) -> Iterator[Peer]:
    """Start `weir serve` for a block."""
    options = [] if metrics_port is None else ["--metrics-port", str(metrics_port)]
    if certificates is not None:
        options += ["--tls-cert", str(certificates.certificate), "--tls-key", str(certificates.key)]
    with running_server(data, *options) as server:
        yield server


@contextmanager
def running_peers(stored: Stored, certificates: Certificates | None) -> Iterator[dict[str, Peer]]:
    """Start `flight` and `grpcio` for a block; with TLS if there are certificates."""
    with (
        running_peer(serve_flight, stored.copy_of("flight"), certificates) as flight,
        running_peer(serve_grpcio, stored.copy_of("grpcio"), certificates) as grpcio,
    ):
        yield {"flight": flight, "grpcio": grpcio}


@contextmanager
def running_servers(stored: Stored, certificates: Certificates | None = None) -> Iterator[Servers]:
    """Start all of them for a block; with TLS if there are certificates."""
    metrics_port = free_port()
    with (
        running_weir(stored.plain, certificates) as weir,
        running_weir(stored.image, certificates, metrics_port) as image,
        running_peers(stored, certificates) as peers,
    ):
        yield Servers(weir, image, metrics_port, peers)
