"""`weir` without a process of its own."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from subprocess import CompletedProcess
from typing import TYPE_CHECKING

import pytest

from scanner.cli import run

if TYPE_CHECKING:
    from tests.support.server import RunningServer

Weir = Callable[..., CompletedProcess[str]]
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def not_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """`weir serve` makes its process one that only serves; this one has tests to run, and garbage with descriptors."""
    # The module; by attribute access it is hidden behind the command of its name.
    monkeypatch.setattr(importlib.import_module("scanner.cli.serve"), "warm_up", lambda: None)


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


@pytest.fixture
def command(server: RunningServer, capfdbinary: pytest.CaptureFixture[bytes]) -> Command:
    """Runs one command of a client of the server; returns its exit code, output and error lines."""

    def execute(*words: object) -> tuple[int, str, str]:
        code = run([*map(str, words), "-e", server.endpoint])
        captured = capfdbinary.readouterr()
        return code, captured.out.decode(), captured.err.decode()

    return execute
