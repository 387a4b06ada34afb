"""The credit of a scan: what it begins with, what it grows to, and what a client's scans grow by together."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

import scanner
from bench.simulation.network import Network
from bench.simulation.pipes import Line
from scanner.client.scan import credit
from scanner.client.scan.credit import SCAN_BYTES_MAX, START_BYTES, START_BYTES_MAX, ScanCredit
from scanner.server.config import ScannerConfig
from scanner.server.server import open_server
from scanner.storage.images.format import block_payload_bytes
from scanner.storage.memory.store import MemoryStore
from transport import CreditPool

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])
ROWS, ROW_BYTES = 2_000, 1_000
MESSAGE_BYTES = 1024
"""More than what a batch has around its payload."""
START = 64 * 1024
ROUND_TRIP_S = 0.1


@given(
    parallel=st.integers(1, 3_000),
    fixed=st.none() | st.integers(1, 1 << 40),
    room=st.integers(0, 1 << 28),
)
def test_shares_add_up_to_no_more_than_the_scans(parallel: int, fixed: int | None, room: int) -> None:
    """Of whatever size and however many buckets, but for a byte each; only a credit that sizes itself may grow."""
    client = CreditPool(room)
    share = ScanCredit(fixed, parallel, client).of_bucket()
    start = START_BYTES_MAX if fixed is None else fixed
    assert share.window_bytes * parallel <= max(start, parallel)
    if fixed is None:
        assert share.window_bytes * parallel + parallel > START_BYTES
        assert share.window_bytes_max <= SCAN_BYTES_MAX
    else:
        assert share.window_bytes_max == share.window_bytes


@pytest.mark.parametrize("buckets", [*range(1, 33), 64])
def test_blocks_of_an_image_fit_into_what_a_scan_begins_with(buckets: int) -> None:
    """A block that the credit would cut is encoded anew: so a share of it holds several, as messages."""
    share = ScanCredit(None, buckets, CreditPool(0)).of_bucket()
    assert share.window_bytes >= 2 * (block_payload_bytes(buckets) + MESSAGE_BYTES)


async def scanned(
    monkeypatch: pytest.MonkeyPatch, credit_bytes: int | str, pause_s: float = 0
) -> tuple[float, scanner.ScanStatistics, int]:
    """Scan over a line of a tenth of a second and back: seconds by the virtual clock, and what the client still has."""
    monkeypatch.setattr(credit, "START_BYTES", START)
    monkeypatch.setattr(credit, "START_BYTES_PER_BUCKET", START)
    network, line = (
        Network(lambda _connection, _fault: None),
        Line(latency_s=ROUND_TRIP_S / 2, buffer_bytes=1 << 24),
    )
    async with open_server(
        MemoryStore(), listener=network.listen(), config=ScannerConfig(checkpoint_interval_s=0)
    ):

        async def dial() -> trio.abc.Stream:
            return await network.dial("client", line)

        async with scanner.connect("127.0.0.1", dial=dial, rng=Random(1)) as client:
            table = await client.create_table("items", SCHEMA, ["id"], 1)
            text = [f"{number:x}".rjust(ROW_BYTES) for number in range(ROWS)]
            await table.write(pa.table({"id": list(range(ROWS)), "text": text}, SCHEMA))
            began_at = trio.current_time()
            ids: list[int] = []
            async with table.new_scan().with_credit(credit_bytes).execute() as batches:
                async for batch in batches:
                    ids += batch["id"].to_pylist()
                    with trio.move_on_after(pause_s):  # Of the virtual clock.
                        await trio.sleep_forever()
            seconds = trio.current_time() - began_at
            assert sorted(ids) == list(range(ROWS))
            left = client._connection.credit_growth.claimed
    return seconds, batches.statistics(), left


async def test_a_long_line_gets_what_it_takes(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """Two megabytes at 64 KiB a round trip take 30 of them, at credit that doubles a few; and all is given back."""
    fixed = (await scanned(monkeypatch, START))[0]
    sized, statistics, left = await scanned(monkeypatch, "auto")
    assert fixed > 25 * ROUND_TRIP_S
    assert sized < 12 * ROUND_TRIP_S
    assert statistics.held_bytes_max > START
    assert statistics.overrun_bytes <= 2 * ROW_BYTES
    assert left == 0


async def test_a_consumer_that_lags_holds_little(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """It is what the scan waits for, so that more credit would only wait with it."""
    _, statistics, left = await scanned(monkeypatch, "auto", pause_s=10 * ROUND_TRIP_S)
    assert statistics.held_bytes_max <= 2 * START + 2 * ROW_BYTES
    assert left == 0
