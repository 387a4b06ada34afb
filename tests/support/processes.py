"""`weir` in processes of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

WEIR = [sys.executable, "-m", "scanner.cli"]
TIMEOUT_S = 500
"""Far longer than anything takes: only what will never come takes it."""


def weir(*words: object) -> subprocess.CompletedProcess[str]:
    """One command, to its end."""
    return subprocess.run(
        [*WEIR, *map(str, words)], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


def serving(data: Path, *words: object) -> AbstractContextManager[tuple[subprocess.Popen[str], str]]:
    """`weir serve`, on a free port where the words name none, and its address; killed if it outlives the block."""
    return served_by(*WEIR, "serve", "--data", data, "--port", 0, *words)


@contextmanager
def served_by(*command: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A command that serves, and its address; killed if it outlives the block."""
    with subprocess.Popen(
        [*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("listening on "), process.communicate(timeout=TIMEOUT_S)
            yield process, line.split()[-1]
        finally:
            process.kill()
