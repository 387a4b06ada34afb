"""A tail by someone who has grpcio and our .proto files, and nothing else of ours.

    python stock_tail_client.py STUBS ENDPOINT TABLE ROWS CREDIT

STUBS is a folder of generated stubs. Reads the changes of bucket 0 from the earliest on, each in a message of its own,
until ROWS have come; half-way it drops its channel, and goes on in another one from its newest token. CREDIT is the
window in bytes; each grant is sent twice, and an old one after it. Prints a line when it has taken half, and another
one at the end: one JSON object with the offset up to which changes came, whether they followed each other, commit by
commit, and what was received past the credit.
"""

import importlib
import json
import queue
import sys
from collections.abc import Iterator
from typing import Any


def requests(pb: Any, scan_open: Any, limits: "queue.SimpleQueue[int | None]") -> Iterator[Any]:
    """The open, then a Demand for every limit put into the queue, until None."""
    yield pb.ScanRequest(open=scan_open)
    while (limit := limits.get()) is not None:
        yield pb.ScanRequest(demand=pb.Demand(bytes_limit=limit))


class Tail:
    """What came, over as many calls as it takes."""

    def __init__(self, table: str, credit: int) -> None:
        self.table = table
        self.credit = credit
        self.rows = self.offset = self.overrun = 0
        self.whole = True
        self.token = b""

    def read(self, pb: Any, stub: Any, rows: int) -> None:
        """Take changes until so many have come in all, in one call."""
        scan_open = pb.ScanOpen(
            source=pb.SCAN_SOURCE_LOG,
            query=pb.ScanQuery(table=self.table),
            batch_rows_max=1,
            resume_token=self.token,
        )
        limits: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        limits.put(self.credit)
        received, limit = 0, self.credit
        call = stub.Scan(requests(pb, scan_open, limits))
        for response in call:
            if response.WhichOneof("response") != "batch":
                continue
            batch = response.batch
            self.whole = self.whole and batch.commit_end and batch.row_ordinal == self.rows
            self.whole = self.whole and batch.start_offset == self.offset
            self.rows += batch.row_count
            self.offset, self.token = batch.end_offset, batch.resume_token
            received += response.ByteSize()
            self.overrun = max(self.overrun, received - limit)
            limit = received + self.credit
            for each in (limit, limit, self.credit):
                limits.put(each)
            if self.rows >= rows:
                break
        limits.put(None)
        call.cancel()


def main() -> None:
    """Tail one bucket and report."""
    stubs, endpoint, table, rows, credit = sys.argv[1:]
    sys.path.insert(0, stubs)
    import grpc

    pb: Any = importlib.import_module("weir.v1.scanner_pb2")
    stub: Any = importlib.import_module("weir.v1.scanner_pb2_grpc").ScannerStub

    tail = Tail(table, int(credit))
    with grpc.insecure_channel(endpoint) as channel:
        tail.read(pb, stub(channel), int(rows) // 2)
    print("half", flush=True)
    with grpc.insecure_channel(endpoint) as channel:
        tail.read(pb, stub(channel), int(rows))
    print(
        json.dumps({"rows": tail.rows, "offset": tail.offset, "whole": tail.whole, "overrun": tail.overrun})
    )


if __name__ == "__main__":
    main()
