"""Admission: whole commits, limits reached and passed by less than one, shares that are fair."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from spark_source.stream.admission import Admission, Commit, Delay, Pending
from spark_source.stream.options import Limits


@dataclass(frozen=True)
class Log:
    """What a bucket has to give, and all of its commits."""

    start: int
    until: int
    commits: tuple[Commit, ...]


def admit(logs: dict[int, Log], bounds: Limits) -> dict[int, int]:
    """The ends, with everything measured beforehand."""
    admission = _begun(logs, bounds)
    for bucket, log in logs.items():
        admission.add(bucket, log.commits)
    assert admission.settle()
    return admission.ends


def _begun(logs: dict[int, Log], bounds: Limits) -> Admission:
    return Admission({bucket: Pending(log.start, log.until) for bucket, log in logs.items()}, bounds)


@st.composite
def logs(draw: st.DrawFn) -> dict[int, Log]:
    """Buckets with commits, all measured."""
    pending = {}
    for bucket in range(draw(st.integers(1, 5))):
        start = draw(st.integers(0, 100))
        sizes = draw(
            st.lists(st.tuples(st.integers(1, 9), st.integers(1, 99), st.integers(1, 50)), max_size=12)
        )
        ends = itertools.accumulate((size[0] for size in sizes), initial=start)
        times = itertools.accumulate(size[2] for size in sizes)
        commits = tuple(
            Commit(end, size[1], time)
            for end, size, time in zip(itertools.islice(ends, 1, None), sizes, times, strict=True)
        )
        until = draw(st.sampled_from([start, *(commit.end for commit in commits)]))
        pending[bucket] = Log(start, until, commits)
    return pending


limits = st.builds(
    Limits, rows_max=st.none() | st.integers(1, 60), bytes_max=st.none() | st.integers(1, 600)
).filter(lambda each: not each.unlimited)


def _taken(pending: dict[int, Log], ends: dict[int, int]) -> dict[int, list[tuple[int, int]]]:
    """By bucket, rows and bytes of the commits that went in."""
    taken = {}
    for bucket, each in pending.items():
        starts = [each.start, *(commit.end for commit in each.commits)]
        taken[bucket] = [
            (commit.end - start, commit.bytes)
            for start, commit in zip(starts, each.commits, strict=False)
            if commit.end <= ends[bucket]
        ]
    return taken


def _reached(bounds: Limits, sizes: list[tuple[int, int]]) -> bool:
    rows, size = sum(each[0] for each in sizes), sum(each[1] for each in sizes)
    return (bounds.rows_max is not None and rows >= bounds.rows_max) or (
        bounds.bytes_max is not None and size >= bounds.bytes_max
    )


def _share(bounds: Limits, sizes: list[tuple[int, int]]) -> float:
    rows, size = sum(each[0] for each in sizes), sum(each[1] for each in sizes)
    return max(rows / (bounds.rows_max or 1e18), size / (bounds.bytes_max or 1e18))


@given(logs(), limits)
def test_a_limit_is_reached_and_passed_by_less_than_a_commit(pending: dict[int, Log], bounds: Limits) -> None:
    """Ends are ends of commits up to `until`; without any one last commit the limit would not be reached."""
    ends = admit(pending, bounds)
    for bucket, each in pending.items():
        assert ends[bucket] in [each.start, *(commit.end for commit in each.commits)]
        assert each.start <= ends[bucket] <= each.until
    taken = _taken(pending, ends)
    everything = all(ends[bucket] == each.until for bucket, each in pending.items())
    assert everything or _reached(bounds, [size for sizes in taken.values() for size in sizes])
    if any(each.start < each.until for each in pending.values()):
        assert any(taken.values())
        # One of the last commits was the last one to go in.
        assert any(
            not _reached(
                bounds,
                [size for other, them in taken.items() for size in (them[:-1] if other == bucket else them)],
            )
            for bucket, sizes in taken.items()
            if sizes
        )


@given(logs(), limits)
def test_no_bucket_starves_beside_a_busy_one(pending: dict[int, Log], bounds: Limits) -> None:
    """A bucket that has more to give has got as much as any other had before its last commit."""
    ends = admit(pending, bounds)
    taken = _taken(pending, ends)
    for bucket, each in pending.items():
        if ends[bucket] < each.until:
            for other in taken.values():
                assert not other or _share(bounds, other[:-1]) <= _share(bounds, taken[bucket])


@given(logs(), limits, st.integers(1, 4))
def test_measuring_bit_by_bit_changes_nothing(pending: dict[int, Log], bounds: Limits, step: int) -> None:
    """Buckets that are short are measured on from where they were, a few commits at a time; the ends are the same."""
    admission, known = _begun(pending, bounds), dict.fromkeys(pending, 0)
    while not admission.settle():
        short = admission.short
        assert short
        for bucket, offset in short.items():
            log, count = pending[bucket], known[bucket]
            assert offset == (log.commits[count - 1].end if count else log.start)
            admission.add(bucket, log.commits[count : count + step])
            known[bucket] += step
        assert not admission.part.unlimited
    assert admission.ends == admit(pending, bounds)


def test_many_buckets_are_measured_in_a_few_rounds() -> None:
    """Commits of any sizes, in buckets half of which have little: no bucket is asked for by itself, nor for all."""
    rng = random.Random(1)
    sizes = {bucket: 40 if bucket % 2 else 4000 for bucket in range(64)}
    commits = {}
    for bucket, count in sizes.items():
        ends = itertools.accumulate(rng.randint(1, 10) for _ in range(count))
        commits[bucket] = [Commit(end, rng.randint(1, 500), number) for number, end in enumerate(ends)]
    limits = Limits(rows_max=100_000)
    admission = Admission({bucket: Pending(0, each[-1].end) for bucket, each in commits.items()}, limits)
    rounds = measured = 0
    while not admission.settle():
        rounds += 1
        assert admission.part.rows_max is not None
        for bucket, offset in admission.short.items():
            wanted = offset + admission.part.rows_max * 2**rounds // 2
            some = [each for each in commits[bucket] if offset < each.end <= wanted]
            admission.add(bucket, some)
            measured += len(some)
    assert rounds <= 4
    assert measured < 3 * sum(
        end > each.end for bucket, end in admission.ends.items() for each in commits[bucket]
    )


@given(st.lists(st.integers(1, 1000), min_size=2, max_size=5, unique=True))
def test_one_commit_at_a_time_is_the_oldest_of_all(times: list[int]) -> None:
    """With a limit that every commit reaches, no bucket is passed over for ever: the oldest is next."""
    pending = {bucket: Log(0, 10, (Commit(10, 1, time),)) for bucket, time in enumerate(times)}
    ends = admit(pending, Limits(rows_max=1))
    assert ends == {bucket: 10 if time == min(times) else 0 for bucket, time in enumerate(times)}


def test_a_minimum_is_waited_for_so_long() -> None:
    """Not by the first micro-batch; by later ones until there is enough, or the delay is over."""
    delay = Delay(Limits(rows_min=10, delay_s=60.0))
    assert not delay.waits(3, 99.0)
    assert not delay.waits(3, 100.0)
    delay.begin(100.0)
    assert delay.waits(3, 100.5)
    assert delay.waits(9, 159.0)
    assert not delay.waits(10, 159.5)
    delay.begin(159.5)
    assert delay.waits(1, 200.0)
    assert not delay.waits(1, 219.5)
    assert not Delay(Limits()).waits(1, 0.0)
