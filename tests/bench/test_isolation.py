"""The demo's checks under writes, against a real server: they pass when it is right and fail when it is not."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from rich.console import Console

import scanner.sync
from bench.demo.stall import row_message_bytes
from bench.demo.tail import CHANGES_MIN, tail_under_writes
from bench.harness import flights
from bench.harness.errors import BenchFailed
from bench.harness.isolation import check_under_writes
from bench.harness.loading import histories, load
from bench.harness.oracle import BucketHistory
from bench.harness.writer import Writer
from tests.support.server import running_server

pytestmark = [pytest.mark.socket, pytest.mark.rocks]

ROWS = 4000


@pytest.fixture(scope="module")
def sample() -> pa.Table:
    return flights.read_flights(flights.csv_text()).slice(0, ROWS)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[scanner.sync.Client]:
    with running_server(tmp_path / "data") as server, scanner.sync.connect(server.endpoint) as client:
        yield client


@pytest.fixture
def known(client: scanner.sync.Client, sample: pa.Table) -> dict[int, BucketHistory]:
    ends = load(client, sample, Console(quiet=True))
    return histories(client, sample, ends)


def test_scans_under_writes_are_the_state_at_their_offset(
    client: scanner.sync.Client, known: dict[int, BucketHistory]
) -> None:
    """Every scan of every bucket in both modes is judged, with commits between its offset and its end."""
    with Writer(client.endpoint, flights.TABLE, known, seed=1) as writer:
        scans = check_under_writes(client, writer, known, ("push", "session"), rounds=2)
    assert len(scans) == 2 * 2 * flights.BUCKETS
    assert [scan for scan in scans if scan.violations] == []
    assert all(scan.commits_meanwhile > 0 for scan in scans)
    ends = {bucket: end for bucket, _, end in client.table(flights.TABLE).offsets()}
    assert {bucket: history.end_offset for bucket, history in known.items()} == ends


def test_a_snapshot_and_its_changes_are_the_table(
    client: scanner.sync.Client, known: dict[int, BucketHistory]
) -> None:
    """Under a writer, bucket by bucket; what the scans before it knew is not touched."""
    found = tail_under_writes(client, client.endpoint, known, seed=2)
    assert found.violations == ()
    assert found.changes >= CHANGES_MIN
    assert found.snapshot_rows + found.changes > ROWS
    assert found.commits_meanwhile > 0
    assert all(history.end_offset == history.base_offset for history in known.values())


def test_a_fold_that_is_not_the_table_is_found(
    client: scanner.sync.Client, known: dict[int, BucketHistory], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that the oracle knows otherwise are named, as far as no change has made them what they must be."""
    monkeypatch.setattr("bench.demo.tail.CHANGES_MIN", 100)
    index = known[1].base.schema.get_field_index("distance")
    field = known[1].base.schema.field(index)
    wrong = pa.array([-1] * known[1].base.num_rows, pa.int64())
    known[1] = replace(known[1], base=known[1].base.set_column(index, field, wrong))
    found = tail_under_writes(client, client.endpoint, known, seed=2)
    assert {each.kind for each in found.violations} == {"stale"}


def test_a_row_that_is_not_as_it_was_is_found(
    client: scanner.sync.Client, known: dict[int, BucketHistory]
) -> None:
    """If one row of a bucket is unlike what the writer knows, each scan of that bucket says so, and no other."""
    changed = known[1].base.slice(0, 1)
    index = changed.schema.get_field_index("distance")
    changed = changed.set_column(index, changed.schema.field(index), pa.array([-1], pa.int64()))
    known[1] = replace(known[1], base=pa.concat_tables([changed, known[1].base.slice(1)]))
    scan = client.table(flights.TABLE).new_scan()
    found = {b: known[b].violations(known[b].base_offset, scan.bucket(b).to_arrow()) for b in known}
    assert {bucket: [each.kind for each in violations] for bucket, violations in found.items()} == {
        0: [],
        1: ["stale"],
        2: [],
        3: [],
    }


def test_a_second_writer_is_noticed(client: scanner.sync.Client, known: dict[int, BucketHistory]) -> None:
    """Offsets that the writer did not make end the bench: nothing could be judged any more."""
    stranger = known[0].base.slice(0, 1)
    client.table(flights.TABLE).write(stranger)
    with (
        pytest.raises(BenchFailed, match=r"the writer failed: a commit begins at log offset"),
        Writer(client.endpoint, flights.TABLE, known, seed=1) as writer,
    ):
        writer.wait_past(0, known[0].base_offset)


def test_rows_that_were_not_loaded_are_noticed(client: scanner.sync.Client, sample: pa.Table) -> None:
    """If the table is not what was loaded, the demo ends before it measures anything."""
    ends = load(client, sample, Console(quiet=True))
    with pytest.raises(BenchFailed, match="what was loaded is not what is there, 1 rows differ"):
        histories(client, sample.slice(1), ends)


@pytest.mark.usefixtures("known")
def test_one_rows_message_is_longer_than_its_payload(client: scanner.sync.Client) -> None:
    """The bound of an overrun is that of a message with one flight in it: some hundred bytes, not a batch."""
    assert 500 < row_message_bytes(client) < 4000
