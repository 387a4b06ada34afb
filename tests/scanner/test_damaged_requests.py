"""Octets of a request that the network changes, past TCP's checksum, are not taken for what the client has sent."""

from __future__ import annotations

import functools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import trio

import scanner
from scanner.errors import ArgumentInvalid, ScannerError
from scanner.storage.memory.store import MemoryStore
from tests.support.client import open_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

SCHEMA = pa.schema([pa.field("key", pa.string(), nullable=False), ("value", pa.int64())])
SENT, ARRIVES = b"as-it-was-sent", b"as-it-was-sebt"
"""One bit differs."""
ROWS = pa.table({"key": [SENT.decode()], "value": [1]}, schema=SCHEMA)
OTHERS = pa.table({"key": [ARRIVES.decode(), "another"], "value": [2, 3]}, schema=SCHEMA)


@asynccontextmanager
async def behind_a_bad_line() -> AsyncIterator[tuple[scanner.Table, scanner.Table]]:
    """A table with `OTHERS`, by a client of a line that damages what it sends, and by one of a good line."""
    async with open_client(MemoryStore()) as (good, server):

        async def carry(source: trio.SocketStream, sink: trio.SocketStream) -> None:
            async for octets in source:
                await sink.send_all(octets.replace(SENT, ARRIVES))
            await sink.send_eof()

        async def serve(client: trio.SocketStream) -> None:
            async with (
                await trio.open_tcp_stream(server.host, server.port) as onwards,
                trio.open_nursery() as both,
            ):
                both.start_soon(carry, client, onwards)
                both.start_soon(carry, onwards, client)

        table = await good.create_table("items", SCHEMA, ["key"], 1)
        await table.write(OTHERS)
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(functools.partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
            port = listeners[0].socket.getsockname()[1]
            async with scanner.connect(f"127.0.0.1:{port}") as bad:
                yield await bad.table("items"), table
            nursery.cancel_scope.cancel()


async def stage(table: scanner.Table) -> None:
    """As a part of a transaction."""
    await table.transaction("load", 1).stage(ROWS, part=0, attempt=0)


@pytest.mark.parametrize(
    "ask",
    [
        lambda table: table.write(ROWS),
        lambda table: table.delete(ROWS.select(["key"])),
        lambda table: table.get(ROWS.select(["key"])),
        stage,
    ],
    ids=["write", "delete", "get", "stage"],
)
async def test_what_was_changed_on_its_way_is_refused(ask: Callable[[scanner.Table], Awaitable[Any]]) -> None:
    """Nothing of it is stored, deleted, staged or found, and the error says what it is."""
    async with behind_a_bad_line() as (bad, good):
        caught: ScannerError | None = None
        try:
            await ask(bad)
        except ScannerError as error:
            caught = error
        assert isinstance(caught, ArgumentInvalid)
        assert "changed on its way" in caught.message
        assert (await good.new_scan().to_arrow()).sort_by("value").equals(OTHERS)
        assert sum(each.stages for each in await good.transactions()) == 0
