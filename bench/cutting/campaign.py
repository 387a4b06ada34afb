"""One table, one scan of it, and every place at which its connection can be cut.

An uninterrupted run is recorded first: its frames tell the places. Then the same scan runs once for each place, with
the first connection cut exactly there (or the first few); the client goes on by itself over another one.
What it got in the end is judged by the state at the offset that the scan stated when it began: every row once, in
order, nothing else, and the digest of an uninterrupted pass. A scan of changes is judged by what they fold to, and by
their offsets: each once, none missing, in order.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import trio

import scanner
from bench.cutting.stream import Cut, CutStream, Direction
from bench.cutting.truth import TABLE, Truth, Verdict

if TYPE_CHECKING:
    Dial = Callable[[], Awaitable[trio.abc.Stream]]
    """Makes a connection to the server."""

Between = Callable[[], Awaitable[None]]
"""Something that happens while a scan is cut off."""
_WARM_UP_FRAMES: Final = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """How the table is scanned."""

    mode: str = "push"
    source: str = "live_kv"
    begins_at: int = 0
    """HYBRID: the log offset that its snapshot is as of; LOG: where it begins. Both end where the log ends."""
    credit_bytes: int = 6_000
    """By push: small, so that the scan is many frames, both ways."""
    page_bytes: int = 3_000
    write_every: int | None = None
    """Batches after which the consumer's table is written to; None: nobody writes."""
    connections_cut: int = 1
    """Connections in a row that are cut at the same place of each."""

    @property
    def writes_after(self) -> range:
        """How many batches have come whenever the table is written to.

        Changes are read by every later scan, which would write the more for it: they are written three times a scan.
        """
        if self.write_every is None:
            return range(0)
        end = sys.maxsize if self.source == "live_kv" else 3 * self.write_every + 1
        return range(self.write_every, end, self.write_every)

    def scan(self, table: scanner.Table) -> scanner.Scan:
        """The scan."""
        scan = table.new_scan().bucket(0).with_mode(self.mode).with_source(self.source)
        scan = scan.with_credit(self.credit_bytes).with_page_bytes(self.page_bytes)
        if self.source == "live_kv":
            return scan
        scan = scan.stop_at("end")
        return scan.as_of(self.begins_at) if self.source == "hybrid" else scan.start_at(self.begins_at)


@dataclass(frozen=True, slots=True)
class Recording:
    """Where the frames of an uninterrupted run end."""

    ends: dict[Direction, tuple[int, ...]]
    failed: str = ""
    """Why the cut scan before it could not go on; it counts as the others do. Empty: it could."""

    @property
    def frames(self) -> int:
        """Frames of both directions."""
        return sum(map(len, self.ends.values()))

    def at_frames(self) -> Iterator[Cut]:
        """A cut after every frame."""
        for direction, ends in self.ends.items():
            yield from (Cut(direction, frames=count) for count in range(1, len(ends) + 1))

    def spread(self, count: int) -> Iterator[Cut]:
        """Cuts of what comes from the server, spread evenly over its octets.

        Of a process on a real line the same octets are now more, now fewer frames.
        """
        octets = self.ends[Direction.DOWN][-1]
        yield from (Cut(Direction.DOWN, octets=octets * (at + 1) // (count + 1)) for at in range(count))

    def inside_frames(self, count: int, rng: random.Random) -> Iterator[Cut]:
        """Cuts at random octets that end no frame."""
        for _ in range(count):
            (direction,) = rng.choices(list(Direction), [ends[-1] for ends in self.ends.values()])
            ends = self.ends[direction]
            inside = set(ends)
            while (octets := rng.randrange(1, ends[-1])) in inside:
                pass
            yield Cut(direction, octets=octets)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What became of one scan."""

    cut: Cut | None
    struck: bool
    """Whether the connection was cut: a run may have a frame less than the one that was recorded."""
    resumes: int
    rows: int
    commits_meanwhile: bool
    """Whether the bucket was written to between the scan's opening and its end."""
    verdict: Verdict


@dataclass
class Tally:
    """What became of many."""

    outcomes: list[Outcome] = field(default_factory=list)
    refused: list[Cut] = field(default_factory=list)
    """Cuts of sessions after which the server said that the session was over."""
    failed: list[str] = field(default_factory=list)
    """Cuts that a scan did not get over, and its error."""

    @property
    def scans(self) -> int:
        """All of them."""
        return len(self.outcomes) + len(self.refused) + len(self.failed)

    @property
    def struck(self) -> int:
        """Connections cut."""
        return sum(outcome.struck for outcome in self.outcomes) + len(self.refused) + len(self.failed)

    @property
    def resumes(self) -> int:
        """Scans continued; the others were cut before they were opened, or after their end."""
        return sum(outcome.resumes for outcome in self.outcomes)

    @property
    def lost(self) -> int:
        """Rows that did not come."""
        return sum(outcome.verdict.count("missing") for outcome in self.outcomes)

    @property
    def repeated(self) -> int:
        """Rows that came more than once."""
        return sum(outcome.verdict.count("repeated") for outcome in self.outcomes)

    @property
    def wrong(self) -> int:
        """Rows of another time, or that never were."""
        return sum(len(outcome.verdict.violations) for outcome in self.outcomes) - self.lost - self.repeated

    @property
    def disordered(self) -> int:
        """Scans whose rows did not come in key order."""
        return sum(not outcome.verdict.in_order for outcome in self.outcomes)

    @property
    def digests_wrong(self) -> int:
        """Scans that ended with another digest than an uninterrupted one."""
        return sum(not outcome.verdict.digest_equal for outcome in self.outcomes)

    @property
    def violated(self) -> set[str]:
        """What does not hold, by the names that `bench.simulation.validators` has for it."""
        found = {
            "complete": self.lost,
            "unique": self.repeated,
            "isolated": self.wrong,
            "ordered": self.disordered,
            "resumable": self.digests_wrong + len(self.failed),
        }
        return {name for name, count in found.items() if count}

    @property
    def perfect(self) -> bool:
        """Whether nothing at all is wrong."""
        return not self.violated

    def __str__(self) -> str:
        return (
            f"{self.struck} cut points, {self.resumes} resumes: {self.lost} rows lost, {self.repeated} repeated, "
            f"{self.wrong} wrong, {self.disordered} scans out of order, {self.digests_wrong} digests wrong, "
            f"{len(self.failed)} failed{''.join(f'; {each}' for each in self.failed)}"
        )


class Campaign:
    """Runs the scan, cut wherever it is told.

    Args:
        dial: Makes a connection to the server.
        truth: Judges; and writes, if the shape says so.
        shape: How to scan.
        writer: The table, over a connection that is never cut.
        rng: Of the client's pauses, and of how the client learns of a cut.
        between: Called before a scan that was cut goes on.
        before_each: Called before each scan.
    """

    def __init__(
        self,
        dial: Dial,
        truth: Truth,
        shape: Shape,
        *,
        writer: scanner.Table,
        rng: random.Random,
        between: Sequence[Between] = (),
        before_each: Between = trio.lowlevel.checkpoint,
    ) -> None:
        self._dial = dial
        self._truth = truth
        self._shape = shape
        self._writer = writer
        self._rng = rng
        self._between = between
        self._before_each = before_each

    async def record(self) -> Recording:
        """Run the scan uninterrupted.

        Raises:
            ScannerError: It failed.
        """
        # A scan that follows a cut one is cut into other frames.
        first, failed = Cut(Direction.DOWN, frames=_WARM_UP_FRAMES), ""
        try:
            await self._scan(first)
        except scanner.SessionUnknown:
            pass
        except scanner.ScannerError as error:
            failed = f"{first}: {error}"
        path, _, _ = await self._scan(None)
        (stream,) = path.streams
        return Recording({way: tuple(meter.ends) for way, meter in stream.meters.items()}, failed)

    async def run(self, cut: Cut) -> Outcome:
        """Run the scan with one cut, to its end.

        Raises:
            ScannerError: It did not get over the cut.
        """
        before = self._truth.changes
        path, batches, scanned = await self._scan(cut)
        statistics = scanned.statistics()
        (bucket,) = statistics.buckets
        assert bucket.log_offset is not None
        shape = self._shape
        if shape.source == "live_kv":
            verdict = self._truth.judge(bucket.log_offset, batches, bucket.digest)
        else:
            digest = bucket.digest if shape.source == "hybrid" else None
            verdict = self._truth.judge_changes(shape.begins_at, scanned.positions.get(0), batches, digest)
        outcome = Outcome(
            cut=cut,
            struck=path.struck,
            resumes=statistics.resumes,
            rows=batches.num_rows,
            commits_meanwhile=self._truth.changes > before,
            verdict=verdict,
        )
        self._truth.forget()
        return outcome

    async def _scan(self, cut: Cut | None) -> tuple[_Path, pa.Table, scanner.Batches]:
        await self._before_each()
        path = _Path(self, cut)
        async with scanner.connect("127.0.0.1", dial=path.dial, rng=self._rng) as client:
            return path, *await self._read(await self._table(client))

    async def _table(self, client: scanner.Client) -> scanner.Table:
        """Look the table up; a client goes on with a scan by itself, but not with other calls."""
        for _ in range(self._shape.connections_cut):
            with suppress(scanner.ServerUnavailable):
                return await client.table(TABLE)
        return await client.table(TABLE)

    async def _read(self, table: scanner.Table) -> tuple[pa.Table, scanner.Batches]:
        received: list[pa.RecordBatch] = []
        scan = self._shape.scan(table)
        async with scan.execute() as batches:
            async for batch in batches:
                received.append(batch)
                if len(received) in self._shape.writes_after:
                    await self._truth.write(self._writer)
            return pa.Table.from_batches(received, scan.schema), batches

    async def wrap(self, cut: Cut | None, before: int) -> CutStream:
        """Make a connection that is cut.

        Args:
            cut: Where; None: nowhere.
            before: Connections that the client had before.
        """
        if before:
            for happen in self._between:
                await happen()
        if before >= self._shape.connections_cut:
            cut = None
        return CutStream(await self._dial(), cut, reset=self._rng.random() < 0.5)


class _Path:
    """The connections of one client."""

    def __init__(self, campaign: Campaign, cut: Cut | None) -> None:
        self._campaign = campaign
        self._cut = cut
        self.streams: list[CutStream] = []

    @property
    def struck(self) -> bool:
        """Whether the cut has happened."""
        return any(stream.struck for stream in self.streams)

    async def dial(self) -> CutStream:
        """The first ones are cut, the others are not."""
        stream = await self._campaign.wrap(self._cut, len(self.streams))
        self.streams.append(stream)
        return stream
