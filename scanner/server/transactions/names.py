"""What a server knows of the transactions of a table: their names, and of each the decision and the stages.

What is decided, and when something is forgotten, is the registry's (`scanner.server.transactions.registry`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import trio

from scanner.errors import StageNotFound, VersionSuperseded
from scanner.server.transactions.stages import Attempt, Stages

if TYPE_CHECKING:
    from scanner.server.tables.catalog import Catalog, ServedTable
    from scanner.server.tables.version_gate import VersionGate
    from scanner.server.transactions.completion import Completion
    from scanner.server.transactions.decisions import Decision
    from scanner.storage.transactions import StageKey, TransactionFiles
    from scanner.tasks import RunBlocking

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class VersionKey:
    """Names one version of a transaction."""

    table: str
    table_id: int
    name: str
    version: int

    def __str__(self) -> str:
        return f"version {self.version} of transaction {self.name!r} of table {self.table!r}"


class TransactionName:
    """One transaction name of a table."""

    def __init__(self, table: TransactionTable, text: str, used_ms: int) -> None:
        self.table = table
        self.text = text
        self.decision: Decision | None = None
        self.completion: Completion | None = None
        self.stages = Stages(table.count_staged)
        self.lock = trio.Lock()
        """Held while a stage is finished, and while a version is decided or aborted."""
        self.uncertain = False
        """Whether the disk may have another decision, since writing one has failed."""
        self.sessions = 0
        """Stages that are being written."""
        self.sequence = 0
        """Of the stage that was opened last."""
        self._aborted: dict[int, int] = {}
        """By version that was aborted while stages were written, the `sequence` of the last one that it ends."""
        self.used_ms = used_ms

    def require_newest(self, key: VersionKey) -> None:
        """Refuse a version below the one that is decided.

        Raises:
            VersionSuperseded: It is.
        """
        decided = self.decision
        if decided is not None and key.version < decided.version:
            raise VersionSuperseded(
                f"{key} is superseded: version {decided.version} is decided; it was published before that, or never"
                " will be",
                metadata={"decided_version": str(decided.version)},
            )

    def end_stages(self, version: int) -> None:
        """Those of a version that are being written are not kept."""
        if self.sessions:
            self._aborted[version] = self.sequence

    def stage_ended(self) -> None:
        """A stage is not being written any more."""
        self.sessions -= 1
        if not self.sessions:
            self._aborted.clear()

    def require_kept(self, key: VersionKey, sequence: int) -> None:
        """Refuse a stage that was begun before its version was aborted.

        Raises:
            StageNotFound: It was.
        """
        if sequence <= self._aborted.get(key.version, 0):
            raise StageNotFound(
                f"{key} was aborted while this stage of it was written, and nothing of it was kept; stage it again if"
                " it is to count"
            )

    @property
    def idle(self) -> bool:
        """Whether nothing is staged, and nothing is left to apply."""
        busy = self.stages or self.sessions
        return not busy and (self.decision is None or self.decision.applied)

    def is_decided(self, key: VersionKey) -> bool:
        """Whether this version is the one that is decided."""
        return self.decision is not None and self.decision.version == key.version

    def chosen(self, decision: Decision) -> list[StageKey]:
        """The stages that count in a decision, in the order in which they are applied."""
        return [
            stage.key
            for part, attempt in sorted(decision.attempts.items())
            for stage in self.stages.of_attempt(decision.version, Attempt(part, attempt))
        ]


class TransactionTable:
    """The transactions of one table.

    Args:
        name: Of the table.
        files: Where they are.
        gate: Of the table.
        catalog: Table catalog.
        run_blocking: Runs what storage does.
    """

    def __init__(
        self,
        name: str,
        files: TransactionFiles,
        gate: VersionGate,
        catalog: Catalog,
        run_blocking: RunBlocking,
    ) -> None:
        self.name = name
        self.files = files
        self.gate = gate
        self._catalog = catalog
        self._run_blocking = run_blocking
        self.names: dict[str, TransactionName] = {}
        self.staged_bytes = 0
        """Octets of the durable stages of all names."""
        self.decisions = 0
        """The `order` of the newest decision."""
        self.deciding = trio.Lock()
        """Held while a decision gets its place in that order and is written. Nothing else is waited for meanwhile."""

    def count_staged(self, octets: int) -> None:
        """Stages have come, or gone: so many octets more, or fewer."""
        self.staged_bytes += octets

    async def run(self, function: Callable[..., _Result], *arguments: object) -> _Result:
        """Run what its files do."""
        return await self._run_blocking(functools.partial(function, *arguments))

    async def served(self) -> ServedTable:
        """The table as it is served.

        Raises:
            TableNotFound: It was dropped, or is being dropped.
        """
        served = await self._catalog.table(self.name, self.files.table_id)
        for bucket in served.buckets.values():
            bucket.check_served()  # A drop refuses writes first, and takes the stages and the table's name last.
        return served
