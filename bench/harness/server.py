"""A weir server in a process of its own, for the length of a bench.

The server is started as a user starts it, `weir serve`, and ended as an operator ends it, by SIGTERM. It gets a session
of its own, so that a Ctrl-C at the terminal reaches the bench alone and the bench ends the server in good order.
"""

import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from bench.harness.errors import BenchFailed
from bench.harness.processes import Peer

READY_PREFIX = "listening on "
READY_TIMEOUT_S = 300.0
"""Far longer than it takes on a machine that is busy with something else."""
EXIT_TIMEOUT_S = 300.0


@contextmanager
def running_server(data: Path, *options: str) -> Iterator[Peer]:
    """Start `weir serve` on a free port of the loopback interface; end it when the block ends.

    Args:
        data: The data directory; created by the server.
        options: Further options of `weir serve`.

    Raises:
        BenchFailed: It does not come up, or does not end with status 0 when asked to.
    """
    command = [
        str(Path(sys.executable).with_name("weir")),
        "serve",
        "--port",
        "0",
        "--data",
        str(data),
        # What scans read is a question's own choice, and no round's before it.
        "--images",
        "off",
        *options,
    ]
    with tempfile.TemporaryFile("w+") as log:
        try:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )
        except FileNotFoundError as error:
            raise BenchFailed(f"{command[0]} is not there: run `make install`") from error
        with process:
            try:
                yield Peer(process.pid, _wait_ready(process, log))
            except BaseException:
                _end(process)
                raise
            status = _end(process)
        if status != 0:
            raise BenchFailed(f"the server ended with status {status} on SIGTERM: {_last_line(log)}")


def _wait_ready(process: subprocess.Popen[str], log: IO[str]) -> int:
    assert process.stdout is not None
    deadline = time.monotonic() + READY_TIMEOUT_S
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0:
            if not selector.select(left):
                break
            line = process.stdout.readline()
            if line.startswith(READY_PREFIX):
                return int(line.split()[2].rpartition(":")[2])
            if not line:
                raise BenchFailed(f"the server did not start: {_last_line(log)}")
    raise BenchFailed(f"the server was not ready within {READY_TIMEOUT_S:.0f} s: {_last_line(log)}")


def _end(process: subprocess.Popen[str]) -> int:
    process.send_signal(signal.SIGTERM)
    try:
        return process.wait(EXIT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _last_line(log: IO[str]) -> str:
    log.seek(0)
    lines = [line for line in log.read().splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
