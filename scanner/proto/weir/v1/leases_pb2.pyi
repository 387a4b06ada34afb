from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LeaseTarget(_message.Message):
    __slots__ = ("table", "buckets", "state", "checkpoint_id", "log_offset")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[LeaseTarget.State]
        STATE_NEWEST: _ClassVar[LeaseTarget.State]
        STATE_NEWEST_EXISTING: _ClassVar[LeaseTarget.State]
        STATE_NEW: _ClassVar[LeaseTarget.State]
        STATE_LOG: _ClassVar[LeaseTarget.State]
    STATE_UNSPECIFIED: LeaseTarget.State
    STATE_NEWEST: LeaseTarget.State
    STATE_NEWEST_EXISTING: LeaseTarget.State
    STATE_NEW: LeaseTarget.State
    STATE_LOG: LeaseTarget.State
    TABLE_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    table: str
    buckets: _containers.RepeatedScalarFieldContainer[int]
    state: LeaseTarget.State
    checkpoint_id: int
    log_offset: int
    def __init__(self, table: _Optional[str] = ..., buckets: _Optional[_Iterable[int]] = ..., state: _Optional[_Union[LeaseTarget.State, str]] = ..., checkpoint_id: _Optional[int] = ..., log_offset: _Optional[int] = ...) -> None: ...

class LeaseBuckets(_message.Message):
    __slots__ = ("table", "buckets")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    table: str
    buckets: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, table: _Optional[str] = ..., buckets: _Optional[_Iterable[int]] = ...) -> None: ...

class LeaseInfo(_message.Message):
    __slots__ = ("lease_id", "principal", "ttl_ms", "remaining_ms", "buckets")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    REMAINING_MS_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    principal: str
    ttl_ms: int
    remaining_ms: int
    buckets: _containers.RepeatedCompositeFieldContainer[LeasedBucket]
    def __init__(self, lease_id: _Optional[str] = ..., principal: _Optional[str] = ..., ttl_ms: _Optional[int] = ..., remaining_ms: _Optional[int] = ..., buckets: _Optional[_Iterable[_Union[LeasedBucket, _Mapping]]] = ...) -> None: ...

class LeasedBucket(_message.Message):
    __slots__ = ("table", "bucket", "checkpoint_id", "log_offset", "history")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    table: str
    bucket: int
    checkpoint_id: int
    log_offset: int
    history: bytes
    def __init__(self, table: _Optional[str] = ..., bucket: _Optional[int] = ..., checkpoint_id: _Optional[int] = ..., log_offset: _Optional[int] = ..., history: _Optional[bytes] = ...) -> None: ...

class NotLeased(_message.Message):
    __slots__ = ("table", "bucket", "reason", "message", "oldest_offset")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    OLDEST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    table: str
    bucket: int
    reason: str
    message: str
    oldest_offset: int
    def __init__(self, table: _Optional[str] = ..., bucket: _Optional[int] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ..., oldest_offset: _Optional[int] = ...) -> None: ...

class HalfApplied(_message.Message):
    __slots__ = ("table", "name", "version", "applied", "missing")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    table: str
    name: str
    version: int
    applied: _containers.RepeatedScalarFieldContainer[int]
    missing: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, table: _Optional[str] = ..., name: _Optional[str] = ..., version: _Optional[int] = ..., applied: _Optional[_Iterable[int]] = ..., missing: _Optional[_Iterable[int]] = ...) -> None: ...

class AcquireLeaseRequest(_message.Message):
    __slots__ = ("lease_id", "ttl_ms", "targets", "partial", "if_absent", "id_age_ms")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    IF_ABSENT_FIELD_NUMBER: _ClassVar[int]
    ID_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    ttl_ms: int
    targets: _containers.RepeatedCompositeFieldContainer[LeaseTarget]
    partial: bool
    if_absent: bool
    id_age_ms: int
    def __init__(self, lease_id: _Optional[str] = ..., ttl_ms: _Optional[int] = ..., targets: _Optional[_Iterable[_Union[LeaseTarget, _Mapping]]] = ..., partial: _Optional[bool] = ..., if_absent: _Optional[bool] = ..., id_age_ms: _Optional[int] = ...) -> None: ...

class AcquireLeaseResponse(_message.Message):
    __slots__ = ("lease", "not_leased", "half_applied")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    NOT_LEASED_FIELD_NUMBER: _ClassVar[int]
    HALF_APPLIED_FIELD_NUMBER: _ClassVar[int]
    lease: LeaseInfo
    not_leased: _containers.RepeatedCompositeFieldContainer[NotLeased]
    half_applied: _containers.RepeatedCompositeFieldContainer[HalfApplied]
    def __init__(self, lease: _Optional[_Union[LeaseInfo, _Mapping]] = ..., not_leased: _Optional[_Iterable[_Union[NotLeased, _Mapping]]] = ..., half_applied: _Optional[_Iterable[_Union[HalfApplied, _Mapping]]] = ...) -> None: ...

class RenewLeaseRequest(_message.Message):
    __slots__ = ("lease_id", "ttl_ms", "principal")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    ttl_ms: int
    principal: str
    def __init__(self, lease_id: _Optional[str] = ..., ttl_ms: _Optional[int] = ..., principal: _Optional[str] = ...) -> None: ...

class RenewLeaseResponse(_message.Message):
    __slots__ = ("lease",)
    LEASE_FIELD_NUMBER: _ClassVar[int]
    lease: LeaseInfo
    def __init__(self, lease: _Optional[_Union[LeaseInfo, _Mapping]] = ...) -> None: ...

class ReleaseLeaseRequest(_message.Message):
    __slots__ = ("lease_id", "buckets", "principal")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    buckets: _containers.RepeatedCompositeFieldContainer[LeaseBuckets]
    principal: str
    def __init__(self, lease_id: _Optional[str] = ..., buckets: _Optional[_Iterable[_Union[LeaseBuckets, _Mapping]]] = ..., principal: _Optional[str] = ...) -> None: ...

class ReleaseLeaseResponse(_message.Message):
    __slots__ = ("lease", "lease_id")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    lease: LeaseInfo
    lease_id: str
    def __init__(self, lease: _Optional[_Union[LeaseInfo, _Mapping]] = ..., lease_id: _Optional[str] = ...) -> None: ...

class DropLeaseRequest(_message.Message):
    __slots__ = ("lease_id", "principal")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    principal: str
    def __init__(self, lease_id: _Optional[str] = ..., principal: _Optional[str] = ...) -> None: ...

class DropLeaseResponse(_message.Message):
    __slots__ = ("dropped", "lease_id")
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    dropped: bool
    lease_id: str
    def __init__(self, dropped: _Optional[bool] = ..., lease_id: _Optional[str] = ...) -> None: ...

class ListLeasesRequest(_message.Message):
    __slots__ = ("table",)
    TABLE_FIELD_NUMBER: _ClassVar[int]
    table: str
    def __init__(self, table: _Optional[str] = ...) -> None: ...

class ListLeasesResponse(_message.Message):
    __slots__ = ("leases", "table")
    LEASES_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedCompositeFieldContainer[LeaseInfo]
    table: str
    def __init__(self, leases: _Optional[_Iterable[_Union[LeaseInfo, _Mapping]]] = ..., table: _Optional[str] = ...) -> None: ...
