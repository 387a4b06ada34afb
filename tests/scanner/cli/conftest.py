"""`weir` without a process of its own."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from subprocess import CompletedProcess

import pytest

from scanner.cli import run

Weir = Callable[..., CompletedProcess[str]]


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
