from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ScanSource(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SCAN_SOURCE_UNSPECIFIED: _ClassVar[ScanSource]
    SCAN_SOURCE_LIVE_KV: _ClassVar[ScanSource]
    SCAN_SOURCE_SNAPSHOT: _ClassVar[ScanSource]
    SCAN_SOURCE_LOG: _ClassVar[ScanSource]
    SCAN_SOURCE_HYBRID: _ClassVar[ScanSource]

class ReadSource(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    READ_SOURCE_UNSPECIFIED: _ClassVar[ReadSource]
    READ_SOURCE_NOW: _ClassVar[ReadSource]
    READ_SOURCE_SNAPSHOT: _ClassVar[ReadSource]
    READ_SOURCE_AS_OF: _ClassVar[ReadSource]
    READ_SOURCE_IMAGE: _ClassVar[ReadSource]

class PageModel(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PAGE_MODEL_UNSPECIFIED: _ClassVar[PageModel]
    PAGE_MODEL_TOKEN: _ClassVar[PageModel]
    PAGE_MODEL_CURSOR: _ClassVar[PageModel]
    PAGE_MODEL_ASOF: _ClassVar[PageModel]
SCAN_SOURCE_UNSPECIFIED: ScanSource
SCAN_SOURCE_LIVE_KV: ScanSource
SCAN_SOURCE_SNAPSHOT: ScanSource
SCAN_SOURCE_LOG: ScanSource
SCAN_SOURCE_HYBRID: ScanSource
READ_SOURCE_UNSPECIFIED: ReadSource
READ_SOURCE_NOW: ReadSource
READ_SOURCE_SNAPSHOT: ReadSource
READ_SOURCE_AS_OF: ReadSource
READ_SOURCE_IMAGE: ReadSource
PAGE_MODEL_UNSPECIFIED: PageModel
PAGE_MODEL_TOKEN: PageModel
PAGE_MODEL_CURSOR: PageModel
PAGE_MODEL_ASOF: PageModel

class ScanRequest(_message.Message):
    __slots__ = ("open", "demand", "drain")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    DEMAND_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    open: ScanOpen
    demand: Demand
    drain: Drain
    def __init__(self, open: _Optional[_Union[ScanOpen, _Mapping]] = ..., demand: _Optional[_Union[Demand, _Mapping]] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ...) -> None: ...

class ScanResponse(_message.Message):
    __slots__ = ("started", "batch", "heartbeat", "snapshot_end", "end")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_END_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    started: ScanStarted
    batch: RowBatch
    heartbeat: Heartbeat
    snapshot_end: SnapshotEnd
    end: ScanEnd
    def __init__(self, started: _Optional[_Union[ScanStarted, _Mapping]] = ..., batch: _Optional[_Union[RowBatch, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., snapshot_end: _Optional[_Union[SnapshotEnd, _Mapping]] = ..., end: _Optional[_Union[ScanEnd, _Mapping]] = ...) -> None: ...

class ScanQuery(_message.Message):
    __slots__ = ("table", "bucket", "columns", "filter", "row_limit", "range", "table_id")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    ROW_LIMIT_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    table: str
    bucket: int
    columns: _containers.RepeatedScalarFieldContainer[str]
    filter: _containers.RepeatedCompositeFieldContainer[Predicate]
    row_limit: int
    range: KeyRange
    table_id: int
    def __init__(self, table: _Optional[str] = ..., bucket: _Optional[int] = ..., columns: _Optional[_Iterable[str]] = ..., filter: _Optional[_Iterable[_Union[Predicate, _Mapping]]] = ..., row_limit: _Optional[int] = ..., range: _Optional[_Union[KeyRange, _Mapping]] = ..., table_id: _Optional[int] = ...) -> None: ...

class KeyRange(_message.Message):
    __slots__ = ("start", "end")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    start: bytes
    end: bytes
    def __init__(self, start: _Optional[bytes] = ..., end: _Optional[bytes] = ...) -> None: ...

class Predicate(_message.Message):
    __slots__ = ("column", "operator", "literals", "operands")
    class Operator(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OPERATOR_UNSPECIFIED: _ClassVar[Predicate.Operator]
        OPERATOR_EQUAL: _ClassVar[Predicate.Operator]
        OPERATOR_NOT_EQUAL: _ClassVar[Predicate.Operator]
        OPERATOR_LESS: _ClassVar[Predicate.Operator]
        OPERATOR_LESS_OR_EQUAL: _ClassVar[Predicate.Operator]
        OPERATOR_GREATER: _ClassVar[Predicate.Operator]
        OPERATOR_GREATER_OR_EQUAL: _ClassVar[Predicate.Operator]
        OPERATOR_IN: _ClassVar[Predicate.Operator]
        OPERATOR_IS_NULL: _ClassVar[Predicate.Operator]
        OPERATOR_IS_NOT_NULL: _ClassVar[Predicate.Operator]
        OPERATOR_STARTS_WITH: _ClassVar[Predicate.Operator]
        OPERATOR_AND: _ClassVar[Predicate.Operator]
        OPERATOR_OR: _ClassVar[Predicate.Operator]
        OPERATOR_NOT: _ClassVar[Predicate.Operator]
    OPERATOR_UNSPECIFIED: Predicate.Operator
    OPERATOR_EQUAL: Predicate.Operator
    OPERATOR_NOT_EQUAL: Predicate.Operator
    OPERATOR_LESS: Predicate.Operator
    OPERATOR_LESS_OR_EQUAL: Predicate.Operator
    OPERATOR_GREATER: Predicate.Operator
    OPERATOR_GREATER_OR_EQUAL: Predicate.Operator
    OPERATOR_IN: Predicate.Operator
    OPERATOR_IS_NULL: Predicate.Operator
    OPERATOR_IS_NOT_NULL: Predicate.Operator
    OPERATOR_STARTS_WITH: Predicate.Operator
    OPERATOR_AND: Predicate.Operator
    OPERATOR_OR: Predicate.Operator
    OPERATOR_NOT: Predicate.Operator
    COLUMN_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    LITERALS_FIELD_NUMBER: _ClassVar[int]
    OPERANDS_FIELD_NUMBER: _ClassVar[int]
    column: str
    operator: Predicate.Operator
    literals: _containers.RepeatedCompositeFieldContainer[Literal]
    operands: _containers.RepeatedCompositeFieldContainer[Predicate]
    def __init__(self, column: _Optional[str] = ..., operator: _Optional[_Union[Predicate.Operator, str]] = ..., literals: _Optional[_Iterable[_Union[Literal, _Mapping]]] = ..., operands: _Optional[_Iterable[_Union[Predicate, _Mapping]]] = ...) -> None: ...

class Literal(_message.Message):
    __slots__ = ("boolean", "integer", "number", "text", "binary", "decimal", "temporal")
    BOOLEAN_FIELD_NUMBER: _ClassVar[int]
    INTEGER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    BINARY_FIELD_NUMBER: _ClassVar[int]
    DECIMAL_FIELD_NUMBER: _ClassVar[int]
    TEMPORAL_FIELD_NUMBER: _ClassVar[int]
    boolean: bool
    integer: int
    number: float
    text: str
    binary: bytes
    decimal: str
    temporal: str
    def __init__(self, boolean: _Optional[bool] = ..., integer: _Optional[int] = ..., number: _Optional[float] = ..., text: _Optional[str] = ..., binary: _Optional[bytes] = ..., decimal: _Optional[str] = ..., temporal: _Optional[str] = ...) -> None: ...

class ScanOpen(_message.Message):
    __slots__ = ("stream_id", "source", "query", "batch_bytes_max", "batch_rows_max", "resume_token", "as_of", "lease_id", "as_of_history", "log_start", "stop_offset", "stop_at_end", "group", "group_epoch")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    BATCH_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    BATCH_ROWS_MAX_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    AS_OF_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    AS_OF_HISTORY_FIELD_NUMBER: _ClassVar[int]
    LOG_START_FIELD_NUMBER: _ClassVar[int]
    STOP_OFFSET_FIELD_NUMBER: _ClassVar[int]
    STOP_AT_END_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    GROUP_EPOCH_FIELD_NUMBER: _ClassVar[int]
    stream_id: bytes
    source: ScanSource
    query: ScanQuery
    batch_bytes_max: int
    batch_rows_max: int
    resume_token: bytes
    as_of: int
    lease_id: str
    as_of_history: bytes
    log_start: LogStart
    stop_offset: int
    stop_at_end: bool
    group: str
    group_epoch: int
    def __init__(self, stream_id: _Optional[bytes] = ..., source: _Optional[_Union[ScanSource, str]] = ..., query: _Optional[_Union[ScanQuery, _Mapping]] = ..., batch_bytes_max: _Optional[int] = ..., batch_rows_max: _Optional[int] = ..., resume_token: _Optional[bytes] = ..., as_of: _Optional[int] = ..., lease_id: _Optional[str] = ..., as_of_history: _Optional[bytes] = ..., log_start: _Optional[_Union[LogStart, _Mapping]] = ..., stop_offset: _Optional[int] = ..., stop_at_end: _Optional[bool] = ..., group: _Optional[str] = ..., group_epoch: _Optional[int] = ...) -> None: ...

class LogStart(_message.Message):
    __slots__ = ("earliest", "latest", "offset", "timestamp_us")
    EARLIEST_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    earliest: bool
    latest: bool
    offset: int
    timestamp_us: int
    def __init__(self, earliest: _Optional[bool] = ..., latest: _Optional[bool] = ..., offset: _Optional[int] = ..., timestamp_us: _Optional[int] = ...) -> None: ...

class Demand(_message.Message):
    __slots__ = ("bytes_limit",)
    BYTES_LIMIT_FIELD_NUMBER: _ClassVar[int]
    bytes_limit: int
    def __init__(self, bytes_limit: _Optional[int] = ...) -> None: ...

class Drain(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ScanStarted(_message.Message):
    __slots__ = ("arrow_schema", "log_offset", "heartbeat_interval_ms", "row_ordinal", "history", "schema_id", "read_source", "scanned", "resume_token")
    ARROW_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    ROW_ORDINAL_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_ID_FIELD_NUMBER: _ClassVar[int]
    READ_SOURCE_FIELD_NUMBER: _ClassVar[int]
    SCANNED_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    arrow_schema: bytes
    log_offset: int
    heartbeat_interval_ms: int
    row_ordinal: int
    history: bytes
    schema_id: int
    read_source: ReadSource
    scanned: ScannedBucket
    resume_token: bytes
    def __init__(self, arrow_schema: _Optional[bytes] = ..., log_offset: _Optional[int] = ..., heartbeat_interval_ms: _Optional[int] = ..., row_ordinal: _Optional[int] = ..., history: _Optional[bytes] = ..., schema_id: _Optional[int] = ..., read_source: _Optional[_Union[ReadSource, str]] = ..., scanned: _Optional[_Union[ScannedBucket, _Mapping]] = ..., resume_token: _Optional[bytes] = ...) -> None: ...

class RowBatch(_message.Message):
    __slots__ = ("row_ordinal", "row_count", "crc32c", "resume_token", "start_offset", "end_offset", "commit_end", "group_epoch", "padding", "arrow_batch")
    ROW_ORDINAL_FIELD_NUMBER: _ClassVar[int]
    ROW_COUNT_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COMMIT_END_FIELD_NUMBER: _ClassVar[int]
    GROUP_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    ARROW_BATCH_FIELD_NUMBER: _ClassVar[int]
    row_ordinal: int
    row_count: int
    crc32c: int
    resume_token: bytes
    start_offset: int
    end_offset: int
    commit_end: bool
    group_epoch: int
    padding: bytes
    arrow_batch: bytes
    def __init__(self, row_ordinal: _Optional[int] = ..., row_count: _Optional[int] = ..., crc32c: _Optional[int] = ..., resume_token: _Optional[bytes] = ..., start_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., commit_end: _Optional[bool] = ..., group_epoch: _Optional[int] = ..., padding: _Optional[bytes] = ..., arrow_batch: _Optional[bytes] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("state", "resume_token", "high_watermark", "rows", "position", "commit_time_floor_us", "schema_id", "group_epoch", "read_source")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[Heartbeat.State]
        STATE_WAITING_CREDIT: _ClassVar[Heartbeat.State]
        STATE_WAITING_DATA: _ClassVar[Heartbeat.State]
        STATE_SCANNING: _ClassVar[Heartbeat.State]
    STATE_UNSPECIFIED: Heartbeat.State
    STATE_WAITING_CREDIT: Heartbeat.State
    STATE_WAITING_DATA: Heartbeat.State
    STATE_SCANNING: Heartbeat.State
    STATE_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TIME_FLOOR_US_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_EPOCH_FIELD_NUMBER: _ClassVar[int]
    READ_SOURCE_FIELD_NUMBER: _ClassVar[int]
    state: Heartbeat.State
    resume_token: bytes
    high_watermark: int
    rows: int
    position: int
    commit_time_floor_us: int
    schema_id: int
    group_epoch: int
    read_source: ReadSource
    def __init__(self, state: _Optional[_Union[Heartbeat.State, str]] = ..., resume_token: _Optional[bytes] = ..., high_watermark: _Optional[int] = ..., rows: _Optional[int] = ..., position: _Optional[int] = ..., commit_time_floor_us: _Optional[int] = ..., schema_id: _Optional[int] = ..., group_epoch: _Optional[int] = ..., read_source: _Optional[_Union[ReadSource, str]] = ...) -> None: ...

class SnapshotEnd(_message.Message):
    __slots__ = ("log_offset",)
    LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    log_offset: int
    def __init__(self, log_offset: _Optional[int] = ...) -> None: ...

class ScanEnd(_message.Message):
    __slots__ = ("reason", "rows", "digest", "resume_token", "stored_bytes", "end_offset", "stalls")
    class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        REASON_UNSPECIFIED: _ClassVar[ScanEnd.Reason]
        REASON_EXHAUSTED: _ClassVar[ScanEnd.Reason]
        REASON_LIMIT: _ClassVar[ScanEnd.Reason]
        REASON_STOP_OFFSET: _ClassVar[ScanEnd.Reason]
        REASON_DRAINED: _ClassVar[ScanEnd.Reason]
    REASON_UNSPECIFIED: ScanEnd.Reason
    REASON_EXHAUSTED: ScanEnd.Reason
    REASON_LIMIT: ScanEnd.Reason
    REASON_STOP_OFFSET: ScanEnd.Reason
    REASON_DRAINED: ScanEnd.Reason
    REASON_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    STALLS_FIELD_NUMBER: _ClassVar[int]
    reason: ScanEnd.Reason
    rows: int
    digest: int
    resume_token: bytes
    stored_bytes: int
    end_offset: int
    stalls: str
    def __init__(self, reason: _Optional[_Union[ScanEnd.Reason, str]] = ..., rows: _Optional[int] = ..., digest: _Optional[int] = ..., resume_token: _Optional[bytes] = ..., stored_bytes: _Optional[int] = ..., end_offset: _Optional[int] = ..., stalls: _Optional[str] = ...) -> None: ...

class ScanSessionRequest(_message.Message):
    __slots__ = ("query", "scanner_id", "call_seq_id", "batch_size_bytes", "close")
    QUERY_FIELD_NUMBER: _ClassVar[int]
    SCANNER_ID_FIELD_NUMBER: _ClassVar[int]
    CALL_SEQ_ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    query: ScanQuery
    scanner_id: bytes
    call_seq_id: int
    batch_size_bytes: int
    close: bool
    def __init__(self, query: _Optional[_Union[ScanQuery, _Mapping]] = ..., scanner_id: _Optional[bytes] = ..., call_seq_id: _Optional[int] = ..., batch_size_bytes: _Optional[int] = ..., close: _Optional[bool] = ...) -> None: ...

class ScannedBucket(_message.Message):
    __slots__ = ("table_id", "bucket")
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    table_id: int
    bucket: int
    def __init__(self, table_id: _Optional[int] = ..., bucket: _Optional[int] = ...) -> None: ...

class ScanSessionResponse(_message.Message):
    __slots__ = ("scanner_id", "has_more_results", "log_offset", "arrow_schema", "row_ordinal", "row_count", "crc32c", "rows", "digest", "stored_bytes", "history", "read_source", "scanned", "padding", "arrow_batch")
    SCANNER_ID_FIELD_NUMBER: _ClassVar[int]
    HAS_MORE_RESULTS_FIELD_NUMBER: _ClassVar[int]
    LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    ARROW_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    ROW_ORDINAL_FIELD_NUMBER: _ClassVar[int]
    ROW_COUNT_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    READ_SOURCE_FIELD_NUMBER: _ClassVar[int]
    SCANNED_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    ARROW_BATCH_FIELD_NUMBER: _ClassVar[int]
    scanner_id: bytes
    has_more_results: bool
    log_offset: int
    arrow_schema: bytes
    row_ordinal: int
    row_count: int
    crc32c: int
    rows: int
    digest: int
    stored_bytes: int
    history: bytes
    read_source: ReadSource
    scanned: ScannedBucket
    padding: bytes
    arrow_batch: bytes
    def __init__(self, scanner_id: _Optional[bytes] = ..., has_more_results: _Optional[bool] = ..., log_offset: _Optional[int] = ..., arrow_schema: _Optional[bytes] = ..., row_ordinal: _Optional[int] = ..., row_count: _Optional[int] = ..., crc32c: _Optional[int] = ..., rows: _Optional[int] = ..., digest: _Optional[int] = ..., stored_bytes: _Optional[int] = ..., history: _Optional[bytes] = ..., read_source: _Optional[_Union[ReadSource, str]] = ..., scanned: _Optional[_Union[ScannedBucket, _Mapping]] = ..., padding: _Optional[bytes] = ..., arrow_batch: _Optional[bytes] = ...) -> None: ...

class ScanPageRequest(_message.Message):
    __slots__ = ("model", "query", "resume_token", "batch_size_bytes", "as_of", "as_of_history", "close")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    AS_OF_FIELD_NUMBER: _ClassVar[int]
    AS_OF_HISTORY_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    model: PageModel
    query: ScanQuery
    resume_token: bytes
    batch_size_bytes: int
    as_of: int
    as_of_history: bytes
    close: bool
    def __init__(self, model: _Optional[_Union[PageModel, str]] = ..., query: _Optional[_Union[ScanQuery, _Mapping]] = ..., resume_token: _Optional[bytes] = ..., batch_size_bytes: _Optional[int] = ..., as_of: _Optional[int] = ..., as_of_history: _Optional[bytes] = ..., close: _Optional[bool] = ...) -> None: ...

class ScanPageResponse(_message.Message):
    __slots__ = ("has_more_results", "resume_token", "log_offset", "arrow_schema", "row_ordinal", "row_count", "crc32c", "rows", "digest", "stored_bytes", "history", "read_source", "scanned", "padding", "arrow_batch")
    HAS_MORE_RESULTS_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    ARROW_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    ROW_ORDINAL_FIELD_NUMBER: _ClassVar[int]
    ROW_COUNT_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    READ_SOURCE_FIELD_NUMBER: _ClassVar[int]
    SCANNED_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    ARROW_BATCH_FIELD_NUMBER: _ClassVar[int]
    has_more_results: bool
    resume_token: bytes
    log_offset: int
    arrow_schema: bytes
    row_ordinal: int
    row_count: int
    crc32c: int
    rows: int
    digest: int
    stored_bytes: int
    history: bytes
    read_source: ReadSource
    scanned: ScannedBucket
    padding: bytes
    arrow_batch: bytes
    def __init__(self, has_more_results: _Optional[bool] = ..., resume_token: _Optional[bytes] = ..., log_offset: _Optional[int] = ..., arrow_schema: _Optional[bytes] = ..., row_ordinal: _Optional[int] = ..., row_count: _Optional[int] = ..., crc32c: _Optional[int] = ..., rows: _Optional[int] = ..., digest: _Optional[int] = ..., stored_bytes: _Optional[int] = ..., history: _Optional[bytes] = ..., read_source: _Optional[_Union[ReadSource, str]] = ..., scanned: _Optional[_Union[ScannedBucket, _Mapping]] = ..., padding: _Optional[bytes] = ..., arrow_batch: _Optional[bytes] = ...) -> None: ...

class FetchLogRequest(_message.Message):
    __slots__ = ("query", "positions", "min_bytes", "max_wait_ms", "bytes_max", "bucket_bytes_max", "with_schema")
    QUERY_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    MIN_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    BUCKET_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    WITH_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    query: ScanQuery
    positions: _containers.RepeatedCompositeFieldContainer[FetchPosition]
    min_bytes: int
    max_wait_ms: int
    bytes_max: int
    bucket_bytes_max: int
    with_schema: bool
    def __init__(self, query: _Optional[_Union[ScanQuery, _Mapping]] = ..., positions: _Optional[_Iterable[_Union[FetchPosition, _Mapping]]] = ..., min_bytes: _Optional[int] = ..., max_wait_ms: _Optional[int] = ..., bytes_max: _Optional[int] = ..., bucket_bytes_max: _Optional[int] = ..., with_schema: _Optional[bool] = ...) -> None: ...

class FetchPosition(_message.Message):
    __slots__ = ("bucket", "offset", "start", "history", "stop_offset", "bytes_max")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    STOP_OFFSET_FIELD_NUMBER: _ClassVar[int]
    BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    bucket: int
    offset: int
    start: LogStart
    history: bytes
    stop_offset: int
    bytes_max: int
    def __init__(self, bucket: _Optional[int] = ..., offset: _Optional[int] = ..., start: _Optional[_Union[LogStart, _Mapping]] = ..., history: _Optional[bytes] = ..., stop_offset: _Optional[int] = ..., bytes_max: _Optional[int] = ...) -> None: ...

class FetchLogResponse(_message.Message):
    __slots__ = ("arrow_schema", "buckets", "table_id")
    ARROW_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    arrow_schema: bytes
    buckets: _containers.RepeatedCompositeFieldContainer[FetchedBucket]
    table_id: int
    def __init__(self, arrow_schema: _Optional[bytes] = ..., buckets: _Optional[_Iterable[_Union[FetchedBucket, _Mapping]]] = ..., table_id: _Optional[int] = ...) -> None: ...

class FetchedBucket(_message.Message):
    __slots__ = ("bucket", "start_offset", "position", "bookmark", "high_watermark", "history", "error", "batches")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    BOOKMARK_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    bucket: int
    start_offset: int
    position: int
    bookmark: int
    high_watermark: int
    history: bytes
    error: FetchError
    batches: _containers.RepeatedCompositeFieldContainer[RowBatch]
    def __init__(self, bucket: _Optional[int] = ..., start_offset: _Optional[int] = ..., position: _Optional[int] = ..., bookmark: _Optional[int] = ..., high_watermark: _Optional[int] = ..., history: _Optional[bytes] = ..., error: _Optional[_Union[FetchError, _Mapping]] = ..., batches: _Optional[_Iterable[_Union[RowBatch, _Mapping]]] = ...) -> None: ...

class FetchError(_message.Message):
    __slots__ = ("reason", "message", "oldest_offset", "metadata")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    OLDEST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    reason: str
    message: str
    oldest_offset: int
    metadata: _containers.ScalarMap[str, str]
    def __init__(self, reason: _Optional[str] = ..., message: _Optional[str] = ..., oldest_offset: _Optional[int] = ..., metadata: _Optional[_Mapping[str, str]] = ...) -> None: ...
