"""What the planner of a stream asks of changelogs, while retention cuts them: it fails by name or goes on, and ends."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest

from scanner import MeasuredLog
from scanner.errors import OffsetOutOfRange, SnapshotLost
from spark_source.errors import SourceDataLossError, SourceError
from spark_source.stream import logs as logs_module
from spark_source.stream.logs import Behind, TableLogs
from spark_source.stream.offsets import Position
from spark_source.stream.options import EARLIEST, AtOffsets, AtTime, Full, Limits
from tests.spark_source.frames import table_name

if TYPE_CHECKING:
    from scanner import OffsetRange
    from scanner.sync import Client, Table

pytestmark = [pytest.mark.rocks, pytest.mark.socket]

BUCKETS = 2
FEW = 2
MANY = 20


class Asked:
    """A table whose changelogs change between two questions.

    Args:
        table: The table.
        between: By the number of a question, what happens before it is asked; 0 is the first.
    """

    def __init__(self, table: Table, between: dict[int, Callable[[], None]] | None = None) -> None:
        self._table = table
        self._between = between or {}
        self.asked = 0
        self.name = table.name

    def measure_log(self, positions: dict[int, int], **options: Any) -> list[MeasuredLog]:
        """Ask, after what happens before."""
        assert self.asked < 20, "the planner asks for ever"
        between = self._between.get(self.asked)
        self.asked += 1
        if between is not None:
            between()
        return self._table.measure_log(positions, **options)

    def offsets(self) -> list[OffsetRange]:
        """Likewise, and not counted."""
        return self._table.offsets()


def logs_of(table: Asked | Table, *, strict: bool = True) -> TableLogs:
    """As the planner makes them."""
    return TableLogs(table, fail_on_data_loss=strict)  # type: ignore[arg-type]


@pytest.fixture
def table(request: pytest.FixtureRequest, client: Client) -> Table:
    """A table of its own for each test; commits of one row, few in one bucket and many in the other."""
    schema = pa.schema([("k", pa.int64())])
    table = client.create_table(table_name(request), schema, primary_key=["k"], buckets=BUCKETS)
    left = {0: MANY, 1: FEW}
    for key in range(1000):
        (bucket,) = table.new_scan().where(f"k = {key}").reads
        if left[bucket]:
            left[bucket] -= 1
            write(table, key)
        if not any(left.values()):
            break
    return table


def write(table: Table, key: int) -> None:
    """A commit of a row."""
    table.write(pa.table({"k": pa.array([key], pa.int64())}))


def cut(client: Client, table: Table, bucket: int, before: int) -> None:
    """Take a bucket's changes before an offset away."""
    client.compact_log(table.name, before=before, bucket=bucket)


LIMITS = Limits(rows_max=16)
"""Of which the busy bucket gets more than the half that is measured of it first."""


def test_changes_go_while_they_are_measured(client: Client, table: Table) -> None:
    """Where measuring is to go on retention has passed: the planner fails and says which changes it wants."""
    asked = Asked(table, {2: lambda: cut(client, table, 0, 18)})
    logs = logs_of(asked)
    behind = logs.behind(logs_of(table).place("startingOffsets", AtOffsets(EARLIEST)))
    with pytest.raises(
        SourceDataLossError, match=f"table {table.name}, bucket 0: the changes from offset 0 on"
    ):
        logs.admit(behind, None, LIMITS)


def test_changes_go_while_they_are_measured_and_may(
    client: Client, table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    """With `failOnDataLoss=false` it begins anew at the oldest changes that are kept, and says what it leaves out."""
    asked = Asked(table, {2: lambda: cut(client, table, 0, 18)})
    logs = logs_of(asked, strict=False)
    behind = logs.behind(logs_of(table).place("startingOffsets", AtOffsets(EARLIEST)))
    with caplog.at_level(logging.WARNING, "weir.spark"):
        ends = logs.admit(behind, None, LIMITS)
    assert {bucket: position.offset for bucket, position in ends.items()} == {0: MANY, 1: FEW}
    assert "bucket 0: the changes [0, 18) are not kept any more and are skipped" in caplog.text


def test_changes_go_while_the_server_measures(client: Client, table: Table) -> None:
    """The same where the server finds out in the middle of an answer, and refuses it."""

    def refuse() -> None:
        cut(client, table, 0, 18)
        raise OffsetOutOfRange("the changelog begins at 18", oldest_offset=18)

    start = logs_of(table).place("startingOffsets", AtOffsets(EARLIEST))
    logs = logs_of(Asked(table, {2: refuse}), strict=False)
    assert logs.admit(logs.behind(start), None, LIMITS)[0].offset == MANY
    with pytest.raises(SourceDataLossError, match="bucket 0: the changes from offset 0 on"):
        logs_of(table).behind(start)


def test_a_limit_that_is_never_reached(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often is measured for it, the server is asked for a number that it knows."""
    monkeypatch.setattr(logs_module, "_COMMITS_PER_CALL", 2)
    logs = logs_of(Asked(table))
    behind = logs.behind(logs_of(table).place("startingOffsets", AtOffsets(EARLIEST)))
    ends = logs.admit(behind, None, Limits(rows_max=2**62, bytes_max=2**62))
    assert {bucket: position.offset for bucket, position in ends.items()} == {0: MANY, 1: FEW}


def test_a_server_that_measures_nothing(table: Table) -> None:
    """It says that there are changes, and measures no commit of them: that is an error, not a loop."""

    class Measured(Asked):
        def measure_log(self, positions: dict[int, int], **options: Any) -> list[MeasuredLog]:
            return super().measure_log(positions, **options | {"commits_max": 0})

    logs = logs_of(Measured(table))
    behind = logs.behind(logs_of(table).place("startingOffsets", AtOffsets(EARLIEST)))
    with pytest.raises(SourceError, match="bucket 0: the server measures no commit at offset 0"):
        logs.admit(behind, None, LIMITS)


@pytest.mark.parametrize("limits", [Limits(), LIMITS])
def test_a_changelog_that_ends_before_the_end_of_the_run(table: Table, limits: Limits) -> None:
    """An end that is noted is not given for one that the server has: it has lost what was in between."""
    logs = logs_of(Asked(table))
    behind = logs.behind(logs.place("startingOffsets", AtOffsets(EARLIEST)))
    with pytest.raises(
        SnapshotLost, match=f"bucket 1: the changelog ends at offset {FEW}, and it ended at 3"
    ):
        logs.admit(behind, {0: MANY, 1: 3}, limits)


def test_a_time_before_the_changelog_begins(
    client: Client, table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    """What was committed since is gone: a stream of it fails, or says so; an end there ends at nothing."""
    place = AtTime(datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC))
    assert logs_of(table).start(place)[0].offset == 0
    cut(client, table, 0, 10)
    with pytest.raises(SourceDataLossError, match=r"bucket 0: the changes since 2020-01-01T.* at 10;"):
        logs_of(table).start(place)
    assert logs_of(table).place("endingOffsets", place)[0].offset == 10
    with caplog.at_level(logging.WARNING, "weir.spark"):
        assert logs_of(table, strict=False).start(place)[0].offset == 10
    assert "the changes since 2020-01-01T00:00:00+00:00, if there were any before offset 10" in caplog.text


def test_a_time_behind_the_last_commit(client: Client, table: Table) -> None:
    """A bucket that was idle since, and whose changelog is empty by now, has lost nothing."""
    (log,) = table.measure_log({1: 0}, commits_max=FEW)
    last = datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(
        microseconds=log.commit_timestamps_us[-1]
    )
    cut(client, table, 1, FEW)
    assert {bucket: each.offset for bucket, each in logs_of(table).ends().items()} == {0: MANY, 1: FEW}
    behind = AtTime(last + datetime.timedelta(microseconds=1))
    assert logs_of(table).start(behind)[1].offset == FEW
    with pytest.raises(SourceDataLossError, match="bucket 1"):
        logs_of(table).start(AtTime(last))


def test_the_end_is_asked_for_once(table: Table) -> None:
    """Where the changelogs end is in the answer to one question."""
    asked = Asked(table)
    assert logs_of(asked).place("startingOffsets", Full()) == logs_of(table).ends()
    assert asked.asked == 1


def test_a_batch_never_ends_before_it_begins() -> None:
    """Retention may have passed what the query is to stop at; what is not read on keeps the history that it had."""
    log = MeasuredLog(
        bucket=0,
        start_offset=7,
        end_offset=12,
        commit_ends=(),
        commit_bytes=(),
        commit_timestamps_us=(),
        history_starts=(0, 4),
        histories=(b"first", b"second"),
    )
    kept = Position(7, b"of a lost log")
    behind = Behind({0: kept}, {0: log})
    logs = logs_of(cast("Any", SimpleNamespace(name="t")), strict=False)
    assert logs.admit(behind, {0: 9}, Limits()) == {0: Position(9, b"second")}
    for until in 5, 7:
        for limits in Limits(), Limits(rows_max=100):
            assert logs.admit(behind, {0: until}, limits) == {0: kept}
