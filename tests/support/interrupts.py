"""Ctrl-C at each moment at which Python looks for signals."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupted_behind(call: int, module: str) -> Iterator[list[str]]:
    """Interrupt a block when a function in C, the `call`-th that code of a module calls, has returned to it.

    There Python looks for signals, and runs their handlers before the result is used.

    Yields:
        The names of the functions that were interrupted: none, if there were fewer calls.
    """
    calls = 0
    came: list[str] = []

    def on_event(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        if event == "c_return" and frame.f_globals["__name__"] == module:
            calls += 1
            if calls == call:
                came.append(frame.f_code.co_name)
                raise KeyboardInterrupt

    sys.setprofile(on_event)
    try:
        yield came
    finally:
        sys.setprofile(None)
