"""`weir leases`, `weir checkpoint` and scans of what they keep, against a server in another thread."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pytest

import scanner.sync
from scanner.cli import run
from scanner.server.auth.principals import Credentials, make_token, token_sha256
from scanner.server.config import ScannerConfig
from tests.support.server import RunningServer, running_server

pytestmark = [pytest.mark.socket, pytest.mark.rocks]

Weir = Callable[..., tuple[int, str, str]]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    """A server with table `items` of two buckets."""
    with running_server(tmp_path / "data", ScannerConfig(checkpoint_interval_s=0)) as running:
        with scanner.sync.connect(running.endpoint) as client:
            rows = pa.table({"id": range(10)})
            client.create_table("items", rows.schema, ["id"], 2).write(rows)
        yield running


def columns(output: str) -> list[list[str]]:
    """The words of each row of a table."""
    return [line.split() for line in output.splitlines()[2:]]


def test_the_life_of_a_lease(command: Weir) -> None:
    """Acquired, listed, scanned, renewed, released and dropped."""
    assert command("leases") == (0, "", "no leases; acquire one with: weir leases acquire TABLE\n")
    code, out, err = command("leases", "acquire", "items", "--id", "nightly", "--ttl", 3600)
    assert (code, err) == (0, "")
    rows = columns(out)
    assert [(row[0], row[1], row[2], row[3], row[4]) for row in rows] == [
        ("nightly", "anonymous", "60m", "items", "0"),
        ("nightly", "anonymous", "60m", "items", "1"),
    ]
    assert sum(int(row[5]) for row in rows) == 10
    assert columns(command("leases", "--table", "items")[1])[0][0] == "nightly"
    code, out, err = command("leases", "--table", "itms")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "'itms'" in err
    listed = json.loads(command("leases", "list", "--json")[1])
    assert (listed["lease_id"], listed["ttl_s"], len(listed["buckets"])) == ("nightly", 3600, 2)
    assert command("scan", "items", "--lease", "nightly", "--format", "none") == (0, "10 rows\n", "")
    code, out, err = command("leases", "renew", "nightly", "--ttl", 120)
    assert (code, out) == (0, "")
    assert re.fullmatch(r"lease nightly ends in 1[12][0-9][0-9.]* s, unless it is renewed\n", err)
    assert command("leases", "release", "nightly", "items:0") == (0, "", "lease nightly keeps 1 bucket\n")
    assert command("leases", "release", "nightly", "items") == (0, "", "lease nightly is gone\n")
    assert command("leases", "release", "nightly", "items") == (0, "", "there was no lease nightly\n")
    assert command("leases", "drop", "nightly", "b") == (
        0,
        "",
        "there was no lease nightly\nthere was no lease b\n",
    )
    code, out, err = command("leases", "renew", "nightly")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "acquire it again" in err


def test_the_lease_of_another_is_not_released(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An administrator who has none of that id is told so, though another principal has one, which stays."""
    tokens = {name: make_token() for name in ("admin", "anna")}
    principals = "\n".join(
        f'[principals.{name}]\ntoken_sha256 = "{token_sha256(token)}"\nread = "*"\nwrite = "*"\n'
        f"admin = {'true' if name == 'admin' else 'false'}"
        for name, token in tokens.items()
    )
    monkeypatch.setenv("WEIR_TOKEN", tokens["admin"])
    with (
        running_server(tmp_path / "data", credentials=Credentials.parse(principals)) as server,
        scanner.sync.connect(server.endpoint, token=tokens["anna"]) as anna,
    ):
        anna.create_table("items", pa.schema([("id", pa.int64())]), ["id"], 1)
        anna.acquire_lease(scanner.LeaseTarget("items", state="log"), lease_id="nightly")
        release = ["leases", "release", "nightly", "items", "-e", server.endpoint]
        assert run(release) == 0
        assert capfdbinary.readouterr().err == b"there was no lease nightly\n"
        assert len(anna.list_leases()) == 1
        assert run([*release, "--principal", "anna"]) == 0
        assert capfdbinary.readouterr().err == b"lease nightly is gone\n"
        assert anna.list_leases() == []


def test_choosing_states(command: Weir) -> None:
    """Buckets, an offset, the log alone, what is there only, and a part of what was asked for."""
    code, _, err = command("leases", "acquire", "items", "--state", "newest_existing")
    assert (code, err.count("\n")) == (1, 1)
    assert "items[0] cannot be leased (and 1 more): there is no checkpoint" in err
    code, out, _ = command("leases", "acquire", "items:1", "--id", "x", "--state", "log")
    assert (code, columns(out)[0][4], columns(out)[0][6]) == (0, "1", "-")
    code, out, _ = command("leases", "acquire", "items:0", "--id", "x", "--offset", 2)
    assert columns(out)[0][4:6] == ["0", "2"]
    code, out, err = command("leases", "acquire", "items:0,7", "none", "--id", "x", "--partial")
    assert code == 0
    assert err == (
        "not leased: items[7]: table 'items' has no bucket 7; it has 0 to 1\n"
        "not leased: none: there is no table 'none'\n"
    )
    for words in (("--checkpoint", 0), ("--offset", 0)):
        code, _, err = command("leases", "acquire", "items:0", "--id", "x", "--state", "new", *words)
        assert (code, "--state goes with neither" in err) == (1, True)
    for targets in (["items"], ["items:0", "items:0,1"]):
        code, _, err = command("leases", "acquire", *targets, "--id", "x", "--offset", 2)
        assert (code, err) == (1, "weir: --offset is of one bucket: name that, for example items:0\n")
    code, out, _ = command("leases", "acquire", "items:0", "--id", "x", "--checkpoint", 0)
    assert (code, columns(out)[0][6]) == (0, "0")
    for wrong in (("items:",), ("items:a",), (":1",), ("items", "--offset", "3")):
        code, out, err = command("leases", "acquire", *wrong)
        assert (code, out, err.count("\n")) == (1, "", 1), wrong
    code, _, err = command("leases", "acquire", f"items:{2**32}")
    assert (code, err) == (
        1,
        f"weir: a bucket of table 'items' must be a whole number, 0..{2**32 - 1}, not {2**32}\n",
    )
    for option, what in (("--offset", "a log offset"), ("--checkpoint", "the id of a checkpoint")):
        code, _, err = command("leases", "acquire", "items:0", option, 2**64)
        assert (code, err) == (1, f"weir: {what} must be a whole number, 0..{2**64 - 1}, not {2**64}\n")
    assert command("leases", "acquire", "items", "--ttl", "0")[0] == 2
    assert command("leases", "acquire")[0] == 2
    assert command("leases", "drop", "x") == (0, "", "dropped x\n")


@pytest.mark.parametrize("named", [False, True])
def test_a_lease_that_nobody_was_told_of_is_dropped(
    command: Weir, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    """Ctrl-C when it is there already: an id that was made up was not printed, one that was chosen is known."""

    def interrupted(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    words = ["--id", "known"] if named else []
    with monkeypatch.context() as patch:
        patch.setattr(importlib.import_module("scanner.cli.leases"), "_print", interrupted)
        patch.setattr("scanner.cli.forget_output", lambda: None)  # The output is that of the test as well.
        assert command("leases", "acquire", "items", *words) == (130, "", "weir: interrupted\n")
    left = [json.loads(line)["lease_id"] for line in command("leases", "list", "--json")[1].splitlines()]
    assert left == ["known"] * named


def test_checkpoints(command: Weir) -> None:
    """Made of a bucket or of all, listed with who keeps them, and scanned."""
    code, _, err = command("scan", "items", "--snapshot", "--format", "none")
    assert (code, err.count("\n")) == (1, 1)
    assert "make one with weir checkpoint items" in err
    none = "no checkpoints; make one with: weir checkpoint items\n"
    assert command("checkpoint", "items", "--list") == (0, "", none)
    code, out, err = command("checkpoint", "items", "--bucket", 1)
    assert (code, err, len(columns(out)), columns(out)[0][0]) == (0, "", 1, "1")
    code, out, err = command("checkpoint", "items")
    assert (code, err, [row[0] for row in columns(out)]) == (0, "", ["0", "1"])
    command("leases", "acquire", "items:0")
    code, out, _ = command("checkpoint", "items", "--list")
    assert [(row[0], row[-1]) for row in columns(out)] == [("0", "1"), ("1", "0")]
    # By the server's clock: how old that is by another one says nothing.
    assert all(re.search(r"  [0-9]{4}-[0-9-]{5} [0-9:]{8} UTC  ", line) for line in out.splitlines()[2:])
    assert command("scan", "items", "--snapshot", "--format", "none") == (0, "10 rows\n", "")
    for wrong in (
        ("other",),
        ("items", "--bucket", 2),
        ("items", "--bucket", 2, "--list"),
        ("items", "--bucket", 2**70),
    ):
        code, out, err = command("checkpoint", *wrong)
        assert (code, out, err.count("\n")) == (1, "", 1), wrong


def test_a_server_is_told_what_to_keep(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The options of `weir serve` are its limits; times and sizes that cannot be are refused."""
    told: list[ScannerConfig] = []

    async def serve(*arguments: object) -> None:
        told.extend(each for each in arguments if isinstance(each, ScannerConfig))

    # The module; by attribute access it is hidden behind the command of its name.
    monkeypatch.setattr(importlib.import_module("scanner.cli.serve"), "_serve", serve)
    words = [
        *("--log-retention", "3600"),
        *("--log-retention-bytes", "1000000"),
        *("--checkpoint-interval", "0"),
        *("--images", "off"),
    ]
    assert run(["serve", "--data", str(tmp_path), *words]) == 0
    (config,) = told
    assert (config.log_retention_s, config.log_retention_bytes, config.checkpoint_interval_s) == (
        3600,
        1_000_000,
        0,
    )
    assert (config.images, ScannerConfig().images) == ("off", "auto")
    for name in words[::2]:
        assert run(["serve", "--data", str(tmp_path), name, "-1"]) == 2
    for name in ("--log-retention", "--checkpoint-interval", "--session-ttl", "--drain-timeout"):
        assert run(["serve", "--data", str(tmp_path), name, "nan"]) == 2
    assert len(told) == 1
