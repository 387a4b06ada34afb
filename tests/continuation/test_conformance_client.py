"""What a consumer may rely on: items 26 to 30."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import scanner
from bench.cutting.stream import CutStream, Direction
from bench.simulation.network import Network
from bench.simulation.pipes import Line
from scanner.errors import ResumeTokenInvalid, SessionUnknown, TableNotFound, TooManyScans
from scanner.server.config import ScannerConfig
from scanner.server.server import open_server
from tests.support.cancelling import CancelAtStep
from tests.support.conformance import CONFIG, ROWS, open_items, open_virtual_items, read
from tests.support.models import (
    PUSH,
    SESSION_MODEL,
    TOKEN,
    Model,
    every_scan,
    open_wire,
    pull_models,
)
from tests.support.scans import failure, filled_store

if TYPE_CHECKING:
    from scanner.storage.interface import Store

pytestmark = [pytest.mark.socket, pytest.mark.rocks]


@every_scan
async def test_item_26_the_end_stays(rocks_store: Store, model: Model) -> None:
    """The end of the data is reported once it is reached, and every time after."""
    async with open_items(rocks_store, 200) as items:
        async with model.scan(items.table).execute() as batches:
            assert sum([batch.num_rows async for batch in batches]) == 200
            for _ in range(3):
                with pytest.raises(StopAsyncIteration):
                    await anext(batches)


@every_scan
async def test_item_27_a_failure_stays(rocks_store: Store, model: Model) -> None:
    """After a failure every further poll fails the same way, and none reports the end."""
    async with open_items(rocks_store) as items:
        async with model.scan(items.table).execute() as batches:
            await anext(batches)
            await items.client.drop_table("items")
            errors = []
            for _ in range(3):
                with pytest.raises(TableNotFound) as caught:
                    async for _ in batches:
                        pass
                errors.append(caught.value.message)

    assert len(set(errors)) == 1


@pull_models
async def test_item_28_a_close_by_pages(rocks_store: Store, model: Model) -> None:
    """Leaving after the end sends nothing; leaving mid-scan releases what the server keeps, if it does, once."""
    keeps = model in {SESSION_MODEL, TOKEN}
    async with open_items(rocks_store) as items:
        async with model.scan(items.table).with_page_depth(0).execute() as batches:
            await anext(batches)
            before = batches.statistics().requests
        assert batches.statistics().requests == before + keeps
        async with model.scan(items.table).execute() as batches:
            async for _ in batches:
                pass
            before = batches.statistics().requests
        assert batches.statistics().requests == before


@pytest.mark.parametrize("to_the_end", [False, True])
async def test_item_28_a_close_by_push(to_the_end: bool, autojump_clock: trio.testing.MockClock) -> None:
    """Leaving mid-scan resets the stream, once; after the natural end nothing is sent for it."""
    network = Network(lambda _connection, _fault: None)
    streams: list[CutStream] = []

    async def dial() -> CutStream:
        streams.append(CutStream(await network.dial("client", Line()), None))
        return streams[-1]

    async with open_server(filled_store(ROWS), config=CONFIG, listener=network.listen()):
        async with scanner.connect("127.0.0.1", dial=dial) as client:
            async with PUSH.scan(await client.table("items")).execute() as batches:
                await anext(batches)
                if to_the_end:
                    async for _ in batches:
                        pass
                await wait_all_tasks_blocked()
                before = len(streams[0].meters[Direction.UP].ends)
            await wait_all_tasks_blocked()
            sent = len(streams[0].meters[Direction.UP].ends) - before

    assert sent == (0 if to_the_end else 1)


@pytest.mark.parametrize(
    ("model", "config"),
    [
        (SESSION_MODEL, ScannerConfig(sessions_per_bucket_max=1, sessions_max=1)),
        (PUSH, ScannerConfig(scans_max=1)),
    ],
    ids=["session", "push"],
)
async def test_item_29_a_refusal_by_a_cap_is_retried_then_surfaces(
    autojump_clock: trio.testing.MockClock, model: Model, config: ScannerConfig
) -> None:
    """With pauses that grow; as soon as there is room the scan runs."""
    async with open_virtual_items(config=config) as items:
        async with open_wire(model, items.raw) as wire:
            await wire.open()
            started = trio.current_time()
            with pytest.raises(TooManyScans):
                await read(model.scan(items.table))
            assert trio.current_time() - started > 0.1
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read, model.scan(items.table))
                await wait_all_tasks_blocked()
                await wire.release()


async def test_item_29_what_cannot_be_helped_is_not_tried_again(rocks_store: Store) -> None:
    """Unknown, expired and invalid are terminal, and say so."""
    async with open_items(rocks_store) as items:
        async with open_wire(SESSION_MODEL, items.raw) as wire:
            unknown = await failure(lambda: wire.call(scanner_id=bytes(16), call_seq_id=1))
        async with open_wire(TOKEN, items.raw) as wire:
            invalid = await failure(lambda: wire.call(b"not one of ours"))

    assert isinstance(unknown, SessionUnknown)
    assert isinstance(invalid, ResumeTokenInvalid)
    assert not unknown.retriable
    assert not invalid.retriable


@every_scan
async def test_item_30_a_poll_that_times_out(rocks_store: Store, model: Model) -> None:
    """It says "nothing yet", and neither loses nor repeats what is on its way, wherever the time ends it."""
    ids: list[int] = []
    steps = timed_out = 0
    async with open_items(rocks_store) as items:
        async with model.scan(items.table).execute() as batches:
            while True:
                steps += 1
                with CancelAtStep(steps) as poll:
                    try:
                        ids.extend((await anext(batches)).column("id").to_pylist())
                        steps = 0
                    except StopAsyncIteration:
                        break
                timed_out += poll.scope.cancelled_caught

    assert ids == list(range(ROWS))
    assert timed_out > 0
