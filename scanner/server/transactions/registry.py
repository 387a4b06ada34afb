"""The transactions of a server: staged, decided once, and completed.

Invariants:

1. Before a version is decided, every stage that counts was read and is whole, no part has fewer rows than its publisher
   knows of, no key is in two parts, and the disk has room to apply it. The decision is durable before any bucket
   applies a row.
2. A version is decided once. Whoever publishes it again gets what was decided; a version below the newest that is
   decided, or applied by a bucket, is refused, and so is one whose publisher names another one as the newest.
3. What is decided is completed, by this server or the next (`scanner.server.transactions.completion`), before a newer
   version of the name is decided. A bucket gets the versions of all names of its table in the order of the decisions:
   what failed for a while is never laid over what was published after it.
4. A stage is there as a whole or not at all, and one that is sent again counts once.
5. Stages that count in a decision stay until it is applied. Others go when their version is decided or aborted, or
   `transaction_stage_ttl_s` after the last of their version.

This module knows no wire.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import trio

from scanner.errors import (
    DataCorrupted,
    ScannerError,
    StageNotFound,
    StoreClosed,
    StoreFailed,
    TableNotFound,
    TooManyTransactions,
    TransactionDecided,
    VersionGap,
    VersionSuperseded,
)
from scanner.server.failures import Failures
from scanner.server.transactions.completion import Applier, Completion
from scanner.server.transactions.decisions import Decision
from scanner.server.transactions.forgetting import Forgetting, is_once
from scanner.server.transactions.names import TransactionName, TransactionTable, VersionKey
from scanner.server.transactions.stage_writer import StageRoom, StageWriter
from scanner.server.transactions.stages import Attempt
from scanner.server.transactions.verification import Verification
from scanner.storage.transactions import ALL_KNOWN, StageKey

if TYPE_CHECKING:
    from scanner.server.config import ScannerConfig
    from scanner.server.tables.catalog import Catalog, ServedTable
    from scanner.storage.interface import Store
    from scanner.storage.transactions import AppliedShare, StoredStage
    from scanner.tasks import RunBlocking

_APPLYING_SHARE = 2
"""Room on the disk that applying takes, in sizes of the stages: rows and changelog."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Published:
    """What became of a version."""

    decided: bool
    """It was decided just now; else before."""
    attempts: Mapping[int, int]
    """By part, the attempt that counts."""
    shares: Mapping[int, AppliedShare]
    """By bucket, the changes that it made."""
    overwrite: bool
    """Whether the rows that no part names were deleted."""
    previous_unknown: bool
    """It was decided just now, and its `previous` was not looked at: no version of the name is known, and one may have
    been forgotten."""


class Transactions:
    """All transactions of a server; `load` comes first.

    Args:
        store: Where stages and decisions are.
        catalog: Table catalog.
        config: Bounds.
        nursery: Completes what was decided.
        run_blocking: Runs what storage does.
        now_ms: Tells the time, milliseconds since 1970 UTC.
    """

    def __init__(
        self,
        store: Store,
        catalog: Catalog,
        config: ScannerConfig,
        nursery: trio.Nursery,
        run_blocking: RunBlocking,
        now_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._config = config
        self._nursery = nursery
        self._run_blocking = run_blocking
        self._now_ms = now_ms
        self._forgetting = Forgetting(catalog, config, now_ms)
        self._applier = Applier(catalog, config, run_blocking)
        self._tables: dict[int, TransactionTable] = {}
        self._room = StageRoom(config.transaction_stage_bytes_max, self._tables)
        self._failures = Failures(_logger)
        self._unread: set[str] = set()
        """Tables of which an earlier server left something that could not be read at the start."""
        self._loading = trio.Lock()

    async def load(self) -> Self:
        """Find what earlier servers left, and complete what they decided, in the background. Before anything is served.

        A table whose transactions cannot be read is reported, and its transactions are refused until they can be, which
        each `sweep` tries; the others go on.

        Raises:
            StoreClosed: The store was closed.
        """
        names = [description.name for description in await self._catalog.descriptions()]
        for name in await self._run_blocking(functools.partial(_with_transactions, self._store, names)):
            try:
                await self._load(name)
            except ScannerError as error:
                _logger.error("the transactions of table %r cannot be read: %s", name, error)
                self._unread.add(name)
        return self

    @property
    def staged_bytes(self) -> int:
        """Octets of all stages, those that are being written included."""
        return self._room.bytes_taken

    @property
    def unapplied(self) -> int:
        """Versions that are decided and not applied in every bucket."""
        return sum(
            name.decision is not None and not name.decision.applied
            for table in self._tables.values()
            for name in table.names.values()
        )

    async def open_stage(self, key: VersionKey, attempt: Attempt, session: bytes) -> StageWriter:
        """Begin a stage.

        Args:
            key: Of which version.
            attempt: Who stages.
            session: Drawn by the writer; a stage that is sent again has the same.

        Raises:
            TableNotFound: There is no such table, or not any more.
            VersionSuperseded: A newer version is decided.
            StagesFull, DiskFull: There is no room.
            TooManyTransactions: The table has as many names as it may have.
            ScannerError: Storage failed.

        Waits:
            For storage.

        Cancellation:
            No effect.
        """
        table = await self._load(key.table, key.table_id)
        name = await self._name(table, key)
        name.require_newest(key)
        self._room.require(0)
        # Above those that are being written, too: stages apply in this order, and no two of them are one file.
        name.sequence = 1 + max(name.sequence, name.stages.last_sequence(key.version, attempt))
        stage = StageKey(key.name, key.version, *attempt, name.sequence, self._now_ms(), session)
        name.sessions += 1
        try:
            sink = await table.run(table.files.open_sink, stage)
        except BaseException:
            name.stage_ended()
            raise
        return StageWriter(self._room, name, key, stage, sink, self._now_ms)

    async def publish(
        self,
        key: VersionKey,
        attempts: Mapping[int, int],
        *,
        rows_min: Mapping[int, int] | None = None,
        previous: int | None = None,
        overwrite: bool = False,
        when_decided: Callable[[], None] | None = None,
    ) -> Published:
        """Decide a version, unless it is decided, and wait until every bucket has applied it.

        Args:
            key: Which version.
            attempts: By part, the attempt that is to count; not looked at if the version is decided.
            rows_min: By part, the rows and keys that its attempt has at least; likewise.
            previous: The newest version that is decided; likewise. None: whichever is.
            overwrite: Delete the rows that no part names; likewise.
            when_decided: Called once this call has decided it, whatever becomes of the rest.

        Raises:
            TableNotFound: There is no such table, or not any more.
            VersionSuperseded: A newer version is decided.
            VersionGap: The newest that is decided is not `previous`; nothing was decided.
            StageNotFound: An attempt has staged nothing, or less than `rows_min`; nothing was decided.
            DataCorrupted: A stage is damaged; nothing was decided.
            PartsConflict: Two parts touch one key; nothing was decided.
            DiskFull: There is no room to apply it; nothing was decided.
            ScannerError: It failed; where the message says that the version is decided, the server goes on with it.

        Waits:
            For the versions before, and for storage.

        Cancellation:
            The version may be decided; it is applied then all the same.
        """
        table = await self._load(key.table, key.table_id)
        name = await self._name(table, key)
        decided = previous_unknown = False
        async with name.lock:
            await self._resolve(name)
            name.require_newest(key)
            if not name.is_decided(key):
                if name.completion is not None and not name.completion.over:
                    await name.completion.wait()
                previous_unknown = await self._require_next(name, key, previous)
                await self._decide(name, key, attempts, rows_min or {}, overwrite=overwrite)
                decided = True
                if when_decided is not None:
                    when_decided()
                await self._drop_superseded(name)
            decision, completion = name.decision, name.completion
        if completion is not None:
            await completion.wait()
            if name.decision is not None and name.decision.version == key.version:
                decision = name.decision
        assert decision is not None
        return Published(
            decided, decision.attempts, decision.shares or {}, decision.overwrite, previous_unknown
        )

    async def abort(self, key: VersionKey) -> int:
        """Free the stages of a version; those that are being written end with StageNotFound. Idempotent.

        Spark aborts a write before its tasks have ended, and they finish the stages that they have begun.

        Returns:
            Octets that were freed.

        Raises:
            TransactionDecided: The version is decided.
            VersionSuperseded: A newer version is decided, and this one's stages are gone.
            ScannerError: Storage failed.

        Waits:
            For storage.

        Cancellation:
            Some stages may be freed.
        """
        table = await self._load(key.table, key.table_id)
        name = table.names.get(key.name)
        if name is None:
            return 0
        async with name.lock:
            await self._resolve(name)
            name.require_newest(key)
            if name.is_decided(key):
                raise TransactionDecided(f"{key} is decided, and cannot be aborted any more")
            name.end_stages(key.version)
            return await self._drop(name, name.stages.of_version(key.version))

    async def names(self, table: str, table_id: int | None = None) -> list[TransactionName]:
        """What a table has of transactions, by name.

        Args:
            table: Its name.
            table_id: The only table that is meant; None: whichever has the name.

        Raises:
            TableNotFound: There is no such table.
            ScannerError: Storage failed.
        """
        found = await self._load(table, table_id)
        return [name for _, name in sorted(found.names.items())]

    async def sweep(self) -> None:
        """Free the stages and forget the names whose time is over. A failure is logged, and tried again.

        First, what could not be read at the start is read, so that what was decided is completed.
        """
        for unread in sorted(self._unread):
            await self._load_unread(unread)
        for table in list(self._tables.values()):
            for text, name in list(table.names.items()):
                transaction = f"transaction {text} of table {table.name}"
                try:
                    async with name.lock, self._catalog.unless_dropped(table.name, table.files.table_id):
                        await self._expire(name)
                except TableNotFound:
                    break  # What it has went with it.
                except ScannerError as error:
                    self._failures.add(f"{transaction} is kept longer", error)
                else:
                    self._failures.clear(f"{transaction} is kept longer", f"{transaction} goes in time again")

    async def _load_unread(self, name: str) -> None:
        try:
            await self._load(name)
        except TableNotFound:
            pass  # What it had went with it.
        except ScannerError:
            return  # The log has it, from the start.
        else:
            _logger.warning("the transactions of table %r can be read now", name)
        self._unread.discard(name)

    async def _expire(self, name: TransactionName) -> None:
        await self._resolve(name)
        config = self._config
        decided = -1 if name.decision is None else name.decision.version
        for version in name.stages.versions:
            stages = name.stages.of_version(version)
            age_ms = min(self._forgetting.age_ms(each.key.staged_ms) for each in stages)
            if version > decided and not name.sessions and age_ms >= 1000 * config.transaction_stage_ttl_s:
                await self._drop(name, stages)
        await self._forgetting.forget_unused(name)

    async def _decide(
        self,
        name: TransactionName,
        key: VersionKey,
        attempts: Mapping[int, int],
        rows_min: Mapping[int, int],
        *,
        overwrite: bool,
    ) -> None:
        table = name.table
        chosen = {
            part: self._staged(name, key, Attempt(part, attempt))
            for part, attempt in sorted(attempts.items())
        }
        verified = await self._verified(table, {p: [s.key for s in stages] for p, stages in chosen.items()})
        _require_rows(key, attempts, verified.rows, rows_min)
        buckets = verified.buckets or {0}  # One at least remembers the version: no backup has the decision.
        if overwrite:
            buckets = set(range((await table.served()).description.buckets))
        size = sum(stage.size for stages in chosen.values() for stage in stages)
        await table.run(table.files.require_room, _APPLYING_SHARE * size)
        decision = Decision(
            table_id=key.table_id,
            name=key.name,
            version=key.version,
            attempts=dict(attempts),
            buckets=tuple(sorted(buckets)),
            stages=sum(map(len, chosen.values())),
            overwrite=overwrite,
            decided_ms=0,
            order=0,
        )
        while not await self._write_in_order(name, decision):
            pass

    async def _write_in_order(self, name: TransactionName, decision: Decision) -> bool:
        """Give a decision its time and its place in the order, write it, and have it applied.

        Returns:
            Whether it is decided; not if nobody knows what another name has decided, which would come before.
        """
        table = name.table
        await self._resolve_others(name)
        async with table.deciding:
            if any(other.uncertain for other in table.names.values() if other is not name):
                return False
            table.decisions += 1
            decision = replace(decision, decided_ms=self._now_ms(), order=table.decisions)
            name.uncertain = True
            await self._write(table, decision)
            name.uncertain = False
            name.decision, name.used_ms = decision, decision.decided_ms
            self._complete(name, decision)
            return True

    def _staged(self, name: TransactionName, key: VersionKey, attempt: Attempt) -> list[StoredStage]:
        stages = name.stages.of_attempt(key.version, attempt)
        if not stages:
            raise StageNotFound(
                f"part {attempt.part}, attempt {attempt.attempt}, of {key} has staged nothing, or it has expired;"
                " nothing was decided: stage it again"
            )
        return stages

    async def _verified(
        self, table: TransactionTable, chosen: Mapping[int, Sequence[StageKey]]
    ) -> Verification:
        served = await table.served()
        codec = served.schema.key_codec

        def describe(encoded: bytes) -> str:
            return repr(codec.decode(encoded))

        verification = Verification(table.files, chosen, describe)
        steps = verification.steps()
        while not await table.run(_take, steps):
            pass
        return verification

    async def _require_next(self, name: TransactionName, key: VersionKey, previous: int | None) -> bool:
        """See that a version may be decided behind those that are known.

        Returns:
            Whether `previous` could not be looked at: no version is known, and one may have been forgotten.

        Raises:
            VersionSuperseded: Buckets have applied a newer one, though nothing is known of a decision: the directory
                was restored.
            VersionGap: The newest is not `previous`.
        """
        newest, all_known = None if name.decision is None else name.decision.version, True
        if name.decision is None:
            newest, all_known = await self._newest_applied(name.table, key)
        # Buckets may have this version itself, of which the decision was lost.
        if previous is None or newest in (previous, key.version):
            return False
        if newest is None and (is_once(key.name) or not all_known):
            return True
        there = "none of this name is known" if newest is None else f"the newest that is known is {newest}"
        raise VersionGap(
            f"{key} is to follow version {previous}, and {there}; nothing was published: publish first what is missing,"
            " or this version without naming the one before",
            metadata={} if newest is None else {"decided_version": str(newest)},
        )

    async def _newest_applied(self, table: TransactionTable, key: VersionKey) -> tuple[int | None, bool]:
        """The newest version of a name that a bucket has applied, and whether the buckets know all names there were.

        Raises:
            VersionSuperseded: It is newer than the one that is to be decided.
        """
        served = await table.served()
        newest, all_known = -1, True
        for index in range(served.description.buckets):
            shares = (await self._catalog.bucket(served, index)).storage.applied_shares
            all_known = all_known and ALL_KNOWN in shares
            share = shares.get(key.name)
            if share is not None and share.version > key.version:
                raise VersionSuperseded(
                    f"{key} is superseded: bucket {index} has applied version {share.version}; it was published before"
                    " that, or never will be",
                    metadata={"decided_version": str(share.version)},
                )
            if share is not None:
                newest = max(newest, share.version)
        return None if newest < 0 else newest, all_known

    async def _resolve(self, name: TransactionName) -> None:
        """Find out what the disk has after the writing of a decision has failed, and abide by it."""
        if not name.uncertain:
            return
        content = (await name.table.run(name.table.files.decisions)).get(name.text)
        if content is not None:
            found = Decision.from_document(content, name.table.files.table_id, name.text)
            if name.decision is None or found.version > name.decision.version:
                await self._write(name.table, found)  # It may not be durable yet.
                name.decision = found
                self._complete(name, found)
        name.uncertain = False

    async def _resolve_others(self, name: TransactionName) -> None:
        """Find out whether other names have decided, before this one does: what they have decided comes before it.

        Who waits here is certain itself, so nobody who does is waited for.
        """
        for other in list(name.table.names.values()):
            if other is not name and other.uncertain:
                async with other.lock:
                    await self._resolve(other)

    async def _write(self, table: TransactionTable, decision: Decision) -> None:
        await table.run(table.files.write_decision, decision.name, decision.to_document())

    def _complete(self, name: TransactionName, decision: Decision) -> Completion:
        """Have a decision applied, in the background."""
        table = name.table

        async def apply() -> None:
            await self._wait_earlier(table, decision)
            async with self._catalog.unless_dropped(table.name, decision.table_id):
                try:
                    async with table.gate.applying():
                        shares = await self._applier.apply(
                            table.files, table.name, decision, name.chosen(decision)
                        )
                except TableNotFound as error:
                    # A drop refuses it from its beginning on, and may fail yet, or be given up.
                    raise StoreClosed(
                        f"table {table.name!r} was to be dropped, and is there still"
                    ) from error
                done = replace(decision, shares=shares)
                await self._write(table, done)
            name.decision = done
            name.used_ms = self._now_ms()  # Who waits for it may lose the answer, and ask again.
            table.gate.applied(name.text)
            await self._drop_superseded(name)

        key = VersionKey(table.name, decision.table_id, decision.name, decision.version)
        name.completion = Completion(apply, str(key))
        table.gate.decided(decision.name, decision.version, decision.buckets)
        self._nursery.start_soon(name.completion.run)
        return name.completion

    @staticmethod
    async def _wait_earlier(table: TransactionTable, decision: Decision) -> None:
        """Wait until what was decided before, under other names, is applied to the buckets that both change.

        Raises:
            ScannerError: It could not be applied; the server goes on trying.
        """
        for name in list(table.names.values()):
            other, completion = name.decision, name.completion
            if other is None or completion is None or completion.over or other.place >= decision.place:
                continue
            if not set(other.buckets).isdisjoint(decision.buckets):
                # What is damaged can never be applied, and holds up its own name alone.
                with suppress(DataCorrupted, TableNotFound):
                    await completion.wait()

    async def _drop_superseded(self, name: TransactionName) -> None:
        """Free what a decision has left over. A disk that refuses keeps it until the next start."""
        assert name.decision is not None
        version = name.decision.version
        kept = set() if name.decision.applied else set(name.chosen(name.decision))
        over = [stage for stage in name.stages if stage.key.version <= version and stage.key not in kept]
        try:
            await self._drop(name, over)
        except ScannerError as error:
            _logger.warning("stages of table %s are kept longer: %s", name.table.name, error)

    async def _drop(self, name: TransactionName, stages: Sequence[StoredStage]) -> int:
        keys = [stage.key for stage in stages]
        if keys:
            await name.table.run(name.table.files.drop_stages, keys)
            name.stages.remove(keys)
        return sum(stage.size for stage in stages)

    async def _name(self, table: TransactionTable, key: VersionKey) -> TransactionName:
        if key.name not in table.names and len(table.names) >= self._config.transaction_names_max:
            await self._forgetting.make_room(table)
        name = table.names.get(key.name)
        if name is None:
            if len(table.names) >= self._config.transaction_names_max:
                raise TooManyTransactions(
                    f"table {key.table!r} has {len(table.names)} transaction names, and no more are remembered"
                    " (transaction_names_max); use the name of one that is over, or wait until one is forgotten"
                )
            name = table.names[key.name] = TransactionName(table, key.name, self._now_ms())
        name.used_ms = self._now_ms()
        return name

    async def _load(self, table: str, table_id: int | None = None) -> TransactionTable:
        served = await self._catalog.table(table, table_id)
        found = self._tables.get(served.table_id)
        if found is None:
            async with self._loading:
                found = self._tables.get(served.table_id)
                if found is None:
                    found = await self._read(served)
                    # Nothing would take it away any more.
                    if not self._catalog.has(found.name, served.table_id):
                        raise TableNotFound(f"table {found.name!r} was dropped")
                    self._tables[served.table_id] = found
                    served.when_dropped.append(functools.partial(self._dropped, served.table_id))
        return found

    def _dropped(self, table_id: int, error: ScannerError) -> None:
        self._tables.pop(table_id, None)

    async def _read(self, served: ServedTable) -> TransactionTable:
        """Find what earlier servers left of a table's transactions."""
        text = served.description.name
        files = await self._run_blocking(functools.partial(self._store.transaction_files, text))
        if files.table_id != served.table_id:
            raise TableNotFound(f"table {text!r} was dropped")
        table = TransactionTable(text, files, served.versions, self._catalog, self._run_blocking)
        decisions, stages = await table.run(files.decisions), await table.run(files.stages)
        for each, content in decisions.items():
            name = table.names[each] = TransactionName(table, each, self._now_ms())
            name.decision = Decision.from_document(content, served.table_id, each)
            name.used_ms = name.decision.decided_ms
            table.decisions = max(table.decisions, name.decision.order)
        for stage in stages:
            fresh = TransactionName(table, stage.key.name, stage.key.staged_ms)
            name = table.names.setdefault(stage.key.name, fresh)
            name.stages.add(stage)
            name.used_ms = max(name.used_ms, stage.key.staged_ms)
        self._forgetting.note_stamps(
            [stage.key.staged_ms for stage in stages] + [name.used_ms for name in table.names.values()]
        )
        decided = [(name, name.decision) for name in table.names.values() if name.decision is not None]
        for name, _ in decided:
            await self._drop_superseded(name)
        # No waiting from here on: of who is cancelled then, another reading would complete the same once more.
        for name, decision in decided:
            if not decision.applied:
                table.gate.left_over(self._complete(name, decision).tried)
        return table


def _require_rows(
    key: VersionKey, attempts: Mapping[int, int], rows: Mapping[int, int], rows_min: Mapping[int, int]
) -> None:
    """See that every part has the rows that its publisher knows of.

    Raises:
        StageNotFound: One has fewer.
    """
    for part, expected in sorted(rows_min.items()):
        found = rows.get(part, 0)
        if found < expected:
            raise StageNotFound(
                f"of part {part}, attempt {attempts[part]}, of {key} at least {expected} rows and keys were staged, and"
                f" {found} are there: stages have expired, were aborted, or were lost when the server's data was"
                " restored; nothing was decided: stage all rows of the part in a new attempt"
            )


def _with_transactions(store: Store, names: Sequence[str]) -> list[str]:
    """The tables that have transactions, or may have some. Those that are damaged are reported by the store."""
    found = []
    for name in names:
        try:
            used = store.transaction_files(name).used
        except StoreFailed:  # Reading them says so, or succeeds.
            used = True
        except ScannerError:
            used = False
        if used:
            found.append(name)
    return found


def _take(steps: Iterator[None]) -> bool:
    """Take some steps; whether they are at their end."""
    return any(next(steps, True) for _ in range(16))
