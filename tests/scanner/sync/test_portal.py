"""What a blocking caller keeps entered: how it comes in, how it goes out, and what an interrupt does to either."""

from __future__ import annotations

import asyncio
import pickle
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from types import FrameType, MethodType, ModuleType, SimpleNamespace
from typing import cast

import pytest
import trio
import trio.testing

from scanner.sync.portal import Portal, _Call, _Run
from tests.support.file_limit import no_more_files


@pytest.fixture
def portal() -> Iterator[Portal]:
    """A loop in a thread, and Ctrl-C as Python has it."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    made = Portal("portal of a test")
    yield made
    made.close()
    signal.signal(signal.SIGINT, previous)


class Manager:
    """Notes what happens to it."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    @asynccontextmanager
    async def plain(self) -> AsyncIterator[int]:
        """One that is entered and left at once."""
        self.seen.append("entered")
        try:
            yield 7
        except Exception:
            self.seen.append("abandoned")
            raise
        self.seen.append("left")

    @asynccontextmanager
    async def endless(self) -> AsyncIterator[int]:
        """One whose entering does not end by itself."""
        await self._wait()
        yield 7

    @asynccontextmanager
    async def stuck_before(self) -> AsyncIterator[int]:
        """Ctrl-C comes while it is being entered, which does not end by itself."""
        await self._be_interrupted()
        yield 7

    @asynccontextmanager
    async def stuck_behind(self) -> AsyncIterator[int]:
        """Ctrl-C comes while it is being left, which does not end by itself."""
        yield 7
        await self._be_interrupted()

    @asynccontextmanager
    async def closing_behind(self, portal: Portal) -> AsyncIterator[int]:
        """Another thread closes the portal while it is being left, which does not end by itself."""
        yield 7
        threading.Thread(target=portal.close).start()
        await self._wait()

    @asynccontextmanager
    async def failing(self, where: str) -> AsyncIterator[int]:
        """One that fails before it is entered, or when it is left."""
        if where == "before":
            raise LookupError(where)
        yield 7
        raise LookupError(where)

    @asynccontextmanager
    async def needed(self) -> AsyncIterator[int]:
        """One that what else is held needs until it is left."""
        try:
            yield 7
        finally:
            self.seen.append("gone")

    @asynccontextmanager
    async def with_last_words(self) -> AsyncIterator[int]:
        """One that has something to say when it is cancelled."""
        try:
            yield 7
        finally:
            with trio.CancelScope(shield=True):
                await trio.testing.wait_all_tasks_blocked()
            self.seen.append("said")

    async def _be_interrupted(self) -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        await self._wait()

    async def _wait(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            self.seen.append("cancelled")


def test_entered_and_left(portal: Portal) -> None:
    """The value is what entering gave; leaving twice is leaving once."""
    manager = Manager()
    held = portal.hold(manager.plain())
    assert (held.value, held.finished, manager.seen) == (7, False, ["entered"])
    held.leave()
    held.leave()
    assert (held.finished, manager.seen) == (True, ["entered", "left"])


def test_finished(portal: Portal) -> None:
    """What is finished is left; a failure of the end is the caller's."""
    manager = Manager()
    held = portal.hold(manager.plain())
    held.finish()
    assert (held.finished, manager.seen) == (True, ["entered", "left"])
    with pytest.raises(LookupError, match="behind"):
        portal.hold(manager.failing("behind")).finish()


def test_abandoned(portal: Portal) -> None:
    """One whose block failed sees an exception, and its own is not the caller's."""
    manager = Manager()
    portal.hold(manager.plain()).leave(abandoned=True)
    assert manager.seen == ["entered", "abandoned"]
    portal.hold(manager.failing("behind")).leave(abandoned=True)


def test_failures_are_the_callers(portal: Portal) -> None:
    """What entering or leaving raises is raised where it was asked for, once."""
    manager = Manager()
    with pytest.raises(LookupError, match="before"):
        portal.hold(manager.failing("before"))
    held = portal.hold(manager.failing("behind"))
    with pytest.raises(LookupError, match="behind"):
        held.leave()
    held.leave()


def test_interrupted_while_it_is_entered(portal: Portal) -> None:
    """Entering is cancelled, and has ended when the interrupt is raised; the portal goes on."""
    manager = Manager()
    with pytest.raises(KeyboardInterrupt):
        portal.hold(manager.stuck_before())
    assert manager.seen == ["cancelled"]
    portal.hold(manager.plain()).leave()


def test_interrupted_while_it_is_left(portal: Portal) -> None:
    """Leaving is cancelled, and has ended when the interrupt is raised."""
    manager = Manager()
    held = portal.hold(manager.stuck_behind())
    with pytest.raises(KeyboardInterrupt):
        held.leave()
    assert (held.finished, manager.seen) == (True, ["cancelled"])


@pytest.mark.parametrize("before", ["soon", "wait"], ids=["it is begun", "the wait"])
def test_interrupted_before(portal: Portal, monkeypatch: pytest.MonkeyPatch, before: str) -> None:
    """It may come before the loop was told, or before the caller waits: what runs is cancelled all the same."""
    manager = Manager()

    def interrupt(*_: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(Portal if before == "soon" else _Call, before, interrupt)
    with pytest.raises(KeyboardInterrupt):
        portal.hold(manager.endless())
    assert manager.seen == ([] if before == "soon" else ["cancelled"])
    portal.hold(manager.plain()).leave()


@pytest.mark.parametrize("where", ["is_own_thread", "soon"])
def test_interrupted_before_the_loop_was_told_to_leave(
    portal: Portal, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """It is left all the same."""
    manager = Manager()
    held = portal.hold(manager.plain())

    def interrupt(*_: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(Portal, where, property(interrupt) if where == "is_own_thread" else interrupt)
    with pytest.raises(KeyboardInterrupt):
        held.leave()
    portal.call(trio.testing.wait_all_tasks_blocked)
    assert (held.finished, manager.seen) == (True, ["entered", "abandoned"])


def test_a_portal_that_closes(portal: Portal) -> None:
    """What is held ends with it, leaving that later is nothing, and nothing more can be held."""
    manager = Manager()
    held = portal.hold(manager.plain())
    portal.close()
    assert held.finished
    held.leave()
    with pytest.raises(trio.ClosedResourceError):
        portal.hold(manager.plain())


def test_what_ends_last(portal: Portal) -> None:
    """What the others need to end well is there until they have ended, in whatever order all was begun."""
    manager = Manager()
    portal.hold(manager.with_last_words())
    portal.hold(manager.needed(), ends_last=True)
    portal.hold(manager.with_last_words())
    portal.close()
    assert manager.seen == ["said", "said", "gone"]


def test_what_is_begun_before_the_portal_closes(portal: Portal) -> None:
    """It comes to its end: nobody else would drop the lease whose caller was interrupted."""
    seen = []

    async def drop() -> None:
        seen.append("begun")
        if len(seen) == 1:
            await trio.sleep_forever()
        await trio.testing.wait_all_tasks_blocked()
        seen.append("dropped")

    portal.begin(drop)
    portal.close()
    assert seen == ["begun", "begun", "dropped"]


def test_what_was_to_be_finished_when_the_portal_closes(portal: Portal) -> None:
    """Who has to know that the end was reached is told that it was not, be it begun or not."""
    manager = Manager()
    held = portal.hold(manager.closing_behind(portal))
    with pytest.raises(trio.ClosedResourceError, match="may not be there"):
        held.finish()
    portal.close()
    assert manager.seen == ["cancelled"]
    closed = Portal("another portal of a test")
    held = closed.hold(manager.plain())
    closed.close()
    with pytest.raises(trio.ClosedResourceError, match="may not be there"):
        held.finish()


class Interjected(set[_Call]):
    """What is pending, into which a signal handler calls once."""

    def __init__(self, handler: Callable[[], object]) -> None:
        super().__init__()
        self._handlers = [handler]

    def add(self, call: _Call, /) -> None:
        """Add a call, once the handler has run."""
        if self._handlers:
            self._handlers.pop()()
        super().add(call)


def test_a_call_of_a_signal_handler_amidst_another(portal: Portal) -> None:
    """The handler runs in the thread that calls, at any moment: neither waits for the other."""
    seen = []

    async def note(what: str) -> None:
        seen.append(what)

    portal._pending = Interjected(lambda: portal.call(note, "the handler's"))
    portal.call(note, "the thread's")
    assert seen == ["the handler's", "the thread's"]
    portal._pending = Interjected(portal.close)
    with pytest.raises(trio.ClosedResourceError):
        portal.call(note, "none")
    assert len(seen) == 2


class NeverReady:
    """A source of nothing."""

    def take_nowait(self) -> None:
        """It is not there yet."""
        raise trio.WouldBlock

    def when_ready(self, callback: Callable[[], None] | None) -> None:
        """It never is."""


@pytest.mark.parametrize("way", ["call", "read", "take"])
@pytest.mark.parametrize("daemon", [False, True])
def test_who_waits_at_exit(portal: Portal, way: str, daemon: bool) -> None:
    """A daemon thread that reads when the interpreter ends is ended silently; others, and who may write, are told."""
    seen: list[type[BaseException]] = []

    def wait() -> None:
        try:
            if way == "take":
                portal.take(NeverReady())
            else:
                getattr(portal, way)(trio.sleep_forever)
        except (SystemExit, trio.ClosedResourceError) as error:
            seen.append(type(error))

    waiting = threading.Thread(target=wait, daemon=daemon)
    waiting.start()
    portal.closed_at_exit = True
    portal.close()
    waiting.join()
    assert seen == [SystemExit if daemon and way != "call" else trio.ClosedResourceError]


def test_a_portal_that_its_own_thread_closes() -> None:
    """The garbage collector runs finalizers in any thread, also those that close a client: no thread is left behind."""
    portal = Portal("another portal of a test")
    manager = Manager()
    held = portal.hold(manager.plain())

    async def close() -> None:
        held.leave()
        portal.close()

    portal.call(close)
    portal._thread.join()
    assert (held.finished, portal._stop is not None and portal._stop.is_set()) == (True, True)


def test_a_call_that_comes_when_the_loop_is_about_to_end(
    portal: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread looked before the portal was closed: it is refused, and the loop ends as it would without it."""
    failures: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", failures.append)
    call = _Run(partial(trio.sleep, 0))
    portal._pending.add(call)

    async def come_late() -> None:
        try:
            await trio.sleep_forever()
        finally:  # What the client runs has ended by then.
            portal.soon(lambda: portal._start(call))

    async def begin() -> None:
        trio.lowlevel.spawn_system_task(come_late)

    portal.call(begin)
    portal.close()
    with pytest.raises(trio.ClosedResourceError, match="closed"):
        call.wait()
    assert failures == []


def test_a_portal_whose_loop_cannot_begin() -> None:
    """Whoever makes it is told why, and not that something is closed."""
    with no_more_files(), pytest.raises(OSError, match="Too many open files"):
        Portal("another portal of a test")


def test_a_portal_whose_thread_cannot_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads are something that a system runs out of, too, and a command tells it in one line."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(OSError, match="can't start new thread: raise the limit of processes"):
        Portal("another portal of a test")


def test_a_portal_that_is_made_while_python_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A finalizer is told so, and waits for no thread, which would never run; nor is it told of the system's limits."""
    monkeypatch.setattr(sys, "is_finalizing", lambda: True)
    monkeypatch.setattr(threading.Thread, "start", lambda _: pytest.fail("a thread was begun"))
    with pytest.raises(RuntimeError, match="Python is ending"):
        Portal("another portal of a test")


def test_a_portal_whose_thread_python_begins_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.12 refuses threads to what runs at exit: that is no limit of the system."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    ended = threading.Thread()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    monkeypatch.setattr(threading, "main_thread", lambda: ended)
    with pytest.raises(RuntimeError, match="Python is ending"):
        Portal("another portal of a test")


@pytest.mark.parametrize("patched", ["threading", "select"])
def test_a_portal_among_greenlets(monkeypatch: pytest.MonkeyPatch, patched: str) -> None:
    """Where gevent has replaced what a thread with a loop is made of, the error says what to patch instead."""
    gevent = SimpleNamespace(is_module_patched=lambda name: name == patched)
    monkeypatch.setitem(sys.modules, "gevent.monkey", cast("ModuleType", gevent))
    monkeypatch.setattr(threading.Thread, "start", lambda _: pytest.fail("a thread was begun"))
    with pytest.raises(RuntimeError, match=r"monkey\.patch_all\(thread=False, select=False\)"):
        Portal("another portal of a test")


@pytest.mark.parametrize(
    "error",
    [
        SystemExit("3"),
        KeyboardInterrupt("3"),
        asyncio.CancelledError("3"),
        pytest.fail.Exception("3"),
        BaseExceptionGroup("3", [KeyboardInterrupt()]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_callback_that_ends_the_program(portal: Portal, error: BaseException) -> None:
    """What ends a program, a task or a test is raised in the thread that called, and the client goes on."""

    async def call_back() -> None:
        raise error

    @asynccontextmanager
    async def called_back_at_the_end() -> AsyncIterator[None]:
        yield
        raise error

    with pytest.raises(type(error), match="3"):
        portal.call(call_back)
    held = portal.hold(called_back_at_the_end())
    with pytest.raises(type(error), match="3"):
        held.finish()
    portal.call(trio.lowlevel.checkpoint)


def test_a_portal_for_another_process(portal: Portal) -> None:
    """What belongs to a client cannot be pickled, as multiprocessing does, and the error says what can be sent."""
    with pytest.raises(TypeError, match=r"send a scan's plan .* run client\.scan\(plan\)"):
        pickle.dumps(portal)


@pytest.mark.parametrize("begun", [False, True])
def test_interrupted_while_its_loop_begins(monkeypatch: pytest.MonkeyPatch, begun: bool) -> None:
    """Nobody has the portal then: its thread ends by itself, whether its loop runs already or has yet to begin."""
    run, portals, may_begin = trio.run, list[Portal](), threading.Event()

    def run_later(main: Callable[[], Awaitable[None]]) -> None:
        may_begin.wait()
        run(main)

    class Thread(threading.Thread):
        """Is interrupted behind its start, where its portal would wait for the loop."""

        def __init__(self, *, target: MethodType, name: str, daemon: bool) -> None:
            super().__init__(target=target, name=name, daemon=daemon)
            assert isinstance(target.__self__, Portal)
            portals.append(target.__self__)

        def start(self) -> None:
            super().start()
            if begun:
                may_begin.set()
                with portals[0]._running:  # Given back when the loop has begun.
                    pass
            raise KeyboardInterrupt

    monkeypatch.setattr(trio, "run", run_later)
    monkeypatch.setattr(threading, "Thread", Thread)
    with pytest.raises(KeyboardInterrupt):
        Portal("another portal of a test")
    may_begin.set()
    assert portals[0]._closed
    portals[0]._thread.join()


def test_interrupted_in_the_handshake_of_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own event makes a RuntimeError of an interrupt that comes when it has given its lock back."""

    def start(_: threading.Thread) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            threading.Lock().release()

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(KeyboardInterrupt):
        Portal("another portal of a test")


def test_interrupted_within_the_wait_for_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever function in C it came behind: no event is waited for, which would lose its lock."""
    run, may_begin = trio.run, threading.Event()

    def run_later(main: Callable[[], Awaitable[None]]) -> None:
        may_begin.wait()
        run(main)

    def on_event(frame: FrameType, event: str, _: object) -> None:
        if event == "c_return" and frame.f_code.co_name in ("_wait_released", "_release_save"):
            sys.setprofile(None)
            raise KeyboardInterrupt

    class Thread(threading.Thread):
        def start(self) -> None:
            super().start()
            sys.setprofile(on_event)

    monkeypatch.setattr(trio, "run", run_later)
    monkeypatch.setattr(threading, "Thread", Thread)
    monkeypatch.setattr("scanner.sync.portal._SIGNALS_SEEN_S", 0)
    try:
        with pytest.raises(KeyboardInterrupt):
            Portal("another portal of a test")
    finally:
        sys.setprofile(None)
        may_begin.set()
