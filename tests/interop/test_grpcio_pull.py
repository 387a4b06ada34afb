"""A stock grpcio client, in a process that has nothing of weir but stubs made from its .proto files, reads in pieces.

By resume tokens after every batch, by pages of every model, by a session, of a lease and of the past, while it writes
over what it has read; and the changes by long poll.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import running_server

pytestmark = [pytest.mark.socket, pytest.mark.rocks, pytest.mark.slow]

CLIENT = Path(__file__).with_name("stock_pull_client.py")
BEFORE = {"session", "token", "asof"}
"""Ways that show what a whole scan just before showed."""


@pytest.fixture(scope="module")
def found(stubs: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the stranger found."""
    with running_server(tmp_path_factory.mktemp("data")) as server:
        command = [sys.executable, "-P", str(CLIENT), str(stubs), server.endpoint]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, cwd=stubs)
        assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("way", ["push", "as_of", "lease", "asof_past"])
def test_a_scan_in_pieces_is_the_whole_one(found: Any, way: str) -> None:
    """However it is cut, and whatever is written meanwhile: rows, digest and offset of the scan in one go."""
    assert found[way]["pieces"] > 1
    assert {**found[way], "pieces": 0} == {**found["whole"], "pieces": 0}


@pytest.mark.parametrize("way", sorted(BEFORE))
def test_an_isolated_pull_scan_shows_its_first_page_s_state(found: Any, way: str) -> None:
    """Sessions, tokens and as-of pages show what a push scan showed before the first page, and not what came after."""
    assert found[way]["pieces"] > 1
    assert {**found[way], "pieces": 0} == {**found[f"{way}_whole"], "pieces": 0}


def test_a_cursor_scan_shows_what_was_written_meanwhile(found: Any) -> None:
    """Pages without a state of their own have rows that were not there at the first one."""
    assert found["cursor"]["rows"] != found["cursor_whole"]["rows"]


def test_fetched_changes_fold_to_the_table(found: Any) -> None:
    """All of them, by long poll in pieces: the rows of a scan, at its offset."""
    assert found["fetch"]["pieces"] > 1
    assert found["fetch"]["rows"] == found["now"]["rows"]
    assert found["fetch"]["log_offset"] == found["now"]["log_offset"]


def test_a_lease_is_of_the_state_at_which_it_was_acquired(found: Any) -> None:
    """It names the offset that a scan of it has, and dropping it a second time is no error."""
    assert found["leased_offset"] == found["lease"]["log_offset"]
    assert found["dropped"] == [True, False]


def test_refusals_say_why_to_a_stranger(found: Any) -> None:
    """The reason is in the details, and with an offset out of range the oldest one that there is."""
    assert found["refused"] == {
        "renewal": {"code": "NOT_FOUND", "reason": "LEASE_NOT_FOUND", "oldest_offset": None},
        "future": {"code": "OUT_OF_RANGE", "reason": "OFFSET_OUT_OF_RANGE", "oldest_offset": 0},
        "token": {"code": "INVALID_ARGUMENT", "reason": "RESUME_TOKEN_INVALID", "oldest_offset": None},
    }
