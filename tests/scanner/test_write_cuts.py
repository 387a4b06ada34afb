"""Writes over a line that breaks off at every octet: each row once in the table, each change once in the changelog."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
import trio

import scanner
from scanner.proto.weir.v1 import tables_pb2
from scanner.server.server import open_server
from scanner.storage.memory.store import MemoryStore
from scanner.wire import methods
from scanner.wire.arrow_ipc import encode_stream
from tests.support.client import SCHEMA, open_client, rows
from transport import TransportConfig, TransportError

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


class Hold:
    """Holds back what goes out on a stream.

    Args:
        after: Octets that still go out.
    """

    def __init__(self, after: int) -> None:
        self.after = after
        self.held = trio.Event()
        """Set when something is held back."""
        self.end = trio.Event()
        """To be set to have it go out."""


class Line:
    """A line to a server whose first connection may be cut.

    Args:
        port: Of the server.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self.connections: list[CutStream] = []
        self.hold: Hold | None = None
        """Of the connections to come."""

    async def dial(self) -> trio.abc.Stream:
        """Make a connection."""
        stream = CutStream(await trio.open_tcp_stream("127.0.0.1", self._port))
        stream.hold = self.hold
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
        self.hold: Hold | None = None

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send what still goes out."""
        if self.hold is not None and self.sent + len(data) > self.hold.after:
            self.hold.held.set()
            await self.hold.end.wait()
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


def large_row(key: int) -> pa.Table:
    """A request that is sent in many pieces."""
    return pa.table({"k": [key], "text": ["x" * (3 << 20)], "number": [0.0]}, schema=SCHEMA)


async def test_a_writer_goes_on_after_a_write_that_was_cancelled() -> None:
    """What was not sent is not waited for."""
    async with open_client(MemoryStore()) as (client, _):
        table = await client.create_table("items", SCHEMA, ["k"], 1)
        async with table.open_writer() as writer:
            with trio.CancelScope() as scope:
                scope.cancel()
                for key in range(8):
                    await writer.write(large_row(key))
            assert scope.cancelled_caught
            await writer.write(rows(1, first=8))
        found = sorted((await table.new_scan().to_arrow())["k"].to_pylist())
        assert found == [*range(len(found) - 1), 8]
        assert writer.result.rows == len(found) < 9


async def test_a_writer_goes_on_after_it_was_cancelled_while_it_sent_again() -> None:
    """The stream on which a part was sent is given up, so that no request is left out."""
    async with open_server(MemoryStore()) as server:
        line, config = Line(server.port), TransportConfig(send_buffer_bytes=1)
        async with scanner.connect("memory", dial=line.dial, config=config, rng=AtOnce()) as client:
            table = await client.create_table("items", SCHEMA, ["k"], 1)
            (first,) = line.connections
            async with table.open_writer() as writer:
                once, again = Hold(first.sent), Hold(2000)
                first.hold, line.hold = once, again
                with trio.CancelScope() as scope:
                    async with trio.open_nursery() as nursery:

                        @nursery.start_soon
                        async def cut_and_cancel() -> None:
                            await once.held.wait()
                            first.sends = 0
                            once.end.set()
                            await again.held.wait()
                            scope.cancel()

                        for key in range(3):
                            await writer.write(large_row(key))
                assert scope.cancelled_caught
                again.end.set()
                await writer.write(rows(1, first=8))
            assert sorted((await table.new_scan().to_arrow())["k"].to_pylist()) == [0, 1, 8]
            assert writer.result.rows == 3


async def test_ids_are_used_again_by_one_writer_at_a_time(tmp_path: Path) -> None:
    """Also the id of a writer that failed; and a writer whose block was left sends nothing under it."""
    async with open_client(tmp_path / "data") as (client, _):
        table = await client.create_table("items", SCHEMA, ["k"], 1)
        ids = client._connection.writer_ids
        for first in range(3):
            await table.write(rows(1, first=first))
        first_id = ids.take(table.table_id)
        ids.give_back(table.table_id, first_id)
        async with table.open_writer() as outer:
            await outer.write(rows(1))
            assert (await table.write(rows(1))).rows == 1
        with pytest.raises(KeyError):
            async with table.open_writer() as broken:
                await broken.write(rows(1))
                raise KeyError
        with pytest.raises(trio.ClosedResourceError, match="its block was left"):
            await broken.write(rows(1))
        again = [ids.take(table.table_id) for _ in range(3)]
        assert len({each.octets for each in again}) == 3
        assert first_id in again[:2]
        assert first_id.next_sequence() >= 5


async def test_what_a_failed_write_left_comes_too_late_whatever_other_tables_are_written_to() -> None:
    """The next write to its table has its id, though another writer was opened meanwhile."""
    async with open_client(MemoryStore()) as (client, _):
        table = await client.create_table("items", SCHEMA, ["k"], 1)
        other = await client.create_table("others", SCHEMA, ["k"], 1)
        with pytest.raises(KeyError):
            async with table.open_writer() as failed:
                raise KeyError
        late = tables_pb2.WriteRequest(
            table="items",
            operation=tables_pb2.WriteRequest.OPERATION_UPSERT,
            arrow_stream=encode_stream(rows(9).to_batches()[0]),
            writer_id=failed._writer_id.octets,
            sequence=failed._writer_id.next_sequence(),
        )
        async with other.open_writer() as writer:
            await writer.write(rows(1))
            await table.write(rows(1))
            with pytest.raises(TransportError, match="comes after its request"):
                async with client._connection.open_stream(methods.WRITE) as stream:
                    await stream.send(late.SerializeToString())
                    await stream.receive()
        assert (await table.new_scan().to_arrow()).num_rows == 1
