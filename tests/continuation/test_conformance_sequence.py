"""In which order a scan may be asked for, and what happens when it is not: items 12 to 17."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import transport
from scanner.errors import ArgumentInvalid, ScanIncomplete, SequenceInvalid, SessionBusy
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.wire.statuses import from_call_failed
from tests.support.conformance import ROWS, open_items, open_virtual_items
from tests.support.models import (
    ASOF,
    PUSH,
    SESSION_MODEL,
    Model,
    Page,
    every_model,
    open_wire,
    paged_models,
    pull_models,
)
from tests.support.scans import SCAN, failure, open_scan

if TYPE_CHECKING:
    from scanner.storage.interface import Store

pytestmark = [pytest.mark.socket, pytest.mark.rocks]


async def test_item_12_the_numbers_of_a_session(rocks_store: Store) -> None:
    """Open is call 0, then 1, 2, 3...; a missing number and a gap are refused, clearly, and harm nothing."""
    async with open_items(rocks_store) as items:
        async with open_wire(SESSION_MODEL, items.raw) as wire:
            await wire.open()
            missing = await failure(lambda: wire.call(scanner_id=wire.scanner_id))
            gap = await failure(lambda: wire.call(scanner_id=wire.scanner_id, call_seq_id=3))
            wrong_open = await failure(lambda: wire.call(query=wire.query, call_seq_id=1))
            await wire.read_all()

    for error, says in ((missing, "needs its call_seq_id"), (gap, "1 is next"), (wrong_open, "call 0")):
        assert isinstance(error, SequenceInvalid)
        assert says in error.message
    assert wire.ids == list(range(ROWS))


async def test_item_13_a_repeated_continuation_of_a_session(rocks_store: Store) -> None:
    """It returns the same page again, and the scan goes on behind it."""
    async with open_items(rocks_store) as items:
        async with open_wire(SESSION_MODEL, items.raw) as wire:
            await wire.open()
            for _ in range(3):
                page = await wire.next()
                assert await wire.call(scanner_id=wire.scanner_id, call_seq_id=wire.sequence) == page
            await wire.read_all()

    assert wire.ids == list(range(ROWS))


async def test_item_14_an_open_and_a_continuation_in_one_request(rocks_store: Store) -> None:
    """A session's id with a query, a second open on a scan's stream, a token with another offset: all refused."""
    async with open_items(rocks_store) as items:
        async with open_wire(SESSION_MODEL, items.raw) as wire:
            await wire.open()
            both = await failure(
                lambda: wire.call(query=wire.query, scanner_id=wire.scanner_id, call_seq_id=1)
            )
            await wire.release()
        opening = pb.ScanRequest(open=pb.ScanOpen(source=pb.SCAN_SOURCE_LIVE_KV, query=wire.query))
        async with open_scan(items.raw, credit=3_000) as scan:
            await scan.stream.send(opening.SerializeToString())
            twice = await failure(scan.receive_all)
        errors = [both, twice]
        for model in (PUSH, ASOF):
            async with open_wire(model, items.raw) as wire:
                token = (await wire.open()).token
                errors.append(await failure(functools.partial(_resume_as_of, items.raw, model, token)))

    assert [type(error) for error in errors] == [ArgumentInvalid] * 4


async def _resume_as_of(client: transport.Client, model: Model, token: bytes) -> None:
    """Bring a token, and another offset than its own."""
    query = pb.ScanQuery(table="items")
    if model is ASOF:
        async with open_wire(model, client) as wire:
            await wire.call(token, as_of=1)
    else:
        opening = pb.ScanOpen(source=pb.SCAN_SOURCE_LIVE_KV, query=query, resume_token=token, as_of=1)
        async with client.open_stream(SCAN) as stream:
            await stream.send(pb.ScanRequest(open=opening).SerializeToString())
            await stream.receive()


async def test_item_15_concurrent_calls_of_one_session(rocks_store: Store) -> None:
    """Each is answered with the page, or told that the session is busy; then it can be used again."""
    pages: list[Page] = []
    refused: list[type] = []
    async with open_items(rocks_store) as items:
        async with open_wire(SESSION_MODEL, items.raw) as wire:
            await wire.open()

            async def race() -> None:
                try:
                    pages.append(await wire.call(scanner_id=wire.scanner_id, call_seq_id=1))
                except transport.CallFailed as error:
                    refused.append(type(from_call_failed(error)))

            async with trio.open_nursery() as nursery:
                for _ in range(6):
                    nursery.start_soon(race)
            assert len(pages) + len(refused) == 6
            assert len(set(pages)) == 1
            assert set(refused) <= {SessionBusy}
            await wire.next()
            await wire.read_all()

    assert wire.ids == list(range(ROWS))


@paged_models
async def test_item_15_concurrent_calls_with_one_token(rocks_store: Store, model: Model) -> None:
    """Nobody loses: every call gets the same page, the last one too, and any of them can be gone on from."""
    pages: list[Page] = []
    async with open_items(rocks_store) as items:
        async with open_wire(model, items.raw, page_bytes=20_000) as wire:

            async def race() -> None:
                pages.append(await wire.call())

            await wire.open()
            while wire.token:
                pages.clear()
                async with trio.open_nursery() as nursery:
                    for _ in range(6):
                        nursery.start_soon(race)
                assert [await wire.next()] * 6 == pages

    assert wire.ids == list(range(ROWS))


async def test_item_15_one_stream_id_twice(rocks_store: Store) -> None:
    """By push, of two streams of one name the newer wins, and the older is told."""
    async with open_items(rocks_store) as items:
        async with open_scan(items.raw, stream_id=b"mine", credit=1) as older:
            await older.receive()
            async with open_scan(items.raw, stream_id=b"mine", credit=1 << 40) as newer:
                await newer.receive_all()
                error = await failure(older.receive_all)

    assert newer.rows == ROWS
    assert isinstance(error, ScanIncomplete)


@every_model
async def test_item_16_a_duplicate_resume(rocks_store: Store, model: Model) -> None:
    """Going on twice from one place yields the same rows twice, while the first scan goes on, too."""
    if model is SESSION_MODEL:
        return await _repeat_of_a_session(rocks_store)
    async with open_items(rocks_store) as items:
        async with open_wire(model, items.raw) as first:
            token = (await first.open()).token
            await first.next()
            again = []
            for _ in range(2):
                async with open_wire(model, items.raw) as wire:
                    await wire.open(token)
                    await wire.read_all()
                    again.append((tuple(wire.ids), wire.pages[0].ordinal, wire.pages[-1].digest))
            await first.read_all()

    assert again[0] == again[1]
    ids, ordinal, digest = again[0]
    assert first.ids == list(range(ROWS))
    assert ids == tuple(first.ids[ordinal:])
    assert digest == first.pages[-1].digest
    return None


async def _repeat_of_a_session(rocks_store: Store) -> None:
    """A session has one place: its last page, which comes again however often it is asked for."""
    async with open_items(rocks_store) as items:
        async with open_wire(SESSION_MODEL, items.raw) as wire:
            await wire.open()
            page = await wire.next()
            for _ in range(2):
                assert await wire.call(scanner_id=wire.scanner_id, call_seq_id=1) == page
            await wire.release()


@pull_models
@pytest.mark.parametrize("depth", [0, 1, 3])
async def test_item_17_the_next_page_is_asked_for_at_once(
    model: Model, depth: int, autojump_clock: trio.testing.MockClock
) -> None:
    """While the consumer has its first page in hand, as many more as the depth says have been asked for."""
    async with open_virtual_items() as items:
        scan = model.scan(items.table).with_page_depth(depth)
        async with scan.execute() as batches:
            await anext(batches)
            await wait_all_tasks_blocked()
            assert batches.statistics().requests == 1 + depth
            ids = [key async for batch in batches for key in batch.column("id").to_pylist()]

    assert ids[-1] == ROWS - 1
