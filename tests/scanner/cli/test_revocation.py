"""Rights that are taken away while calls run: a real `weir serve` process, its credentials file and SIGHUP."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

import scanner
import scanner.sync
import transport
from scanner.client.credentials import bearer
from scanner.client.scan.push import demand_message
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.server.auth.principals import make_token, token_sha256
from scanner.wire import methods
from tests.support.processes import serving
from transport import CallFailed, StatusCode

pytestmark = [pytest.mark.socket, pytest.mark.rocks]

TOKEN = make_token()
WRITER = f"""
[principals.loader]
token_sha256 = "{token_sha256(TOKEN)}"
read = ["*"]
write = ["*"]
"""
READER = WRITER.replace('write = ["*"]', "")
OTHER_TABLE = WRITER.replace('read = ["*"]', 'read = ["items"]')
NOBODY = f"""
[principals.other]
token_sha256 = "{"0" * 64}"
"""
ROWS = pa.table({"id": list(range(4_000)), "text": ["x" * 100] * 4_000})


def replace(path: Path, text: str) -> None:
    """Change a file as operators should: at no moment is half of it there."""
    (path.parent / "new").write_text(text)
    os.replace(path.parent / "new", path)


@dataclass(frozen=True)
class Serving:
    """`weir serve` in a process."""

    process: subprocess.Popen[str]
    endpoint: str
    credentials: Path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """One for all tests."""
    directory = tmp_path_factory.mktemp("served")
    credentials = directory / "credentials.toml"
    credentials.write_text(WRITER)
    with serving(directory / "data", "--credentials", credentials) as (process, endpoint):
        yield Serving(process, endpoint, credentials)


@pytest.fixture
def server(served: Serving) -> Serving:
    """The process, with the rights and without the tables that it began with."""
    replace(served.credentials, WRITER)
    with scanner.sync.connect(served.endpoint, token=TOKEN) as client:
        for table in client.tables():
            client.drop_table(table.name)
    return served


@pytest.mark.parametrize(
    ("left", "hangup"), [(READER, True), (NOBODY, False)], ids=["right-hangup", "principal-file"]
)
async def test_writer_whose_right_is_taken_away(left: str, hangup: bool, server: Serving) -> None:
    """The next message of a write stream that began with the right is refused, and nothing of it is written."""
    async with scanner.connect(server.endpoint, token=TOKEN) as client:
        table = await client.create_table("orders", ROWS.schema, ["id"], buckets=1)
        with pytest.raises(scanner.PermissionDenied, match="loader"):
            async with table.open_writer() as writer:
                await writer.write(ROWS.slice(0, 10))
                await writer.flush()
                replace(server.credentials, left)
                if hangup:
                    server.process.send_signal(signal.SIGHUP)
                await writer.write(ROWS.slice(10, 10))
                await writer.flush()
        replace(server.credentials, WRITER)
        assert [each.end_offset for each in await table.offsets()] == [10]


async def test_stage_whose_right_is_taken_away(server: Serving) -> None:
    """The next message of a stage that began with the right is refused, and nothing of it is staged."""
    async with scanner.connect(server.endpoint, token=TOKEN) as client:
        table = await client.create_table("orders", ROWS.schema, ["id"], buckets=1)
        with pytest.raises(scanner.PermissionDenied, match="principal loader may not write table 'orders'"):
            async with table.transaction("load", 1).part(0, 0) as writer:
                await writer.upsert(ROWS.slice(0, 10))
                while not await table.transactions():
                    pass  # It has not been opened.
                replace(server.credentials, READER)
                await writer.upsert(ROWS.slice(10, 10))
        replace(server.credentials, WRITER)
        assert sum(each.stages for each in await table.transactions()) == 0


@pytest.mark.parametrize(
    ("left", "hangup"), [(OTHER_TABLE, True), (NOBODY, False)], ids=["right-hangup", "principal-file"]
)
async def test_push_scan_whose_right_is_taken_away(left: str, hangup: bool, server: Serving) -> None:
    """A push scan that waits for its consumer ends when its right is taken away, though nothing else happens."""
    async with scanner.connect(server.endpoint, token=TOKEN) as client:
        table = await client.create_table("orders", ROWS.schema, ["id"], buckets=1)
        await table.write(ROWS)
    metadata = [("authorization", bearer(TOKEN))]
    async with (
        transport.connect(
            "127.0.0.1", int(server.endpoint.rpartition(":")[2]), metadata=metadata
        ) as connection,
        connection.open_stream(methods.SCAN) as stream,
    ):
        query = pb.ScanQuery(table="orders")
        scan_open = pb.ScanOpen(query=query, source=pb.SCAN_SOURCE_LIVE_KV)
        await stream.send(pb.ScanRequest(open=scan_open).SerializeToString())
        await stream.send(demand_message(1_000))
        assert await stream.receive() is not None  # it has started
        replace(server.credentials, left)
        if hangup:
            server.process.send_signal(signal.SIGHUP)
        with pytest.raises(CallFailed, match="loader") as caught:
            while await stream.receive() is not None:
                pass
        assert caught.value.status is StatusCode.PERMISSION_DENIED


async def test_scan_that_may_go_on(server: Serving) -> None:
    """Other changes of the credentials leave a running scan alone, a token beside the old one included."""
    async with scanner.connect(server.endpoint, token=TOKEN) as client:
        table = await client.create_table("orders", ROWS.schema, ["id"], buckets=1)
        await table.write(ROWS)
        async with table.new_scan().with_credit(10_000).execute() as batches:
            rows = (await anext(batches)).num_rows
            replace(server.credentials, READER + NOBODY)
            server.process.send_signal(signal.SIGHUP)
            with pytest.raises(scanner.PermissionDenied):
                await table.write(ROWS)
            rows += sum([batch.num_rows async for batch in batches])
        assert rows == ROWS.num_rows


class Replaced:
    """A token of a principal that is replaced, at the client first, while calls run."""

    def __init__(self, credentials: Path) -> None:
        self._credentials = credentials
        self._token = TOKEN

    def token(self) -> str:
        """The one of the moment."""
        return self._token

    def replace(self) -> None:
        """From now on the server knows another one only."""
        self._token = make_token()
        replace(self._credentials, WRITER.replace(token_sha256(TOKEN), token_sha256(self._token)))


async def test_tail_whose_token_is_replaced(server: Serving) -> None:
    """Calls that run when the token is replaced, and those that begin later, go on with the newer one."""
    replaced = Replaced(server.credentials)
    async with scanner.connect(server.endpoint, token=replaced.token) as client:
        table = await client.create_table("orders", ROWS.schema, ["id"], buckets=2)
        ids: list[int] = []
        async with table.new_scan().with_source("log").execute() as batches:
            for start in (0, 10):
                await table.write(ROWS.slice(start, 10))
                while len(ids) < start + 10:
                    ids += (await anext(batches)).column("id").to_pylist()
                if not start:
                    replaced.replace()
        assert sorted(ids) == list(range(20))


async def test_writer_whose_token_is_replaced(server: Serving) -> None:
    """A write goes on with the newer token, and each row is written once."""
    replaced = Replaced(server.credentials)
    async with scanner.connect(server.endpoint, token=replaced.token) as client:
        table = await client.create_table("orders", ROWS.schema, ["id"], buckets=1)
        async with table.open_writer() as writer:
            await writer.write(ROWS.slice(0, 10))
            await writer.flush()
            replaced.replace()
            await writer.write(ROWS.slice(10, 10))
            await writer.flush()
        assert [each.end_offset for each in await table.offsets()] == [20]


async def test_part_whose_token_is_replaced(server: Serving) -> None:
    """Who stages batch by batch is told to try again, and that is enough: nothing of the block was staged."""
    replaced = Replaced(server.credentials)
    async with scanner.connect(server.endpoint, token=replaced.token) as client:
        table = await client.create_table("orders", ROWS.schema, ["id"], buckets=1)
        load = table.transaction("load", 1)
        with pytest.raises(scanner.ServerUnavailable, match="try again, with the newer one") as caught:
            async with load.part(0, 0) as writer:
                await writer.upsert(ROWS.slice(0, 10))
                replaced.replace()
                server.process.send_signal(signal.SIGHUP)
                while True:  # Until the server has read its file.
                    await writer.upsert(ROWS.slice(10, 10))
        assert caught.type is scanner.ServerUnavailable
        async with load.part(0, 0) as writer:
            await writer.upsert(ROWS.slice(0, 10))
        assert (await writer.close()).rows == 10


async def test_token_that_is_not_replaced(server: Serving) -> None:
    """Where the client has no newer token, a tail ends with the error that says why."""
    replaced = Replaced(server.credentials)
    async with scanner.connect(server.endpoint, token=lambda: TOKEN) as client:
        table = await client.create_table("orders", ROWS.schema, ["id"], buckets=1)
        await table.write(ROWS.slice(0, 10))
        with pytest.raises(scanner.PermissionDenied, match="withdrawn"):
            async with table.new_scan().with_source("log").execute() as batches:
                async for _ in batches:
                    replaced.replace()
