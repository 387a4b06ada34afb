"""The responses of a push scan, made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from scanner.data.digest import checksum
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.wire.arrow_ipc import encode_batch, encode_schema
from scanner.wire.batches import NO_CHANGES, encode_row_batch

if TYPE_CHECKING:
    from scanner.data.changes import ChangeRange

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False)])
DIGEST = 99
LOG_OFFSET = 17


def started(
    schema: pa.Schema = SCHEMA,
    log_offset: int = LOG_OFFSET,
    row_ordinal: int = 0,
    *,
    heartbeat_interval_ms: int = 0,
    history: bytes = b"",
    token: bytes = b"",
) -> bytes:
    """The first response of a stream."""
    message = pb.ScanStarted(
        arrow_schema=encode_schema(schema),
        log_offset=log_offset,
        row_ordinal=row_ordinal,
        heartbeat_interval_ms=heartbeat_interval_ms,
        history=history,
        resume_token=token,
    )
    return pb.ScanResponse(started=message).SerializeToString()


def payload_message(ordinal: int, payload: bytes) -> bytes:
    """A batch of these bytes, which are two rows, with their checksum."""
    return b"".join(encode_row_batch(ordinal, 2, checksum(payload), payload, b""))


def rows(
    ordinal: int,
    values: Sequence[int],
    *,
    token: bytes = b"",
    crc32c: int | None = None,
    count: int | None = None,
    changes: ChangeRange = NO_CHANGES,
) -> bytes:
    """A batch."""
    payload = encode_batch(pa.record_batch({"k": list(values)}, schema=SCHEMA))
    crc32c = checksum(payload) if crc32c is None else crc32c
    count = len(values) if count is None else count
    return b"".join(encode_row_batch(ordinal, count, crc32c, payload, token, changes))


def heartbeat(token: bytes = b"", state: pb.Heartbeat.State = pb.Heartbeat.STATE_SCANNING) -> bytes:
    """A heartbeat."""
    return pb.ScanResponse(heartbeat=pb.Heartbeat(state=state, resume_token=token)).SerializeToString()


def end(total: int, reason: pb.ScanEnd.Reason = pb.ScanEnd.REASON_EXHAUSTED, *, token: bytes = b"") -> bytes:
    """The last response."""
    message = pb.ScanEnd(reason=reason, rows=total, digest=DIGEST, resume_token=token)
    return pb.ScanResponse(end=message).SerializeToString()
