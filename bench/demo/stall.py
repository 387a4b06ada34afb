"""What happens to a consumer that stops reading, and to the server meanwhile?

Expected: the server goes on until the credit is used up, then waits, holding nothing for the scan but its position;
past the credit it has sent at most one row's message, since it sizes a batch to the credit that is left and sends at
least a row. When the consumer reads on, the scan ends as if nothing had been.
"""

import time
from dataclasses import dataclass

import pyarrow as pa

import scanner.sync
from bench.harness import flights
from bench.harness.errors import BenchFailed
from bench.harness.isolation import small_scan
from bench.harness.oracle import BucketHistory
from bench.harness.processes import Peer

STALL_S = 3.0
SAMPLE_S = 0.1
SAMPLED_ROWS = 2000
ORDINAL_BYTES = 4
"""A row's ordinal takes up to this many bytes more at the end of a bucket than at its beginning (protobuf varint)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stall:
    """A scan that was left alone for a while after its first batch."""

    mode: str
    seconds: float
    """How long nothing was read."""
    sent_bytes: int
    """Message bytes of batches that came, from the open to the end of the stall."""
    overrun_bytes: int
    """The furthest past the credit, over the whole scan."""
    server_growth_bytes: int
    """Resident memory of the server: the most during the stall, less that before the scan."""
    rows: int
    """Rows of the whole scan."""


def stall(client: scanner.sync.Client, server: Peer, history: BucketHistory, mode: str, bucket: int) -> Stall:
    """Read one batch, nothing for `STALL_S` seconds, then the rest. Nobody writes meanwhile.

    Raises:
        BenchFailed: The scan did not survive the stall whole.
    """
    before = server.resident_bytes()
    with small_scan(client, mode, bucket).execute() as batches:
        unread = iter(batches)
        received = [next(unread)]
        peak = before
        started = time.monotonic()
        while (elapsed := time.monotonic() - started) < STALL_S:
            time.sleep(SAMPLE_S)
            peak = max(peak, server.resident_bytes())
        sent_bytes = batches.statistics().bytes_received
        received.extend(unread)
        statistics = batches.statistics()
    wrong = history.violations(history.end_offset, pa.Table.from_batches(received))
    if wrong:
        raise BenchFailed(f"{mode}: after a stall {len(wrong)} rows are wrong; {wrong[0].detail}")
    return Stall(
        mode=mode,
        seconds=elapsed,
        sent_bytes=sent_bytes,
        overrun_bytes=statistics.overrun_bytes,
        server_growth_bytes=peak - before,
        rows=statistics.rows,
    )


def row_message_bytes(client: scanner.sync.Client) -> int:
    """The length of the longest message that carries one row: what an overrun may be.

    Measured with a credit that lets one row through at a time. An Arrow message grows with its null cells, since a
    column without any leaves its bitmap out; so enough rows are looked at to have flights that never departed.

    Raises:
        BenchFailed: A message had more than one row.
    """
    scan = client.table(flights.TABLE).new_scan().bucket(0).limit(SAMPLED_ROWS).with_credit(1)
    longest = before = 0
    with scan.execute() as batches:
        for batch in batches:
            if batch.num_rows != 1:
                raise BenchFailed(f"with a credit of 1 byte a message carried {batch.num_rows} rows")
            bytes_received = batches.statistics().bytes_received
            longest, before = max(longest, bytes_received - before), bytes_received
    return longest + ORDINAL_BYTES
