"""Sees how functions of the product end while something runs: called at all, or left by an error or a cancellation."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import pytest

CALLED: Final = "called"


class Happening(NamedTuple):
    """One thing that can happen to a function."""

    place: str
    """Its module and its name in it, `scanner.server.disk:DiskWatch.close_idle` say."""
    how: str
    """`CALLED`, or the name of the exception that leaves it."""


@contextmanager
def seeing(places: Iterable[str]) -> Iterator[set[Happening]]:
    """See until the end of the block what happens to functions, which are plain or asynchronous."""
    seen: set[Happening] = set()
    with pytest.MonkeyPatch.context() as patch:
        for place in set(places):
            module, _, path = place.partition(":")
            owner: Any = importlib.import_module(module)
            *outer, name = path.split(".")
            for each in outer:
                owner = getattr(owner, each)
            patch.setattr(owner, name, _seen(vars(owner)[name], place, seen))
        yield seen


def _seen(function: Callable[..., Any], place: str, seen: set[Happening]) -> Callable[..., Any]:
    @contextmanager
    def looking() -> Iterator[None]:
        seen.add(Happening(place, CALLED))
        try:
            yield
        except BaseException as error:
            seen.add(Happening(place, type(error).__name__))
            raise

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def waited(*arguments: Any, **named: Any) -> Any:
            with looking():
                return await function(*arguments, **named)

        return waited

    @functools.wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        with looking():
            return function(*arguments, **named)

    return called
