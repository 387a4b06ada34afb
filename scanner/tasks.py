"""How tasks are run: what blocks, the two sides of a stream, and nurseries around a block of a user (`bare`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import trio

from transport import bare as bare

_Result = TypeVar("_Result")


class RunBlocking(Protocol):
    """Runs a function of storage that may block on the disk, so that other tasks go on meanwhile."""

    async def __call__(self, function: Callable[[], _Result]) -> _Result:
        """Run it; cancellation waits for it to finish."""


async def in_thread(function: Callable[[], _Result]) -> _Result:
    """Run it in a worker thread: for storage on disk."""
    return await trio.to_thread.run_sync(function)


async def inline(function: Callable[[], _Result]) -> _Result:
    """Run it here and now: for storage in memory, which does not block, and tests on a virtual clock."""
    await trio.lowlevel.checkpoint()
    return function()


async def acquired(lock: trio.Lock | trio.Semaphore) -> None:
    """Acquire it; at once, without a round of the event loop, if it is free.

    Cancellation:
        It is not acquired.
    """
    await trio.lowlevel.checkpoint_if_cancelled()
    try:
        lock.acquire_nowait()
    except trio.WouldBlock:
        await lock.acquire()


async def run_with_companion(
    primary: Callable[[], Awaitable[None]], companion: Callable[[], Awaitable[None]]
) -> None:
    """Run `primary`, and `companion` beside it for as long.

    Args:
        primary: Decides when both are over. When it returns, the companion is cancelled.
        companion: May return earlier.

    Raises:
        Exception: The first exception of either, as itself, once the other one has ended.

    Cancellation:
        Cancels both.
    """
    failures: list[Exception] = []

    async with trio.open_nursery() as nursery:

        async def run(function: Callable[[], Awaitable[None]]) -> None:
            try:
                await function()
            except Exception as error:
                # Kept and raised below as itself: in a nursery it would come wrapped into a group.
                failures.append(error)
                nursery.cancel_scope.cancel()

        nursery.start_soon(run, companion)
        await run(primary)
        nursery.cancel_scope.cancel()

    if failures:
        raise failures[0]
