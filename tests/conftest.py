"""What every test runs under: the hypothesis profile, and who runs it where several processes do (pytest-xdist).

`dev` is quick and explores; `ci` (chosen where the environment variable CI is set) is the same run every time;
`nightly` is for a machine with nothing else to do: HYPOTHESIS_PROFILE=nightly.

And what the tests count, told at the end, also where several processes have run them.
"""

import functools
import gc
import logging
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.internal.conjecture import providers
from xdist.scheduler import LoadFileScheduling

from scanner.cli.descriptors import raise_files_limit
from scanner.storage.rocksdb import data_directory

# No deadlines: a shared machine is slow at times, and how long a test may take is pytest-timeout's business.
settings.register_profile("dev", max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
# As many as `dev`: more of those that are the same every time would show what they showed the first time.
settings.register_profile("ci", settings.get_profile("dev"), derandomize=True, database=None)
settings.register_profile("nightly", settings.get_profile("dev"), max_examples=10_000)
# For `python -m bench mutants`: the same examples every time, and none of the time that looking for smaller ones takes.
settings.register_profile(
    "mutants",
    settings.get_profile("dev"),
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))
if settings().derandomize:
    # Examples are also drawn from the constants of our modules that are loaded by then, and which are depends on the
    # tests that the process has run before.
    pytest.MonkeyPatch().setattr(providers, "_get_local_constants", lambda: providers._local_constants)

# The tests name the directories of tables: in this process the ids of a fresh data directory begin with 0.
pytest.MonkeyPatch().setattr(data_directory, "FIRST_TABLE_ID_END", 1)

# Collecting makes a million objects that all stay: the collector would look through them again and again.
gc.disable()

# What the first process compiles, the next ones read: the tests start hundreds of them.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# What rich draws depends on the terminal of who runs the tests, which may be dumb, or an editor's or a CI's.
for name in ("FORCE_COLOR", "NO_COLOR", "COLUMNS", "LINES", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
    os.environ.pop(name, None)
os.environ["TERM"] = "xterm"

# Nor do they multiply matrices: numpy would start threads to do so in each.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Servers in the tests' own processes have buckets open: more files than many systems allow at first.
raise_files_limit()

# A shell has its background jobs ignore Ctrl-C, and so would the commands that are interrupted here.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # nohup
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

_ROOT: Final = Path(__file__).resolve().parent.parent
_JVM: Final = "the JVM"
_SPACE: Final = "scanner.storage.rocksdb.space"
_BEGUN: Final = pytest.StashKey[bool]()
_LONGEST: Final = (
    "tests/simulation/",
    "tests/test_clean_install.py",
    "tests/bench/",
    "tests/interop/",
    "tests/test_docs_snippets.py",
    "tests/continuation/",
    "tests/scanner/test_full_disk.py",
    "tests/scanner/cli/",
    "tests/spark_source/",
)
"""What is begun first behind those of the JVM, so that no process works on it alone at the end."""

_LOGGERS_OF_PYSPARK: Final = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")

_counts: Counter[str] = Counter()
_TOLD = {
    "scans were cut at {} places, and resumed {} times": ("cuts", "resumes"),
    "simulated: {} seeds, {} scans": ("seeds", "simulated scans"),
}


@functools.cache
def _starts_a_jvm(file: str) -> bool:
    """Whether one of its tests has the mark `spark`; `file` is relative to the root of the tree."""
    return "pytest.mark.spark" in (_ROOT / file).read_text(encoding="utf-8")


class _Scheduling(LoadFileScheduling):  # type: ignore[misc]
    """The tests of a file go to one process, and all files that share the JVM to one."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return _JVM if _starts_a_jvm(file) else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _Scheduling | None:
    """For `--dist loadfile`."""
    return _Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


def _rank(item: pytest.Item) -> int:
    file = item.nodeid.partition("::")[0]
    if _starts_a_jvm(file):
        return -1
    return next((rank for rank, name in enumerate(_LONGEST) if file.startswith(name)), len(_LONGEST))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where several processes run the tests, put the longest first."""
    if hasattr(config, "workerinput"):
        items.sort(key=_rank)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A process that does not begin with the JVM's tests leaves the processor to the one that does.

    That one has the longest way, and nobody can share it: as busy as it, the others would be done long before it.
    """
    if hasattr(item.config, "workerinput") and not item.config.stash.get(_BEGUN, False):
        item.config.stash[_BEGUN] = True
        if not _starts_a_jvm(item.nodeid.partition("::")[0]):
            os.nice(5)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport() -> None:
    """After each phase of a test, undo what PySpark did to its loggers of failed queries.

    It ends their propagation; at the next phase pytest adds its handler to them, and they give that handler, which
    `caplog` is in every test, a formatter of their own: JSON, in all tests that come later in this process.
    """
    for name in _LOGGERS_OF_PYSPARK:
        if name in logging.Logger.manager.loggerDict:
            logging.getLogger(name).propagate = True


def pytest_collection_finish() -> None:
    """What was collected lives as long as the process: the garbage collector need not look through it again.

    And a data directory has a small ballast.
    """
    gc.collect()
    gc.freeze()
    gc.enable()
    if _SPACE in sys.modules:
        # For good. Thousands of data directories are made, and the 16 MiB took most of the time of each.
        # The small disks of tests/scanner/test_full_disk.py have less than this.
        pytest.MonkeyPatch().setattr(f"{_SPACE}._BALLAST_BYTES_MAX", 1024 * 1024)


@pytest.fixture
def kept_port() -> Iterator[int]:
    """A port of the loopback interface that the system gives to nobody else, whether a server listens on it or not.

    One that is free for a moment, as while a server is started again, may be given to a test that runs beside this one.
    """
    with socket.socket() as keeper:
        # Bound and not listening, it is in the way of nobody who asks for this very port with the same option.
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("127.0.0.1", 0))
        yield keeper.getsockname()[1]


@pytest.fixture(scope="session")
def counts() -> Counter[str]:
    """Of what happened in all tests."""
    return _counts


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In a process of its own, hand the counts to the one that tells them."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["counts"] = dict(_counts)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take the counts of a process that is done."""
    _counts.update(getattr(node, "workeroutput", {}).get("counts", {}))  # one that crashed has none


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A line for each thing that was counted."""
    for line, names in _TOLD.items():
        if _counts[names[0]]:
            terminalreporter.write_line(line.format(*map(_counts.__getitem__, names)))
