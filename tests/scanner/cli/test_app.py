"""The `weir` command itself: what it lists is what there is."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pytest
from click.shell_completion import BashComplete
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.progress import Progress

import scanner.cli.app
from scanner.cli.app import OneLineGroup, names, note, shown_names, weir
from scanner.cli.destination import written
from scanner.cli.signals import Ended, interrupted_at_once
from scanner.extras import ExtraMissing


def test_every_command_is_where_the_list_says() -> None:
    """Each name leads to the command of that name, and each has a line of help."""
    context = click.Context(weir)
    names = weir.list_commands(context)
    assert {"serve", "load", "scan", "adopt", "add-column"} < set(names)
    for name in names:
        command = weir.get_command(context, name)
        assert command is not None
        assert command.name == name
        assert command.help
    assert weir.get_command(context, "nonsense") is None


@pytest.mark.parametrize(
    ("words", "incomplete", "offered"),
    [
        ([], "le", ["leases"]),
        ([], "s", ["scan", "serve", "snapshots", "sql", "streams"]),
        (["leases"], "", ["acquire", "drop", "list", "release", "renew"]),
        (["leases"], "--t", ["--table", "--tls-ca", "--tls-cert", "--tls-key", "--token-file"]),
        (["leases", "--json"], "--ta", ["--table"]),
        (["serve"], "--da", []),
    ],
)
def test_completion_where_an_extra_is_missing(
    monkeypatch: pytest.MonkeyPatch, words: list[str], incomplete: str, offered: list[str]
) -> None:
    """A shell gets all names; of a command that cannot be imported no options, and no error."""

    @contextmanager
    def needed(name: str) -> Iterator[None]:
        if name == "weir serve":
            raise ExtraMissing("a store on the disk needs rocksdict, which is not installed")
        yield

    monkeypatch.setattr(scanner.cli.app, "extras_needed", needed)
    complete = BashComplete(weir, {}, "weir", "_WEIR_COMPLETE")
    assert [each.value for each in complete.get_completions(words, incomplete)] == offered


def test_a_note_stands_above_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is told while a bar is drawn gets a line of its own, and not the rest of the bar's."""
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(shown, "utf-8", write_through=True))
    with Progress(console=Console(stderr=True, force_terminal=True, width=60)) as progress:
        progress.add_task("loading", total=10)
        progress.refresh()
        note("the server is gone")
    assert b"\r\x1b[2Kthe server is gone\n" in shown.getvalue()


def test_without_docstrings_a_command_says_what_it_does() -> None:
    """Its help is what the group's help says of it."""
    command = [sys.executable, "-OO", "-m", "scanner.cli", "scan", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert shown.startswith("Usage: weir scan [OPTIONS] TABLE\n\n  Read a table.\n\nOptions:\n")


def test_help_fits_a_terminal() -> None:
    """The help of every command fits 80 columns, its examples included."""

    def walk(command: click.Command, context: click.Context) -> None:
        assert [line for line in command.get_help(context).splitlines() if len(line) > 80] == []
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                assert f"\n  {name} " in command.get_help(context)
                walk(inner, click.Context(inner, info_name=name, parent=context, terminal_width=80))

    # A command keeps the help option that it first had, for whoever asks next.
    walk(weir, click.Context(weir, info_name="weir", terminal_width=80, **weir.context_settings))


@contextmanager
def handled(number: signal.Signals, handler: signal.Handlers) -> Iterator[None]:
    """A process that was started with this handler of a signal."""
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        assert signal.signal(number, before) == handler


def invoke(body: Callable[[], object]) -> None:
    """Run a command that does this."""
    group = OneLineGroup("group")
    group.command("do")(body)
    group.main(["do"], standalone_mode=False)


def test_terminated_where_ctrl_c_raises_nothing() -> None:
    """In a process that has made SIGINT what it is elsewhere SIGTERM ends a command in good order as well."""
    with handled(signal.SIGINT, signal.SIG_DFL), handled(signal.SIGTERM, signal.SIG_DFL):
        with pytest.raises(Ended, match="terminated"):
            invoke(lambda: signal.raise_signal(signal.SIGTERM))


@pytest.mark.parametrize(
    ("number", "said", "code"),
    [
        (signal.SIGINT, "interrupted", 130),
        (signal.SIGTERM, "terminated", 143),
        (signal.SIGHUP, "hung up", 129),
    ],
)
def test_a_signal_leaves_nothing_half_made(
    tmp_path: Path, number: signal.Signals, said: str, code: int
) -> None:
    """Whichever ends a command, it cleans up behind itself; the exit code tells which it was."""

    def write() -> None:
        with written(tmp_path / "out") as file:
            file.write(b"half")
            signal.raise_signal(number)

    with handled(signal.SIGTERM, signal.SIG_DFL), handled(signal.SIGHUP, signal.SIG_DFL):
        with pytest.raises(Ended, match=said) as caught:
            invoke(write)
    assert caught.value.exit_code == code
    assert list(tmp_path.iterdir()) == []


def test_interrupted_while_a_bar_begins(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cursor of the terminal is shown again."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("scanner.cli.app.is_terminal", lambda: True)

    def draw() -> None:
        Console(stderr=True).show_cursor(False)
        raise KeyboardInterrupt

    with pytest.raises(Ended, match="interrupted"):
        invoke(draw)
    assert capfd.readouterr().err == "\x1b[?25l\x1b[?25h"


def test_interrupted_where_a_condition_waits() -> None:
    """Python makes a RuntimeError of it, where that has given its lock back; other ones are bugs."""

    def interrupted() -> None:
        try:
            raise KeyboardInterrupt
        finally:
            threading.Lock().release()

    with pytest.raises(Ended, match="interrupted"):
        invoke(interrupted)
    with pytest.raises(RuntimeError, match="release unlocked lock"):
        invoke(lambda: threading.Lock().release())


def test_a_second_hangup_does_not_disturb_the_end() -> None:
    """A shell that goes sends one behind the kernel's."""
    done = []

    def write() -> None:
        try:
            signal.raise_signal(signal.SIGHUP)
        finally:
            signal.raise_signal(signal.SIGHUP)
            done.append(True)

    with handled(signal.SIGHUP, signal.SIG_DFL), pytest.raises(Ended, match="hung up"):
        invoke(write)
    assert done == [True]


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    """As after `nohup`, or SIGINT of what a script runs behind itself."""
    with handled(signal.SIGHUP, signal.SIG_IGN):
        invoke(lambda: signal.raise_signal(signal.SIGHUP))
    with handled(signal.SIGINT, signal.SIG_IGN), interrupted_at_once():
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, []),
        (" a , b c,,", ["a", "b c"]),
        (("a", "b,c"), ["a", "b", "c"]),
        ('"Price, USD",id', ["Price, USD", "id"]),
        ('"say ""a""", ""', ['say "a"', ""]),
        ('"a,b', ['"a', "b"]),
    ],
)
def test_names_of_columns(given: str | tuple[str, ...] | None, expected: list[str]) -> None:
    """Commas part them, but in double quotes."""
    assert names(given) == expected


@given(st.lists(st.text('a",\\ \n\t'), max_size=20))
def test_names_that_are_shown_can_be_given(columns: list[str]) -> None:
    """What an error lists can be typed, whatever the columns are called."""
    assert names(shown_names(columns)) == columns
