"""What people see: commands on a real terminal of 80 columns."""

from __future__ import annotations

import contextlib
import errno
import logging
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

import scanner.cli.waits
import scanner.sync
from scanner.cli.waits import told_of_waits
from tests.support.server import RunningServer, running_server
from tests.support.terminal import WAIT_S, on_a_terminal, shown_by, shown_by_all, shown_until

pytestmark = [pytest.mark.socket, pytest.mark.rocks, pytest.mark.slow]

ESCAPE = "a\x1b[31m"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with a table of many columns, and one of hostile names and long values."""
    with running_server(tmp_path_factory.mktemp("data")) as running:
        with scanner.sync.connect(running.endpoint) as client:
            wide = pa.table({f"column_{number}": [number, number + 1] for number in range(40)})
            client.create_table("wide", wide.schema, ["column_0"], 1).write(wide)
            hostile = pa.table({"id": [1, 2], ESCAPE: ["x\x1b[2J\x9b1my\tz", "v" * 1_000_000]})
            client.create_table("hostile", hostile.schema, ["id"], 1).write(hostile)
        yield running


def test_wide_table(server: RunningServer) -> None:
    """Columns that fit are shown, the others named under the table, and no line is longer than the terminal."""
    code, lines = shown_by("scan", "wide", "-e", server.endpoint)
    assert code == 0
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == [f"column_{number}" for number in range(8)]
    assert lines[2].split() == [str(number) for number in range(8)]
    assert lines[4:6] == ["", lines[5]]
    assert lines[5].startswith("32 columns do not fit (--columns picks, --format vertical has all):")
    code, lines = shown_by("sql", "SELECT * FROM wide", "-e", server.endpoint)
    assert lines[5].startswith("32 columns do not fit (SELECT picks, --format vertical has all):")
    assert "column_8," in " ".join(lines[5:])


def test_vertical_format(server: RunningServer) -> None:
    """Every column of a row is a line."""
    code, lines = shown_by("scan", "wide", "--format", "vertical", "-n", "1", "-e", server.endpoint)
    assert code == 0
    assert [line.split() for line in lines[1:]] == [[f"column_{number}", str(number)] for number in range(40)]


@pytest.mark.parametrize("pager", ["cat", "/nonexistent", "less 'x"])
def test_a_pager_that_is_none(server: RunningServer, pager: str) -> None:
    """What a pager would show is shown without one."""
    code, lines = shown_by("describe", "wide", "-e", server.endpoint, pager=pager)
    assert code == 0
    assert {f"column_{number}" for number in range(40)} <= {line.partition(" ")[0] for line in lines}


def test_values_and_names_that_are_hostile(server: RunningServer) -> None:
    """Escapes of values and names are shown, not obeyed, in every format and in errors; a megabyte takes one line."""
    end = ["-e", server.endpoint]
    shown = shown_by_all(
        ["scan", "hostile", "--format", "vertical", "--limit", "1", *end],
        ["scan", "hostile", "--format", "json", *end],
        ["scan", "hostile", "--format", "csv", *end],
        ["scan", "hostile", "-c", ESCAPE + "x", *end],
        ["scan", ESCAPE, *end],
        ["describe", "hostile", *end],
        ["tables", *end],
        ["leases", "release", ESCAPE, "hostile", *end],
        ["load", ESCAPE, *end],
    )
    assert shown.count("weir: ") == 4, "no such column, table, lease and file"
    # In CSV a tab is one.
    assert re.findall(r"[\x00-\x1f\x7f-\x9f]", shown.replace("\r\n", "").replace("\t", "")) == []
    code, lines = shown_by("scan", "hostile", *end)
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", "".join(lines))
    assert (code, len(lines)) == (0, 4)
    assert lines[0] == r"id  a\x1b[31m"
    assert lines[2] == r" 1  x\x1b[2J\x9b1my\tz"
    assert len(lines[3]) == 80
    assert lines[3].endswith("v…")


@pytest.mark.parametrize(("kind", "words"), [("arrow", []), ("parquet", ["-o", "-"])])
def test_what_is_not_for_terminals(server: RunningServer, kind: str, words: list[str]) -> None:
    """Binary formats are refused there, also under the name of standard output."""
    code, lines = shown_by("scan", "wide", "--format", kind, *words, "-e", server.endpoint)
    assert code == 1
    assert lines[0].startswith(f"weir: {kind} is not for a terminal")


def test_a_server_that_is_waited_for_is_told() -> None:
    """What takes connections and hangs up is tried again and again: the terminal says why, and how to end that."""

    def hang_up() -> None:
        with contextlib.suppress(OSError):  # Closed, which ends this.
            while True:
                listener.accept()[0].close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"127.0.0.1:{listener.getsockname()[1]}"
        threading.Thread(target=hang_up, daemon=True).start()
        with on_a_terminal("tables", "-e", endpoint) as (process, terminal):
            shown = shown_until(terminal, b"Ctrl-C ends that").decode()
            process.send_signal(signal.SIGINT)
            assert shown_until(terminal, None).decode().endswith("weir: interrupted\r\n")
            assert process.wait(WAIT_S) == 130
        listener.shutdown(socket.SHUT_RDWR)
    assert shown.startswith(f"weir: what answers at {endpoint} ")
    assert "; trying again (1 of 16); " in shown.replace("\r\n", "")


def test_waits_are_told_at_rare_intervals(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first failure at once, the others of half a minute not; to a file, and behind the command, none."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    logger = logging.getLogger("weir.client")
    with told_of_waits():
        logger.info("to a file")
    monkeypatch.setattr(scanner.cli.waits, "is_terminal", lambda: True)
    with told_of_waits():
        for now in (0.0, 1.0, 29.9, 30.0, 31.0):
            logger.info("failed at %g", now)
    logger.info("behind it")
    assert capsys.readouterr().err == (
        "weir: failed at 0; Ctrl-C ends that\nweir: failed at 30; Ctrl-C ends that\n"
    )


def test_a_terminal_that_is_gone_ends_no_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its errors do not reach whoever has only logged."""

    def gone(_: str) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(scanner.cli.waits, "is_terminal", lambda: True)
    monkeypatch.setattr(scanner.cli.waits, "note", gone)
    with told_of_waits():
        logging.getLogger("weir.client").info("failed")
