"""What someone who has grpcio, pyarrow and our .proto files, and nothing else of ours, makes of docs/protocol.md.

    python stock_pull_client.py STUBS ENDPOINT

It makes a table, reads it, and reads it again in every way there is, each time in pieces, while it writes over what it
has read. Prints one JSON object: for each way the rows, the digest and the log offset that it ended with, and what was
refused. STUBS is a folder of generated stubs.
"""

import importlib
import json
import queue
import sys
from collections.abc import Callable, Iterator
from typing import Any

TABLE = "stock"
ROWS = 600
BATCH_ROWS = 25
PAGE_BYTES = 2_000
ALL_BYTES = 1 << 40
CUT_BYTES = 2_000
"""Credit for a batch."""
LEASE = "stock-lease"
SESSION_PATH = "/weir.v1.Scanner/ScanSession"
LIVE, SNAPSHOT = 1, 2
UPSERT, DELETE = 1, 2
PAGE_MODELS = {"token": 1, "cursor": 2, "asof": 3}


class Stock:
    """The calls, by the stubs, and the reading of what comes back.

    Args:
        channel: To the server.
    """

    def __init__(self, channel: Any) -> None:
        self.pb, self.tables_pb, self.leases_pb, self.errors_pb = (
            importlib.import_module(f"weir.v1.{name}_pb2")
            for name in ("scanner", "tables", "leases", "errors")
        )
        stub = {
            name: importlib.import_module(f"weir.v1.{name}_pb2_grpc")
            for name in ("scanner", "tables", "leases")
        }
        self.scanner = stub["scanner"].ScannerStub(channel)
        self.tables = stub["tables"].TablesStub(channel)
        self.leases = stub["leases"].LeasesStub(channel)
        self.session_open = channel.stream_stream(
            SESSION_PATH,
            request_serializer=self.pb.ScanSessionRequest.SerializeToString,
            response_deserializer=self.pb.ScanSessionResponse.FromString,
        )
        self.query = self.pb.ScanQuery(table=TABLE)

    def create(self) -> None:
        """Make the table, with its rows."""
        schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])
        described = self.tables_pb.TableDescription(
            name=TABLE, arrow_schema=schema.serialize().to_pybytes(), primary_key=["id"], buckets=1
        )
        self.tables.CreateTable(self.tables_pb.CreateTableRequest(table=described))
        self.write(UPSERT, id=list(range(ROWS)), text=[f"old {each}" for each in range(ROWS)])

    def overwrite(self, round_: int) -> None:
        """Change a third of the rows, remove another, add new ones in between and behind."""
        changed = [*range(0, ROWS, 3), *range(ROWS, ROWS + 30)]
        self.write(UPSERT, id=changed, text=[f"new {round_}"] * len(changed))
        self.write(DELETE, id=list(range(1, ROWS, 3)))

    def write(self, operation: int, **columns: list[Any]) -> None:
        """One request of `Write`."""
        batch = pa.record_batch(columns)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        stream = sink.getvalue().to_pybytes()
        request = self.tables_pb.WriteRequest(table=TABLE, operation=operation, arrow_stream=stream)
        assert len(list(self.tables.Write(iter([request])))) == 1

    def push(self, *, between: Callable[[], None], cut: bool, **opening: Any) -> dict[str, Any]:
        """A push scan; `cut`: each call is cancelled after its first batch, and continued with that batch's token.

        The first call is cancelled in front of it.
        """
        read = Read()
        opening = {"source": LIVE, "query": self.query, "batch_rows_max": BATCH_ROWS, **opening}
        while not read.finished:
            requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
            requests.put(self.pb.ScanRequest(open=self.pb.ScanOpen(**opening)))
            requests.put(
                self.pb.ScanRequest(demand=self.pb.Demand(bytes_limit=CUT_BYTES if cut else ALL_BYTES))
            )
            call = self.scanner.Scan(iter(requests.get, None))
            for response in call:
                kind = response.WhichOneof("response")
                message = getattr(response, kind)
                if kind == "started":
                    assert message.row_ordinal == read.rows
                    read.begin(message)
                    if cut and "resume_token" not in opening:
                        opening["resume_token"] = message.resume_token
                        call.cancel()
                        break
                elif kind == "batch":
                    read.take(message)
                    opening["resume_token"] = message.resume_token
                    if read.batches == 1:
                        between()
                    if cut:
                        call.cancel()
                        break
                elif kind == "end":
                    read.end(message)
                    requests.put(None)
            requests.put(None)
        return read.report()

    def pages(self, model: int, *, between: Callable[[], None], **opening: Any) -> dict[str, Any]:
        """A scan by `ScanPage`, each page but the first asked for twice."""
        read = Read()
        token = b""
        while not read.finished:
            request = self.pb.ScanPageRequest(
                model=model, query=self.query, resume_token=token, batch_size_bytes=PAGE_BYTES, **opening
            )
            page = self.scanner.ScanPage(request)
            if token:
                assert self.scanner.ScanPage(request).arrow_batch == page.arrow_batch
            else:
                read.begin(page)
            read.take_page(page)
            token = page.resume_token
            if read.batches == 1:
                between()
        return read.report()

    def fetch(self) -> dict[str, Any]:
        """The table's changes by `FetchLog`, in pieces, folded to its rows; then a fetch of which nothing is left."""
        rows: dict[int, str] = {}
        position, pieces, schema = self.pb.FetchPosition(start=self.pb.LogStart(earliest=True)), 0, None
        query = self.pb.ScanQuery(table=self.query.table, columns=["id", "text", "_change_type"])
        while True:
            request = self.pb.FetchLogRequest(
                query=query,
                positions=[position],
                max_wait_ms=0,
                bytes_max=PAGE_BYTES,
                with_schema=schema is None,
            )
            answer = self.scanner.FetchLog(request)
            (bucket,) = answer.buckets
            assert not bucket.HasField("error")
            if schema is None:
                schema = pa.ipc.read_schema(pa.py_buffer(answer.arrow_schema))
            at = bucket.start_offset
            for batch in bucket.batches:
                assert batch.start_offset == at
                assert batch.crc32c == google_crc32c.value(batch.arrow_batch)
                at = batch.end_offset
                for row in pa.ipc.read_record_batch(pa.py_buffer(batch.arrow_batch), schema).to_pylist():
                    if row["_change_type"] in ("insert", "update_postimage"):
                        rows[row["id"]] = row["text"]
                    else:
                        assert rows.pop(row["id"]) == row["text"]
            assert bucket.position == at
            if at == bucket.high_watermark:
                return {"rows": rows, "log_offset": at, "pieces": pieces}
            position = self.pb.FetchPosition(offset=bucket.position, history=bucket.history)
            pieces += 1

    def session(self, *, between: Callable[[], None]) -> dict[str, Any]:
        """A scan by `ScanSession`, whose open is half-closed when its response has come; each page asked for twice."""
        read = Read()
        requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        requests.put(self.pb.ScanSessionRequest(query=self.query, batch_size_bytes=PAGE_BYTES))
        call = self.session_open(iter(requests.get, None))
        page = next(call)
        requests.put(None)
        assert not list(call)
        read.begin(page)
        read.take_page(page)
        between()
        scanner_id, number = page.scanner_id, 0
        while not read.finished:
            number += 1
            request = self.pb.ScanSessionRequest(
                scanner_id=scanner_id, call_seq_id=number, batch_size_bytes=PAGE_BYTES
            )
            page = self.scanner.ScanSession(request)
            if page.has_more_results:
                assert self.scanner.ScanSession(request) == page
            read.take_page(page)
        return read.report()

    def refusal(self, call: Callable[[], Any]) -> dict[str, Any]:
        """The error of a call that must fail."""
        try:
            call()
        except grpc.RpcError as error:
            trailers: Any = error.trailing_metadata()
            packed = dict(trailers)["grpc-status-details-bin"]
            status = status_pb2.Status.FromString(packed)
            detail = self.errors_pb.ErrorDetail()
            assert any(each.Unpack(detail) for each in status.details)
            oldest = detail.oldest_offset if detail.HasField("oldest_offset") else None
            return {"code": error.code().name, "reason": detail.reason, "oldest_offset": oldest}
        raise AssertionError("it did not fail")


class Read:
    """What one scan has brought, checked as docs/protocol.md tells a receiver to."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.texts: list[str] = []
        self.batches = 0
        self.log_offset: int | None = None
        self.finished = False
        self.digest: int | None = None
        self._schema: Any = None

    @property
    def rows(self) -> int:
        return len(self.ids)

    def begin(self, message: Any) -> None:
        """`started`, or a first page."""
        assert self.log_offset in (None, message.log_offset)
        self.log_offset = message.log_offset
        self._schema = pa.ipc.read_schema(pa.py_buffer(message.arrow_schema))

    def take(self, message: Any) -> None:
        """A batch, or a page with rows."""
        assert message.row_ordinal == self.rows
        assert message.crc32c == google_crc32c.value(message.arrow_batch)
        batch = pa.ipc.read_record_batch(pa.py_buffer(message.arrow_batch), self._schema)
        assert batch.num_rows == message.row_count
        self.ids += batch.column("id").to_pylist()
        self.texts += batch.column("text").to_pylist()
        self.batches += 1

    def take_page(self, page: Any) -> None:
        """A page, which may be the last."""
        if page.row_count:
            self.take(page)
        if not page.has_more_results:
            self.end(page)

    def end(self, message: Any) -> None:
        """`end`, or a last page."""
        assert message.rows == self.rows
        self.digest, self.finished = message.digest, True

    def report(self) -> dict[str, Any]:
        """For the test."""
        assert self.ids == sorted(set(self.ids))
        return {
            "rows": dict(zip(self.ids, self.texts, strict=True)),
            "digest": self.digest,
            "log_offset": self.log_offset,
            "pieces": self.batches,
        }


def rounds(stock: Stock) -> Iterator[Callable[[], None]]:
    """Something to do between two pieces, different each time."""
    round_ = 0
    while True:
        round_ += 1
        yield lambda round_=round_: stock.overwrite(round_)  # type: ignore[misc]


def main() -> None:
    """Read in every way, and report."""
    with grpc.insecure_channel(sys.argv[2]) as channel:
        stock = Stock(channel)
        stock.create()
        change = rounds(stock)
        nothing = lambda: None  # noqa: E731
        target = stock.leases_pb.LeaseTarget(table=TABLE)
        acquire = stock.leases_pb.AcquireLeaseRequest(lease_id=LEASE, targets=[target])
        leased = stock.leases.AcquireLease(acquire).lease.buckets[0]
        found: dict[str, Any] = {"whole": stock.push(between=nothing, cut=False)}
        s0 = found["whole"]["log_offset"]
        found["push"] = stock.push(between=next(change), cut=True)
        found["as_of"] = stock.push(between=next(change), cut=True, as_of=s0)
        found["lease"] = stock.push(between=next(change), cut=True, source=SNAPSHOT, lease_id=LEASE)
        found["asof_past"] = stock.pages(PAGE_MODELS["asof"], between=next(change), as_of=s0)
        for way, read in {
            "session": stock.session,
            **{
                name: lambda between, model=model: stock.pages(model, between=between)  # type: ignore[misc]
                for name, model in PAGE_MODELS.items()
            },
        }.items():
            found[f"{way}_whole"] = stock.push(between=nothing, cut=False)
            found[way] = read(between=next(change))
        found["now"] = stock.push(between=nothing, cut=False)
        found["fetch"] = stock.fetch()
        found["leased_offset"] = leased.log_offset
        end = stock.push(between=nothing, cut=False)["log_offset"]
        renew = stock.leases_pb.RenewLeaseRequest(lease_id=LEASE)
        drop = stock.leases_pb.DropLeaseRequest(lease_id=LEASE)
        found["dropped"] = [stock.leases.DropLease(drop).dropped, stock.leases.DropLease(drop).dropped]
        found["refused"] = {
            "renewal": stock.refusal(lambda: stock.leases.RenewLease(renew)),
            "future": stock.refusal(lambda: stock.push(between=nothing, cut=False, as_of=end + 1)),
            "token": stock.refusal(lambda: stock.push(between=nothing, cut=False, resume_token=b"\x01" * 90)),
        }
    print(json.dumps(found))


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    import google_crc32c
    import grpc
    import pyarrow as pa

    status_pb2: Any = importlib.import_module("google.rpc.status_pb2")
    main()
