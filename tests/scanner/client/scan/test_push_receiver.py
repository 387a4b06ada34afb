"""The push receiver: what it takes for rows, and what it takes for an end."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest

from scanner.client.scan.push_receiver import PushReceiver, ReceiverState
from scanner.client.scan.resume_position import BucketPosition
from scanner.client.scan.statistics import BucketProgress
from scanner.data.changes import ChangeRange
from scanner.errors import (
    DataCorrupted,
    Draining,
    InternalError,
    ScanIncomplete,
    SchemaMismatch,
    StoreClosed,
)
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.wire.arrow_ipc import encode_batch
from tests.support.push_messages import LOG_OFFSET, SCHEMA, end, heartbeat, payload_message, rows, started
from transport import ReceiveCredit


@pytest.fixture
def progress() -> BucketProgress:
    """Fresh counters."""
    return BucketProgress(bucket=0)


@pytest.fixture
def receiver(progress: BucketProgress) -> PushReceiver:
    """A receiver that has nothing yet."""
    return PushReceiver("t bucket 0", SCHEMA, ReceiveCredit(1_000_000), progress)


def test_whole_scan(receiver: PushReceiver, progress: BucketProgress) -> None:
    """Start, batches and end give rows, log offset, reason and digest."""
    assert receiver.receive(started()) is None
    first = receiver.receive(message := rows(0, [1, 2]))
    assert first is not None
    assert first.batch.column(0).to_pylist() == [1, 2]
    assert first.size == len(message)
    heartbeat = pb.ScanResponse(heartbeat=pb.Heartbeat(rows=2)).SerializeToString()
    assert receiver.receive(heartbeat) is None
    assert receiver.receive(rows(2, [3])) is not None
    last = receiver.receive(end(3))
    assert last is not None
    assert last.batch.num_rows == last.size == 0
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
    values = taken.batch.column(0).buffers()[1]
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


@pytest.mark.parametrize("wrong", [(0, 2, 6000), (0, 2000, 6)], ids=["last", "between"])
def test_a_batch_that_contradicts_itself_is_corruption(wrong: tuple[int, int, int]) -> None:
    """A text that ends behind its column's bytes is found, though the checksum is right, before anybody reads it.

    Who read the second one would end with SIGSEGV.
    """
    schema = pa.schema([pa.field("text", pa.string())])
    texts = ["ab", "cdef"]
    payload = bytes(encode_batch(pa.record_batch({"text": texts}, schema=schema)))
    ends = struct.pack("<3i", 0, 2, 6)
    assert payload.count(ends) == 1
    receiver = PushReceiver("t bucket 0", schema, ReceiveCredit(1_000_000), BucketProgress(bucket=0))
    receiver.receive(started(schema))
    receiver.receive(payload_message(0, payload))
    with pytest.raises(DataCorrupted, match="a batch is not valid"):
        receiver.receive(payload_message(2, payload.replace(ends, struct.pack("<3i", *wrong))))


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
    receiver = PushReceiver("t bucket 0", SCHEMA, ReceiveCredit(size + 1), progress)
    receiver.receive(started())
    receiver.receive(rows(0, [1]))
    receiver.receive(rows(1, [2]))
    assert progress.overrun_bytes == receiver.credit.received - (size + 1)
    with pytest.raises(InternalError, match="past the credit"):
        receiver.receive(rows(2, [3]))


OPEN = pb.ScanOpen(source=pb.SCAN_SOURCE_LIVE_KV, query=pb.ScanQuery(table="t"), stream_id=b"id")


def test_next_stream_goes_on_with_the_newest_token(receiver: PushReceiver, progress: BucketProgress) -> None:
    """Tokens of batches and heartbeats are taken as they come; the next stream brings the last one, and no offset."""
    assert receiver.begin_stream(OPEN) == OPEN
    receiver.receive(started())
    receiver.receive(rows(0, [1, 2], token=b"a"))
    receiver.receive(heartbeat(b"b"))
    receiver.receive(heartbeat())
    request = receiver.begin_stream(pb.ScanOpen(as_of=LOG_OFFSET, as_of_history=b"one"))
    assert (request.resume_token, request.HasField("as_of"), request.as_of_history) == (b"b", False, b"")
    receiver.receive(started(row_ordinal=2))
    receiver.receive(rows(2, [3], token=b"c"))
    receiver.receive(end(3))
    assert receiver.state is ReceiverState.ENDED
    assert progress.resumes == 1


@pytest.mark.parametrize(
    "source",
    [pb.SCAN_SOURCE_LIVE_KV, pb.SCAN_SOURCE_SNAPSHOT, pb.SCAN_SOURCE_HYBRID, pb.SCAN_SOURCE_LOG],
    ids=pb.ScanSource.Name,
)
def test_next_stream_goes_on_in_front_of_the_first_row(
    receiver: PushReceiver, progress: BucketProgress, source: pb.ScanSource
) -> None:
    """A scan that had started, and no more, goes on with the token of its start, in no other state."""
    scan_open = pb.ScanOpen(source=source, stop_at_end=source in (pb.SCAN_SOURCE_HYBRID, pb.SCAN_SOURCE_LOG))
    receiver.begin_stream(scan_open)
    receiver.receive(started(history=b"one", token=b"0"))
    for _ in range(2):
        request = receiver.begin_stream(scan_open)
        assert (request.resume_token, request.HasField("as_of")) == (b"0", False)
        receiver.receive(started(history=b"one"))
    assert progress.begun == BucketPosition(log_offset=LOG_OFFSET, history=b"one", token=b"0")
    receiver.begin_stream(scan_open)
    with pytest.raises(DataCorrupted, match=r"two states would be mixed|lost or come twice"):
        receiver.receive(started(log_offset=LOG_OFFSET + 1, history=b"one"))


def test_next_stream_keeps_the_offset_when_there_is_no_token(receiver: PushReceiver) -> None:
    """A scan that had started, and no more, is opened as of the same offset; one that had not, anew."""
    receiver.begin_stream(OPEN)
    assert receiver.begin_stream(OPEN) == OPEN
    receiver.receive(started(log_offset=8))
    assert receiver.begin_stream(OPEN).as_of == 8
    with pytest.raises(DataCorrupted, match="as of log offset 9, but the scan is as of 8"):
        receiver.receive(started(log_offset=9))


def test_offset_that_was_asked_for_is_the_one_that_is_read(receiver: PushReceiver) -> None:
    """A server that reads another offset than it was asked for is found out at the start."""
    assert receiver.begin_stream(pb.ScanOpen(source=pb.SCAN_SOURCE_LIVE_KV, as_of=3)).as_of == 3
    with pytest.raises(DataCorrupted, match="as of log offset 17, but the scan is as of 3"):
        receiver.receive(started())


def test_next_stream_must_read_the_same_history(receiver: PushReceiver) -> None:
    """A bucket that was restored from a copy in between has other rows at the same offset: they are not mixed."""
    receiver.begin_stream(OPEN)
    receiver.receive(started(history=b"one"))
    receiver.receive(rows(0, [1], token=b"a"))
    receiver.begin_stream(OPEN)
    receiver.receive(started(row_ordinal=1, history=b"one"))
    receiver.begin_stream(OPEN)
    with pytest.raises(DataCorrupted, match="another history of the bucket"):
        receiver.receive(started(row_ordinal=1, history=b"other"))


def test_next_stream_of_a_snapshot_without_a_token_begins_anew(
    receiver: PushReceiver, progress: BucketProgress
) -> None:
    """Without a token a snapshot cannot be asked for: before the first row the next stream may read a newer one."""
    snapshot = pb.ScanOpen(source=pb.SCAN_SOURCE_SNAPSHOT)
    receiver.begin_stream(snapshot)
    receiver.receive(started(log_offset=8))
    assert receiver.begin_stream(snapshot) == snapshot
    receiver.receive(started(log_offset=9))
    assert (progress.log_offset, progress.begun) == (9, None)


@pytest.mark.parametrize("ordinal", [0, 1, 3])
def test_next_stream_must_go_on_where_the_last_one_was_cut(receiver: PushReceiver, ordinal: int) -> None:
    """A server that would lose or repeat rows is found out before the first of them."""
    receiver.begin_stream(OPEN)
    receiver.receive(started())
    receiver.receive(rows(0, [1, 2], token=b"a"))
    receiver.begin_stream(OPEN)
    with pytest.raises(DataCorrupted, match=f"goes on at row {ordinal}, but 2 rows arrived"):
        receiver.receive(started(row_ordinal=ordinal))


def test_without_tokens_nothing_can_go_on(receiver: PushReceiver) -> None:
    """Rows that no token stands behind would come again: the scan is then at its end, whatever cut it."""
    receiver.begin_stream(OPEN)
    receiver.receive(started())
    assert receiver.resumable
    receiver.receive(rows(0, [1], token=b"a"))
    assert receiver.resumable
    receiver.receive(rows(1, [2]))
    assert not receiver.resumable


@pytest.mark.parametrize(
    ("reason", "row_limit", "total"),
    [
        (pb.ScanEnd.REASON_UNSPECIFIED, None, 2),
        (pb.ScanEnd.REASON_STOP_OFFSET, None, 2),
        (99, None, 2),
        (pb.ScanEnd.REASON_LIMIT, None, 2),
        (pb.ScanEnd.REASON_LIMIT, 3, 2),
    ],
)
def test_an_end_for_no_reason_of_this_scan_is_corruption(
    receiver: PushReceiver,
    progress: BucketProgress,
    reason: pb.ScanEnd.Reason,
    row_limit: int | None,
    total: int,
) -> None:
    """A reason that is unknown, of another source, or a limit that was not reached proves no end."""
    receiver.begin_stream(pb.ScanOpen(query=pb.ScanQuery(table="t", row_limit=row_limit)))
    receiver.receive(started())
    receiver.receive(rows(0, [1, 2], token=b"a"))
    with pytest.raises(DataCorrupted, match="no end of this scan"):
        receiver.receive(end(total, reason))
    assert (progress.reason, progress.digest, receiver.state) == (None, None, ReceiverState.SCANNING)


def test_a_limit_that_is_reached_is_an_end(receiver: PushReceiver, progress: BucketProgress) -> None:
    """With the total that was asked for, LIMIT says that there may be more, which nobody wants."""
    receiver.begin_stream(pb.ScanOpen(query=pb.ScanQuery(table="t", row_limit=2)))
    receiver.receive(started())
    receiver.receive(rows(0, [1, 2], token=b"a"))
    receiver.receive(end(2, pb.ScanEnd.REASON_LIMIT))
    assert (progress.reason, receiver.state) == ("LIMIT", ReceiverState.ENDED)


def test_early_end_is_no_end(receiver: PushReceiver, progress: BucketProgress) -> None:
    """A server that drains has not delivered everything: a failure that goes on with the token of the end."""
    receiver.begin_stream(OPEN)
    receiver.receive(started())
    receiver.receive(rows(0, [1, 2], token=b"a"))
    with pytest.raises(Draining, match="after 2 rows") as caught:
        receiver.receive(end(2, pb.ScanEnd.REASON_DRAINED, token=b"b"))
    assert caught.value.resume_token == b"b"
    assert (progress.reason, progress.digest, receiver.state) == (None, None, ReceiverState.SCANNING)
    assert receiver.begin_stream(OPEN).resume_token == b"b"


def test_early_end_with_another_total_is_corruption(receiver: PushReceiver) -> None:
    """Also a server that drains must not have lost anything."""
    receiver.begin_stream(OPEN)
    receiver.receive(started())
    with pytest.raises(DataCorrupted, match="0 rows arrived, but the server sent 1"):
        receiver.receive(end(1, pb.ScanEnd.REASON_DRAINED, token=b"b"))


def test_what_counts_as_progress(progress: BucketProgress) -> None:
    """Rows, a further position, and a wait for credit that we owe; no start, nor what says nothing new."""
    advances: list[None] = []
    first = rows(0, [1], token=b"a")
    receiver = PushReceiver(
        "t bucket 0", SCHEMA, ReceiveCredit(len(first) + 1), progress, lambda: advances.append(None)
    )
    receiver.begin_stream(OPEN)
    waiting = pb.Heartbeat.STATE_WAITING_CREDIT
    steps = [
        (heartbeat(b"early"), 0),
        (started(token=b"0"), 0),
        (heartbeat(b"0"), 0),
        (heartbeat(), 0),
        (heartbeat(b"", waiting), 0),
        (first, 1),
        (heartbeat(b"a"), 1),
        (heartbeat(b"b"), 2),
        (heartbeat(b"b", waiting), 2),
        (rows(1, [], token=b"b"), 2),
        (heartbeat(b"b", waiting), 3),
    ]
    for message, count in steps:
        receiver.receive(message)
        assert len(advances) == count


@pytest.mark.parametrize(
    ("metadata", "newest"), [({"rows": "2"}, b"error"), ({"rows": "3"}, b"a"), ({}, b"a")]
)
def test_token_of_an_error_counts_where_it_stands_with_us(
    receiver: PushReceiver, metadata: dict[str, str], newest: bytes
) -> None:
    """A server that fails may have dropped rows in front of its error, whose token would then skip them."""
    receiver.begin_stream(OPEN)
    receiver.receive(started())
    receiver.receive(rows(0, [1, 2], token=b"a"))
    receiver.take_failure(StoreClosed("closed", resume_token=b"error", metadata=metadata))
    assert receiver.begin_stream(OPEN).resume_token == newest


def opened(source: pb.ScanSource, *, filtered: bool) -> pb.ScanOpen:
    """What a scan of changes asks for."""
    predicate = pb.Predicate(column="k", operator=pb.Predicate.OPERATOR_IS_NOT_NULL)
    return pb.ScanOpen(source=source, query=pb.ScanQuery(filter=[predicate] if filtered else []))


def changes(start: int, end: int, ordinal: int = 0) -> bytes:
    """A batch of these changes."""
    return rows(
        ordinal, list(range(start, end)), token=b"%d" % end, changes=ChangeRange(start, end, commit_end=True)
    )


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("source", [pb.SCAN_SOURCE_LOG, pb.SCAN_SOURCE_HYBRID])
def test_changes_that_are_left_out_are_noticed(
    receiver: PushReceiver, source: pb.ScanSource, filtered: bool
) -> None:
    """Batches cover what does not pass, too: a gap between two of them is a loss, whatever the filter."""
    receiver.begin_stream(opened(source, filtered=filtered))
    receiver.receive(started())
    if source == pb.SCAN_SOURCE_HYBRID:
        boundary = pb.SnapshotEnd(log_offset=LOG_OFFSET)
        receiver.receive(pb.ScanResponse(snapshot_end=boundary).SerializeToString())
    arrival = receiver.receive(changes(LOG_OFFSET, LOG_OFFSET + 5))
    assert arrival is not None
    assert arrival.position == LOG_OFFSET + 5
    for start, end_offset in [(LOG_OFFSET + 6, LOG_OFFSET + 9), (LOG_OFFSET, LOG_OFFSET + 5)]:
        with pytest.raises(DataCorrupted, match="lost or repeated"):
            receiver.receive(changes(start, end_offset, 5))


@pytest.mark.parametrize("filtered", [False, True])
def test_a_resumed_tail_may_begin_behind_changes_that_do_not_pass(
    receiver: PushReceiver, filtered: bool
) -> None:
    """Its token may stand behind them. Without a filter there are none, and they were lost."""
    scan_open = opened(pb.SCAN_SOURCE_LOG, filtered=filtered)
    receiver.begin_stream(scan_open)
    receiver.receive(started())
    receiver.receive(changes(LOG_OFFSET, 20))
    assert receiver.begin_stream(scan_open).resume_token == b"20"
    if not filtered:
        with pytest.raises(DataCorrupted, match="lost or come twice"):
            receiver.receive(started(log_offset=25, row_ordinal=3))
        return
    receiver.receive(started(log_offset=25, row_ordinal=3))
    assert receiver.receive(changes(25, 30, 3)) is not None


def told(position: int, sent: int = 0) -> bytes:
    """A heartbeat that says up to where changes have come, and how many rows they were."""
    return pb.ScanResponse(heartbeat=pb.Heartbeat(position=position, rows=sent)).SerializeToString()


def test_a_position_is_told_when_it_moves(receiver: PushReceiver) -> None:
    """A heartbeat of an idle tail brings its consumer nothing until changes that do not pass have been scanned."""
    receiver.begin_stream(opened(pb.SCAN_SOURCE_LOG, filtered=True))
    receiver.receive(started())
    receiver.receive(changes(LOG_OFFSET, 20))
    arrivals = [receiver.receive(told(position, 3)) for position in (20, 21, 21, 20)]
    assert [arrival and arrival.position for arrival in arrivals] == [None, 21, None, None]


@pytest.mark.parametrize("source", [pb.SCAN_SOURCE_LIVE_KV, pb.SCAN_SOURCE_HYBRID])
def test_rows_of_a_state_have_no_position_in_the_log(receiver: PushReceiver, source: pb.ScanSource) -> None:
    """A server that names one before the snapshot is complete would make a consumer skip what has not come."""
    receiver.begin_stream(opened(source, filtered=False))
    receiver.receive(started())
    assert receiver.receive(told(LOG_OFFSET + 1)) is None
    receiver.receive(rows(0, [1]))


@pytest.mark.parametrize("epoch", [0, 2])
def test_what_is_for_another_reader_of_the_group_is_noticed(receiver: PushReceiver, epoch: int) -> None:
    """A bucket that was given to somebody else, and came back, goes on where that one stopped: not where we did."""
    receiver.begin_stream(pb.ScanOpen(source=pb.SCAN_SOURCE_LOG, group_epoch=3))
    receiver.receive(started())
    batch = pb.ScanResponse.FromString(changes(LOG_OFFSET, 20))
    for other in (batch, pb.ScanResponse(heartbeat=pb.Heartbeat(position=20))):
        getattr(other, other.WhichOneof("response")).group_epoch = epoch
        with pytest.raises(
            DataCorrupted, match=f"for epoch {epoch} of a reader group, and this scan is for 3"
        ):
            receiver.receive(other.SerializeToString())


def test_a_tail_that_goes_back_is_noticed(receiver: PushReceiver) -> None:
    """Its changes would come twice."""
    scan_open = opened(pb.SCAN_SOURCE_LOG, filtered=True)
    receiver.begin_stream(scan_open)
    receiver.receive(started())
    receiver.receive(changes(LOG_OFFSET, 20))
    receiver.begin_stream(scan_open)
    with pytest.raises(DataCorrupted, match="come twice"):
        receiver.receive(started(log_offset=19, row_ordinal=3))


def test_a_table_that_got_columns_is_noticed() -> None:
    """By a heartbeat, or by the start of a further stream; the schema that came first is the scan's."""
    for told in ([0, 0], [0, 1], [2, 2], [2, 3]):
        progress = BucketProgress(bucket=0)
        receiver = PushReceiver("items bucket 0", SCHEMA, ReceiveCredit(1000), progress)
        opening = pb.ScanOpen(source=pb.SCAN_SOURCE_LOG)
        receiver.begin_stream(opening)
        receiver.receive(_started_with_schema(told[0]))
        assert not progress.schema_outdated
        receiver.receive(
            pb.ScanResponse(heartbeat=pb.Heartbeat(position=0, schema_id=told[1])).SerializeToString()
        )
        assert progress.schema_outdated == (told[1] > told[0])
        receiver.begin_stream(opening)
        receiver.receive(_started_with_schema(told[1] + 1))
        assert progress.schema_outdated


def _started_with_schema(schema_id: int) -> bytes:
    message = pb.ScanResponse.FromString(started(log_offset=0))
    message.started.schema_id = schema_id
    return message.SerializeToString()


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("begun", [LOG_OFFSET - 1, LOG_OFFSET + 1])
def test_a_tail_that_begins_elsewhere_than_it_was_asked_to_is_noticed(
    receiver: PushReceiver, begun: int, filtered: bool
) -> None:
    """What lies between would be lost, or come twice; with a filter, too."""
    scan_open = opened(pb.SCAN_SOURCE_LOG, filtered=filtered)
    scan_open.log_start.offset = LOG_OFFSET
    receiver.begin_stream(scan_open)
    with pytest.raises(DataCorrupted, match=f"begins at log offset {begun}, and was asked to begin at 17"):
        receiver.receive(started(log_offset=begun))
    receiver.receive(started())


@pytest.mark.parametrize("source", [pb.SCAN_SOURCE_LIVE_KV, pb.SCAN_SOURCE_HYBRID])
def test_a_server_that_does_not_check_the_history_is_noticed(
    receiver: PushReceiver, source: pb.ScanSource
) -> None:
    """An older server does not know the question, reads whatever is as of that offset, and names no history."""
    receiver.begin_stream(pb.ScanOpen(source=source, as_of=LOG_OFFSET, as_of_history=b"one"))
    with pytest.raises(DataCorrupted, match="another history"):
        receiver.receive(started(history=b""))
    receiver.receive(started(history=b"one"))


def test_the_history_that_was_asked_for_is_asked_for_until_the_scan_has_begun(receiver: PushReceiver) -> None:
    """A later history than the offset's own is asked for again, then the one that the server named."""
    scan_open = pb.ScanOpen(source=pb.SCAN_SOURCE_LIVE_KV, as_of=LOG_OFFSET, as_of_history=b"later")
    for _ in range(2):
        assert receiver.begin_stream(scan_open).as_of_history == b"later"
    receiver.receive(started(history=b"own"))
    assert receiver.begin_stream(scan_open).as_of_history == b"own"
    with pytest.raises(DataCorrupted, match="another history"):
        receiver.receive(started(history=b"later"))


def stopped(total: int, end_offset: int | None) -> bytes:
    """The end of a scan that came to its stop."""
    message = pb.ScanEnd(reason=pb.ScanEnd.REASON_STOP_OFFSET, rows=total, end_offset=end_offset)
    return pb.ScanResponse(end=message).SerializeToString()


def tail(receiver: PushReceiver, *, filtered: bool, stop_offset: int | None = None) -> None:
    """A tail that has begun, and of which changes up to 20 have come."""
    scan_open = opened(pb.SCAN_SOURCE_LOG, filtered=filtered)
    if stop_offset is not None:
        scan_open.stop_offset = stop_offset
    receiver.begin_stream(scan_open)
    receiver.receive(started())
    receiver.receive(changes(LOG_OFFSET, 20))


@pytest.mark.parametrize("filtered", [False, True])
def test_a_position_behind_changes_that_were_lost_is_not_told(receiver: PushReceiver, filtered: bool) -> None:
    """Whoever stored it would go on behind what never came. How many rows went out tells, whatever the filter."""
    tail(receiver, filtered=filtered)
    with pytest.raises(DataCorrupted, match="4 rows went out up to log offset 21, and 3 have come, up to 20"):
        receiver.receive(told(21, 4))
    if not filtered:
        with pytest.raises(DataCorrupted, match="lost on the way"):
            receiver.receive(told(21, 3))
    assert receiver.receive(told(20, 3)) is None


def test_a_batch_without_some_of_its_changes_is_noticed(receiver: PushReceiver) -> None:
    """Only a filter leaves changes out."""
    short = rows(0, [1, 2], token=b"20", changes=ChangeRange(LOG_OFFSET, 20, commit_end=True))
    receiver.begin_stream(opened(pb.SCAN_SOURCE_LOG, filtered=False))
    receiver.receive(started())
    with pytest.raises(DataCorrupted, match=r"covers the changes \[17, 20\) has 2 rows"):
        receiver.receive(short)


def test_a_batch_with_more_rows_than_changes_is_noticed(receiver: PushReceiver) -> None:
    """No filter adds any."""
    receiver.begin_stream(opened(pb.SCAN_SOURCE_LOG, filtered=True))
    receiver.receive(started())
    with pytest.raises(DataCorrupted, match=r"covers the changes \[17, 19\) has 3 rows"):
        receiver.receive(rows(0, [1, 2, 3], changes=ChangeRange(LOG_OFFSET, 19, commit_end=True)))


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("end_offset", [None, 20, 24, 26])
def test_a_stop_elsewhere_than_was_asked_for_is_no_end(
    receiver: PushReceiver, end_offset: int | None, filtered: bool
) -> None:
    """Before it changes would be missing, and behind it the position would be one that was not read."""
    tail(receiver, filtered=filtered, stop_offset=25)
    with pytest.raises(DataCorrupted, match="it was to stop at 25"):
        receiver.receive(stopped(3, end_offset))
    if filtered:
        assert receiver.receive(stopped(3, 25)) is not None
        return
    with pytest.raises(DataCorrupted, match="lost on the way"):
        receiver.receive(stopped(3, 25))
    receiver.receive(changes(20, 25, 3))
    assert receiver.receive(stopped(8, 25)) is not None


@pytest.mark.parametrize("filtered", [False, True])
def test_a_stop_before_changes_that_came_is_no_end(receiver: PushReceiver, filtered: bool) -> None:
    """Also where the scan goes up to the end of the log, wherever that is."""
    tail(receiver, filtered=filtered)
    with pytest.raises(DataCorrupted, match="ended the scan at log offset 19"):
        receiver.receive(stopped(3, 19))
    assert receiver.receive(stopped(3, 20)) is not None


def test_the_end_of_a_snapshot_that_is_said_again_moves_nothing(receiver: PushReceiver) -> None:
    """A further stream of a hybrid in its changes begins with it: they go on where they were, and nobody is told."""
    boundary = pb.ScanResponse(snapshot_end=pb.SnapshotEnd(log_offset=LOG_OFFSET)).SerializeToString()
    receiver.begin_stream(opened(pb.SCAN_SOURCE_HYBRID, filtered=False))
    receiver.receive(started())
    assert receiver.receive(boundary) is not None
    receiver.receive(changes(LOG_OFFSET, LOG_OFFSET + 5))
    receiver.begin_stream(opened(pb.SCAN_SOURCE_HYBRID, filtered=False))
    receiver.receive(started(row_ordinal=5))
    assert receiver.receive(boundary) is None
    arrival = receiver.receive(changes(LOG_OFFSET + 5, LOG_OFFSET + 8, 5))
    assert arrival is not None
    assert arrival.position == LOG_OFFSET + 8


def test_a_stop_in_the_middle_of_a_snapshot_is_no_end(receiver: PushReceiver) -> None:
    """Behind it come the changes: without its end nobody knows that it is complete."""
    receiver.begin_stream(pb.ScanOpen(source=pb.SCAN_SOURCE_HYBRID, stop_offset=LOG_OFFSET))
    receiver.receive(started())
    receiver.receive(rows(0, [1]))
    with pytest.raises(DataCorrupted, match="before the end of its snapshot"):
        receiver.receive(stopped(1, LOG_OFFSET))
    receiver.receive(pb.ScanResponse(snapshot_end=pb.SnapshotEnd(log_offset=LOG_OFFSET)).SerializeToString())
    assert receiver.receive(stopped(1, LOG_OFFSET)) is not None
