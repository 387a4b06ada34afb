"""A reader group of three processes: one is killed with -9, one stopped and thawed; and the command line beside it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import scanner.sync
from bench.simulation.group_validators import Delivered, GroupHistory, Stored
from scanner.cli import run
from scanner.errors import GroupNotEmpty
from scanner.server.config import ScannerConfig
from tests.support.server import RunningServer, running_server

pytestmark = [pytest.mark.socket, pytest.mark.rocks, pytest.mark.slow]

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
BUCKETS = 6
GROUP = "billing"
CONFIG = ScannerConfig(group_session_timeout_s=3, group_handover_s=3)


class Reader:
    """A reader in a process of its own; its records go into a history."""

    def __init__(self, endpoint: str, name: str, history: GroupHistory) -> None:
        self.name = name
        self._history = history
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.group_reader", endpoint, name, GROUP],
            stdout=subprocess.PIPE,
            text=True,
        )
        self._thread = threading.Thread(target=self._record, daemon=True)
        self._thread.start()

    def _record(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not line.endswith("\n"):
                return  # Killed amidst it.
            said = json.loads(line)
            kind, at = said.pop("kind"), said.pop("at")
            if kind == "delivered":
                self._history.delivered.append(Delivered(at=at, reader=self.name, **said))
            elif kind == "stored":
                stored = Stored(reader=self.name, **said)
                unknown = replace(stored, accepted=None)
                if stored != unknown:
                    self._history.stored.remove(unknown)
                self._history.stored.append(stored)

    def end(self) -> None:
        """Kill it, and take what it has said."""
        self.process.kill()
        self._thread.join()
        with self.process:  # Waits for it, and closes its pipe.
            pass


@contextmanager
def readers(endpoint: str, history: GroupHistory) -> Iterator[dict[str, Reader]]:
    """Three of them."""
    started = {name: Reader(endpoint, name, history) for name in ("a", "b", "c")}
    try:
        yield started
    finally:
        for each in started.values():
            each.end()


class Writing:
    """Writes rows, and remembers where the logs ended before."""

    def __init__(self, table: scanner.sync.Table, history: GroupHistory) -> None:
        self._table = table
        self._history = history
        self._next_id = 0

    def ends(self) -> dict[int, int]:
        """Where the logs end."""
        return {each.bucket: each.end_offset for each in self._table.offsets()}

    def write(self, rows: int) -> None:
        """One write of fresh rows."""
        self._history.ends.append((time.monotonic(), self.ends()))
        ids = list(range(self._next_id, self._next_id + rows))
        self._table.write(pa.table([ids, ["x"] * rows], schema=SCHEMA))
        self._next_id += rows


def wait_for(running: RunningServer, condition: Callable[[], bool]) -> None:
    """Poll from here, at the pace of the server's thread."""
    while not condition():
        running.wait_until(lambda _server: True)


def test_one_is_killed_and_one_is_frozen(tmp_path: Path) -> None:
    """No change is lost, no epoch has two readers, and nothing that the frozen one brings late is stored."""
    history = GroupHistory()
    with running_server(tmp_path, CONFIG) as running, scanner.sync.connect(running.endpoint) as client:
        table = client.create_table("items", SCHEMA, ["id"], BUCKETS)
        writing = Writing(table, history)

        def members() -> set[str]:
            return (
                {each.member for each in table.group(GROUP).buckets if each.member}
                if table.groups()
                else set()
            )

        def read() -> bool:
            return all(each.position == each.log_end for each in table.group(GROUP).buckets)

        def settled(*names: str) -> bool:
            writing.write(20)
            return members() == set(names)

        with readers(running.endpoint, history) as started:
            wait_for(running, lambda: settled("a", "b", "c"))
            wait_for(running, lambda: "a" in {each.reader for each in history.delivered})
            started["a"].process.send_signal(signal.SIGKILL)
            wait_for(running, lambda: settled("b", "c"))
            started["b"].process.send_signal(signal.SIGSTOP)
            wait_for(running, lambda: settled("c"))
            started["b"].process.send_signal(signal.SIGCONT)
            wait_for(running, lambda: settled("b", "c"))
            wait_for(running, read)
        ends = writing.ends()
    assert history.violations(ends) == []
    assert {each.reader for each in history.delivered} == {"a", "b", "c"}


def test_the_command_line_reads_for_a_group(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """What was printed is stored: the next command goes on behind it. `weir groups` shows it, and deletes it."""
    with running_server(tmp_path) as running, scanner.sync.connect(running.endpoint) as client:
        table = client.create_table("items", SCHEMA, ["id"], 2)
        server = ["-e", running.endpoint]

        def tail() -> list[int]:
            words = ["tail", "items", "--group", "audit", "--from", "earliest", "--to", "end", "--json"]
            assert run([*words, *server]) == 0
            return sorted(json.loads(line)["id"] for line in capfdbinary.readouterr().out.splitlines())

        for first in (0, 10):
            ids = list(range(first, first + 10))
            table.write(pa.table([ids, ["x"] * 10], schema=SCHEMA))
            assert tail() == ids
        assert run(["groups", "items", "--json", *server]) == 0
        rows: list[dict[str, Any]] = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
        assert [(row["group"], row["bucket"], row["lag"]) for row in rows] == [
            ("audit", 0, 0),
            ("audit", 1, 0),
        ]
        assert sum(row["position"] for row in rows) == 20
        assert run(["groups", "items", *server]) == 0
        assert b"log end" in capfdbinary.readouterr().out
        with table.new_scan().with_source("log").in_group("audit").execute() as batches:
            table.write(pa.table([[99], ["x"]], schema=SCHEMA))
            assert next(batches)["id"].to_pylist() == [99]
            assert (batches.bucket in batches.assigned, batches.commit()) == (True, ())
            with pytest.raises(GroupNotEmpty):
                table.delete_group("audit")
            assert run(["groups", "items", "--delete", "audit", *server]) == 1
        assert run(["groups", "items", "--delete", "audit", *server]) == 0
        assert run(["groups", "items", *server]) == 0
        assert b"no reader groups" in capfdbinary.readouterr().err
        for option in ("--snapshot", "--bucket=0"):
            assert run(["tail", "items", "--group", "audit", option, *server]) == 1


def test_a_group_that_is_deleted_while_groups_are_listed_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """The others are shown."""
    with running_server(tmp_path) as running, scanner.sync.connect(running.endpoint) as client:
        table = client.create_table("items", SCHEMA, ["id"], 1)
        table.write(pa.table([[1], ["x"]], schema=SCHEMA))
        for name in ("gone", "kept"):
            reader = table.new_scan().with_source("log").in_group(name, auto_commit=True).stop_at("end")
            with reader.execute() as batches:
                assert sum(batch.num_rows for batch in batches) == 1
        groups = scanner.sync.Table.groups

        def groups_before(listed: scanner.sync.Table) -> Any:
            found = groups(listed)
            table.delete_group("gone")
            return found

        monkeypatch.setattr(scanner.sync.Table, "groups", groups_before)
        assert run(["groups", "items", "--json", "-e", running.endpoint]) == 0
        assert [json.loads(line)["group"] for line in capfdbinary.readouterr().out.splitlines()] == ["kept"]


def test_a_group_that_retention_has_passed_is_told_what_to_do(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """It never goes on elsewhere by itself; who has no position yet is not told of the group."""
    with running_server(tmp_path) as running, scanner.sync.connect(running.endpoint) as client:
        table = client.create_table("items", SCHEMA, ["id"], 1)
        words = ["tail", "items", "--to", "end", "--json", "-e", running.endpoint, "--from"]
        table.write(pa.table([[1], ["x"]], schema=SCHEMA))
        assert run([*words, "earliest", "--group", "audit"]) == 0
        for each in (2, 3, 4):
            table.write(pa.table([[each], ["x"]], schema=SCHEMA))

        def truncate(server: Any) -> None:
            for _, _, bucket in server._services.catalog.open_buckets():
                bucket.storage.truncate_log(3)

        running.ask(truncate)
        capfdbinary.readouterr()
        assert run([*words, "earliest", "--group", "audit"]) == 1
        assert (
            capfdbinary.readouterr()
            .err.decode()
            .endswith(
                "the start offset 1 is not in the changelog, which has [3, 4); that is where reader group audit of"
                " items stood: delete the group and start a new one\n"
            )
        )
        assert run([*words, "1", "--group", "fresh"]) == 1
        assert capfdbinary.readouterr().err.decode().endswith("which has [3, 4)\n")


def test_a_stop_that_the_changelog_does_not_have_is_not_blamed_on_the_group(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Deleting the group would lose its position, and help nothing."""
    with running_server(tmp_path) as running, scanner.sync.connect(running.endpoint) as client:
        table = client.create_table("items", SCHEMA, ["id"], 1)
        table.write(pa.table([[1], ["x"]], schema=SCHEMA))
        words = ["tail", "items", "--group", "audit", "-e", running.endpoint, "--from", "earliest", "--to"]
        assert run([*words, "end"]) == 0
        capfdbinary.readouterr()
        assert run([*words, "9"]) == 1
        assert (
            capfdbinary.readouterr().err.decode()
            == "weir: bucket 0: the stop offset 9 is not in the changelog, which has [0, 1)\n"
        )


def test_what_the_command_line_prints_of_a_commit_that_its_limit_cuts_comes_again(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """And it is said so."""
    with running_server(tmp_path) as running, scanner.sync.connect(running.endpoint) as client:
        table = client.create_table("items", SCHEMA, ["id"], 1)
        table.write(pa.table([list(range(10)), ["x"] * 10], schema=SCHEMA))
        words = ["tail", "items", "--group", "audit", "--from", "earliest", "--json", "-e", running.endpoint]
        told = ["in the middle of a commit of bucket 0: its changes come again"]
        for limit, lines in ((4, told), (10, [])):
            assert run([*words, "-n", str(limit)]) == 0
            printed = capfdbinary.readouterr()
            assert [json.loads(line)["id"] for line in printed.out.splitlines()] == list(range(limit))
            assert printed.err.decode().splitlines() == lines


def test_what_an_interrupt_kept_from_a_reader_is_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C comes when the batch is there, and the block ends well: the next reader gets it."""
    with running_server(tmp_path) as running, scanner.sync.connect(running.endpoint) as client:
        table = client.create_table("items", SCHEMA, ["id"], 1)
        reader = table.new_scan().with_source("log").in_group("audit", auto_commit=True)
        table.write(pa.table([[1], ["got"]], schema=SCHEMA))
        with reader.execute() as batches:
            assert next(batches)["id"].to_pylist() == [1]
            table.write(pa.table([[2], ["not got"]], schema=SCHEMA))
            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                read = batches._portal.read

                def read_and_interrupt(*arguments: Any) -> None:
                    read(*arguments)
                    raise KeyboardInterrupt

                patch.setattr(batches._portal, "read", read_and_interrupt)
                next(batches)
        assert [each.position for each in table.group("audit").buckets] == [1]
        with reader.stop_at("end").execute() as batches:
            assert [each for batch in batches for each in batch["id"].to_pylist()] == [2]


@pytest.mark.parametrize("auto_commit", [True, False])
def test_what_two_interrupts_kept_from_a_reader_is_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, auto_commit: bool
) -> None:
    """The call that nobody waits for any more brings its batch when the reader commits, or its block ends well."""
    with running_server(tmp_path) as running, scanner.sync.connect(running.endpoint) as client:
        table = client.create_table("items", SCHEMA, ["id"], 1)
        reader = table.new_scan().with_source("log").in_group("audit", auto_commit=auto_commit)
        table.write(pa.table([[1], ["got"]], schema=SCHEMA))
        with monkeypatch.context() as patch, reader.execute() as batches:
            assert next(batches)["id"].to_pylist() == [1]
            table.write(pa.table([[2], ["not got"]], schema=SCHEMA))
            call, leave = batches._portal.call, batches._portal.leave
            left: list[Callable[[], Awaitable[None]]] = []

            async def bring() -> None:
                while left:
                    await left.pop()()

            def interrupt(function: Any) -> None:
                left.append(function)
                patch.setattr(batches._portal, "call", call_behind_it)
                patch.setattr(batches._portal, "leave", leave_behind_it)
                raise KeyboardInterrupt

            def call_behind_it(function: Any, *arguments: Any) -> Any:
                call(bring)
                return call(function, *arguments)

            def leave_behind_it(held: Any, *, abandoned: bool) -> None:
                call(bring)
                leave(held, abandoned=abandoned)

            patch.setattr(batches._portal, "read", interrupt)
            with pytest.raises(KeyboardInterrupt):
                next(batches)
            if not auto_commit:
                assert batches.commit() == ()
        assert [each.position for each in table.group("audit").buckets] == [1]


@pytest.mark.parametrize("where", ["__init__", "_hold_back"])
def test_an_interrupt_around_a_readers_block_leaves_no_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Ctrl-C comes just before the block begins, or when it has ended well: the group is left."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with running_server(tmp_path) as running, scanner.sync.connect(running.endpoint) as client:
        table = client.create_table("items", SCHEMA, ["id"], 1)
        reader = table.new_scan().with_source("log").in_group("audit")
        monkeypatch.setattr(scanner.sync.groups.GroupBatches, where, interrupt)
        with pytest.raises(KeyboardInterrupt), reader.execute():
            pass
        table.delete_group("audit")  # One with members is not deleted.
