"""`weir` on a real terminal, of which the test has the other end."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager

WAIT_S = 100
"""Far longer than anything takes: only what will never come takes it."""
_WEIR = ("-m", "scanner.cli")
_ONE_BY_ONE = """
import json, sys
from contextlib import suppress
from scanner.cli import main
for words in json.loads(sys.argv[1]):
    with suppress(SystemExit):
        main(words)
"""


@contextmanager
def on_a_terminal(
    *words: str,
    columns: int = 80,
    lines: int = 24,
    kind: str = "xterm",
    pager: str = "cat",
    program: tuple[str, ...] = _WEIR,
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """`weir` with a terminal for input and output; the other end is a file descriptor."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    environment = {**os.environ, "TERM": kind, "PAGER": pager}
    for variable in ("COLUMNS", "LINES"):
        environment.pop(variable, None)
    command = [sys.executable, *program, *words]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        try:
            yield process, ours
        finally:
            process.kill()
            os.close(ours)


def shown_until(terminal: int, wanted: bytes | None) -> bytes:
    """What a terminal shows, up to some octets; None: to its end."""
    seen, deadline = b"", time.monotonic() + WAIT_S
    # Not select(): descriptors above 1023 are none for it.
    readable = select.poll()
    readable.register(terminal, select.POLLIN)
    while (wanted is None or wanted not in seen) and time.monotonic() < deadline:
        if readable.poll(1000):
            try:
                part = os.read(terminal, 65536)
            except OSError:  # the other end is closed
                break
            seen += part
    return seen


def shown_by(*words: str, columns: int = 80, pager: str = "cat") -> tuple[int, list[str]]:
    """Run a command on a terminal: its exit code, and the lines that it shows."""
    with on_a_terminal(*words, columns=columns, pager=pager) as (process, terminal):
        seen = shown_until(terminal, None).decode()
        return process.wait(WAIT_S), seen.replace("\r\n", "\n").splitlines()


def shown_by_all(*commands: list[str]) -> str:
    """Run commands one after the other in one process on a terminal: all that they show."""
    with on_a_terminal(json.dumps(commands), program=("-c", _ONE_BY_ONE)) as (process, terminal):
        seen = shown_until(terminal, None).decode()
        assert process.wait(WAIT_S) == 0
        return seen
