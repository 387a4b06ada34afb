"""The push receiver: what it takes for rows, and what it takes for an end."""

from __future__ import annotations

import pyarrow as pa
import pytest

from scanner.digest import checksum
from scanner.errors import DataCorrupted, InternalError, ScanIncomplete, SchemaMismatch
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.receiver import PushReceiver, ReceiverState
from scanner.statistics import BucketProgress
from scanner.wire import encode_batch, encode_row_batch, encode_schema

SCHEMA = pa.schema([("k", pa.int64())])


def started(schema: pa.Schema = SCHEMA, log_offset: int = 17) -> bytes:
    """The first response."""
    message = pb.ScanStarted(arrow_schema=encode_schema(schema), log_offset=log_offset)
    return pb.ScanResponse(started=message).SerializeToString()


def rows(ordinal: int, values: list[int], *, crc32c: int | None = None, count: int | None = None) -> bytes:
    """A batch."""
    payload = encode_batch(pa.record_batch({"k": values}, schema=SCHEMA))
    crc32c = checksum(payload) if crc32c is None else crc32c
    return b"".join(encode_row_batch(ordinal, len(values) if count is None else count, crc32c, payload))


def end(total: int) -> bytes:
    """The last response."""
    message = pb.ScanEnd(reason=pb.ScanEnd.REASON_EXHAUSTED, rows=total, digest=99)
    return pb.ScanResponse(end=message).SerializeToString()


@pytest.fixture
def progress() -> BucketProgress:
    """Fresh counters."""
    return BucketProgress(bucket=0)


@pytest.fixture
def receiver(progress: BucketProgress) -> PushReceiver:
    """A receiver that has nothing yet."""
    return PushReceiver("t bucket 0", SCHEMA, 1_000_000, progress)


def test_whole_scan(receiver: PushReceiver, progress: BucketProgress) -> None:
    """Start, batches and end give rows, log offset, reason and digest."""
    assert receiver.receive(started()) is None
    first = receiver.receive(message := rows(0, [1, 2]))
    assert first is not None
    assert first[0].column(0).to_pylist() == [1, 2]
    assert first[1] == len(message)
    heartbeat = pb.ScanResponse(heartbeat=pb.Heartbeat(rows=2)).SerializeToString()
    assert receiver.receive(heartbeat) is None
    assert receiver.receive(rows(2, [3])) is not None
    assert receiver.receive(end(3)) is None
    receiver.end_of_stream()
    assert (progress.log_offset, progress.reason, progress.digest) == (17, "EXHAUSTED", 99)
    assert receiver.credit.received == progress.bytes_received


def test_empty_scan_has_a_log_offset(receiver: PushReceiver, progress: BucketProgress) -> None:
    """An empty bucket starts and ends, and says as of when it is empty."""
    receiver.receive(started())
    receiver.receive(end(0))
    assert receiver.state is ReceiverState.ENDED
    assert progress.log_offset == 17


def test_batches_are_views_of_the_message(receiver: PushReceiver) -> None:
    """The columns of a batch lie in the memory in which the message arrived."""
    receiver.receive(started())
    message = rows(0, list(range(1000)))
    memory = pa.allocate_buffer(len(message))
    memoryview(memory).cast("B")[:] = message
    taken = receiver.receive(memory)
    assert taken is not None
    values = taken[0].column(0).buffers()[1]
    assert memory.address < values.address < memory.address + memory.size


@pytest.mark.parametrize("ordinal", [0, 1, 3])
def test_gap_or_repetition_is_corruption(receiver: PushReceiver, ordinal: int) -> None:
    """A batch that does not continue the one before is refused."""
    receiver.receive(started())
    receiver.receive(rows(0, [1, 2]))
    with pytest.raises(DataCorrupted, match="lost or repeated"):
        receiver.receive(rows(ordinal, [3]))


def test_wrong_checksum_is_corruption(receiver: PushReceiver) -> None:
    """A batch whose bytes changed on the way is refused."""
    receiver.receive(started())
    with pytest.raises(DataCorrupted, match="checksum"):
        receiver.receive(rows(0, [1], crc32c=1))


def test_wrong_row_count_is_corruption(receiver: PushReceiver) -> None:
    """A batch with other rows than announced is refused."""
    receiver.receive(started())
    with pytest.raises(DataCorrupted, match="announced"):
        receiver.receive(rows(0, [1, 2], count=3))


def test_end_with_another_total_is_corruption(receiver: PushReceiver) -> None:
    """An end whose total is not what arrived is a failure, not an end."""
    receiver.receive(started())
    receiver.receive(rows(0, [1, 2]))
    with pytest.raises(DataCorrupted, match="2 rows arrived"):
        receiver.receive(end(3))
    with pytest.raises(ScanIncomplete):
        receiver.end_of_stream()


def test_stream_without_an_end_is_incomplete(receiver: PushReceiver) -> None:
    """A stream that ends well, but without the explicit end, delivered a part."""
    receiver.receive(started())
    receiver.receive(rows(0, [1, 2]))
    with pytest.raises(ScanIncomplete, match="after 2 rows"):
        receiver.end_of_stream()


@pytest.mark.parametrize(
    "messages",
    [
        [rows(0, [1])],
        [end(0)],
        [started(), started()],
        [started(), end(0), rows(0, [1])],
        [started(), end(0), end(0)],
        [started(), pb.ScanResponse(snapshot_end=pb.SnapshotEnd()).SerializeToString()],
        [b"\xff\xff\xff"],
    ],
    ids=["rows first", "end first", "two starts", "rows after end", "two ends", "snapshot end", "garbage"],
)
def test_responses_out_of_turn_are_refused(receiver: PushReceiver, messages: list[bytes]) -> None:
    """The order of responses is fixed: one start, rows, one end."""
    for message in messages[:-1]:
        receiver.receive(message)
    with pytest.raises(DataCorrupted):
        receiver.receive(messages[-1])


def test_other_schema_means_another_table(receiver: PushReceiver) -> None:
    """A server that announces other columns than the client knows has replaced the table."""
    with pytest.raises(SchemaMismatch, match="changed"):
        receiver.receive(started(pa.schema([("k", pa.int32())])))


def test_server_past_the_credit_is_cut_off(progress: BucketProgress) -> None:
    """The message that reaches the limit may pass it; the one after is refused, and both are counted."""
    size = len(rows(0, [1]))
    receiver = PushReceiver("t bucket 0", SCHEMA, size + 1, progress)
    receiver.receive(started())
    receiver.receive(rows(0, [1]))
    receiver.receive(rows(1, [2]))
    assert progress.overrun_bytes == receiver.credit.received - (size + 1)
    with pytest.raises(InternalError, match="past the credit"):
        receiver.receive(rows(2, [3]))
