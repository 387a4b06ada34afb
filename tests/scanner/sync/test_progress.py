"""Progress of a scan: shown where somebody looks, and nowhere else."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest
from rich.live import Live

import scanner.sync
from tests.support.client import SCHEMA, rows
from tests.support.server import running_server

pytestmark = [pytest.mark.socket, pytest.mark.rocks]


@pytest.mark.parametrize("looked_at", [True, False])
def test_progress_is_shown_to_whoever_looks(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, looked_at: bool
) -> None:
    """How many rows there are, on standard error if that is a terminal; the rows are the same."""
    if looked_at:
        monkeypatch.setenv("FORCE_COLOR", "1")  # As rich says that a terminal is claimed.
    with running_server(tmp_path) as server, scanner.sync.connect(server.endpoint) as client:
        table = client.create_table("items", SCHEMA, ["k"], buckets=3)
        table.write(rows(1_000))
        scan = table.new_scan()
        assert scan.to_arrow(progress=True).num_rows == 1_000
        assert len(scan.to_pandas(progress=True)) == scan.to_polars(progress=True).height == 1_000
    out, err = capfd.readouterr()
    assert out == ""
    assert ("1,000 rows" in err) == looked_at
    assert looked_at or err == ""


def test_interrupted_while_rich_begins(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cursor of the terminal is shown again."""

    def interrupted(_: Live) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(Live, "refresh", interrupted)
    with running_server(tmp_path) as server, scanner.sync.connect(server.endpoint) as client:
        scan = client.create_table("items", SCHEMA, ["k"], buckets=1).new_scan()
        with pytest.raises(KeyboardInterrupt):
            scan.to_arrow(progress=True)
    assert capfd.readouterr().err == "\x1b[?25l\x1b[?25h"
