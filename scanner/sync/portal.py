"""A trio loop in a thread of its own, for callers that block. Private to `scanner.sync`.

Invariants:

1. Every call that was accepted ends: with its result, its exception, or `ClosedResourceError` once the portal closes.
2. An exception of a call is raised in the thread that called, with its cause.
3. A caller interrupted while it waits (KeyboardInterrupt) cancels its call and waits for its end before it goes on.
4. Nothing is handed over that nobody waits for: the portal keeps no results, so it holds no more than its calls do.
5. No thread holds a lock here: a signal handler or a finalizer may call amidst a call of its own thread, and a process
   may be forked at any moment.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Generic, NoReturn, ParamSpec, Protocol, TypeVar, cast

import trio

from scanner.client.connection import NOT_PICKLED

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_CLOSED = "the client is closed; connect again"
_CUT_OFF = "the client was closed before the end of the block; what was written in it may not be there"
_INTERRUPTED = "the call was interrupted"
_GREENLETS = (
    "gevent has patched threads or select, which this client needs as they are; patch the rest,"
    " monkey.patch_all(thread=False, select=False), and call the client in gevent.get_hub().threadpool"
)
_ENDING = "Python is ending and begins no thread any more; connect earlier"
_SIGNALS_SEEN_S = 0.5
_LAST_WORDS_S = 5.0
_open_portals: weakref.WeakSet[Portal] = weakref.WeakSet()


class Takeable(Protocol[T_co]):
    """What has one thing after another to take."""

    def take_nowait(self) -> T_co:
        """The next thing. Raises trio.WouldBlock: it is not there yet."""

    def when_ready(self, callback: Callable[[], None] | None) -> None:
        """Have a function called once, as soon as there may be something to take; None: nobody waits any more."""


class _Call(ABC):
    """Something that a caller waits for, and its place to wait. For each way of doing it there is a subclass."""

    ends_last = False
    """Whether it runs until everything else of the portal has ended."""

    def __init__(self) -> None:
        self.begun = False
        self.done = False
        """Whether it has ended, and `wait` would return at once."""
        # A lock and not an event: each batch of a scan is a call, and an event is made of two locks and a queue.
        self._running = threading.Lock()
        self._running.acquire()
        self._value: object = None
        self._error: BaseException | None = None

    @abstractmethod
    def begin(self, nursery: trio.Nursery) -> None:
        """Begin it; called in the loop."""

    @abstractmethod
    def cancel(self) -> None:
        """End it soon, unless it is done; called in the loop."""

    def refuse(self) -> None:
        if not self.done:
            self._error = trio.ClosedResourceError(_CLOSED)
            self._finish()

    def _finish(self) -> None:
        self.done = True
        self._running.release()

    def wait(self) -> object:
        self.wait_ended()
        if self._error is not None:
            try:
                raise self._error
            finally:
                del self  # Else the traceback would hold the call, which holds the traceback.
        return self._value

    def wait_ended(self) -> None:
        """Wait for the end alone, whatever came of it."""
        _wait_released(self._running)


def _wait_released(lock: threading.Lock) -> None:
    # Not in one piece: a signal that another thread got, or that came just before the lock was waited for, does not end
    # the wait, and its handler runs in this thread only. And no event, of which an interrupt can make a RuntimeError.
    while not lock.acquire(timeout=_SIGNALS_SEEN_S):
        pass


async def _to_the_end(function: Callable[[], Awaitable[object]]) -> None:
    try:
        await function()
    except trio.Cancelled:
        with trio.move_on_after(_LAST_WORDS_S, shield=True):
            await function()
        raise


def _has_cancelled(error: BaseException) -> bool:
    return isinstance(error, BaseExceptionGroup) and error.subgroup(trio.Cancelled) is not None


class _Run(_Call):
    """Runs a function in a task of its own."""

    def __init__(self, function: Callable[[], Awaitable[object]]) -> None:
        super().__init__()
        self._function = function
        self._scope = trio.CancelScope()

    def begin(self, nursery: trio.Nursery) -> None:
        nursery.start_soon(self._run)

    def cancel(self) -> None:
        self._scope.cancel()

    async def _run(self) -> None:
        try:
            with self._scope:
                self._value = await self._function()
            if self._scope.cancelled_caught:
                self._error = trio.ClosedResourceError(_INTERRUPTED)
        except (trio.Cancelled, GeneratorExit):  # The loop ends.
            self._error = trio.ClosedResourceError(_CLOSED)
            raise
        except BaseException as error:  # Also a callback's own, such as SystemExit.
            if _has_cancelled(error):  # The loop ends, and a nursery was open.
                self._error = trio.ClosedResourceError(_CLOSED)
                raise
            self._error = error
        finally:
            self._finish()


class _Enter(_Call):
    """Enters what is held, in the task that keeps it entered: two rounds of the loop less than from one of its own."""

    def __init__(self, held: Held[Any], *, ends_last: bool) -> None:
        super().__init__()
        self._held = held
        self.ends_last = ends_last

    def begin(self, nursery: trio.Nursery) -> None:
        nursery.start_soon(self._held.run, self)

    def cancel(self) -> None:
        self._held.cancel()

    def entered(self, value: object) -> None:
        self._value = value
        self._finish()

    def failed(self, error: BaseException) -> None:
        if not self.done:
            self._error = error
            self._finish()


class _Leave(_Call):
    """Leaves what is held, and waits for its end."""

    def __init__(self, held: Held[Any], *, abandoned: bool) -> None:
        super().__init__()
        self._held = held
        self._abandoned = abandoned

    def begin(self, nursery: trio.Nursery) -> None:
        self._held.begin_leave(abandoned=self._abandoned, leaving=self)

    def cancel(self) -> None:
        self._held.cancel()

    def left(self, error: BaseException | None) -> None:
        if not self.done:
            self._error = None if self._abandoned else error
            self._finish()


class _Take(_Call):
    """Takes one thing, without a task of its own: three rounds of the loop less."""

    def __init__(self, source: Takeable[object]) -> None:
        super().__init__()
        self._source = source

    def begin(self, nursery: trio.Nursery | None = None) -> None:
        try:
            self._value = self._source.take_nowait()
        except trio.WouldBlock:
            self._source.when_ready(self.begin)
            return
        except Exception as error:
            self._error = error
        self._finish()

    def cancel(self) -> None:
        if not self.done:
            self._source.when_ready(None)
            self._error = trio.ClosedResourceError(_INTERRUPTED)
            self._finish()


class Portal:
    """Runs asynchronous functions for blocking callers, from any number of threads.

    Args:
        name: Of the thread.

    Raises:
        OSError: The system has no room for its thread or its loop, such as for files.
        RuntimeError: The interpreter is ending, as in a finalizer of a module's objects; or gevent has patched what
            threads are made of.

    Cancellation:
        An exception that hits the waiting thread, such as KeyboardInterrupt, ends the thread that was begun.
    """

    def __init__(self, name: str) -> None:
        self.closed_at_exit = False
        """Whether the end of the interpreter closes it, and not its user."""
        self._pending: set[_Call] = set()
        self._undos: set[Callable[[], Awaitable[object]]] = set()
        """Of calls whose results nobody has yet. Whoever takes one out, the caller or the loop, decides what becomes of
        the result."""
        self._closed = False
        self._process = os.getpid()
        self._running = threading.Lock()
        """Held until the loop has begun, or has not."""
        self._running.acquire()
        self._failure: Exception | None = None
        """Why the loop did not begin."""
        self._token: trio.lowlevel.TrioToken | None = None
        self._stop: trio.Event | None = None
        self._nursery: trio.Nursery | None = None
        self._last: trio.Nursery | None = None
        """Around the other one: what runs in it ends behind what runs there."""
        # A daemon, so that a client nobody closed does not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            self._start_thread()
            _wait_released(self._running)
        except BaseException:  # An interrupt: nobody will know of this portal, nor close it.
            self._give_up()
            raise
        if self._failure is not None:
            raise self._failure
        _open_portals.add(self)

    def __reduce__(self) -> NoReturn:
        raise TypeError(NOT_PICKLED)

    def _start_thread(self) -> None:
        monkey = sys.modules.get("gevent.monkey")
        if monkey is not None and any(map(monkey.is_module_patched, ("threading", "select"))):
            raise RuntimeError(_GREENLETS)
        if sys.is_finalizing():  # Python 3.11 begins one all the same, which never runs, and waits for it.
            raise RuntimeError(_ENDING)
        try:
            self._thread.start()
        except RuntimeError as error:  # Python's word for EAGAIN here
            if isinstance(error.__context__, KeyboardInterrupt):
                raise error.__context__ from None  # Python's own event has lost its lock to it.
            if not threading.main_thread().is_alive():  # Python 3.12 begins none at exit, either.
                raise RuntimeError(_ENDING) from error
            raise OSError(
                f"{error}: raise the limit of processes (ulimit -u), or make room in memory"
            ) from error

    @property
    def is_forked(self) -> bool:
        """Whether the caller runs in a process that was forked from the portal's, which has no thread of it."""
        return os.getpid() != self._process

    @property
    def is_own_thread(self) -> bool:
        """Whether the caller runs in the portal's thread."""
        return threading.current_thread() is self._thread

    def call(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `function(*args, **kwargs)` in the loop and wait for it.

        Raises:
            trio.ClosedResourceError: The portal is closed, or is closed meanwhile.
            RuntimeError: The caller is the loop itself, or another process than the portal's.
            Exception: Whatever the function raises.

        Waits:
            For the function, blocking the thread.

        Cancellation:
            An exception that hits the waiting thread, such as KeyboardInterrupt, cancels the function.
        """
        return cast("T", self._wait_for(_Run(functools.partial(function, *args, **kwargs))))

    def read(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """As `call`, for what only reads.

        Raises:
            SystemExit: The interpreter is ending, and this is a daemon thread.
        """
        return cast("T", self._wait_to_read(_Run(functools.partial(function, *args, **kwargs))))

    def call_or_undo(self, function: Callable[[], Awaitable[T]], undo: Callable[[], Awaitable[object]]) -> T:
        """As `call`; if the portal is closed before the caller has the result, what was done is undone.

        Args:
            function: Is run.
            undo: Has some seconds, and raises nothing. Called also where the function did nothing.
        """
        self._undos.add(undo)
        try:
            result = self.call(function)
        except BaseException:
            self._undos.discard(undo)
            raise
        if not self._closed:  # What closes later finds it taken out.
            with suppress(KeyError):
                self._undos.remove(undo)
                return result
        raise trio.ClosedResourceError(_CLOSED)

    def begin(self, function: Callable[[], Awaitable[object]]) -> None:
        """Run `function` in the loop, and do not wait for it; nobody learns how it ends. From any thread.

        Args:
            function: Idempotent. If the portal is closed meanwhile, it is called again, and has some seconds.
        """
        self.soon(lambda: self._start(_Run(functools.partial(_to_the_end, function))))

    def take(self, source: Takeable[T]) -> T:
        """Wait until `source` has something, and take it. Otherwise as `read`.

        Cancellation:
            An exception that hits the waiting thread ends the wait; what was taken by then is lost, unless the source
            keeps it.
        """
        return cast("T", self._wait_to_read(_Take(source)))

    def _wait_to_read(self, call: _Call) -> object:
        try:
            return self._wait_for(call)
        except trio.ClosedResourceError:
            if self.closed_at_exit and threading.current_thread().daemon:
                # Python ends its daemons without a word. Nothing is lost with a reader, so it gets no traceback.
                raise SystemExit from None
            raise

    def _wait_for(self, call: _Call) -> object:
        if self.is_own_thread:
            raise RuntimeError("a callback of this client cannot call it: it would wait for itself")
        if self.is_forked:
            raise RuntimeError("this client belongs to the process that forked this one; connect again here")
        self._pending.add(call)
        if self._closed:  # Looked at after it was added: what closes later refuses what is pending.
            self._pending.discard(call)
            raise trio.ClosedResourceError(_CLOSED)
        try:
            self.soon(lambda: self._start(call))
            return call.wait()
        except BaseException:
            if not call.done:  # An interrupt, which may have come before the call was begun.
                self.soon(lambda: self._end(call))
                call.wait_ended()
            raise
        finally:
            self._pending.discard(call)

    def hold(self, manager: AbstractAsyncContextManager[T], *, ends_last: bool = False) -> Held[T]:
        """Enter an asynchronous context manager, and keep it entered until `Held.leave`.

        Args:
            manager: Not entered yet.
            ends_last: What else runs needs it to end well, so that it is left last when the portal closes.

        Raises:
            Exception: Whatever entering it raises.
        """
        held = Held(self, manager)
        try:
            held.value = cast("T", self._wait_for(_Enter(held, ends_last=ends_last)))
        except BaseException:
            # An interrupt may come when it is entered already, and then nobody else would leave it.
            self.soon(functools.partial(held.begin_leave, abandoned=True))
            raise
        return held

    def leave(self, held: Held[Any], *, abandoned: bool) -> None:
        """Leave what is held; see `Held.leave`."""
        self._wait_for(_Leave(held, abandoned=abandoned))

    def close(self) -> None:
        """Cancel everything that runs and end the thread. Idempotent; in a forked process there is nothing to end.

        What was held with `ends_last` is there until all else has ended, such as a lease that is dropped by its block.

        Waits:
            For the end of the thread; not in the thread itself, where a callback or a finalizer may call this.
        """
        if self.is_forked:
            return
        self._closed = True
        self.soon(self._begin_stop)
        if not self.is_own_thread:
            self._thread.join()

    def soon(self, function: Callable[[], object]) -> None:
        """Have a function that does not block called in the loop; from any thread, also amidst garbage collection.

        In a process that was forked from the portal's, nothing is called.
        """
        if self.is_forked:
            return
        assert self._token is not None
        with suppress(trio.RunFinishedError):  # Then `_run` has refused what is pending.
            self._token.run_sync_soon(function)

    def _start(self, call: _Call) -> None:
        nursery = self._last if call.ends_last else self._nursery
        assert nursery is not None
        assert self._stop is not None
        call.begun = True
        if self._stop.is_set():  # The nursery takes no task any more.
            call.refuse()
        else:
            call.begin(nursery)

    def _end(self, call: _Call) -> None:
        if call.begun:
            call.cancel()
        else:
            call.refuse()

    def _give_up(self) -> None:
        """End the loop, or have it end as soon as it begins."""
        self._closed = True
        if self._token is not None:
            self.soon(self._begin_stop)

    def _begin_stop(self) -> None:
        assert self._stop is not None
        self._stop.set()

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except Exception as error:
            if self._nursery is not None:
                raise
            self._failure = error
        finally:
            self._closed = True
            with suppress(KeyError):
                while True:  # Callers take theirs out meanwhile.
                    self._pending.pop().refuse()
            if self._nursery is None:
                self._running.release()

    async def _main(self) -> None:
        self._stop = trio.Event()
        self._token = trio.lowlevel.current_trio_token()
        if self._closed:  # Looked at after the token is there: who gives up later uses that.
            return
        async with trio.open_nursery() as self._last:
            async with trio.open_nursery() as self._nursery:
                self._running.release()
                await self._stop.wait()
                self._nursery.cancel_scope.cancel()
            with trio.move_on_after(_LAST_WORDS_S), suppress(KeyError):
                while True:  # Callers take theirs out meanwhile.
                    await self._undos.pop()()
            self._last.cancel_scope.cancel()


class _AbandonedError(Exception):
    """Leaves a held context as an exception of its block would."""


class Held(Generic[T]):
    """An asynchronous context manager that a task of the portal keeps entered.

    Args:
        portal: Runs the task.
        manager: Not entered yet.
    """

    value: T
    """What entering gave."""

    def __init__(self, portal: Portal, manager: AbstractAsyncContextManager[T]) -> None:
        self._portal = portal
        self._manager = manager
        self._scope = trio.CancelScope()
        self._leave = trio.Event()
        self._leaving: _Leave | None = None
        self.finished = False
        """Whether it was left, or was never entered."""
        self._abandoned = False
        self._left = False
        self._error: BaseException | None = None

    def leave(self, *, abandoned: bool = False) -> None:
        """Leave the context manager. Idempotent; after the portal is closed there is nothing to leave.

        Args:
            abandoned: Whether an exception ended the block.

        Raises:
            RuntimeError: This is a forked process, and the block has ended well.
            Exception: Whatever leaving it raises, unless it was abandoned.

        Waits:
            For its end; not in the portal's own thread, where that comes later.
        """
        if abandoned and self._portal.is_forked:
            return  # Such as SystemExit, which ends the child: what is held is the parent's.
        with suppress(trio.ClosedResourceError):
            self._leave_once(abandoned=abandoned)

    def finish(self) -> None:
        """Leave the context manager, where nothing of the block counts as done before that.

        Raises:
            trio.ClosedResourceError: The portal was closed before the end.
            Exception: Whatever leaving it raises.

        Waits:
            For its end.
        """
        try:
            self._leave_once(abandoned=False)
        except trio.ClosedResourceError as error:
            raise trio.ClosedResourceError(_CUT_OFF) from error

    def _leave_once(self, *, abandoned: bool) -> None:
        if self._left:
            return
        try:
            self._left = True
            if self._portal.is_own_thread:
                # The garbage collector closes a generator that nobody kept in whatever thread it happens to run.
                self._portal.soon(functools.partial(self.begin_leave, abandoned=abandoned))
            else:
                self._portal.leave(self, abandoned=abandoned)
        except BaseException:
            # An interrupt may come before the loop was told, and nobody would leave it a second time.
            self.leave_soon()
            raise

    def leave_soon(self) -> None:
        """Leave after an exception, and do not wait for it; from any thread, also amidst garbage collection."""
        self._left = True
        self._portal.soon(functools.partial(self.begin_leave, abandoned=True))

    def begin_leave(self, *, abandoned: bool, leaving: _Leave | None = None) -> None:
        """Leave, and do not wait for it; in the portal's thread.

        Args:
            abandoned: Whether an exception ended the block.
            leaving: Is told of the end.
        """
        self._abandoned = abandoned
        self._leaving = leaving or self._leaving  # Who waits goes on waiting, whoever else leaves.
        self._leave.set()
        if self.finished:
            self._tell_left()

    def cancel(self) -> None:
        """End it soon, wherever it is; in the portal's thread."""
        self._scope.cancel()

    async def run(self, entering: _Enter) -> None:
        """Enter, wait for `leave`, leave; the portal's task for this."""
        try:
            with self._scope:
                async with self._manager as value:
                    entering.entered(value)
                    await self._leave.wait()
                    if self._abandoned:
                        raise _AbandonedError
        except _AbandonedError:
            pass
        except (trio.Cancelled, GeneratorExit):  # The loop ends.
            self._error = trio.ClosedResourceError(_CLOSED)
            raise
        except BaseException as error:  # Also a callback's own, such as SystemExit.
            if _has_cancelled(error):  # The loop ends, and a nursery was open.
                self._error = trio.ClosedResourceError(_CLOSED)
                raise
            self._error = error
            entering.failed(error)
        finally:
            entering.refuse()
            self.finished = True
            self._tell_left()

    def _tell_left(self) -> None:
        if self._leaving is not None:
            self._leaving.left(self._error)


@atexit.register
def _close_open_portals() -> None:
    # Daemon threads stop running when the interpreter ends; whoever called after that would wait for ever.
    portals = list(_open_portals)
    for portal in portals:
        portal.closed_at_exit = True
        portal._give_up()  # All at once: each may have something to say to a server that does not answer.
    for portal in portals:
        portal.close()
