"""Do a snapshot and the changes behind it give the table, whatever happens to the server on the way?

One `weir serve` on RocksDB, writers as fast as it takes their writes, and three tails that begin with a snapshot:
the trio client, over lines that are cut as well, `scanner.sync`, and `weir tail --snapshot --json`. The server is
killed (SIGKILL) at random moments, first while all three stand in the middle of their snapshots, and started again on
the same port. In every round of ten kills the tails begin anew.

After each kill the folds of both clients are compared with the table as of their positions, read by a scan. At the end
of a round everything must be equal: what was acknowledged to the writers, the table as a scan shows it, and the folds:
two of batches and one of printed lines, which shares no code with them. On the way the changes of each bucket must be
dense from the end of its snapshot, and each must follow from what is there.

Expected: nothing is ever different.
"""

from __future__ import annotations

import functools
import random
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

import scanner
from bench.cutting.setting import KilledServer, open_killed_server
from bench.harness.bars import Bar, some_of, write_json
from bench.harness.ledger import SCHEMA, rows
from bench.tailing.readers import PrintedReader, SyncReader, TrioReader, again, same

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import Console

    from bench.tailing.folds import Rows

TABLE: Final = "tailed"
BUCKETS: Final = 4
ROWS: Final = 3_000
WRITERS: Final = 3
ROUND_KILLS: Final = 10
LAST_KEYS: Final = 64
"""Keys that are written at the end of each round: enough that every bucket has some."""
WRITES_MAX: Final = 30
"""Acknowledged between two kills, at most: the moment of the kill is drawn from it."""
BATCHES_MAX: Final = 100
"""That each client gets between two kills, about."""
PROGRESS_TIMEOUT_S: Final = 1_000.0
INTERRUPTED: Final = 130
"""What `weir tail` ends with after Ctrl-C."""


@dataclass(kw_only=True)
class Killed:
    """What became of it."""

    seed: int
    kills: int = 0
    in_snapshot: int = 0
    """Kills while a tail was in the middle of its snapshot."""
    rounds: int = 0
    cuts: int = 0
    """Lines of the trio client that were cut besides."""
    writes: int = 0
    changes: int = 0
    """Folded by the trio client."""
    lines: int = 0
    """Printed by `weir tail`."""
    resumes: dict[str, int] = field(default_factory=lambda: {"trio": 0, "sync": 0})
    compared: int = 0
    """Folds in the middle that were compared with the table as of their positions."""
    wrong: list[str] = field(default_factory=list)


class Writers:
    """Write as fast as the server takes it; a write that failed is made again until it is acknowledged.

    Args:
        seed: Chooses what.
        known: What every key holds; kept.
    """

    def __init__(self, seed: str, known: Rows) -> None:
        self._seed = seed
        self._known = known
        self.acknowledged = 0
        self.ending = trio.Event()

    async def run(self, endpoint: str, number: int) -> None:
        """One writer, of the keys that leave its remainder."""
        rng = random.Random(f"{self._seed} {number}")
        async with scanner.connect(endpoint) as client:
            table = await again(lambda: client.table(TABLE))
            while not self.ending.is_set():
                keys = rng.sample(range(number, ROWS, WRITERS), rng.choice((1, 10, 100)))
                await self.write(table, keys, delete=rng.random() < 0.3)

    async def write(self, table: scanner.Table, keys: list[int], *, delete: bool = False) -> None:
        """Write or delete rows, and wait until that is acknowledged."""
        version = self.acknowledged
        written = rows(keys, version)
        while True:
            try:
                await (table.delete([(key,) for key in keys]) if delete else table.write(written))
                break
            except scanner.ScannerError as error:
                if not error.retriable:
                    raise
                await trio.sleep(0.02)
        self.acknowledged += 1
        if delete:
            for key in keys:
                self._known.pop(key, None)
        else:
            self._known.update(by_key(written.to_batches()))


class Round:
    """Three tails, and kills.

    Args:
        server: Runs.
        known: What every key holds.
        result: Counts go there.
        seed: Of this round.
    """

    def __init__(self, server: KilledServer, known: Rows, result: Killed, seed: str) -> None:
        self._server, self._known, self._result = server, known, result
        self._rng = random.Random(seed)
        self._writers = Writers(seed, known)
        self._trio = TrioReader(server.dial, TABLE, BUCKETS, random.Random(f"{seed} lines"))
        self._sync = SyncReader(server.endpoint, TABLE, BUCKETS)
        self._printed = PrintedReader(server.endpoint, TABLE)

    async def run(self, kills: int) -> None:
        """Kill so often, let everybody come to the end, and compare."""
        last = set(
            range(ROWS + self._result.rounds * LAST_KEYS, ROWS + (self._result.rounds + 1) * LAST_KEYS)
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._trio.run, last)
            nursery.start_soon(
                functools.partial(trio.to_thread.run_sync, abandon_on_cancel=True), self._sync.run, last
            )
            nursery.start_soon(self._printed.run, last)
            async with trio.open_nursery() as writing:
                for number in range(WRITERS):
                    writing.start_soon(self._writers.run, self._server.endpoint, number)
                await self._kill_all(kills)
                self._writers.ending.set()
            await self._write_last(last)
        await self._compare_all()

    async def _kill_all(self, kills: int) -> None:
        for number in range(kills):
            await self._wait_progress()
            await self._wait_writes(self._rng.randint(1, WRITES_MAX))
            if not number:
                self._result.in_snapshot += self._trio.fold.in_snapshot + self._sync.fold.in_snapshot
            await self._server.kill_and_restart()
            self._result.kills += 1
            self._trio.killed.set()
            self._sync.killed.set()
            self._printed.killed.set()
            await self._compare_middle()

    async def _wait_writes(self, count: int) -> None:
        wanted = self._writers.acknowledged + count
        await _until(lambda: self._writers.acknowledged >= wanted)

    async def _wait_progress(self) -> None:
        """Every tail has got something since the last kill, and the clients so much that the place is anywhere."""
        if not self._trio.killed.is_set():
            # They stand still behind their first batch.
            await self._printed.begun.wait()
            await _until(lambda: min(self._seen()) > 0)
            return
        batches = self._rng.randint(1, BATCHES_MAX)
        wanted = [had + more for had, more in zip(self._seen(), (batches, batches, 1), strict=True)]
        await _until(lambda: all(now >= due for now, due in zip(self._seen(), wanted, strict=True)))

    def _seen(self) -> tuple[int, int, int]:
        return self._trio.fold.taken, self._sync.fold.taken, self._printed.fold.lines

    async def _compare_middle(self) -> None:
        """Compare what both clients have folded with the table as of where they are."""
        async with scanner.connect(self._server.endpoint, retries=100) as client:
            table = await again(lambda: client.table(TABLE))
            for name, fold in (("trio", self._trio.fold), ("sync", self._sync.fold)):
                committed = fold.committed()
                if committed is None:
                    continue
                positions, folded = committed
                truth = await _read(table.new_scan().as_of(positions))
                self._result.compared += 1
                if folded != truth:
                    self._result.wrong.append(f"{name} at {positions}: {_difference(folded, truth)}")

    async def _write_last(self, last: set[int]) -> None:
        async with scanner.connect(self._server.endpoint) as client:
            table = await again(lambda: client.table(TABLE))
            await self._writers.write(table, sorted(last))

    async def _compare_all(self) -> None:
        result = self._result
        async with scanner.connect(self._server.endpoint) as client:
            table = await again(lambda: client.table(TABLE))
            truth = await _read(table.new_scan())
            ends = {each.bucket: each.end_offset for each in await table.offsets()}
        if truth != self._known:
            result.wrong.append(f"the table is not what was acknowledged: {_difference(truth, self._known)}")
        for name, fold in (("trio", self._trio.fold), ("sync", self._sync.fold)):
            result.wrong += [f"{name}: {each}" for each in fold.wrong]
            if fold.committed() != (ends, truth):
                result.wrong.append(f"{name}: the fold is not the table at the end")
        result.wrong += [f"weir tail: {each}" for each in self._printed.fold.wrong]
        if not same(truth, self._printed.fold.table):
            result.wrong.append("weir tail: the fold of its lines is not the table at the end")
        if self._printed.status != INTERRUPTED:
            result.wrong.append(f"weir tail: its status is {self._printed.status} after Ctrl-C")
        result.rounds += 1
        result.cuts += self._trio.cuts
        result.writes += self._writers.acknowledged
        result.changes += self._trio.fold.changes
        result.lines += self._printed.fold.lines
        result.resumes["trio"] += self._trio.resumes
        result.resumes["sync"] += self._sync.resumes


async def _until(true: Callable[[], bool]) -> None:
    """Wait until something is true that a thread or a process makes so, which does not announce it."""
    with trio.fail_after(PROGRESS_TIMEOUT_S):
        while not true():  # noqa: ASYNC110
            await trio.sleep(0.01)


async def _read(scan: scanner.Scan) -> Rows:
    async with scan.execute() as batches:
        return by_key([batch async for batch in batches])


def by_key(batches: Iterable[pa.RecordBatch]) -> Rows:
    """Rows by their key."""
    found: Rows = {}
    for batch in batches:
        cells = zip(*(batch.column(name).to_pylist() for name in SCHEMA.names), strict=True)
        found.update({row[0]: row for row in cells})
    return found


def _difference(left: Rows, right: Rows) -> str:
    keys = sorted(key for key in left.keys() | right.keys() if left.get(key) != right.get(key))
    return f"{len(keys)} keys differ, the first {left.get(keys[0])} and {right.get(keys[0])}"


async def kill_tails(data: Path, kills: int, seed: int, console: Console | None = None) -> Killed:
    """Run all rounds against one server.

    Args:
        data: Its directory.
        kills: How often it is killed.
        seed: Chooses what is written, and when it is killed.
        console: Told of every round.

    Raises:
        trio.TooSlowError: A tail or a writer did not get on.
    """
    result = Killed(seed=seed)
    first = rows(list(range(ROWS)), 0)
    known = by_key(first.to_batches())
    async with open_killed_server(data, same_port=True) as server:
        async with scanner.connect(server.endpoint) as client:
            table = await client.create_table(TABLE, SCHEMA, ["id"], BUCKETS)
            await table.write(first)
        while result.kills < kills:
            this = Round(server, known, result, f"{seed} {result.rounds}")
            await this.run(min(ROUND_KILLS, kills - result.kills))
            if console is not None:
                console.print(f"{result.kills} kills, {result.compared} compared, {len(result.wrong)} wrong")
    return result


def bars(result: Killed, kills: int) -> list[Bar]:
    """What must hold."""
    first = f"; the first: {result.wrong[0]}" if result.wrong else ""
    return [
        Bar("kills", result.kills, f"= {kills}", result.kills == kills),
        some_of("kills in the middle of a snapshot", result.in_snapshot),
        Bar("differences", f"{len(result.wrong)}{first}", "= 0", not result.wrong),
        some_of("folds compared at some later commit", result.compared),
        *(some_of(f"resumes, {name}", count) for name, count in result.resumes.items()),
    ]


def run(output: Path | None, console: Console, *, kills: int, seed: int) -> list[Bar]:
    """Kill, write the JSON, and print what happened."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        result = trio.run(kill_tails, Path(directory) / "data", kills, seed, console)
    seconds = time.monotonic() - started
    judged = write_json(output, bars(result, kills), **asdict(result), seconds=round(seconds, 1))
    console.print(
        f"{result.kills} kills and {result.cuts} cuts in {result.rounds} rounds, seed {seed}: {result.writes} writes,"
        f" {result.changes} changes folded, {result.lines} lines printed, resumes: trio {result.resumes['trio']},"
        f" sync {result.resumes['sync']}; {result.compared} folds compared on the way, {len(result.wrong)} differences"
    )
    for each in result.wrong[:20]:
        console.print(f"WRONG {each}", markup=False)
    console.print(f"took {seconds:.0f} s")
    return judged
