"""What every test runs under: the hypothesis profile.

`dev` is quick and explores; `ci` (chosen where the environment variable CI is set) is the same run every time;
`nightly` is for a machine with nothing else to do: HYPOTHESIS_PROFILE=nightly.

And what the tests count, told at the end, also where several processes have run them (pytest-xdist).
"""

import os
import signal
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

# No deadlines: a shared machine is slow at times, and how long a test may take is pytest-timeout's business.
settings.register_profile("dev", max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "ci", settings.get_profile("dev"), max_examples=100, derandomize=True, database=None
)
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

# A shell has its background jobs ignore Ctrl-C, and so would the commands that are interrupted here.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_counts: Counter[str] = Counter()
_TOLD = {
    "scans were cut at {} places, and resumed {} times": ("cuts", "resumes"),
    "simulated: {} seeds, {} scans": ("seeds", "simulated scans"),
}


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
