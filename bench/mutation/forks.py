"""A process that has imported the libraries of the tests, and forks for each run of pytest: that saves most of a start.

It imports nothing of ours, so each run imports our modules as they are then. It starts no thread: forks are safe.
Commands come on the standard input, one line of JSON each: the arguments of pytest, and after how many seconds the run
and all processes that it started are killed. Answers go to the standard output: the exit status (negative: the signal)
and what was said.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import tempfile
import threading
import traceback
from typing import Final, NoReturn

_IMPORTED: Final = (
    "cryptography.x509", "google.protobuf.message", "google_crc32c", "h2.connection", "hypothesis.stateful",
    "hypothesis.strategies", "numpy", "prometheus_client", "psutil", "pyarrow.compute", "pyarrow.ipc", "pytest",
    "pytest_timeout", "pytest_trio", "rocksdict", "sqlglot", "trio.testing",
)  # fmt: skip


def main() -> None:
    """Serve until the input ends."""
    for name in _IMPORTED:
        importlib.import_module(name)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    for line in sys.stdin:
        command = json.loads(line)
        status, said = _run(command["arguments"], command["timeout_s"])
        print(json.dumps({"status": status, "said": said}), flush=True)


def _run(arguments: list[str], timeout_s: float) -> tuple[int, str]:
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = os.fork()
        if not process:
            _child(arguments, output.fileno())
        with contextlib.suppress(ProcessLookupError):
            os.setpgid(process, process)  # Here as well: whoever is first.
        killer = threading.Timer(timeout_s, _kill, (process,))
        killer.start()
        try:
            _, status = os.waitpid(process, 0)
        finally:
            killer.cancel()
            killer.join()  # Before the next fork.
            _kill(process)
        output.seek(0)
        return os.waitstatus_to_exitcode(status), output.read()


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _child(arguments: list[str], output: int) -> NoReturn:
    status = 1
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        import pytest

        status = int(pytest.main(arguments))
        # As an interpreter does that ends: a thread that goes on for ever is a mutant that hangs.
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
    except (Exception, SystemExit, KeyboardInterrupt):
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
