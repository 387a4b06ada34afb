"""`weir streams`, `weir snapshots`, `weir top --once`, `weir drain`, against a server in another thread."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import scanner.sync

if TYPE_CHECKING:
    from tests.support.server import RunningServer

pytestmark = [pytest.mark.socket, pytest.mark.rocks]

Weir = Callable[..., tuple[int, str, str]]


@pytest.fixture
def scanning(server: RunningServer) -> Iterator[scanner.sync.Batches]:
    """A scan that has had its first batch and is waited for by nobody."""
    rows = pa.table({"id": range(20_000), "text": ["x" * 100] * 20_000})
    with scanner.sync.connect(server.endpoint) as client:
        table = client.create_table("items", rows.schema, ["id"], 1)
        table.write(rows)
        with table.new_scan().with_credit(50_000).execute() as batches:
            next(batches)
            yield batches


@pytest.mark.usefixtures("scanning")
def test_streams(command: Weir) -> None:
    """The scan is a line for people, and an object with everything for programs."""
    code, out, _ = command("streams")
    assert code == 0
    (line,) = [line for line in out.splitlines() if "items[0]" in line]
    assert "Scan" in line
    assert "@20000 +0" in line
    (call,) = [line for line in out.splitlines() if "ListStreams" in line]
    assert "-" in call.split()  # no credit: it is no scan
    code, out, _ = command("streams", "--json")
    scan, asking = map(json.loads, out.splitlines())
    assert (scan["scan"]["table"], scan["scan"]["log_offset"], scan["principal"]) == (
        "items",
        20_000,
        "anonymous",
    )
    assert scan["stall"] in scan["stalls"]
    assert asking["path"] == "/weir.v1.Admin/ListStreams"
    assert asking["scan"] is None


def test_image(server: RunningServer, command: Weir) -> None:
    """Made, listed, described and dropped, with why there is none; --list and --drop exclude each other."""
    with scanner.sync.connect(server.endpoint) as client:
        table = client.create_table(
            "items", pa.schema([pa.field("id", pa.int64(), nullable=False)]), ["id"], 2
        )
        table.write(pa.table({"id": range(1000)}))
        ends = [each.end_offset for each in table.offsets()]
    none = (0, "no image of 2 buckets: no scan has asked for one\n", "")
    assert command("image", "items", "--list") == none
    code, out, err = command("image", "items")
    assert (code, err) == (0, "")
    made = [line.split() for line in out.splitlines()[2:]]
    assert [line[:4] for line in made] == [
        [str(index), str(end), "0", str(end)] for index, end in enumerate(ends)
    ]
    assert command("image", "items", "--list") == (0, out, "")
    assert command("image", "items", "--list", "--bucket", 1)[1].splitlines()[-1].split() == made[1]
    assert command("describe", "items")[1].endswith(out)
    assert command("image", "items", "--drop", "--bucket", 1) == (0, "", "dropped 1 image\n")
    assert command("image", "items", "--list")[1].splitlines()[2:] == [
        out.splitlines()[2],
        "no image of bucket 1: no scan has asked for one",
    ]
    assert command("image", "items", "--drop") == (0, "", "dropped 1 image\n")
    assert command("image", "items", "--list") == none
    no_bucket = (1, "", "weir: table items has no bucket 2; it has 0 to 1\n")
    assert command("image", "items", "--list", "--bucket", 2) == no_bucket
    code, _, err = command("image", "items", "--list", "--drop")
    assert (code, err.count("\n")) == (1, 1)
    assert command("image", "other")[0] == 1


def test_compact_log(server: RunningServer, command: Weir) -> None:
    """By retention nothing young goes; by offset and by time; a lease keeps the rest, and is named with its owner."""
    with scanner.sync.connect(server.endpoint) as client:
        table = client.create_table(
            "items", pa.schema([pa.field("id", pa.int64(), nullable=False)]), ["id"], 1
        )
        for start in (0, 10, 20):
            table.write(pa.table({"id": range(start, start + 10)}))
        code, out, err = command("compact-log", "items")
        assert (code, _words(out), err) == (0, ["0", "0", "0", "30", "0"], "no change was old enough to go\n")
        code, out, err = command("compact-log", "items", "--before", 12, "--bucket", 0)
        assert (code, _words(out), err) == (0, ["0", "10", "10", "30", "0"], "")
        client.acquire_lease("items", lease_id="nightly", ttl_s=600.0)
        table.write(pa.table({"id": range(30, 40)}))
        code, out, err = command("compact-log", "items", "--before", 40, "--bucket", 0)
        assert (code, err) == (0, "")
        assert _words(out) == ["0", "20", "30", "40", "10", *"lease of anonymous @30".split()]
    for wrong in (
        ("items", "--before", 1),
        ("items", "--before", "soon"),
        ("items", "--before", "2020-01-01T00:00:00.1234567Z"),
        ("items", "--before", "2999-01-01"),
        ("items", "--before", 99, "--bucket", 0),
        ("items", "--bucket", 1),
        ("other",),
    ):
        code, out, err = command("compact-log", *wrong)
        assert (code, out, err.count("\n")) == (1, "", 1), wrong


def _words(out: str) -> list[str]:
    """Those of the only row of a table."""
    return out.splitlines()[2].split()


@pytest.mark.usefixtures("scanning")
def test_snapshots(command: Weir) -> None:
    """What the scan pins is listed, for its table; a table that is not there is an error."""
    code, out, err = command("snapshots", "--table", "items")
    assert (code, err) == (0, "")
    assert "20000" in out
    assert "stream" in out
    pinned = json.loads(command("snapshots", "--json")[1])
    assert (pinned["holder"], pinned["scan"]["iterator_open"]) == ("stream", True)
    code, out, err = command("snapshots", "--table", "other")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "'other'" in err


@pytest.mark.usefixtures("scanning")
def test_top_once(command: Weir, server: RunningServer) -> None:
    """One look, without the look itself among the streams, and without control characters."""
    code, out, err = command("top", "--once")
    assert (code, err) == (0, "")
    title, headings, row = out.rstrip("\n").split("\n")
    assert title.startswith(f"weir {server.endpoint}  1 stream  1 pinned")
    assert headings.startswith("STREAM")
    assert "items[0]" in row
    assert "\x1b" not in out


def test_drain(command: Weir, server: RunningServer) -> None:
    """The server is told to end, and says so; afterwards nobody is let in."""
    assert command("drain", "--timeout", "5") == (0, "", "draining; 0 calls run\n")
    server.wait_until(lambda running: running.statistics().transport.connections == 0)
    code, out, err = command("streams")
    assert (code, out, err.count("\n")) == (1, "", 1)


def test_intervals_that_cannot_be(command: Weir) -> None:
    """A time out of range is a command that cannot be read."""
    assert command("top", "--interval", "0")[0] == 2
    assert command("drain", "--timeout", "-1")[0] == 2
    for words in (
        ("top", "--interval"),
        ("drain", "--timeout"),
        ("leases", "acquire", "x", "--ttl"),
    ):
        code, out, err = command(*words, "nan")
        assert (code, out) == (2, "")
        assert "is no time; times are such as 90 (seconds), 90s, 10m, 12h, 7d; see weir" in err
