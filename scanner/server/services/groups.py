"""`weir.v1.Groups`: memberships of reader groups, their positions, and what there is.

A group needs the right to read its table. Everybody who has it may join, commit and delete: a group is what its readers
share.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final

import trio

from scanner.errors import ArgumentInvalid, GroupMemberExpired, ScannerError
from scanner.proto.weir.v1 import groups_pb2 as pb
from scanner.server.auth.access import Right, audit_call, authorize
from scanner.server.auth.audit import AuditEvent
from scanner.server.fairness import DEMAND_TURNS, pass_turn
from scanner.tasks import run_with_companion
from scanner.wire.queries import meant_table_id, parse_request
from scanner.wire.seals import sealed_like
from scanner.wire.statuses import for_peers

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from scanner.server.config import ScannerConfig
    from scanner.server.counters import Activity
    from scanner.server.groups.coordinator import Member, ReaderGroup
    from scanner.server.groups.registry import ReaderGroups
    from scanner.wire.seals import Seal
    from transport import ServerStream

_NAME: Final = re.compile(r"[A-Za-z0-9_.:-]{1,100}")
_INSTANCE_BYTES: Final = 16
_JOIN_BYTES_MAX: Final = 4096
"""A join takes some hundred octets, and is kept as long as its member is there."""
_GRACE: Final = 0.1
"""Of the session's time, once more, for what has come but was not looked at: this process was busy, or stopped."""
_TOLD_S_MAX: Final = 4_000_000
"""Of the session's time: its milliseconds fit into 32 bits, and members say something sooner than they need to."""


class GroupService:
    """Serves the calls of `weir.v1.Groups`.

    Args:
        groups: The groups of the server.
        config: Bounds.
        activity: Counts what is audited.
    """

    def __init__(self, groups: ReaderGroups, config: ScannerConfig, activity: Activity) -> None:
        self._groups = groups
        self._config = config
        self._activity = activity
        self._drained_by: ScannerError | None = None

    def drain(self, error: ScannerError) -> None:
        """End the memberships with an error, those to come included, but for those with a scan that comes to an end."""
        self._drained_by = error
        self._groups.drain(error)

    def calls(self) -> Mapping[str, Callable[[Buffer, ServerStream], Awaitable[bytes]]]:
        """The unary call of each method."""
        return {
            "CommitPositions": self.commit,
            "ListGroups": self.list,
            "DescribeGroup": self.describe,
            "DeleteGroup": self.delete,
        }

    async def join(self, stream: ServerStream) -> None:
        """Handle one membership.

        Raises:
            ArgumentInvalid: The request makes no sense.
            GroupMemberExpired: The member said nothing for too long.
            GroupEpochStale: Another reader has joined under its name.
            Draining: The server drains.
            ScannerError: The group could not be joined, or its table was dropped.
            TransportError: The stream or the connection is gone.
        """
        message = await stream.receive()
        request = _read_join(message)
        authorize(stream, Right.READ, request.table, lasting=True)
        group, member = await self._groups.join(
            request.table, request.group, request.member, request.instance, meant_table_id(request)
        )
        try:
            if self._drained_by is not None:
                raise self._drained_by
            await run_with_companion(
                functools.partial(self._receive_all, stream, group, member),
                functools.partial(self._send_all, stream, group, member, sealed_like(message)),
            )
        finally:
            group.remove(member)

    async def commit(self, request: Buffer, stream: ServerStream) -> bytes:
        """Store positions, and answer with those that were refused.

        Raises:
            GroupNotFound: The table has no such group.
            ArgumentInvalid: A bucket is named twice, or there are more positions than buckets.
        """
        message = parse_request(pb.CommitPositionsRequest, request)
        authorize(stream, Right.READ, message.table)
        group = await self._groups.group(
            message.table, _checked(message.group, "group"), meant_table_id(message)
        )
        _require_few(len(message.positions), group)
        buckets = [each.bucket for each in message.positions]
        if len(set(buckets)) < len(buckets):
            raise ArgumentInvalid("a bucket has two positions in one request")
        refusals: dict[int, ScannerError] = {}

        async def store(each: pb.BucketPosition) -> None:
            try:
                await group.commit(each.bucket, each.epoch, each.position, forward_only=each.forward_only)
            except ScannerError as error:
                refusals[each.bucket] = for_peers(error)

        async with trio.open_nursery() as nursery:
            for each in message.positions:
                nursery.start_soon(store, each)
        refused = [
            pb.PositionRefused(
                bucket=bucket, reason=refusals[bucket].reason, message=refusals[bucket].message
            )
            for bucket in buckets
            if bucket in refusals
        ]
        stored = [bucket for bucket in buckets if bucket not in refusals]
        answer = pb.CommitPositionsResponse(refused=refused, group=_name_of(message), stored=stored)
        return answer.SerializeToString()

    async def list(self, request: Buffer, stream: ServerStream) -> bytes:
        """Answer with the groups of a table."""
        message = parse_request(pb.ListGroupsRequest, request)
        authorize(stream, Right.DESCRIBE, message.table)
        names = await self._groups.names(message.table, meant_table_id(message))
        found = [pb.GroupSummary(group=name, members=members) for name, members in names.items()]
        return pb.ListGroupsResponse(groups=found, table_id=meant_table_id(message)).SerializeToString()

    async def describe(self, request: Buffer, stream: ServerStream) -> bytes:
        """Answer with one group: members, buckets, positions.

        Raises:
            GroupNotFound: The table has no such group.
        """
        message = parse_request(pb.DescribeGroupRequest, request)
        authorize(stream, Right.DESCRIBE, message.table)
        group = await self._groups.group(
            message.table, _checked(message.group, "group"), meant_table_id(message)
        )
        rows = zip(group.owners(), group.states(), group.storages(), strict=True)
        buckets = [
            pb.GroupBucket(
                bucket=index,
                member=owner,
                epoch=state.epoch,
                position=state.position,
                log_start=storage.log_start,
                log_end=storage.log_end,
            )
            for index, (owner, state, storage) in enumerate(rows)
        ]
        answer = pb.DescribeGroupResponse(members=group.members, buckets=buckets, group=_name_of(message))
        return answer.SerializeToString()

    async def delete(self, request: Buffer, stream: ServerStream) -> bytes:
        """Forget a group.

        Raises:
            GroupNotFound: The table has no such group.
            GroupNotEmpty: It has members.
        """
        message = parse_request(pb.DeleteGroupRequest, request)
        authorize(stream, Right.READ, message.table)
        await self._groups.delete(message.table, _checked(message.group, "group"), meant_table_id(message))
        event = AuditEvent.GROUP_DELETED
        audit_call(self._activity, event, stream, table=message.table, group=message.group)
        return pb.DeleteGroupResponse(group=_name_of(message)).SerializeToString()

    async def _send_all(self, stream: ServerStream, group: ReaderGroup, member: Member, seal: Seal) -> None:
        timeout_ms = max(1, round(min(self._config.group_session_timeout_s, _TOLD_S_MAX) * 1000))
        joined = pb.JoinResponse(joined=pb.Joined(session_timeout_ms=timeout_ms, instance=member.instance))
        await stream.send(seal(joined.SerializeToString()))
        told = None
        while member.ended_by is None:
            if member.take_alive():
                await stream.send(seal(pb.JoinResponse(alive=pb.Alive()).SerializeToString()))
            assigned, more = group.assignment(member), group.more(member)
            if (assigned, more) == told:
                await member.wait_change()
                continue
            told = assigned, more
            member.expects_more = more
            buckets = [
                pb.AssignedBucket(
                    bucket=each.bucket,
                    epoch=each.epoch,
                    position=group.position(each.bucket),
                    moving=each.moving,
                )
                for each in assigned
            ]
            response = pb.JoinResponse(assignment=pb.Assignment(buckets=buckets, more=more))
            await stream.send(seal(response.SerializeToString()))
        raise member.ended_by

    async def _receive_all(self, stream: ServerStream, group: ReaderGroup, member: Member) -> None:
        while (message := await self._next_message(stream, member)) is not None:
            request = parse_request(pb.JoinRequest, message, self._config.unary_request_bytes_max)
            match request.WhichOneof("request"):
                case "alive":
                    member.answer_alive()
                case "release":
                    _require_few(len(request.release.buckets), group)
                    group.release(member, [(each.bucket, each.epoch) for each in request.release.buckets])
                case "join":
                    raise ArgumentInvalid("this call has its member; join with another one on another call")
                case _:
                    raise ArgumentInvalid("a request of a member is alive or release, and this is neither")
            await pass_turn(DEMAND_TURNS)

    async def _next_message(self, stream: ServerStream, member: Member) -> Buffer | None:
        timeout_s = self._config.group_session_timeout_s
        for patience_s in (timeout_s, _GRACE * timeout_s):
            with trio.move_on_after(patience_s):
                message: Buffer | None = await stream.receive(attributed=False)
                return message
        raise GroupMemberExpired(
            f"member {member.name} said nothing for {timeout_s:g} s; its buckets go to others"
        )


def _read_join(message: Buffer | None) -> pb.Join:
    """Read the first message of a membership; None: there was none.

    Raises:
        ArgumentInvalid: It is not a join, or makes no sense.
    """
    request = pb.JoinRequest()
    if message is not None:
        request = parse_request(pb.JoinRequest, message, _JOIN_BYTES_MAX)
    if not request.HasField("join"):
        raise ArgumentInvalid("the first message of a membership is its join")
    join = request.join
    _checked(join.group, "group")
    _checked(join.member, "member")
    if len(join.instance) != _INSTANCE_BYTES:
        raise ArgumentInvalid(
            f"the instance of a member has {_INSTANCE_BYTES} octets, not {len(join.instance)}"
        )
    return join


def _name_of(
    message: pb.CommitPositionsRequest | pb.DescribeGroupRequest | pb.DeleteGroupRequest,
) -> pb.GroupName:
    """What a request is about, for its answer."""
    return pb.GroupName(table_id=meant_table_id(message), group=message.group)


def _require_few(named: int, group: ReaderGroup) -> None:
    """Refuse to look at more buckets than a table has: a request holds half a million.

    Raises:
        ArgumentInvalid: More are named.
    """
    if named > (buckets := len(group.storages())):
        raise ArgumentInvalid(f"a request names {named} buckets, and the group's table has {buckets}")


def _checked(name: str, what: str) -> str:
    """A name that a group or a member can have.

    Raises:
        ArgumentInvalid: It is none.
    """
    if not _NAME.fullmatch(name):
        raise ArgumentInvalid(
            f"the name of a {what} is 1 to 100 of A-Z, a-z, 0-9, '_', '.', ':' and '-', not {name[:100]!r}"
        )
    return name
