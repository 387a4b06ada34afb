"""`weir health`: the exit code is the answer."""

from __future__ import annotations

import errno
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import trio

import scanner.cli.health
from scanner.cli import run
from scanner.client.endpoints import parse_endpoint
from scanner.server.auth.principals import Credentials
from tests.support import certificates
from tests.support.server import running_server

pytestmark = [pytest.mark.socket, pytest.mark.rocks]

Capture = pytest.CaptureFixture[str]
NOBODY = Credentials.parse('[principals.somebody]\ntoken_sha256 = "' + "0" * 64 + '"')


def asked(capsys: Capture, *words: object) -> tuple[int, str, str]:
    """Exit code, output and error line."""
    code = run(["health", *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_server_that_takes_calls(tmp_path: Path, capsys: Capture) -> None:
    """0 for the server and each of its services, 2 for a service that it does not have."""
    with running_server(tmp_path / "data") as running:
        assert asked(capsys, "-e", running.endpoint) == (0, "serving\n", "")
        assert asked(capsys, "-e", running.endpoint, "--service", "weir.v1.Scanner") == (0, "serving\n", "")
        code, out, err = asked(capsys, "-e", running.endpoint, "--service", "weir.v9.Scanner")
    assert (code, out) == (2, "")
    assert "no service 'weir.v9.Scanner' is known here" in err


def test_whoever_asks_needs_no_token(tmp_path: Path, capsys: Capture) -> None:
    """A server that knows its callers, behind TLS, answers an orchestrator that trusts its CA."""
    tls = certificates.server_tls(tmp_path)
    ca = certificates.ca_file(tmp_path)
    with running_server(tmp_path / "data", tls=tls, credentials=NOBODY) as running:
        assert asked(capsys, "-e", running.endpoint, "--tls-ca", ca) == (0, "serving\n", "")


def test_a_server_that_does_not_take_calls(tmp_path: Path, capsys: Capture) -> None:
    """1 where the answer is no."""
    with running_server(tmp_path / "data") as running:
        running.ask(lambda server: server._health.drain())
        assert asked(capsys, "-e", running.endpoint) == (1, "not serving\n", "")


def test_a_server_that_drains(tmp_path: Path, capsys: Capture) -> None:
    """2: it does not listen any more."""
    with running_server(tmp_path / "data") as running:
        trio.from_thread.run(running.server.drain, 0, trio_token=running.token)
        code, out, _ = asked(capsys, "-e", running.endpoint)
    assert (code, out) == (2, "")


def test_nobody_answers(capsys: Capture) -> None:
    """2, and one line, where nothing listens and where what listens says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"127.0.0.1:{listener.getsockname()[1]}"
        code, out, err = asked(capsys, "-e", endpoint, "--timeout", "0.2")
        assert (code, out) == (2, "")
        assert err == f"weir: the server at {endpoint} did not answer within 0.2 s\n"
    code, out, err = asked(capsys, "-e", endpoint)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"no weir server answers at {endpoint}" in err


def test_a_process_that_may_open_nothing_has_no_answer(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2, and not 1: the server has not said that it takes no calls."""

    async def refused(*_: object) -> bool:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(scanner.cli.health, "_ask", refused)
    assert asked(capsys) == (2, "", "weir: [Errno 24] Too many open files\n")


def test_an_output_that_is_full(tmp_path: Path) -> None:
    """The exit code is the answer all the same: what restarts a server by it must not do so for a disk that is full."""
    command = [sys.executable, "-m", "scanner.cli", "health", "-e"]
    with running_server(tmp_path / "data") as running, Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*command, running.endpoint], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
        both = subprocess.run([*command, running.endpoint], stdout=full, stderr=full, check=False)
    assert both.returncode == 0
    assert (done.returncode, done.stderr) == (
        0,
        "weir: cannot write standard output: No space left on device\n",
    )


def test_an_output_that_is_closed(tmp_path: Path, kept_port: int) -> None:
    """The exit code is the answer there, too."""
    command = ["sh", "-c", '"$0" -m scanner.cli health -e "$1" >&-', sys.executable, f"127.0.0.1:{kept_port}"]
    with running_server(tmp_path / "data", port=kept_port):
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    nobody = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert nobody.returncode == 2


@pytest.mark.parametrize(
    ("number", "ends"),
    [(signal.SIGINT, (130, "interrupted")), (signal.SIGTERM, (143, "terminated"))],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_signal_while_it_waits(number: signal.Signals, ends: tuple[int, str]) -> None:
    """The exit code and the line of every command, where what listens says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [sys.executable, "-m", "scanner.cli", "health", "--timeout", "3600", "-e"]
        with subprocess.Popen(
            [*command, f"127.0.0.1:{listener.getsockname()[1]}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1)  # The client's preface: it is about to wait for ours.
                process.send_signal(number)
                out, err = process.communicate(timeout=500)
    assert (process.returncode, out, err) == (ends[0], "", f"weir: {ends[1]}\n")


def test_a_signal_is_taken_at_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not between any two instructions, where a coroutine may have been made that nobody awaits then."""
    went_on: list[str] = []

    def interrupted(endpoint: str) -> tuple[str, int]:
        signal.raise_signal(signal.SIGINT)
        went_on.append(endpoint)
        return parse_endpoint(endpoint)

    monkeypatch.setattr("scanner.cli.health.parse_endpoint", interrupted)
    # As Python has it: Spark, where it has run in this process, has a handler of its own.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert run(["health", "-e", "127.0.0.1:1"]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert went_on == ["127.0.0.1:1"]
