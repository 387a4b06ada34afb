"""How Ctrl-C, SIGTERM and SIGHUP end a command, and when at once; one that prints for ever is ended by `ending`."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, NoReturn

import click

from scanner.cli.waiting import takes_more

if TYPE_CHECKING:
    from types import FrameType

_ENDED: Final = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}
_last_signal = signal.SIGINT
"""What the KeyboardInterrupt stands for that a signal made."""


class Ended(click.ClickException):
    """A signal, such as Ctrl-C, has ended the command; the exit code is that of a process that it ended."""

    def __init__(self, number: signal.Signals = signal.SIGINT) -> None:
        super().__init__(_ENDED[number])
        self.number = number
        self.exit_code = 128 + number  # type: ignore[misc]  # Click has one for each class.


def ended(number: int | None = None) -> Ended:
    """How a command ends by a signal; by default the one that made the last KeyboardInterrupt."""
    return Ended(signal.Signals(_last_signal if number is None else number))


@contextmanager
def ended_in_good_order() -> Iterator[None]:
    """Let SIGTERM and SIGHUP do what Ctrl-C does, so that a command removes what it has half made; then `ended`.

    Ctrl-C itself raises KeyboardInterrupt here, also after `end_at_once`.

    A signal that the process ignores, as after `nohup`, stays ignored. The second SIGHUP is: a shell that goes sends
    one after the kernel's.
    """
    global _last_signal
    _last_signal = signal.SIGINT
    if threading.current_thread() is not threading.main_thread():
        yield  # Signals are for the main thread alone.
        return
    before = {number: signal.getsignal(number) for number in _ENDED}
    taken: dict[signal.Signals, Callable[[int, FrameType | None], None]] = {
        number: _interrupt for number in (signal.SIGTERM, signal.SIGHUP) if before[number] == signal.SIG_DFL
    }
    if before[signal.SIGINT] == _end_interrupted:
        taken[signal.SIGINT] = signal.default_int_handler
    for number, handler in taken.items():
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, before[number])


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Do what SIGINT does at this moment."""
    global _last_signal
    if number == signal.SIGHUP == _last_signal:
        return
    _last_signal = signal.Signals(number)
    handler = signal.getsignal(signal.SIGINT)
    (handler if callable(handler) else signal.default_int_handler)(signal.SIGINT, frame)


@contextmanager
def interrupted_at_once() -> Iterator[None]:
    """Let a signal end the process in the middle of an import, which may answer an exception with one of its own.

    And Python remembers a KeyboardInterrupt that has left an `exec` of text, as of the methods of a dataclass: whatever
    becomes of it, SIGINT then ends the process in place of the exit code.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Signals are for the main thread alone.
        return
    before = signal.getsignal(signal.SIGINT)
    end_at_once()
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def end_at_once() -> None:
    """Let Ctrl-C end the process where nothing has to be removed, unless the process ignores it."""
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, _end_interrupted)


def _end_interrupted(*_: object) -> NoReturn:
    end_now()


def end_now(number: int | None = None) -> NoReturn:
    """End the process here, as by `ended`: nothing is finished, removed or closed."""
    error = ended(number)
    with suppress(OSError):  # Nobody takes it, as on a full disk; the exit code says it, too.
        if takes_more(2):
            os.write(2, f"weir: {error.message}\n".encode())
    os._exit(error.exit_code)
