"""Entering what owns tasks without wrapping the caller's exceptions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeVar

T = TypeVar("T")


@asynccontextmanager
async def bare(manager: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    """Enter `manager`, and let an exception of the block out as itself.

    A nursery puts whatever passes through it into an `ExceptionGroup`. For the tasks' own exceptions that is right;
    around the block of a user who only reads a table it would turn `except TableNotFound` into `except*`. So the
    block's exception goes around the manager: the manager closes as after success, then the exception goes on.
    What is no `Exception`, such as `Cancelled`, goes through the manager as usual.
    """
    failure: Exception | None = None
    async with manager as value:
        try:
            yield value
        except Exception as error:
            failure = error
    if failure is not None:
        raise failure
