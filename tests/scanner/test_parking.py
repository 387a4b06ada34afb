"""Parking: a scan that can send nothing gives up its iterator and snapshot, and later ends exactly all the same."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

import scanner
import transport
from scanner.errors import SlowConsumer, SnapshotLost, TableNotFound
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.proto.weir.v1 import tables_pb2
from scanner.server.config import ScannerConfig
from scanner.server.server import Server, open_server
from scanner.storage.rocksdb.bucket import RocksBucket
from scanner.storage.rocksdb.store import RocksStore
from tests.support.scans import (
    TABLES,
    RawScan,
    description,
    failure,
    filled_store,
    mutations,
    open_scan,
    sample,
    serving,
    stored_digest,
    write,
    write_request,
)
from transport import TransportConfig

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from scanner.storage.interface import PreparedCommit


pytestmark = pytest.mark.socket

ROWS = 3000
ALL = 1 << 40
TINY = ScannerConfig(block_rows_max=500, block_bytes_max=8192, heartbeat_interval_s=0.05, park_after_s=0.001)
"""Parks as soon as there is nothing to do."""


async def until(condition: Callable[[], bool]) -> None:
    """Let the server work until something holds; who times the test out is the test run."""
    while not condition():
        await trio.lowlevel.checkpoint()


async def parked(server: Server) -> None:
    """Wait until a scan is parked."""
    await until(lambda: server.statistics().scans_parked == 1)


async def receive_for_a_second(scan: RawScan, clock: trio.testing.MockClock) -> None:
    """Let a second go by, and take what comes of a scan."""
    await trio.testing.wait_all_tasks_blocked(0.01)
    clock.jump(1)
    await trio.testing.wait_all_tasks_blocked(0.01)
    with trio.move_on_after(0):
        await scan.receive_all()


def check_exact(scan: RawScan) -> None:
    """Everything came, once and in order, as of the open."""
    assert scan.table().column("id").to_pylist() == list(range(ROWS))
    assert scan.end is not None
    assert (scan.end.reason, scan.end.rows) == (pb.ScanEnd.REASON_EXHAUSTED, ROWS)
    assert scan.end.digest == stored_digest(filled_store(0), range(ROWS))


async def test_a_scan_parks_after_its_time_without_credit(mock_clock: trio.testing.MockClock) -> None:
    """Not before `park_after_s`, and not as long as something can be sent; then nothing is pinned but the log."""
    store = filled_store(ROWS)
    bucket = store.bucket("items", 0)
    async with serving(store, ScannerConfig(heartbeat_interval_s=1, park_after_s=5)) as (server, client):
        async with open_scan(client, credit=3000) as scan:
            while not scan.batches:
                await scan.receive()
            await trio.testing.wait_all_tasks_blocked(0.01)
            mock_clock.jump(4.9)
            while not scan.heartbeats:
                await scan.receive()
            assert (server.statistics().scans_parked, server.statistics().iterators_open) == (0, 1)
            await scan.demand(6000)  # progress: the time begins anew
            while len(scan.batches) == 1:
                await scan.receive()
            await trio.testing.wait_all_tasks_blocked(0.01)
            mock_clock.jump(4.9)
            scan.heartbeats.clear()
            while not scan.heartbeats:
                await scan.receive()
            assert server.statistics().scans_parked == 0
            mock_clock.jump(0.2)
            await parked(server)
            assert (server.statistics().iterators_open, server.statistics().snapshots_open) == (0, 0)
            assert bucket.open_iterators == 0
            mock_clock.jump(1.5)
            scan.heartbeats.clear()
            while not scan.heartbeats:
                await scan.receive()
            assert scan.heartbeats[0].state == pb.Heartbeat.STATE_WAITING_CREDIT
            assert scan.heartbeats[0].rows == scan.rows
            assert scan.heartbeats[0].resume_token == scan.tokens[-1]
            bucket.commit([mutations(store, "items", sample(range(0, ROWS, 2)))])
            await scan.demand(ALL)
            await scan.receive_all()
        counted = server.statistics().activity

    check_exact(scan)
    assert (counted.scans_parked, counted.scans_resumed) == (1, {"as_of": 1})
    assert server.statistics().overrun_bytes < 500


async def test_a_scan_that_parks_again_and_again_is_exact() -> None:
    """Fed one small grant at a time, under writes, it parks between the grants and still delivers its one state."""
    store = filled_store(ROWS)
    bucket = store.bucket("items", 0)
    async with serving(store, TINY) as (server, client):
        async with open_scan(client) as scan:
            limit = 0
            while scan.end is None:
                await parked(server)
                bucket.commit([mutations(store, "items", sample([limit % ROWS, ROWS + limit]))])
                limit = max(limit, scan.received_bytes) + 9000
                await scan.demand(limit)
                while scan.end is None and scan.received_bytes < limit:
                    await scan.receive()
            await scan.receive_all()
        counted = server.statistics().activity

    check_exact(scan)
    assert counted.scans_parked >= 5
    assert counted.scans_resumed["as_of"] >= 5


async def test_without_writes_a_parked_scan_opens_the_present() -> None:
    """If nothing changed, a new snapshot is the old state, and nothing is rebuilt."""
    async with serving(filled_store(ROWS), TINY) as (server, client):
        async with open_scan(client) as scan:
            await parked(server)
            await scan.demand(ALL)
            await scan.receive_all()
        counted = server.statistics().activity
    check_exact(scan)
    assert counted.scans_resumed == {"now": 1}


async def test_a_scan_says_what_it_goes_on_from() -> None:
    """Its statistics name what it was read from before it was parked, and since."""
    store = filled_store(ROWS)
    async with (
        serving(store, TINY) as (server, _),
        scanner.connect(f"{server.host}:{server.port}") as client,
    ):
        scan = (await client.table("items")).new_scan().with_credit(3000)
        async with scan.execute() as batches:
            rows = (await anext(batches)).num_rows
            await parked(server)
            store.bucket("items", 0).commit([mutations(store, "items", sample([ROWS]))])
            async for batch in batches:
                rows += batch.num_rows
    assert rows == ROWS
    assert batches.statistics().buckets[0].read_sources == ("now", "as_of")


async def test_a_window_only_client_that_does_not_read_parks() -> None:
    """Without credit in the protocol the shut window is the stall; it parks, and goes on when the window opens."""
    store = filled_store(ROWS)
    bucket = store.bucket("items", 0)
    tight = TransportConfig(send_buffer_bytes=1000)
    with trio.fail_after(100):
        async with (
            open_server(store, config=TINY, transport_config=tight) as server,
            transport.connect(
                server.host, server.port, config=TransportConfig(stream_window_bytes=1000)
            ) as slow,
            open_scan(slow, window_only=True) as scan,
        ):
            await scan.receive()
            await parked(server)
            assert bucket.open_iterators == 0
            bucket.commit([mutations(store, "items", sample(range(0, ROWS, 2)))])
            await scan.receive_all()
            assert server.statistics().activity.scans_resumed["as_of"] >= 1
    check_exact(scan)


async def test_a_parked_scan_is_listed_as_parked() -> None:
    """Among the streams it says so; among what is pinned it is not there."""
    store = filled_store(ROWS)
    async with serving(store, TINY) as (server, client), scanner.connect(f"127.0.0.1:{server.port}") as admin:
        async with open_scan(client, credit=2000) as scan:
            while not scan.batches:  # then the credit has arrived, and what parks stays parked
                await scan.receive()
            await parked(server)
            store.bucket("items", 0).commit([mutations(store, "items", sample(range(3)))])
            scanning, _ = await admin.list_streams()
            assert await admin.list_snapshots() == []
            await scan.demand(ALL)
            await scan.receive_all()
    assert scanning.scan is not None
    assert (scanning.scan.parked, scanning.scan.iterator_open, scanning.scan.pinned_s) == (True, False, 0)
    assert (scanning.scan.log_offset, scanning.scan.log_behind) == (ROWS, 6)


async def test_a_snapshot_that_lingers_is_listed() -> None:
    """What is kept for the resume of a scan that was cut off pins its state, and is nobody's."""
    store = filled_store(ROWS)
    async with serving(store) as (server, client), scanner.connect(f"127.0.0.1:{server.port}") as admin:
        async with open_scan(client, credit=2000) as scan:
            await scan.receive()
        await until(lambda: server.statistics().iterators_open == 0)
        (lingering,) = await admin.list_snapshots()
        assert await admin.list_snapshots("other") == []
    assert (lingering.holder, lingering.principal) == ("lingering", "")
    assert (lingering.scan.table, lingering.scan.log_offset) == ("items", ROWS)


async def test_a_parked_scan_can_be_drained_and_cancelled() -> None:
    """Its end comes with the token of where it stands; a reset frees its place and its pin."""
    store = filled_store(ROWS)
    async with serving(store, TINY) as (server, client):
        async with open_scan(client, credit=3000) as scan:
            await parked(server)
            await scan.drain()
            await scan.receive_all()
        assert scan.end is not None
        assert (scan.end.reason, scan.end.rows) == (pb.ScanEnd.REASON_DRAINED, scan.rows)
        assert scan.end.resume_token == scan.tokens[-1]
        async with open_scan(client, credit=3000) as dropped:
            await dropped.receive()
            await parked(server)
        await until(lambda: server.statistics().scans_parked == 0)


async def test_dropping_the_table_ends_a_parked_scan() -> None:
    """Parked or not, it fails with TABLE_NOT_FOUND, and the drop does not wait for its consumer."""
    async with serving(filled_store(ROWS), TINY) as (server, client):
        async with open_scan(client, credit=3000) as scan:
            await parked(server)
            request = tables_pb2.DropTableRequest(table="items").SerializeToString()
            await client.call(TABLES + "DropTable", request)
            error = await failure(scan.receive_all)
    assert isinstance(error, TableNotFound)
    assert error.resume_token is None


async def test_a_scan_that_pins_too_much_ends_with_its_last_token() -> None:
    """SLOW_CONSUMER tells where to go on, as long as the log is there; the scan's pin is gone at once."""
    store = filled_store(ROWS)
    async with serving(store, TINY) as (server, client):
        async with open_scan(client, credit=3000) as scan:
            while not scan.tokens:  # It may park before the credit has come.
                await scan.receive()
            await parked(server)
            for _, _, bucket in server._services.catalog.open_buckets():
                pin = bucket.pins.longest_of("anonymous")
                assert pin is not None
                pin.end(SlowConsumer("it kept too much of the changelog"))
                assert bucket.pins.oldest() is None
            error = await failure(scan.receive_all)
        assert isinstance(error, SlowConsumer)
        assert error.resume_token == scan.tokens[-1]
        async with open_scan(client, credit=ALL, resume_token=error.resume_token) as rest:
            await rest.receive_all()
    assert rest.row_ordinal == scan.rows
    assert rest.end is not None
    assert rest.end.digest == stored_digest(store, range(ROWS))


async def test_a_parked_scan_whose_log_is_gone_says_so() -> None:
    """Where the log was cut in spite of the pin, un-parking is SNAPSHOT_LOST, never other rows."""
    store = filled_store(ROWS)
    bucket = store.bucket("items", 0)
    async with serving(store, TINY) as (server, client):
        async with open_scan(client, credit=3000) as scan:
            await parked(server)
            bucket.commit([mutations(store, "items", sample([1]))])
            bucket.truncate_log(ROWS + 2)
            await scan.demand(ALL)
            error = await failure(scan.receive_all)
    assert isinstance(error, SnapshotLost)
    assert error.oldest_offset == ROWS + 2


async def test_a_scan_waits_parked_for_room(mock_clock: trio.testing.MockClock) -> None:
    """When there is no room for another snapshot it stays parked, heartbeats go on, and it takes its turn."""
    store = filled_store(ROWS)
    bucket = store.bucket("items", 0)
    config = ScannerConfig(
        scans_max=2, sessions_max=1, sessions_per_bucket_max=1, snapshots_max=1, heartbeat_interval_s=1
    )
    async with serving(store, config) as (server, client):
        async with open_scan(client) as scan:
            await scan.receive()
            await trio.testing.wait_all_tasks_blocked(0.01)
            mock_clock.jump(5)
            await parked(server)
            bucket.commit([mutations(store, "items", sample([1]))])
            async with open_scan(client) as other:
                await other.receive()
                bucket.commit([mutations(store, "items", sample([1]))])
                await scan.demand(ALL)
                for _ in range(3):
                    await trio.testing.wait_all_tasks_blocked(0.01)
                    mock_clock.jump(1)
                    await scan.receive()
                assert (scan.rows, server.statistics().scans_parked) == (0, 1)
                assert scan.heartbeats[-1].state == pb.Heartbeat.STATE_SCANNING
            await until(lambda: server.statistics().push_scans_open == 1)
            mock_clock.jump(1)
            await scan.receive_all()
    check_exact(scan)


@pytest.mark.rocks
async def test_a_scan_waits_parked_for_the_files_of_its_bucket(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """They were closed for another bucket, and as many as the server may have are in use: it takes its turn."""
    with RocksStore.open(tmp_path) as store:
        store.create_table(description(buckets=2))
        rows = mutations(store, "items", sample(range(ROWS)))
        for index in range(2):
            store.bucket("items", index).commit([rows])
    config = ScannerConfig(buckets_open_max=1, snapshot_linger_s=0, heartbeat_interval_s=1)
    async with serving(tmp_path, config) as (server, client):
        async with open_scan(client) as scan:
            await scan.receive()
            await trio.testing.wait_all_tasks_blocked(0.01)
            mock_clock.jump(5)
            await parked(server)
            async with open_scan(client, query=pb.ScanQuery(table="items", bucket=1)) as other:
                await other.receive()
                await scan.demand(ALL)
                for _ in range(3):
                    await receive_for_a_second(scan, mock_clock)
                assert (scan.rows, server.statistics().scans_parked) == (0, 1)
            # Upkeep may use the other bucket at the moment of a try.
            while scan.end is None:
                await receive_for_a_second(scan, mock_clock)
    check_exact(scan)


@pytest.mark.rocks
async def test_a_scan_that_waits_for_a_commit_to_go_on_says_that_it_lives(
    tmp_path: Path, mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may take long, as that of a whole share of a transaction does: a client would take the server for gone."""
    with RocksStore.open(tmp_path) as store:
        store.create_table(description())
        store.bucket("items", 0).commit([mutations(store, "items", sample(range(ROWS)))])
    commit, begun, let = RocksBucket.commit_prepared, threading.Event(), threading.Event()

    def commit_when_let(bucket: RocksBucket, prepared: PreparedCommit, *args: Any, **kwargs: Any) -> None:
        begun.set()
        let.wait()
        commit(bucket, prepared, *args, **kwargs)

    monkeypatch.setattr(RocksBucket, "commit_prepared", commit_when_let)
    async with serving(tmp_path, ScannerConfig(heartbeat_interval_s=1)) as (server, client):
        async with open_scan(client) as scan, trio.open_nursery() as nursery:
            await scan.receive()
            await trio.testing.wait_all_tasks_blocked(0.01)
            mock_clock.jump(5)
            await parked(server)
            try:
                nursery.start_soon(write, client, write_request(sample([1])))
                await until(begun.is_set)
                await scan.demand(ALL)
                beats = len(scan.heartbeats)
                for _ in range(10):
                    await receive_for_a_second(scan, mock_clock)
                assert (len(scan.heartbeats) - beats >= 10, scan.rows) == (True, 0)
            finally:
                let.set()
            await scan.receive_all()
    check_exact(scan)
