"""Leases as a client has them: acquired, renewed in the background for the length of a block, dropped at its end.

A lease keeps states of buckets readable: source SNAPSHOT scans them (`Scan.with_lease`), any number of times, each time
with the same rows, for as long as the lease lives.
"""

from __future__ import annotations

import enum
import functools
import math
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, TypeVar

import trio
from google.protobuf.message import Message

from scanner.client.arguments import (
    UINT32_MAX,
    UINT64_MAX,
    bucket_number,
    flag,
    is_number,
    require_kind,
    require_text,
    whole,
    whole_number,
)
from scanner.client.calls import call_unary, require_about
from scanner.client.retries import retried
from scanner.data.half_applied import HalfApplied
from scanner.errors import (
    ArgumentInvalid,
    DataCorrupted,
    InternalError,
    LeaseNotFound,
    ScanIncomplete,
    ScannerError,
    ServerUnavailable,
    error_row_of_reason,
)
from scanner.proto.weir.v1 import leases_pb2 as pb
from scanner.tasks import bare
from scanner.wire import methods

if TYPE_CHECKING:
    from scanner.client.connection import Connection

AMBIGUOUS: Final = (ServerUnavailable, ScanIncomplete, DataCorrupted, InternalError)
"""Errors of an acquisition that the server may have made."""
_RENEWALS_PER_TTL: Final = 3
"""Two may fail, and the lease still lives."""
_TRIES_PER_RENEWAL: Final = 4
_LEAVE_S: Final = 5.0
"""How long leaving a block waits for a look and the drop. If that fails, the lease ends with its time."""
_AGE_S_MAX: Final = 1e9
_TTL_S_MAX: Final = 2**32

_Reply = TypeVar("_Reply", bound=Message)


class LeaseState(enum.Enum):
    """Which state of a bucket to lease."""

    NEWEST = "newest"
    """The newest checkpoint; one is made if the bucket has none."""
    NEWEST_EXISTING = "newest_existing"
    """The newest checkpoint; without one the bucket cannot be leased."""
    NEW = "new"
    """A checkpoint as of now."""
    LOG = "log"
    """As of now, without a checkpoint: only the changelog is kept, and a scan rebuilds the state from it."""


@dataclass(frozen=True, slots=True)
class LeaseTarget:
    """Buckets of a table, and which state of them."""

    table: str
    buckets: Sequence[int] = ()
    """Empty: all of the table."""
    state: LeaseState | str = LeaseState.NEWEST
    checkpoint_id: int | None = None
    """This checkpoint, of the one bucket that is named."""
    log_offset: int | None = None
    """As of this offset of the one bucket that is named."""


Leasable: TypeAlias = str | LeaseTarget
"""The name of a table, for all of its buckets; or a target."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LeasedBucket:
    """What a lease keeps of one bucket."""

    table: str
    """Its name."""
    bucket: int
    """Its number, from 0."""
    checkpoint_id: int | None
    """None: only the changelog is kept."""
    log_offset: int
    """The state: the changes with a smaller offset. The changelog is kept from here on."""
    history: bytes = b""
    """The history of the bucket that the state is of, for `as_of`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseInfo:
    """A lease as the server told of it."""

    lease_id: str
    """Unique among the leases of its principal."""
    principal: str
    """Whose it is."""
    ttl_s: float
    """How long it lives from each acquisition and renewal on."""
    remaining_s: float
    """How long it lived from the answer on."""
    buckets: tuple[LeasedBucket, ...]
    """By table and bucket."""

    def offsets(self, table: str) -> dict[int, int]:
        """By bucket of a table, the offset of its state: with it a scan of the changes goes on (`start_at`).

        Raises:
            ArgumentInvalid: It keeps nothing of that table.
        """
        offsets = {each.bucket: each.log_offset for each in self.buckets if each.table == table}
        if not offsets:
            raise ArgumentInvalid(f"lease {self.lease_id!r} keeps nothing of table {table!r}")
        return offsets


@dataclass(frozen=True, slots=True)
class NotLeased:
    """What was asked for and cannot be leased."""

    table: str
    """Its name."""
    bucket: int | None
    """None: the table as a whole."""
    error: ScannerError
    """Why."""


class Leases:
    """The calls of `weir.v1.Leases`.

    Args:
        connection: To the server.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def acquire(
        self,
        lease_id: str,
        targets: Iterable[Leasable],
        ttl_s: float | None,
        *,
        partial: bool,
        if_absent: bool = False,
        id_age_s: float | None = None,
    ) -> tuple[LeaseInfo | None, tuple[NotLeased, ...], tuple[HalfApplied, ...]]:
        """Add states to a lease, or move its buckets to them; see `scanner.Client.acquire_lease`."""
        request = pb.AcquireLeaseRequest(
            lease_id=_lease_id(lease_id),
            ttl_ms=_ttl_ms(ttl_s),
            targets=[_target_to_proto(each) for each in targets],
            partial=flag("partial", partial),
            if_absent=flag("if_absent", if_absent),
        )
        age_ms = None if id_age_s is None else _age_ms(id_age_s)
        asked = trio.current_time()

        def aged() -> bytes:
            """The id grows older while the client waits for the server."""
            if age_ms is not None:
                request.id_age_ms = age_ms + math.ceil(1000 * (trio.current_time() - asked))
            return request.SerializeToString()

        reply = await self._call("AcquireLease", aged, pb.AcquireLeaseResponse)
        missing = tuple(map(_not_leased_from_proto, reply.not_leased))
        if missing and not partial:
            raise refusal(missing)
        lease = _asked_for(lease_id, "", reply.lease) if reply.HasField("lease") else None
        return lease, missing, tuple(map(_half_applied_from_proto, reply.half_applied))

    async def renew(self, lease_id: str, ttl_s: float | None, principal: str = "") -> LeaseInfo:
        """Begin a lease's time anew."""
        request = pb.RenewLeaseRequest(
            lease_id=_lease_id(lease_id), ttl_ms=_ttl_ms(ttl_s), principal=_principal(principal)
        )
        reply = await self._call("RenewLease", request, pb.RenewLeaseResponse)
        return _asked_for(lease_id, principal, reply.lease)

    async def release(
        self, lease_id: str, table: str, buckets: Sequence[int], principal: str = ""
    ) -> LeaseInfo | None:
        """Release buckets; none: of all of the table. Returns what is left of the lease."""
        numbers = [bucket_number(table, bucket) for bucket in buckets]
        request = pb.ReleaseLeaseRequest(
            lease_id=_lease_id(lease_id),
            buckets=[pb.LeaseBuckets(table=require_text("the name of a table", table), buckets=numbers)],
            principal=_principal(principal),
        )
        reply = await self._call("ReleaseLease", request, pb.ReleaseLeaseResponse)
        if reply.lease_id:
            require_about("ReleaseLease", lease_id, reply.lease_id)
        return _asked_for(lease_id, principal, reply.lease) if reply.HasField("lease") else None

    async def drop(self, lease_id: str, principal: str = "") -> bool:
        """Drop a lease. Returns whether it was there."""
        request = pb.DropLeaseRequest(lease_id=_lease_id(lease_id), principal=_principal(principal))
        reply = await self._call("DropLease", request, pb.DropLeaseResponse)
        if reply.lease_id:
            require_about("DropLease", lease_id, reply.lease_id)
        return reply.dropped

    async def drop_if_possible(self, lease_id: str) -> None:
        """Drop a lease that nobody needs any more. If that fails for good, it ends with its time."""
        # The client may have been left: the task that has it can be cancelled, too, and end first.
        with suppress(ScannerError, trio.ClosedResourceError):
            await retried(self._connection.attempts(), functools.partial(self.drop, lease_id))

    async def list(self, table: str | None) -> list[LeaseInfo]:
        """The leases that the caller may see, by principal and id."""
        request = pb.ListLeasesRequest(table=require_text("the name of a table", table or ""))
        reply = await self._call("ListLeases", request, pb.ListLeasesResponse)
        if reply.HasField("table"):
            require_about("ListLeases", table or "", reply.table)
        return list(map(lease_from_proto, reply.leases))

    async def _call(self, method: str, request: Message | Callable[[], bytes], reply: type[_Reply]) -> _Reply:
        return await call_unary(self._connection, methods.LEASES + method, request, reply)


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


def new_lease_id() -> str:
    """An id that no other lease has."""
    return f"lease-{secrets.token_hex(8)}"


def _asked_for(lease_id: str, principal: str, info: pb.LeaseInfo) -> LeaseInfo:
    """The lease that an answer is about.

    Args:
        lease_id: Of the one that was asked for.
        principal: Whose it is; empty: the caller's.
        info: What came.

    Raises:
        DataCorrupted: It is another one, whose states would be read, and which would be renewed and dropped instead.
    """
    if info.lease_id != lease_id or principal not in ("", info.principal):
        raise DataCorrupted(
            f"the server was asked about lease {lease_id!r}{f' of {principal!r}' if principal else ''}, and answers"
            f" about {info.lease_id!r} of {info.principal!r}"
        )
    return lease_from_proto(info)


def lease_from_proto(info: pb.LeaseInfo) -> LeaseInfo:
    """Read a lease."""
    return LeaseInfo(
        lease_id=info.lease_id,
        principal=info.principal,
        ttl_s=info.ttl_ms / 1000,
        remaining_s=info.remaining_ms / 1000,
        buckets=tuple(
            LeasedBucket(
                table=each.table,
                bucket=each.bucket,
                checkpoint_id=each.checkpoint_id if each.HasField("checkpoint_id") else None,
                log_offset=each.log_offset,
                history=each.history,
            )
            for each in info.buckets
        ),
    )


def _lease_id(lease_id: str) -> str:
    return require_text("the id of a lease", lease_id)


def _principal(principal: str) -> str:
    return require_text("the name of a principal", principal)


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


def _target_to_proto(target: Leasable) -> pb.LeaseTarget:
    if isinstance(target, str):
        target = LeaseTarget(target)
    require_kind("what is leased, if it is not a table's name,", target, LeaseTarget)
    known = {state.value: state for state in LeaseState}
    state = target.state if isinstance(target.state, LeaseState) else known.get(str(target.state).lower())
    if state is None:
        raise ArgumentInvalid(f"unknown state {target.state!r} to lease; known: {', '.join(known)}")
    table = require_text("the name of a table", target.table)
    try:
        buckets = list(target.buckets)
    except TypeError:
        raise ArgumentInvalid(
            f"the buckets of table {table!r} are a list of numbers, not {target.buckets!r}"
        ) from None
    return pb.LeaseTarget(
        table=table,
        buckets=[whole(each, f"a bucket of table {table!r}", 0, UINT32_MAX) for each in buckets],
        state=f"STATE_{state.name}",
        checkpoint_id=_uint64_or_none("the id of a checkpoint", target.checkpoint_id),
        log_offset=_uint64_or_none("a log offset", target.log_offset),
    )


def _uint64_or_none(what: str, number: int | None) -> int | None:
    return None if number is None else whole(number, what, 0, UINT64_MAX)


def _ttl_ms(ttl_s: float | None) -> int:
    if ttl_s is None:
        return 0
    if not (is_number(ttl_s) and 0.001 <= ttl_s < _TTL_S_MAX):
        raise ArgumentInvalid(
            f"a lease lives 0.001 s or more, and at most as long as the server allows, not {ttl_s!r}; renew it from"
            " time to time"
        )
    return round(float(ttl_s) * 1000)


def _age_ms(age_s: float) -> int:
    if not (is_number(age_s) and 0 <= age_s < _AGE_S_MAX):
        raise ArgumentInvalid(f"the id of a lease is 0 to {_AGE_S_MAX:g} s old, not {age_s!r}")
    return math.ceil(float(age_s) * 1000)


def _not_leased_from_proto(missing: pb.NotLeased) -> NotLeased:
    row = error_row_of_reason(missing.reason)
    kind = InternalError if row is None else row.exception
    oldest = missing.oldest_offset if missing.HasField("oldest_offset") else None
    bucket = missing.bucket if missing.HasField("bucket") else None
    return NotLeased(missing.table, bucket, kind(missing.message, oldest_offset=oldest))


def _half_applied_from_proto(found: pb.HalfApplied) -> HalfApplied:
    return HalfApplied(found.table, found.name, found.version, tuple(found.applied), tuple(found.missing))


def refusal(missing: Sequence[NotLeased]) -> ScannerError:
    """The error of an acquisition that changed nothing: of the kind of the first, naming all."""
    first, others = missing[0], len(missing) - 1
    more = "" if not others else f" (and {others} more)"
    names = [each.table if each.bucket is None else f"{each.table}[{each.bucket}]" for each in missing]
    return type(first.error)(
        f"{names[0]} cannot be leased{more}: {first.error.message}; nothing was changed",
        oldest_offset=first.error.oldest_offset,
        metadata={"not_leased": ",".join(names)},
    )
