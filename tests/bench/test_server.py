"""The server process of the benches: it is up inside the block and gone after it."""

from pathlib import Path

import psutil
import pytest

import scanner.sync
from bench.harness.errors import BenchFailed
from bench.harness.server import running_server

pytestmark = [pytest.mark.socket, pytest.mark.rocks]


def test_a_server_answers_inside_the_block_and_is_gone_after_it(tmp_path: Path) -> None:
    """`weir serve` comes up on a free port, answers, and ends with status 0."""
    with running_server(tmp_path / "data") as server:
        with scanner.sync.connect(server.endpoint) as client:
            assert client.tables() == []
        assert server.resident_bytes() > 0
    assert not psutil.pid_exists(server.pid)


def test_a_server_is_ended_when_the_block_fails(tmp_path: Path) -> None:
    """An error in the block leaves no process behind, and is not replaced."""
    with pytest.raises(KeyError), running_server(tmp_path / "data") as server:
        raise KeyError
    assert not psutil.pid_exists(server.pid)


def test_a_server_that_cannot_start_is_one_line(tmp_path: Path) -> None:
    """The reason that the server gave is the bench's reason."""
    (tmp_path / "file").write_text("not a directory")
    with (
        pytest.raises(BenchFailed, match=r"^the server did not start: [^\n]+$"),
        running_server(tmp_path / "file"),
    ):
        pass
