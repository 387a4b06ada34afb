"""Who tails: the trio client over lines that are cut, `scanner.sync` in a thread, and `weir tail` in a process.

Each begins with a snapshot, stands still in the middle of it until the server has been killed, and goes on until it has
a row that was written last of all.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import trio

import scanner
import scanner.sync
from bench.cutting.stream import Cut, CutStream, Direction
from bench.tailing.folds import BatchFold, LineFold, Rows

if TYPE_CHECKING:
    from collections.abc import Awaitable

CREDIT_BYTES: Final = 16 * 1024
"""Small, so that a server cannot be through with a snapshot that stands still."""
RETRIES: Final = 100_000
CUT_BYTES_MEAN: Final = 300_000
"""Octets after which a line of the trio client is cut."""


class TrioReader:
    """A HYBRID by `scanner.connect`.

    Args:
        dial: Makes a connection.
        name: Of the table.
        buckets: How many it has.
        rng: Chooses where lines are cut.
    """

    def __init__(
        self, dial: Callable[[], Awaitable[trio.abc.Stream]], name: str, buckets: int, rng: random.Random
    ) -> None:
        self._dial, self._name, self._rng = dial, name, rng
        self._streams: list[CutStream] = []
        self.fold = BatchFold(buckets)
        self.killed = trio.Event()
        """Set when the server was killed: it may go on."""
        self.resumes = 0

    @property
    def cuts(self) -> int:
        """Lines that were cut in the middle."""
        return sum(stream.struck for stream in self._streams)

    async def run(self, last: set[int]) -> None:
        """Read until all of these keys have come."""
        async with scanner.connect("127.0.0.1", dial=self._connect, rng=self._rng, retries=RETRIES) as client:
            table = await again(lambda: client.table(self._name))
            scan = table.new_scan().with_source("hybrid").with_credit(CREDIT_BYTES)
            left = set(last)
            async with scan.execute() as batches:
                async for batch in batches:
                    assert batches.bucket is not None
                    self.fold.take(batches.bucket, batch, batches.positions, batches.snapshot_ends)
                    self.resumes = batches.statistics().resumes
                    await self.killed.wait()
                    left.difference_update(batch.column("id").to_pylist())
                    if not left:
                        return

    async def _connect(self) -> trio.abc.Stream:
        cut = Cut(Direction.DOWN, octets=1 + int(self._rng.expovariate(1 / CUT_BYTES_MEAN)))
        self._streams.append(CutStream(await self._dial(), cut, reset=self._rng.random() < 0.5))
        return self._streams[-1]


class SyncReader:
    """A HYBRID by `scanner.sync`.

    Args:
        endpoint: HOST:PORT.
        name: Of the table.
        buckets: How many it has.
    """

    def __init__(self, endpoint: str, name: str, buckets: int) -> None:
        self._endpoint, self._name = endpoint, name
        self.fold = BatchFold(buckets)
        self.killed = threading.Event()
        """As of `TrioReader`."""
        self.resumes = 0

    def run(self, last: set[int]) -> None:
        """Read until all of these keys have come; blocks."""
        with scanner.sync.connect(self._endpoint, retries=RETRIES) as client:
            scan = client.table(self._name).new_scan().with_source("hybrid").with_credit(CREDIT_BYTES)
            left = set(last)
            with scan.execute() as batches:
                for batch in batches:
                    assert batches.bucket is not None
                    self.fold.take(batches.bucket, batch, batches.positions, batches.snapshot_ends)
                    self.resumes = batches.statistics().resumes
                    self.killed.wait()
                    left.difference_update(batch.column("id").to_pylist())
                    if not left:
                        return


class PrintedReader:
    """`weir tail --snapshot --json`, which prints into a pipe that is not read until the server has been killed.

    Args:
        endpoint: HOST:PORT.
        name: Of the table.
    """

    def __init__(self, endpoint: str, name: str) -> None:
        options = ["--snapshot", "--json", "--retries", str(RETRIES), "-e", endpoint]
        self._command = [sys.executable, "-m", "scanner.cli", "tail", name, *options]
        self.fold = LineFold()
        self.killed = trio.Event()
        """As of `TrioReader`."""
        self.begun = trio.Event()
        self.status: int | None = None
        """Of its end."""

    async def run(self, last: set[int]) -> None:
        """Read until all of these keys have come, then end it as Ctrl-C does."""
        process = await trio.lowlevel.open_process(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert process.stdout is not None
        try:
            left, rest = set(last), b""
            while left and (data := await process.stdout.receive_some()):
                self.begun.set()
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self.fold.take(line.decode())
                left.difference_update(self.fold.table)
                await self.killed.wait()
            process.send_signal(signal.SIGINT)
            async with process.stdout:
                while await process.stdout.receive_some():
                    pass
            self.status = await process.wait()
        finally:
            with suppress(ProcessLookupError):
                process.kill()


async def again(call: Callable[[], Awaitable[scanner.Table]]) -> scanner.Table:
    """Look a table up, however often the line is cut."""
    while True:
        try:
            return await call()
        except scanner.ScannerError as error:
            if not error.retriable:
                raise
            await trio.sleep(0.05)


def same(left: Rows, right: dict[int, list[object]]) -> bool:
    """Whether both folds have the same rows."""
    return left == {key: tuple(row) for key, row in right.items()}
