"""A scan by someone who has grpcio, pyarrow and our .proto files, and nothing else of ours.

    python stock_scan_client.py STUBS ENDPOINT TABLE CREDIT BUCKET...

STUBS is a folder of generated stubs. CREDIT is the window in bytes that Demand messages keep open; 0 scans in
window-only mode. Prints a JSON object for each bucket: rows, ends, what was received past the credit, and the ids read.
"""

import importlib
import json
import queue
import sys
from collections.abc import Iterator
from typing import Any


def requests(pb: Any, table: str, bucket: int, limits: "queue.SimpleQueue[int | None]") -> Iterator[Any]:
    """The open, then a Demand for every limit put into the queue, until None."""
    query = pb.ScanQuery(table=table, bucket=bucket)
    yield pb.ScanRequest(open=pb.ScanOpen(source=pb.SCAN_SOURCE_LIVE_KV, query=query))
    while (limit := limits.get()) is not None:
        yield pb.ScanRequest(demand=pb.Demand(bytes_limit=limit))


def main() -> None:
    """Scan one bucket after the other, and report."""
    stubs, endpoint, table, window, *buckets = sys.argv[1:]
    sys.path.insert(0, stubs)
    import grpc

    pb: Any = importlib.import_module("weir.v1.scanner_pb2")
    stub: Any = importlib.import_module("weir.v1.scanner_pb2_grpc").ScannerStub
    with grpc.insecure_channel(endpoint) as channel:
        for bucket in buckets:
            print(json.dumps(scan(stub(channel), pb, table, int(bucket), int(window))))


def scan(stub: Any, pb: Any, table: str, bucket: int, credit: int) -> dict[str, object]:
    """What one bucket has."""
    import pyarrow as pa

    limits: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    limits.put(credit or None)
    limit, received, overrun, end = credit, 0, 0, None
    ids: list[int] = []
    call = stub.Scan(requests(pb, table, bucket, limits))
    schema = None
    for response in call:
        kind = response.WhichOneof("response")
        if kind == "started":
            schema = pa.ipc.read_schema(pa.py_buffer(response.started.arrow_schema))
        elif kind == "batch":
            assert response.batch.row_ordinal == len(ids)
            rows = pa.ipc.read_record_batch(pa.py_buffer(response.batch.arrow_batch), schema)
            ids += rows.column("id").to_pylist()
            received += response.ByteSize()
            if credit:
                overrun = max(overrun, received - limit)
                limit = received + credit
                limits.put(limit)
        elif kind == "end":
            end = {
                "rows": response.end.rows,
                "reason": response.end.reason,
                "digest": response.end.digest,
            }
            limits.put(None)
    return {"ids": ids, "end": end, "overrun": overrun, "status": call.code().name}


if __name__ == "__main__":
    main()
