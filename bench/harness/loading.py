"""Loads the data set through the public client, and keeps what the server acknowledged."""

import pyarrow as pa
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import scanner.sync
from bench.harness import flights
from bench.harness.errors import BenchFailed
from bench.harness.oracle import BucketHistory


def load(client: scanner.sync.Client, rows: pa.Table, console: Console) -> dict[int, int]:
    """Create the table and write every row.

    Returns:
        The end of each bucket's changelog, as acknowledged.

    Raises:
        BenchFailed: The acknowledged ranges of a bucket do not follow each other, or do not add up to the rows.
    """
    table = client.create_table(
        flights.TABLE, rows.schema, primary_key=list(flights.PRIMARY_KEY), buckets=flights.BUCKETS
    )
    ends = dict.fromkeys(range(flights.BUCKETS), 0)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("loading", total=rows.num_rows)
        result = table.write(rows, on_acknowledged=lambda durable: progress.update(task, completed=durable))
    for bucket, start_offset, end_offset in result.ranges:
        if start_offset != ends[bucket]:
            raise BenchFailed(
                f"bucket {bucket}: a write begins at {start_offset}, the log ended at {ends[bucket]}"
            )
        ends[bucket] = end_offset
    if sum(ends.values()) != rows.num_rows:
        raise BenchFailed(f"{rows.num_rows} rows were inserted, the logs hold {sum(ends.values())} changes")
    return ends


def histories(
    client: scanner.sync.Client, loaded: pa.Table, ends: dict[int, int]
) -> dict[int, BucketHistory]:
    """Learn which rows live in which bucket, while nobody writes.

    Taken together the buckets must be exactly what was loaded; so the base of every later check is the data set itself,
    and only the split into buckets is taken from the server.

    Raises:
        BenchFailed: The buckets do not add up to what was loaded.
    """
    table = client.table(flights.TABLE)
    buckets = {bucket: table.new_scan().bucket(bucket).to_arrow() for bucket in ends}
    whole = BucketHistory(loaded, 0, flights.PRIMARY_KEY)
    wrong = whole.violations(0, pa.concat_tables(buckets.values()))
    if wrong:
        raise BenchFailed(
            f"what was loaded is not what is there, {len(wrong)} rows differ; {wrong[0].detail}"
        )
    for bucket, rows in buckets.items():
        if rows.num_rows != ends[bucket]:
            raise BenchFailed(f"bucket {bucket} has {rows.num_rows} rows, its log has {ends[bucket]} inserts")
    return {
        bucket: BucketHistory(rows, ends[bucket], flights.PRIMARY_KEY) for bucket, rows in buckets.items()
    }
