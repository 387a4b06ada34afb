"""A server with a table to be attacked, and what must be true of it afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

import scanner.sync
from bench.attacks import BY_NAME
from bench.attacks.peer import Ended, RawPeer
from bench.attacks.scans import TABLE
from tests.support.server import RunningServer, running_server

if TYPE_CHECKING:
    from bench.attacks.attack import Attack
    from scanner.server.config import ScannerConfig
    from scanner.server.server import ScannerStatistics
    from transport import TransportConfig

ROWS = 20_000


@contextmanager
def victim(
    data: Path, transport_config: TransportConfig | None = None, config: ScannerConfig | None = None
) -> Iterator[RunningServer]:
    """Serve the table that the attacks know; it was written under limits that no machine is too slow for."""
    with running_server(data) as server, scanner.sync.connect(server.endpoint) as client:
        schema = pa.schema([("k", pa.int64()), ("text", pa.string())])
        table = client.create_table(TABLE, schema, ["k"], 1)
        rows = {"k": range(ROWS), "text": [f"{number:050}" for number in range(ROWS)]}
        table.write(pa.table(rows, schema=schema))
    with running_server(data, config, transport_config=transport_config) as server:
        yield server


def ends(attacks: tuple[Attack, ...], *spared: str) -> list[str]:
    """The names of those of `attacks` that a server must not bear."""
    return [attack.name for attack in attacks if attack.name not in spared]


@contextmanager
def attacked(server: RunningServer, name: str) -> Iterator[RawPeer]:
    """Do it once; the attacker stays connected while the block runs, if the server bears it.

    Afterwards the server serves as before, and holds nothing of the attacker.
    """
    attack = BY_NAME[name]
    with RawPeer(server.endpoint, hello=attack.hello, reads=attack.reads) as peer:
        try:
            attack.run(peer)
        except Ended:
            peer.wait_ended()
        yield peer
        serves(server)
    holds_nothing(server)


def serves(server: RunningServer) -> None:
    """A well-behaved client gets all that it asks for."""
    with scanner.sync.connect(server.endpoint) as client:
        assert client.table(TABLE).new_scan().to_arrow().num_rows == ROWS


def holds_nothing(server: RunningServer) -> None:
    """The server comes to hold no connection, no call, no scan, and no octet of them."""
    server.wait_until(lambda server: not any(_held(server.statistics())))


def _held(now: ScannerStatistics) -> tuple[int, ...]:
    transport = now.transport
    return (
        transport.connections,
        transport.streams,
        transport.unsent_bytes,
        transport.buffered_bytes,
        now.push_scans_open,
        now.iterators_open,
    )
