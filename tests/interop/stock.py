"""Scans of `tests.interop.blobs` by grpcio, in whatever manner a test wants to grant credit."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import pyarrow as pa

from scanner.proto.weir.v1 import scanner_pb2 as pb
from tests.interop.blobs import TABLE

SCAN_PATH = "/weir.v1.Scanner/Scan"
TIMEOUT_S = 100.0

Grants = Callable[[int, int], Iterable[int]]
"""From a batch's number, counted from 1, and the message bytes read, to the limits to demand now, in this order."""


@dataclass(slots=True)
class Found:
    """What a scan has delivered."""

    ids: list[int] = field(default_factory=list)
    read_bytes: int = 0
    batches: int = 0
    overrun_bytes: int = 0
    """The furthest past the highest limit demanded before."""
    end: pb.ScanEnd | None = None


def scan_method(channel: grpc.Channel) -> Any:
    """The method, as generated code has it."""
    return channel.stream_stream(
        SCAN_PATH,
        request_serializer=pb.ScanRequest.SerializeToString,
        response_deserializer=pb.ScanResponse.FromString,
    )


def open_request(batch_bytes_max: int = 0) -> pb.ScanRequest:
    """The first message."""
    query = pb.ScanQuery(table=TABLE)
    source = pb.SCAN_SOURCE_LIVE_KV
    return pb.ScanRequest(open=pb.ScanOpen(source=source, query=query, batch_bytes_max=batch_bytes_max))


def scan(endpoint: str, grants: Grants | None = None, *, batch_bytes_max: int = 0) -> Found:
    """Read the whole table.

    Args:
        endpoint: HOST:PORT.
        grants: None: window-only mode. It is asked for the first limits with batch 0.
        batch_bytes_max: To be asked for.
    """
    found, limit = Found(), 0
    demands: queue.SimpleQueue[int | None] = queue.SimpleQueue()

    def demand() -> int:
        if grants is None:
            return 0
        limits = list(grants(found.batches, found.read_bytes))
        for each in limits:
            demands.put(each)
        return max(limits, default=0)

    def requests() -> Iterator[pb.ScanRequest]:
        yield open_request(batch_bytes_max)
        while grants is not None and (demanded := demands.get()) is not None:
            yield pb.ScanRequest(demand=pb.Demand(bytes_limit=demanded))

    limit = demand()
    with grpc.insecure_channel(endpoint, options=[("grpc.max_receive_message_length", -1)]) as channel:
        schema = None
        for response in scan_method(channel)(requests(), timeout=TIMEOUT_S):
            kind = response.WhichOneof("response")
            if kind == "started":
                schema = pa.ipc.read_schema(pa.py_buffer(response.started.arrow_schema))
            elif kind == "batch":
                assert response.batch.row_ordinal == len(found.ids)
                rows = pa.ipc.read_record_batch(pa.py_buffer(response.batch.arrow_batch), schema)
                found.ids += rows.column("id").to_pylist()
                found.batches += 1
                found.read_bytes += response.ByteSize()
                if grants is not None:
                    found.overrun_bytes = max(found.overrun_bytes, found.read_bytes - limit)
                    limit = max(limit, demand())
            elif kind == "end":
                found.end = response.end
                demands.put(None)
    return found
