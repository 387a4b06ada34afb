from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TransactionVersion(_message.Message):
    __slots__ = ("table", "table_id", "name", "version")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    table: str
    table_id: int
    name: str
    version: int
    def __init__(self, table: _Optional[str] = ..., table_id: _Optional[int] = ..., name: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class StageRequest(_message.Message):
    __slots__ = ("open", "rows", "finish")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    open: StageOpen
    rows: StageRows
    finish: StageFinish
    def __init__(self, open: _Optional[_Union[StageOpen, _Mapping]] = ..., rows: _Optional[_Union[StageRows, _Mapping]] = ..., finish: _Optional[_Union[StageFinish, _Mapping]] = ...) -> None: ...

class StageOpen(_message.Message):
    __slots__ = ("version", "part", "attempt", "session")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    version: TransactionVersion
    part: int
    attempt: int
    session: bytes
    def __init__(self, version: _Optional[_Union[TransactionVersion, _Mapping]] = ..., part: _Optional[int] = ..., attempt: _Optional[int] = ..., session: _Optional[bytes] = ...) -> None: ...

class StageRows(_message.Message):
    __slots__ = ("operation", "arrow_stream", "crc32c")
    class Operation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OPERATION_UNSPECIFIED: _ClassVar[StageRows.Operation]
        OPERATION_UPSERT: _ClassVar[StageRows.Operation]
        OPERATION_DELETE: _ClassVar[StageRows.Operation]
    OPERATION_UNSPECIFIED: StageRows.Operation
    OPERATION_UPSERT: StageRows.Operation
    OPERATION_DELETE: StageRows.Operation
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    ARROW_STREAM_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    operation: StageRows.Operation
    arrow_stream: bytes
    crc32c: int
    def __init__(self, operation: _Optional[_Union[StageRows.Operation, str]] = ..., arrow_stream: _Optional[bytes] = ..., crc32c: _Optional[int] = ...) -> None: ...

class StageFinish(_message.Message):
    __slots__ = ("rows",)
    ROWS_FIELD_NUMBER: _ClassVar[int]
    rows: int
    def __init__(self, rows: _Optional[int] = ...) -> None: ...

class StageResponse(_message.Message):
    __slots__ = ("rows", "bytes", "decided", "stage")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    DECIDED_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    rows: int
    bytes: int
    decided: bool
    stage: StageOpen
    def __init__(self, rows: _Optional[int] = ..., bytes: _Optional[int] = ..., decided: _Optional[bool] = ..., stage: _Optional[_Union[StageOpen, _Mapping]] = ...) -> None: ...

class PartAttempt(_message.Message):
    __slots__ = ("part", "attempt", "rows_min")
    PART_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ROWS_MIN_FIELD_NUMBER: _ClassVar[int]
    part: int
    attempt: int
    rows_min: int
    def __init__(self, part: _Optional[int] = ..., attempt: _Optional[int] = ..., rows_min: _Optional[int] = ...) -> None: ...

class AppliedRange(_message.Message):
    __slots__ = ("bucket", "start_offset", "end_offset")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    bucket: int
    start_offset: int
    end_offset: int
    def __init__(self, bucket: _Optional[int] = ..., start_offset: _Optional[int] = ..., end_offset: _Optional[int] = ...) -> None: ...

class PublishRequest(_message.Message):
    __slots__ = ("version", "attempts", "overwrite", "previous_version")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    OVERWRITE_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_VERSION_FIELD_NUMBER: _ClassVar[int]
    version: TransactionVersion
    attempts: _containers.RepeatedCompositeFieldContainer[PartAttempt]
    overwrite: bool
    previous_version: int
    def __init__(self, version: _Optional[_Union[TransactionVersion, _Mapping]] = ..., attempts: _Optional[_Iterable[_Union[PartAttempt, _Mapping]]] = ..., overwrite: _Optional[bool] = ..., previous_version: _Optional[int] = ...) -> None: ...

class PublishResponse(_message.Message):
    __slots__ = ("decided", "attempts", "ranges", "overwrite", "version", "previous_unknown")
    DECIDED_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    OVERWRITE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    decided: bool
    attempts: _containers.RepeatedCompositeFieldContainer[PartAttempt]
    ranges: _containers.RepeatedCompositeFieldContainer[AppliedRange]
    overwrite: bool
    version: TransactionVersion
    previous_unknown: bool
    def __init__(self, decided: _Optional[bool] = ..., attempts: _Optional[_Iterable[_Union[PartAttempt, _Mapping]]] = ..., ranges: _Optional[_Iterable[_Union[AppliedRange, _Mapping]]] = ..., overwrite: _Optional[bool] = ..., version: _Optional[_Union[TransactionVersion, _Mapping]] = ..., previous_unknown: _Optional[bool] = ...) -> None: ...

class AbortRequest(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: TransactionVersion
    def __init__(self, version: _Optional[_Union[TransactionVersion, _Mapping]] = ...) -> None: ...

class AbortResponse(_message.Message):
    __slots__ = ("bytes", "version")
    BYTES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    version: TransactionVersion
    def __init__(self, bytes: _Optional[int] = ..., version: _Optional[_Union[TransactionVersion, _Mapping]] = ...) -> None: ...

class ListTransactionsRequest(_message.Message):
    __slots__ = ("table", "table_id")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    table: str
    table_id: int
    def __init__(self, table: _Optional[str] = ..., table_id: _Optional[int] = ...) -> None: ...

class ListTransactionsResponse(_message.Message):
    __slots__ = ("transactions", "table_id")
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    transactions: _containers.RepeatedCompositeFieldContainer[TransactionInfo]
    table_id: int
    def __init__(self, transactions: _Optional[_Iterable[_Union[TransactionInfo, _Mapping]]] = ..., table_id: _Optional[int] = ...) -> None: ...

class TransactionInfo(_message.Message):
    __slots__ = ("name", "decided_version", "applied", "stages", "staged_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DECIDED_VERSION_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    STAGED_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    decided_version: int
    applied: bool
    stages: int
    staged_bytes: int
    def __init__(self, name: _Optional[str] = ..., decided_version: _Optional[int] = ..., applied: _Optional[bool] = ..., stages: _Optional[int] = ..., staged_bytes: _Optional[int] = ...) -> None: ...
