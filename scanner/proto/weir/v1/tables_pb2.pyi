from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TableDescription(_message.Message):
    __slots__ = ("name", "arrow_schema", "primary_key", "buckets", "bucket_endpoints")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARROW_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_KEY_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    BUCKET_ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    arrow_schema: bytes
    primary_key: _containers.RepeatedScalarFieldContainer[str]
    buckets: int
    bucket_endpoints: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., arrow_schema: _Optional[bytes] = ..., primary_key: _Optional[_Iterable[str]] = ..., buckets: _Optional[int] = ..., bucket_endpoints: _Optional[_Iterable[str]] = ...) -> None: ...

class CreateTableRequest(_message.Message):
    __slots__ = ("table",)
    TABLE_FIELD_NUMBER: _ClassVar[int]
    table: TableDescription
    def __init__(self, table: _Optional[_Union[TableDescription, _Mapping]] = ...) -> None: ...

class CreateTableResponse(_message.Message):
    __slots__ = ("table", "table_id")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    table: TableDescription
    table_id: int
    def __init__(self, table: _Optional[_Union[TableDescription, _Mapping]] = ..., table_id: _Optional[int] = ...) -> None: ...

class DropTableRequest(_message.Message):
    __slots__ = ("table", "table_id")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    table: str
    table_id: int
    def __init__(self, table: _Optional[str] = ..., table_id: _Optional[int] = ...) -> None: ...

class DropTableResponse(_message.Message):
    __slots__ = ("table_id",)
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    table_id: int
    def __init__(self, table_id: _Optional[int] = ...) -> None: ...

class DropUnwrittenRequest(_message.Message):
    __slots__ = ("table", "table_id")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    table: str
    table_id: int
    def __init__(self, table: _Optional[str] = ..., table_id: _Optional[int] = ...) -> None: ...

class DropUnwrittenResponse(_message.Message):
    __slots__ = ("dropped", "table_id")
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    dropped: bool
    table_id: int
    def __init__(self, dropped: _Optional[bool] = ..., table_id: _Optional[int] = ...) -> None: ...

class ListTablesRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListTablesResponse(_message.Message):
    __slots__ = ("tables", "next_page_token")
    TABLES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    tables: _containers.RepeatedCompositeFieldContainer[TableDescription]
    next_page_token: str
    def __init__(self, tables: _Optional[_Iterable[_Union[TableDescription, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class DescribeTableRequest(_message.Message):
    __slots__ = ("table",)
    TABLE_FIELD_NUMBER: _ClassVar[int]
    table: str
    def __init__(self, table: _Optional[str] = ...) -> None: ...

class DescribeTableResponse(_message.Message):
    __slots__ = ("table", "table_id")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    table: TableDescription
    table_id: int
    def __init__(self, table: _Optional[_Union[TableDescription, _Mapping]] = ..., table_id: _Optional[int] = ...) -> None: ...

class WriteRequest(_message.Message):
    __slots__ = ("table", "operation", "arrow_stream", "table_id", "writer_id", "sequence", "crc32c")
    class Operation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OPERATION_UNSPECIFIED: _ClassVar[WriteRequest.Operation]
        OPERATION_UPSERT: _ClassVar[WriteRequest.Operation]
        OPERATION_DELETE: _ClassVar[WriteRequest.Operation]
    OPERATION_UNSPECIFIED: WriteRequest.Operation
    OPERATION_UPSERT: WriteRequest.Operation
    OPERATION_DELETE: WriteRequest.Operation
    TABLE_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    ARROW_STREAM_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    WRITER_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    table: str
    operation: WriteRequest.Operation
    arrow_stream: bytes
    table_id: int
    writer_id: bytes
    sequence: int
    crc32c: int
    def __init__(self, table: _Optional[str] = ..., operation: _Optional[_Union[WriteRequest.Operation, str]] = ..., arrow_stream: _Optional[bytes] = ..., table_id: _Optional[int] = ..., writer_id: _Optional[bytes] = ..., sequence: _Optional[int] = ..., crc32c: _Optional[int] = ...) -> None: ...

class WriteResponse(_message.Message):
    __slots__ = ("ranges", "sequence")
    RANGES_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ranges: _containers.RepeatedCompositeFieldContainer[OffsetRange]
    sequence: int
    def __init__(self, ranges: _Optional[_Iterable[_Union[OffsetRange, _Mapping]]] = ..., sequence: _Optional[int] = ...) -> None: ...

class OffsetRange(_message.Message):
    __slots__ = ("bucket", "start_offset", "end_offset", "history", "at_offset", "at_is_kept")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    AT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    AT_IS_KEPT_FIELD_NUMBER: _ClassVar[int]
    bucket: int
    start_offset: int
    end_offset: int
    history: bytes
    at_offset: int
    at_is_kept: bool
    def __init__(self, bucket: _Optional[int] = ..., start_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., history: _Optional[bytes] = ..., at_offset: _Optional[int] = ..., at_is_kept: _Optional[bool] = ...) -> None: ...

class ListOffsetsRequest(_message.Message):
    __slots__ = ("table", "timestamp_us", "table_id")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    table: str
    timestamp_us: int
    table_id: int
    def __init__(self, table: _Optional[str] = ..., timestamp_us: _Optional[int] = ..., table_id: _Optional[int] = ...) -> None: ...

class ListOffsetsResponse(_message.Message):
    __slots__ = ("ranges", "table_id")
    RANGES_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    ranges: _containers.RepeatedCompositeFieldContainer[OffsetRange]
    table_id: int
    def __init__(self, ranges: _Optional[_Iterable[_Union[OffsetRange, _Mapping]]] = ..., table_id: _Optional[int] = ...) -> None: ...

class SplitBucketRequest(_message.Message):
    __slots__ = ("table", "bucket", "splits", "target_split_bytes", "key_start", "key_end", "table_id")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    SPLITS_FIELD_NUMBER: _ClassVar[int]
    TARGET_SPLIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    KEY_START_FIELD_NUMBER: _ClassVar[int]
    KEY_END_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    table: str
    bucket: int
    splits: int
    target_split_bytes: int
    key_start: bytes
    key_end: bytes
    table_id: int
    def __init__(self, table: _Optional[str] = ..., bucket: _Optional[int] = ..., splits: _Optional[int] = ..., target_split_bytes: _Optional[int] = ..., key_start: _Optional[bytes] = ..., key_end: _Optional[bytes] = ..., table_id: _Optional[int] = ...) -> None: ...

class SplitBucketResponse(_message.Message):
    __slots__ = ("cut_keys", "stored_bytes", "table_id", "bucket")
    CUT_KEYS_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    cut_keys: _containers.RepeatedScalarFieldContainer[bytes]
    stored_bytes: int
    table_id: int
    bucket: int
    def __init__(self, cut_keys: _Optional[_Iterable[bytes]] = ..., stored_bytes: _Optional[int] = ..., table_id: _Optional[int] = ..., bucket: _Optional[int] = ...) -> None: ...

class MeasureLogRequest(_message.Message):
    __slots__ = ("table", "positions", "table_id")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    table: str
    positions: _containers.RepeatedCompositeFieldContainer[MeasurePosition]
    table_id: int
    def __init__(self, table: _Optional[str] = ..., positions: _Optional[_Iterable[_Union[MeasurePosition, _Mapping]]] = ..., table_id: _Optional[int] = ...) -> None: ...

class MeasurePosition(_message.Message):
    __slots__ = ("bucket", "offset", "history", "commits_max", "rows_max", "bytes_max")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    COMMITS_MAX_FIELD_NUMBER: _ClassVar[int]
    ROWS_MAX_FIELD_NUMBER: _ClassVar[int]
    BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    bucket: int
    offset: int
    history: bytes
    commits_max: int
    rows_max: int
    bytes_max: int
    def __init__(self, bucket: _Optional[int] = ..., offset: _Optional[int] = ..., history: _Optional[bytes] = ..., commits_max: _Optional[int] = ..., rows_max: _Optional[int] = ..., bytes_max: _Optional[int] = ...) -> None: ...

class MeasureLogResponse(_message.Message):
    __slots__ = ("logs", "table_id")
    LOGS_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    logs: _containers.RepeatedCompositeFieldContainer[MeasuredLog]
    table_id: int
    def __init__(self, logs: _Optional[_Iterable[_Union[MeasuredLog, _Mapping]]] = ..., table_id: _Optional[int] = ...) -> None: ...

class MeasuredLog(_message.Message):
    __slots__ = ("bucket", "start_offset", "end_offset", "commit_ends", "commit_bytes", "commit_timestamps_us", "histories")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COMMIT_ENDS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TIMESTAMPS_US_FIELD_NUMBER: _ClassVar[int]
    HISTORIES_FIELD_NUMBER: _ClassVar[int]
    bucket: int
    start_offset: int
    end_offset: int
    commit_ends: _containers.RepeatedScalarFieldContainer[int]
    commit_bytes: _containers.RepeatedScalarFieldContainer[int]
    commit_timestamps_us: _containers.RepeatedScalarFieldContainer[int]
    histories: _containers.RepeatedCompositeFieldContainer[LogHistory]
    def __init__(self, bucket: _Optional[int] = ..., start_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., commit_ends: _Optional[_Iterable[int]] = ..., commit_bytes: _Optional[_Iterable[int]] = ..., commit_timestamps_us: _Optional[_Iterable[int]] = ..., histories: _Optional[_Iterable[_Union[LogHistory, _Mapping]]] = ...) -> None: ...

class LogHistory(_message.Message):
    __slots__ = ("history", "start_offset")
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    history: bytes
    start_offset: int
    def __init__(self, history: _Optional[bytes] = ..., start_offset: _Optional[int] = ...) -> None: ...

class AddColumnRequest(_message.Message):
    __slots__ = ("table", "arrow_schema", "table_id")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    ARROW_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    table: str
    arrow_schema: bytes
    table_id: int
    def __init__(self, table: _Optional[str] = ..., arrow_schema: _Optional[bytes] = ..., table_id: _Optional[int] = ...) -> None: ...

class AddColumnResponse(_message.Message):
    __slots__ = ("table",)
    TABLE_FIELD_NUMBER: _ClassVar[int]
    table: TableDescription
    def __init__(self, table: _Optional[_Union[TableDescription, _Mapping]] = ...) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("table", "keys", "columns", "as_of", "table_id", "crc32c")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    AS_OF_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    table: str
    keys: bytes
    columns: _containers.RepeatedScalarFieldContainer[str]
    as_of: _containers.RepeatedCompositeFieldContainer[BucketState]
    table_id: int
    crc32c: int
    def __init__(self, table: _Optional[str] = ..., keys: _Optional[bytes] = ..., columns: _Optional[_Iterable[str]] = ..., as_of: _Optional[_Iterable[_Union[BucketState, _Mapping]]] = ..., table_id: _Optional[int] = ..., crc32c: _Optional[int] = ...) -> None: ...

class BucketState(_message.Message):
    __slots__ = ("bucket", "log_offset", "history")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    bucket: int
    log_offset: int
    history: bytes
    def __init__(self, bucket: _Optional[int] = ..., log_offset: _Optional[int] = ..., history: _Optional[bytes] = ...) -> None: ...

class GetResponse(_message.Message):
    __slots__ = ("found", "arrow_stream", "crc32c", "states", "table_id")
    FOUND_FIELD_NUMBER: _ClassVar[int]
    ARROW_STREAM_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    found: _containers.RepeatedScalarFieldContainer[bool]
    arrow_stream: bytes
    crc32c: int
    states: _containers.RepeatedCompositeFieldContainer[BucketState]
    table_id: int
    def __init__(self, found: _Optional[_Iterable[bool]] = ..., arrow_stream: _Optional[bytes] = ..., crc32c: _Optional[int] = ..., states: _Optional[_Iterable[_Union[BucketState, _Mapping]]] = ..., table_id: _Optional[int] = ...) -> None: ...
