"""The consumer's side of push scans that are cut: credit, cancellation and forced cuts, on a virtual clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from scanner.errors import ArgumentInvalid
from tests.support.hosts import Script, Step, hang, read_keys, reset, scripted_table, settle
from tests.support.push_messages import end, rows, started

if TYPE_CHECKING:
    from collections.abc import Callable

    from scanner.client.scan.scan import Scan

FIRST_HALF = [started(), rows(0, [0, 1], token=b"2")]
SECOND_HALF = [started(row_ordinal=2), rows(2, [2, 3], token=b"4"), end(4)]


async def test_what_arrived_stays_with_a_stalled_consumer(autojump_clock: trio.testing.MockClock) -> None:
    """Credit over a cut: the new stream gets the window without what is held, and more as that is consumed."""
    first = rows(0, [0], token=b"1")
    size, window = len(first), 10 * len(first)
    early = [rows(n, [n], token=b"%d" % (n + 1)) for n in range(1, 9)]
    script = Script(
        [started(), first, *early, reset],
        [started(row_ordinal=9), settle, reset],
        [started(row_ordinal=9), hang],
    )
    async with scripted_table(script) as (table, _):
        async with table.new_scan().with_credit(window).execute() as batches:
            await script.wait_opened(2)
            held = size + sum(map(len, early))
            assert [limits[0] for limits in script.limits[:2]] == [window, window - held]
            await script.wait_opened(3)
            assert script.limits[2] == [window - held]
            keys = [key for _ in range(9) for key in (await anext(batches))["k"].to_pylist()]
            await trio.testing.wait_all_tasks_blocked()
            assert keys == list(range(9))
            in_hand = len(early[-1])
            assert window - in_hand - window // 4 < script.limits[2][-1] <= window - in_hand
            assert script.limits[2] == sorted(script.limits[2])


async def test_a_full_window_gets_no_credit_until_it_is_consumed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """While the consumer holds the whole window a new stream is granted nothing, however often it is cut."""
    first = rows(0, [0, 1], token=b"2")
    cut: list[Step] = [started(row_ordinal=2), settle, reset]
    script = Script([started(), first, reset], cut, cut, cut, SECOND_HALF)
    async with scripted_table(script) as (table, _):
        async with table.new_scan().with_credit(1).execute() as batches:
            await script.wait_opened(4)
            assert script.limits[1:4] == [[], [], []]
            keys = [key async for batch in batches for key in batch["k"].to_pylist()]
            assert keys == [0, 1, 2, 3]
    assert batches.statistics().overrun_bytes < len(rows(2, [2, 3], token=b"4"))


async def test_cancellation_in_a_delay_ends_at_once(autojump_clock: trio.testing.MockClock) -> None:
    """Leaving the scan while it waits for its next attempt takes no time, and no further attempt is made."""
    script = Script([*FIRST_HALF, reset])
    async with scripted_table(script, retries=1000) as (table, host):
        async with table.new_scan().execute() as batches:
            await anext(batches)
            host.vanish()
            with trio.move_on_after(1000):
                await anext(batches)
            left_at = trio.current_time()
        assert trio.current_time() == left_at == 1000
        dials = len(host.dialled_at)
        with trio.move_on_after(1000):
            await trio.sleep_forever()
        assert len(host.dialled_at) == dials


async def test_leaving_the_client_ends_a_scan_that_waits(autojump_clock: trio.testing.MockClock) -> None:
    """A scan whose client is left under it ends with the caller's own mistake."""
    script = Script([*FIRST_HALF, reset])
    errors: list[BaseException] = []
    async with trio.open_nursery() as nursery:
        async with scripted_table(script, retries=1000) as (table, host):
            host.refusals = 1000

            async def poll() -> None:
                async with table.new_scan().execute() as batches:
                    try:
                        while True:
                            await anext(batches)
                    except trio.ClosedResourceError as error:
                        errors.append(error)

            nursery.start_soon(poll)
            await settle()
            host.cut()
            await settle()
    assert len(errors) == 1


@pytest.mark.parametrize("batches", [1, 2])
async def test_forced_cuts(batches: int, autojump_clock: trio.testing.MockClock) -> None:
    """The test option cuts after every n batches, without delays and without counting as failures."""

    async def serve(position: int, count: int) -> list[Step]:
        sent: list[Step] = [
            rows(n, [n], token=b"%d" % (n + 1)) for n in range(position, min(position + count, 4))
        ]
        return [started(row_ordinal=position), *sent]

    streams = [[*(await serve(position, batches)), hang] for position in range(0, 4, batches)]
    script = Script(*streams, [started(row_ordinal=4), end(4)])
    async with scripted_table(script, retries=0) as (table, _):
        keys, statistics = await read_keys(table.new_scan().resume_every_batches(batches))
    assert keys == [0, 1, 2, 3]
    assert statistics.resumes == 4 // batches
    assert trio.current_time() == 0


async def test_forced_cuts_need_tokens(autojump_clock: trio.testing.MockClock) -> None:
    """A stream whose batches bear no token is not cut."""
    script = Script([started(), rows(0, [0]), rows(1, [1]), end(2)])
    async with scripted_table(script) as (table, _):
        keys, statistics = await read_keys(table.new_scan().resume_every_batches(1))
    assert (keys, statistics.resumes) == ([0, 1], 0)


@pytest.mark.parametrize(
    ("scan", "says"),
    [
        (lambda scan: scan.with_source("snapshot").as_of(1), "SNAPSHOT has a state of its own"),
        (lambda scan: scan.with_mode("session").as_of(1), "mode session"),
        (lambda scan: scan.as_of({}), "says nothing of bucket 0"),
    ],
    ids=["source", "mode", "bucket"],
)
async def test_offsets_that_fit_no_scan(
    scan: Callable[[Scan], Scan], says: str, autojump_clock: trio.testing.MockClock
) -> None:
    """as_of is refused before anything is asked, where it makes no sense."""
    async with scripted_table(Script()) as (table, _):
        with pytest.raises(ArgumentInvalid, match=says):
            async with scan(table.new_scan()).execute():
                pass
