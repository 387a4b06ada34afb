"""The calls on leases, and what they take and answer; `held_lease` renews a lease that a client has acquired.

A lease keeps states of buckets readable: source SNAPSHOT scans them (`Scan.with_lease`), any number of times, each time
with the same rows, for as long as the lease lives.
"""

from __future__ import annotations

import enum
import functools
import math
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

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
)
from scanner.client.calls import call_unary, require_about
from scanner.client.retries import retried
from scanner.data.half_applied import HalfApplied
from scanner.errors import (
    ArgumentInvalid,
    DataCorrupted,
    InternalError,
    ScanIncomplete,
    ScannerError,
    ServerUnavailable,
    error_row_of_reason,
)
from scanner.proto.weir.v1 import leases_pb2 as pb
from scanner.wire import methods

if TYPE_CHECKING:
    from scanner.client.connection import Connection

AMBIGUOUS: Final = (ServerUnavailable, ScanIncomplete, DataCorrupted, InternalError)
"""Errors of an acquisition that the server may have made."""
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
