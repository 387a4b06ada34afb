"""The command line as users run it: processes, signals and pipes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = [pytest.mark.socket, pytest.mark.rocks, pytest.mark.slow]

WEIR = [sys.executable, "-m", "scanner.cli"]
TIMEOUT_S = 60


@contextmanager
def serving(data: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`weir serve` on a free port, and its address."""
    command = [*WEIR, "serve", "--data", str(data), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("listening on 127.0.0.1:"), process.communicate(timeout=TIMEOUT_S)
            yield process, line.split()[-1]
        finally:
            process.kill()


def weir(*words: object) -> subprocess.CompletedProcess[str]:
    """One command, to its end."""
    return subprocess.run(
        [*WEIR, *map(str, words)], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


@pytest.fixture
def csv_file(tmp_path: Path) -> Path:
    """A table of a few MB."""
    path = tmp_path / "items.csv"
    path.write_text("id,text\n" + "".join(f"{i},{'x' * 200}\n" for i in range(20_000)))
    return path


def test_load_scan_and_end(tmp_path: Path, csv_file: Path) -> None:
    """What is loaded is scanned, survives SIGTERM and a restart, and both servers end with exit code 0."""
    with serving(tmp_path / "data") as (server, endpoint):
        loaded = weir("load", csv_file, "--primary-key", "id", "-e", endpoint)
        assert (loaded.returncode, loaded.stderr.count("\n")) == (0, 1)
        assert loaded.stderr.startswith("types found: id int64, text string;")
        scanned = weir("scan", "items", "--format", "json", "-c", "id", "-e", endpoint)
        assert sorted(json.loads(line)["id"] for line in scanned.stdout.splitlines()) == list(range(20_000))
        locked = weir("serve", "--data", tmp_path / "data", "--port", 0)
        assert (locked.returncode, locked.stdout, locked.stderr.count("\n")) == (1, "", 1)
        in_use = weir("serve", "--data", tmp_path / "other", "--port", endpoint.rpartition(":")[2])
        assert (in_use.returncode, in_use.stderr.count("\n")) == (1, 1)
        assert "in use" in in_use.stderr
        server.send_signal(signal.SIGTERM)
        assert server.wait(TIMEOUT_S) == 0
    with serving(tmp_path / "data") as (server, endpoint):
        assert weir("scan", "items", "--format", "none", "-e", endpoint).stdout == "20000 rows\n"
        server.send_signal(signal.SIGINT)
        assert server.wait(TIMEOUT_S) == 0


def test_interrupted_and_cut_off_scans(tmp_path: Path, csv_file: Path) -> None:
    """Ctrl-C is one line and exit code 130; a reader that leaves early is no complaint; no half file stays."""
    with serving(tmp_path / "data") as (_, endpoint):
        weir("load", csv_file, "--primary-key", "id", "-e", endpoint)
        command = [*WEIR, "scan", "items", "--format", "json", "-e", endpoint]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as scan:
            assert scan.stdout is not None
            assert scan.stderr is not None
            scan.stdout.readline()  # The rest is more than a pipe holds: the command waits for us.
            scan.send_signal(signal.SIGINT)
            assert scan.wait(TIMEOUT_S) == 130
            assert scan.stderr.read() == "weir: interrupted\n"
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as scan:
            assert scan.stdout is not None
            assert scan.stderr is not None
            scan.stdout.readline()
            scan.stdout.close()
            assert scan.wait(TIMEOUT_S) != 0
            assert scan.stderr.read() == ""
