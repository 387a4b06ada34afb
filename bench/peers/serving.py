"""Arrow Flight and grpcio as servers of the same rows, in a process of their own.

Each serves a bucket from RocksDB, by the iteration and the decoding that weir uses, and from batches that are in its
memory. Neither isolates, resumes or checks anything. With certificates both serve through TLS alone.
"""

from __future__ import annotations

import functools
import json
from concurrent import futures
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import grpc
import pyarrow as pa
from pyarrow import flight

from scanner.storage.rocksdb.store import RocksStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

    from bench.harness.certificates import Certificates

Origin = Literal["storage", "memory", "generator"]
"""`generator`: from memory, and Python hands over each batch, as in a server that has something to decide."""
SERVICE: Final = "bench.Rows"
_ROWS_MAX: Final = 1 << 20
_FIRST_BYTES: Final = 64 << 10
"""Of the first batch. As weir's, the next ones double, so that the first rows need not wait for many."""
_STREAMS: Final = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Ticket:
    """What a client asks for."""

    table: str
    bucket: int
    origin: Origin
    batch_bytes: int
    row_limit: int = 0
    """0: all rows."""

    def to_bytes(self) -> bytes:
        """As it travels."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, octets: bytes) -> Ticket:
        """As it arrived."""
        return cls(**json.loads(octets))


class Rows:
    """The buckets of a store that nobody else has open.

    Args:
        directory: Of the store.
    """

    def __init__(self, directory: Path) -> None:
        self._store = RocksStore.open(directory)
        self._from_memory = functools.cache(lambda ticket: list(self._from_storage(ticket)))
        self._encoded = functools.cache(lambda ticket: list(map(encode, self._from_storage(ticket))))

    def schema(self, ticket: Ticket) -> pa.Schema:
        """Of every batch."""
        return self._store.table(ticket.table).schema

    def batches(self, ticket: Ticket) -> Iterator[pa.RecordBatch]:
        """The rows of the bucket in key order, up to about `batch_bytes` of stored rows a batch."""
        if ticket.origin == "storage":
            yield from self._from_storage(ticket)
        else:
            yield from self._from_memory(replace(ticket, origin="memory"))

    def messages(self, ticket: Ticket) -> Iterator[bytes]:
        """The same as Arrow IPC messages; those in memory are encoded once."""
        if ticket.origin == "storage":
            yield from map(encode, self._from_storage(ticket))
        else:
            yield from self._encoded(ticket)

    def count(self, ticket: Ticket) -> int:
        """Read and decode all rows, and keep none."""
        return sum(batch.num_rows for batch in self._from_storage(ticket))

    def _from_storage(self, ticket: Ticket) -> Iterator[pa.RecordBatch]:
        codec = self._store.row_codec(ticket.table)
        names = tuple(self.schema(ticket).names)
        snapshot = self._store.bucket(ticket.table, ticket.bucket).open_snapshot()
        scan = snapshot.scan()
        rows_max = ticket.row_limit or _ROWS_MAX
        bytes_max = min(_FIRST_BYTES, ticket.batch_bytes)
        try:
            while len(read := scan.read(rows_max, bytes_max)) or read.unfinished:
                if len(read):
                    yield codec.decode_block(read.block, names)
                if len(read) == ticket.row_limit:
                    return
                bytes_max = min(2 * bytes_max, ticket.batch_bytes)
        finally:
            snapshot.close()


def encode(batch: pa.RecordBatch) -> bytes:
    """A batch as an Arrow IPC message."""
    encoded: bytes = batch.serialize().to_pybytes()
    return encoded


class _FlightServer(flight.FlightServerBase):  # type: ignore[misc]
    def __init__(self, rows: Rows, certificates: Certificates | None) -> None:
        if certificates is None:
            super().__init__("grpc://127.0.0.1:0")
        else:
            pair = (certificates.certificate.read_bytes(), certificates.key.read_bytes())
            super().__init__("grpc+tls://127.0.0.1:0", tls_certificates=[pair])
        self._rows = rows

    def do_get(self, _context: object, ticket: flight.Ticket) -> flight.FlightDataStream:
        asked = Ticket.from_bytes(ticket.ticket)
        schema = self._rows.schema(asked)
        if asked.origin == "memory":
            # Without Python between its batches: what Flight can do at best.
            return flight.RecordBatchStream(pa.Table.from_batches(self._rows.batches(asked), schema))
        return flight.GeneratorStream(schema, self._rows.batches(asked))


def serve_flight(directory: Path, certificates: Certificates | None, ready: Connection) -> None:
    """Serve by Arrow Flight until the process is ended; tells its port."""
    server = _FlightServer(Rows(directory), certificates)
    ready.send(server.port)
    server.serve()


def serve_grpcio(directory: Path, certificates: Certificates | None, ready: Connection) -> None:
    """Serve by grpcio until the process is ended; tells its port."""
    rows = Rows(directory)

    def read(request: bytes, _context: grpc.ServicerContext) -> Iterator[bytes]:
        return rows.messages(Ticket.from_bytes(request))

    def count(request: bytes, _context: grpc.ServicerContext) -> bytes:
        return str(rows.count(Ticket.from_bytes(request))).encode()

    handlers: Any = {
        "Read": grpc.unary_stream_rpc_method_handler(read),
        "Count": grpc.unary_unary_rpc_method_handler(count),
    }
    server = grpc.server(futures.ThreadPoolExecutor(_STREAMS), options=[("grpc.max_send_message_length", -1)])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    if certificates is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        pair = (certificates.key.read_bytes(), certificates.certificate.read_bytes())
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    server.start()
    ready.send(port)
    server.wait_for_termination()
