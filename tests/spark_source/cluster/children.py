"""Processes that do not outlive the test run, and whose output is an event.

`python children.py COMMAND...` becomes the command, after it has asked the kernel to end it with its parent. So nothing
of a cluster is left when the test run itself is killed: workers end their executors, executors their Python.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Final

import psutil

EXIT_TIMEOUT_S: Final = 10.0
KEPT_LINES: Final = 200
_PR_SET_PDEATHSIG: Final = 1


class Child:
    """A process, and what it says on its standard error.

    Args:
        process: With pipes for text; ended by `ended_with_block`.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._last: deque[str] = deque(maxlen=KEPT_LINES)
        self._over = False
        self._changed = threading.Condition()
        assert process.stderr is not None
        self._reader = threading.Thread(target=self._read, args=(process.stderr,), daemon=True)
        self._reader.start()

    def wait_line(self, text: str) -> str:
        """The newest line with this text, as soon as there is one among the last `KEPT_LINES`.

        Raises:
            RuntimeError: The process ended without it.
        """
        with self._changed:
            while (found := self._find(text)) is None and not self._over:
                self._changed.wait()
        if found is None:
            raise RuntimeError(f"ended without saying {text!r}:\n{self.said()}")
        return found

    def said(self) -> str:
        """The last lines of its standard error."""
        with self._changed:
            return "\n".join(self._last)

    def join(self) -> None:
        """Wait for the end of its standard error, which comes with that of the last process that writes to it."""
        self._reader.join()

    def _find(self, text: str) -> str | None:
        return next((line for line in reversed(self._last) if text in line), None)

    def _read(self, stderr: IO[str]) -> None:
        for line in stderr:
            with self._changed:
                self._last.append(line.rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._over = True
            self._changed.notify_all()


@contextlib.contextmanager
def ended_with_block(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[Child]:
    """Run a command; when the block ends, so have it and all that it started.

    Args:
        command: The program and its arguments.
        environment: All of its environment.
    """
    process = subprocess.Popen(
        [sys.executable, "-P", __file__, *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(environment),
        start_new_session=True,
    )
    child = Child(process)
    try:
        yield child
    finally:
        end(process)
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        child.join()
        assert process.stderr is not None
        process.stderr.close()


def end(process: subprocess.Popen[str]) -> None:
    """SIGTERM to a process, and SIGKILL to whatever of it and its descendants is left."""
    try:
        family = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        family = []
    process.terminate()
    try:
        process.wait(EXIT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for descendant in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            descendant.kill()
    psutil.wait_procs(family, EXIT_TIMEOUT_S)


def main() -> None:
    """Become the command of the arguments."""
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # It was gone before the kernel knew.
        sys.exit(1)
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
