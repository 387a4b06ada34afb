from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JoinRequest(_message.Message):
    __slots__ = ("join", "alive", "release")
    JOIN_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    join: Join
    alive: Alive
    release: Release
    def __init__(self, join: _Optional[_Union[Join, _Mapping]] = ..., alive: _Optional[_Union[Alive, _Mapping]] = ..., release: _Optional[_Union[Release, _Mapping]] = ...) -> None: ...

class Join(_message.Message):
    __slots__ = ("table", "group", "member", "instance", "table_id")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    table: str
    group: str
    member: str
    instance: bytes
    table_id: int
    def __init__(self, table: _Optional[str] = ..., group: _Optional[str] = ..., member: _Optional[str] = ..., instance: _Optional[bytes] = ..., table_id: _Optional[int] = ...) -> None: ...

class Alive(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Release(_message.Message):
    __slots__ = ("buckets",)
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    buckets: _containers.RepeatedCompositeFieldContainer[HeldBucket]
    def __init__(self, buckets: _Optional[_Iterable[_Union[HeldBucket, _Mapping]]] = ...) -> None: ...

class HeldBucket(_message.Message):
    __slots__ = ("bucket", "epoch")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    bucket: int
    epoch: int
    def __init__(self, bucket: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class JoinResponse(_message.Message):
    __slots__ = ("joined", "assignment", "alive")
    JOINED_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    joined: Joined
    assignment: Assignment
    alive: Alive
    def __init__(self, joined: _Optional[_Union[Joined, _Mapping]] = ..., assignment: _Optional[_Union[Assignment, _Mapping]] = ..., alive: _Optional[_Union[Alive, _Mapping]] = ...) -> None: ...

class Joined(_message.Message):
    __slots__ = ("session_timeout_ms", "instance")
    SESSION_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    session_timeout_ms: int
    instance: bytes
    def __init__(self, session_timeout_ms: _Optional[int] = ..., instance: _Optional[bytes] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("buckets", "more")
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    buckets: _containers.RepeatedCompositeFieldContainer[AssignedBucket]
    more: bool
    def __init__(self, buckets: _Optional[_Iterable[_Union[AssignedBucket, _Mapping]]] = ..., more: _Optional[bool] = ...) -> None: ...

class AssignedBucket(_message.Message):
    __slots__ = ("bucket", "epoch", "position", "moving")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    MOVING_FIELD_NUMBER: _ClassVar[int]
    bucket: int
    epoch: int
    position: int
    moving: bool
    def __init__(self, bucket: _Optional[int] = ..., epoch: _Optional[int] = ..., position: _Optional[int] = ..., moving: _Optional[bool] = ...) -> None: ...

class CommitPositionsRequest(_message.Message):
    __slots__ = ("table", "group", "positions", "table_id")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    table: str
    group: str
    positions: _containers.RepeatedCompositeFieldContainer[BucketPosition]
    table_id: int
    def __init__(self, table: _Optional[str] = ..., group: _Optional[str] = ..., positions: _Optional[_Iterable[_Union[BucketPosition, _Mapping]]] = ..., table_id: _Optional[int] = ...) -> None: ...

class BucketPosition(_message.Message):
    __slots__ = ("bucket", "epoch", "position", "forward_only")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    FORWARD_ONLY_FIELD_NUMBER: _ClassVar[int]
    bucket: int
    epoch: int
    position: int
    forward_only: bool
    def __init__(self, bucket: _Optional[int] = ..., epoch: _Optional[int] = ..., position: _Optional[int] = ..., forward_only: _Optional[bool] = ...) -> None: ...

class CommitPositionsResponse(_message.Message):
    __slots__ = ("refused", "group", "stored")
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    refused: _containers.RepeatedCompositeFieldContainer[PositionRefused]
    group: GroupName
    stored: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, refused: _Optional[_Iterable[_Union[PositionRefused, _Mapping]]] = ..., group: _Optional[_Union[GroupName, _Mapping]] = ..., stored: _Optional[_Iterable[int]] = ...) -> None: ...

class GroupName(_message.Message):
    __slots__ = ("table_id", "group")
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    table_id: int
    group: str
    def __init__(self, table_id: _Optional[int] = ..., group: _Optional[str] = ...) -> None: ...

class PositionRefused(_message.Message):
    __slots__ = ("bucket", "reason", "message")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    bucket: int
    reason: str
    message: str
    def __init__(self, bucket: _Optional[int] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class ListGroupsRequest(_message.Message):
    __slots__ = ("table", "table_id")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    table: str
    table_id: int
    def __init__(self, table: _Optional[str] = ..., table_id: _Optional[int] = ...) -> None: ...

class ListGroupsResponse(_message.Message):
    __slots__ = ("groups", "table_id")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[GroupSummary]
    table_id: int
    def __init__(self, groups: _Optional[_Iterable[_Union[GroupSummary, _Mapping]]] = ..., table_id: _Optional[int] = ...) -> None: ...

class GroupSummary(_message.Message):
    __slots__ = ("group", "members")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    group: str
    members: int
    def __init__(self, group: _Optional[str] = ..., members: _Optional[int] = ...) -> None: ...

class DescribeGroupRequest(_message.Message):
    __slots__ = ("table", "group", "table_id")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    table: str
    group: str
    table_id: int
    def __init__(self, table: _Optional[str] = ..., group: _Optional[str] = ..., table_id: _Optional[int] = ...) -> None: ...

class DescribeGroupResponse(_message.Message):
    __slots__ = ("members", "buckets", "group")
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedScalarFieldContainer[str]
    buckets: _containers.RepeatedCompositeFieldContainer[GroupBucket]
    group: GroupName
    def __init__(self, members: _Optional[_Iterable[str]] = ..., buckets: _Optional[_Iterable[_Union[GroupBucket, _Mapping]]] = ..., group: _Optional[_Union[GroupName, _Mapping]] = ...) -> None: ...

class GroupBucket(_message.Message):
    __slots__ = ("bucket", "member", "epoch", "position", "log_start", "log_end")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    LOG_START_FIELD_NUMBER: _ClassVar[int]
    LOG_END_FIELD_NUMBER: _ClassVar[int]
    bucket: int
    member: str
    epoch: int
    position: int
    log_start: int
    log_end: int
    def __init__(self, bucket: _Optional[int] = ..., member: _Optional[str] = ..., epoch: _Optional[int] = ..., position: _Optional[int] = ..., log_start: _Optional[int] = ..., log_end: _Optional[int] = ...) -> None: ...

class DeleteGroupRequest(_message.Message):
    __slots__ = ("table", "group", "table_id")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    table: str
    group: str
    table_id: int
    def __init__(self, table: _Optional[str] = ..., group: _Optional[str] = ..., table_id: _Optional[int] = ...) -> None: ...

class DeleteGroupResponse(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: GroupName
    def __init__(self, group: _Optional[_Union[GroupName, _Mapping]] = ...) -> None: ...
