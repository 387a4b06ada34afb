"""How a command that prints for ever is ended while it writes."""

from __future__ import annotations

import fcntl
import os
import signal

import pytest

from scanner.cli.descriptors import raise_files_limit
from scanner.cli.ending import Ending
from scanner.cli.signals import Ended

MUCH = bytes(1 << 20)
"""More than a pipe takes."""


def test_a_reader_that_stops_after_the_signal_is_not_waited_for() -> None:
    """There was room when Ctrl-C came, so the lines went on; then there was none, and nobody reads any more."""
    reading, writing = os.pipe()
    try:
        with pytest.raises(Ended, match="interrupted"), open(writing, "wb", buffering=0) as out, Ending(out):
            signal.raise_signal(signal.SIGINT)
            while True:
                out.write(MUCH)
    finally:
        os.close(reading)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.parametrize("lowest", [0, 1024])
def test_lines_that_are_read_are_written_whole(lowest: int) -> None:
    """A signal waits for the next moment at which nothing is half written; also with a thousand files open."""
    assert raise_files_limit() > 1024
    reading, low = os.pipe()
    writing = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, lowest)
    os.close(low)
    try:
        with (
            pytest.raises(Ended, match="interrupted"),
            open(writing, "wb", buffering=0) as out,
            Ending(out) as ending,
        ):
            signal.raise_signal(signal.SIGINT)
            out.write(b"a line\n")
            with ending.at_once():
                pytest.fail("the signal was forgotten")
        assert os.read(reading, 100) == b"a line\n"
    finally:
        os.close(reading)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_hangup_that_is_ignored_ends_nothing() -> None:
    """As after `nohup`."""
    reading, writing = os.pipe()
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with open(writing, "wb", buffering=0) as out, Ending(out) as ending, ending.at_once():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
        os.close(reading)
