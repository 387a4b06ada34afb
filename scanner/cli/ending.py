"""How a command that prints for ever is ended: by Ctrl-C, SIGTERM or SIGHUP, or because nobody reads its output.

Invariants:

1. A signal ends a wait at once. It does not cut lines that are being written, unless their reader has stopped reading
   or the signal comes again. Whether it has stopped is looked at now and then until the lines are written: it may stop
   after the signal, with a line half written.
2. A pipe whose reader has gone ends the command though nothing is written.
"""

from __future__ import annotations

import os
import select
import signal
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Final, NoReturn, Self

from scanner.cli.app import OutputClosed
from scanner.cli.signals import ended
from scanner.cli.waiting import takes_more

if TYPE_CHECKING:
    from collections.abc import Callable

    import click


_LOOK_AGAIN_S: Final = 0.5
"""How often a reader is asked for, once the command is to end."""


class Ending:
    """Turns what ends a command into an exception, at a moment that suits. A context manager, for the main thread.

    In another thread there are no signals, and nothing is done.

    Args:
        output: What the command writes to.
    """

    def __init__(self, output: IO[bytes]) -> None:
        self._descriptor = output.fileno()
        self._error: click.ClickException | None = None
        self._reader_gone = False
        self._waiting = False
        self._before: dict[signal.Signals, Any] = {}
        self._stop_watching: Callable[[], None] = lambda: None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                    continue  # As nohup wants it.
                self._before[number] = signal.signal(number, self._end)
            self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._look_again)
            self._stop_watching = _watch_reader(self._descriptor, self._on_reader_gone)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop_watching()
        if self._before:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Around a wait: here a signal raises, and one that came before does.

        Raises:
            Ended: SIGINT (Ctrl-C), SIGTERM or SIGHUP.
            OutputClosed: Nobody reads the output any more.
        """
        self._waiting = True
        try:
            if self._error is not None:
                self._raise(self._error)
            yield
        finally:
            self._waiting = False

    def _end(self, number: int, _: object) -> None:
        again = self._error is not None
        if self._reader_gone:
            self._error = OutputClosed()
        else:
            self._error = ended(number)
        if self._waiting or again or not takes_more(self._descriptor):
            self._raise(self._error)
        signal.setitimer(signal.ITIMER_REAL, _LOOK_AGAIN_S, _LOOK_AGAIN_S)

    def _look_again(self, _number: int, _: object) -> None:
        if self._error is not None and not takes_more(self._descriptor):
            self._raise(self._error)

    def _raise(self, error: click.ClickException) -> NoReturn:
        """End the command, and let nothing cut in on how it ends."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise error

    def _on_reader_gone(self) -> None:
        self._reader_gone = True
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def _watch_reader(descriptor: int, on_gone: Callable[[], None]) -> Callable[[], None]:
    """Call `on_gone`, in another thread, when the other end of a pipe is closed.

    Returns:
        Ends the watch, and returns when it has ended.
    """
    mode = os.fstat(descriptor).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return lambda: None
    ours, theirs = os.pipe()

    def watch() -> None:
        poll = select.poll()
        poll.register(descriptor, 0)  # Errors are told without being asked for.
        poll.register(ours, 0)
        if any(found == descriptor for found, _ in poll.poll()):
            on_gone()

    thread = threading.Thread(target=watch, name="weir output", daemon=True)
    thread.start()

    def stop() -> None:
        os.close(theirs)
        thread.join()
        os.close(ours)

    return stop
