"""What the tests cost: CPU seconds of each file and each test, its processes included. They say more than wall time.

    python -m pytest -p tests.support.cpu_times tests/scanner

Also with pytest-xdist. What a process burns that outlives its test, a JVM say, counts for the file alone.
"""

from __future__ import annotations

import contextlib
import functools
import resource
import time
from collections.abc import Generator
from typing import Any, Final, NamedTuple

import psutil
import pytest

_SHOWN: Final = 40


class _Cost(NamedTuple):
    cpu_s: float
    wall_s: float

    def plus(self, other: _Cost) -> _Cost:
        return _Cost(self.cpu_s + other.cpu_s, self.wall_s + other.wall_s)

    def since(self, other: _Cost) -> _Cost:
        return _Cost(self.cpu_s - other.cpu_s, self.wall_s - other.wall_s)


_tests: dict[str, _Cost] = {}
_files: dict[str, _Cost] = {}
_begun: dict[str, _Cost] = {}
"""What the clocks showed when a file began."""


def _now() -> _Cost:
    """Of this process and those that it has waited for."""
    reaped = resource.getrusage(resource.RUSAGE_CHILDREN)
    return _Cost(time.process_time() + reaped.ru_utime + reaped.ru_stime, time.monotonic())


def _of_the_living() -> _Cost:
    """Of the processes below this one, and of those that they have waited for."""
    seconds = 0.0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            seconds += sum(process.cpu_times()[:4])
    return _Cost(seconds, 0)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, Any, Any]:
    """Take the clocks around a test with its fixtures, and around a file."""
    file = _file(item)
    if file not in _begun:
        _begun[file] = _now().plus(_of_the_living())
    begun = _now()
    result = yield
    _tests[item.nodeid] = _now().since(begun)
    if nextitem is None or _file(nextitem) != file:
        _files[file] = _now().plus(_of_the_living()).since(_begun[file])
    return result


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In a process of its own, hand the costs to the one that tells them."""
    if hasattr(session.config, "workeroutput"):
        plain = [{name: tuple(cost) for name, cost in costs.items()} for costs in (_tests, _files)]
        session.config.workeroutput["cpu_times"] = plain


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take the costs of a process that is done."""
    handed_over = getattr(node, "workeroutput", {}).get("cpu_times", ({}, {}))  # one that crashed has none
    for costs, more in zip((_tests, _files), handed_over, strict=True):
        costs.update({name: _Cost(*cost) for name, cost in more.items()})


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The dearest files, and the dearest tests."""
    for what, costs in (("files", _files), ("tests", _tests)):
        total = functools.reduce(_Cost.plus, costs.values(), _Cost(0, 0))
        terminalreporter.section(f"{what}: {total.cpu_s:.1f} s of CPU, {total.wall_s:.1f} s")
        terminalreporter.write_line("CPU s   wall s")
        for name, cost in sorted(costs.items(), key=lambda each: -each[1].cpu_s)[:_SHOWN]:
            terminalreporter.write_line(f"{cost.cpu_s:6.2f}  {cost.wall_s:6.2f}  {name}")
