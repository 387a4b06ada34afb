"""Writes over a line that breaks off at every octet: each row once in the table, each change once in the changelog."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
import trio

import scanner
from scanner.server.server import open_server
from scanner.storage.memory.store import MemoryStore
from tests.support.client import SCHEMA, rows

if TYPE_CHECKING:
    from pathlib import Path

    from scanner.client.writer import WriteResult
    from scanner.server.server import Server

pytestmark = pytest.mark.socket

REQUESTS = 4
ROWS = 6
"""Of a request."""
BUCKETS = 2


class AtOnce(Random):
    """Draws no delays."""

    def uniform(self, a: float, b: float) -> float:
        """The shortest."""
        return a


class Line:
    """A line to a server whose first connection may be cut.

    Args:
        port: Of the server.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self.connections: list[CutStream] = []

    async def dial(self) -> trio.abc.Stream:
        """Make a connection."""
        stream = CutStream(await trio.open_tcp_stream("127.0.0.1", self._port))
        self.connections.append(stream)
        return stream


class CutStream(trio.abc.HalfCloseableStream):
    """A stream that breaks off where it is told to.

    Args:
        stream: What it is over.
    """

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self.sent = 0
        self.received = 0
        self.sends: int | None = None
        """Octets that go out until it breaks off; None: all."""
        self.receives: int | None = None
        """Octets that come in."""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send what still goes out."""
        with memoryview(data) as octets:
            fitting = octets if self.sends is None else octets[: max(0, self.sends - self.sent)]
            await self._stream.send_all(fitting)
            self.sent += len(fitting)
            if len(fitting) < len(octets):
                await self.aclose()
                raise trio.BrokenResourceError("cut")

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Receive what still comes in."""
        fitting = max_bytes or 65536
        if self.receives is not None:
            fitting = min(fitting, self.receives - self.received)
        if fitting <= 0:
            await self.aclose()
            raise trio.BrokenResourceError("cut")
        data = await self._stream.receive_some(fitting)
        self.received += len(data)
        return data

    async def wait_send_all_might_not_block(self) -> None:
        """Wait for room."""
        await self._stream.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        """Say that nothing more goes out."""
        await self._stream.send_eof()

    async def aclose(self) -> None:
        """Close it."""
        await self._stream.aclose()


async def write_all(table: scanner.Table) -> WriteResult:
    """Some requests of one writer; each after the first replaces a row of the one before."""
    async with table.open_writer() as writer:
        for number in range(REQUESTS):
            await writer.write(rows(ROWS, first=number * (ROWS - 1)))
    return writer.result


async def write_over(
    server: Server, name: str, *, sends: int | None = None, receives: int | None = None
) -> tuple[int, int]:
    """Write to a new table over a line that breaks off so many octets after the writer has begun.

    Returns:
        Octets that the connection on which it began has sent and received since.
    """
    line = Line(server.port)
    async with scanner.connect("memory", dial=line.dial, rng=AtOnce()) as client:
        table = await client.create_table(name, SCHEMA, ["k"], BUCKETS)
        (stream,) = line.connections
        sent, received = stream.sent, stream.received
        stream.sends = None if sends is None else sent + sends
        stream.receives = None if receives is None else received + receives
        result = await write_all(table)
        octets = stream.sent - sent, stream.received - received
        await check(table, result)
    return octets


async def check(table: scanner.Table, result: WriteResult) -> None:
    """Nothing is lost, nothing is there twice, and the writer knows where it all is."""
    count = REQUESTS * (ROWS - 1) + 1
    found = (await table.new_scan().to_arrow()).sort_by("k")
    assert found.to_pydict() == rows(count).to_pydict()
    assert result.rows == REQUESTS * ROWS
    ends = dict.fromkeys(range(BUCKETS), 0)
    for each in result.ranges:
        assert each.start_offset == ends[each.bucket]
        ends[each.bucket] = each.end_offset
    assert sum(ends.values()) == count + 2 * (REQUESTS - 1)
    assert {each.bucket: each.end_offset for each in await table.offsets()} == ends


async def test_a_write_that_is_cut_anywhere_is_done_once() -> None:
    """At every octet of the answers, and at some of the requests."""
    async with open_server(MemoryStore()) as server:
        sent, received = await write_over(server, "whole")
        for cut in range(received):
            await write_over(server, f"receives.{cut}", receives=cut)
        for cut in range(0, sent, 131):
            await write_over(server, f"sends.{cut}", sends=cut)


async def test_ids_are_used_again_once_all_is_acknowledged(tmp_path: Path) -> None:
    """By one writer at a time; not by the next one if something is open."""
    async with (
        open_server(tmp_path / "data") as server,
        scanner.connect(f"127.0.0.1:{server.port}") as client,
    ):
        table = await client.create_table("items", SCHEMA, ["k"], 1)
        ids = client._connection.writer_ids
        for first in range(3):
            await table.write(rows(1, first=first))
        first_id = ids.take()
        ids.give_back(first_id)
        async with table.open_writer() as outer:
            await outer.write(rows(1))
            assert (await table.write(rows(1))).rows == 1
        with pytest.raises(KeyError):
            async with table.open_writer() as broken:
                await broken.write(rows(1))
                raise KeyError
        assert ids.take().octets != ids.take().octets
        assert first_id.next_sequence() >= 4
