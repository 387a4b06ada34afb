"""`weir top`: the streams of a server, again and again, with what each did since the last look.

`Look` and `compare` are pure: two looks make the rows. The rest asks the server, draws, and listens for keys.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from scanner.cli.admin import pins, what
from scanner.cli.amounts import Seconds
from scanner.cli.app import connected, endpoint_option, example, is_terminal
from scanner.cli.signals import ended
from scanner.cli.units import counted, short_bytes, short_seconds
from scanner.escapes import escaped
from transport import StallReason, StallTimes

if TYPE_CHECKING:
    from rich.console import RenderableType

    from scanner.client.admin import StreamInfo
    from scanner.sync import Client

_WIDTH_PIPED: Final = 100
_LINES_AROUND: Final = 6
"""Title, headings, rules, and the line that tells what is not shown."""
_STYLES: Final = {
    StallReason.RUNNING: "green",
    StallReason.PEER: "dim",
    StallReason.CREDIT: "yellow",
    StallReason.CONSUMER: "yellow",
}
_SLOW_STYLE: Final = "red"
_END_KEYS: Final = frozenset(b"qQ\x03\x04")
_KEYS_MAX: Final = 1024
"""Octets of keys that are looked at in one go."""


@dataclass(frozen=True, slots=True)
class Row:
    """One stream between two looks."""

    stream: StreamInfo
    bytes_per_s: float
    reason: StallReason
    """What most of the time between went into."""
    share: float
    """Of that time, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Look:
    """The streams of a server at one time."""

    at: float
    """Seconds of a monotonic clock."""
    streams: tuple[StreamInfo, ...]


def compare(before: Look | None, now: Look) -> list[Row]:
    """What each stream of a look did since the one before; since its beginning if it was not there. Busiest first."""
    earlier = {} if before is None else {_key(each): each for each in before.streams}
    elapsed_s = 0.0 if before is None else now.at - before.at
    rows = [_row(each, earlier.get(_key(each)), elapsed_s) for each in now.streams]
    return sorted(rows, key=lambda row: (-row.bytes_per_s, _key(row.stream)))


def _key(stream: StreamInfo) -> tuple[int, int]:
    return stream.connection_id, stream.stream_id


def _row(stream: StreamInfo, before: StreamInfo | None, elapsed_s: float) -> Row:
    moved, seconds, stalls = stream.bytes_sent + stream.bytes_received, stream.age_s, stream.stalls
    # A server that was started again gives out the same numbers: a younger stream than that is another one.
    if before is not None and stream.age_s >= elapsed_s:
        moved -= before.bytes_sent + before.bytes_received
        seconds = elapsed_s
        stalls = StallTimes(
            tuple(
                max(0, late - early)
                for late, early in zip(stalls.nanoseconds, before.stalls.nanoseconds, strict=True)
            )
        )
    reason = stalls.longest if stalls.total_s else stream.stall
    share = stalls.seconds(reason) / stalls.total_s if stalls.total_s else 1.0
    return Row(stream, moved / seconds if seconds > 0 else 0.0, reason, share)


def render(rows: Sequence[Row], title: str, *, rows_max: int | None = None) -> RenderableType:
    """The view: at most `rows_max` streams, 80 columns wide if names are short."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("STREAM", no_wrap=True)
    table.add_column("READS", no_wrap=True, overflow="ellipsis", max_width=20)
    table.add_column("AGE", justify="right", no_wrap=True)
    table.add_column("RATE/s", justify="right", no_wrap=True)
    table.add_column("CREDIT", justify="right", no_wrap=True)
    table.add_column("WINDOW", justify="right", no_wrap=True)
    table.add_column("STALL", no_wrap=True)
    table.add_column("PINS", no_wrap=True, overflow="ellipsis")
    shown = rows if rows_max is None else rows[:rows_max]
    for row in shown:
        stream = row.stream
        table.add_row(
            f"{stream.connection_id}/{stream.stream_id}",
            Text(escaped(what(stream) or stream.method)),
            short_seconds(stream.age_s),
            short_bytes(row.bytes_per_s),
            "-" if stream.scan is None else short_bytes(stream.credit_left),
            short_bytes(min(stream.send_window, stream.connection_send_window)),
            Text(f"{row.reason.label} {row.share:.0%}", style=_STYLES.get(row.reason, _SLOW_STYLE)),
            pins(stream),
        )
    lines: list[RenderableType] = [Text(escaped(title), style="reverse"), table]
    if len(shown) < len(rows):
        lines.append(Text(f"and {len(rows) - len(shown)} more; weir streams has them all", style="dim"))
    return Group(*lines)


@click.command(epilog=example("weir top", "weir top --interval 0.5", "weir top --once"))
@click.option(
    "--interval",
    type=Seconds(0.05, 3600),
    default=1.0,
    show_default=True,
    help="How often to refresh.",
)
@click.option(
    "--once", is_flag=True, help="Print one view and exit; rates and stalls are since each stream's start."
)
@endpoint_option
def top(interval: float, once: bool, endpoint: str) -> None:
    """Watch the server's streams: rate, credit, window, what holds each up, and what it pins. Ends with q or Ctrl-C.

    The longest stall since the last refresh is shown, with its share of the time.
    """
    with connected(endpoint) as client, contextlib.nullcontext() if once else _left_by_interrupt():
        if once or not is_terminal(sys.stdout):
            _print_looks(client, endpoint, None if once else interval)
        elif Console().is_dumb_terminal:  # There nothing is drawn over.
            with _left_by_keys():
                _print_looks(client, endpoint, interval)
        else:
            _watch(client, endpoint, interval)


@contextlib.contextmanager
def _left_by_interrupt() -> Iterator[None]:
    """Take Ctrl-C for the good end that it is here; SIGTERM and SIGHUP end this command as they end others."""
    try:
        yield
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):  # The terminal is gone.
            # rich does neither where it is interrupted while it begins or ends. Another console: that one's may be cut.
            console = Console()
            console.set_alt_screen(False)
            console.show_cursor()
        if ended().number != signal.SIGINT:
            raise


def _print_looks(client: Client, endpoint: str, interval_s: float | None) -> None:
    """Print one look, or one after another, as `top -b` does."""
    console = Console(width=None if is_terminal(sys.stdout) else _WIDTH_PIPED, highlight=False)
    before = None
    while True:
        now = _look(client)
        rows = compare(before, now)
        with console.capture() as look:
            console.print(render(rows, _title(rows, endpoint)))
        click.echo(look.get(), nl=False)  # rich would end the process with 1 where nobody reads.
        if interval_s is None:
            return
        before = now
        time.sleep(interval_s)


def _watch(client: Client, endpoint: str, interval_s: float) -> None:
    before = None
    with _left_by_keys(), Live(screen=True, auto_refresh=False) as live:
        while True:
            now = _look(client)
            rows = compare(before, now)
            room = max(1, live.console.height - _LINES_AROUND)
            live.update(render(rows, _title(rows, endpoint), rows_max=room), refresh=True)
            before = now
            time.sleep(interval_s)


def _look(client: Client) -> Look:
    streams = client.list_streams()
    return Look(time.monotonic(), tuple(each for each in streams if not each.path.endswith("/ListStreams")))


def _title(rows: Sequence[Row], endpoint: str) -> str:
    pinned = sum(row.stream.scan is not None and row.stream.scan.iterator_open for row in rows)
    rate = short_bytes(sum(row.bytes_per_s for row in rows))
    clock = time.strftime("%H:%M:%S")
    return f"weir {endpoint}  {counted(len(rows), 'stream')}  {pinned} pinned  {rate}B/s  {clock}"


@contextlib.contextmanager
def _left_by_keys() -> Iterator[None]:
    """Take keys without an echo, and q as Ctrl-C, also while the server does not answer; if there is a terminal."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    keys = sys.stdin.fileno()
    before = termios.tcgetattr(keys)
    ours, theirs = os.pipe()
    arguments = (keys, ours, threading.get_ident())
    thread = threading.Thread(target=_interrupt_by_key, args=arguments, name="weir keys", daemon=True)
    thread.start()  # Before the terminal is changed: there may be no thread left.
    try:
        tty.setcbreak(keys)
        yield
    finally:
        os.close(theirs)
        thread.join()
        os.close(ours)
        termios.tcsetattr(keys, termios.TCSADRAIN, before)


def _interrupt_by_key(keys: int, until_closed: int, thread: int) -> None:
    poll = select.poll()
    poll.register(keys, select.POLLIN)
    poll.register(until_closed, 0)  # Errors are told without being asked for.
    while all(found == keys and told == select.POLLIN for found, told in poll.poll()):
        if not _END_KEYS.isdisjoint(os.read(keys, _KEYS_MAX)):
            signal.pthread_kill(thread, signal.SIGINT)
            return
