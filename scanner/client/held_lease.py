"""A lease that a client has acquired: renewed in the background for the length of a block, dropped at its end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Self

import trio

from scanner.client.arguments import bucket_number, whole_number
from scanner.client.leases import AMBIGUOUS, Leasable, LeasedBucket, LeaseInfo, Leases, LeaseTarget, NotLeased
from scanner.data.half_applied import HalfApplied
from scanner.errors import ArgumentInvalid, LeaseNotFound, ScannerError
from scanner.tasks import bare

_RENEWALS_PER_TTL: Final = 3
"""Two may fail, and the lease still lives."""
_TRIES_PER_RENEWAL: Final = 4
_LEAVE_S: Final = 5.0
"""How long leaving a block waits for a look and the drop. If that fails, the lease ends with its time."""


class Lease:
    """A lease that this client acquired; made by `scanner.Client.acquire_lease`.

    In an `async with` block it is renewed in the background, and dropped at the end; when it is lost all the same, the
    block is cancelled, and LeaseNotFound raised. It has one block. Without a block it is the caller's to renew.

    Args:
        leases: The calls.
        info: What the server said.
        not_leased: What could not be leased, of a partial acquisition.
        half_applied: What `half_applied` says.
        id_known: Whether others may know its id, and acquire under it, too.
    """

    def __init__(
        self,
        leases: Leases,
        info: LeaseInfo,
        not_leased: tuple[NotLeased, ...] = (),
        half_applied: tuple[HalfApplied, ...] = (),
        *,
        id_known: bool = True,
    ) -> None:
        self._leases = leases
        self._id_known = id_known
        self._block: AbstractAsyncContextManager[None] | None = None
        self.info = info
        """As the server told of it last."""
        self.not_leased = not_leased
        """What could not be leased, of a partial acquisition."""
        self.half_applied = half_applied
        """The versions of transactions of which the states that were acquired last have a part; usually none."""
        # One that was there before, as `if_absent` finds it, has lived for a while.
        self._renewed_at = trio.current_time() - (info.ttl_s - info.remaining_s)
        self._given_up = False
        """The caller has released everything itself, or has asked for that; the lease is not lost."""
        self._acquired = 0
        """How often the caller has acquired more, and knows what it keeps since."""
        self._acquiring = 0
        """Acquisitions of the caller of which nobody knows whether they have moved it: not answered, or never, or
        beside another one."""
        self._is_anothers = False
        """Somebody else has moved it, and needs it."""
        self._until_renewal = trio.CancelScope()
        """Ends when the block renews it next."""

    @property
    def id(self) -> str:
        """Its id."""
        return self.info.lease_id

    @property
    def buckets(self) -> tuple[LeasedBucket, ...]:
        """What it keeps, as the server told of it last."""
        return self.info.buckets

    def offsets(self, table: str) -> dict[int, int]:
        """By bucket of a table, the offset of its state: with it a scan of the changes goes on (`start_at`).

        Raises:
            ArgumentInvalid: It keeps nothing of that table.
        """
        return self.info.offsets(table)

    def __repr__(self) -> str:
        return f"<Lease {self.id}: {len(self.buckets)} buckets, {self.info.ttl_s:g} s>"

    async def acquire(self, *targets: Leasable) -> None:
        """Add states to it, or move its buckets to them; its time begins anew.

        Raises:
            LeaseNotFound: It ended meanwhile; what was asked for is leased now, and the rest is not. Or somebody else
                has acquired under its id, and it keeps another state of the rest since.
            ScannerError: Something cannot be leased; nothing was changed.

        Cancellation:
            It may have them; `buckets` and `offsets` tell that from the next renewal on.
        """
        before, asked_at = self.info.buckets, trio.current_time()
        acquired = self._acquired
        self._acquiring += 1
        try:
            info, _, half_applied = await self._leases.acquire(
                self.id, targets, self.info.ttl_s, partial=False
            )
        except ScannerError as error:
            self._acquiring -= not isinstance(error, AMBIGUOUS)
            raise
        if acquired == self._acquired:  # Else another one was answered meanwhile, and may be the later one.
            self._acquiring -= 1
        self._acquired += 1
        if info is None:
            raise LeaseNotFound(
                f"lease {self.id!r} ended before its acquisition was answered; acquire it again"
            )
        if not self._acquiring and not self._given_up:
            moved = self._moved_since((each for each in before if not _is_named(each, targets)), info)
            if moved is not None:
                raise moved
        self.info, self.half_applied, self._is_anothers = info, half_applied, False
        # The block may have renewed it meanwhile: the answer can take long.
        self._renewed_at = max(self._renewed_at, asked_at)
        given_up, self._given_up = self._given_up, False
        if not given_up and not {(each.table, each.bucket) for each in before} <= {
            (each.table, each.bucket) for each in info.buckets
        }:
            raise LeaseNotFound(f"lease {self.id!r} ended before this acquisition, and what it kept is lost")

    async def renew(self, ttl_s: float | None = None) -> None:
        """Begin its time anew.

        Args:
            ttl_s: How long it lives from now on, seconds, above 0; None: as before.

        Raises:
            LeaseNotFound: It is gone: what it kept may not be readable any more. Or somebody else has acquired under
                its id, and it keeps another state of a bucket since.

        Cancellation:
            Its time may have begun anew.
        """
        asked_at = trio.current_time()
        moved = await self._renew(ttl_s)
        if moved is not None:
            raise moved
        self._renewed_at = max(self._renewed_at, asked_at)
        self._until_renewal.deadline = self._renewal_at  # It may have less time than before.

    async def _renew(self, ttl_s: float | None) -> LeaseNotFound | None:
        """Renew it; returns what is to be said if somebody else has moved it."""
        acquired = self._acquired
        info = await self._leases.renew(self.id, ttl_s)
        if acquired != self._acquired:  # The caller has acquired meanwhile: this may be what it kept before.
            self.info = replace(self.info, ttl_s=min(self.info.ttl_s, info.ttl_s))
            return None
        if not self._acquiring:  # Else it may be the caller who has moved it.
            moved = self._moved_since(self.info.buckets, info)
            if moved is not None:
                return moved
        self.info = info
        return None

    def _moved_since(self, kept: Iterable[LeasedBucket], info: LeaseInfo) -> LeaseNotFound | None:
        """What is to be said if it keeps another state of a bucket now, though the caller has not asked for one."""
        states = {(each.table, each.bucket): each for each in kept}
        for each in info.buckets:
            before = states.get((each.table, each.bucket), each)
            if (before.log_offset, before.history) != (each.log_offset, each.history):
                self._is_anothers = True
                return LeaseNotFound(
                    f"lease {self.id!r} keeps {each.table}[{each.bucket}] as of {each.log_offset} now, and no more as"
                    f" of {before.log_offset}: somebody else has acquired under the same id; each program needs an id"
                    " of its own, or if_absent to share one"
                )
        return None

    async def release(self, table: str, *buckets: int) -> None:
        """Release buckets, of all of the table if none are named. Idempotent; without any it is gone.

        A lease of which nothing is to be left is not renewed any more, even if this raises or is cancelled.

        Cancellation:
            They may have been released.
        """
        # If something should be left, it had ended before: that is a loss, which the next renewal tells.
        numbers = [bucket_number(table, bucket) for bucket in buckets]
        self._given_up |= all(
            each.table == table and (not numbers or each.bucket in numbers) for each in self.buckets
        )
        left = await self._leases.release(self.id, table, numbers)
        if left is not None:
            self.info, self._given_up = left, False

    async def drop(self) -> None:
        """Release all buckets. Idempotent.

        Cancellation:
            They may have been released, and the lease is not renewed any more.
        """
        self._given_up = True
        await self._leases.drop(self.id)

    async def __aenter__(self) -> Self:
        if self._block is not None:  # To enter it again would mix up two nurseries, and break trio's loop.
            raise ArgumentInvalid(
                f"lease {self.id!r} has had its block, whose end drops it; acquire another one"
            )
        self._block = self._kept()
        await self._block.__aenter__()
        return self

    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> Coroutine[Any, Any, bool | None]:
        assert self._block is not None
        return self._block.__aexit__(kind, error, traceback)

    @asynccontextmanager
    async def _kept(self) -> AsyncIterator[None]:
        lost: list[LeaseNotFound] = []
        until: float | None = None
        looked = False
        try:
            async with bare(trio.open_nursery()) as nursery:

                async def renew_until_lost() -> None:
                    lost.append(await self._renew_until_lost())
                    nursery.cancel_scope.cancel()

                nursery.start_soon(renew_until_lost)
                try:
                    yield
                    until = trio.current_time() + _LEAVE_S
                    moved, looked = await self._moved(until), True
                    if moved is not None:
                        lost.append(moved)
                finally:
                    nursery.cancel_scope.cancel()
        finally:
            if not lost:
                until = until or trio.current_time() + _LEAVE_S
                with trio.move_on_at(until, shield=True):
                    if not looked:
                        await self._moved(until)
                    if not self._is_anothers:
                        self._given_up = True
                        await self._leases.drop_if_possible(self.id)
        if lost:
            raise lost[0]

    async def _moved(self, until: float) -> LeaseNotFound | None:
        """Why the block may have read two states, if somebody else may have moved the lease since its last renewal."""
        if self._id_known and not self._given_up:
            with trio.move_on_at(until), suppress(ScannerError, trio.ClosedResourceError):
                try:
                    return await self._renew(None)
                except LeaseNotFound as error:  # Who has moved it may have dropped it, too.
                    return error
        return None

    async def _renew_until_lost(self) -> LeaseNotFound:
        """Renew from time to time; return why that came to an end."""
        while True:
            with trio.move_on_at(self._renewal_at) as self._until_renewal:
                await trio.sleep_forever()
            if self._given_up:  # Nothing to renew, unless something is acquired again.
                self._renewed_at = trio.current_time()
            elif (lost := await self._renew_in_time()) is not None and not self._given_up:
                return lost

    @property
    def _renewal_at(self) -> float:
        return self._renewed_at + self.info.ttl_s / _RENEWALS_PER_TTL

    async def _renew_in_time(self) -> LeaseNotFound | None:
        """Renew it, if need be again and again until its time is over; returns why it is lost, if it is."""
        until = self._renewed_at + self.info.ttl_s
        failure = "the server does not answer"
        if trio.current_time() >= until:  # As after SIGSTOP: nothing is asked any more.
            failure = "the program, or its event loop, stood still until its time was over"
        with trio.move_on_at(until):
            while True:
                try:
                    await self.renew()
                except LeaseNotFound as error:
                    return error
                except ScannerError as error:
                    failure = str(error)
                    await trio.sleep(self.info.ttl_s / _RENEWALS_PER_TTL / _TRIES_PER_RENEWAL)
                else:
                    return None
        return LeaseNotFound(f"lease {self.id!r} could not be renewed in time: {failure}")


def _is_named(bucket: LeasedBucket, targets: Iterable[Leasable]) -> bool:
    """Whether a bucket is among those that are to be leased."""
    for each in targets:
        target = LeaseTarget(each) if isinstance(each, str) else each
        if target.table == bucket.table:
            # By number: a scalar of pyarrow is one, too, and equals none.
            numbers = list(map(whole_number, target.buckets))
            if not numbers or bucket.bucket in numbers:
                return True
    return False
