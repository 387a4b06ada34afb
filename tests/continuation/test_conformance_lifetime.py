"""What a server holds for a scan, for how long, and how it ends: items 18 to 25."""

from __future__ import annotations

import dataclasses
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

import scanner
import transport
from scanner.errors import (
    DataCorrupted,
    Draining,
    SequenceInvalid,
    ServerUnavailable,
    SessionExpired,
    SessionUnknown,
    SnapshotLost,
    TableNotFound,
    TooManyScans,
)
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.server.config import ScannerConfig
from scanner.server.server import Server, open_server
from scanner.storage.memory.store import MemoryStore
from scanner.storage.rocksdb.config import Compression, StorageConfig
from scanner.storage.rocksdb.store import RocksStore
from scanner.wire import methods
from tests.support.client import open_client
from tests.support.conformance import CONFIG, ROWS, open_items, open_virtual_items
from tests.support.models import (
    ASOF,
    CURSOR,
    PAGE_BYTES,
    PUSH,
    SESSION_MODEL,
    TOKEN,
    Model,
    every_model,
    every_scan,
    open_wire,
)
from tests.support.nightly import everyday
from tests.support.scans import (
    SCAN,
    SESSION,
    description,
    failure,
    filled_store,
    mutations,
    released,
    sample,
)
from tests.support.storage_damage import file_with, flip

if TYPE_CHECKING:
    from scanner.storage.interface import Store

pytestmark = [pytest.mark.socket, pytest.mark.rocks]


@every_model
async def test_item_18_draining_a_scan_releases_it(rocks_store: Store, model: Model) -> None:
    """Reading to the end leaves nothing; a session used later is "unknown", a position that is kept still works."""
    async with open_items(rocks_store) as items:
        async with open_wire(model, items.raw) as wire:
            await wire.open()
            await wire.read_all()
            await items.released()
            if model is SESSION_MODEL:
                assert isinstance(await failure(wire.next), SessionUnknown)
            elif model.by_pages:
                assert wire.pages[-1].token == b""
                assert await wire.call(wire.pages[-2].token) == wire.pages[-1]
            else:
                assert await wire.stream.receive() is None


@every_scan
async def test_item_19_leaving_a_scan_frees_it(rocks_store: Store, model: Model) -> None:
    """Leaving mid-scan succeeds and frees everything; after that the scan cannot be used."""
    async with open_items(rocks_store) as items:
        async with model.scan(items.table).execute() as batches:
            await anext(batches)
        await items.released()
        with pytest.raises(trio.ClosedResourceError):
            await anext(batches)


@every_model
async def test_item_19_closing_what_is_gone_is_no_error(rocks_store: Store, model: Model) -> None:
    """A release on the wire may be repeated; a released session is unknown."""
    async with open_items(rocks_store) as items:
        async with open_wire(model, items.raw) as wire:
            await wire.open()
            await wire.release()
            await items.released()
            await wire.release()
            if model is SESSION_MODEL:
                assert isinstance(await failure(wire.next), SessionUnknown)


@every_scan
async def test_item_20_a_close_at_any_time(model: Model, caplog: pytest.LogCaptureFixture) -> None:
    """However far a scan has come when it is left, nothing of it stays, and nothing is used after it was freed."""
    async with open_items(MemoryStore(), 300) as items:
        for turns in range(0, 120, everyday(7, nightly=1)):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_after, turns, nursery.cancel_scope)
                async with model.scan(items.table, page_bytes=500).execute() as batches:
                    async for _ in batches:
                        pass
                nursery.cancel_scope.cancel()
            await items.released()
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


async def _cancel_after(turns: int, scope: trio.CancelScope) -> None:
    for _ in range(turns):
        await trio.lowlevel.checkpoint()
    scope.cancel()


async def test_item_21_an_idle_session_expires(autojump_clock: trio.testing.MockClock) -> None:
    """After its TTL it is expired, not unknown; only a page extends its life, a malformed request does not."""
    config = ScannerConfig(session_ttl_s=60.0, session_sweep_interval_s=10.0)
    async with open_virtual_items(config=config) as items:
        async with open_wire(SESSION_MODEL, items.raw) as wire:
            await wire.open()
            await _pass(50)
            await wire.next()
            await _pass(50)
            assert isinstance(
                await failure(lambda: wire.call(scanner_id=wire.scanner_id, call_seq_id=9)), SequenceInvalid
            )
            await _pass(25)
            assert items.server.statistics().sessions_open == 0
            assert isinstance(await failure(wire.next), SessionExpired)
            wire.scanner_id = bytes(16)
            assert isinstance(await failure(wire.next), SessionUnknown)


async def test_item_21_an_idle_page_snapshot_expires(autojump_clock: trio.testing.MockClock) -> None:
    """What the server keeps between the pages of a token goes, too, and the next page says that."""
    config = ScannerConfig(page_snapshot_ttl_s=60.0, block_rows_max=100)
    async with open_virtual_items(config=config) as items:
        async with open_wire(TOKEN, items.raw) as wire:
            await wire.open()
            assert len(await items.client.list_snapshots()) == 1
            await _pass(95)
            assert await items.client.list_snapshots() == []
            assert isinstance(await failure(wire.next), SnapshotLost)


async def _pass(seconds: float) -> None:
    """Let virtual time pass."""
    with trio.move_on_after(seconds):
        await trio.sleep_forever()


CAPS = {
    PUSH: ScannerConfig(scans_max=2, block_rows_max=100, snapshot_linger_s=0),
    SESSION_MODEL: ScannerConfig(sessions_per_bucket_max=2, sessions_max=3, block_rows_max=100),
    TOKEN: ScannerConfig(page_snapshots_per_bucket_max=2, page_snapshots_max=3, block_rows_max=100),
}


@pytest.mark.parametrize("model", list(CAPS), ids=str)
async def test_item_22_a_cap_refuses_one_more(rocks_store: Store, model: Model) -> None:
    """The one too many is refused, retriably, and the count stays; when one goes there is room again."""
    async with open_items(rocks_store, config=CAPS[model]) as items, AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(open_wire(model, items.raw)) for _ in range(5)]
        for wire in wires[:2]:
            await wire.open()
            await items.write([ROWS])  # so that the next scan has a state of its own
        for wire in wires[2:4]:
            error = await failure(wire.open)
            assert isinstance(error, TooManyScans)
            assert error.retriable
            assert len(await items.client.list_snapshots()) == 2
        await wires[0].release()
        while len(await items.client.list_snapshots()) > 1:
            pass
        await wires[4].open()
        for wire in wires[1], wires[4]:
            await wire.read_all()
        assert wires[1].ids == list(range(ROWS + 1))


@pytest.mark.parametrize("model", [CURSOR, ASOF], ids=str)
async def test_item_22_what_keeps_nothing_has_no_cap(rocks_store: Store, model: Model) -> None:
    """Between two pages nothing is held, so any number of scans can be between two pages."""
    async with open_items(rocks_store, config=CAPS[TOKEN]) as items, AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(open_wire(model, items.raw)) for _ in range(10)]
        for wire in wires:
            await wire.open()
        assert await items.client.list_snapshots() == []
        for wire in wires:
            await wire.next()


@every_scan
async def test_item_23_dropping_the_table_ends_its_scans(rocks_store: Store, model: Model) -> None:
    """They fail with TABLE_NOT_FOUND, now and for ever, and never with an end of data."""
    async with open_items(rocks_store) as items:
        async with model.scan(items.table).execute() as batches:
            await anext(batches)
            await items.client.drop_table("items")
            for _ in range(2):
                with pytest.raises(TableNotFound):
                    async for _ in batches:
                        pass


@every_scan
async def test_item_23_a_drain_ends_its_scans(rocks_store: Store, model: Model) -> None:
    """A server that does not wait ends them with an error that says so, retriable; never with an end of data."""
    async with open_items(rocks_store, checked=False) as items:
        async with model.scan(items.table).with_retries(0).execute() as batches:
            await anext(batches)
            await items.server.drain(0)
            with pytest.raises((Draining, ServerUnavailable)) as caught:
                async for _ in batches:
                    pass
            assert caught.value.retriable


@every_scan
async def test_item_23_a_server_that_goes_ends_its_scans(model: Model) -> None:
    """The connection is lost, and that is what the scan fails with."""
    async with trio.open_nursery() as nursery:
        server, scope = await nursery.start(_serve)
        async with scanner.connect(f"127.0.0.1:{server.port}", retries=0) as client:
            async with model.scan(await client.table("items")).execute() as batches:
                await anext(batches)
                scope.cancel()
                with pytest.raises(ServerUnavailable):
                    async for _ in batches:
                        pass


async def _serve(*, task_status: trio.TaskStatus[tuple[Server, trio.CancelScope]]) -> None:
    """Serve the sample table until cancelled."""
    with trio.CancelScope() as scope:
        async with open_server(filled_store(ROWS), config=CONFIG) as server:
            task_status.started((server, scope))
            await trio.sleep_forever()


@every_scan
async def test_item_24_a_read_error_is_an_error_of_the_scan(tmp_path: Path, model: Model) -> None:
    """From a damaged file come rows that are right, then DATA_CORRUPTED; never a short scan."""
    config = StorageConfig(compression=Compression.NONE, block_bytes=1024)
    with RocksStore.open(tmp_path, config) as store:
        store.create_table(description())
        bucket = store.bucket("items", 0)
        bucket.commit([mutations(store, "items", sample(range(ROWS)))])
        bucket.flush()
    flip(*file_with(tmp_path, b"name-1201"))
    ids: list[int] = []
    async with open_client(tmp_path, config=CONFIG) as (client, server):
        async with model.scan(await client.table("items")).execute() as batches:
            with pytest.raises(DataCorrupted):
                async for batch in batches:
                    ids.extend(batch.column("id").to_pylist())
        await released(server)

    assert 0 < len(ids) < ROWS
    assert ids == list(range(len(ids)))


QUERY = pb.ScanQuery(table="items")
OPENINGS = {
    PUSH: (SCAN, pb.ScanRequest(open=pb.ScanOpen(source=pb.SCAN_SOURCE_LIVE_KV, query=QUERY))),
    SESSION_MODEL: (SESSION, pb.ScanSessionRequest(query=QUERY, batch_size_bytes=PAGE_BYTES)),
    **{
        model: (
            methods.SCAN_PAGE,
            pb.ScanPageRequest(model=model.page_model, query=QUERY, batch_size_bytes=PAGE_BYTES),
        )
        for model in (TOKEN, CURSOR, ASOF)
    },
}


@every_model
@pytest.mark.parametrize("dies", ["stream", "connection"])
@pytest.mark.parametrize("received", [False, True])
async def test_item_25_a_lost_open_response_leaks_nothing(model: Model, dies: str, received: bool) -> None:
    """Whoever goes before it has confirmed the open leaves nothing behind, whether the response arrived or not.

    Who has reset the call of a page does not come back, so there is nothing to linger for.
    """
    path, opening = OPENINGS[model]
    linger_s = 10.0 if dies == "stream" and model.pulls else 0.0
    config = dataclasses.replace(CONFIG, snapshot_linger_s=linger_s, session_sweep_interval_s=600.0)
    async with open_items(MemoryStore(), config=config) as items:
        if dies == "connection":
            async with transport.connect(items.server.host, items.server.port) as client:
                await _open_and_go(client, path, opening.SerializeToString(), received=received)
        else:
            await _open_and_go(items.raw, path, opening.SerializeToString(), received=received)
        await items.released()
        assert await items.client.list_snapshots() == []


async def _open_and_go(client: transport.Client, path: str, opening: bytes, *, received: bool) -> None:
    async with client.open_stream(path) as stream:
        await stream.send(opening)
        if received:
            await stream.receive()
