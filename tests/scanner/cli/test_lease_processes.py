"""Leases and checkpoints as users have them: a served process that is killed, and commands that are interrupted."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from scanner.cli import run
from tests.support.processes import TIMEOUT_S, WEIR, serving

pytestmark = [pytest.mark.socket, pytest.mark.rocks, pytest.mark.slow]

ROWS = 3_000
Weir = Callable[..., tuple[str, str]]


@pytest.fixture
def weir(capfdbinary: pytest.CaptureFixture[bytes]) -> Weir:
    """Runs one command that succeeds, in this process; returns output and errors."""

    def execute(*words: object) -> tuple[str, str]:
        code = run([*map(str, words)])
        captured = capfdbinary.readouterr()
        assert code == 0, captured.err
        return captured.out.decode(), captured.err.decode()

    return execute


def csv_file(path: Path, text: str) -> Path:
    """Rows of table `items`, all with one text."""
    path.write_text("id,text\n" + "".join(f"{number},{text}\n" for number in range(ROWS)))
    return path


def state_of(weir: Weir, endpoint: str, *how: str) -> tuple[list[str], str]:
    """The rows of a scan, in an order of their own, and its digest."""
    out, err = weir("scan", "items", "--format", "json", "--stats", *how, "-e", endpoint)
    (digest,) = re.findall(r"^digest +([0-9a-f]{8})$", err, re.MULTILINE)
    return sorted(out.splitlines()), digest


def lease_of(weir: Weir, endpoint: str) -> dict[str, object]:
    """The lease `nightly` as it is listed, but for its time."""
    lines = weir("leases", "list", "-t", "items", "--json", "-e", endpoint)[0].splitlines()
    (lease,) = [each for each in map(json.loads, lines) if each["lease_id"] == "nightly"]
    assert 0 < lease.pop("remaining_s") <= 3600
    return dict(lease)


def test_a_leased_state_survives_kill_9(tmp_path: Path, weir: Weir) -> None:
    """Leased, overwritten, killed and started again: the lease is there, and its state has the same rows and digest."""
    data = tmp_path / "data"
    with serving(data) as (server, endpoint):
        old = csv_file(tmp_path / "old.csv", "old")
        weir("load", old, "-t", "items", "-k", "id", "--buckets", 2, "-e", endpoint)
        weir("checkpoint", "items", "-e", endpoint)
        weir("leases", "acquire", "items", "--id", "nightly", "--ttl", 3600, "-e", endpoint)
        weir("leases", "acquire", "items", "--id", "by-log", "--state", "log", "-e", endpoint)
        before = state_of(weir, endpoint, "--lease", "nightly")
        assert len(before[0]) == ROWS
        assert state_of(weir, endpoint) == state_of(weir, endpoint, "--lease", "by-log") == before
        for number in range(3):
            weir("load", csv_file(tmp_path / "new.csv", f"new {number}"), "-t", "items", "-e", endpoint)
            weir("checkpoint", "items", "-e", endpoint)
        listed = lease_of(weir, endpoint)
        server.send_signal(signal.SIGKILL)
        assert server.wait(TIMEOUT_S) == -signal.SIGKILL
    with serving(data) as (server, endpoint):
        assert lease_of(weir, endpoint) == listed
        assert state_of(weir, endpoint, "--lease", "nightly") == before
        assert state_of(weir, endpoint, "--lease", "by-log") == before
        assert state_of(weir, endpoint, "--snapshot") == state_of(weir, endpoint) != before
        weir("leases", "renew", "nightly", "-e", endpoint)
        weir("leases", "release", "nightly", "items:1", "-e", endpoint)
        assert run(["scan", "items", "--lease", "nightly", "--format", "json", "-e", endpoint]) == 1
        weir("leases", "drop", "nightly", "by-log", "-e", endpoint)
        assert weir("leases", "--json", "-e", endpoint)[0] == ""
        server.send_signal(signal.SIGTERM)
        assert server.wait(TIMEOUT_S) == 0
    kept = list(data.glob("checkpoints/*/*/*"))
    assert len(kept) == 4, "the newest two of two buckets"


@pytest.mark.parametrize("words", [("leases", "acquire", "items"), ("checkpoint", "items")])
def test_interrupted_commands(words: tuple[str, ...]) -> None:
    """Ctrl-C while the server does not answer is one line and exit code 130."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [*WEIR, *words, "-e", f"127.0.0.1:{listener.getsockname()[1]}"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            with listener.accept()[0] as connection:
                assert connection.recv(1)
                process.send_signal(signal.SIGINT)
                assert process.stderr is not None
                assert (process.wait(TIMEOUT_S), process.stderr.read()) == (130, "weir: interrupted\n")
