"""Scans that outlive connections and servers: real servers, real sockets, both stores, both clients."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from types import FrameType
from typing import TYPE_CHECKING

import pytest
import trio

import scanner
import scanner.sync
from scanner.server.config import ScannerConfig
from scanner.server.server import Server, open_server
from scanner.storage.memory.store import MemoryStore
from tests.support.client import SCHEMA, open_table, rows
from tests.support.server import running_server

if TYPE_CHECKING:
    from scanner.storage.interface import Store

pytestmark = [pytest.mark.socket, pytest.mark.rocks]

ROWS = 6_000
WIDTH = 200
CREDIT = 60_000
SMALL_BATCHES = ScannerConfig(batch_bytes=10_000, heartbeat_interval_s=0.05)


class House:
    """A data directory, and the server that is there at times.

    Args:
        store: What is served.
        nursery: Runs the server.
    """

    def __init__(self, store: Path | Store, port: int, nursery: trio.Nursery) -> None:
        self._store = store
        self.port = port
        """Where the server is."""
        self._nursery = nursery
        self._stop = trio.Event()
        self._stopped = trio.Event()

    async def open(self, port: int | None = None) -> Server:
        """Serve, where the server was before unless another port is given."""
        server: Server = await self._nursery.start(self._serve, self.port if port is None else port)
        return server

    async def close(self) -> None:
        """End the server; calls that run are cut off."""
        self._stop.set()
        await self._stopped.wait()

    async def _serve(self, port: int, *, task_status: trio.TaskStatus[Server]) -> None:
        stop, stopped = self._stop, self._stopped = trio.Event(), trio.Event()
        async with open_server(self._store, port=port, config=SMALL_BATCHES) as server:
            task_status.started(server)
            await stop.wait()
        stopped.set()


@asynccontextmanager
async def open_house(
    store: Path | Store, port: int
) -> AsyncIterator[tuple[House, scanner.Client, scanner.Table]]:
    """A server with a table `items` of `ROWS` rows, and a client of it."""
    with trio.fail_after(100):
        async with trio.open_nursery() as nursery:
            house = House(store, port, nursery)
            await house.open()
            async with scanner.connect(f"127.0.0.1:{port}", rng=Random(1)) as client:
                table = await client.create_table("items", SCHEMA, ["k"], 3)
                await table.write(rows(ROWS, width=WIDTH))
                yield house, client, table
            await house.close()


@pytest.fixture(params=["memory", "rocks"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path | Store:
    """What is served."""
    return MemoryStore() if request.param == "memory" else tmp_path / "data"


async def change_everything(house: House) -> None:
    """Commit changes to every bucket, behind the back of whoever waits for the server at its old place."""
    server = await house.open(port=0)
    async with scanner.connect(f"127.0.0.1:{server.port}") as client:
        table = await client.table("items")
        await table.write(rows(ROWS + 500, width=7))
        await table.delete([(key,) for key in range(0, ROWS, 3)])
    await house.close()


async def read(scan: scanner.Scan) -> tuple[list[int], scanner.ScanStatistics]:
    """All keys of a scan, sorted, and what it did."""
    async with scan.execute() as batches:
        keys = [key async for batch in batches for key in batch["k"].to_pylist()]
    return sorted(keys), batches.statistics()


@pytest.mark.parametrize("stalled", [False, True], ids=["reading", "stalled"])
async def test_a_restarted_server_goes_on_with_the_state_of_before(
    store: Path | Store, kept_port: int, stalled: bool
) -> None:
    """The server ends, everything is changed, another server comes: the scan is the one it would have been."""
    async with open_house(store, kept_port) as (house, _, table):
        scan = table.new_scan().with_credit(CREDIT)
        _, whole = await read(scan)
        async with scan.execute() as batches:
            keys = (await anext(batches))["k"].to_pylist()
            # A bucket whose scan has not started has no state yet to keep to.
            while any(each.log_offset is None for each in batches.statistics().buckets):
                await trio.lowlevel.checkpoint()
            while batches.statistics().bytes_received < 15_000:  # One batch is less: another one has arrived.
                await trio.lowlevel.checkpoint()
            await house.close()
            if not stalled:  # what had arrived is there, with no server anywhere
                keys += (await anext(batches))["k"].to_pylist()
            await change_everything(house)
            await house.open()
            async for batch in batches:
                keys += batch["k"].to_pylist()
        statistics = batches.statistics()
        assert sorted(keys) == list(range(ROWS))
        assert statistics.digest == whole.digest
        assert [each.log_offset for each in statistics.buckets] == [each.log_offset for each in whole.buckets]
        assert 1 <= statistics.resumes <= 3
        assert statistics.held_bytes_max <= CREDIT + 3 * 1000
        now, _ = await read(scan)
        assert now == [key for key in range(ROWS + 500) if key >= ROWS or key % 3]


async def test_a_draining_server_hands_its_scans_to_the_next(store: Path | Store, kept_port: int) -> None:
    """Scans that a drain cuts off go on at the server that comes after it."""
    async with open_house(store, kept_port) as (house, _, table):
        async with table.new_scan().with_credit(CREDIT).execute() as batches:
            keys = (await anext(batches))["k"].to_pylist()
            async with scanner.connect(f"127.0.0.1:{house.port}") as admin:
                await admin.drain(0)
            await house.close()
            await house.open()
            async for batch in batches:
                keys += batch["k"].to_pylist()
        assert sorted(keys) == list(range(ROWS))
        assert batches.statistics().resumes >= 1


async def test_calls_and_writes_go_on_after_a_restart(tmp_path: Path, kept_port: int) -> None:
    """The next call finds the new server, and so does a write that was cut; without retries it says how far it came."""
    async with open_house(tmp_path, kept_port) as (house, client, table):
        async with table.open_writer() as writer:
            await writer.write(rows(10, first=ROWS))
            await writer.flush()
            await house.close()
            await house.open()
            await writer.write(rows(10))
        assert writer.result.rows == 20
        assert [each.name for each in await client.tables()] == ["items"]
        assert (await table.write(rows(10))).rows == 10
        async with scanner.connect(f"127.0.0.1:{house.port}", retries=0) as impatient:
            table = await impatient.table("items")
            with pytest.raises(scanner.ServerUnavailable, match="10 rows of this write were acknowledged"):
                async with table.open_writer() as writer:
                    await writer.write(rows(10))
                    await writer.flush()
                    await house.close()
                    await house.open()
                    await writer.write(rows(10))


async def test_a_table_that_was_dropped_meanwhile_is_not_resumed(tmp_path: Path, kept_port: int) -> None:
    """A table of the same name that took its place is another: it is not read, nothing is mixed."""
    async with open_house(tmp_path, kept_port) as (house, _, table):
        async with table.new_scan().with_credit(CREDIT).execute() as batches:
            await anext(batches)
            await house.close()
            server = await house.open(port=0)
            async with scanner.connect(f"127.0.0.1:{server.port}") as other:
                await other.drop_table("items")
                again = await other.create_table("items", SCHEMA, ["k"], 3)
                await again.write(rows(ROWS, width=WIDTH))
            await house.close()
            await house.open()
            with pytest.raises(scanner.TableNotFound, match="created anew"):
                async for _ in batches:
                    pass


class TornStream(trio.abc.HalfCloseableStream):
    """A stream that breaks once so many octets have come in.

    Args:
        inner: Owned from now on.
        break_after: Octets.
    """

    def __init__(self, inner: trio.abc.HalfCloseableStream, break_after: int) -> None:
        self._inner = inner
        self._left = break_after

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._inner.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        if not self._left:
            raise trio.BrokenResourceError("torn")
        data = await self._inner.receive_some(min(max_bytes or self._left, self._left))
        self._left -= len(data)
        return data

    async def send_eof(self) -> None:
        await self._inner.send_eof()

    async def aclose(self) -> None:
        await self._inner.aclose()


@pytest.mark.parametrize("break_after", [40_000, 60_011, 100_003])
async def test_a_line_that_breaks_again_and_again(tmp_path: Path, break_after: int) -> None:
    """Every connection breaks after so many octets, wherever that is: the scan needs some more of them, and no more."""
    async with open_table(tmp_path, ROWS, width=WIDTH, config=SMALL_BATCHES) as (_, server):
        dials = 0

        async def dial() -> trio.abc.Stream:
            nonlocal dials
            dials += 1
            return TornStream(await trio.open_tcp_stream(server.host, server.port), break_after)

        rng, endpoint = Random(2), f"{server.host}:{server.port}"
        async with scanner.connect(endpoint, retries=4, dial=dial, rng=rng) as client:
            scan = (await client.table("items")).new_scan()
            for columns in (("k",), ()):
                keys, statistics = await read(scan.select(*columns) if columns else scan)
                assert keys == list(range(ROWS))
            assert statistics.resumes >= 300_000 // break_after
            assert dials > statistics.resumes // 3


async def test_forced_cuts_end_as_uncut(tmp_path: Path) -> None:
    """With a cut after every batch rows, digest and limits are as without."""
    async with open_table(tmp_path, ROWS, width=WIDTH, config=SMALL_BATCHES) as (table, server):
        for scan in (
            table.new_scan(),
            table.new_scan().bucket(1).limit(777),
            table.new_scan().select("k", "number").where(scanner.col("number") < 900),
            table.new_scan().key_range((1000,), (1100,)).with_credit(1_000),
        ):
            expected, whole = await read(scan)
            keys, statistics = await read(scan.resume_every_batches(1))
            assert keys == expected
            assert statistics.digest == whole.digest
            assert statistics.resumes > 0
        with trio.fail_after(100):
            while server.statistics().iterators_open:
                await trio.lowlevel.checkpoint()


async def test_time_travel(tmp_path: Path) -> None:
    """as_of reads what was there at an offset, also over cuts; an offset that is not there yet is refused."""
    async with open_table(tmp_path, 1_000, config=SMALL_BATCHES) as (table, _):
        offsets = {each.bucket: each.end_offset for each in await table.offsets()}
        before, whole = await read(table.new_scan())
        await table.delete([(key,) for key in range(500)])
        for scan in (
            table.new_scan().as_of(offsets),
            table.new_scan().as_of(offsets).resume_every_batches(2),
        ):
            keys, statistics = await read(scan)
            assert keys == before
            assert statistics.digest == whole.digest
        with pytest.raises(scanner.OffsetOutOfRange):
            await read(table.new_scan().as_of(10**9))


def test_the_blocking_twin_goes_on_as_well(tmp_path: Path, kept_port: int) -> None:
    """A scan of the blocking client outlives its server; a client without retries learns that it is gone."""
    with running_server(tmp_path, SMALL_BATCHES, port=kept_port) as server:
        client = scanner.sync.connect(server.endpoint, rng=Random(3))
        impatient = scanner.sync.connect(server.endpoint, retries=0)
        table = client.create_table("items", SCHEMA, ["k"], 3)
        table.write(rows(ROWS, width=WIDTH))
    with client, impatient:
        with table.new_scan().with_credit(CREDIT).execute() as batches:
            with running_server(tmp_path, SMALL_BATCHES, port=kept_port):
                keys = next(batches)["k"].to_pylist()
            with running_server(tmp_path, SMALL_BATCHES, port=kept_port):
                keys += [key for batch in batches for key in batch["k"].to_pylist()]
        assert sorted(keys) == list(range(ROWS))
        assert batches.statistics().resumes >= 1
        with pytest.raises(scanner.ServerUnavailable, match="no weir server answers"):
            impatient.tables()


def interrupted(act: Callable[[], object], ready: threading.Event) -> None:
    """Press Ctrl-C once `ready` is set while this thread does something, and see it end by that."""

    def press() -> None:
        ready.wait(30)
        os.kill(os.getpid(), signal.SIGINT)

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGINT, interrupt)
    presser = threading.Thread(target=press)
    presser.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            act()
    finally:
        signal.signal(signal.SIGINT, previous)
        presser.join(30)


def test_an_interrupt_ends_the_wait_for_a_server(tmp_path: Path) -> None:
    """Ctrl-C while a scan waits for its server to come back ends the scan, and the client can be closed, at once."""
    waiting = threading.Event()

    class Delays(Random):
        """Tells when a delay is drawn, and makes it long."""

        def uniform(self, a: float, b: float) -> float:
            waiting.set()
            return 1000.0

    with running_server(tmp_path, SMALL_BATCHES) as server:
        client = scanner.sync.connect(server.endpoint, rng=Delays())
        table = client.create_table("items", SCHEMA, ["k"], 1)
        table.write(rows(ROWS, width=WIDTH))
    with client:

        def read_all() -> None:
            with table.new_scan().execute() as batches:
                for _ in batches:
                    pass

        interrupted(read_all, waiting)
