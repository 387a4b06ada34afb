"""The bound of what writes take of the server's memory, alone and through a server."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import pyarrow as pa
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import scanner
from scanner.errors import ArgumentInvalid, SchemaMismatch
from scanner.server.config import ScannerConfig
from scanner.server.tables.write_memory import WriteMemory, WriteShare
from tests.support.conformance import open_virtual_items
from tests.support.scans import TABLES, filled_store, sample, serving, write_request

T = TypeVar("T")
MIB = 1 << 20


async def test_shares_are_granted_in_order_within_the_bound() -> None:
    """Who asks for more than is left waits, and so do those behind; a share that is given back is granted at once."""
    memory = WriteMemory(100)
    granted: list[tuple[int, WriteShare]] = []

    async def take(size: int) -> None:
        granted.append((size, await memory.take(size, "t")))

    async with trio.open_nursery() as nursery:
        for size in (60, 50, 30, 1):
            nursery.start_soon(take, size)
            await wait_all_tasks_blocked()
        assert [size for size, _ in granted] == [60]
        granted[0][1].release()
        granted[0][1].release()
        await wait_all_tasks_blocked()
        assert [size for size, _ in granted] == [60, 50]
        granted[1][1].release()
        await wait_all_tasks_blocked()
        assert sorted(size for size, _ in granted) == [1, 30, 50, 60]
        assert memory.bytes_taken == 31


async def test_a_write_over_the_bound_has_its_turn_alone() -> None:
    """A share above the bound is granted when nothing else is taken, and one that grows keeps the others out."""
    memory = WriteMemory(100)
    first = await memory.take(10, "t")
    first.resize(500)
    with trio.move_on_after(0):
        await memory.take(1, "u")
    first.split(2)
    first.part_done()
    assert memory.bytes_taken == 500
    first.part_done()
    assert memory.bytes_taken == 0
    await memory.take(1_000, "t")
    assert memory.bytes_taken == 1_000


async def test_a_cancelled_wait_takes_nothing() -> None:
    """Who gives up waiting holds nothing, and does not stand in the way of those behind."""
    memory = WriteMemory(100)
    first = await memory.take(60, "t")
    behind: list[WriteShare] = []

    async def take(size: int, scope: trio.CancelScope) -> None:
        with scope:
            behind.append(await memory.take(size, f"table of {size}"))

    large, small = trio.CancelScope(), trio.CancelScope()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(take, 90, large)
        await wait_all_tasks_blocked()
        nursery.start_soon(take, 40, small)
        await wait_all_tasks_blocked()
        assert behind == []
        large.cancel()
        await wait_all_tasks_blocked()
        assert memory.bytes_taken == 100
        first.release()
        behind[0].release()
        assert memory.bytes_taken == 0


class Takers:
    """Tasks that take shares, a number of octets for each, and what they got."""

    def __init__(self, nursery: trio.Nursery, bytes_max: int) -> None:
        self.memory = WriteMemory(bytes_max)
        self._nursery = nursery
        self.waiting: list[tuple[str, int]] = []
        self.held: list[tuple[str, int, WriteShare]] = []
        self.order: list[str] = []
        """Of the tables whose shares were granted."""

    async def ask(self, table: str, *sizes: int) -> None:
        """Ask for some, in this order."""
        for size in sizes:
            self.waiting.append((table, size))
            self._nursery.start_soon(self._take, table, size)
            await wait_all_tasks_blocked()

    async def _take(self, table: str, size: int) -> None:
        share = await self.memory.take(size, table)
        self.waiting.remove((table, size))
        self.held.append((table, size, share))
        self.order.append(table)

    async def give_back(self, table: str) -> None:
        """Of the oldest share of a table."""
        index = [each[0] for each in self.held].index(table)
        self.held.pop(index)[2].release()
        await wait_all_tasks_blocked()

    def held_by(self, table: str) -> int:
        """Octets that a table has."""
        return sum(size for name, size, _ in self.held if name == table)


async def test_a_table_whose_writes_are_stuck_leaves_room() -> None:
    """One leaves about half, a second one half of that, and the others go on with what is left."""
    async with trio.open_nursery() as nursery:
        takers = Takers(nursery, 100)
        await takers.ask("stuck", *[10] * 8)
        assert takers.held_by("stuck") == 50
        await takers.ask("too", *[10] * 8)
        assert takers.held_by("too") == 30
        for _ in range(5):
            await takers.ask("free", 10, 10)
            assert takers.held_by("free") >= 10
            while takers.held_by("free"):
                await takers.give_back("free")
        assert takers.order.count("free") == 10
        await takers.give_back("stuck")  # They have more than is free still.
        assert (takers.held_by("stuck"), takers.held_by("too")) == (40, 30)
        nursery.cancel_scope.cancel()


async def test_no_table_is_overtaken_for_ever() -> None:
    """One that has nothing gets what is given back next, however many small writes others ask for."""
    async with trio.open_nursery() as nursery:
        takers = Takers(nursery, 100)
        await takers.ask("small", *[10] * 9)
        await takers.ask("large", 90)
        await takers.ask("smaller", 1)
        while takers.held_by("small") and not takers.held_by("large"):
            await takers.give_back("small")
            await takers.ask("small", 10)
        assert (takers.held_by("large"), takers.held_by("small")) == (90, 10)
        assert "smaller" not in takers.order
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_is_asked_for_is_granted_within_the_bound(seed: int) -> None:
    """One above the bound is alone. Nobody waits where nothing is taken, so all of it is granted in the end."""
    rng = random.Random(seed)
    async with trio.open_nursery() as nursery:
        takers = Takers(nursery, 100)
        for _ in range(300):
            if takers.held and rng.random() < 0.5:
                await takers.give_back(rng.choice(takers.held)[0])
            else:
                await takers.ask(rng.choice("abcd"), rng.choice((1, 7, 40, 100, 130)))
            taken = sum(size for _, size, _ in takers.held)
            assert takers.memory.bytes_taken == taken
            assert taken <= 100 or len(takers.held) == 1
            assert takers.held or not takers.waiting
        while takers.held:
            await takers.give_back(takers.held[0][0])
        assert (takers.waiting, takers.memory.bytes_taken) == ([], 0)


def wide_write(key: int) -> bytes:
    """A write of one row of 300 kB."""
    row = sample([key])
    wide = row.set_column(1, row.schema.field(1), pa.array(["x" * 300_000]))
    return write_request(wide)


@dataclass
class Gate:
    """A disk that does nothing until it is opened."""

    opened: trio.Event = field(default_factory=trio.Event)

    async def __call__(self, function: Callable[[], T]) -> T:
        await self.opened.wait()
        return function()


async def test_writes_wait_for_memory_and_all_are_written() -> None:
    """However many streams send large writes to a disk that is busy, the server decodes only what the bound allows."""
    config = ScannerConfig(
        write_queue_bytes_max=MIB, write_decoded_bytes_max=MIB, row_bytes_max=MIB, checkpoint_interval_s=0
    )
    gate = Gate()
    gate.opened.set()
    answers = 0
    async with open_virtual_items(1, config=config, run_blocking=gate) as items:

        async def send(first: int) -> None:
            nonlocal answers
            async with items.raw.open_stream(TABLES + "Write") as stream:
                for at in range(4):
                    await stream.send(wide_write(first + at))
                await stream.send_end()
                while await stream.receive() is not None:
                    answers += 1

        await items.table.offsets()  # the bucket is open from here on
        gate.opened = trio.Event()
        async with trio.open_nursery() as nursery:
            for stream in range(4):
                nursery.start_soon(send, 1 + 4 * stream)
            await wait_all_tasks_blocked()
            assert 600_000 < items.server.statistics().write_queue_bytes <= MIB
            gate.opened.set()
        assert answers == 16
        assert items.server.statistics().write_queue_bytes == 0
        assert (await items.table.new_scan().to_arrow()).num_rows == 17


async def test_writes_to_a_busy_bucket_leave_room_for_other_tables() -> None:
    """As while a large share of a transaction is applied to it; so do stages, which wait for no bucket."""
    config = ScannerConfig(write_queue_bytes_max=MIB, write_decoded_bytes_max=MIB, row_bytes_max=MIB)
    async with open_virtual_items(1, config=config) as items:
        other = await items.client.create_table("other", sample([]).schema, ["id"], 1)
        await items.table.offsets()  # the bucket is open from here on
        [busy] = [
            bucket for name, _, bucket in items.server._services.catalog.open_buckets() if name == "items"
        ]

        async def send(key: int) -> None:
            async with items.raw.open_stream(TABLES + "Write") as stream:
                await stream.send(wide_write(key))
                await stream.send_end()
                assert await stream.receive() is not None

        async with trio.open_nursery() as nursery:
            async with busy.between_commits():
                for key in range(8):
                    nursery.start_soon(send, key)
                await wait_all_tasks_blocked()
                waiting = items.server.statistics().write_queue_bytes
                for text in ("x" * 300_000, "y" * 300_000):
                    row = sample([1])
                    await other.write(row.set_column(1, row.schema.field(1), pa.array([text])))
                await items.table.transaction("load", 1).stage(sample([1]), part=0, attempt=0)
                assert items.server.statistics().write_queue_bytes == waiting
        assert (await items.table.new_scan().to_arrow()).num_rows == 8


async def test_what_a_cut_off_stream_has_queued_counts_until_it_is_written() -> None:
    """A client that goes away frees no memory: what it has queued counts until it is written."""
    gate = Gate()
    gate.opened.set()
    async with open_virtual_items(1, run_blocking=gate) as items:
        await items.table.offsets()  # the bucket is open from here on
        gate.opened = trio.Event()
        async with items.raw.open_stream(TABLES + "Write") as stream:
            await stream.send(wide_write(1))
            await wait_all_tasks_blocked()
        await wait_all_tasks_blocked()
        assert items.server.statistics().write_queue_bytes > 300_000
        gate.opened.set()
        await wait_all_tasks_blocked()
        assert items.server.statistics().write_queue_bytes == 0


@pytest.mark.socket
async def test_rows_that_are_too_large() -> None:
    """A row that no scan could send, and a write that no server takes, are refused for good, with their sizes."""
    async with serving(filled_store(0), ScannerConfig()) as (server, _):
        async with scanner.connect(f"127.0.0.1:{server.port}") as client:
            table = await client.create_table("t", pa.schema([("k", pa.int64()), ("b", pa.binary())]), ["k"])
            for mebibytes, kind in ((61, SchemaMismatch), (65, ArgumentInvalid)):
                rows = pa.table({"k": [1, 2], "b": pa.array([b"", bytes(mebibytes * MIB)], pa.binary())})
                with pytest.raises(kind, match=r"\d{8}") as caught:
                    await table.write(rows)
                assert not caught.value.retriable
            largest = pa.table({"k": [3], "b": pa.array([bytes(60 * MIB - 1024)], pa.binary())})
            await table.write(largest)
            assert (await table.new_scan().to_arrow()).num_rows == 2
