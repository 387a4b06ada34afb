"""What a client is told of reader groups, as frozen records, and the calls that ask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scanner.client.arguments import require_text
from scanner.client.calls import call_unary, require_about
from scanner.proto.weir.v1 import groups_pb2 as pb
from scanner.wire import methods

if TYPE_CHECKING:
    from scanner.client.connection import Connection


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupSummary:
    """A reader group of a table."""

    name: str
    """Of the group, within its table."""
    members: int
    """Readers that are in, now."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupBucket:
    """One bucket of a reader group."""

    bucket: int
    member: str | None
    """The member that reads it now; None: no member."""
    epoch: int
    """Of its newest assignment; 0: there was none."""
    position: int | None
    """Where reading goes on; None: nothing is stored."""
    log_start: int
    """Where the bucket's changelog begins now."""
    log_end: int
    """Where it ends now."""

    @property
    def lag(self) -> int:
        """Changes that are there behind the position; without one, all that there are."""
        return self.log_end - max(self.log_start, self.position or 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupInfo:
    """A reader group, now."""

    name: str
    """Of the group, within its table."""
    members: tuple[str, ...]
    """Names of the readers that are in, ascending."""
    buckets: tuple[GroupBucket, ...]
    """Every bucket of the table, ascending."""


async def list_groups(connection: Connection, table: str, table_id: int) -> list[GroupSummary]:
    """See `scanner.Table.groups`."""
    request = pb.ListGroupsRequest(table=table, table_id=table_id)
    reply = await call_unary(connection, methods.GROUPS + "ListGroups", request, pb.ListGroupsResponse)
    if reply.HasField("table_id"):
        require_about("ListGroups", table_id, reply.table_id)
    return [GroupSummary(name=each.group, members=each.members) for each in reply.groups]


async def describe_group(connection: Connection, table: str, table_id: int, group: str) -> GroupInfo:
    """See `scanner.Table.group`."""
    request = pb.DescribeGroupRequest(table=table, table_id=table_id, group=_name(group))
    reply = await call_unary(connection, methods.GROUPS + "DescribeGroup", request, pb.DescribeGroupResponse)
    if reply.HasField("group"):
        require_about("DescribeGroup", (table_id, group), (reply.group.table_id, reply.group.group))
    return GroupInfo(
        name=group,
        members=tuple(reply.members),
        buckets=tuple(
            GroupBucket(
                bucket=each.bucket,
                member=each.member or None,
                epoch=each.epoch,
                position=each.position if each.HasField("position") else None,
                log_start=each.log_start,
                log_end=each.log_end,
            )
            for each in reply.buckets
        ),
    )


async def delete_group(connection: Connection, table: str, table_id: int, group: str) -> None:
    """See `scanner.Table.delete_group`."""
    request = pb.DeleteGroupRequest(table=table, table_id=table_id, group=_name(group))
    reply = await call_unary(connection, methods.GROUPS + "DeleteGroup", request, pb.DeleteGroupResponse)
    if reply.HasField("group"):
        require_about("DeleteGroup", (table_id, group), (reply.group.table_id, reply.group.group))


def _name(group: str) -> str:
    return require_text("the name of the reader group", group)
