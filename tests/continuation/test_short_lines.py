"""Lines that are always cut before a whole batch is through, and proxies that end a stream in the middle."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
import trio

import scanner
from bench.cutting.setting import load
from bench.cutting.stream import Cut, CutStream, Direction
from bench.cutting.truth import DESCRIPTION, TABLE
from bench.simulation.network import Network
from bench.simulation.pipes import Line
from scanner.server.server import open_server
from scanner.storage.memory.store import MemoryStore
from tests.support import wire

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = 6_000
LINE_BYTES = 40_000
"""Of each connection, until it is cut: a seventh of the scan, which is one batch as it comes."""


_HEADER_BYTES = 9
ENDS = {
    "without trailers": lambda stream_id, part: wire.data(stream_id, part, end=True),
    "in the middle of a message": lambda stream_id, part: (
        wire.data(stream_id, part) + wire.headers(stream_id, wire.TRAILERS, end=True)
    ),
    "without a status": lambda stream_id, part: (
        wire.data(stream_id, part) + wire.headers(stream_id, [("x", "y")], end=True)
    ),
}
"""How a proxy ends an answer of which it has only a part."""


class EndedStream(trio.abc.Stream):
    """A client's end of a connection on which one answer ends early, before the connection does.

    Args:
        inner: Owned from now on.
        end: Makes the last frames, of the stream's id and what it has of the DATA frame behind `LINE_BYTES`.
    """

    def __init__(self, inner: trio.abc.Stream, end: Callable[[int, bytes], bytes]) -> None:
        self._inner = inner
        self._end = end
        self._waiting = b""
        self._passing = b""
        self._passed = 0
        self._over = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Pass it on."""
        await self._inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        """As the connection does."""
        await self._inner.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """Close the connection."""
        await self._inner.aclose()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Whole frames, up to the end."""
        while not self._passing and not self._over:
            data = await self._inner.receive_some(max_bytes)
            self._waiting += data
            self._over = not data
            while not self._over and (frame := self._next_frame()):
                self._passed += len(frame)
                if frame[3] == wire.DATA and self._passed > LINE_BYTES:
                    half = (len(frame) + _HEADER_BYTES) // 2
                    frame = self._end(int.from_bytes(frame[5:9], "big"), frame[_HEADER_BYTES:half])
                    self._over = True
                self._passing += frame
        passing, self._passing = self._passing[:max_bytes], self._passing[max_bytes or len(self._passing) :]
        return passing

    def _next_frame(self) -> bytes:
        size = _HEADER_BYTES + int.from_bytes(self._waiting[:3], "big")
        if len(self._waiting) < size:
            return b""
        frame, self._waiting = self._waiting[:size], self._waiting[size:]
        return frame


async def test_a_scan_comes_through_lines_shorter_than_a_batch(autojump_clock: object) -> None:
    """Smaller batches are asked for, so that every row comes, once, with the default number of retries."""
    lines = await scan_through(lambda line: CutStream(line, Cut(Direction.DOWN, octets=LINE_BYTES)))
    assert lines > ROWS * 40 // LINE_BYTES


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
async def test_a_scan_goes_on_behind_streams_that_end_early(
    end: Callable[[int, bytes], bytes], autojump_clock: object
) -> None:
    """A stream that ends before its status is one that was cut, whoever ended it: a proxy that stops does."""
    assert await scan_through(lambda line: EndedStream(line, end)) > 2


async def scan_through(shorten: Callable[[trio.abc.Stream], trio.abc.Stream]) -> int:
    """Scan a bucket, check every row, and tell how many lines it took."""
    store, network, lines = MemoryStore(), Network(lambda _connection, _fault: None), 0
    store.create_table(DESCRIPTION)

    async def dial_whole() -> trio.abc.Stream:
        return await network.dial("writer", Line())

    async def dial_short() -> trio.abc.Stream:
        nonlocal lines
        lines += 1
        return shorten(await network.dial("reader", Line()))

    async with (
        open_server(store, listener=network.listen()),
        scanner.connect("127.0.0.1", dial=dial_whole) as writer,
        scanner.connect("127.0.0.1", dial=dial_short, rng=random.Random(1)) as reader,
    ):
        truth = await load(await writer.table(TABLE), ROWS, random.Random(2))
        table = await reader.table(TABLE)
        async with table.new_scan().bucket(0).execute() as batches:
            scanned = pa.Table.from_batches([batch async for batch in batches])
    (bucket,) = batches.statistics().buckets
    assert bucket.log_offset is not None
    verdict = truth.judge(bucket.log_offset, scanned, bucket.digest)
    assert (verdict.violations, verdict.in_order, verdict.digest_equal) == ((), True, True)
    return lines
