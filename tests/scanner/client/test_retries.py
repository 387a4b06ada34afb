"""Retries: which errors, how often, after how long."""

from __future__ import annotations

import itertools
from random import Random

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from scanner.client.retries import RETRIES_MAX, Attempts, RetryPolicy, retried
from scanner.errors import (
    ERRORS,
    Draining,
    ErrorRow,
    ScannerError,
    ServerUnavailable,
    SnapshotLost,
    TooManyScans,
)

GONE = ServerUnavailable("gone", resume_token=b"t", oldest_offset=3, metadata={"a": "b"})


@given(failed=st.integers(1, RETRIES_MAX), low=st.floats(0.001, 10), factor=st.floats(1, 1000))
def test_delays_grow_to_a_bound(failed: int, low: float, factor: float) -> None:
    """The first delay is the least, each further bound is twice the one before, and none passes the greatest."""
    policy = RetryPolicy(delay_s_min=low, delay_s_max=low * factor)
    assert policy.delay_bound_s(1) == low
    bound, next_bound = policy.delay_bound_s(failed), policy.delay_bound_s(failed + 1)
    assert low <= bound <= next_bound <= policy.delay_s_max
    assert next_bound in (pytest.approx(2 * bound), policy.delay_s_max)


@pytest.mark.parametrize(
    "fields",
    [
        {"retries": -1},
        {"retries": RETRIES_MAX + 1},
        {"delay_s_min": 0.0},
        {"delay_s_min": 2.0, "delay_s_max": 1.0},
    ],
)
def test_senseless_policies_are_refused(fields: dict[str, int]) -> None:
    """A policy says which of its fields is out of range."""
    with pytest.raises(ValueError, match=next(iter(fields))):
        RetryPolicy(**fields)


@pytest.mark.parametrize("row", ERRORS, ids=lambda row: row.reason)
async def test_the_error_table_decides(row: ErrorRow, autojump_clock: trio.testing.MockClock) -> None:
    """What the table calls retriable is tried again; everything else is raised as it is, at once."""
    attempts = Attempts(RetryPolicy(), Random(0))
    error = row.exception("why")
    if row.retriable:
        await attempts.wait_retry(error)
        assert trio.current_time() > 0
        return
    with pytest.raises(row.exception) as caught:
        await attempts.wait_retry(error)
    assert caught.value is error
    assert trio.current_time() == 0


async def test_delays_are_drawn_from_the_whole_range(autojump_clock: trio.testing.MockClock) -> None:
    """Full jitter: every delay lies between nothing and its bound, and they are spread over it."""
    policy = RetryPolicy(retries=5, delay_s_min=0.1, delay_s_max=1.0)
    fractions = []
    for seed in range(100):
        attempts = Attempts(policy, Random(seed))
        for failed in range(1, 6):
            before = trio.current_time()
            await attempts.wait_retry(GONE)
            fractions.append((trio.current_time() - before) / policy.delay_bound_s(failed))
    assert all(0 <= each <= 1 for each in fractions)
    assert 0.45 < sum(fractions) / len(fractions) < 0.55
    assert min(fractions) < 0.05
    assert max(fractions) > 0.95


async def test_the_same_seed_waits_as_long(autojump_clock: trio.testing.MockClock) -> None:
    """Delays come out of the random that was given, and nowhere else."""
    times = []
    for seed in (1, 1, 2):
        before = trio.current_time()
        attempts = Attempts(RetryPolicy(), Random(seed))
        for _ in range(4):
            await attempts.wait_retry(GONE)
        times.append(trio.current_time() - before)
    assert times[0] == pytest.approx(times[1])
    assert times[0] != pytest.approx(times[2])


async def test_attempts_without_progress_run_out(autojump_clock: trio.testing.MockClock) -> None:
    """The last error surfaces as what it is, with all that it carries, and says how many attempts there were."""
    attempts = Attempts(RetryPolicy(retries=2), Random(0))
    await attempts.wait_retry(TooManyScans("full"))
    await attempts.wait_retry(TooManyScans("full"))
    with pytest.raises(ServerUnavailable, match=r"^gone \(after 3 attempts without progress\)$") as caught:
        await attempts.wait_retry(GONE)
    assert caught.value.__cause__ is GONE
    assert (caught.value.resume_token, caught.value.oldest_offset) == (b"t", 3)
    assert caught.value.metadata == {"a": "b", "attempts": "3"}


async def test_progress_starts_the_count_anew(autojump_clock: trio.testing.MockClock) -> None:
    """Attempts that bring something may follow each other for ever, with short delays."""
    attempts = Attempts(RetryPolicy(retries=1), Random(0))
    for _ in range(100):
        await attempts.wait_retry(GONE)
        attempts.progress()
    assert trio.current_time() <= 100 * 0.1


async def test_siblings_share_their_progress(autojump_clock: trio.testing.MockClock) -> None:
    """What one part brings counts for all; failures, and what came before a part began, are its own."""
    first = Attempts(RetryPolicy(retries=1), Random(0))
    first.progress()
    second = first.sibling()
    await second.wait_retry(GONE)
    first.progress()
    await second.wait_retry(GONE)
    await first.wait_retry(GONE)
    for attempts in (first, second, second.sibling()):
        if attempts.failed == 0:
            await attempts.wait_retry(GONE)
        with pytest.raises(ServerUnavailable, match="after 2 attempts"):
            await attempts.wait_retry(GONE)


async def test_no_retries_means_none(autojump_clock: trio.testing.MockClock) -> None:
    """With retries=0 the error is the one that came, untouched, at once."""
    with pytest.raises(ServerUnavailable) as caught:
        await Attempts(RetryPolicy(retries=0), Random(0)).wait_retry(GONE)
    assert caught.value is GONE
    assert trio.current_time() == 0


async def test_cancellation_ends_a_delay_at_once(autojump_clock: trio.testing.MockClock) -> None:
    """Who is cancelled while waiting for the next attempt waits no longer."""
    attempts = Attempts(RetryPolicy(retries=20, delay_s_min=1000, delay_s_max=1000), Random(0))
    with trio.move_on_after(1) as scope:
        await attempts.wait_retry(GONE)
    assert scope.cancelled_caught
    assert trio.current_time() == 1


async def test_retried_repeats_until_it_succeeds_or_cannot(autojump_clock: trio.testing.MockClock) -> None:
    """The loop gives the first result, or the first error that does not pass."""
    calls = itertools.count(1)

    async def third_time_lucky() -> int:
        await trio.lowlevel.checkpoint()
        if (call := next(calls)) < 3:
            raise GONE
        return call

    async def lost() -> int:
        await trio.lowlevel.checkpoint()
        raise SnapshotLost("lost")

    assert await retried(Attempts(RetryPolicy(), Random(0)), third_time_lucky) == 3
    with pytest.raises(ScannerError, match="lost"):
        await retried(Attempts(RetryPolicy(), Random(0)), lost)


async def test_attempts_within_attempts_do_not_multiply(autojump_clock: trio.testing.MockClock) -> None:
    """A call that is made again connects first, with attempts of its own; a server that is gone has these alone."""
    calls = itertools.count()

    async def connect() -> None:
        await trio.lowlevel.checkpoint()
        next(calls)
        raise GONE

    async def call() -> None:
        await retried(Attempts(RetryPolicy(retries=3), Random(0)), connect)

    with pytest.raises(ServerUnavailable, match=r"^gone \(after 4 attempts without progress\)$"):
        await retried(Attempts(RetryPolicy(retries=3), Random(0)), call)
    assert next(calls) == 4


async def test_what_the_server_asks_for_is_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    """The time that an error names comes on top of the drawn delay; what is no number, or too much, does no harm."""
    policy = RetryPolicy(delay_s_max=0.1)
    for said, least in (
        ("2500", 2.5),
        ("999999999", 60.0),
        ("-1", 0.0),
        ("soon", 0.0),
        ("٣", 0.0),
        ("9" * 99, 0.0),
    ):
        before = trio.current_time()
        await Attempts(policy, Random(0)).wait_retry(Draining("why", metadata={"retry_after_ms": said}))
        assert least <= trio.current_time() - before <= least + 0.1


async def test_the_default_outlasts_a_default_restart(autojump_clock: trio.testing.MockClock) -> None:
    """With any seed the attempts go on for longer than a drain of 5 seconds and a start of 5 more."""
    for seed in range(200):
        attempts, before = Attempts(RetryPolicy(), Random(seed)), trio.current_time()
        with pytest.raises(ServerUnavailable):
            while True:
                await attempts.wait_retry(GONE)
        assert trio.current_time() - before > 10
