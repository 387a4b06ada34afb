"""The bench of TPC-H: what its writer says that the tables hold, they hold; and what it concludes from answers."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.harness.errors import BenchFailed
from bench.questions.tpch import Asked, Plan, judge
from bench.tpch.data import PRIMARY_KEYS, generate, load, parquet_file
from bench.tpch.queries import QUERIES, difference, query_text
from bench.tpch.refresh import CHANGED_TABLES, DELETED, GONE_MAX, Refresh
from scanner.sync import connect
from tests.support.server import running_server

SCALE = 0.001


def by_key(rows: pa.Table, table: str) -> pa.Table:
    """The rows in the order of their keys."""
    return rows.sort_by([(name, "ascending") for name in PRIMARY_KEYS[table]]).combine_chunks()


@pytest.mark.rocks
@pytest.mark.socket
def test_the_writer_knows_what_it_wrote(tmp_path: Path) -> None:
    """Between two steps both tables are what it exports, after updates, deletes and orders that came back."""
    generate(tmp_path, SCALE, CHANGED_TABLES)
    (state := tmp_path / "state").mkdir()
    with running_server(tmp_path / "data") as server, connect(server.endpoint) as client:
        for table in CHANGED_TABLES:
            *_, written = load(client, tmp_path, table, 2)
            assert written == client.table(table).new_scan().to_arrow().num_rows
        with Refresh(server.endpoint, tmp_path, seed=1, pause_s=0) as writer:
            writer.wait_steps(GONE_MAX // DELETED + 2)
            with writer.between_steps:
                writer.export(state)
                found = {table: client.table(table).new_scan().to_arrow() for table in CHANGED_TABLES}
        for table, rows in found.items():
            told, loaded = (pq.read_table(parquet_file(each, table)) for each in (state, tmp_path))
            assert by_key(told, table).equals(by_key(rows, table).cast(told.schema))
            assert told.num_rows < loaded.num_rows


@pytest.mark.rocks
@pytest.mark.socket
def test_a_writer_that_fails_says_so(tmp_path: Path) -> None:
    """Whoever waits for its steps learns why there are none."""
    generate(tmp_path, SCALE, CHANGED_TABLES)
    with (
        running_server(tmp_path / "data") as server,
        pytest.raises(BenchFailed, match="the writer failed: "),
    ):
        with Refresh(server.endpoint, tmp_path, seed=1, pause_s=0) as writer:
            writer.wait_steps(1)


def test_every_query_is_spelled_out() -> None:
    """All 22 are there, and the parameter that depends on the scale is put in."""
    texts = [query_text(query, 0.01) for query in QUERIES]
    assert all("SELECT" in text for text in texts)
    assert "* 0.01\n" in texts[10]
    assert query_text(11, 1) == texts[10].replace("* 0.01\n", "* 0.0001\n")
    assert query_text(11, 1000) == texts[10].replace("* 0.01\n", "* 0.0000001\n")


def test_how_answers_differ() -> None:
    """A row too many, too few, or of another digit is told, and the order of equals is not."""
    one, other = (1, "a"), (2, "b")
    assert difference([one, other], [other, one]) is None
    assert difference([one, one], [one]) == "1 rows of 2 are missing, 0 are not expected; missing (1, 'a')"
    assert difference([one], [other]) == (
        "1 rows of 1 are missing, 1 are not expected; missing (1, 'a'); found (2, 'b')"
    )


def test_a_different_answer_misses_a_bar() -> None:
    """One of them is enough; and with a writer that stood still nothing was shown."""
    good = Asked(query=1, mode="push", rows=4, seconds=1.0, parquet_seconds=1.0, difference=None)
    bad = Asked(query=6, mode="asof", rows=1, seconds=1.0, parquet_seconds=1.0, difference="1 rows of 1 ...")
    plan = Plan(scale=SCALE, buckets=1)
    assert [(bar.value, bar.bar, bar.ok) for bar in judge([good, good, bad], plan, 0)] == [
        (2, "2", True),
        (0, "1", False),
    ]
    writing = judge([good], Plan(scale=SCALE, buckets=1, while_writing=True), 0)
    assert [bar.ok for bar in writing] == [True, False]


def test_what_is_asked_in_which_mode() -> None:
    """All in push, five in every mode; with a writer only in those that read the past; or as it is said."""
    plan = Plan(scale=SCALE, buckets=1)
    assert plan.modes_of(2) == ("push",)
    assert plan.modes_of(6) == ("push", "session", "token", "cursor", "asof")
    assert Plan(scale=SCALE, buckets=1, while_writing=True).modes_of(6) == ("push", "asof")
    assert Plan(scale=SCALE, buckets=1, modes=("token",)).modes_of(2) == ("token",)
