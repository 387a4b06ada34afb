"""The validators, each against a scan that is right and against one that it must object to, without any server."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from bench.simulation.history import BucketRecord, History, ScanRecord, WriteRecord
from bench.simulation.model import Model
from bench.simulation.storage import RecordingStore
from bench.simulation.tables import TABLE, Comparison, Key, Row
from bench.simulation.validators import judge
from bench.simulation.workload import Workload
from scanner import ScanMode, SnapshotLost
from scanner.data.digest import checksum
from scanner.data.keys import KeyRange
from scanner.storage.interface import Mutation
from scanner.storage.memory.store import MemoryDisk

if TYPE_CHECKING:
    from scanner.storage.records import Entry

KEYS = 12


class Case:
    """A table of one bucket with three commits, and scans of it that are made up."""

    def __init__(self) -> None:
        workload = next(each for each in map(Workload, range(1_000)) if _fits(each))
        self.rows = workload.rows
        self.store = RecordingStore(self._committed, lambda: 0, MemoryDisk())
        self.store.create_table(self.rows.description)
        self.model = Model(self.rows, self.store.row_codec(TABLE).decode)
        self.at_s = 0.0
        self.keys = self.rows.keys[:KEYS]
        self.first = self.write(self.keys[:8])
        self.middle = self.write(self.keys[4:])
        self.end = self.write(self.keys[:4])
        task = workload.scanners[0].scans[0]
        self.task = dataclasses.replace(
            task, mode=ScanMode.PUSH, bucket=0, columns=(), filter=(), start=None, end=None, row_limit=None
        )

    def _committed(
        self, bucket: int, start: int, end: int, mutations: Sequence[Mutation], entry: Entry | None
    ) -> None:
        self.model.commit(bucket, start, end, mutations, entry, self.at_s)

    def write(self, keys: Sequence[Key]) -> int:
        """Write keys anew, one second later; returns the log's end."""
        self.at_s += 1
        batch = self.rows.to_arrow(list(self.rows.make(keys).values()))
        encoded = (
            self.store.key_codec(TABLE).encode_batch(batch),
            self.store.row_codec(TABLE).encode_batch(batch),
        )
        bucket = self.store.bucket(TABLE, 0)
        bucket.commit([[Mutation(key, row) for key, row in zip(*encoded, strict=True)]])
        return bucket.log_end

    def scan(self, offset: int, **task: Any) -> ScanRecord:
        """A complete scan as of an offset, and right."""
        state = self.model.state(0, offset)
        record = ScanRecord("somebody", dataclasses.replace(self.task, **task))
        record.rows = [row.cells for row in state]
        record.buckets[0] = BucketRecord(offset, checksum(b"".join(row.stored for row in state)), "EXHAUSTED")
        record.ended = True
        return record

    def found(self, *scans: ScanRecord) -> set[str]:
        """Names of the validators that object."""
        history = History()
        history.scans = list(scans)
        return {violation.validator for violation in judge(history, self.model)}


def _fits(workload: Workload) -> bool:
    description = workload.rows.description
    return description.buckets == 1 and len(workload.rows.keys) > KEYS


@pytest.fixture
def case() -> Case:
    return Case()


def test_right_scans_are_right(case: Case) -> None:
    """Complete scans as of every state, and the beginning of one that was left, are not objected to."""
    left = case.scan(case.end)
    left.rows, left.ended, left.left = left.rows[:3], False, True
    assert case.found(case.scan(case.first), case.scan(case.middle), case.scan(case.end), left) == set()


def lose_row(record: ScanRecord, _case: Case) -> None:
    del record.rows[2]


def lose_end(record: ScanRecord, _case: Case) -> None:
    del record.rows[-1]


def repeat_row(record: ScanRecord, _case: Case) -> None:
    record.rows.insert(3, record.rows[2])


def swap_rows(record: ScanRecord, _case: Case) -> None:
    record.rows[1], record.rows[2] = record.rows[2], record.rows[1]


def show_later_row(record: ScanRecord, case: Case) -> None:
    record.rows[0] = case.model.state(0, case.end)[0].cells


def show_torn_state(record: ScanRecord, case: Case) -> None:
    record.buckets[0].log_offset = case.first - 1


def break_promise(record: ScanRecord, case: Case) -> None:
    record.promised = {0: case.end}


def change_digest(record: ScanRecord, _case: Case) -> None:
    record.buckets[0].digest = 1


def skip_bucket(record: ScanRecord, _case: Case) -> None:
    record.rows, record.buckets, record.skipped = [], {}, (0,)


def digest_a_part(record: ScanRecord, case: Case) -> None:
    keys = case.store.key_codec(TABLE)
    record.buckets[0].key_range = KeyRange(keys.encode(case.model.state(0, case.end)[1].key))


def overrun(record: ScanRecord, _case: Case) -> None:
    record.overrun_bytes = 10_000_000


def fail(record: ScanRecord, _case: Case) -> None:
    record.error = SnapshotLost("for no reason")


@pytest.mark.parametrize(
    ("harm", "validators"),
    [
        (lose_row, {"complete"}),
        (lose_end, {"complete"}),
        (repeat_row, {"unique"}),
        (swap_rows, {"ordered"}),
        (show_later_row, {"isolated", "complete"}),
        (show_torn_state, {"isolated"}),
        (break_promise, {"isolated"}),
        (change_digest, {"resumable"}),
        (skip_bucket, {"complete"}),
        (digest_a_part, {"resumable"}),
        (overrun, {"bounded"}),
        (fail, {"justified"}),
    ],
    ids=lambda it: getattr(it, "__name__", ""),
)
def test_harm_has_a_name(case: Case, harm: Callable[[ScanRecord, Case], None], validators: set[str]) -> None:
    """A scan that was harmed is objected to by the validator of that harm, and by no other."""
    record = case.scan(case.first)
    harm(record, case)
    assert case.found(record) == validators


def test_harm_after_a_resume_is_the_resume_s(case: Case) -> None:
    """A scan that went on after a cut and is not right is also not resumable."""
    record = case.scan(case.first)
    record.resumes = 1
    del record.rows[3]
    assert case.found(record) == {"complete", "resumable"}


def test_limit_counts(case: Case) -> None:
    """A scan with a limit has exactly that many rows, the first ones, and its digest ends with them."""
    state = case.model.state(0, case.end)
    record = case.scan(case.end, row_limit=5)
    record.rows = record.rows[:5]
    record.buckets[0].reason = "LIMIT"
    record.buckets[0].digest = checksum(b"".join(row.stored for row in state[:5]))
    assert case.found(record) == set()
    record.rows.pop()
    assert case.found(record) == {"complete"}


def test_filter_is_the_model_s_own(case: Case) -> None:
    """With a filter, the rows that fulfil it are expected, and no others; the digest covers all."""
    tag = case.rows.schema.get_field_index("tag")
    record = case.scan(case.end, filter=(Comparison("tag", ">=", 10),))
    kept: list[Row] = [row for row in record.rows if row[tag] >= 10]
    assert case.found(record) == {"isolated"}
    record.rows = kept
    assert case.found(record) == set()


def test_cursor_may_be_torn_but_not_wrong(case: Case) -> None:
    """A cursor scan may mix states of its own time; rows from before it are objected to."""
    first, end = (case.model.state(0, offset) for offset in (case.first, case.end))
    record = case.scan(case.end, mode=ScanMode.CURSOR)
    record.opened_at_s, record.closed_at_s = 1.5, 3.5
    record.rows = [row.cells for row in (*first[:2], *end[2:])]
    assert case.found(record) == set()
    record.opened_at_s = 3.5
    assert case.found(record) == {"isolated", "complete"}


def test_acknowledged_writes_are_in_the_log(case: Case) -> None:
    """What was acknowledged must be what the log has at the offsets that were told."""
    history = History()
    state = {row.key: row.cells for row in case.model.state(0, case.end)}
    rows: dict[Key, Row | None] = {key: state[key] for key in case.keys[:4]}
    history.writes.append(WriteRecord("writer", rows, ((0, case.middle, case.end),), 2.5, 3.5))
    assert judge(history, case.model) == []
    history.writes.append(
        WriteRecord("writer", {case.keys[0]: None}, ((0, case.middle, case.end),), 2.5, 3.5)
    )
    assert {violation.validator for violation in judge(history, case.model)} == {"durable"}


def test_a_row_that_is_written_twice_is_objected_to(case: Case) -> None:
    """Whatever was written between."""
    changed = case.model.commits(0)[0]
    bucket = case.store.bucket(TABLE, 0)
    bucket.commit([changed.mutations[:1]])
    assert {violation.validator for violation in judge(History(), case.model)} == {"once"}


def test_what_is_left_stuck_or_logged(case: Case) -> None:
    """Things left open, somebody who did not come to an end, and an error in the log are objected to by name."""
    history = History()
    history.left = {"iterators": 1, "streams": 0}
    history.stuck = ["scanner 1"]
    history.logged = ["it failed"]
    assert [violation.validator for violation in judge(history, case.model)] == [
        "released",
        "foreseen",
        "live",
    ]
