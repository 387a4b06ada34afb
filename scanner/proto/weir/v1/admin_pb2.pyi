from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StallReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STALL_REASON_RUNNING: _ClassVar[StallReason]
    STALL_REASON_CREDIT: _ClassVar[StallReason]
    STALL_REASON_STREAM_WINDOW: _ClassVar[StallReason]
    STALL_REASON_CONNECTION_WINDOW: _ClassVar[StallReason]
    STALL_REASON_SOCKET: _ClassVar[StallReason]
    STALL_REASON_STORAGE: _ClassVar[StallReason]
    STALL_REASON_CONSUMER: _ClassVar[StallReason]
    STALL_REASON_PEER: _ClassVar[StallReason]
STALL_REASON_RUNNING: StallReason
STALL_REASON_CREDIT: StallReason
STALL_REASON_STREAM_WINDOW: StallReason
STALL_REASON_CONNECTION_WINDOW: StallReason
STALL_REASON_SOCKET: StallReason
STALL_REASON_STORAGE: StallReason
STALL_REASON_CONSUMER: StallReason
STALL_REASON_PEER: StallReason

class StallTime(_message.Message):
    __slots__ = ("reason", "nanoseconds")
    REASON_FIELD_NUMBER: _ClassVar[int]
    NANOSECONDS_FIELD_NUMBER: _ClassVar[int]
    reason: StallReason
    nanoseconds: int
    def __init__(self, reason: _Optional[_Union[StallReason, str]] = ..., nanoseconds: _Optional[int] = ...) -> None: ...

class ListStreamsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListStreamsResponse(_message.Message):
    __slots__ = ("streams",)
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    streams: _containers.RepeatedCompositeFieldContainer[StreamInfo]
    def __init__(self, streams: _Optional[_Iterable[_Union[StreamInfo, _Mapping]]] = ...) -> None: ...

class StreamInfo(_message.Message):
    __slots__ = ("connection_id", "stream_id", "peer", "principal", "path", "age_ms", "messages_sent", "messages_received", "bytes_sent", "bytes_received", "unsent_bytes", "buffered_bytes", "credit_limit", "credit_sent", "send_window", "connection_send_window", "receive_window", "stall", "stalls", "scan")
    CONNECTION_ID_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_SENT_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    BYTES_SENT_FIELD_NUMBER: _ClassVar[int]
    BYTES_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    UNSENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    BUFFERED_BYTES_FIELD_NUMBER: _ClassVar[int]
    CREDIT_LIMIT_FIELD_NUMBER: _ClassVar[int]
    CREDIT_SENT_FIELD_NUMBER: _ClassVar[int]
    SEND_WINDOW_FIELD_NUMBER: _ClassVar[int]
    CONNECTION_SEND_WINDOW_FIELD_NUMBER: _ClassVar[int]
    RECEIVE_WINDOW_FIELD_NUMBER: _ClassVar[int]
    STALL_FIELD_NUMBER: _ClassVar[int]
    STALLS_FIELD_NUMBER: _ClassVar[int]
    SCAN_FIELD_NUMBER: _ClassVar[int]
    connection_id: int
    stream_id: int
    peer: str
    principal: str
    path: str
    age_ms: int
    messages_sent: int
    messages_received: int
    bytes_sent: int
    bytes_received: int
    unsent_bytes: int
    buffered_bytes: int
    credit_limit: int
    credit_sent: int
    send_window: int
    connection_send_window: int
    receive_window: int
    stall: StallReason
    stalls: _containers.RepeatedCompositeFieldContainer[StallTime]
    scan: ScanInfo
    def __init__(self, connection_id: _Optional[int] = ..., stream_id: _Optional[int] = ..., peer: _Optional[str] = ..., principal: _Optional[str] = ..., path: _Optional[str] = ..., age_ms: _Optional[int] = ..., messages_sent: _Optional[int] = ..., messages_received: _Optional[int] = ..., bytes_sent: _Optional[int] = ..., bytes_received: _Optional[int] = ..., unsent_bytes: _Optional[int] = ..., buffered_bytes: _Optional[int] = ..., credit_limit: _Optional[int] = ..., credit_sent: _Optional[int] = ..., send_window: _Optional[int] = ..., connection_send_window: _Optional[int] = ..., receive_window: _Optional[int] = ..., stall: _Optional[_Union[StallReason, str]] = ..., stalls: _Optional[_Iterable[_Union[StallTime, _Mapping]]] = ..., scan: _Optional[_Union[ScanInfo, _Mapping]] = ...) -> None: ...

class ScanInfo(_message.Message):
    __slots__ = ("table", "bucket", "source", "rows", "log_offset", "log_behind", "iterator_open", "pinned_ms", "parked")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_BEHIND_FIELD_NUMBER: _ClassVar[int]
    ITERATOR_OPEN_FIELD_NUMBER: _ClassVar[int]
    PINNED_MS_FIELD_NUMBER: _ClassVar[int]
    PARKED_FIELD_NUMBER: _ClassVar[int]
    table: str
    bucket: int
    source: str
    rows: int
    log_offset: int
    log_behind: int
    iterator_open: bool
    pinned_ms: int
    parked: bool
    def __init__(self, table: _Optional[str] = ..., bucket: _Optional[int] = ..., source: _Optional[str] = ..., rows: _Optional[int] = ..., log_offset: _Optional[int] = ..., log_behind: _Optional[int] = ..., iterator_open: _Optional[bool] = ..., pinned_ms: _Optional[int] = ..., parked: _Optional[bool] = ...) -> None: ...

class ListSnapshotsRequest(_message.Message):
    __slots__ = ("table",)
    TABLE_FIELD_NUMBER: _ClassVar[int]
    table: str
    def __init__(self, table: _Optional[str] = ...) -> None: ...

class ListSnapshotsResponse(_message.Message):
    __slots__ = ("snapshots",)
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    snapshots: _containers.RepeatedCompositeFieldContainer[SnapshotInfo]
    def __init__(self, snapshots: _Optional[_Iterable[_Union[SnapshotInfo, _Mapping]]] = ...) -> None: ...

class SnapshotInfo(_message.Message):
    __slots__ = ("scan", "holder", "connection_id", "stream_id", "peer", "principal")
    class Holder(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        HOLDER_UNSPECIFIED: _ClassVar[SnapshotInfo.Holder]
        HOLDER_STREAM: _ClassVar[SnapshotInfo.Holder]
        HOLDER_SESSION: _ClassVar[SnapshotInfo.Holder]
        HOLDER_PAGE: _ClassVar[SnapshotInfo.Holder]
        HOLDER_LINGERING: _ClassVar[SnapshotInfo.Holder]
    HOLDER_UNSPECIFIED: SnapshotInfo.Holder
    HOLDER_STREAM: SnapshotInfo.Holder
    HOLDER_SESSION: SnapshotInfo.Holder
    HOLDER_PAGE: SnapshotInfo.Holder
    HOLDER_LINGERING: SnapshotInfo.Holder
    SCAN_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    CONNECTION_ID_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    scan: ScanInfo
    holder: SnapshotInfo.Holder
    connection_id: int
    stream_id: int
    peer: str
    principal: str
    def __init__(self, scan: _Optional[_Union[ScanInfo, _Mapping]] = ..., holder: _Optional[_Union[SnapshotInfo.Holder, str]] = ..., connection_id: _Optional[int] = ..., stream_id: _Optional[int] = ..., peer: _Optional[str] = ..., principal: _Optional[str] = ...) -> None: ...

class CheckpointRequest(_message.Message):
    __slots__ = ("table", "bucket")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    table: str
    bucket: int
    def __init__(self, table: _Optional[str] = ..., bucket: _Optional[int] = ...) -> None: ...

class CheckpointResponse(_message.Message):
    __slots__ = ("checkpoints", "table")
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    checkpoints: _containers.RepeatedCompositeFieldContainer[CheckpointInfo]
    table: str
    def __init__(self, checkpoints: _Optional[_Iterable[_Union[CheckpointInfo, _Mapping]]] = ..., table: _Optional[str] = ...) -> None: ...

class ListCheckpointsRequest(_message.Message):
    __slots__ = ("table",)
    TABLE_FIELD_NUMBER: _ClassVar[int]
    table: str
    def __init__(self, table: _Optional[str] = ...) -> None: ...

class ListCheckpointsResponse(_message.Message):
    __slots__ = ("checkpoints", "table")
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    checkpoints: _containers.RepeatedCompositeFieldContainer[CheckpointInfo]
    table: str
    def __init__(self, checkpoints: _Optional[_Iterable[_Union[CheckpointInfo, _Mapping]]] = ..., table: _Optional[str] = ...) -> None: ...

class CheckpointInfo(_message.Message):
    __slots__ = ("bucket", "checkpoint_id", "log_offset", "timestamp_us", "leases", "history")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    bucket: int
    checkpoint_id: int
    log_offset: int
    timestamp_us: int
    leases: int
    history: bytes
    def __init__(self, bucket: _Optional[int] = ..., checkpoint_id: _Optional[int] = ..., log_offset: _Optional[int] = ..., timestamp_us: _Optional[int] = ..., leases: _Optional[int] = ..., history: _Optional[bytes] = ...) -> None: ...

class CompactLogRequest(_message.Message):
    __slots__ = ("table", "bucket", "offset", "timestamp_us")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    table: str
    bucket: int
    offset: int
    timestamp_us: int
    def __init__(self, table: _Optional[str] = ..., bucket: _Optional[int] = ..., offset: _Optional[int] = ..., timestamp_us: _Optional[int] = ...) -> None: ...

class CompactLogResponse(_message.Message):
    __slots__ = ("buckets", "table")
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    buckets: _containers.RepeatedCompositeFieldContainer[CompactedLog]
    table: str
    def __init__(self, buckets: _Optional[_Iterable[_Union[CompactedLog, _Mapping]]] = ..., table: _Optional[str] = ...) -> None: ...

class CompactedLog(_message.Message):
    __slots__ = ("bucket", "start_offset", "end_offset", "changes_dropped", "changes_pinned", "pins")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    CHANGES_DROPPED_FIELD_NUMBER: _ClassVar[int]
    CHANGES_PINNED_FIELD_NUMBER: _ClassVar[int]
    PINS_FIELD_NUMBER: _ClassVar[int]
    bucket: int
    start_offset: int
    end_offset: int
    changes_dropped: int
    changes_pinned: int
    pins: _containers.RepeatedCompositeFieldContainer[LogPinInfo]
    def __init__(self, bucket: _Optional[int] = ..., start_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., changes_dropped: _Optional[int] = ..., changes_pinned: _Optional[int] = ..., pins: _Optional[_Iterable[_Union[LogPinInfo, _Mapping]]] = ...) -> None: ...

class LogPinInfo(_message.Message):
    __slots__ = ("what", "principal", "offset")
    WHAT_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    what: str
    principal: str
    offset: int
    def __init__(self, what: _Optional[str] = ..., principal: _Optional[str] = ..., offset: _Optional[int] = ...) -> None: ...

class MakeImagesRequest(_message.Message):
    __slots__ = ("table", "bucket")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    table: str
    bucket: int
    def __init__(self, table: _Optional[str] = ..., bucket: _Optional[int] = ...) -> None: ...

class MakeImagesResponse(_message.Message):
    __slots__ = ("images", "table")
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    images: _containers.RepeatedCompositeFieldContainer[ImageInfo]
    table: str
    def __init__(self, images: _Optional[_Iterable[_Union[ImageInfo, _Mapping]]] = ..., table: _Optional[str] = ...) -> None: ...

class ListImagesRequest(_message.Message):
    __slots__ = ("table",)
    TABLE_FIELD_NUMBER: _ClassVar[int]
    table: str
    def __init__(self, table: _Optional[str] = ...) -> None: ...

class ListImagesResponse(_message.Message):
    __slots__ = ("images", "reasons", "table")
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    images: _containers.RepeatedCompositeFieldContainer[ImageInfo]
    reasons: _containers.RepeatedCompositeFieldContainer[ImageReason]
    table: str
    def __init__(self, images: _Optional[_Iterable[_Union[ImageInfo, _Mapping]]] = ..., reasons: _Optional[_Iterable[_Union[ImageReason, _Mapping]]] = ..., table: _Optional[str] = ...) -> None: ...

class ImageReason(_message.Message):
    __slots__ = ("bucket", "why")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    bucket: int
    why: str
    def __init__(self, bucket: _Optional[int] = ..., why: _Optional[str] = ...) -> None: ...

class DropImagesRequest(_message.Message):
    __slots__ = ("table", "bucket")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    table: str
    bucket: int
    def __init__(self, table: _Optional[str] = ..., bucket: _Optional[int] = ...) -> None: ...

class DropImagesResponse(_message.Message):
    __slots__ = ("images", "table")
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    images: int
    table: str
    def __init__(self, images: _Optional[int] = ..., table: _Optional[str] = ...) -> None: ...

class ImageInfo(_message.Message):
    __slots__ = ("bucket", "log_offset", "log_behind", "rows", "disk_bytes", "memory_bytes")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_BEHIND_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    bucket: int
    log_offset: int
    log_behind: int
    rows: int
    disk_bytes: int
    memory_bytes: int
    def __init__(self, bucket: _Optional[int] = ..., log_offset: _Optional[int] = ..., log_behind: _Optional[int] = ..., rows: _Optional[int] = ..., disk_bytes: _Optional[int] = ..., memory_bytes: _Optional[int] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("timeout_ms",)
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    timeout_ms: int
    def __init__(self, timeout_ms: _Optional[int] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("streams", "already_draining")
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    ALREADY_DRAINING_FIELD_NUMBER: _ClassVar[int]
    streams: int
    already_draining: bool
    def __init__(self, streams: _Optional[int] = ..., already_draining: _Optional[bool] = ...) -> None: ...
