"""Do the queries of TPC-H, asked in Spark, have the same answers over weir as over Parquet files?

The eight tables are generated, loaded into a server, and put before Spark twice: as the Parquet files that they were
loaded from, and as tables of weir. Each query is asked of both, one after the other. Its answers have to be equal, row
by row and digit by digit: nothing in them is a floating-point number. Without other wishes all 22 are asked in mode
push, and five of them in every mode.

With a writer that updates, deletes and puts back orders and their items all the time, one lease names a state of all
eight tables, every query reads that state (option `leaseId`), and the Parquet files are of the same moment, as the
writer itself knows it.

What was expected: equality everywhere, and several times Parquet's seconds for queries of large tables. Spark reads
from Parquet the columns that a query uses, and a Python source all of them, through a process of its own.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import scanner.sync
from bench.harness.bars import Bar, some_of, write_json
from bench.harness.server import running_server
from bench.harness.spark import spark_session
from bench.tpch.data import TABLES, generate, load, parquet_file, row_count
from bench.tpch.queries import IN_EVERY_MODE, QUERIES, ask, difference
from bench.tpch.refresh import CHANGED_TABLES, Refresh
from bench.tpch.views import parquet_views, weir_views
from scanner import LeaseState, LeaseTarget
from spark_source.options import AS_OF_MODES, MODES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.console import Console

STEPS_BEFORE: Final = 20
"""Steps of the writer in front of the state that is read, and in every case after it."""
LEASE_S: Final = 600.0
WARM_UP: Final = 6
"""The query that each session is asked first, and that is not measured."""
SEED: Final = 8


@dataclass(frozen=True, slots=True)
class Asked:
    """One query in one mode."""

    query: int
    mode: str
    rows: int
    """Of Parquet's answer."""
    seconds: float
    parquet_seconds: float
    """Of the same query over Parquet, just before."""
    difference: str | None
    """How the answers differ; None: they are equal."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked."""

    scale: float
    """The scale factor, above 0."""
    buckets: int
    """Of each large table, above 0."""
    queries: Sequence[int] = QUERIES
    modes: Sequence[str] = ()
    """Modes in which every query is asked; empty: push, and for `IN_EVERY_MODE` all that can."""
    while_writing: bool = False
    """Whether a writer changes the tables meanwhile. The modes are then of those that read states of the past."""

    def modes_of(self, query: int) -> Sequence[str]:
        """In which modes a query is asked."""
        if self.modes:
            return self.modes
        in_some = AS_OF_MODES if self.while_writing else MODES
        return in_some if query in IN_EVERY_MODE else ("push",)


def run(output: Path | None, console: Console, *, plan: Plan) -> list[Bar]:
    """Ask, write the JSON, and print."""
    with tempfile.TemporaryDirectory(prefix="weir-tpch-") as folder:
        data = Path(folder, "parquet")
        console.print(f"generating TPC-H at scale {plan.scale}")
        generate(data, plan.scale)
        with running_server(Path(folder, "data")) as server:
            load_s = _load(server.endpoint, data, plan.buckets, console)
            with (
                spark_session("weir tpch") as spark,
                _state(server.endpoint, data, Path(folder, "state"), plan) as (parquet, lease_id, writer),
            ):
                asked = list(_ask_all(spark, server.endpoint, parquet, lease_id, plan, console))
                steps = 0 if writer is None else writer.steps - STEPS_BEFORE
        rows = {table: row_count(data, table) for table in TABLES}
    judged = write_json(
        output,
        judge(asked, plan, steps),
        plan={**asdict(plan), "queries": list(plan.queries)},
        rows=rows,
        load_s=load_s,
        writer_steps=steps,
        asked=asked,
    )
    console.print(_table(asked))
    return judged


def _load(endpoint: str, data: Path, buckets: int, console: Console) -> dict[str, float]:
    """Load every table; seconds of each."""
    seconds = {}
    columns = (
        TextColumn("loading {task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with (
        scanner.sync.connect(endpoint) as client,
        Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress,
    ):
        for table in TABLES:
            started = time.perf_counter()
            task = progress.add_task(table, total=row_count(data, table))
            for written in load(client, data, table, buckets):
                progress.update(task, completed=written)
            seconds[table] = round(time.perf_counter() - started, 2)
    console.print(f"loaded in {sum(seconds.values()):.1f} s")
    return seconds


@contextmanager
def _state(
    endpoint: str, data: Path, state: Path, plan: Plan
) -> Iterator[tuple[Path, str | None, Refresh | None]]:
    """Where the Parquet files of the state are that is read, the lease that keeps it, and who writes meanwhile."""
    if not plan.while_writing:
        yield data, None, None
        return
    state.mkdir()
    for table in set(TABLES) - set(CHANGED_TABLES):
        parquet_file(state, table).symlink_to(parquet_file(data, table))
    with Refresh(endpoint, data, SEED) as writer, scanner.sync.connect(endpoint) as client:
        writer.wait_steps(STEPS_BEFORE)
        with writer.between_steps:
            targets = [LeaseTarget(table, state=LeaseState.LOG) for table in TABLES]
            lease = client.acquire_lease(*targets, ttl_s=LEASE_S)
            writer.export(state)
        with lease:
            writer.wait_steps(2 * STEPS_BEFORE)
            yield state, lease.id, writer


def _ask_all(
    spark: SparkSession, endpoint: str, parquet: Path, lease_id: str | None, plan: Plan, console: Console
) -> Iterator[Asked]:
    modes = dict.fromkeys(mode for query in plan.queries for mode in plan.modes_of(query))
    expected = parquet_views(spark, parquet, TABLES)
    state = {} if lease_id is None else {"leaseId": lease_id}
    sessions = {mode: weir_views(spark, endpoint, TABLES, {"mode": mode} | state) for mode in modes}
    for session in (expected, *sessions.values()):
        ask(session, WARM_UP, plan.scale)
    for query in plan.queries:
        for mode in plan.modes_of(query):
            started = time.perf_counter()
            answer = ask(expected, query, plan.scale)
            between = time.perf_counter()
            found = ask(sessions[mode], query, plan.scale)
            ended = time.perf_counter()
            asked = Asked(
                query=query,
                mode=mode,
                rows=len(answer),
                seconds=round(ended - between, 3),
                parquet_seconds=round(between - started, 3),
                difference=difference(answer, found),
            )
            console.print(
                f"query {query:2} {mode:7} {asked.seconds:6.2f} s, Parquet {asked.parquet_seconds:6.2f} s,"
                f" {asked.difference or 'equal'}"
            )
            yield asked


def judge(asked: Sequence[Asked], plan: Plan, steps: int) -> list[Bar]:
    """Whether all answers are equal, and the tables changed meanwhile if they were to.

    Args:
        asked: What was asked.
        plan: What was to be.
        steps: Of the writer since the state that was read.
    """
    bars = []
    for mode in dict.fromkeys(each.mode for each in asked):
        answers = [each for each in asked if each.mode == mode]
        equal = sum(each.difference is None for each in answers)
        bars.append(
            Bar(f"answers equal to Parquet's, {mode}", equal, f"{len(answers)}", equal == len(answers))
        )
    if plan.while_writing:
        bars.append(some_of("steps of the writer since the state that was read", steps))
    return bars


def _table(asked: Sequence[Asked]) -> Table:
    table = Table(title="seconds per query", padding=0)
    for heading in ("query", "mode", "rows", "weir", "Parquet", "answer"):
        table.add_column(heading, justify="left" if heading in ("mode", "answer") else "right")
    for each in asked:
        table.add_row(
            str(each.query),
            each.mode,
            str(each.rows),
            f"{each.seconds:.2f}",
            f"{each.parquet_seconds:.2f}",
            "equal" if each.difference is None else "different",
        )
    return table
