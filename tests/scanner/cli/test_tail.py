"""`weir tail` and `weir offsets` as users run them: processes, signals, pipes and a terminal."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pytest

import scanner
import scanner.sync
from scanner.cli import run
from scanner.server.auth.access import CredentialsFile
from scanner.server.config import ScannerConfig
from tests.support.processes import TIMEOUT_S, WEIR, serving
from tests.support.server import RunningServer, running_server
from tests.support.terminal import on_a_terminal, shown_until

pytestmark = [pytest.mark.socket, pytest.mark.rocks, pytest.mark.slow]

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
BUCKETS = 2
Lines = list[dict[str, Any]]


def rows(keys: range, text: str) -> pa.Table:
    """Rows to write."""
    return pa.table([list(keys), [text] * len(keys)], schema=SCHEMA)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    """A server in a thread of its own, with a table of twenty rows."""
    with running_server(tmp_path / "data", ScannerConfig(heartbeat_interval_s=0.05)) as running:
        with scanner.sync.connect(running.endpoint) as client:
            client.create_table("items", SCHEMA, ["id"], BUCKETS).write(rows(range(20), "first"))
        yield running


@contextmanager
def tailing(server: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """`weir tail` in a process of its own."""
    command = [*WEIR, "tail", *words, "-e", server]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def read(process: subprocess.Popen[str], count: int) -> Lines:
    """The next lines of JSON."""
    assert process.stdout is not None
    return [json.loads(process.stdout.readline()) for _ in range(count)]


def ended(process: subprocess.Popen[str]) -> tuple[int, list[str]]:
    """The exit code, and the lines of standard error."""
    _, errors = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, errors.splitlines()


def places(errors: list[str]) -> list[str]:
    """The arguments with which to go on, as a shell reads them."""
    (line,) = [each for each in errors if each.startswith("go on with: ")]
    program, command, *words = shlex.split(line.removeprefix("go on with: "))
    assert (program, command) == ("weir", "tail")
    return words


def json_lines(*words: str, capture: pytest.CaptureFixture[bytes]) -> tuple[Lines, list[str]]:
    """Run a command here that ends by itself: its lines, and those of standard error."""
    capture.readouterr()
    assert run([*words]) == 0
    captured = capture.readouterr()
    return [json.loads(line) for line in captured.out.splitlines()], captured.err.decode().splitlines()


def test_a_column_that_is_added_is_told_of_once(server: RunningServer) -> None:
    """The tail goes on without it, and says so; the line that it prints at its end shows it."""
    with tailing(server.endpoint, "items", "--json", "--bucket", "0") as process:
        with scanner.sync.connect(server.endpoint) as client:
            while not any(each.scan for each in client.list_streams()):
                pass
            table = client.table("items")
            table.add_column(pa.field("more", pa.int64()))
            table = client.table("items")
            for number in (100, 200):
                ids = pa.array(range(number, number + 20), pa.int64())
                table.write(pa.table({"id": ids, "text": ["x"] * 20, "more": ids}))
                assert "more" not in read(process, 1)[0]
        process.send_signal(signal.SIGINT)
        _, errors = ended(process)
    assert sum("new columns, which this tail does not show" in each for each in errors) == 1


@pytest.mark.parametrize(
    ("signal_", "code", "says"),
    [
        (signal.SIGINT, 130, "weir: interrupted"),
        (signal.SIGTERM, 143, "weir: terminated"),
        (signal.SIGHUP, 129, "weir: hung up"),
    ],
)
def test_a_signal_prints_where_to_go_on(
    server: RunningServer,
    capfdbinary: pytest.CaptureFixture[bytes],
    signal_: signal.Signals,
    code: int,
    says: str,
) -> None:
    """Under a writer: what is pasted goes on there; nothing is lost, nothing comes twice."""
    written = threading.Event()

    def write() -> None:
        with scanner.sync.connect(server.endpoint) as client:
            table = client.table("items")
            for number in range(30):
                table.write(rows(range(number, number + 15), f"text {number}"))
                if number == 10:
                    written.set()

    writer = threading.Thread(target=write)
    with tailing(server.endpoint, "items", "--from", "earliest", "--json", "-w", "id >= 0") as tail:
        seen = read(tail, 20)
        writer.start()
        assert written.wait(TIMEOUT_S)
        tail.send_signal(signal_)
        out, err = tail.communicate(timeout=TIMEOUT_S)
        seen += [json.loads(line) for line in out.splitlines()]
    assert (tail.returncode, err.splitlines()[-1]) == (code, says)
    words = places(err.splitlines())
    assert words[-2:] == ["--endpoint", server.endpoint]
    assert "--json" in words
    writer.join(TIMEOUT_S)
    more, _ = json_lines("tail", *words, "--to", "end", capture=capfdbinary)
    for bucket in range(BUCKETS):
        offsets = [each["_log_offset"] for each in seen + more if each["_bucket"] == bucket]
        assert offsets == list(range(len(offsets)))
    with scanner.sync.connect(server.endpoint) as client:
        assert len(seen + more) == sum(each.end_offset for each in client.table("items").offsets())


def test_a_reader_that_leaves(server: RunningServer) -> None:
    """As with `| head -1`: exit code 141 at once, on a table where nothing happens, and where to go on."""
    with tailing(server.endpoint, "items", "--from", "earliest", "--json") as tail:
        assert tail.stdout is not None
        assert tail.stderr is not None
        read(tail, 20)
        tail.stdout.close()
        errors = tail.stderr.read().splitlines()
        assert tail.wait(TIMEOUT_S) == 141
    assert len(errors) == 1
    assert set(places(errors)) >= {"--from", "--json"}


def test_a_reader_that_stalls_is_not_waited_for(server: RunningServer) -> None:
    """Ctrl-C ends a tail whose pipe is full; what was not printed whole comes again."""
    with scanner.sync.connect(server.endpoint) as client:
        client.table("items").write(rows(range(20), "x" * 100_000))
    with tailing(server.endpoint, "items", "--from", "earliest", "--json") as tail:
        read(tail, 1)
        tail.send_signal(signal.SIGINT)
        assert tail.stderr is not None
        errors = tail.stderr.read().splitlines()
        assert tail.wait(TIMEOUT_S) == 130
    assert places(errors)


def test_a_device_that_is_full(server: RunningServer) -> None:
    """What was written in part comes again, and it is said so, for a group, too."""
    for words in ([], ["--group", "audit"]):
        command = [*WEIR, "tail", "items", "--from", "earliest", "--to", "end", *words, "-e", server.endpoint]
        with open("/dev/full", "wb") as full:
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=TIMEOUT_S)
        errors = done.stderr.splitlines()
        assert done.returncode == 1
        assert re.match(r"the output breaks off amidst changes of bucket [01], ", errors[0])
        assert errors[-1] == "weir: cannot write standard output: No space left on device"
        if not words:
            assert places(errors)[:5] == ["items", "--from", "0:0", "--from", "1:0"]


def test_a_position_that_is_not_stored(
    server: RunningServer, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a group whose server is lost when lines were printed: they come again, and it is said so."""

    def lose(_: scanner.sync.GroupBatches) -> NoReturn:
        raise scanner.ServerUnavailable("it is gone")

    monkeypatch.setattr(scanner.sync.GroupBatches, "commit", lose)
    words = ["--group", "audit", "--from", "earliest", "--to", "end", "--json", "-e", server.endpoint]
    assert run(["tail", "items", *words]) == 1
    captured = capfdbinary.readouterr()
    (bucket,) = {json.loads(line)["_bucket"] for line in captured.out.splitlines()}
    assert captured.err.decode().splitlines() == [
        f"nobody knows whether the position of bucket {bucket} is stored: what was printed of it last may be printed"
        " once more",
        "weir: it is gone",
    ]


def test_filters_columns_and_limits(server: RunningServer, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """They are the scan's; the columns of a change and the bucket are always there."""
    end = ("-e", server.endpoint)
    found, errors = json_lines(
        "tail", "items", "--from", "earliest", "--to", "end", "--json", "-c", "id", "-w", "id < 5", *end,
        capture=capfdbinary,
    )  # fmt: skip
    assert sorted(each["id"] for each in found) == list(range(5))
    assert set(found[0]) == {"id", "_change_type", "_log_offset", "_commit_timestamp", "_bucket"}
    words = places(errors)
    assert words[words.index("--where") + 1] == "id < 5"
    with scanner.sync.connect(server.endpoint) as client:
        ends = {each.bucket: each.end_offset for each in client.table("items").offsets()}
    assert [word for word in words if re.match(r"\d:", word)] == [f"{each}:{at}" for each, at in ends.items()]

    part, errors = json_lines(
        "tail", "items", "--from", "0", "-n", "3", "--bucket", "1", "--json", *end, capture=capfdbinary
    )
    assert [each["_bucket"] for each in part] == [1, 1, 1]
    assert errors[0] == "in the middle of a commit of bucket 1: its changes come again"
    assert places(errors)[:3] == ["items", "--from", "1:0"]


def test_lines_for_people(
    server: RunningServer, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kind, bucket and offset, time, row; an update is two lines, and nothing in a value is obeyed."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    with scanner.sync.connect(server.endpoint) as client:
        table = client.table("items")
        start = {each.bucket: each.end_offset for each in table.offsets()}
        table.write(rows(range(1), "a\x1b[2J\nb"))
        table.delete([(0,)])
        table.write(rows(range(100, 101), "new"))
    words = [word for bucket, at in start.items() for word in ("--from", f"{bucket}:{at}")]
    assert run(["tail", "items", *words, "--to", "end", "-e", server.endpoint]) == 0
    lines = capfdbinary.readouterr().out.decode().splitlines()
    time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"
    kinds = sorted(line.split("  ")[0] for line in lines)
    assert kinds == ["+I", "+U", "-D", "-U"]
    (put,) = [line for line in lines if line.startswith("+U")]
    assert re.fullmatch(rf'\+U  \d:\d+  {time}  id=0  text="a\\u001b\[2J\\nb"', put)
    shown = ["tail", "items", *words, "--to", "end", "-e", server.endpoint]
    with on_a_terminal(*shown) as (_, terminal):
        seen = shown_until(terminal, b"go on with")
    assert b"\x1b[32m+I\x1b[0m" in seen
    assert b"\x1b[2J" not in seen


def test_colours_only_where_they_are_wanted(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal that has none, and a person who wants none (no-color.org), get the lines as a pipe does."""
    words = ["tail", "items", "--from", "earliest", "--to", "end", "-n", "1", "-e", server.endpoint]
    with on_a_terminal(*words, kind="dumb") as (_, terminal):
        on_a_dumb_one = shown_until(terminal, b"go on with")
    monkeypatch.setenv("NO_COLOR", "1")
    with on_a_terminal(*words) as (_, terminal):
        unwanted = shown_until(terminal, b"go on with")
    for seen in (on_a_dumb_one, unwanted):
        assert b"+I" in seen
        assert b"\x1b" not in seen


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--from", "newest"], "earliest, latest, OFFSET, BUCKET:OFFSET"),
        (["--from", "0:1", "--from", "7"], "cannot read --from '7'"),
        (["--from", "0:0"], "--from says nothing of bucket 1"),
        (
            ["--from", "0:0", "--from", "1:0", "--from", "2:0"],
            "--from names bucket 2; the table has buckets 0..1",
        ),
        (["--bucket", "0", "--from", "1:0"], "--from says nothing of bucket 0"),
        (["--from", "earliest", "--to", "0:0"], "--to says nothing of bucket 1"),
        (["--from", "earliest", "--to", "5:0"], "--to names bucket 5"),
        (["--from", "-1"], "cannot read --from '-1'"),
        (["--from", "0:-1"], "cannot read --from '0:-1'"),
        (["--from", "99999999999999999999"], "whole number"),
        (["--from", "latest", "--to", "0"], ": the stop offset 0 is before"),
        (["--from", "earliest", "--to", "1"], "inside the commit"),
        (["--from", "earliest", "--to", "1000000"], "is not in the changelog"),
        (["--snapshot", "--to", "1"], "inside the commit"),
        (["--from", "2999-01-01"], "2999-01-01T00:00:00+00:00 is in the future: the server's clock says 2"),
        (["--from", "2020-01-01T00:00:00.123456789Z", "--to", "end"], "no finer than microseconds"),
        (["--from", "1"], "inside the commit"),
        (["--from", "1000000"], "bucket "),
        (["--to", "latest"], "cannot read --to"),
        (["--snapshot", "--from", "0"], "leave --from away"),
        (["--bucket", "9"], "buckets 0..1"),
        (["-c", "nothing"], "nothing"),
        (["-c", ""], "--columns needs at least one column"),
    ],
)
def test_what_makes_no_sense(
    server: RunningServer, capfdbinary: pytest.CaptureFixture[bytes], words: list[str], says: str
) -> None:
    """One line that says what to write; no place to go on at that is none."""
    assert run(["tail", "items", *words, "-e", server.endpoint]) == 1
    captured = capfdbinary.readouterr()
    (line,) = captured.err.decode().splitlines()
    assert says in line
    assert captured.out == b""


def test_what_retention_has_cut(server: RunningServer, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """An offset before the changelog is an error that names what there is, and `earliest` is what there is."""
    with scanner.sync.connect(server.endpoint) as client:
        ends = {each.bucket: each.end_offset for each in client.table("items").offsets()}
        client.table("items").write(rows(range(20), "second"))

    def truncate(it: Any) -> None:
        for _, index, bucket in it._services.catalog.open_buckets():
            bucket.storage.truncate_log(ends[index])

    server.ask(truncate)
    assert run(["tail", "items", "--from", "0", "--to", "end", "-e", server.endpoint]) == 1
    (line,) = capfdbinary.readouterr().err.decode().splitlines()
    assert re.search(
        rf"bucket [01]: the start offset 0 is not in the changelog, which has \[({ends[0]}|{ends[1]}), ", line
    )
    words = ["--from", "earliest", "--to", "end", "--json", "-e", server.endpoint]
    found, _ = json_lines("tail", "items", *words, capture=capfdbinary)
    assert len(found) == 40
    words[1] = "2020-01-01"
    found, errors = json_lines("tail", "items", *words, capture=capfdbinary)
    kept = f"0:{ends[0]}, 1:{ends[1]}"
    assert errors[0] == f"changes since 2020-01-01T00:00:00 may be gone: what is kept begins at {kept}"
    assert len(found) == 40
    found, errors = json_lines(
        "offsets", "items", "--at", "2020-01-01", "--json", "-e", server.endpoint, capture=capfdbinary
    )
    assert errors == [f"changes since 2020-01-01T00:00:00+00:00 may be gone: what is kept begins at {kept}"]
    assert [each["at"] for each in found] == [ends[0], ends[1]]


def test_changes_that_are_not_wanted_are_not_said_to_be_gone(
    server: RunningServer, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """What retention has cut does not matter of a bucket that is not read, or goes on at the position of a group."""
    with scanner.sync.connect(server.endpoint) as client:
        end = client.table("items").offsets()[0].end_offset
        client.compact_log("items", before=end, bucket=0)
    words = ["--from", "2020-01-01", "--to", "end", "--json", "-e", server.endpoint]
    found, errors = json_lines("tail", "items", "--bucket", "1", *words, capture=capfdbinary)
    assert found
    (told,) = errors
    assert told.startswith("go on with: ")
    for which in (("--bucket", "0"), ("--group", "billing")):
        _, errors = json_lines("tail", "items", *which, *words, capture=capfdbinary)
        assert errors[0].endswith(f"may be gone: what is kept begins at 0:{end}")
    _, errors = json_lines("tail", "items", "--group", "billing", *words, capture=capfdbinary)
    assert not errors  # It goes on at its position.


def test_offsets(server: RunningServer, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Start and end of each bucket's log, and where a time is."""
    end = ("-e", server.endpoint)
    found, _ = json_lines("offsets", "items", "--json", *end, capture=capfdbinary)
    assert [each["bucket"] for each in found] == [0, 1]
    assert sum(each["log_end"] - each["log_start"] for each in found) == 20
    found, _ = json_lines("offsets", "items", "--at", "2020-01-01", "--json", *end, capture=capfdbinary)
    assert [each["at"] for each in found] == [0, 0]
    assert run(["offsets", "items", "--at", "2020-01-01T00:00:00+02:00", *end]) == 0
    heading, *_ = capfdbinary.readouterr().out.decode().splitlines()
    assert heading.split() == ["bucket", "log", "start", "log", "end", "at"]
    assert run(["offsets", "items", "--at", "yesterday", *end]) == 1


def fold(lines: Lines, state: dict[int, str | None]) -> None:
    """Apply changes to a table; one that does not follow from those before it is an error."""
    for each in lines:
        if each["_change_type"] in ("delete", "update_preimage"):
            assert state.pop(each["id"]) == each["text"]
        else:
            assert each["_change_type"] in ("insert", "update_postimage")
            assert each["id"] not in state
            state[each["id"]] = each["text"]


def test_a_fold_of_what_is_printed_is_the_table(tmp_path: Path, kept_port: int) -> None:
    """A snapshot and its changes, under a writer, the server killed and started again meanwhile."""
    state: dict[int, str | None] = {}
    seen: Lines = []
    with serving(tmp_path / "data", "--port", kept_port) as (first, endpoint):
        with scanner.sync.connect(endpoint) as client:
            client.create_table("items", SCHEMA, ["id"], BUCKETS).write(rows(range(200), "first"))
        with tailing(endpoint, "items", "--snapshot", "--json", "--retries", "1000") as tail:
            seen += read(tail, 50)
            with scanner.sync.connect(endpoint) as client:
                table = client.table("items")
                for number in range(10):
                    table.write(rows(range(number, 200, 7), f"one {number}"))
                    table.delete([(number * 3,)])
            first.send_signal(signal.SIGKILL)
            first.wait(TIMEOUT_S)
            with serving(tmp_path / "data", "--port", kept_port):
                with scanner.sync.connect(endpoint) as client:
                    table = client.table("items")
                    for number in range(10):
                        table.write(rows(range(number, 220, 9), f"two {number}"))
                        table.delete([(number * 5,)])
                    table.write(rows(range(1_000, 1_050), "last"))
                    truth = table.new_scan().to_arrow().to_pydict()
                    ends = {each.bucket: each.end_offset for each in table.offsets()}
                reached: dict[int, int] = {}
                while reached != ends:
                    (line,) = read(tail, 1)
                    seen.append(line)
                    if line["_log_offset"] is not None:
                        reached[line["_bucket"]] = line["_log_offset"] + 1
                tail.send_signal(signal.SIGINT)
                code, errors = ended(tail)
    fold(seen, state)
    assert state == dict(zip(truth["id"], truth["text"], strict=True))
    assert code == 130
    assert places(errors)[:5] == ["items", "--from", f"0:{ends[0]}", "--from", f"1:{ends[1]}"]


def test_an_idle_tail_whose_server_is_gone_says_where_it_stood(tmp_path: Path) -> None:
    """It began at the end of then: who began at the end of later would miss what was committed in between."""
    with serving(tmp_path / "data") as (process, endpoint):
        with scanner.sync.connect(endpoint) as client:
            table = client.create_table("items", SCHEMA, ["id"], BUCKETS)
            table.write(rows(range(20), "first"))
            ends = {each.bucket: each.end_offset for each in table.offsets()}
            with tailing(endpoint, "items", "--retries", "0") as tail:
                while sum(bool(each.scan) for each in client.list_streams()) < BUCKETS:
                    pass
                process.send_signal(signal.SIGKILL)
                code, errors = ended(tail)
    assert code == 1
    assert places(errors)[:5] == ["items", "--from", f"0:{ends[0]}", "--from", f"1:{ends[1]}"]
    assert errors[-1].startswith("weir: ")


def test_an_idle_tail_whose_rights_are_gone_says_where_it_stood(tmp_path: Path) -> None:
    """Who changes its token and begins at the end of then would miss what was committed in between."""
    credentials = tmp_path / "credentials.toml"
    credentials.write_text('[anonymous]\nread = ["*"]\nwrite = ["*"]\nadmin = true\n')
    with running_server(tmp_path / "data", credentials=CredentialsFile(credentials)) as server:
        with scanner.sync.connect(server.endpoint) as client:
            table = client.create_table("items", SCHEMA, ["id"], BUCKETS)
            table.write(rows(range(20), "first"))
            ends = {each.bucket: each.end_offset for each in table.offsets()}
            with tailing(server.endpoint, "items") as tail:
                while sum(bool(each.scan) for each in client.list_streams()) < BUCKETS:
                    pass
                credentials.write_text("[anonymous]\nadmin = true\n")
                code, errors = ended(tail)
    assert code == 1
    assert places(errors)[:5] == ["items", "--from", f"0:{ends[0]}", "--from", f"1:{ends[1]}"]
    assert errors[-1] == "weir: principal anonymous may not read table 'items'"


def test_a_snapshot_that_is_not_complete_is_begun_again(server: RunningServer) -> None:
    """There is no place to go on at in the middle of a snapshot, and it is said so."""
    with scanner.sync.connect(server.endpoint) as client:
        client.table("items").write(rows(range(1_000, 1_040), "x" * 100_000))
    with tailing(server.endpoint, "items", "--snapshot", "--json") as tail:
        read(tail, 1)
        tail.send_signal(signal.SIGINT)
        assert tail.stderr is not None
        errors = tail.stderr.read().splitlines()
        assert tail.wait(TIMEOUT_S) == 130
    assert errors[-2].startswith("the snapshot is not complete; begin again with: weir tail items --snapshot")


def test_help_says_what_the_kinds_mean(capsys: pytest.CaptureFixture[str]) -> None:
    """And how a tail goes on."""
    assert run(["tail", "--help"]) == 0
    said = capsys.readouterr().out
    assert "weir tail orders --from 0:812 --from 1:799" in said
    assert "-D" in said
