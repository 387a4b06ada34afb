"""The account of a stream's time, alone: what counts, what it adds up to, how it is told."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from transport.protocol.stalls import REASONS, StallAccount, StallReason, StallTimes, WindowClock

WAITS = (
    StallReason.CREDIT,
    StallReason.SOCKET,
    StallReason.STORAGE,
    StallReason.CONSUMER,
    StallReason.PEER,
)
START = 1234.5


def seconds(account: StallAccount, now: float) -> dict[str, float]:
    """What the account has, without zeros."""
    return {name: round(value, 6) for name, value in account.times(now).to_dict().items() if value}


def test_each_instant_has_one_reason() -> None:
    """Time before, during and after a wait is booked apart."""
    account = StallAccount(START)
    account.enter(StallReason.CREDIT, START + 1)
    reasons = [account.reason]
    account.leave(StallReason.CREDIT, START + 3)
    assert [*reasons, account.reason] == [StallReason.CREDIT, StallReason.RUNNING]
    assert seconds(account, START + 7) == {"running": 5, "credit": 2}


def test_of_several_waits_the_one_of_the_output_counts() -> None:
    """Waits overlap in any order; the account shows the first in precedence, and the next when that is over."""
    account = StallAccount(0)
    shown = []
    for wait in reversed(WAITS):
        account.enter(wait, 0)
        shown.append(account.reason)
    assert shown == [
        StallReason.PEER,
        StallReason.CONSUMER,
        StallReason.STORAGE,
        StallReason.SOCKET,
        StallReason.SOCKET,
    ]
    for wait in (StallReason.SOCKET, StallReason.CREDIT, StallReason.STORAGE, StallReason.CONSUMER):
        account.leave(wait, 0)
        shown.append(account.reason)
    assert shown[5:] == [
        StallReason.CREDIT,
        StallReason.STORAGE,
        StallReason.CONSUMER,
        StallReason.PEER,
    ]


def test_a_wait_of_two_tasks_lasts_until_both_are_done() -> None:
    """Waits are counted, so one task's end does not end the other's."""
    account = StallAccount(0)
    account.enter(StallReason.STORAGE, 0)
    account.enter(StallReason.STORAGE, 1)
    account.leave(StallReason.STORAGE, 2)
    assert account.reason is StallReason.STORAGE
    account.leave(StallReason.STORAGE, 5)
    assert seconds(account, 6) == {"storage": 5, "running": 1}


def test_waiting_for_the_socket_is_the_windows_fault_while_one_is_shut() -> None:
    """The stream's window comes first, then the connection's; what is left is the socket's."""
    connection = WindowClock()
    account = StallAccount(0, connection)
    account.enter(StallReason.SOCKET, 0)
    account.set_window(1, shut=True)
    reasons = [account.reason]
    connection.set(2, shut=True)
    account.set_window(4, shut=False)
    reasons.append(account.reason)
    connection.set(9, shut=False)
    assert [*reasons, account.reason] == [
        StallReason.STREAM_WINDOW,
        StallReason.CONNECTION_WINDOW,
        StallReason.SOCKET,
    ]
    account.leave(StallReason.SOCKET, 10)
    assert seconds(account, 10) == {"stream_window": 3, "connection_window": 5, "socket": 2}


def test_a_connection_window_counts_only_while_octets_wait() -> None:
    """What a connection's window was shut before a stream waited, or after, is not the stream's."""
    connection = WindowClock()
    connection.set(0, shut=True)
    account = StallAccount(0, connection)
    account.enter(StallReason.SOCKET, 4)
    account.leave(StallReason.SOCKET, 6)
    connection.set(8, shut=False)
    assert seconds(account, 9) == {"running": 7, "connection_window": 2}


def test_nothing_is_booked_after_the_end() -> None:
    """The account of a stream that is over stands still, whatever its tasks still do."""
    account = StallAccount(0)
    account.enter(StallReason.CREDIT, 1)
    account.finish(3)
    account.finish(4)
    account.leave(StallReason.CREDIT, 5)
    account.enter(StallReason.PEER, 5)
    assert seconds(account, 100) == {"running": 1, "credit": 2}
    assert account.lifetime_ns(100) == 3_000_000_000


steps = st.lists(
    st.tuples(
        st.floats(-0.5, 10, allow_nan=False),
        st.sampled_from(["enter", "leave", "window", "connection", "read", "finish"]),
        st.sampled_from(WAITS),
        st.booleans(),
    ),
    max_size=40,
)


@given(start=st.floats(0, 1e6), steps=steps)
def test_the_times_add_up_to_the_lifetime(
    start: float, steps: list[tuple[float, str, StallReason, bool]]
) -> None:
    """Whatever happens, even with a clock that was read late: the sum is the lifetime, to the nanosecond.

    And no time shrinks that was told before.
    """
    connection = WindowClock()
    account = StallAccount(start, connection)
    open_waits: list[StallReason] = []
    now, told = start, (0,) * len(REASONS)
    for delta, step, wait, shut in steps:
        now += delta
        if step == "enter":
            account.enter(wait, now)
            open_waits.append(wait)
        elif step == "leave" and open_waits:
            account.leave(open_waits.pop(), now)
        elif step == "window":
            account.set_window(now, shut=shut)
        elif step == "connection":
            connection.set(now, shut=shut)
        elif step == "finish":
            account.finish(now)
        times = account.times(now).nanoseconds
        assert sum(times) == account.lifetime_ns(now)
        assert all(later >= earlier for later, earlier in zip(times, told, strict=True))
        told = times


def test_a_wait_that_ended_before_the_last_look_takes_nothing_back() -> None:
    """A message came before a look and is taken behind it: what the look has counted as a wait stays one.

    A counter that falls is one that was set to 0, for Prometheus: all of it would count anew.
    """
    account = StallAccount(0)
    account.enter(StallReason.PEER, 1)
    looks = [account.times(4)]
    account.leave(StallReason.PEER, 2)
    looks.append(account.times(5))
    assert [look.to_dict()["peer"] for look in looks] == [3, 3]
    assert [look.to_dict()["running"] for look in looks] == [1, 2]


def test_the_trailer_is_short_and_readable() -> None:
    """Whole microseconds, reasons without any left out; what it loses is less than one of them each."""
    times = StallTimes((1_500_999, 0, 0, 0, 0, 2_000, 0, 999))
    assert times.encode() == b"running=1500;storage=2"
    assert StallTimes.decode_untrusted(times.encode()).to_dict()["running"] == 0.0015
    assert StallTimes().encode() == b""


@given(st.tuples(*[st.integers(0, 10**15 - 1)] * len(REASONS)))
def test_what_is_told_is_what_is_read(microseconds: tuple[int, ...]) -> None:
    """Reading a trailer gives the times that were written."""
    times = StallTimes(tuple(1000 * count for count in microseconds))
    assert StallTimes.decode_untrusted(times.encode()) == times


@given(st.binary(max_size=200))
def test_any_octets_can_be_read(value: bytes) -> None:
    """A peer's trailer, whatever is in it, raises nothing and makes no negative or endless time."""
    times = StallTimes.decode_untrusted(value)
    assert all(0 <= count <= 10**18 for count in times.nanoseconds)


def test_what_is_not_known_is_left_out() -> None:
    """Names of later versions, signs, and digits that are none do not spoil the rest."""
    read = StallTimes.decode_untrusted(
        "credit=7; parked=9;socket=-1;storage=\u0663;peer=2".encode("latin-1", "replace")
    )
    assert {name for name, value in read.to_dict().items() if value} == {"credit", "peer"}
    longest = StallTimes.decode_untrusted(b"peer=%d;credit=%d" % (10**15 - 1, 10**15))
    assert [each for each in longest.nanoseconds if each] == [(10**15 - 1) * 1000]


def test_times_add_up() -> None:
    """Accounts of several streams become one, and have labels for JSON."""
    one = StallTimes((1, 2, 3, 4, 5, 6, 7, 8))
    assert sum([one, one], StallTimes()).nanoseconds == (2, 4, 6, 8, 10, 12, 14, 16)
    assert list(one.to_dict().items()) == [(reason.label, seconds) for reason, seconds in one]
    assert one.longest is StallReason.PEER
    assert one.total_s == 36e-9
