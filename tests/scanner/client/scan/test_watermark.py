"""The watermark: below it everything was handed out, whatever comes when; and clients that say it too early."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
import trio
from hypothesis import example, given
from hypothesis import strategies as st

from scanner.client.scan import push_receiver
from scanner.client.scan.plan import ScanPlan, ScanSource
from scanner.client.scan.push_receiver import Arrival, PushReceiver
from scanner.client.scan.statistics import BucketProgress
from scanner.client.scan.table_scan import Batches
from scanner.client.scan.turns import Delivery
from scanner.data.changes import COMMIT_TIMESTAMP, INSERT, ChangeRange
from scanner.data.digest import checksum
from scanner.data.table import TableDescription
from scanner.errors import DataCorrupted
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.wire.arrow_ipc import encode_batch
from scanner.wire.batches import encode_row_batch
from tests.support.push_messages import started
from transport import CreditPool, ReceiveCredit

BUCKETS = 2
TABLE = TableDescription("items", pa.schema([pa.field("k", pa.int64(), nullable=False)]), ("k",), BUCKETS)
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@dataclass
class Log:
    """A bucket's changes as a server sends them. A change passes the filter if its key is even."""

    receiver: PushReceiver
    schema: pa.Schema
    times: list[int] = field(default_factory=list)
    """Commit time of each change, in microseconds."""
    floor_us: int = 0
    """Later commits are later than this."""
    sent: int = 0
    rows_sent: int = 0

    def commit(self, changes: int, later_us: int) -> None:
        """Commit some changes."""
        self.floor_us += later_us
        self.times += [self.floor_us] * changes

    def send(self, changes: int) -> Arrival | None:
        """Send so many, perhaps only a part of a commit, perhaps of several."""
        start, end = self.sent, min(self.sent + changes, len(self.times))
        if start == end:
            return None
        passing = [offset for offset in range(start, end) if offset % 2 == 0]
        columns = {
            "k": passing,
            "_change_type": [INSERT] * len(passing),
            "_log_offset": passing,
            COMMIT_TIMESTAMP: [self.times[offset] for offset in passing],
        }
        arrays = [pa.array(columns[each.name], each.type) for each in self.schema]
        payload = encode_batch(pa.RecordBatch.from_arrays(arrays, schema=self.schema))
        commit_end = end == len(self.times) or self.times[end] != self.times[end - 1]
        ordinal, self.sent = self.rows_sent, end
        self.rows_sent += len(passing)
        message = encode_row_batch(
            ordinal,
            len(passing),
            checksum(payload),
            payload,
            b"%d" % end,
            ChangeRange(start, end, commit_end),
        )
        return self.receiver.receive(b"".join(message))

    def beat(self) -> Arrival | None:
        """A heartbeat: at the last commit's end; its floor is that of the next commit."""
        position = self.sent
        while 0 < position < len(self.times) and self.times[position] == self.times[position - 1]:
            position -= 1
        floor_us = self.floor_us if position == len(self.times) else self.times[position] - 1
        beat = pb.Heartbeat(position=position, rows=self.rows_sent, commit_time_floor_us=floor_us)
        return self.receiver.receive(pb.ScanResponse(heartbeat=beat).SerializeToString())


Step = tuple[str, int, int, int]
"""What happens, in which bucket, with which two numbers."""
steps = st.lists(
    st.tuples(
        st.sampled_from(["commit", "send", "send", "beat", "take"]),
        st.integers(0, BUCKETS - 1),
        st.integers(1, 4),
        st.integers(1, 5),
    ),
    max_size=60,
)


def opened(plan: ScanPlan) -> Iterator[Log]:
    """The logs of all buckets, empty."""
    scan_open = pb.ScanOpen(source=pb.SCAN_SOURCE_LOG)
    scan_open.query.filter.add()
    for bucket in plan.buckets:
        receiver = PushReceiver(
            f"bucket {bucket}", plan.schema, ReceiveCredit(1 << 20), BucketProgress(bucket=bucket)
        )
        receiver.begin_stream(scan_open)
        receiver.receive(started(plan.schema, log_offset=0))
        yield Log(receiver, plan.schema)


async def run(script: list[Step], columns: tuple[str, ...] = (), *, whole_commits: bool = False) -> Batches:
    """Let it happen; raise if the watermark says what is not so."""
    plan = ScanPlan(table=TABLE, source=ScanSource.LOG, columns=columns, whole_commits=whole_commits)
    batches, logs = Batches(plan, CreditPool(0)), list(opened(plan))
    taken: list[set[int]] = [set() for _ in logs]
    newest = EPOCH - datetime.timedelta.resolution

    def check() -> None:
        nonlocal newest
        watermark = batches.watermark()
        if watermark is None:
            assert newest < EPOCH, "it has gone back"
            return
        assert watermark >= newest, "it has gone back"
        newest = watermark
        for log, offsets in zip(logs, taken, strict=True):
            for offset, time_us in enumerate(log.times):
                if offset % 2 == 0 and EPOCH + datetime.timedelta(microseconds=time_us) <= watermark:
                    assert offset in offsets, f"change {offset} of {watermark} was not handed out"

    def take() -> bool:
        try:
            batch = batches.next_nowait()
        except (trio.WouldBlock, StopAsyncIteration):
            return False
        assert batches.bucket is not None
        taken[batches.bucket].update(batch.column(0).to_pylist())
        return True

    for kind, bucket, first, second in script:
        log = logs[bucket]
        if kind == "commit":
            log.commit(first, second)
        elif kind == "take":
            take()
        elif (arrival := log.send(first) if kind == "send" else log.beat()) is not None:
            batches._hand_off.put(
                Delivery(
                    bucket,
                    arrival.batch,
                    arrival.size,
                    lambda: None,
                    arrival.position,
                    arrival.snapshot_end,
                    arrival.commit_time_floor_us,
                )
            )
        check()
    for _ in logs:
        batches._hand_off.finish()
    while take():
        check()
    check()
    return batches


BEATS_IN_A_COMMIT: list[Step] = [
    ("commit", 0, 1, 2),
    ("commit", 0, 4, 3),
    ("commit", 1, 1, 9),
    ("send", 1, 1, 0),
    ("send", 0, 3, 0),
    *[("beat", 0, 0, 0), ("take", 0, 0, 0), ("take", 0, 0, 0), ("take", 0, 0, 0)],
    *[("send", 0, 1, 0), ("beat", 0, 0, 0), ("take", 0, 0, 0), ("take", 0, 0, 0)],
]
"""Between two pieces of a commit, of which more is to come."""


@example(BEATS_IN_A_COMMIT, (), False)
@example(BEATS_IN_A_COMMIT, ("k",), False)
@example(BEATS_IN_A_COMMIT, (), True)
@given(steps, st.sampled_from([(), ("k",)]), st.booleans())
def test_below_the_watermark_everything_was_handed_out(
    script: list[Step], columns: tuple[str, ...], whole_commits: bool
) -> None:
    """Commits in parts and several at once, a filter, heartbeats at any moment, a consumer at its own pace."""
    trio.run(functools.partial(run, script, columns, whole_commits=whole_commits))


def whole_commits_only(
    times: push_receiver._CommitTimes, rows: pa.RecordBatch, commit_end: bool
) -> int | None:
    """As if each batch ended a commit."""
    return take_times(times, rows, True)


def what_arrived(batches: Batches, put: Callable[[Delivery], None], delivery: Delivery) -> None:
    """As if what arrived had been handed out."""
    batches._note_changes(delivery)
    put(delivery)


take_times = push_receiver._CommitTimes.take
IN_PARTS: list[Step] = [
    ("commit", 0, 3, 1),
    ("send", 0, 1, 0),
    ("send", 0, 2, 0),
    ("commit", 1, 1, 1),
    ("send", 1, 1, 0),
    ("take", 0, 0, 0),
    ("take", 0, 0, 0),
]


async def test_a_commit_that_is_not_whole_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that takes a part for the commit is found."""
    await run(IN_PARTS)
    monkeypatch.setattr(push_receiver._CommitTimes, "take", whole_commits_only)
    with pytest.raises(AssertionError, match="was not handed out"):
        await run(IN_PARTS)


async def test_what_is_kept_until_its_commit_is_whole_does_not_count() -> None:
    """A batch may have the end of one commit and the beginning of another: both go out with the end of the latter."""
    script = [
        ("commit", 0, 1, 1),
        ("commit", 0, 4, 5),
        ("send", 0, 3, 0),
        ("commit", 1, 1, 9),
        ("send", 1, 1, 0),
    ]
    script += [("take", 0, 0, 0), ("send", 0, 2, 0), ("take", 0, 0, 0)]
    batches = await run(script, whole_commits=True)
    assert batches.watermark() == EPOCH + datetime.timedelta(microseconds=6)


async def test_what_waits_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that counts what has only arrived is found."""
    script = [("commit", 0, 1, 1), ("send", 0, 1, 0), ("commit", 1, 1, 1), ("send", 1, 1, 0)]
    await run(script)
    begin = Batches.__init__

    def counting_early(batches: Batches, plan: ScanPlan, growth: CreditPool) -> None:
        begin(batches, plan, growth)
        put = batches._hand_off.put
        monkeypatch.setattr(batches._hand_off, "put", lambda delivery: what_arrived(batches, put, delivery))

    monkeypatch.setattr(Batches, "__init__", counting_early)
    with pytest.raises(AssertionError, match="was not handed out"):
        await run(script)


async def test_commits_alone_move_it(autojump_clock: trio.testing.MockClock) -> None:
    """To the time of the last one of the bucket that is furthest behind; None while one has said nothing."""
    script = [("commit", 0, 1, 5), ("send", 0, 1, 0), ("take", 0, 0, 0)]
    assert (await run(script)).watermark() is None
    script += [("commit", 1, 1, 3), ("send", 1, 1, 0)]
    assert (await run(script)).watermark() == EPOCH + datetime.timedelta(microseconds=3)
    assert (await run(script, ("k",))).watermark() is None
    script += [("beat", 0, 0, 0), ("beat", 1, 0, 0)]
    assert (await run(script, ("k",))).watermark() == EPOCH + datetime.timedelta(microseconds=3)


def test_a_time_that_is_none_is_refused() -> None:
    """A server that says one is not believed."""
    (log, _) = opened(ScanPlan(table=TABLE, source=ScanSource.LOG))
    log.floor_us = 2**63 - 1
    with pytest.raises(DataCorrupted, match="no time of a commit"):
        log.beat()
