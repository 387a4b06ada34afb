"""Servers for campaigns: one in memory on a virtual clock, and one that is a process and gets killed."""

from __future__ import annotations

import enum
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio
import trio.testing

import scanner
from bench.cutting.campaign import Between, Campaign, Shape
from bench.cutting.truth import DESCRIPTION, TABLE, Truth
from bench.harness.errors import BenchFailed
from bench.harness.images import damage_image, give_image
from bench.harness.ledger import rows as rows_of
from bench.harness.ports import free_port
from bench.harness.scheduling import seeded_scheduling
from bench.simulation.network import Network
from bench.simulation.pipes import Line
from scanner.data.rows import RowCodec
from scanner.server.config import ScannerConfig
from scanner.server.server import Server, open_server

if TYPE_CHECKING:
    from scanner.server.tables.bucket import ServedBucket
    from scanner.storage.interface import Store

CONFIG: Final = ScannerConfig(block_rows_max=64, block_bytes_max=8192)
IMAGE_ROWS: Final = 30
"""Of a block: many blocks, few of them as large as a batch."""
READY_PREFIX: Final = b"listening on "
READY_TIMEOUT_S: Final = 300.0
"""Long, for a machine that is busy with other things."""
KILL_TIMEOUT_S: Final = 10.0


class ImageFate(enum.Enum):
    """Whether the bucket has an image, and what becomes of it."""

    NONE = "none"
    KEPT = "kept"
    """It is made of the first rows, and stays; what is written meanwhile is laid over it."""
    IN_TURNS = "in turns"
    """While a scan is cut off, it is dropped if there is one, and made if there is none: scans that began with it go on
    without, and the other way round, as of an offset before the image's."""
    DAMAGED = "damaged"
    """While a scan is cut off, its file is damaged, or made anew if that was found."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """What happens around the cuts."""

    name: str
    mode: str = "push"
    source: str = "live_kv"
    credit_bytes: int = 6_000
    """By push."""
    writes_before: int = 0
    """Writes after the first rows, before any scan: HYBRID shows them as changes, behind the snapshot of the rows."""
    write_every: int | None = None
    """Batches of the scan after which the table is written to."""
    writes_between: int = 0
    """Writes while the scan is cut off."""
    connections_cut: int = 1
    """Connections in a row that are cut at the same place."""
    empties_registry: bool = False
    """The server forgets every snapshot that nobody holds, so that the state has to be rebuilt."""
    compacts: bool = False
    """A checkpoint is made and the bucket compacted while the scan is cut off."""
    image: ImageFate = ImageFate.NONE
    """Other than NONE: only over a store that keeps images."""

    @property
    def config(self) -> ScannerConfig:
        """Of the server: damage is to be met, and not what was read before it."""
        return replace(CONFIG, image_cache_bytes_max=0) if self.image is ImageFate.DAMAGED else CONFIG

    def shape(self, loaded: int) -> Shape:
        """How the table is scanned.

        Args:
            loaded: The log offset behind the first rows.
        """
        return Shape(
            mode=self.mode,
            source=self.source,
            begins_at=loaded if self.source == "hybrid" else 0,
            credit_bytes=self.credit_bytes,
            write_every=self.write_every,
            connections_cut=self.connections_cut,
        )


QUIET: Final = Scenario(name="quiet")
HYBRID: Final = Scenario(name="hybrid", source="hybrid", writes_before=6)
IMAGE_WRITER: Final = Scenario(name="image-writer", image=ImageFate.KEPT, write_every=20, writes_between=2)
LOG: Final = Scenario(name="log", source="log", writes_before=6)
SCENARIOS: Final = (
    QUIET,
    Scenario(name="writer", write_every=20, writes_between=2),
    Scenario(name="emptied-registry", writes_between=2, empties_registry=True),
    Scenario(name="compaction", writes_between=2, empties_registry=True, compacts=True),
    Scenario(name="cut-four-times", writes_between=1, connections_cut=4),
    *(Scenario(name=mode, mode=mode) for mode in ("session", "token", "cursor", "asof")),
    Scenario(name="token-writer", mode="token", write_every=20, writes_between=2),
    Scenario(name="asof-writer", mode="asof", write_every=20, writes_between=2),
    HYBRID,
    Scenario(name="hybrid-writer", source="hybrid", writes_before=6, write_every=20, writes_between=2),
    LOG,
    Scenario(name="image", image=ImageFate.KEPT),
    IMAGE_WRITER,
    Scenario(
        name="image-in-turns",
        image=ImageFate.IN_TURNS,
        write_every=20,
        writes_between=2,
        empties_registry=True,
    ),
    Scenario(name="image-damaged", image=ImageFate.DAMAGED, write_every=20, writes_between=1),
    Scenario(name="image-session", image=ImageFate.KEPT, mode="session", write_every=20),
    Scenario(name="image-token", image=ImageFate.KEPT, mode="token", write_every=20, writes_between=1),
    Scenario(name="image-asof", image=ImageFate.IN_TURNS, mode="asof", write_every=20, writes_between=1),
    Scenario(name="image-hybrid", image=ImageFate.KEPT, source="hybrid", writes_before=6, writes_between=2),
)


@asynccontextmanager
async def open_campaign(
    store: Store, keys: int, scenario: Scenario, rng: random.Random
) -> AsyncIterator[Campaign]:
    """Serve a fresh table from an empty store, over connections in memory.

    Args:
        store: Does not block, or may: nothing else runs in its thread.
        keys: Rows of the table.
        scenario: What happens.
        rng: Of everything that is left to chance.
    """
    store.create_table(DESCRIPTION)
    network = Network(lambda _connection, _fault: None)

    async def dial() -> trio.abc.Stream:
        return await network.dial("client", Line())

    with seeded_scheduling(rng.getrandbits(32)) as begin_anew:
        async with (
            open_server(store, listener=network.listen(), config=scenario.config) as server,
            scanner.connect("127.0.0.1", dial=dial) as client,
        ):
            table = await client.table(TABLE)
            truth = await load(table, keys, rng)
            shape = scenario.shape(truth.changes)
            if scenario.image is not ImageFate.NONE:
                give_image(_served(server), store, TABLE, 0, IMAGE_ROWS)
            for _ in range(scenario.writes_before):
                await truth.write(table)
            between = _between(scenario, truth, table, client, server, store, rng)

            async def same_order() -> None:
                """How many frames a scan is depends on the turns that tasks take: from 18 to 44 in a small table."""
                await trio.testing.wait_all_tasks_blocked()
                begin_anew()

            yield Campaign(dial, truth, shape, writer=table, rng=rng, between=between, before_each=same_order)


async def load(table: scanner.Table, keys: int, rng: random.Random) -> Truth:
    """Write the rows that are there to begin with."""
    result = await table.write(rows_of(list(range(keys)), 0))
    end = max(end for _, _, end in result.ranges)
    return Truth(RowCodec(DESCRIPTION.schema), keys, end, rng)


def _between(
    scenario: Scenario,
    truth: Truth,
    table: scanner.Table,
    client: scanner.Client,
    server: Server,
    store: Store,
    rng: random.Random,
) -> list[Between]:
    async def write() -> None:
        for _ in range(scenario.writes_between):
            await truth.write(table)

    async def compact() -> None:
        await client.checkpoint(TABLE)
        store.bucket(TABLE, 0).compact()

    async def empty() -> None:
        await trio.testing.wait_all_tasks_blocked()  # the server has noticed that the connection is gone
        for _, _, bucket in server._services.catalog.open_buckets():
            bucket.snapshots.clear()

    async def change_image() -> None:
        served = _served(server)
        image = served.image.current
        if image is None:
            give_image(served, store, TABLE, 0, IMAGE_ROWS)
        elif scenario.image is ImageFate.IN_TURNS:
            served.image.drop()
        else:
            damage_image(image.path, rng)

    happenings: list[Between] = []
    if scenario.empties_registry:
        happenings.append(empty)
    if scenario.writes_between:
        happenings.append(write)
    if scenario.compacts:
        happenings.append(compact)
    if scenario.image in {ImageFate.IN_TURNS, ImageFate.DAMAGED}:
        happenings.append(change_image)
    return happenings


def _served(server: Server) -> ServedBucket:
    """The bucket of a table that was used."""
    ((_, _, bucket),) = server._services.catalog.open_buckets()
    return bucket


class KilledServer:
    """`weir serve` on a data directory, killed and started again at will. Made by `open_killed_server`.

    Args:
        data: The data directory.
        options: Further options of `weir serve`.
        same_port: Start it on the same port each time.
    """

    def __init__(self, data: Path, options: tuple[str, ...], *, same_port: bool = False) -> None:
        self._command = [
            sys.executable,
            "-m",
            "scanner.cli",
            "serve",
            "--data",
            str(data),
            *options,
            "--port",
            # Not one of those that others are given while it is away.
            str(free_port() if same_port else 0),
        ]
        self._process: trio.Process | None = None
        self.endpoint = ""
        """HOST:PORT of the process that runs now."""

    async def start(self) -> None:
        """Start it, and wait until it listens.

        Raises:
            BenchFailed: It does not.
        """
        self._process = await trio.lowlevel.open_process(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self._process.stdout is not None
        said = b""
        with trio.move_on_after(READY_TIMEOUT_S):
            while b"\n" not in said and (more := await self._process.stdout.receive_some()):
                said += more
        if not said.startswith(READY_PREFIX):
            raise BenchFailed(f"the server did not start: {said.decode(errors='replace')!r}")
        self.endpoint = said.removeprefix(READY_PREFIX).split()[0].decode()

    async def kill(self) -> None:
        """SIGKILL; nothing is flushed, nobody is told."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        await self._process.wait()
        assert self._process.stdout is not None
        await self._process.stdout.aclose()

    async def kill_and_restart(self) -> None:
        """A crash, and the server that is started after it."""
        await self.kill()
        await self.start()

    async def dial(self) -> trio.abc.Stream:
        """Connect to the process that runs now."""
        host, _, port = self.endpoint.rpartition(":")
        return await trio.open_tcp_stream(host, int(port))


@asynccontextmanager
async def open_killed_server(
    data: Path, *options: str, same_port: bool = False
) -> AsyncIterator[KilledServer]:
    """Run a server for the length of a block; it ends by SIGKILL, too."""
    server = KilledServer(data, options, same_port=same_port)
    await server.start()
    try:
        yield server
    finally:
        with trio.move_on_after(KILL_TIMEOUT_S, shield=True):
            await server.kill()


@asynccontextmanager
async def open_killed_campaign(data: Path, keys: int, rng: random.Random) -> AsyncIterator[Campaign]:
    """A campaign against a process on the loopback interface that is killed with every cut, and started again."""
    async with (
        open_killed_server(data) as server,
        scanner.connect(server.endpoint, dial=server.dial) as client,
    ):
        table = await client.create_table(
            TABLE, DESCRIPTION.schema, DESCRIPTION.primary_key, DESCRIPTION.buckets
        )
        truth = await load(table, keys, rng)

        async def write() -> None:
            await truth.write(table)

        yield Campaign(
            server.dial,
            truth,
            Shape(),
            writer=table,
            rng=rng,
            between=(server.kill_and_restart, write),
        )
