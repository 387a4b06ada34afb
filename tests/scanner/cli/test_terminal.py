"""What people see: commands on a real terminal of 80 columns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import scanner.sync
from tests.support.server import RunningServer, running_server
from tests.support.terminal import shown_by

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
    for words in (
        ["scan", "hostile"],
        ["scan", "hostile", "--format", "vertical", "--limit", "1"],
        ["scan", "hostile", "--format", "json"],
        ["scan", "hostile", "--format", "csv"],
        ["scan", "hostile", "-c", ESCAPE + "x"],
        ["scan", ESCAPE],
        ["describe", "hostile"],
        ["describe", ESCAPE],
        ["tables"],
        ["leases", "release", ESCAPE, "hostile"],
        ["load", ESCAPE],
    ):
        _, lines = shown_by(*words, *end)
        shown = "".join(lines).replace("\t", "")  # In CSV a tab is one.
        assert not re.search(r"[\x00-\x1f\x7f-\x9f]", shown), words
    code, lines = shown_by("scan", "hostile", *end)
    assert (code, len(lines)) == (0, 4)
    assert lines[0] == r"id  a\x1b[31m"
    assert lines[2] == r" 1  x\x1b[2J\x9b1my\tz"
    assert len(lines[3]) == 80
    assert lines[3].endswith("v…")


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_what_is_not_for_terminals(server: RunningServer, kind: str, tmp_path: Path) -> None:
    """Binary formats are refused there, also under the name of standard output."""
    for words in ([], ["-o", "-"]):
        code, lines = shown_by("scan", "wide", "--format", kind, *words, "-e", server.endpoint)
        assert code == 1
        assert lines[0].startswith(f"weir: {kind} is not for a terminal")
