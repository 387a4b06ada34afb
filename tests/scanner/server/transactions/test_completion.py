"""A decided version on its way into the buckets, and what is said of it."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from scanner.errors import StoreFailed, TableNotFound
from scanner.server.transactions.completion import Completion


@pytest.mark.parametrize("failed_before", [False, True])
async def test_a_table_that_is_dropped_meanwhile(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture, *, failed_before: bool
) -> None:
    """Nobody goes on: the publisher is told of the drop alone, and the log only where it has told of a failure."""
    failures = [StoreFailed("the disk refused")] if failed_before else []

    async def apply() -> None:
        raise failures.pop() if failures else TableNotFound("table 't' was dropped")

    completion = Completion(apply, "version 1")
    await completion.run()
    with pytest.raises(TableNotFound, match=r"\Atable 't' was dropped\Z"):
        await completion.wait()
    said = [
        "version 1 is decided, cannot be applied, and is tried again: the disk refused",
        "version 1 is over: table 't' was dropped",
    ]
    assert caplog.messages == (said if failed_before else [])


async def test_a_failure_is_logged_once(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """However often it is tried, and whoever waits: what comes behind it asks at each of its own attempts."""

    async def apply() -> None:
        raise StoreFailed("/data/7: the disk refused")

    completion = Completion(apply, "version 1")
    said = set[str]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(completion.run)
        for _ in range(3):
            with pytest.raises(
                StoreFailed, match=r"\Aversion 1 is decided, .* the server's disk refused"
            ) as raised:
                await completion.wait()
            said.add(raised.value.message)
        nursery.cancel_scope.cancel()
    assert len(said) == 1
    assert len(caplog.messages) == 2
