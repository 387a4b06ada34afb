"""Nurseries around a block of a user."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeVar

import trio

_Value = TypeVar("_Value")


@asynccontextmanager
async def bare(manager: AbstractAsyncContextManager[_Value]) -> AsyncIterator[_Value]:
    """Enter `manager`, and let an exception of the block out as itself.

    A nursery puts whatever passes through it into an `ExceptionGroup`. For the tasks' own exceptions that is right;
    around the block of a user who only reads a table it would turn `except TableNotFound` into `except*`, and
    `sys.exit(3)` into a traceback. So the block's exception goes around the manager: the manager closes as after
    success, then the exception goes on, also if closing is cancelled, which would hide it. What else closing raises,
    such as what a task of the nursery did, goes first: the block's error may be no more than what came of it.
    `Cancelled` itself goes through the manager as usual.
    """
    failure: BaseException | None = None
    closing: BaseException | None = None
    try:
        async with manager as value:
            try:
                yield value
            except (Exception, KeyboardInterrupt, SystemExit, GeneratorExit) as error:
                failure = error
    except BaseException as error:
        closing = error
        raise
    finally:
        if failure is not None and (closing is None or _is_cancellation(closing)):
            raise failure


def _is_cancellation(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_cancellation, error.exceptions))
    return isinstance(error, trio.Cancelled)
