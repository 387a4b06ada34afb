"""The server as a whole: what it refuses to start on, how it drains, and that it survives its peers."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import trio

import transport
from scanner.errors import ArgumentInvalid, StoreLocked
from scanner.proto.weir.v1 import groups_pb2, tables_pb2, transactions_pb2
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.server.config import ScannerConfig
from scanner.server.scan.tokens import TOKEN_BYTES_MAX
from scanner.server.server import open_server
from scanner.server.services.point_reads import GET_TOO_LARGE
from scanner.storage.memory.store import MemoryStore
from scanner.storage.rocksdb.store import RocksStore
from scanner.wire import methods
from scanner.wire.tables import description_to_proto
from tests.support.groups import join_request, refusal
from tests.support.scans import (
    SESSION,
    SMALL,
    create_table,
    description,
    failure,
    filled_store,
    open_scan,
    released,
    sample,
    serving,
    write,
    write_request,
)

pytestmark = pytest.mark.socket

ROWS = 3000


async def test_a_port_in_use_is_one_line_that_says_what_to_do() -> None:
    """The error is typed, bare and names the port."""
    async with open_server(MemoryStore()) as server:
        with pytest.raises(
            ArgumentInvalid, match=f"port {server.port} on 127.0.0.1 is in use; choose another"
        ):
            async with open_server(MemoryStore(), port=server.port):
                pass


@pytest.mark.parametrize(
    ("host", "port", "said"),
    [
        ("192.0.2.1", 0, r"192\.0\.2\.1:0: .*; name an address that this machine has"),
        ("2001:db8::1", 0, r"\[2001:db8::1\]:0: .*; name an address that this machine has"),
        # The C library would listen on its lower sixteen bits, which nobody asked for.
        ("127.0.0.1", 65536, r"127\.0\.0\.1:65536: a port is at most 65535"),
        # Python's codec does not know such a name.
        ("a..b", 0, r"a\.\.b:0"),
    ],
)
async def test_an_address_that_cannot_be_listened_on_is_refused(host: str, port: int, said: str) -> None:
    """It is an argument error as well: not this machine's, no port, or a name that no machine has."""
    with pytest.raises(ArgumentInvalid, match=f"cannot listen on {said}"):
        async with open_server(MemoryStore(), host, port):
            pass


async def test_requests_of_calls_that_take_one_are_short() -> None:
    """What is longer is refused unread, and so is what opens a scan; what carries a schema may be longer."""
    table = description()
    long = description("x" * 100)
    async with serving(MemoryStore(), ScannerConfig(unary_request_bytes_max=200)) as (_, client):
        await create_table(client, table)
        request = tables_pb2.CreateTableRequest(table=description_to_proto(long)).SerializeToString()
        assert len(request) > 200
        await create_table(client, long)
        for service in (methods.TABLES + "DescribeTable", methods.ADMIN + "ListImages", methods.PUBLISH):
            refused = await failure(functools.partial(client.call, service, bytes(201)))
            assert isinstance(refused, ArgumentInvalid)
            assert "a request of 201 octets is too large; 200 are allowed" in refused.message
        long_query = pb.ScanQuery(table="x" * 196)
        scan = pb.ScanRequest(open=pb.ScanOpen(query=long_query))
        page = pb.ScanPageRequest(query=long_query)
        for service, message in [
            (methods.SCAN, scan.SerializeToString()),
            (methods.SCAN_PAGE, page.SerializeToString()),
            (methods.SCAN_SESSION, bytes(201)),
            (methods.FETCH_LOG, bytes(201)),
        ]:
            async with client.open_stream(service) as stream:
                await stream.send(message)
                refused = await failure(stream.receive)
            assert f"a request of {len(message)} octets is too large; 200 are allowed" in refused.message
        # What just fits when it opens a scan goes on with a token.
        scan.open.query.table = page.query.table = "x" * 190
        scan.open.resume_token = page.resume_token = bytes(TOKEN_BYTES_MAX)
        for service, resumed in [(methods.SCAN, scan), (methods.SCAN_PAGE, page)]:
            async with client.open_stream(service) as stream:
                await stream.send(resumed.SerializeToString())
                refused = await failure(stream.receive)
            assert "too large" not in refused.message
        refused = await refusal(client, join_request("one", table=table.name), bytes(201))
        assert "a request of 201 octets is too large; 200 are allowed" in refused.message
        refused = await failure(functools.partial(client.call, methods.GET, bytes(201)))
        assert "a request of 201 octets is too large; 200 are allowed; ask for fewer keys" in refused.message
        assert GET_TOO_LARGE in refused.metadata  # At which clients ask in parts.


async def test_long_requests_without_lists_have_few_fields() -> None:
    """What is read before its rights are, or kept as long as the call runs, takes no gigabyte and no seconds."""
    opening = transactions_pb2.StageRequest(open=transactions_pb2.StageOpen(session=bytes(4_100)))
    join = groups_pb2.JoinRequest(join=groups_pb2.Join(instance=bytes(4_100)))
    requests = {
        methods.WRITE: [b"\x78\x01" * 10_000],
        methods.SCAN: [b"\x0a\x00\x12\x00" * 5_000],
        methods.STAGE: [b"\x0a\x00\x12\x00" * 5_000, opening.SerializeToString()],
        methods.JOIN: [join.SerializeToString()],
    }
    async with serving(MemoryStore()) as (_, client):
        for service, messages in requests.items():
            for message in messages:
                async with client.open_stream(service) as stream:
                    await stream.send(message)
                    refused = await failure(stream.receive)
                assert isinstance(refused, ArgumentInvalid)
                assert ("more than 64 fields" if len(message) == 20_000 else "too large") in refused.message


@pytest.mark.rocks
async def test_a_directory_serves_one_server_at_a_time(tmp_path: Path) -> None:
    """The second one is refused by type; after the first has gone the directory is free."""
    async with open_server(tmp_path):
        with pytest.raises(StoreLocked, match=str(tmp_path)):
            async with open_server(tmp_path):
                pass
    async with open_server(str(tmp_path)):
        pass


@pytest.mark.rocks
async def test_a_server_that_ends_mid_scan_lets_go_of_its_directory(tmp_path: Path) -> None:
    """Open scans and sessions are closed with the server, so the directory can be opened at once."""
    config = ScannerConfig(block_rows_max=10)
    with trio.fail_after(100):
        async with open_server(tmp_path, config=config) as server:
            async with transport.connect(server.host, server.port) as client:
                await create_table(client, description())
                await write(client, write_request(sample(range(ROWS))))
                request = pb.ScanSessionRequest(query=pb.ScanQuery(table="items"), batch_size_bytes=1)
                await client.call(SESSION, request.SerializeToString())
                async with open_scan(client, credit=2000) as scan:
                    while not scan.batches:
                        await scan.receive()
                    assert server.statistics().iterators_open == 2
                    await server.drain(0)
        with RocksStore.open(tmp_path) as store:
            assert [each.name for each in store.tables()] == ["items"]


async def test_a_lost_connection_releases_its_scans() -> None:
    """A client that dies mid-scan leaves nothing open, and others notice nothing."""
    async with serving(filled_store(ROWS), SMALL) as (server, client):
        async with transport.connect(server.host, server.port) as dying:
            stream = dying.open_stream(methods.SCAN)
            async with stream as opened:
                opening = pb.ScanOpen(source=pb.SCAN_SOURCE_LIVE_KV, query=pb.ScanQuery(table="items"))
                await opened.send(pb.ScanRequest(open=opening).SerializeToString())
                await opened.receive()
                assert server.statistics().iterators_open == 1
        await released(server)
        async with open_scan(client, window_only=True) as scan:
            await scan.receive_all()

    assert scan.rows == ROWS


async def test_draining_lets_a_running_scan_finish() -> None:
    """A drain refuses what is new and waits for what runs."""
    async with open_server(filled_store(ROWS), config=SMALL) as server:
        async with transport.connect(server.host, server.port) as client:
            async with open_scan(client) as scan:
                await scan.receive()
                drained: list[bool] = []

                async def drain() -> None:
                    drained.append(await server.drain(1000))

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(drain)
                    await scan.demand(1 << 40)
                    await scan.receive_all()

    assert scan.rows == ROWS
    assert drained == [True]


async def test_an_exception_of_the_block_comes_out_as_itself() -> None:
    """Who runs a server need not look into exception groups."""
    with pytest.raises(ZeroDivisionError):
        async with open_server(MemoryStore()):
            raise ZeroDivisionError
