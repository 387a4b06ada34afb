"""For pytest, in the mutation bench: tell how long each test took, and run chosen tests in their order.

A file has the chosen ones, since there may be thousands, with any character in their parameters.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Final

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Both are files of JSON."""
    parser.addoption("--told-to", type=Path, help="write what each test took, in seconds, and which failed")
    parser.addoption("--chosen", type=Path, help="run only the tests listed there, in that order")


def pytest_configure(config: pytest.Config) -> None:
    """Where pytest-xdist runs the tests, only its controller hears of all of them."""
    path = config.getoption("--told-to")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Told(path))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what was not chosen."""
    path = config.getoption("--chosen")
    if path is None:
        return
    rank = {test: number for number, test in enumerate(json.loads(path.read_text()))}
    config.hook.pytest_deselected(items=[each for each in items if each.nodeid not in rank])
    items[:] = sorted((each for each in items if each.nodeid in rank), key=lambda each: rank[each.nodeid])


class _Told:
    def __init__(self, path: Path) -> None:
        self._path: Final = path
        self._seconds: Final[defaultdict[str, float]] = defaultdict(float)
        self._failed: Final[dict[str, None]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration
        if report.failed:
            self._failed[report.nodeid] = None

    def pytest_sessionfinish(self) -> None:
        self._path.write_text(json.dumps({"seconds": self._seconds, "failed": list(self._failed)}))
