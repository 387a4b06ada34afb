"""`weir` without a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from subprocess import CompletedProcess

import pytest

from scanner.cli import run

Weir = Callable[..., CompletedProcess[str]]


@pytest.fixture
def weir_here(capfdbinary: pytest.CaptureFixture[bytes]) -> Weir:
    """Runs one command in this process, to its end."""

    def execute(*words: object) -> CompletedProcess[str]:
        capfdbinary.readouterr()
        command = [*map(str, words)]
        code = run(command)
        captured = capfdbinary.readouterr()
        return CompletedProcess(command, code, captured.out.decode(), captured.err.decode())

    return execute
