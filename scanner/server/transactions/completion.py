"""Applying what was decided, until it is done: the server's own business, whoever asked for it.

Invariants:

1. A decided version is applied in every bucket, and then its stages go; a failure is logged once and tried again.
2. A bucket that has applied the version, or a newer one, is left alone: it says so itself, in the commit that did it.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import trio

from scanner.errors import ArgumentInvalid, DataCorrupted, InternalError, ScannerError, TableNotFound
from scanner.server.failures import free_frames
from scanner.server.tables.write_queue import TransactionShare, applied_share
from scanner.server.transactions.overwriting import deletions
from scanner.server.transactions.verification import ChosenStages, share_pieces
from scanner.storage.transactions import AppliedShare
from scanner.wire.statuses import for_peers

if TYPE_CHECKING:
    from scanner.server.config import ScannerConfig
    from scanner.server.tables.bucket import ServedBucket
    from scanner.server.tables.catalog import Catalog
    from scanner.server.transactions.decisions import Decision
    from scanner.storage.interface import Mutation
    from scanner.storage.transactions import StageKey, TransactionFiles
    from scanner.tasks import RunBlocking

_DELAY_S_MIN: Final = 0.5
_DELAY_S_MAX: Final = 30.0

_logger = logging.getLogger(__name__)


class Completion:
    """One decided version on its way into the buckets.

    Args:
        apply: One attempt at all that is left to do.
        what: Names it in the log.
    """

    def __init__(self, apply: Callable[[], Awaitable[None]], what: str) -> None:
        self._apply = apply
        self._what = what
        self._tried = trio.Event()
        self._hurry = trio.Event()
        self._error: ScannerError | None = None
        self._shown: tuple[ScannerError, ScannerError] | None = None
        """A failure, and what a peer may see of it."""
        self.over = False
        """It is done, or its table is gone."""

    @property
    def tried(self) -> trio.Event:
        """Set when the attempt that runs, or comes next, has ended."""
        return self._tried

    async def run(self) -> None:
        """Try until it is done: a task.

        Cancellation:
            What is not done is done by the next server.
        """
        delay_s = _DELAY_S_MIN
        while not self.over:
            failure = await self._try()
            self.over = failure is None or isinstance(failure, TableNotFound)
            if self.over and self._error is not None:
                _logger.warning(
                    "%s %s", self._what, "is applied now" if failure is None else f"is over: {failure}"
                )
            elif not self.over and self._error is None:
                _logger.error("%s is decided, cannot be applied, and is tried again: %s", self._what, failure)
            self._error = failure
            tried, self._tried = self._tried, trio.Event()
            tried.set()
            if self.over:
                self._tried.set()
                return
            self._hurry = trio.Event()
            with trio.move_on_after(delay_s):
                await self._hurry.wait()
            delay_s = min(2 * delay_s, _DELAY_S_MAX)

    async def wait(self) -> None:
        """Wait until it is done, or an attempt at it has failed.

        Raises:
            TableNotFound: The table was dropped meanwhile.
            ScannerError: It is decided, and could not be applied; the server goes on trying.

        Waits:
            For every bucket to apply its share.

        Cancellation:
            No effect.
        """
        self._hurry.set()
        await self._tried.wait()
        if isinstance(self._error, TableNotFound):
            raise TableNotFound(self._error.message)
        if self._error is not None:
            # What a peer may see of it: else all of this would be hidden with the names of files.
            shown = self._for_peers(self._error)
            raise shown.reworded(
                f"{self._what} is decided, and the server goes on applying it: {shown.message}"
            ) from self._error

    def _for_peers(self, error: ScannerError) -> ScannerError:
        """What a peer may see of it: the same for the same failure, which is in the log once then, whoever waits."""
        known = self._shown
        if known is None or (type(known[0]), known[0].message) != (type(error), error.message):
            known = self._shown = error, for_peers(error)
        return known[1]

    async def _try(self) -> ScannerError | None:
        try:
            await self._apply()
        except ScannerError as error:
            free_frames(error)  # It is kept to be told, and rows of a share would be with it.
            return error
        except Exception as error:
            _logger.exception("%s failed in an unforeseen way", self._what)
            return InternalError(f"it failed ({type(error).__name__}); the server's log has the details")
        return None


class Applier:
    """Applies decided versions to buckets.

    Args:
        catalog: Table catalog.
        config: Bounds.
        run_blocking: Runs what storage does.
    """

    def __init__(self, catalog: Catalog, config: ScannerConfig, run_blocking: RunBlocking) -> None:
        self._catalog = catalog
        self._config = config
        self._run_blocking = run_blocking
        self._limit = trio.CapacityLimiter(config.transaction_buckets_max)

    async def apply(
        self, files: TransactionFiles, table: str, decision: Decision, keys: Sequence[StageKey]
    ) -> dict[int, AppliedShare]:
        """Have every bucket apply its share.

        Args:
            files: Of the table.
            table: Its name.
            decision: What was decided.
            keys: The stages that count, in order.

        Returns:
            By bucket, the changes that were made.

        Raises:
            TableNotFound: The table was dropped.
            ScannerError: A bucket could not; others may have.

        Waits:
            For storage, and for other transactions that are being applied.

        Cancellation:
            Some buckets may have applied their shares.
        """
        served = await self._catalog.table(table)
        if served.table_id != decision.table_id:
            raise TableNotFound(f"table {table!r} was dropped")
        shares: dict[int, AppliedShare] = {}
        failures: list[ScannerError] = []

        indices, stages = iter(decision.buckets), ChosenStages(files, keys)

        async def apply_some() -> None:
            for index in indices:
                async with self._limit:
                    try:
                        bucket = await self._catalog.bucket(served, index)
                        shares[index] = await self._apply_share(stages, bucket, index, decision)
                    except ScannerError as error:
                        failures.append(error)

        async with trio.open_nursery() as nursery:
            # No more tasks than run at once: a version whose other buckets waited here kept all later ones waiting.
            for _ in range(min(len(decision.buckets), self._config.transaction_buckets_max)):
                nursery.start_soon(apply_some)
        if failures:
            raise failures[0]
        return dict(sorted(shares.items()))

    async def _apply_share(
        self, stages: ChosenStages, bucket: ServedBucket, index: int, decision: Decision
    ) -> AppliedShare:
        transaction = TransactionShare(decision.name, decision.version)
        found = applied_share(bucket.storage.applied_shares, transaction)
        if found is not None:
            return found
        _require_stages(decision, stages.keys)
        if decision.overwrite:
            pieces = self._overwriting(stages, index, bucket)
            return AppliedShare(
                decision.version, *await bucket.submit_pieces(pieces, transaction).wait_durable()
            )
        first, more = await self._run_blocking(
            functools.partial(_begin, functools.partial(self._pieces, stages, index))
        )
        start = end = -1
        if not more:
            try:
                await bucket.wait_room()
                start, end = await bucket.submit(first, transaction=transaction).wait_durable()
            except ArgumentInvalid as error:
                if "write_too_large" not in error.metadata:
                    raise
                more = True  # With what it replaces it is too much for one entry.
        if more:
            pieces = self._pieces(stages, index)
            start, end = await bucket.submit_pieces(pieces, transaction).wait_durable()
        return AppliedShare(decision.version, start, end)

    def _overwriting(
        self, stages: ChosenStages, index: int, bucket: ServedBucket
    ) -> Generator[Sequence[Mutation], None, None]:
        """What deletes the rows that the share does not name, and then the share."""

        def share() -> Iterator[Sequence[Mutation]]:
            for piece in self._pieces(stages, index):
                bucket.check_served()  # The share is read before anything is written, and a drop waits for that.
                yield piece

        yield from deletions(bucket.storage, share, self._config.commit_rows_max)
        yield from share()

    def _pieces(self, stages: ChosenStages, index: int) -> Generator[Sequence[Mutation], None, None]:
        config = self._config
        return share_pieces(stages, index, config.transaction_piece_bytes, config.commit_rows_max)


def _require_stages(decision: Decision, keys: Sequence[StageKey]) -> None:
    """See that every stage is there that was decided: without one its rows would be missing, and nobody would know.

    Raises:
        DataCorrupted: One is not.
    """
    if len(keys) < decision.stages or decision.attempts.keys() - {key.part for key in keys}:
        raise DataCorrupted(
            f"stages of it are gone, and {len(keys)} are there; write its rows again, under another transaction name"
        )


def _begin(
    open_pieces: Callable[[], Generator[Sequence[Mutation], None, None]],
) -> tuple[Sequence[Mutation], bool]:
    """The first piece of a share, and whether there are more."""
    pieces = open_pieces()
    try:
        return next(pieces, []), next(pieces, None) is not None
    finally:
        pieces.close()
