"""Application credit: the two ledgers, and who waits on them."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from transport import CREDIT_BYTES_MAX, CreditPool, FlowControlViolation, ReceiveCredit, SendCredit


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


def test_credit_is_granted_again_at_a_quarter_of_the_window() -> None:
    """Not before, and exactly then; all that was granted is spent exactly when it was received."""
    credit = ReceiveCredit(100)
    credit.begin_stream()
    assert credit.grant_nowait() == 100
    spent = []
    for size in (99, 1):
        credit.receive(size)
        spent.append(credit.spent)
    assert spent == [False, True]
    credit.consume(24)
    assert credit.limit == 100
    credit.consume(1)
    assert credit.limit == 125
    assert credit.grant_nowait() == 125


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


def test_a_grant_is_told_once_to_each_stream() -> None:
    """First the window, then each rise worth a message, of several the last; a new stream is told from its start."""
    credit = ReceiveCredit(100)
    assert credit.grant_nowait() == 100
    credit.receive(100)
    credit.consume(24)
    with pytest.raises(trio.WouldBlock):
        credit.grant_nowait()
    credit.consume(1)
    credit.consume(40)
    assert credit.grant_nowait() == 165
    with pytest.raises(trio.WouldBlock):
        credit.grant_nowait()
    credit.begin_stream()
    assert credit.grant_nowait() == 65
    credit.receive(65)
    credit.begin_stream()
    with pytest.raises(trio.WouldBlock):
        credit.grant_nowait()
    credit.consume(100)
    assert credit.grant_nowait() == 100


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


@dataclass
class _Line:
    """A sender and a consumer with a line between them, moment by moment: no clock, no task."""

    credit: ReceiveCredit
    delay: int
    """Moments that a message, or a grant, is on its way."""
    speed: int
    """Octets that the sender makes in a moment."""
    message: int = 64_007
    row: int = 8
    sender: SendCredit = field(default_factory=SendCredit)
    down: deque[tuple[int, int]] = field(default_factory=deque)
    up: deque[tuple[int, int]] = field(default_factory=deque)
    waiting: deque[int] = field(default_factory=deque)
    now: int = 0
    held_max: int = 0
    windows: list[int] = field(default_factory=list)

    def run(self, moments: int, appetite: int) -> int:
        """Let time pass, with a consumer that takes so many octets a moment; how many it got."""
        consumed = self.credit.consumed
        for _ in range(moments):
            self.now += 1
            while self.up and self.up[0][0] <= self.now:
                self.sender.raise_limit(self.up.popleft()[1])
            self._send()
            while self.down and self.down[0][0] <= self.now:
                size = self.down.popleft()[1]
                self.credit.receive(size, max(1, size // self.row))
                self.waiting.append(size)
            self.held_max = max(self.held_max, self.credit.received - self.credit.consumed)
            self._consume(appetite)
            self._grant()
            self.windows.append(self.credit.window_bytes)
        return self.credit.consumed - consumed

    def _send(self) -> None:
        left = self.speed
        while left > 0 and self.sender.available > 0:
            size = max(self.row, min(left, self.message, self.sender.available) // self.row * self.row)
            self.sender.claim(size)
            self.down.append((self.now + self.delay, size))
            left -= size

    def _consume(self, appetite: int) -> None:
        while self.waiting and appetite > 0:
            size = self.waiting.popleft()
            appetite -= size
            # A batch counts as consumed when the next one is asked for.
            self.credit.consume(size, keeps_up=not self.waiting and appetite > 0)

    def _grant(self) -> None:
        try:
            self.up.append((self.now + self.delay, self.credit.grant_nowait()))
        except trio.WouldBlock:
            return


SPEED, START = 100_003, 400_000
"""Of a sender, octets in a moment; and the window to begin with."""


def line(delay: int, start: int = START, pool: CreditPool | None = None, speed: int = SPEED) -> _Line:
    """A stream that has just begun."""
    credit = ReceiveCredit(start, pool)
    credit.begin_stream()
    return _Line(credit, delay, speed)


@pytest.mark.parametrize("delay", [2, 5, 20, 50])
def test_a_window_grows_to_what_the_line_takes(delay: int) -> None:
    """A consumer that waits gets all that the sender makes, once the window has doubled often enough; no further."""
    fixed, sized = line(delay), line(delay, pool=CreditPool(1 << 30))
    round_trip = SPEED * 2 * delay
    for each in (fixed, sized):
        each.run(60 * delay, appetite=10 * SPEED)
    assert sized.run(20 * delay, appetite=10 * SPEED) > 0.95 * SPEED * 20 * delay
    assert sized.credit.window_bytes <= 4 * max(START, round_trip)
    if round_trip > 2 * START:
        assert fixed.run(20 * delay, appetite=10 * SPEED) < 0.6 * SPEED * 20 * delay
    # Once in a round trip at most.
    windows = enumerate(itertools.pairwise(sized.windows))
    changes = [at for at, (one, other) in windows if one != other]
    assert all(later - earlier >= 2 * delay for earlier, later in itertools.pairwise(changes))


@pytest.mark.parametrize("delay", [0, 1])
def test_a_window_stays_where_the_line_is_short(delay: int) -> None:
    """Credit is never what the consumer waits for."""
    at = line(delay, pool=CreditPool(1 << 30), start=4 * START)
    at.run(1000, appetite=10 * SPEED)
    assert set(at.windows) == {4 * START}


@pytest.mark.parametrize("delay", [0, 1, 10, 40])
def test_a_window_does_not_grow_for_a_consumer_that_lags(delay: int) -> None:
    """It has what its own pace takes, whatever the sender could make, and holds no more than that."""
    at, pace = line(delay, pool=CreditPool(1 << 30)), SPEED // 3
    at.run(200 * max(1, delay), pace)
    # It takes whole messages.
    assert at.credit.window_bytes <= 4 * max(START, (pace + at.message) * 2 * delay)
    assert at.run(40 * max(1, delay), pace) >= 0.9 * pace * 40 * max(1, delay)


def test_a_window_shrinks_again() -> None:
    """A consumer that has become slow holds little more than it began with in the end, and the pool has the rest."""
    pool = CreditPool(1 << 30)
    at = line(50, pool=pool)
    at.run(3000, appetite=10 * SPEED)
    grown = at.credit.window_bytes
    assert grown >= SPEED * 2 * 50
    assert pool.claimed == grown - START
    at.message = 5_003
    at.run(20_000, appetite=5_000)
    assert at.credit.window_bytes <= grown // 8
    assert pool.claimed == at.credit.window_bytes - START
    at.credit.close()
    assert (at.credit.window_bytes, pool.claimed) == (START, 0)


def test_windows_share_what_there_is() -> None:
    """Of a pool within a pool: neither is exceeded, and what one gives back another gets."""
    client = CreditPool(3_000_000)
    first, second = CreditPool(2_000_000, client), CreditPool(2_000_000, client)
    one, other = line(50, pool=first), line(50, pool=second)
    one.run(3000, appetite=10 * SPEED)
    other.run(3000, appetite=10 * SPEED)
    assert (one.credit.window_bytes, other.credit.window_bytes) == (START + 2_000_000, START + 1_000_000)
    assert one.held_max <= one.credit.window_bytes_max + one.row
    assert client.claimed == 3_000_000
    first.close()
    other.run(3000, appetite=10 * SPEED)
    assert (first.claimed, second.claimed, client.claimed) == (0, 2_000_000, 2_000_000)


@given(
    start=st.integers(1, 500),
    room=st.integers(0, 3000),
    phases=st.lists(
        st.tuples(st.integers(1, 150), st.integers(0, 120), st.integers(0, 30), st.booleans()), max_size=8
    ),
    row=st.integers(1, 60),
)
def test_a_window_that_sizes_itself_keeps_its_promises(
    start: int, room: int, phases: list[tuple[int, int, int, bool]], row: int
) -> None:
    """Whatever the consumer does and however often streams are cut: limits rise, memory is bounded, nothing sticks."""
    pool = CreditPool(room)
    at = line(3, start, pool, speed=100)
    at.row, at.message = row, 40
    for moments, appetite, delay, cut in phases:
        if cut:
            at.credit.begin_stream()
            at.sender, at.down, at.up = SendCredit(), deque(), deque()
        at.delay = delay
        limits: list[int] = []
        for _ in range(moments):
            at.run(1, appetite)
            limits.append(at.credit.stream_limit)
            assert start <= at.credit.window_bytes <= start + room
            assert pool.claimed == at.credit.window_bytes - start
        assert limits == sorted(limits)
    assert at.held_max <= start + room + row
    assert at.credit.overrun_bytes <= row
    at.down, at.up = deque(), deque()
    at.credit.begin_stream()
    at.sender = SendCredit()
    assert at.run(400 + sum(at.waiting), appetite=1000) > 0
