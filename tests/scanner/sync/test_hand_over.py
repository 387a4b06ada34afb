"""Batches handed from the portal's thread to a caller: none is lost or repeated, whatever interrupts the caller."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pytest
import trio

from scanner.sync.hand_over import HandOver
from tests.support.interrupts import interrupted_behind

if TYPE_CHECKING:
    from scanner.sync.portal import Portal, Takeable

BATCHES = 6


class Numbered:
    """Batches that are numbered from 0, for one who waits at a time."""

    def __init__(self) -> None:
        self.given = 0
        self._waiting = False

    def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        """The next one, a round of the loop later."""
        if self._waiting:
            raise trio.BusyResourceError
        self._waiting = True
        try:
            await trio.lowlevel.checkpoint()
        finally:
            self._waiting = False
        return self._next()

    def _next(self) -> pa.RecordBatch:
        if self.given == BATCHES:
            raise StopAsyncIteration
        self.given += 1
        return pa.record_batch({"number": [self.given - 1]})


class ReadyNumbered(Numbered):
    """The same, taken without a task."""

    def next_nowait(self) -> pa.RecordBatch:
        """The next one, which is there."""
        return self._next()

    def when_ready(self, callback: Callable[[], None] | None) -> None:
        """Nobody waits."""


class TwiceInterrupted:
    """A portal whose every other caller is interrupted twice: its call ends beside the next one."""

    def __init__(self) -> None:
        self._left = False

    def read(self, function: Callable[[], Awaitable[None]]) -> None:
        """Run it in a task."""
        self._interrupt()

        async def run_both() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(function)
                nursery.start_soon(function)

        trio.run(run_both)

    def take(self, source: Takeable[None]) -> None:
        """Run it without one."""
        self._interrupt()
        source.take_nowait()
        source.take_nowait()

    def _interrupt(self) -> None:
        self._left = not self._left
        if self._left:
            raise KeyboardInterrupt


@pytest.mark.parametrize("kind", [Numbered, ReadyNumbered])
def test_interrupted_twice(kind: type[Numbered]) -> None:
    """What a call brings that its caller no longer waits for is there for the next one, and counts only then."""
    batches = kind()
    over = HandOver(cast("Portal", TwiceInterrupted()), batches, lambda: batches.given)
    for number in range(BATCHES):
        with pytest.raises(KeyboardInterrupt):
            over.next()
        assert over.place == number
        assert over.next()["number"].to_pylist() == [number]
        assert over.place == number + 1


class Elsewhere:
    """A portal that runs what it is told in another thread."""

    def read(self, function: Callable[[], Awaitable[None]]) -> None:
        """Run it in a loop."""
        self._run(lambda: trio.run(function))

    def take(self, source: Takeable[None]) -> None:
        """Run it without one."""
        self._run(source.take_nowait)

    def _run(self, function: Callable[[], None]) -> None:
        thread = threading.Thread(target=function)
        thread.start()
        thread.join()


def interrupted(kind: type[Numbered], call: int) -> bool:
    """Interrupt the first `next` behind a call into C, and go on. Returns whether it made so many."""
    batches = kind()
    over = HandOver(cast("Portal", Elsewhere()), batches, lambda: batches.given)
    taken = []
    with suppress(KeyboardInterrupt), interrupted_behind(call, HandOver.__module__) as came:
        taken.append(over.next())
    taken += [over.next() for _ in range(BATCHES - len(taken))]
    assert [each["number"][0].as_py() for each in taken] == list(range(BATCHES)), came
    assert over.place == BATCHES
    return bool(came)


@pytest.mark.parametrize("kind", [Numbered, ReadyNumbered])
def test_interrupted_wherever_python_looks_for_signals(kind: type[Numbered]) -> None:
    """Also behind the taking of a batch: it is there for the next call, and none comes twice."""
    calls = 0
    while interrupted(kind, calls + 1):
        calls += 1
    assert calls > 0


class Handled:
    """A portal with a signal handler that comes once, when a call has ended and its caller does not know yet."""

    def __init__(self) -> None:
        self.handler: Callable[[], object] | None = None

    def read(self, function: Callable[[], Awaitable[None]]) -> None:
        """Run it in a loop."""
        trio.run(function)
        self._handle()

    def take(self, source: Takeable[None]) -> None:
        """Run it without one."""
        source.take_nowait()
        self._handle()

    def _handle(self) -> None:
        handler, self.handler = self.handler, None
        if handler is not None:
            handler()


@pytest.mark.parametrize("kind", [Numbered, ReadyNumbered])
def test_a_signal_handler_that_takes_a_batch(kind: type[Numbered]) -> None:
    """Who was interrupted by it gets the next one."""
    batches, portal = kind(), Handled()
    over = HandOver(cast("Portal", portal), batches, lambda: batches.given)
    taken: list[pa.RecordBatch] = []
    portal.handler = lambda: taken.append(over.next())
    taken += [over.next() for _ in range(BATCHES - 1)]
    assert [each["number"][0].as_py() for each in taken] == list(range(BATCHES))


class Shared:
    """A portal that lets another thread try while the first one waits."""

    def __init__(self) -> None:
        self.hand_over: HandOver[int] | None = None
        self.outcomes: list[object] = []

    def read(self, function: Callable[[], Awaitable[None]]) -> None:
        """Run it in a loop."""
        self._try_elsewhere()
        trio.run(function)

    def take(self, source: Takeable[None]) -> None:
        """Run it without one."""
        self._try_elsewhere()
        source.take_nowait()

    def _try_elsewhere(self) -> None:
        def take() -> None:
            assert self.hand_over is not None
            try:
                self.outcomes.append(self.hand_over.next())
            except trio.BusyResourceError as error:
                self.outcomes.append(error)

        if threading.current_thread() is threading.main_thread():
            other = threading.Thread(target=take)
            other.start()
            other.join()


@pytest.mark.parametrize("kind", [Numbered, ReadyNumbered])
def test_a_second_thread_is_told(kind: type[Numbered]) -> None:
    """Two threads on one iterator: the one that comes while another is at it gets an error, and no batch twice."""
    batches, shared = kind(), Shared()
    shared.hand_over = HandOver(cast("Portal", shared), batches, lambda: batches.given)
    numbers = [shared.hand_over.next()["number"][0].as_py() for _ in range(BATCHES)]
    assert numbers == list(range(BATCHES))
    assert [type(each) for each in shared.outcomes] == [trio.BusyResourceError] * BATCHES


class Idle(ReadyNumbered):
    """In front of each batch the scan comes further without one, and is waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.passed = 0

    def next_nowait(self) -> pa.RecordBatch:
        """The next one, which is there when it is asked for again."""
        if self.passed == self.given:
            self.passed += 1
            raise trio.WouldBlock
        return self._next()


class Watched:
    """A portal that asks how far its caller is while that waits, and when the batch is there."""

    def __init__(self) -> None:
        self.hand_over: HandOver[tuple[int, int]] | None = None
        self.seen: list[tuple[int, int]] = []

    def take(self, source: Takeable[None]) -> None:
        """Run it as often as it takes."""
        assert self.hand_over is not None
        with pytest.raises(trio.WouldBlock):
            source.take_nowait()
        self.seen.append(self.hand_over.place)
        source.take_nowait()
        self.seen.append(self.hand_over.place)


def test_the_place_moves_while_a_batch_is_waited_for() -> None:
    """Whoever watches a scan in another thread sees what heartbeats bring, and never a batch that nobody has got."""
    batches, watched = Idle(), Watched()
    over = HandOver(cast("Portal", watched), batches, lambda: (batches.passed, batches.given))
    watched.hand_over = over
    for number in range(BATCHES):
        assert over.place == (number, number)
        over.next()
    assert over.place == (BATCHES, BATCHES)
    assert watched.seen == [(number + 1, number) for number in range(BATCHES) for _ in range(2)]
