"""Consumers of every kind, each scanning one table over a path of its own that may be faulty.

What a consumer may see is little: every row of the table as of the offsets that its scan states, if the scan came to
its end; otherwise an error, and then only if its path was broken, the server's caps were reached, or it left by itself.
Anything else is counted as a finding.
"""

from __future__ import annotations

import enum
import random
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import trio

import scanner
from bench.harness.fault_proxy import Fault
from bench.harness.ledger import BUCKETS, TABLE
from scanner.client.retries import RETRIES_DEFAULT

if TYPE_CHECKING:
    from bench.harness.fault_proxy import FaultProxy, FaultyPath
    from bench.harness.ledger import Ledger

BREAK_BYTES_MAX = 6_000_000
SCANS_PER_CONNECTION_MAX = 4
STALL_S_MAX = 6.0
VICTIM_S_MAX = 5.0
RESUMING_BREAK_BYTES = (200_000, 2_000_000)
"""More than a page, so that every connection brings the scan on."""
TRYING_S_MAX = 90.0
"""A scan, faults included, that takes longer than this hangs."""


class Kind(enum.Enum):
    """How a consumer behaves."""

    FAST = "fast"
    SLOW = "slow"
    """A few milliseconds for each batch, with a credit of 64 KiB."""
    STALLED = "stalled"
    """Some batches, nothing for seconds, then the rest."""
    SESSION = "session"
    """Pages of the pull model, read to the end."""
    RESUMING = "resuming"
    """Push, or pages as of one offset, over a path that breaks every connection: comes to its end all the same."""
    LIMITED = "limited"
    """Asks for a number of rows."""
    EARLY = "early"
    """Leaves in the middle, push or session."""
    CANCELLED = "cancelled"
    """Is cancelled at a random moment."""
    KILLED = "killed"
    """A process of its own that gets SIGKILL while it scans."""


WEIGHTS = {
    Kind.FAST: 4, Kind.SLOW: 3, Kind.STALLED: 3, Kind.SESSION: 3, Kind.LIMITED: 2, Kind.EARLY: 3,
    Kind.CANCELLED: 2, Kind.KILLED: 1, Kind.RESUMING: 3,
}  # fmt: skip
FAULT_WEIGHTS = {
    Fault.NONE: 5, Fault.DELAY: 2, Fault.CLOG: 2, Fault.RESET: 3, Fault.CUT: 2, Fault.SILENCE: 1,
}  # fmt: skip


@dataclass
class Findings:
    """What all consumers saw."""

    verified: Counter[Kind] = field(default_factory=Counter)
    """Complete scans that were right in every row."""
    left: Counter[Kind] = field(default_factory=Counter)
    """Scans that their consumer left."""
    broken: Counter[Kind] = field(default_factory=Counter)
    """Scans that ended with an error on a path that was broken."""
    refused: int = 0
    """Scans that a cap of the server refused."""
    rows: int = 0
    """Rows of complete scans."""
    resumes: int = 0
    """Times that a scan went on over another connection."""
    wrong: list[str] = field(default_factory=list)
    """Complete scans that were not right, and errors without a reason."""


class Consumer:
    """One slot: does one thing after another until told to end.

    Args:
        proxy: Makes its paths.
        ledger: Judges its scans.
        findings: Shared by all consumers.
        rng: Of this consumer alone.
        endpoint: Of the server itself, for processes that are killed.
        silence: Whether paths may fall silent: it takes half a minute until the server notices.
    """

    def __init__(
        self, proxy: FaultProxy, ledger: Ledger, findings: Findings, rng: random.Random, endpoint: str, *,
        silence: bool,
    ) -> None:  # fmt: skip
        self._proxy = proxy
        self._ledger = ledger
        self._findings = findings
        self._rng = rng
        self._endpoint = endpoint
        self._faults = {
            fault: weight for fault, weight in FAULT_WEIGHTS.items() if silence or fault is not Fault.SILENCE
        }

    async def run(self, ending: trio.Event) -> None:
        """Consume until told to end; what runs then is finished."""
        while not ending.is_set():
            (kind,) = self._rng.choices(list(WEIGHTS), list(WEIGHTS.values()))
            if kind is Kind.KILLED:
                await self._be_killed()
            else:
                await self._connect(kind)

    async def _connect(self, kind: Kind) -> None:
        (fault,) = self._rng.choices(list(self._faults), list(self._faults.values()))
        break_after = self._rng.randrange(BREAK_BYTES_MAX)
        # A scan that goes on by itself would hide whether its failure had a reason; only of some is just that asked.
        retries = 0
        if kind is Kind.RESUMING:
            fault, break_after = (
                self._rng.choice((Fault.RESET, Fault.CUT)),
                self._rng.randint(*RESUMING_BREAK_BYTES),
            )
            retries = RETRIES_DEFAULT
        async with self._proxy.open_path(fault, break_after) as path:
            try:
                with trio.fail_after(TRYING_S_MAX):
                    async with scanner.connect(path.endpoint, retries=retries) as client:
                        for _ in range(self._rng.randint(1, SCANS_PER_CONNECTION_MAX)):
                            await self._scan(await client.table(TABLE), kind)
            except (scanner.TooManyScans, scanner.SessionExpired):
                self._findings.refused += 1
            except scanner.ScannerError as error:
                self._judge(kind, path, error)
            except trio.TooSlowError:
                self._findings.wrong.append(
                    f"{kind.value} on a path with {fault.value}: hung for {TRYING_S_MAX:g} s"
                )

    def _judge(self, kind: Kind, path: FaultyPath, error: scanner.ScannerError) -> None:
        if path.struck and kind is not Kind.RESUMING:
            self._findings.broken[kind] += 1
        else:
            broken = "broken" if path.struck else "unbroken"
            what = (
                f"{kind.value} on a path with {path.fault.value}, {broken}: {type(error).__name__}: {error}"
            )
            self._findings.wrong.append(what)

    async def _scan(self, table: scanner.Table, kind: Kind) -> None:
        with self._ledger.scanning():
            if kind is Kind.CANCELLED:
                with trio.move_on_after(self._rng.uniform(0, 0.5)):
                    await self._read(table, kind)
                self._findings.left[kind] += 1
            else:
                await self._read(table, kind)

    def _plan(self, table: scanner.Table, kind: Kind) -> scanner.Scan:
        scan = table.new_scan().with_credit(self._rng.choice((1, 64 << 10, 1 << 20, 32 << 20)))
        if kind in {Kind.SLOW, Kind.STALLED}:
            scan = scan.with_credit(64 << 10)
        if kind is Kind.SESSION or (kind is Kind.EARLY and self._rng.random() < 0.5):
            scan = scan.with_mode("session").with_page_bytes(self._rng.choice((64 << 10, 1 << 20)))
        elif kind is Kind.RESUMING:
            scan = scan.with_mode(self._rng.choice(("push", "push", "asof"))).with_page_bytes(64 << 10)
        elif self._rng.random() < 0.3:
            scan = scan.bucket(self._rng.randrange(BUCKETS))
        if kind is Kind.LIMITED or scan.plan.credit_bytes == 1:
            scan = scan.limit(self._rng.randrange(500))  # a credit of one byte is a message for each row
        return scan

    async def _read(self, table: scanner.Table, kind: Kind) -> None:
        scan = self._plan(table, kind)
        received: list[pa.RecordBatch] = []
        stall_at = self._rng.randrange(5) if kind is Kind.STALLED else -1
        leave_at = self._rng.randrange(6) if kind is Kind.EARLY else -1
        async with scan.execute() as batches:
            async for batch in batches:
                if len(received) == leave_at:
                    self._findings.left[kind] += 1
                    return
                if len(received) == stall_at:
                    await trio.sleep(self._rng.uniform(1, STALL_S_MAX))
                if kind is Kind.SLOW:
                    await trio.sleep(self._rng.uniform(0, 0.01))
                received.append(batch)
            statistics = batches.statistics()
        await self._verify(scan, kind, pa.Table.from_batches(received, scan.schema), statistics)

    async def _verify(
        self, scan: scanner.Scan, kind: Kind, rows: pa.Table, statistics: scanner.ScanStatistics
    ) -> None:
        limit = scan.plan.row_limit
        offsets = {each.bucket: each.log_offset for each in statistics.buckets}
        known = {bucket: offset for bucket, offset in offsets.items() if offset is not None}
        violations = await self._ledger.violations(known, rows, is_limited=limit is not None)
        found = [each.detail for each in violations]
        if limit is None and len(known) < len(offsets):
            found.append("a bucket without a log offset")
        if limit is not None and rows.num_rows != limit:
            found.append(f"{rows.num_rows} rows, asked for {limit}")
        if found:
            self._findings.wrong.append(f"{kind.value}: {len(found)} violations, the first: {found[0]}")
        else:
            self._findings.resumes += statistics.resumes
            self._findings.verified[kind] += 1
            self._findings.rows += rows.num_rows

    async def _be_killed(self) -> None:
        command = [sys.executable, "-m", "bench.harness.victim", self._endpoint, TABLE]
        process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            assert process.stdout is not None
            with trio.move_on_after(TRYING_S_MAX):
                await process.stdout.receive_some(1)  # it has its first batch
                await trio.sleep(self._rng.uniform(0, VICTIM_S_MAX))
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
        self._findings.left[Kind.KILLED] += 1
