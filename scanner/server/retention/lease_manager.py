"""Keeps what leases promise, and writes them down before anything is answered.

The rules of leases are the registry's (`scanner.server.retention.lease_registry`), finding states is
`scanner.server.retention.lease_targets`'.

Invariants:

1. What the written document promises is held. A state is released only when neither the registry nor the document
   has it any more.
2. A call returns after a document that says the same was written. If that fails, so does the call; the lease is then
   there or not, as after an answer that was lost, and ends with its time.
3. What a lease keeps was there when it was acquired, in the same moment, and has been since.

This module knows no wire and no transport.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from scanner.errors import (
    BucketNotFound,
    DataCorrupted,
    LeaseNotFound,
    OffsetOutOfRange,
    ScannerError,
    SnapshotLost,
    StoreFailed,
    TableNotFound,
    TooManyScans,
)
from scanner.server.failures import Failures
from scanner.server.retention.lease_registry import (
    LEASES_DOCUMENT,
    BucketKey,
    CheckpointKey,
    Lease,
    LeasedState,
    LeaseKey,
    LeaseRegistry,
)
from scanner.server.retention.lease_targets import HeldState, RefusedTarget, StateFinder, Target

if TYPE_CHECKING:
    from scanner.data.half_applied import HalfApplied
    from scanner.server.clock import WallClock
    from scanner.server.config import ScannerConfig
    from scanner.server.retention.checkpoints import BucketCheckpoints
    from scanner.server.tables.catalog import Catalog
    from scanner.storage.interface import Store
    from scanner.tasks import RunBlocking


_logger = logging.getLogger(__name__)
_GONE: Final = (TableNotFound, BucketNotFound, SnapshotLost)
"""Trying again will not bring it back."""


class Acquired(NamedTuple):
    """What became of an acquisition."""

    lease: Lease | None
    """As it is now; None: there is none."""
    missing: Sequence[RefusedTarget] = ()
    """What could not be leased."""
    half_applied: Sequence[HalfApplied] = ()
    """The versions of transactions of which the states of a table have a part."""


class LeaseKeeper:
    """The leases of a server.

    Args:
        store: Where they are written down.
        catalog: Table catalog.
        finder: Finds states.
        config: Caps.
        run_blocking: Runs what storage does.
        clock: Tells the time.
    """

    def __init__(
        self,
        store: Store,
        catalog: Catalog,
        finder: StateFinder,
        config: ScannerConfig,
        run_blocking: RunBlocking,
        clock: WallClock,
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._finder = finder
        self._config = config
        self._run_blocking = run_blocking
        self._clock = clock
        self._registry = LeaseRegistry()
        self._failures = Failures(_logger)
        self._held: dict[tuple[LeaseKey, LeasedState], HeldState] = {}
        self._unheld: set[tuple[LeaseKey, LeasedState]] = set()
        """What could not be held when that was tried last."""
        self._promised: set[tuple[LeaseKey, LeasedState]] = set()
        """By the document."""
        self._promised_at = 0
        """The registry's `kept_changes` when it kept these."""
        self._changes = 0
        self._written_changes = 0
        self._writing = trio.Lock()
        catalog.after_drop.append(self._forget_dropped_now)

    def references(self, checkpoint: CheckpointKey) -> int:
        """How many leases keep a checkpoint."""
        return self._registry.references(checkpoint)

    async def load(self) -> None:
        """Read the leases that an earlier server wrote down, and hold what they keep. Before anything is served.

        Raises:
            DataCorrupted: They cannot be read; the message says what to do.
            StoreFailed: The disk refused.
        """
        try:
            content = await self._run_blocking(functools.partial(self._store.read_document, LEASES_DOCUMENT))
            self._registry = LeaseRegistry.from_document(content, self._clock.now_ms())
        except DataCorrupted as error:
            raise DataCorrupted(
                f"the leases cannot be read: {error.message}; restore {LEASES_DOCUMENT} from a copy, or remove it to"
                " start without leases"
            ) from error
        self._promised, self._promised_at = set(self._registry.states()), self._registry.kept_changes
        read = LeaseRegistry.to_document(self._registry.frozen(), self._registry.frozen_ended())
        await self._restore(self._registry.states())
        if content is not None and read != content:
            # What expired while no server ran stays so, also if the clock is set back before the next start.
            self._changes += 1
            with suppress(StoreFailed):  # A server starts on a full disk, too; the next sweep tries again.
                await self._write()

    async def acquire(
        self,
        key: LeaseKey,
        targets: Sequence[Target],
        *,
        ttl_ms: int,
        partial: bool,
        if_absent: bool = False,
        id_age_ms: int | None = None,
    ) -> Acquired:
        """Add states to a lease, or move its buckets to them; the lease is made if there is none.

        Args:
            key: The lease.
            targets: What it is to keep beside what it keeps of other buckets.
            ttl_ms: Above 0.
            partial: Lease what exists, even if some of it does not; else nothing changes in that case.
            if_absent: Change nothing if there is a lease; of calls at once one makes it.
            id_age_ms: The id was made up so long ago for this lease alone; None: it may have named others.

        Raises:
            LeaseNotFound: A lease of an id that was made up for it has ended since, or may have.
            ArgumentInvalid: More buckets are named than all leases may have.
            TooManyScans: There are as many leases, or leased buckets, as the server allows.
            StoreFailed: It could not be written down.

        Waits:
            For storage.

        Cancellation:
            The lease may have been changed, as if the answer had been lost.
        """
        if if_absent and (lease := self._existing(key)) is not None:
            await self._write()  # Another call may have made it a moment ago.
            return Acquired(lease)
        made_ms = None if id_age_ms is None else self._clock.now_ms() - id_age_ms
        self._require_new(key, made_ms)
        most = self._config.lease_buckets_max
        found = await self._finder.hold_all(key, targets, functools.partial(self._end, key), most)
        held, missing, half_applied = found
        taken: dict[HeldState, None] = {}
        try:
            # No waiting up to the registry's own change: what is looked at here is leased in the same moment.
            if if_absent and self._existing(key) is not None:
                missing.clear()
                half_applied.clear()
            else:
                self._require_new(key, made_ms)
                for each in held:
                    if (problem := self._finder.problem_of(each)) is not None:
                        missing.append(RefusedTarget(each.state.table, each.state.bucket, problem))
                    else:
                        taken[each] = None
                now_ms = self._clock.now_ms()
                if missing and not partial:
                    taken.clear()
                    return Acquired(self._registry.get(key, now_ms), missing)
                self._check_room(key, [each.state for each in taken], now_ms)
                self._registry.acquire(key, [each.state for each in taken], ttl_ms=ttl_ms, now_ms=now_ms)
                self._changes += 1
                held = [each for each in held if each not in taken or not self._take(key, each)]
        finally:
            for each in held:
                each.release()
        await self._write()
        return Acquired(self._registry.get(key, self._clock.now_ms()), missing, half_applied)

    async def renew(self, key: LeaseKey, ttl_ms: int | None = None) -> Lease:
        """Begin a lease's time anew.

        Args:
            key: The lease.
            ttl_ms: Above 0; None: as before.

        Raises:
            LeaseNotFound: There is none, or not any more.
            StoreFailed: It could not be written down.
        """
        self._existing(key)
        lease = self._registry.renew(key, now_ms=self._clock.now_ms(), ttl_ms=ttl_ms)
        self._changes += 1
        await self._write()
        return lease

    async def release(self, key: LeaseKey, buckets: Iterable[tuple[str, Sequence[int]]]) -> Lease | None:
        """Release buckets. What is not kept is no error.

        Args:
            key: The lease.
            buckets: By name of the table; no buckets: all of it.

        Returns:
            The lease; None if it is gone.

        Raises:
            StoreFailed: It could not be written down.
        """
        lease = self.get(key)
        if lease is None:
            await self._write()  # It may have gone by a call that could not write that down.
            return None
        wanted = {(table, index) for table, indices in buckets for index in indices or (None,)}
        gone = [
            state.bucket_key
            for state in lease.states.values()
            if (state.table, None) in wanted or (state.table, state.bucket) in wanted
        ]
        left = self._registry.release(key, gone, now_ms=self._clock.now_ms())
        self._changes += 1
        await self._write()
        return left

    async def drop(self, key: LeaseKey) -> bool:
        """Release everything that a lease keeps.

        Returns:
            Whether it was there; if not, that is no error.

        Raises:
            StoreFailed: It could not be written down.
        """
        dropped = self._registry.drop(key, now_ms=self._clock.now_ms())
        self._changes += dropped
        await self._write()  # Also what another call has dropped, and could not write down.
        return dropped

    def get(self, key: LeaseKey) -> Lease | None:
        """A lease, if it exists."""
        return self._registry.get(key, self._clock.now_ms())

    def leases(self) -> list[Lease]:
        """All leases, by principal and id."""
        return self._registry.leases(self._clock.now_ms())

    def remaining_ms(self, lease: Lease) -> int:
        """How long a lease lives from now on."""
        return lease.remaining_ms(self._clock.now_ms())

    def state_of(self, key: LeaseKey, table: str, bucket: BucketKey) -> LeasedState:
        """What a lease keeps of a bucket.

        Raises:
            LeaseNotFound: There is no such lease, or it keeps nothing of the bucket.
        """
        lease = self.get(key)
        if lease is None:
            raise LeaseNotFound(f"there is no lease {key.lease_id!r}; acquire it first")
        if bucket not in lease.states:
            raise LeaseNotFound(
                f"lease {key.lease_id!r} keeps nothing of bucket {bucket.bucket} of table {table!r}; acquire that, too"
            )
        return lease.states[bucket]

    async def sweep(self) -> None:
        """Release what expired leases and leases of dropped tables kept, and hold what could not be held before.

        Raises:
            StoreFailed: They could not be written down.
        """
        self._registry.expire(self._clock.now_ms())
        self._forget_dropped(state for _, state in self._registry.states())
        self._unheld = {each for each in self._unheld if self._wants(*each)}
        await self._restore(self._registry.states())
        if self._changes != self._written_changes or self._promised_at != self._registry.kept_changes:
            self._changes += 1
            await self._write()

    async def _forget_dropped_now(self) -> None:
        """After a table was dropped: no list and no document names its leases any more."""
        self._forget_dropped(state for _, state in self._registry.states())
        with suppress(StoreFailed):  # The next sweep writes it down, or says why not.
            await self._write()

    def _forget_dropped(self, states: Iterable[LeasedState]) -> None:
        """Release the tables among these that were dropped; it is written down with the next change or sweep."""
        tables = {(state.table, state.table_id) for state in states}
        gone = {table_id for table, table_id in tables if not self._catalog.has(table, table_id)}
        if gone:
            self._registry.forget_tables(gone, now_ms=self._clock.now_ms())
            self._changes += 1

    def _require_new(self, key: LeaseKey, made_ms: int | None) -> None:
        """Refuse to make a lease of an id that was made up for one lease, and had it."""
        if made_ms is None or self._existing(key) is not None:
            return
        if self._registry.may_have_ended(key, made_ms):
            how = (
                "has ended"
                if self._registry.has_ended(key)
                else "may have ended: the server remembers no longer"
            )
            raise LeaseNotFound(
                f"lease {key.lease_id!r} {how}; another one of its id would keep another state, so take a new id"
            )

    def _existing(self, key: LeaseKey) -> Lease | None:
        """A lease without what it kept of dropped tables; None if there is none, or nothing is left.

        Not only at the next sweep: until then its holder would take a new table of the same name for the leased one.
        """
        if (lease := self.get(key)) is not None:
            self._forget_dropped(lease.states.values())
        return self.get(key)

    def _check_room(self, key: LeaseKey, states: Sequence[LeasedState], now_ms: int) -> None:
        """Refuse what would be too much, of the server or of its principal.

        Raises:
            TooManyScans: It would be.
        """
        self._registry.expire(now_ms)
        registry, config = self._registry, self._config
        lease = registry.get(key, now_ms)
        if lease is None:
            _require_room("leases", 1 + len(registry), config.leases_max)
            own = 1 + registry.count_of(key.principal)
            _require_room(f"leases of {key.principal}", own, config.leases_per_principal_max)
        kept = {} if lease is None else lease.states
        if added := len({state.bucket_key for state in states} - set(kept)):
            buckets = added + sum(1 for _ in registry.states())
            _require_room("leased buckets", buckets, config.lease_buckets_max)
            own = added + registry.bucket_count_of(key.principal)
            _require_room(f"leased buckets of {key.principal}", own, config.lease_buckets_per_principal_max)

    def _take(self, key: LeaseKey, held: HeldState) -> bool:
        """Hold a state for a lease; False if the lease does already."""
        at = (key, held.state)
        before = self._held.get(at)
        if before is not None and before.pin.held:
            return False
        if before is not None:
            before.release()
        self._held[at] = held
        return True

    def _end(self, key: LeaseKey, state: LeasedState, error: ScannerError) -> None:
        """Retention takes the log away from a lease: its promise is broken, so it ends as a whole.

        Not where the state is about to be leased, which fails then, or where the lease has another one by now.
        """
        if not self._wants(key, state):
            return
        self._registry.drop(key, now_ms=self._clock.now_ms(), why=error.message)
        _logger.warning("lease %s of %s was ended: %s", key.lease_id, key.principal, error.message)
        self._changes += 1
        for (owner, _), held in self._held.items():
            if owner == key:
                held.pin.release()

    async def hold_again(self, table: str, bucket: int) -> None:
        """Hold what leases keep of a bucket that could not be opened at the start, before its changelog is cut.

        Raises:
            StoreFailed: It cannot be held now, either.

        Waits:
            For storage.
        """

        def of_bucket() -> list[tuple[LeaseKey, LeasedState]]:
            return [each for each in self._unheld if (each[1].table, each[1].bucket) == (table, bucket)]

        await self._restore(of_bucket())
        if any(self._wants(*each) for each in of_bucket()):
            raise StoreFailed(
                f"a lease keeps the changelog of {table}[{bucket}], and cannot hold it now: the server's log says why"
            )

    async def _restore(self, kept: Iterable[tuple[LeaseKey, LeasedState]]) -> None:
        """Hold what the registry has and is not held yet, as after a start."""
        for key, state in list(kept):
            if (key, state) in self._held or not self._wants(key, state):
                self._unheld.discard((key, state))
                continue
            where = f"{state.table}[{state.bucket}]"
            try:
                held = await self._finder.hold_again(key, state, functools.partial(self._end, key))
            except OffsetOutOfRange as error:
                self._end(key, state, error)  # It was ended before the crash, and that was not written down.
            except _GONE as error:
                if not self._wants(key, state):
                    continue  # Meanwhile it was released, or another state was acquired.
                if isinstance(error, TableNotFound) and self._catalog.has(state.table, state.table_id):
                    self._unheld.add((key, state))  # It is being dropped, and stays if the disk refuses that.
                    continue
                _logger.warning("lease %s lost %s[%d]: %s", key.lease_id, state.table, state.bucket, error)
                self._registry.release(key, [state.bucket_key], now_ms=self._clock.now_ms())
                self._changes += 1
            except ScannerError as error:
                self._unheld.add((key, state))
                self._failures.add(f"{where} cannot be held for lease {key.lease_id} now", error)
            else:
                self._failures.clear(
                    f"{where} cannot be held for lease {key.lease_id} now",
                    f"{where} is held for lease {key.lease_id}",
                )
                # Meanwhile it may have been released, or acquired again, which holds it already.
                if not self._wants(key, state) or not self._take(key, held):
                    held.release()
                self._unheld.discard((key, state))

    def _wants(self, key: LeaseKey, state: LeasedState) -> bool:
        lease = self.get(key)
        return lease is not None and lease.states.get(state.bucket_key) == state

    async def _write(self) -> None:
        """Return when a document that has everything up to now is on the disk; callers at once share one."""
        wanted = self._changes
        async with self._writing:
            if self._written_changes < wanted:
                changes, leases = self._changes, self._registry.frozen()
                ended, kept_at = self._registry.frozen_ended(), self._registry.kept_changes
                # A renewal keeps what was kept: it looks at none of the states, of which there may be many.
                new = kept_at != self._promised_at
                promised = set(self._registry.states()) if new else self._promised
                await self._run_blocking(
                    lambda: self._store.write_document(
                        LEASES_DOCUMENT, LeaseRegistry.to_document(leases, ended)
                    )
                )
                self._written_changes, self._promised, self._promised_at = changes, promised, kept_at
                if new or self._registry.kept_changes != kept_at:
                    await self._release_ended()

    async def _release_ended(self) -> None:
        needed = self._promised | set(self._registry.states())
        released: dict[BucketCheckpoints, None] = {}
        for at in [each for each in self._held if each not in needed]:
            held = self._held.pop(at)
            held.release()
            released[held.checkpoints] = None
        for checkpoints in released:
            await checkpoints.prune()


def _require_room(what: str, wanted: int, allowed: int) -> None:
    if wanted > allowed:
        raise TooManyScans(
            f"{wanted} {what} would be on this server, and {allowed} are allowed; drop some, or try again later"
        )
