"""The demo: a live table, pushed into Spark while a writer changes it, beside the pull way.

Six acts, against one server process: (1) load the flights of 2013; (2) with nobody writing, Spark reads by push and
by session, and both equal the CSV that Spark reads itself; (3) with a writer that never stops, each mode's scan of each
bucket equals the state at the log offset it was given; (4) a consumer stops reading for a while; (5) the writer goes
on, and a snapshot with the changes pushed after it is folded to exactly the table; (6) Spark streams every change that
was made, in micro-batches, into a replica, which ends up equal.
"""

import tempfile
import time
from pathlib import Path

import pyarrow as pa
from rich.console import Console

import scanner.sync
from bench.demo.replica import stream_into_replica
from bench.demo.report import Findings
from bench.demo.spark import read_by_spark
from bench.demo.stall import row_message_bytes, stall
from bench.demo.tail import tail_under_writes
from bench.harness import flights
from bench.harness.bars import failures, write_document
from bench.harness.errors import BenchFailed
from bench.harness.isolation import check_under_writes
from bench.harness.loading import histories, load
from bench.harness.processes import Peer
from bench.harness.server import running_server
from bench.harness.spark import spark_session
from bench.harness.writer import Writer

MODES = ("push", "session")
STALLED_BUCKET = 0


def run(output: Path, console: Console, *, rounds: int, seed: int) -> Findings:
    """Run all six acts, write the JSON and print the table.

    Args:
        output: Where the JSON goes.
        console: Where the table and the progress go.
        rounds: How often each mode scans each bucket under writes, at least 1.
        seed: Chooses what the writer changes.

    Raises:
        BenchFailed: Something is not as it must be. The JSON is written all the same if it was measured.
    """
    text = flights.csv_text()
    rows = flights.read_flights(text)
    with tempfile.TemporaryDirectory(prefix="weir-demo-") as folder:
        csv = Path(folder, "flights.csv")
        csv.write_bytes(text)
        with running_server(Path(folder, "data")) as server:
            console.print(f"weir serves on {server.endpoint}")
            findings = _acts(server, rows, csv, console, rounds=rounds, seed=seed)
    write_document(output, findings.to_dict())
    console.print(findings.render())
    missed = failures(findings.bars())
    if missed:
        raise BenchFailed("; ".join(missed))
    return findings


def _acts(server: Peer, rows: pa.Table, csv: Path, console: Console, *, rounds: int, seed: int) -> Findings:
    with scanner.sync.connect(server.endpoint) as client:
        started = time.monotonic()
        ends = load(client, rows, console)
        load_seconds = time.monotonic() - started
        console.print(f"loaded {rows.num_rows:,} rows in {load_seconds:.1f} s")
        known = histories(client, rows, ends)
        one_row = row_message_bytes(client)
        console.print("Spark reads the table by " + " and by ".join(MODES) + ", and the CSV")
        with spark_session("weir demo") as session:
            spark = read_by_spark(session, server.endpoint, csv, MODES)
        console.print("a writer updates, deletes and re-inserts while every bucket is scanned")
        with Writer(server.endpoint, flights.TABLE, known, seed) as writer:
            scans = check_under_writes(client, writer, known, MODES, rounds)
        console.print("a consumer stops reading for a while")
        stalls = tuple(stall(client, server, known[STALLED_BUCKET], mode, STALLED_BUCKET) for mode in MODES)
        console.print("the writer goes on, and the table is tailed: a snapshot, then every change after it")
        tailed = tail_under_writes(client, server.endpoint, known, seed)
        console.print("Spark streams every change that was made into a replica, micro-batch by micro-batch")
        with spark_session("weir demo") as session:
            streamed = stream_into_replica(session, client, server.endpoint)
        stored = sum(end for _, _, end in client.table(flights.TABLE).offsets())
    return Findings(
        rows=sum(ends.values()),
        load_seconds=load_seconds,
        spark=spark,
        scans=tuple(scans),
        stalls=stalls,
        tailed=tailed,
        streamed=streamed,
        row_message_bytes=one_row,
        changes=stored - sum(ends.values()),
        seed=seed,
    )
