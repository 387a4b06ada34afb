"""Who may call a server, and do what, through real clients and over real connections."""

from __future__ import annotations

import errno
import itertools
import logging
import math
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trio

import scanner
import transport
from scanner.client.scan.plan import ScanMode
from scanner.errors import (
    ArgumentInvalid,
    PermissionDenied,
    ScannerError,
    ServerUnavailable,
    SessionUnknown,
    TableNotFound,
    Unauthenticated,
)
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.proto.weir.v1 import tables_pb2
from scanner.server.auth.access import CredentialsFile, Right, authorize
from scanner.server.auth.principals import Credentials, make_token, token_sha256
from scanner.server.server import Server, open_server
from scanner.storage.memory.store import MemoryStore
from scanner.wire import methods
from scanner.wire.statuses import from_call_failed
from tests.support.certificates import client_tls, issue, server_tls
from transport import CallFailed, ServerStream, StatusCode

pytestmark = pytest.mark.socket

PRINCIPALS = ("admin", "reader", "writer", "all_writer", "other", "nothing")
TOKENS = {name: make_token() for name in PRINCIPALS}
HASHES = {name: f'token_sha256 = ["{token_sha256(token)}"]' for name, token in TOKENS.items()}
CREDENTIALS = f"""
[principals.admin]
{HASHES["admin"]}
admin = true
[principals.reader]
{HASHES["reader"]}
certificates = ["dns:reader.example"]
read = ["orders*"]
[principals.writer]
{HASHES["writer"]}
write = ["orders"]
[principals.all_writer]
{HASHES["all_writer"]}
read = ["*"]
write = ["*"]
[principals.other]
{HASHES["other"]}
read = ["items", "orders"]
[principals.nothing]
{HASHES["nothing"]}
"""
SCHEMA = pa.schema([("k", pa.int64()), ("text", pa.string())])
ROWS = pa.table({"k": list(range(1_000)), "text": ["x" * 50] * 1_000}, schema=SCHEMA)


@asynccontextmanager
async def serving(credentials: Credentials | CredentialsFile | None = None) -> AsyncIterator[Server]:
    """A server with the tables `orders`, with rows, `orders.old` and `items`."""
    async with open_server(
        MemoryStore(), credentials=credentials or Credentials.parse(CREDENTIALS)
    ) as server:
        async with connected(server, "all_writer") as client:
            for name in ("orders", "orders.old", "items"):
                table = await client.create_table(name, SCHEMA, ["k"], buckets=1)
                if name == "orders":
                    await table.write(ROWS)
        yield server


@asynccontextmanager
async def connected(server: Server, principal: str | None) -> AsyncIterator[scanner.Client]:
    """A client with a principal's token."""
    token = None if principal is None else TOKENS[principal]
    async with scanner.connect(f"{server.host}:{server.port}", token=token) as client:
        yield client


async def read_all(table: scanner.Table, mode: str = "push") -> int:
    """How many rows a scan of the table delivers."""
    return int((await table.new_scan().with_mode(mode).to_arrow()).num_rows)


async def changes_in(scan: Any) -> int:
    """How many changes a scan delivers, or a reader of a group."""
    async with scan.execute() as batches:
        return sum([batch.num_rows async for batch in batches])


async def test_calls_without_a_known_token() -> None:
    """Without a token, and with a wrong one, no call is served, and none is worth trying again."""
    async with serving() as server:
        for token in (None, "weir_wrong"):
            async with scanner.connect(f"127.0.0.1:{server.port}", token=token) as client:
                with pytest.raises(Unauthenticated) as caught:
                    await client.tables()
                assert not caught.value.retriable
                with pytest.raises(Unauthenticated):
                    await client.table("orders")


@pytest.mark.parametrize(
    ("tokens", "refusal"),
    [
        (itertools.cycle([TOKENS["reader"], TOKENS["nothing"]]), PermissionDenied),
        ((f"weir_{number}" for number in itertools.count()), Unauthenticated),
    ],
    ids=["known", "unknown"],
)
async def test_a_function_that_makes_another_token_each_time(
    tokens: Iterator[str], refusal: type[ScannerError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is refused with one token and with the next is refused at once, by its own name."""
    monkeypatch.setattr("scanner.client.connection._NEW_TOKEN_S", math.inf)  # However slow this machine is.
    plan = scanner.ScanPlan(table=scanner.TableDescription("items", SCHEMA, ("k",), 1))
    async with (
        serving() as server,
        scanner.connect(f"127.0.0.1:{server.port}", token=lambda: next(tokens), retries=1) as client,
    ):
        with pytest.raises(refusal):
            await client.table("items")
        with pytest.raises(refusal):
            await client.scan(plan).to_arrow()


@pytest.mark.parametrize("mode", [mode.value for mode in ScanMode if not mode.of_changes])
async def test_readers_read(mode: str) -> None:
    """Who may read a table scans it by push and by pull, and does nothing else with it."""
    async with serving() as server, connected(server, "reader") as client:
        table = await client.table("orders")
        assert await read_all(table, mode) == 1_000
        assert (await table.get([(1,), (1_000,)])).found == (True, False)
        assert [each.end_offset for each in await table.offsets()] == [1_000]
        with pytest.raises(PermissionDenied, match="principal reader may not write table 'orders'"):
            await table.write(ROWS)
        with pytest.raises(PermissionDenied, match="may not write"):
            await table.delete([(1,)])
        with pytest.raises(PermissionDenied, match="may not see table 'items'"):
            await client.table("items")


@pytest.mark.parametrize("mode", [mode.value for mode in ScanMode if not mode.of_changes])
async def test_writers_do_not_read(mode: str) -> None:
    """Who may write a table describes and writes it, and scans nothing."""
    async with serving() as server, connected(server, "writer") as client:
        table = await client.table("orders")
        await table.write(ROWS)
        with pytest.raises(PermissionDenied, match="principal writer may not read table 'orders'"):
            await read_all(table, mode)
        with pytest.raises(PermissionDenied, match="principal writer may not read table 'orders'"):
            await table.get([(1,)])


@pytest.mark.parametrize("how", ["push", "fetch", "group", "snapshot"])
async def test_changes_are_for_readers(how: str) -> None:
    """Who may read a table reads its changes, alone and in a group; who may only write it does neither."""
    async with serving() as server:
        for principal in ("reader", "writer"):
            async with connected(server, principal) as client:
                table = await client.table("orders")
                scan: Any = (
                    table.new_scan().with_source("hybrid" if how == "snapshot" else "log").stop_at("end")
                )
                if how == "fetch":
                    scan = scan.with_mode("fetch")
                elif how == "group":
                    scan = scan.in_group("billing")
                if how != "snapshot":
                    scan = scan.start_at("earliest")
                if principal == "reader":
                    assert await changes_in(scan) == 1_000
                    continue
                with pytest.raises(PermissionDenied, match="principal writer may not read table 'orders'"):
                    await changes_in(scan)


async def test_groups_are_deleted_by_readers() -> None:
    """Who may describe a table sees its groups; who may not read it deletes none."""
    async with serving() as server:
        async with connected(server, "reader") as client:
            orders = await client.table("orders")
            scan = orders.new_scan().with_source("log").start_at("earliest").stop_at("end")
            assert await changes_in(scan.in_group("billing")) == 1_000
        async with connected(server, "writer") as client:
            orders = await client.table("orders")
            assert [each.name for each in await orders.groups()] == ["billing"]
            with pytest.raises(PermissionDenied, match="may not read table 'orders'"):
                await orders.delete_group("billing")
        async with connected(server, "reader") as client:
            assert [each.name for each in await (await client.table("orders")).groups()] == ["billing"]


async def test_write_stream_is_checked_message_by_message() -> None:
    """One write stream cannot go from a table that may be written to one that may not."""
    async with serving() as server, connected(server, "writer") as client:
        orders = tables_pb2.WriteRequest(table="orders").SerializeToString()
        items = tables_pb2.WriteRequest(table="items").SerializeToString()
        async with client._connection.open_stream(methods.WRITE) as stream:
            await stream.send(items)
            with pytest.raises(CallFailed) as caught:
                await stream.receive()
            assert caught.value.status is StatusCode.PERMISSION_DENIED
        async with client._connection.open_stream(methods.WRITE) as stream:
            await stream.send(orders)
            with pytest.raises(CallFailed) as caught:
                await stream.receive()
            assert caught.value.status is StatusCode.INVALID_ARGUMENT  # no rows in it: it got further


@pytest.mark.parametrize(
    ("principal", "tables"),
    [
        ("admin", ["items", "orders", "orders.old"]),
        ("all_writer", ["items", "orders", "orders.old"]),
        ("reader", ["orders", "orders.old"]),
        ("writer", ["orders"]),
        ("other", ["items", "orders"]),
        ("nothing", []),
    ],
)
async def test_tables_are_listed_as_far_as_they_may_be_seen(principal: str, tables: list[str]) -> None:
    """The list has the tables that the principal may read, write or manage, and no other."""
    async with serving() as server, connected(server, principal) as client:
        assert [each.name for each in await client.tables()] == tables


@pytest.mark.parametrize("principal", PRINCIPALS)
async def test_who_creates_and_drops(principal: str) -> None:
    """Tables are created, changed and dropped by admins, and by who may write all of them."""
    async with serving() as server, connected(server, principal) as client:
        if principal in {"admin", "all_writer"}:
            table = await client.create_table("fresh", SCHEMA, ["k"])
            await table.add_column(pa.field("more", pa.int8()))
            await client.drop_table("fresh")
        else:
            with pytest.raises(PermissionDenied, match="may not create, change or drop table 'fresh'"):
                await client.create_table("fresh", SCHEMA, ["k"])
            with pytest.raises(
                PermissionDenied, match=r"may not (create, change or drop|see) table 'orders'"
            ):
                await client.drop_table("orders")
        if principal in {"reader", "writer", "other"}:
            table = await client.table("orders")
            with pytest.raises(PermissionDenied, match="may not create, change or drop table 'orders'"):
                await table.add_column(pa.field("more", pa.int8()))


async def test_refusals_tell_nothing_of_other_tables() -> None:
    """Whether a table exists shows in no refusal, and an error that lists tables does not list what is not theirs."""
    async with serving() as server:
        async with connected(server, "other") as client:
            for name in ("orders.old", "never.was"):
                with pytest.raises(PermissionDenied, match=rf"^principal other may not see table '{name}'$"):
                    await client.table(name)
        async with connected(server, "reader") as client:
            with pytest.raises(TableNotFound, match=r"^there is no such table, or not any more$"):
                await client.table("orders.never.was")
        async with connected(server, "all_writer") as client:
            with pytest.raises(TableNotFound, match="items"):
                await client.table("orders.never.was")


async def test_no_credentials_as_before() -> None:
    """A server without credentials serves everybody everything, and a token sent to it does no harm."""
    async with open_server(MemoryStore()) as server:
        for token in (None, "weir_whatever"):
            async with scanner.connect(f"127.0.0.1:{server.port}", token=token) as client:
                table = await client.create_table("t", SCHEMA, ["k"])
                await table.write(ROWS)
                assert await read_all(table) == 1_000
                await client.drop_table("t")


async def test_session_belongs_to_its_principal() -> None:
    """To another principal, which may read the table too, a session does not exist; its owner goes on with it."""
    async with serving() as server:
        async with connected(server, "reader") as owner, connected(server, "other") as thief:
            opened = pb.ScanSessionRequest(
                query=pb.ScanQuery(table="orders"), batch_size_bytes=1_000
            ).SerializeToString()
            page = pb.ScanSessionResponse.FromString(
                bytes(await owner._connection.call(methods.SCAN_SESSION, opened))
            )
            again = pb.ScanSessionRequest(
                scanner_id=page.scanner_id, call_seq_id=1, batch_size_bytes=1_000
            ).SerializeToString()
            close = pb.ScanSessionRequest(scanner_id=page.scanner_id, close=True).SerializeToString()
            await thief._connection.call(methods.SCAN_SESSION, close)
            with pytest.raises(CallFailed) as caught:
                await thief._connection.call(methods.SCAN_SESSION, again)
            assert isinstance(from_call_failed(caught.value), SessionUnknown)
            second = pb.ScanSessionResponse.FromString(
                bytes(await owner._connection.call(methods.SCAN_SESSION, again))
            )
            assert second.scanner_id == page.scanner_id
            assert second.row_ordinal == page.row_count


async def test_scan_is_not_replaced_by_another_principal() -> None:
    """The stream id of a principal's scan, used by another one, names another scan."""
    message = pb.ScanRequest(
        open=pb.ScanOpen(
            source=pb.SCAN_SOURCE_LIVE_KV, query=pb.ScanQuery(table="orders"), stream_id=b"the same"
        )
    ).SerializeToString()
    async with (
        serving() as server,
        connected(server, "reader") as first,
        connected(server, "other") as second,
    ):
        async with (
            first._connection.open_stream(methods.SCAN) as theirs,
            second._connection.open_stream(methods.SCAN) as ours,
        ):
            for stream in (theirs, ours):
                await stream.send(message)
                assert pb.ScanResponse.FromString(bytes(await stream.receive())).HasField("started")
            await theirs.send_end()
            kinds = set()
            while (answer := await theirs.receive()) is not None:
                kinds.add(pb.ScanResponse.FromString(bytes(answer)).WhichOneof("response"))
            assert {"batch", "end"} <= kinds


async def test_credentials_change_under_a_running_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A token that is taken out of the file is refused from the next call on; a broken file changes nothing."""
    path = tmp_path / "credentials.toml"

    def write(text: str) -> None:
        (tmp_path / "new").write_text(text)
        os.replace(tmp_path / "new", path)

    write(CREDENTIALS)
    async with serving(CredentialsFile(path)) as server, connected(server, "reader") as client:
        table = await client.table("orders")
        async with table.new_scan().with_credit(1_000).execute() as batches:
            first = await anext(batches)
            write("not [ toml")
            assert [each.name for each in await client.tables()] == ["orders", "orders.old"]
            assert [each.levelno for each in caplog.records if "not reloaded" in each.message] == [
                logging.ERROR
            ]
            write(CREDENTIALS.replace(HASHES["reader"], ""))
            with pytest.raises(Unauthenticated):
                await client.tables()
            with pytest.raises(PermissionDenied, match="credentials of principal reader were withdrawn"):
                async for _ in batches:
                    pass
            assert first.num_rows < 1_000
    assert token_sha256(TOKENS["reader"]) not in caplog.text


async def test_right_taken_away_ends_a_session(tmp_path: Path) -> None:
    """The right to read is looked at for every page of a session."""
    path = tmp_path / "credentials.toml"
    path.write_text(CREDENTIALS)
    credentials = CredentialsFile(path)
    async with serving(credentials) as server, connected(server, "reader") as client:
        scan = (await client.table("orders")).new_scan().with_mode("session").with_page_bytes(1_000)
        async with scan.with_page_depth(0).execute() as batches:
            await anext(batches)
            path.write_text(CREDENTIALS.replace('read = ["orders*"]', 'read = ["orders.*"]'))
            assert credentials.reload()
            with pytest.raises(PermissionDenied, match="may not read table 'orders'"):
                async for _ in batches:
                    pass


async def test_right_taken_away_ends_a_session_that_repeats_a_page(tmp_path: Path) -> None:
    """A page that was sent before is not sent again without the right, and the session goes at once."""
    path = tmp_path / "credentials.toml"
    path.write_text(CREDENTIALS)
    credentials = CredentialsFile(path)
    async with serving(credentials) as server, connected(server, "reader") as client:
        request = pb.ScanSessionRequest(query=pb.ScanQuery(table="orders"), batch_size_bytes=1_000)

        async def call() -> pb.ScanSessionResponse:
            answer = await client._connection.call(methods.SCAN_SESSION, request.SerializeToString())
            return pb.ScanSessionResponse.FromString(bytes(answer))

        page = await call()
        request = pb.ScanSessionRequest(scanner_id=page.scanner_id, call_seq_id=1, batch_size_bytes=1_000)
        assert (await call()).arrow_batch == (await call()).arrow_batch
        path.write_text(CREDENTIALS.replace('read = ["orders*"]', 'read = ["orders.*"]'))
        assert credentials.reload()
        with pytest.raises(CallFailed, match="may not read table 'orders'"):
            await call()
        assert server.statistics().sessions_open == 0


def test_credentials_that_could_not_be_read_for_want_of_descriptors_are_read_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else who was removed at that moment could go on until the file changes again."""
    path, now = tmp_path / "credentials.toml", time.monotonic()
    path.write_text(CREDENTIALS)
    credentials = CredentialsFile(path)
    before = credentials.current()
    path.write_text(CREDENTIALS.replace("principals.other", "principals.another"))

    def none_left(*_: object, **_options: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as shortage:
        shortage.setattr(Path, "read_text", none_left)
        assert credentials.current() is before
    monkeypatch.setattr(time, "monotonic", lambda: now + 20)
    assert credentials.current() is not before


@pytest.mark.parametrize("text", [None, b"\xff\xfe", b"[others]"])
def test_credentials_file_that_cannot_be_used(text: bytes | None, tmp_path: Path) -> None:
    """A server does not start with a credentials file that is missing or makes no sense; the file is named."""
    path = tmp_path / "credentials.toml"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(ArgumentInvalid, match=r"credentials\.toml"):
        CredentialsFile(path)


async def test_certificate_names_the_principal(tmp_path: Path) -> None:
    """With mutual TLS the certificate says who calls; one that names nobody is refused as unauthenticated."""
    tls = server_tls(tmp_path, client_ca="test")
    async with open_server(
        MemoryStore(), ssl_context=tls, credentials=Credentials.parse(CREDENTIALS)
    ) as server:
        where = f"127.0.0.1:{server.port}"
        reader = client_tls(tmp_path, issue("test", "reader.example"))
        async with scanner.connect(where, ssl_context=reader) as client:
            assert await client.tables() == []
            with pytest.raises(PermissionDenied, match="principal reader"):
                await client.create_table("t", SCHEMA, ["k"])
        async with scanner.connect(where, ssl_context=reader, token=TOKENS["admin"]) as client:
            await client.create_table("t", SCHEMA, ["k"])
        stranger = client_tls(tmp_path, issue("test", "stranger.example"))
        async with scanner.connect(where, ssl_context=stranger) as client:
            with pytest.raises(Unauthenticated, match="no principal of this server has a name"):
                await client.tables()
        with pytest.raises(Unauthenticated, match="wants another certificate"):
            async with scanner.connect(where, ssl_context=client_tls(tmp_path)) as client:
                await client.tables()


async def test_server_that_cannot_be_trusted_gets_no_token(tmp_path: Path) -> None:
    """A server whose certificate is of another CA is not talked to, and that is not called unauthenticated."""
    async with open_server(MemoryStore(), ssl_context=server_tls(tmp_path)) as server:
        with pytest.raises(ServerUnavailable, match="certificate cannot be trusted"):
            async with scanner.connect(
                f"127.0.0.1:{server.port}", ssl_context=client_tls(tmp_path, ca="other"), token="weir_x"
            ):
                pass


async def test_health_is_for_everybody_and_the_rest_is_not() -> None:
    """Health checks are answered without credentials; reflection, and every method there is, are not."""
    async with serving() as server:
        async with transport.connect(server.host, server.port) as client:
            await client.call("/grpc.health.v1.Health/Check", b"")
            for path in server_paths(server):
                if not path.startswith("/grpc.health."):
                    with pytest.raises(CallFailed) as caught:
                        await client.call(path, b"")
                    assert caught.value.status is StatusCode.UNAUTHENTICATED, path


def server_paths(server: Server) -> list[str]:
    """Every method that is served."""
    paths = list(server._server._handlers)
    assert len(paths) > 8
    return paths


async def test_handler_that_nobody_guards() -> None:
    """A handler that is served without `guard_all` refuses all, rather than letting everybody in."""
    seen: list[Exception] = []

    async def handle(stream: ServerStream) -> None:
        try:
            authorize(stream, Right.READ, "orders")
        except Unauthenticated as error:
            seen.append(error)

    async with transport.serve({"/x.Y/Z": handle}) as server:
        async with (
            transport.connect(server.host, server.port) as client,
            client.open_stream("/x.Y/Z") as stream,
        ):
            assert await stream.receive() is None
    assert "was not authenticated" in str(seen[0])


async def test_many_principals_on_one_server() -> None:
    """Scans of several principals run side by side, each with its own rights."""
    async with serving() as server, trio.open_nursery() as nursery:

        async def scan(principal: str, allowed: bool) -> None:
            async with connected(server, principal) as client:
                for _ in range(3):
                    if allowed:
                        assert await read_all(await client.table("orders")) == 1_000
                    else:
                        with pytest.raises(PermissionDenied):
                            await client.table("orders")

        for principal in ("reader", "other", "all_writer", "reader"):
            nursery.start_soon(scan, principal, True)
        nursery.start_soon(scan, "nothing", False)
