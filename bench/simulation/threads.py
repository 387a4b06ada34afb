"""What storage does for the server, run as worker threads would run it: it takes time, and some of it takes very long.

A step is held before its function runs, as by a pool that has no thread, or behind it, as by an event loop that has
much to do. Everything else goes on meanwhile; races of two steps are found so, not by delays of equal length. The same
happens to tasks of the server that let the others have their turn.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import trio

from bench.simulation.storage import OPENED_BY, RecordingBucket
from scanner.server import fairness

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from bench.simulation.history import History
    from bench.simulation.storage import DiskFaults
    from bench.simulation.workload import Holds

_Result = TypeVar("_Result")
TURN_SHARE: Final = 0.05
"""A turn of the others takes this share of what a step is held."""


class Threads:
    """The worker threads of a run.

    Args:
        usual_s: A step takes up to twice that.
        holds: How many of them are held, and for how long.
        faults: Told what runs in a thread.
        history: Told what is held.
        rng: Decides.
    """

    def __init__(
        self, usual_s: float, holds: Holds, faults: DiskFaults, history: History, rng: Random
    ) -> None:
        self._usual_s = usual_s
        self._holds = holds
        self._faults = faults
        self._history = history
        self._rng = rng

    async def run(self, function: Callable[[], _Result]) -> _Result:
        """Run a step. What a thread has begun it finishes, whoever is cancelled."""
        called = function.func if isinstance(function, functools.partial) else function
        before_s, after_s = self._pause_s(called, "before"), self._pause_s(called, "behind")
        with trio.CancelScope(shield=True), _opening(called):
            await trio.sleep(before_s)
            try:
                result = self._called(function)
            except Exception:
                await trio.sleep(after_s)
                raise
            await trio.sleep(after_s)
        return result

    def _called(self, function: Callable[[], _Result]) -> _Result:
        self._faults.in_thread = True
        try:
            return function()
        finally:
            self._faults.in_thread = False

    def _pause_s(self, called: Any, where: str) -> float:
        if self._rng.random() >= self._holds.chance:
            return self._rng.uniform(0, self._usual_s)
        seconds = self._rng.choice(self._holds.seconds)
        self._history.add("storage", "held", step=_name(called), where=where, seconds=seconds)
        return seconds


@contextmanager
def long_turns(holds: Holds, rng: Random) -> Iterator[None]:
    """Have some turns that the server's tasks let pass take long, in this thread.

    Args:
        holds: How many of them, and how long.
        rng: Decides.
    """
    here = threading.get_ident()

    async def checkpoint() -> None:
        if threading.get_ident() == here and rng.random() < holds.chance:
            await trio.sleep(TURN_SHARE * rng.choice(holds.seconds))
        else:
            await trio.lowlevel.checkpoint()

    fairness.trio = cast(  # type: ignore[attr-defined]
        "Any", SimpleNamespace(Event=trio.Event, lowlevel=SimpleNamespace(checkpoint=checkpoint))
    )
    try:
        yield
    finally:
        fairness.trio = trio  # type: ignore[attr-defined]


def _opening(called: Any) -> AbstractContextManager[None]:
    bucket = getattr(called, "__self__", None)
    opens = isinstance(bucket, RecordingBucket) and _name(called) in OPENED_BY
    return cast("RecordingBucket", bucket).in_thread(_name(called)) if opens else nullcontext()


def _name(called: Any) -> str:
    return getattr(called, "__name__", type(called).__name__)
