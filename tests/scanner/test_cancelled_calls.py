"""Calls that are cancelled at any moment, as seen by the scheduler: done or not, and nothing is left of them.

Each is made again and again, and cancelled after more and more steps of all tasks, the server's included, until it ends
by itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import pytest
import trio
import trio.testing

import scanner
from bench.simulation.network import Network
from bench.simulation.pipes import Line
from scanner.errors import StageNotFound
from scanner.server.config import ScannerConfig
from scanner.server.server import Server, open_server
from scanner.storage.memory.store import MemoryStore
from tests.support.cancelling import CancelAtStep
from tests.support.client import SCHEMA, rows
from tests.support.nightly import everyday

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")

ROWS = 8
ROUNDS = 3
"""Of the event loop, which storage takes before and again after each thing that it does."""
CONFIG = ScannerConfig(snapshot_linger_s=0, checkpoints_kept=1, checkpoint_interval_s=0)
STRIDE = everyday(2, nightly=1)
"""Steps from one cancellation to the next."""
LOG = scanner.LeaseTarget("items", state="log")


@dataclass
class World:
    """A table of one bucket, and a client of its server, over memory."""

    client: scanner.Client
    table: scanner.Table
    server: Server
    store: MemoryStore
    images: Path

    def image_files(self) -> list[str]:
        """Names of the files of images."""
        return [path.name for path in self.images.rglob("*") if path.is_file()]

    async def keys(self) -> list[int]:
        """Those of the table, ascending."""
        found: list[int] = (await self.table.new_scan().to_arrow())["k"].to_pylist()
        return sorted(found)

    async def settled(self) -> None:
        """Wait until nobody has anything to do; then the server holds nothing of any call."""
        await trio.testing.wait_all_tasks_blocked()
        now, storage = self.server.statistics(), self.store.bucket("items", 0)
        assert now.transport.streams == now.leases == now.snapshots_open == storage.open_iterators == 0
        assert now.transaction_stage_bytes == now.transactions_unapplied == now.write_queue_bytes == 0
        assert all(not bucket.pins for _, _, bucket in self.server._services.catalog.open_buckets())


async def run_as_in_thread(function: Callable[[], T]) -> T:
    """Take time for what storage does. A thread that has begun finishes, whatever becomes of who waits for it."""
    await trio.lowlevel.checkpoint_if_cancelled()
    for _ in range(ROUNDS):
        await trio.lowlevel.cancel_shielded_checkpoint()
    result = function()
    for _ in range(ROUNDS):
        await trio.lowlevel.cancel_shielded_checkpoint()
    return result


@asynccontextmanager
async def open_world(images: Path) -> AsyncIterator[World]:
    """A world for the length of a block."""
    network = Network(lambda _connection, _fault: None)
    store = MemoryStore(images=images)

    async def dial() -> trio.abc.Stream:
        return await network.dial("client", Line())

    async with (
        open_server(store, config=CONFIG, listener=network.listen(), run_blocking=run_as_in_thread) as server,
        scanner.connect("memory", dial=dial) as client,
    ):
        table = await client.create_table("items", SCHEMA, ["k"], 1)
        await table.write(rows(ROWS))
        yield World(client, table, server, store, images)


async def make_image(world: World, cancelling: CancelAtStep) -> None:
    """Every image that is on the disk is used, and goes when images are dropped."""
    with cancelling:
        await world.client.make_images("items")
    await trio.testing.wait_all_tasks_blocked()  # The server has seen the reset by then.
    assert len(world.image_files()) == len(await world.client.list_images("items"))
    await world.client.drop_images("items")
    assert world.image_files() == []


async def drop_leases(world: World, cancelling: CancelAtStep) -> None:
    """Checkpoints that nothing keeps any more go, without a new start."""
    leases = []
    for _ in range(3):
        target = scanner.LeaseTarget("items", state="new")
        leases.append(await world.client.acquire_lease(target, ttl_s=1000))
        await world.table.write(rows(ROWS))
    with cancelling:
        async with trio.open_nursery() as nursery:
            for lease in leases:
                nursery.start_soon(lease.drop)
    for lease in leases:
        await lease.drop()
    await trio.testing.wait_all_tasks_blocked()
    await world.server._services.maintenance.checkpoints.prune_all()  # As it is done from time to time.
    assert len(world.store.checkpoints("items", 0)) == 1


async def hold_lease(world: World, cancelling: CancelAtStep) -> None:
    """There is no lease when its block has been left, nor where there was none yet."""
    with cancelling:
        async with await world.client.acquire_lease(LOG) as lease:
            await lease.renew()
    assert await world.client.list_leases() == []


async def publish(world: World, cancelling: CancelAtStep) -> None:
    """The rows are all there or none is, and the version can be published afterwards."""
    version = world.store.bucket("items", 0).log_end
    transaction = world.table.transaction("load", version)
    fresh = rows(ROWS, first=100)
    with cancelling:
        await transaction.stage(fresh, part=0, attempt=0)
        await transaction.publish({0: 0})
    try:
        await transaction.publish({0: 0})
    except StageNotFound:
        assert await world.keys() == list(range(ROWS))
        await transaction.stage(fresh, part=0, attempt=1)
        await transaction.publish({0: 1})
    assert await world.keys() == [*range(ROWS), *range(100, 100 + ROWS)]
    await world.table.delete([(key,) for key in range(100, 100 + ROWS)])


@pytest.mark.parametrize("act", [make_image, drop_leases, hold_lease, publish], ids=lambda act: act.__name__)
async def test_cancelled_at_any_moment(
    act: Callable[[World, CancelAtStep], Awaitable[None]],
    tmp_path: Path,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """What it leaves is what it says, and the same client goes on."""
    with trio.fail_after(100_000):
        async with open_world(tmp_path) as world:
            steps, finished = 0, False
            while not finished:
                steps += STRIDE
                cancelling = CancelAtStep(steps)
                await act(world, cancelling)
                finished = not cancelling.scope.cancel_called
                await world.settled()
    assert steps > 15
