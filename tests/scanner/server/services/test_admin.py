"""`weir.v1.Admin` over real sockets: streams, snapshots, the drain, and who may ask."""

from __future__ import annotations

import pytest

import scanner
from scanner.cli.admin import pins
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.server.auth.principals import Credentials, make_token, token_sha256
from scanner.server.server import open_server
from tests.support.scans import SESSION, SMALL, filled_store, mutations, open_scan, released, sample, serving
from transport import StallReason

pytestmark = pytest.mark.socket

ROWS = 3000


async def test_a_scan_shows_what_it_waits_for_and_pins() -> None:
    """A push scan without credit: whose it is, what it read, its credit and windows, and the state that it pins."""
    store = filled_store(ROWS)
    async with serving(store) as (server, client), scanner.connect(f"127.0.0.1:{server.port}") as admin:
        async with open_scan(client, credit=2000) as scan:
            await scan.receive_credit(2000)
            store.bucket("items", 0).commit([mutations(store, "items", sample(range(3)))])
            scanning, asking = await admin.list_streams()
            while scanning.stalls.longest is not StallReason.CREDIT:  # as it must be in the end
                scanning, asking = await admin.list_streams()
            (pinned,) = await admin.list_snapshots()
            assert len(await admin.list_snapshots("items")) == 1
            assert await admin.list_snapshots("other") == []

    assert (asking.path, asking.scan, asking.connection_id) == ("/weir.v1.Admin/ListStreams", None, 2)
    assert (scanning.method, scanning.connection_id, scanning.principal) == ("Scan", 1, "anonymous")
    assert scanning.stall is StallReason.CREDIT
    assert scanning.age_s == pytest.approx(scanning.stalls.total_s, abs=0.002)
    assert scanning.credit_limit == 2000
    assert scanning.credit_left is not None
    assert scanning.credit_left <= 0
    assert scanning.credit_sent == scan.received_bytes
    assert 0 < scanning.send_window < 8 << 20
    assert scanning.scan is not None
    assert (scanning.scan.table, scanning.scan.bucket, scanning.scan.source) == ("items", 0, "LIVE_KV")
    assert (scanning.scan.rows, scanning.scan.iterator_open) == (scan.rows, True)
    assert (scanning.scan.log_offset, scanning.scan.log_behind) == (ROWS, 6)
    assert (pinned.holder, pinned.connection_id, pinned.stream_id) == ("stream", 1, scanning.stream_id)
    assert (pinned.scan.log_offset, pinned.peer, pinned.principal) == (ROWS, scanning.peer, "anonymous")


async def test_a_tail_pins_the_changelog_from_where_it_is() -> None:
    """A scan of changes holds no snapshot, and keeps what it has not delivered, not what it began with."""
    async with (
        serving(filled_store(ROWS)) as (server, _),
        scanner.connect(f"127.0.0.1:{server.port}") as admin,
    ):
        table = await admin.table("items")
        async with table.new_scan().with_source("hybrid").execute() as batches:
            rows = 0
            while rows < ROWS:
                rows += (await anext(batches)).num_rows
            await table.write(sample([ROWS]))
            await anext(batches)
            tail, _ = await admin.list_streams()
            assert await admin.list_snapshots() == []
        assert server.statistics().snapshots_open == 0
    assert tail.scan is not None
    assert (tail.scan.log_offset, tail.scan.log_behind, tail.scan.rows) == (ROWS + 1, 0, ROWS + 1)
    assert (tail.scan.iterator_open, tail.scan.pinned_s, tail.scan.parked) == (False, 0, False)
    assert pins(tail) == f"@{ROWS + 1} +0 log"


async def test_the_overrun_of_a_scan_that_runs_counts() -> None:
    """The furthest that a scan went past its credit is told while it runs, and stays when it has ended."""
    async with serving(filled_store(ROWS)) as (server, client):
        async with open_scan(client, credit=1) as scan:
            while not scan.batches:
                await scan.receive()
            assert server.statistics().overrun_bytes == scan.received_bytes - 1
        await released(server)
        assert server.statistics().overrun_bytes == scan.received_bytes - 1


async def test_a_session_pins_between_its_calls() -> None:
    """A session is no stream, but what it pins is listed; its id, with which it could be used, is not."""
    async with serving(filled_store(ROWS)) as (server, client):
        request = pb.ScanSessionRequest(query=pb.ScanQuery(table="items"), batch_size_bytes=1000)
        page = pb.ScanSessionResponse.FromString(
            bytes(await client.call(SESSION, request.SerializeToString()))
        )
        async with scanner.connect(f"127.0.0.1:{server.port}") as admin:
            (pinned,) = await admin.list_snapshots()
            assert [each.method for each in await admin.list_streams()] == ["ListStreams"]
        assert (pinned.holder, pinned.scan.rows) == ("session", page.row_count)
        assert page.scanner_id.hex() not in repr(pinned)
        close = pb.ScanSessionRequest(scanner_id=page.scanner_id, close=True)
        await client.call(SESSION, close.SerializeToString())


async def test_draining_by_a_call() -> None:
    """The call is answered at once; the server then refuses what is new and lets what runs finish."""
    async with open_server(filled_store(ROWS), config=SMALL) as server:
        async with scanner.connect(f"127.0.0.1:{server.port}") as admin:
            table = await admin.table("items")
            async with table.new_scan().with_credit(10_000).execute() as batches:
                rows = (await anext(batches)).num_rows
                begun = await admin.drain(3600)
                await server.wait_draining()
                rows += sum([batch.num_rows async for batch in batches])
        await server.wait_drained()
    assert (begun.streams, begun.already_draining) == (2, False)
    assert rows == ROWS
    assert server.statistics().transport.connections == 0


async def test_a_drain_that_is_asked_for_in_vain() -> None:
    """A time that cannot be is refused before anything happens."""
    async with serving(filled_store(1)) as (server, _):
        async with scanner.connect(f"127.0.0.1:{server.port}") as admin:
            for timeout_s in (-1, 1e9):
                with pytest.raises(scanner.ArgumentInvalid):
                    await admin.drain(timeout_s)
        assert not server.draining


async def test_only_administrators_may_ask() -> None:
    """A principal without the right is refused every call, and nothing happens."""
    reader, admin = make_token(), make_token()
    credentials = Credentials.parse(
        f"""
        [principals.reader]
        token_sha256 = ["{token_sha256(reader)}"]
        read = ["*"]

        [principals.operator]
        token_sha256 = ["{token_sha256(admin)}"]
        admin = true
        """
    )
    async with open_server(filled_store(1), config=SMALL, credentials=credentials) as server:
        endpoint = f"127.0.0.1:{server.port}"
        async with scanner.connect(endpoint, token=reader) as client:
            for call in (client.list_streams, client.list_snapshots, client.drain):
                with pytest.raises(scanner.PermissionDenied):
                    await call()
        async with scanner.connect(endpoint, token=admin) as client:
            assert [each.principal for each in await client.list_streams()] == ["operator"]
        assert not server.draining
