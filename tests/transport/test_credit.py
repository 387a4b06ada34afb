"""Application credit: the two ledgers, and who waits on them."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from transport import CREDIT_BYTES_MAX, FlowControlViolation, ReceiveCredit, SendCredit


@given(st.integers(1, 10_000), st.lists(st.integers(1, 3_000), max_size=60))
def test_credit_neither_stops_nor_overruns(window: int, sizes: list[int]) -> None:
    """A sender that obeys is never stuck once all is consumed, and overruns by less than its last message."""
    sender, receiver = SendCredit(), ReceiveCredit(window)
    sender.raise_limit(receiver.stream_limit)
    held: list[int] = []
    for size in sizes:
        while sender.available <= 0:
            assert held, "all is consumed, and the sender is stuck"
            receiver.consume(held.pop(0))
            if receiver.stream_limit > (sender.limit or 0):
                assert sender.raise_limit(receiver.stream_limit)
            assert not sender.raise_limit(receiver.stream_limit)
            assert not sender.raise_limit(receiver.stream_limit - 1)
        sender.claim(size)
        receiver.receive(size)
        held.append(size)
        assert receiver.received - receiver.consumed == sum(held) < window + size
        assert receiver.overrun_bytes < max(sizes)
        assert sender.sent == receiver.received


def test_credit_has_bounds() -> None:
    """Too high a limit is an error, a lower one is ignored, and no limit means none."""
    credit = SendCredit()
    assert credit.available == 0
    with pytest.raises(FlowControlViolation, match="over"):
        credit.raise_limit(CREDIT_BYTES_MAX + 1)
    assert credit.raise_limit(CREDIT_BYTES_MAX)
    assert not credit.raise_limit(5)
    credit.remove_limit()
    assert not credit.raise_limit(7)
    assert credit.available == CREDIT_BYTES_MAX
    with pytest.raises(ValueError, match="at least 1"):
        ReceiveCredit(0)


def test_credit_tells_a_sender_that_does_not_obey() -> None:
    """One message may begin below the limit and end above it; the next one is a violation."""
    credit = ReceiveCredit(10)
    credit.receive(9)
    credit.receive(100)
    assert credit.overrun_bytes == 99
    with pytest.raises(FlowControlViolation, match="past a credit limit of 10"):
        credit.receive(1)
    assert credit.received == 110


async def test_credit_is_granted_again_at_a_quarter_of_the_window() -> None:
    """Not before, and exactly then; all that was granted is spent exactly when it was received."""
    credit = ReceiveCredit(100)
    credit.begin_stream()
    assert await credit.wait_grant() == 100
    spent = []
    for size in (99, 1):
        credit.receive(size)
        spent.append(credit.spent)
    assert spent == [False, True]
    credit.consume(24)
    assert credit.limit == 100
    credit.consume(1)
    assert credit.limit == 125
    assert await credit.wait_grant() == 125


@given(
    window=st.integers(1, 1000),
    events=st.lists(st.tuples(st.sampled_from(["receive", "consume", "stream"]), st.integers(1, 300))),
)
def test_credit_over_streams_is_one_window(window: int, events: list[tuple[str, int]]) -> None:
    """Whatever is cut and when: less than the window and one message is held, and the sender never stands still."""
    credit = ReceiveCredit(window)
    sent = held = 0
    for event, size in events:
        if event == "receive" and sent < credit.stream_limit:
            credit.receive(size)
            sent, held = sent + size, held + size
            assert held - size < window
        elif event == "consume" and held:
            size = min(size, held)
            held -= size
            credit.consume(size)
        elif event == "stream":
            credit.begin_stream()
            sent = 0
            assert credit.stream_limit == max(0, window - held)
        assert credit.spent == (sent >= credit.stream_limit)
    while held:
        size = min(7, held)
        held -= size
        credit.consume(size)
    assert credit.stream_limit > sent


async def test_a_grant_is_told_once_to_each_stream() -> None:
    """First the window, then each rise worth a message, of several the last; a new stream is told from its start."""
    credit = ReceiveCredit(100)
    granted: list[int] = []

    async def grant() -> None:
        while True:
            granted.append(await credit.wait_grant())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(grant)
        await trio.testing.wait_all_tasks_blocked()
        credit.receive(100)
        credit.consume(24)
        await trio.testing.wait_all_tasks_blocked()
        assert granted == [100]
        credit.consume(1)
        credit.consume(40)
        await trio.testing.wait_all_tasks_blocked()
        assert granted == [100, 165]
        nursery.cancel_scope.cancel()
    credit.begin_stream()
    assert await credit.wait_grant() == 65
    credit.receive(65)
    credit.begin_stream()
    with trio.CancelScope() as scope:
        scope.cancel()
        await credit.wait_grant()
    credit.consume(100)
    assert await credit.wait_grant() == 100


async def test_credit_wakes_every_waiter_on_any_change() -> None:
    """A higher limit, none at all, and a call that is over each wake who waits for credit; a lower limit nobody."""
    credit = SendCredit()
    woken: list[int | None] = []

    async def wait() -> None:
        await credit.wait_change()
        woken.append(credit.limit)

    for change in (lambda: credit.raise_limit(5), credit.wake, credit.remove_limit):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            credit.raise_limit(0)
            await trio.testing.wait_all_tasks_blocked()
            assert len(nursery.child_tasks) == 1
            change()
    assert woken == [5, 5, None]
