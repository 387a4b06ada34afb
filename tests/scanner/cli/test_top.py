"""`weir top`: what two looks at the streams make of them, how it is drawn, and how it ends on a terminal."""

from __future__ import annotations

import io
import os
import pty
import signal
import socket
import sys
import termios
import threading
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from rich.console import Console
from rich.live import Live

from scanner.cli.top import Look, Row, _left_by_interrupt, _left_by_keys, compare, render
from scanner.client.admin import ScanInfo, StreamInfo
from tests.support.server import running_server
from tests.support.terminal import WAIT_S, on_a_terminal, shown_until
from transport import StallReason, StallTimes

SECOND = 1_000_000_000
SCAN = ScanInfo(
    table="orders",
    bucket=2,
    source="LIVE_KV",
    rows=100,
    log_offset=1200,
    log_behind=35,
    iterator_open=True,
    pinned_s=12.0,
)
STREAM = StreamInfo(
    connection_id=3,
    stream_id=5,
    peer="127.0.0.1:40000",
    principal="anonymous",
    path="/weir.v1.Scanner/Scan",
    age_s=10.0,
    messages_sent=10,
    messages_received=2,
    bytes_sent=10 << 20,
    bytes_received=0,
    unsent_bytes=0,
    buffered_bytes=0,
    credit_limit=12 << 20,
    credit_sent=10 << 20,
    send_window=8 << 20,
    connection_send_window=1 << 20,
    receive_window=8 << 20,
    stall=StallReason.CREDIT,
    stalls=StallTimes((SECOND, 9 * SECOND, 0, 0, 0, 0, 0, 0)),
    scan=SCAN,
)


def text(rows: list[Row], *, rows_max: int | None = None) -> list[str]:
    """The view as lines."""
    file = io.StringIO()
    Console(width=80, file=file).print(render(rows, "title", rows_max=rows_max))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_the_first_look_tells_of_the_whole_life() -> None:
    """Without a look before, rate and stall are since the stream's start."""
    (row,) = compare(None, Look(100.0, (STREAM,)))
    assert (row.bytes_per_s, row.reason, row.share) == (1 << 20, StallReason.CREDIT, 0.9)


def test_two_looks_tell_of_the_time_between() -> None:
    """What moved and what stalled between two looks, and nothing from before them."""
    later = replace(
        STREAM, bytes_sent=12 << 20, stalls=StallTimes((SECOND, 9 * SECOND, 0, 0, 4 * SECOND, 0, 0, 0))
    )
    (row,) = compare(Look(100.0, (STREAM,)), Look(104.0, (later,)))
    assert (row.bytes_per_s, row.reason, row.share) == (1 << 19, StallReason.SOCKET, 1.0)


def test_a_number_that_a_restarted_server_gives_again() -> None:
    """Another stream has it now, which is told of since its own start; it was one of -9 MB/s."""
    younger = replace(STREAM, age_s=0.5, bytes_sent=1 << 20, stalls=StallTimes((0, 0, 0, 0, 0, SECOND, 0, 0)))
    (row,) = compare(Look(100.0, (STREAM,)), Look(101.0, (younger,)))
    assert (row.bytes_per_s, row.reason) == (2 << 20, StallReason.STORAGE)


def test_busy_streams_come_first() -> None:
    """Order is by rate, then by number; a stream that is new counts from its start."""
    idle = replace(STREAM, stream_id=1, bytes_sent=0)
    new = replace(STREAM, stream_id=9, bytes_sent=1 << 30)
    rows = compare(Look(0.0, (idle, STREAM)), Look(1.0, (idle, STREAM, new)))
    assert [row.stream.stream_id for row in rows] == [9, 1, 5]


def test_a_row_fits_into_80_columns() -> None:
    """Everything of a scan is seen at the width that every terminal has."""
    title, headings, row = text(compare(None, Look(0.0, (STREAM,))))
    assert title == "title"
    assert headings.split() == "STREAM READS AGE RATE/s CREDIT WINDOW STALL PINS".split()
    assert row.split() == "3/5 orders[2] 10s 1.0M 2.0M 1.0M credit 90% @1200 +35 12s".split()
    assert len(row) <= 80


def test_long_names_are_cut_and_other_calls_are_named() -> None:
    """A long table name costs no line; a call that is no scan shows its method and pins nothing."""
    long = replace(STREAM, scan=replace(SCAN, table="a" * 100))
    other = replace(STREAM, path="/weir.v1.Tables/Write", scan=None, stream_id=7)
    lines = text(compare(None, Look(0.0, (long, other))))
    assert len(lines) == 4
    assert max(map(len, lines)) <= 80
    assert "Write" in lines[3]
    assert "@" not in lines[3]


def test_what_a_terminal_obeys_is_shown() -> None:
    """Names and the endpoint, which come from elsewhere, are written without control characters."""
    rows = compare(None, Look(0.0, (replace(STREAM, scan=replace(SCAN, table="a\x1b[31m")),)))
    file = io.StringIO()
    Console(width=80, file=file).print(render(rows, "weir \x9b1m:9123"))
    assert "\x1b" not in file.getvalue()
    assert "\x9b" not in file.getvalue()
    assert r"a\x1b[31m[2]" in file.getvalue()


def test_what_does_not_fit_is_counted() -> None:
    """A low terminal shows the busiest, and how many more there are."""
    streams = tuple(replace(STREAM, stream_id=1 + 2 * number) for number in range(20))
    lines = text(compare(None, Look(0.0, streams)), rows_max=5)
    assert len(lines) == 8
    assert lines[-1].startswith("and 15 more")


@pytest.mark.socket
@pytest.mark.rocks
@pytest.mark.slow
@pytest.mark.parametrize(("end", "code"), [("q", 0), ("jq", 0), (signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_it_ends_and_leaves_the_terminal_as_it_was(
    tmp_path: Path, end: str | signal.Signals, code: int
) -> None:
    """It draws again and again; q, also behind another key, and Ctrl-C end it well, SIGTERM does not.

    Screen and cursor are as before.
    """
    with running_server(tmp_path) as server:
        with on_a_terminal("top", "--interval", "0.05", "-e", server.endpoint) as (process, terminal):
            assert b"STREAM" in shown_until(terminal, b"STREAM")
            if isinstance(end, str):
                os.write(terminal, end.encode())
            else:
                process.send_signal(end)
            rest = shown_until(terminal, b"\x1b[?25h")
            assert process.wait(WAIT_S) == code
        assert b"\x1b[?1049l" in rest
        assert b"\x1b[?25h" in rest
        assert b"Traceback" not in rest


@pytest.mark.socket
@pytest.mark.slow
def test_q_ends_it_while_the_server_does_not_answer() -> None:
    """No key waits for the call that runs."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"127.0.0.1:{silent.getsockname()[1]}"
        with on_a_terminal("top", "-e", endpoint) as (process, terminal):
            shown_until(terminal, b"\x1b[?25l")
            os.write(terminal, b"q")
            rest = shown_until(terminal, b"\x1b[?25h")
            assert process.wait(WAIT_S) == 0
        assert b"\x1b[?1049l" in rest


def test_the_terminal_stays_as_it_was_where_no_thread_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that listens for keys begins before anything is changed."""

    def fail(_thread: threading.Thread) -> NoReturn:
        raise RuntimeError("can't start new thread")

    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    monkeypatch.setattr(threading.Thread, "start", fail)
    with open(theirs, encoding="utf-8") as terminal, open(ours, "rb"):
        monkeypatch.setattr(sys, "stdin", terminal)
        with pytest.raises(RuntimeError, match="can't start"), _left_by_keys():
            pass
        assert termios.tcgetattr(theirs) == before


def test_interrupted_while_it_begins_to_draw(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rich has no end for what it has not begun whole; screen and cursor are as before all the same."""

    def interrupted(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(Console, "push_render_hook", interrupted)
    with _left_by_interrupt(), Live(console=Console(), screen=True):
        pass
    assert capfd.readouterr().out == "\x1b[?1049h\x1b[H\x1b[?25l\x1b[?1049l\x1b[?25h"


@pytest.mark.socket
@pytest.mark.rocks
@pytest.mark.slow
def test_a_terminal_that_cannot_be_drawn_over_shows_one_look_after_another(tmp_path: Path) -> None:
    """Without an escape sequence, and q ends it there, too."""
    with (
        running_server(tmp_path) as server,
        on_a_terminal("top", "--interval", "0.05", "-e", server.endpoint, kind="dumb") as (process, terminal),
    ):
        shown = shown_until(terminal, b"STREAM")
        assert b"STREAM" in shown
        shown += shown_until(terminal, b"STREAM")
        os.write(terminal, b"q")
        assert process.wait(WAIT_S) == 0
    assert shown.count(b"STREAM") >= 2
    assert b"\x1b" not in shown
