"""`weir.v1.Leases`: the calls. What they do is the keeper's (`scanner.server.retention.lease_manager`).

A lease needs the right to read its tables; one for which a checkpoint has to be made also that to administer the
server, as `Checkpoint` does. It belongs to the principal that acquired it; to another one its id names
nothing. An administrator sees all leases, and may renew, release and drop those of others by naming the principal.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final

from scanner.errors import ArgumentInvalid
from scanner.proto.weir.v1 import leases_pb2 as pb
from scanner.server.auth.access import Right, audit_call, authorize, may, principal_of
from scanner.server.auth.audit import AuditEvent
from scanner.server.retention.lease_registry import Lease, LeasedState, LeaseKey
from scanner.server.retention.lease_targets import Choice, RefusedTarget, Target
from scanner.wire.queries import parse_request
from scanner.wire.statuses import for_peers

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from scanner.data.half_applied import HalfApplied
    from scanner.server.config import ScannerConfig
    from scanner.server.counters import Activity
    from scanner.server.retention.lease_manager import LeaseKeeper
    from transport import ServerStream

_LEASE_ID: Final = re.compile(r"[A-Za-z0-9_.:-]{1,100}")
_CHOICES: Final = {
    pb.LeaseTarget.STATE_UNSPECIFIED: Choice.NEWEST,
    pb.LeaseTarget.STATE_NEWEST: Choice.NEWEST,
    pb.LeaseTarget.STATE_NEWEST_EXISTING: Choice.NEWEST_EXISTING,
    pb.LeaseTarget.STATE_NEW: Choice.NEW,
    pb.LeaseTarget.STATE_LOG: Choice.LOG,
}


class LeaseService:
    """Serves the calls of `weir.v1.Leases`.

    Args:
        keeper: Lease manager.
        config: Bounds of the time to live.
        activity: Counts what is audited.
    """

    def __init__(self, keeper: LeaseKeeper, config: ScannerConfig, activity: Activity) -> None:
        self._keeper = keeper
        self._activity = activity
        self._config = config

    def calls(self) -> Mapping[str, Callable[[Buffer, ServerStream], Awaitable[bytes]]]:
        """The call of each method."""
        return {
            "AcquireLease": self.acquire,
            "RenewLease": self.renew,
            "ReleaseLease": self.release,
            "DropLease": self.drop,
            "ListLeases": self.list,
        }

    async def acquire(self, request: Buffer, stream: ServerStream) -> bytes:
        """Add states to a lease, and answer with it, and with what could not be leased.

        Raises:
            ArgumentInvalid: The request makes no sense.
            PermissionDenied: The caller may not read one of the tables, or have a checkpoint made that is needed.
            ScannerError: The keeper's.
        """
        message = parse_request(pb.AcquireLeaseRequest, request)
        key = LeaseKey(principal_of(stream).name, _checked_id(message.lease_id))
        if not message.targets:
            raise ArgumentInvalid("an acquisition names at least one table")
        if len(message.targets) > self._config.lease_buckets_max:
            raise ArgumentInvalid(
                f"an acquisition has at most {self._config.lease_buckets_max} targets, not {len(message.targets)}"
            )
        may_checkpoint = may(stream, Right.ADMIN)
        targets = [_target(each, may_checkpoint) for each in message.targets]
        for table in dict.fromkeys(target.table for target in targets):
            authorize(stream, Right.READ, table)
        before = self._keeper.get(key)
        usual_ms = max(1, round(self._config.lease_ttl_s * 1000)) if before is None else before.ttl_ms
        ttl_ms = self._ttl_ms(message.ttl_ms) or usual_ms
        acquired = await self._keeper.acquire(
            key,
            targets,
            ttl_ms=ttl_ms,
            partial=message.partial,
            if_absent=message.if_absent,
            id_age_ms=message.id_age_ms if message.HasField("id_age_ms") else None,
        )
        missing = sorted(
            acquired.missing, key=lambda each: (each.table, -1 if each.bucket is None else each.bucket)
        )
        answer = pb.AcquireLeaseResponse(
            lease=None if acquired.lease is None else self._info(acquired.lease),
            not_leased=list(map(_not_leased, missing)),
            half_applied=map(_half_applied, acquired.half_applied),
        )
        return answer.SerializeToString()

    async def renew(self, request: Buffer, stream: ServerStream) -> bytes:
        """Begin a lease's time anew, and answer with it.

        Raises:
            LeaseNotFound: There is none of that id, or not any more.
            PermissionDenied: The caller may not read one of its tables any more.
            ArgumentInvalid: The time to live is too long.
        """
        message = parse_request(pb.RenewLeaseRequest, request)
        key = _key(stream, message.lease_id, message.principal)
        lease = self._keeper.get(key)
        if lease is not None and not message.principal:
            for table in {state.table for state in lease.states.values()}:
                authorize(stream, Right.READ, table)  # it may have been taken away since
        renewed = await self._keeper.renew(key, self._ttl_ms(message.ttl_ms))
        return pb.RenewLeaseResponse(lease=self._info(renewed)).SerializeToString()

    async def release(self, request: Buffer, stream: ServerStream) -> bytes:
        """Release buckets, and answer with what is left.

        Raises:
            ArgumentInvalid: No table is named, or more than leases may have.
        """
        message = parse_request(pb.ReleaseLeaseRequest, request)
        key = _key(stream, message.lease_id, message.principal)
        most = self._config.lease_buckets_max
        if len(message.buckets) > most or sum(len(each.buckets) for each in message.buckets) > most:
            raise ArgumentInvalid(f"a release names at most {most} tables and buckets; release them in parts")
        if not message.buckets or not all(each.table for each in message.buckets):
            raise ArgumentInvalid("a release names at least one table; to release everything, drop the lease")
        buckets = [(each.table, tuple(each.buckets)) for each in message.buckets]
        before = self._keeper.get(key)
        left = await self._keeper.release(key, buckets)
        if before is not None and before.states.keys() - (left.states.keys() if left else ()):
            self._audit(stream, message.principal, message.lease_id)
        info = None if left is None else self._info(left)
        return pb.ReleaseLeaseResponse(lease=info, lease_id=message.lease_id).SerializeToString()

    async def drop(self, request: Buffer, stream: ServerStream) -> bytes:
        """Release everything that a lease keeps, and answer whether it existed."""
        message = parse_request(pb.DropLeaseRequest, request)
        key = _key(stream, message.lease_id, message.principal)
        dropped = await self._keeper.drop(key)
        if dropped:
            self._audit(stream, message.principal, message.lease_id)
        return pb.DropLeaseResponse(dropped=dropped, lease_id=message.lease_id).SerializeToString()

    def _audit(self, stream: ServerStream, owner: str, lease_id: str) -> None:
        if owner not in {"", principal_of(stream).name}:
            event = AuditEvent.LEASE_DROPPED_BY_ADMIN
            audit_call(self._activity, event, stream, owner=owner, lease=lease_id)

    async def list(self, request: Buffer, stream: ServerStream) -> bytes:
        """Answer with the caller's leases; with everybody's, if the caller may administer the server."""
        table = parse_request(pb.ListLeasesRequest, request).table
        everybody, own = may(stream, Right.ADMIN), principal_of(stream).name
        leases = [
            self._info(lease)
            for lease in self._keeper.leases()
            if (everybody or lease.key.principal == own)
            and (not table or any(state.table == table for state in lease.states.values()))
        ]
        return pb.ListLeasesResponse(leases=leases, table=table).SerializeToString()

    def _ttl_ms(self, asked_ms: int) -> int | None:
        longest_s = self._config.lease_ttl_max_s
        if asked_ms > longest_s * 1000:
            raise ArgumentInvalid(
                f"a lease lives at most {longest_s:g} s from a renewal on, not {asked_ms / 1000} s;"
                " renew it from time to time"
            )
        return asked_ms or None

    def _info(self, lease: Lease) -> pb.LeaseInfo:
        return pb.LeaseInfo(
            lease_id=lease.key.lease_id,
            principal=lease.key.principal,
            ttl_ms=lease.ttl_ms,
            remaining_ms=self._keeper.remaining_ms(lease),
            buckets=[_leased_bucket(state) for state in lease.sorted_states()],
        )


def _key(stream: ServerStream, lease_id: str, principal: str) -> LeaseKey:
    """The lease that a call is about."""
    if principal:
        authorize(stream, Right.ADMIN)
    return LeaseKey(principal or principal_of(stream).name, _checked_id(lease_id))


def _checked_id(lease_id: str) -> str:
    if not _LEASE_ID.fullmatch(lease_id):
        raise ArgumentInvalid("the id of a lease is 1 to 100 letters, digits, '_', '.', ':' and '-'")
    return lease_id


def _target(message: pb.LeaseTarget, may_checkpoint: bool) -> Target:
    if not message.table:
        raise ArgumentInvalid("a target names no table")
    choice, number = _CHOICES.get(message.state), 0
    if choice is None:
        raise ArgumentInvalid(f"the state {message.state} of a lease's target is not known to this server")
    by_id, by_offset = message.HasField("checkpoint_id"), message.HasField("log_offset")
    if by_id or by_offset:
        if (by_id and by_offset) or len(message.buckets) != 1:
            raise ArgumentInvalid(
                "a checkpoint_id or a log_offset is of one bucket: name that, and one of them"
            )
        choice = Choice.CHECKPOINT if by_id else Choice.OFFSET
        number = message.checkpoint_id if by_id else message.log_offset
    return Target(
        table=message.table,
        buckets=tuple(message.buckets),
        choice=choice,
        number=number,
        may_checkpoint=may_checkpoint,
    )


def _leased_bucket(state: LeasedState) -> pb.LeasedBucket:
    return pb.LeasedBucket(
        table=state.table,
        bucket=state.bucket,
        checkpoint_id=state.checkpoint_id,
        log_offset=state.log_offset,
        history=state.history,
    )


def _half_applied(found: HalfApplied) -> pb.HalfApplied:
    return pb.HalfApplied(
        table=found.table,
        name=found.name,
        version=found.version,
        applied=found.applied,
        missing=found.missing,
    )


def _not_leased(missing: RefusedTarget) -> pb.NotLeased:
    error = for_peers(missing.error)
    return pb.NotLeased(
        table=missing.table,
        bucket=missing.bucket,
        reason=error.reason,
        message=error.message,
        oldest_offset=error.oldest_offset,
    )
