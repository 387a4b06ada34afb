"""The hand-off between receiving tasks and the consumer."""

from __future__ import annotations

import pyarrow as pa
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from scanner.client.scan.batch_queue import HandOff
from scanner.client.scan.turns import Delivery
from scanner.errors import DataCorrupted, ScannerError
from transport import StallReason

BATCH = pa.record_batch({"k": [1]})


def delivery(consumed: list[int], number: int = 0, *, bucket: int = 0) -> Delivery:
    """A batch that notes when it is consumed."""
    return Delivery(bucket, BATCH, 10, lambda: consumed.append(number))


async def test_batch_is_consumed_when_the_next_is_asked_for() -> None:
    """Taking a batch frees nothing; asking for the one after does."""
    consumed: list[int] = []
    hand_off = HandOff(producers=1)
    hand_off.put(delivery(consumed, 1))
    hand_off.put(delivery(consumed, 2))
    await hand_off.take()
    assert consumed == []
    assert hand_off.held_bytes == 20
    await hand_off.take()
    assert consumed == [1]
    assert (hand_off.held_bytes, hand_off.held_bytes_max) == (10, 20)


async def test_end_comes_after_the_last_batch_and_stays() -> None:
    """The end waits for every producer and every batch, and is reported again each time."""
    consumed: list[int] = []
    hand_off = HandOff(producers=2)
    hand_off.put(delivery(consumed))
    hand_off.finish()
    hand_off.finish()
    assert await hand_off.take() is not None
    for _ in range(3):
        assert await hand_off.take() is None
    hand_off.close()
    assert await hand_off.take() is None


async def test_a_producer_goes_on_as_long_as_something_waits() -> None:
    """One that has finished may put more; once everything was taken the end stays."""
    hand_off = HandOff(producers=1)
    hand_off.put(delivery([], 1))
    hand_off.finish()
    assert hand_off.take_back_finish()
    assert await hand_off.take() is not None
    assert hand_off.waits
    hand_off.put(delivery([], 2))
    hand_off.finish()
    assert await hand_off.take() is not None
    assert not hand_off.take_back_finish()
    assert await hand_off.take() is None


async def test_failure_comes_at_once_and_stays() -> None:
    """A failure goes before batches that wait, is never followed by an end, and the first one counts."""
    hand_off = HandOff(producers=1)
    hand_off.put(delivery([]))
    hand_off.fail(DataCorrupted("first"))
    hand_off.fail(DataCorrupted("second"))
    hand_off.finish()
    for _ in range(3):
        with pytest.raises(ScannerError, match="first"):
            await hand_off.take()
    hand_off.close()
    with pytest.raises(ScannerError, match="first"):
        await hand_off.take()
    assert hand_off.held_bytes == 0


@pytest.mark.parametrize("how", ["end", "finish"])
async def test_no_failure_comes_behind_the_end(how: str) -> None:
    """Whoever was promised an end gets it, whatever becomes of what is still open."""
    hand_off = HandOff(producers=1)
    hand_off.put(delivery([]))
    await hand_off.take()
    getattr(hand_off, how)()
    hand_off.fail(DataCorrupted("too late"))
    for _ in range(2):
        assert await hand_off.take() is None


async def test_left_scan_is_closed() -> None:
    """After leaving a scan before its end, asking for more is our caller's mistake."""
    hand_off = HandOff(producers=1)
    hand_off.put(delivery([]))
    hand_off.close()
    hand_off.put(delivery([]))
    with pytest.raises(trio.ClosedResourceError):
        await hand_off.take()
    assert hand_off.held_bytes == 0


async def test_cancelled_take_loses_nothing(autojump_clock: trio.testing.MockClock) -> None:
    """A poll that times out has no effect: the next one gets the batch."""
    consumed: list[int] = []
    hand_off = HandOff(producers=1)
    with trio.move_on_after(1) as scope:
        await hand_off.take()
    assert scope.cancelled_caught
    hand_off.put(delivery(consumed, 1))
    with trio.CancelScope() as cancelled:
        cancelled.cancel()
        await hand_off.take()
    assert await hand_off.take() is not None
    assert consumed == []


async def test_two_consumers_are_detected() -> None:
    """A second task that asks while one waits gets BusyResourceError."""
    hand_off = HandOff(producers=1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hand_off.take)
        await wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await hand_off.take()
        hand_off.finish()


async def test_two_consumers_that_begin_at_once_are_detected() -> None:
    """Of two tasks that ask in the same moment one gets the batch, and the other BusyResourceError."""
    hand_off, outcomes = HandOff(producers=1), list[object]()

    async def take() -> None:
        try:
            outcomes.append(await hand_off.take())
        except trio.BusyResourceError:
            outcomes.append("busy")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        nursery.start_soon(take)
        await wait_all_tasks_blocked()
        assert outcomes == ["busy"]
        hand_off.finish()
    assert outcomes == ["busy", None]


async def test_waiting_for_a_bucket_to_be_consumed() -> None:
    """A bucket is consumed when its last batch is, whatever the other buckets hold."""
    hand_off = HandOff(producers=2)
    hand_off.put(delivery([], bucket=0))
    hand_off.put(delivery([], bucket=1))
    done: list[int] = []

    async def wait(bucket: int) -> None:
        await hand_off.wait_consumed(bucket)
        done.append(bucket)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, 0)
        nursery.start_soon(wait, 1)
        await hand_off.take()
        await wait_all_tasks_blocked()
        assert done == []
        await hand_off.take()
        await wait_all_tasks_blocked()
        assert done == [0]
        hand_off.close()


async def test_a_consumer_without_a_task() -> None:
    """It is called back once, when there is something to take; what it took before counts as consumed when it asks."""
    consumed: list[int] = []
    calls: list[int] = []
    hand_off = HandOff(producers=1)
    hand_off.put(delivery(consumed, 1))
    assert hand_off.take_nowait() is not None
    with pytest.raises(trio.WouldBlock):
        hand_off.take_nowait()
    assert consumed == [1]
    hand_off.when_ready(lambda: calls.append(len(calls)))
    with pytest.raises(trio.BusyResourceError):
        hand_off.take_nowait()
    hand_off.put(delivery(consumed, 2))
    hand_off.put(delivery(consumed, 3))
    assert calls == [0]
    assert hand_off.take_nowait() is not None
    assert hand_off.take_nowait() is not None
    hand_off.when_ready(lambda: calls.append(len(calls)))
    hand_off.when_ready(None)
    hand_off.put(delivery(consumed, 4))
    assert (calls, consumed) == ([0], [1, 2])
    assert hand_off.take_nowait() is not None
    hand_off.when_ready(lambda: calls.append(len(calls)))
    hand_off.finish()
    assert calls == [0, 1]
    assert hand_off.take_nowait() is None
    assert hand_off.take_nowait() is None


@pytest.mark.parametrize("how", ["fail", "close", "end"])
async def test_a_consumer_without_a_task_learns_of_every_end(how: str) -> None:
    """Whatever ends the scan calls it back, and its next question tells."""
    hand_off, calls = HandOff(producers=1), []
    hand_off.when_ready(lambda: calls.append(how))
    if how == "fail":
        hand_off.fail(DataCorrupted("broken"))
        with pytest.raises(DataCorrupted):
            hand_off.take_nowait()
    elif how == "close":
        hand_off.close()
        with pytest.raises(trio.ClosedResourceError):
            hand_off.take_nowait()
    else:
        hand_off.end()
        assert hand_off.take_nowait() is None
    assert calls == [how]


async def test_a_wait_without_a_task_is_booked(autojump_clock: trio.testing.MockClock) -> None:
    """As time in which the consumer waited for its peer."""
    hand_off = HandOff(producers=1)
    taken: list[Delivery | None] = []
    hand_off.when_ready(lambda: taken.append(hand_off.take_nowait()))
    for seconds in (3, 2):
        with trio.move_on_after(seconds):
            await trio.sleep_forever()
        hand_off.put(delivery([]))
    assert hand_off.stalls.times(trio.current_time()).seconds(StallReason.PEER) == 3
