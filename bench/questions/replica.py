"""Does a streaming query that is killed keep one table an exact copy of another?

One `weir serve`; a writer that changes and deletes rows of the source all the time; and a process of Spark that
streams the source's changes, from ``full`` on, into the target, by weir's source and sink (`bench.replica.query`).
The process group, driver and JVM, is killed (SIGKILL) at drawn moments: a while after rows of a micro-batch were
staged, or after some micro-batches were decided. It is started again with its checkpoint, as often as wanted, and at
last runs to the end of the changelog.

Then what was acknowledged to the writer, the source and the target must be equal, and in the changelog of the target no
key may ever have been given a version that it had, or an older one: so each micro-batch counted once, in its order.

Expected: nothing is ever different.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import scanner.sync
from bench.harness.background import Background
from bench.harness.bars import Bar, some_of, write_json
from bench.harness.errors import BenchFailed
from bench.harness.ledger import SCHEMA, rows
from bench.harness.server import running_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from scanner import TransactionInfo

SOURCE: Final = "original"
TARGET: Final = "replica"
SOURCE_BUCKETS: Final = 4
TARGET_BUCKETS: Final = 3
ROWS: Final = 2_000
BATCHES_MAX: Final = 3
"""Micro-batches that a query decides before it is killed, at most."""
DELAY_S_MAX: Final = 1.0
"""How long it lives on behind that, at most."""
LOOK_INTERVAL_S: Final = 0.02
STALL_S_MAX: Final = 900.0
"""How long a query may go without staging or deciding anything, the start of Spark included."""
STOP_S: Final = 300.0
WRITE_INTERVAL_S: Final = 0.1
"""Slow enough that Spark keeps up, fast enough that every micro-batch has some commits of every bucket."""
_PUT: Final = ("insert", "update_postimage")


@dataclass(kw_only=True)
class Replicated:
    """What became of it."""

    seed: int
    kills: int = 0
    killed_at: dict[str, int] = field(default_factory=dict)
    """Kills by whether rows were staged then that were not decided."""
    writes: int = 0
    batches: int = 0
    """Micro-batches decided."""
    rows: int = 0
    """In the table at the end."""
    changes: int = 0
    """In the changelog of the target."""
    wrong: list[str] = field(default_factory=list)


class Writer(Background):
    """Changes rows of the source from the start of the `with` block to its end.

    Args:
        endpoint: Of the server.
        seed: Chooses what.
    """

    def __init__(self, endpoint: str, seed: str) -> None:
        super().__init__(STOP_S)
        self.known: dict[int, tuple[Any, ...]] = {}
        """What every key holds, as it was acknowledged."""
        self.writes = 0
        self._endpoint = endpoint
        self._rng = random.Random(seed)

    def _run(self) -> None:
        with scanner.sync.connect(self._endpoint) as client:
            table = client.table(SOURCE)
            self.write(table, list(range(ROWS)))
            while not self.stopping.wait(WRITE_INTERVAL_S):
                keys = self._rng.sample(range(ROWS), self._rng.choice((1, 5, 40)))
                if self._rng.random() < 0.3:
                    table.delete([(key,) for key in keys])
                    self.known = {key: row for key, row in self.known.items() if key not in set(keys)}
                    self.writes += 1
                else:
                    self.write(table, keys)

    def write(self, table: scanner.sync.Table, keys: list[int]) -> None:
        """Write rows of the next version."""
        self.writes += 1
        written = rows(keys, self.writes)
        table.write(written)
        self.known.update(_by_key(written.to_pylist()))


class Query:
    """The process of Spark, started and killed.

    Args:
        command: Of the process; with ``--to-end`` it ends by itself.
        log: What it prints goes there.
        target: The table that it writes.
        result: Counts go there.
        writer: What the query copies the rows of; without it there is nothing to wait for.
        stall_s_max: How long the query may go without staging or deciding anything, seconds.
    """

    def __init__(
        self,
        command: list[str],
        log: Path,
        target: scanner.sync.Table,
        result: Replicated,
        writer: Writer,
        stall_s_max: float = STALL_S_MAX,
    ) -> None:
        self._command = command
        self._log = log
        self._target = target
        self._result = result
        self._writer = writer
        self._stall_s_max = stall_s_max

    def run_and_kill(self, batches: int, delay_s: float) -> None:
        """Start it, and kill it.

        Args:
            batches: How many micro-batches it decides before; 0: it has staged some rows, or decided.
            delay_s: How long it lives on behind that, seconds.

        Raises:
            BenchFailed: It ended by itself, or stalled, or the writer did.
        """
        first = _decided(self._target.transactions())
        with self._process() as process:
            for decided, staged in self._progress():
                if decided >= first + batches and (batches or staged or decided > first):
                    break
                if process.poll() is not None:
                    raise BenchFailed(f"the query ended by itself: {self._last_line()}")
            time.sleep(delay_s)
            where = "staged" if self._staged() else "between"
        self._result.kills += 1
        self._result.killed_at[where] = self._result.killed_at.get(where, 0) + 1

    def run_to_end(self) -> None:
        """Let it run to where the changelogs end.

        Raises:
            BenchFailed: It failed, or stalled.
        """
        with self._process("--to-end") as process:
            for _ in self._progress():
                if (code := process.poll()) is not None:
                    break
            if code:
                raise BenchFailed(f"the query failed: {self._last_line()}")
        self._result.batches = _decided(self._target.transactions())

    def _progress(self) -> Iterator[tuple[int, bool]]:
        """How many micro-batches were decided, and whether rows are staged; again and again, while something moves.

        Raises:
            BenchFailed: Nothing did for too long, or the writer failed.
        """
        seen, since = None, time.monotonic()
        while True:
            self._writer.check()
            transactions = self._target.transactions()
            decided, stages = _decided(transactions), sum(each.stages for each in transactions)
            if (decided, stages) != seen:
                seen, since = (decided, stages), time.monotonic()
            elif time.monotonic() - since >= self._stall_s_max:
                raise BenchFailed(
                    f"the query staged and decided nothing for {self._stall_s_max:g} s: {self._last_line()}"
                )
            yield decided, bool(stages)
            time.sleep(LOOK_INTERVAL_S)

    def _staged(self) -> bool:
        return any(each.stages for each in self._target.transactions())

    def _last_line(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return next((line for line in reversed(lines) if line.strip()), "it said nothing")

    @contextmanager
    def _process(self, *options: str) -> Iterator[subprocess.Popen[bytes]]:
        """The process for the length of a block; if it has not ended then, its group is killed."""
        # A group of its own, so that the JVM is killed with the driver; Python's workers end with the JVM.
        with self._log.open("wb") as log:
            process = subprocess.Popen(
                [*self._command, *options], stdout=log, stderr=log, start_new_session=True
            )
        with process:
            try:
                yield process
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def _decided(transactions: list[TransactionInfo]) -> int:
    """Micro-batches that were decided so far."""
    versions = [each.decided_version for each in transactions]
    return sum(version + 1 for version in versions if version is not None)


def _by_key(found: list[dict[str, Any]]) -> dict[int, tuple[Any, ...]]:
    return {row["id"]: tuple(row[name] for name in SCHEMA.names) for row in found}


def compare(client: scanner.sync.Client, known: dict[int, tuple[Any, ...]], result: Replicated) -> None:
    """Hold the source, the target and the changelog of the target against what was acknowledged."""
    for name in (SOURCE, TARGET):
        found = _by_key(client.table(name).new_scan().to_arrow().to_pylist())
        differing = [key for key in found.keys() | known.keys() if found.get(key) != known.get(key)]
        if differing:
            key = min(differing)
            result.wrong.append(
                f"{name}: {len(differing)} keys differ, the first {found.get(key)} and {known.get(key)}"
            )
    log = client.table(TARGET).new_scan().with_source("log").stop_at("end").to_arrow().to_pylist()
    newest: dict[int, int] = {}
    for change in log:
        if change["_change_type"] not in _PUT:
            continue
        if change["version"] <= newest.get(change["id"], -1):
            result.wrong.append(
                f"key {change['id']} got version {change['version']} behind {newest[change['id']]}"
            )
        newest[change["id"]] = change["version"]
    result.rows, result.changes = len(known), len(log)


def replicate(directory: Path, kills: int, seed: int, console: Console | None = None) -> Replicated:
    """Run all of it.

    Args:
        directory: For the server's data and the checkpoint.
        kills: How often the query is killed.
        seed: Chooses what is written, and when the query is killed.
        console: Told of every kill.
    """
    result, rng = Replicated(seed=seed), random.Random(f"{seed} kills")
    with running_server(directory / "data") as server, scanner.sync.connect(server.endpoint) as client:
        client.create_table(SOURCE, SCHEMA, ["id"], SOURCE_BUCKETS)
        target = client.create_table(TARGET, SCHEMA, ["id"], TARGET_BUCKETS)
        writer = Writer(server.endpoint, f"{seed} writes")
        checkpoint = str(directory / "checkpoint")
        command = [sys.executable, "-m", "bench.replica.query", server.endpoint, SOURCE, TARGET, checkpoint]
        query = Query(command, directory / "checkpoint.log", target, result, writer)
        with writer:
            for _ in range(kills):
                query.run_and_kill(rng.randint(0, BATCHES_MAX), rng.uniform(0, DELAY_S_MAX))
                if console is not None:
                    console.print(f"{result.kills} kills {result.killed_at}, {writer.writes} writes")
        query.run_to_end()
        result.writes = writer.writes
        compare(client, writer.known, result)
    return result


def bars(result: Replicated, kills: int) -> list[Bar]:
    """What must hold."""
    first = f"; the first: {result.wrong[0]}" if result.wrong else ""
    return [
        Bar("kills", result.kills, f"= {kills}", result.kills == kills),
        Bar("differences", f"{len(result.wrong)}{first}", "= 0", not result.wrong),
        some_of("micro-batches", result.batches),
        some_of("rows at the end", result.rows),
    ]


def run(output: Path | None, console: Console, *, kills: int, seed: int) -> list[Bar]:
    """Kill, write the JSON, and print what happened."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="weir-replica-") as directory:
        result = replicate(Path(directory), kills, seed, console)
    seconds = time.monotonic() - started
    judged = write_json(output, bars(result, kills), **asdict(result), seconds=round(seconds, 1))
    console.print(
        f"{result.kills} kills {result.killed_at}, seed {seed}: {result.writes} writes, {result.batches} micro-batches,"
        f" {result.changes} changes in the replica, {len(result.wrong)} differences; took {seconds:.0f} s"
    )
    for each in result.wrong[:20]:
        console.print(f"WRONG {each}", markup=False)
    return judged
