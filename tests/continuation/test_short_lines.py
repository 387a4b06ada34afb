"""A line that is always cut before a whole batch is through."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pyarrow as pa

import scanner
from bench.cutting.setting import load
from bench.cutting.stream import Cut, CutStream, Direction
from bench.cutting.truth import DESCRIPTION, TABLE
from bench.simulation.network import Network
from bench.simulation.pipes import Line
from scanner.server.server import open_server
from scanner.storage.memory.store import MemoryStore

if TYPE_CHECKING:
    import trio

ROWS = 6_000
LINE_BYTES = 40_000
"""Of each connection, until it is cut: a seventh of the scan, which is one batch as it comes."""


async def test_a_scan_comes_through_lines_shorter_than_a_batch(autojump_clock: object) -> None:
    """Smaller batches are asked for, so that every row comes, once, with the default number of retries."""
    store, network, lines = MemoryStore(), Network(lambda _connection, _fault: None), 0
    store.create_table(DESCRIPTION)

    async def dial_whole() -> trio.abc.Stream:
        return await network.dial("writer", Line())

    async def dial_short() -> trio.abc.Stream:
        nonlocal lines
        lines += 1
        return CutStream(await network.dial("reader", Line()), Cut(Direction.DOWN, octets=LINE_BYTES))

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
    assert lines > ROWS * 40 // LINE_BYTES
