"""Where a scan's time goes, as its user sees it: the client's own account, and the server's from the trailers."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from scanner.client.scan.batch_queue import HandOff
from scanner.client.scan.plan import ScanMode
from scanner.client.scan.turns import Delivery
from tests.support.client import open_table, rows
from transport import StallReason

BATCH = rows(1).to_batches()[0]


async def test_the_hand_off_tells_a_slow_consumer_from_a_slow_producer(
    mock_clock: trio.testing.MockClock,
) -> None:
    """A batch that waits is the consumer's time, waiting for one is the peer's; the rest is running."""
    hand_off = HandOff(producers=1)
    mock_clock.jump(1)
    hand_off.put(Delivery(0, BATCH, 10, lambda: None))
    mock_clock.jump(2)
    assert await hand_off.take() is not None
    mock_clock.jump(4)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hand_off.take)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(8)
        hand_off.put(Delivery(0, BATCH, 10, lambda: None))
    hand_off.finish()
    assert await hand_off.take() is None
    mock_clock.jump(100)
    times = hand_off.stalls.times(trio.current_time())
    assert {name: value for name, value in times.to_dict().items() if value} == {
        "running": 5,
        "consumer": 2,
        "peer": 8,
    }


@pytest.mark.rocks
@pytest.mark.socket
@pytest.mark.parametrize("mode", [mode for mode in ScanMode if not mode.of_changes])
async def test_a_scan_has_both_ends_accounts(tmp_path: Path, mode: ScanMode) -> None:
    """After a scan the server's account is there, for each bucket and added up, and the client's is the scan's time."""
    async with open_table(tmp_path, 3_000) as (table, _):
        started_at = trio.current_time()
        async with table.new_scan().with_mode(mode).execute() as batches:
            async for _batch in batches:
                assert batches.statistics().stalls.total_s > 0
            statistics = batches.statistics()
        elapsed_s = trio.current_time() - started_at
    assert 0 < statistics.stalls.total_s <= elapsed_s
    assert statistics.first_batch_s is not None
    assert 0 < statistics.first_batch_s <= elapsed_s
    assert statistics.stalls == batches.statistics().stalls
    assert statistics.server_stalls.seconds(StallReason.STORAGE) > 0
    parts = [bucket.server_stalls for bucket in statistics.buckets]
    assert (
        sum((part for part in parts if part is not None), type(statistics.stalls)())
        == statistics.server_stalls
    )
    assert None not in parts
