"""Nurseries around a block of a user."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
import trio
import trio.testing

from transport import bare, connect_stream, serve


@pytest.mark.parametrize("kind", [KeyError, KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("cancelled", [False, True], ids=["", "cancelled"])
async def test_an_error_of_the_block_leaves_it_as_it_is(
    kind: type[BaseException], *, cancelled: bool
) -> None:
    """Also if all is cancelled meanwhile, as by a time limit around it: else nobody would learn of it."""
    with pytest.raises(kind), trio.CancelScope() as scope:
        async with bare(trio.open_nursery()) as nursery:
            nursery.start_soon(trio.sleep_forever)
            (scope if cancelled else nursery.cancel_scope).cancel()
            raise kind


@pytest.mark.parametrize(
    "open_end", [lambda: connect_stream(trio.testing.memory_stream_pair()[0]), lambda: serve({})]
)
@pytest.mark.parametrize("kind", [KeyError, SystemExit])
async def test_an_error_leaves_a_client_and_a_server(
    open_end: Callable[[], AbstractAsyncContextManager[Any]], kind: type[BaseException]
) -> None:
    """What is raised in the block of either is not lost where all is cancelled while they close."""
    with pytest.raises(kind), trio.CancelScope() as scope:
        async with open_end():
            scope.cancel()
            raise kind


async def test_what_a_task_raises_goes_before_what_came_of_it() -> None:
    """Such as Ctrl-C in the task that has a connection, which ends the block's call with another error."""
    ended = trio.Event()

    async def interrupted() -> None:
        try:
            raise KeyboardInterrupt
        finally:
            ended.set()

    with pytest.raises(BaseExceptionGroup) as caught:
        async with bare(trio.open_nursery()) as nursery:
            nursery.start_soon(interrupted)
            with trio.CancelScope(shield=True):
                await ended.wait()
            raise ConnectionError
    assert caught.group_contains(KeyboardInterrupt)
