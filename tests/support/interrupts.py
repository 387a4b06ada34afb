"""Ctrl-C while something is waited for, and at each moment at which Python looks for signals."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from types import FrameType


class Patient(Random):
    """Draws delays that nobody lives to see."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn = threading.Event()

    def uniform(self, a: float, b: float) -> float:
        """A fortnight."""
        self.drawn.set()
        return 1e6


@contextmanager
def interrupted_after(wait: Callable[[], object], *, elsewhere: bool = False) -> Iterator[None]:
    """Interrupt this thread when `wait` has returned in another one; Ctrl-C is as Python has it meanwhile.

    Args:
        wait: Called in a thread of its own.
        elsewhere: That thread gets the signal, so that it ends no wait of this one.
    """
    main = threading.get_ident()

    def press() -> None:
        wait()
        signal.pthread_kill(threading.get_ident() if elsewhere else main, signal.SIGINT)

    presser = threading.Thread(target=press)
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        presser.start()
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
        presser.join(60)


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
