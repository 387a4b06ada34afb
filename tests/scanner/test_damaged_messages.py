"""A bit that the network turns, past TCP's checksum, makes an error or no difference, and never another answer.

The line turns one bit of what one side sends, in the messages of HTTP/2's DATA frames. The five octets before a message
are left alone: a length that was changed makes the other side wait for octets that do not come.
"""

from __future__ import annotations

import functools
import random
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import trio

import scanner
from scanner.errors import ScannerError
from scanner.storage.memory.store import MemoryStore
from tests.support.client import open_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from scanner.server.server import Server

SCHEMA = pa.schema([pa.field("key", pa.int64(), nullable=False), ("value", pa.int64())])
ROWS = pa.table({"key": range(40), "value": [each % 5 for each in range(40)]}, schema=SCHEMA)
_PREFACE_BYTES = 24
_HEAD_BYTES = 9
_PREFIX_BYTES = 5
_DATA = 0
_TURNS = 60
"""Of each side, of each call."""


@dataclass
class Direction:
    """What one side sends, on its way."""

    turn: tuple[int, int] | None = None
    """The octet, of those that can be turned, and its bit; None: none."""
    passed: int = 0
    """Octets that could have been turned."""
    pending: bytearray = field(default_factory=bytearray)
    """A frame that is not complete."""

    def start(self, turn: tuple[int, int] | None) -> None:
        """Count anew, and turn this bit."""
        self.turn, self.passed = turn, 0

    def carry(self, octets: bytes | bytearray) -> bytes:
        """What arrives of them: whole frames."""
        self.pending += octets
        arrived = bytearray()
        while len(self.pending) >= _HEAD_BYTES:
            end = _HEAD_BYTES + int.from_bytes(self.pending[:3], "big")
            if len(self.pending) < end:
                break
            frame, self.pending = self.pending[:end], self.pending[end:]
            if frame[3] == _DATA:
                self._damage(frame)
            arrived += frame
        return bytes(arrived)

    def _damage(self, frame: bytearray) -> None:
        """Turn the bit if it is in this frame, which has whole messages, as those of a few octets do."""
        start = _HEAD_BYTES
        while start < len(frame):
            end = start + _PREFIX_BYTES + int.from_bytes(frame[start + 1 : start + _PREFIX_BYTES], "big")
            start += _PREFIX_BYTES
            if self.turn is not None and self.passed <= self.turn[0] < self.passed + end - start:
                frame[start + self.turn[0] - self.passed] ^= 1 << self.turn[1]
            self.passed += end - start
            start = end


@dataclass
class Line:
    """A line between clients and a server."""

    up: Direction = field(default_factory=Direction)
    down: Direction = field(default_factory=Direction)

    async def serve(self, server: Server, client: trio.SocketStream) -> None:
        """Carry one connection."""
        self.up.pending.clear()
        self.down.pending.clear()
        async with (
            client,
            await trio.open_tcp_stream(server.host, server.port) as onwards,
            trio.open_nursery() as both,
        ):
            preface = bytearray()
            while len(preface) < _PREFACE_BYTES:
                preface += await client.receive_some(_PREFACE_BYTES - len(preface))
            await onwards.send_all(preface)
            both.start_soon(self._carry, client, onwards, self.up)
            both.start_soon(self._carry, onwards, client, self.down)

    @staticmethod
    async def _carry(source: trio.SocketStream, sink: trio.SocketStream, direction: Direction) -> None:
        try:
            async for octets in source:
                await sink.send_all(direction.carry(octets))
            await sink.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            await sink.aclose()


@asynccontextmanager
async def behind_a_line() -> AsyncIterator[tuple[scanner.Table, Line]]:
    """A table with `ROWS`, by a client of that line, which has asked for the table already."""
    async with open_client(MemoryStore()) as (good, server), trio.open_nursery() as nursery:
        await (await good.create_table("items", SCHEMA, ["key"], 1)).write(ROWS)
        line = Line()
        listeners = await nursery.start(
            functools.partial(trio.serve_tcp, functools.partial(line.serve, server), 0, host=server.host)
        )
        port = listeners[0].socket.getsockname()[1]
        async with scanner.connect(f"{server.host}:{port}", retries=0) as client:
            yield await client.table("items"), line
        nursery.cancel_scope.cancel()


async def _filtered(table: scanner.Table) -> Any:
    return (await table.new_scan().where("value < 3").select("key").to_arrow()).to_pydict()


async def _range(table: scanner.Table) -> Any:
    return (await table.new_scan().key_range((7,), (23,)).to_arrow()).to_pydict()


async def _by_pages(table: scanner.Table) -> Any:
    return (await table.new_scan().with_mode("token").limit(9).to_arrow()).to_pydict()


async def _of_changes(table: scanner.Table) -> Any:
    changes = await table.new_scan().with_source("log").stop_at("end").to_arrow()
    return changes.drop_columns(["_commit_timestamp"]).to_pydict()


async def _get(table: scanner.Table) -> Any:
    return (await table.get(pa.table({"key": [3, 99, 11]}))).rows.to_pydict()


CALLS: dict[str, Callable[[scanner.Table], Awaitable[Any]]] = {
    "filtered": _filtered,
    "range": _range,
    "by pages": _by_pages,
    "changes": _of_changes,
    "get": _get,
    "offsets": lambda table: table.offsets(),
    "split": lambda table: table.split(0, splits=4),
    "groups": lambda table: table.groups(),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_no_bit_that_is_turned_makes_another_answer(
    call: Callable[[scanner.Table], Awaitable[Any]],
) -> None:
    """Of the request, nor of the answer; each is drawn from all of them, by a seed."""
    drawn, found = random.Random(1), 0
    async with behind_a_line() as (table, line):
        line.up.start(None)
        line.down.start(None)
        undisturbed = await call(table)
        sizes = line.up.passed, line.down.passed
        for up in (True, False):
            for _ in range(_TURNS):
                turn = drawn.randrange(sizes[0] if up else sizes[1]), drawn.randrange(8)
                line.up.start(turn if up else None)
                line.down.start(None if up else turn)
                try:
                    assert await call(table) == undisturbed, turn
                except ScannerError:
                    found += 1
    assert found > _TURNS  # More than half.
