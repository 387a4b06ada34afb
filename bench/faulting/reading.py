"""What a user reads of a server: rows of a bucket in each model, as of a mark, of a lease, behind a token."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

import scanner
import transport
from bench.faulting.truth import Key, Mark, Row, Rows, TakenToken, plain
from bench.harness.errors import BenchFailed
from scanner.client.failures import as_scanner_error
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.server.config import ScannerConfig
from scanner.server.server import Server, open_server
from scanner.tasks import bare
from scanner.wire import methods
from scanner.wire.arrow_ipc import decode_batch, decode_schema, verify_payload
from scanner.wire.batches import RowBatch, decode_scan_response

if TYPE_CHECKING:
    from scanner.client.table import Table

MODELS: Final = ("push", "session", "token", "cursor", "asof")
_PAGE_BYTES: Final = 3000
_BATCH_ROWS: Final = 10
_HOST: Final = "127.0.0.1"


class WrongAnswer(Exception):  # A verdict, not an error of ours.
    """The server answered with what it must not."""


class Reading(NamedTuple):
    """One bucket as a scan showed it."""

    rows: Rows
    offset: int | None
    """The end of the changelog that the scan said it shows; None: it did not say."""
    history: bytes


@asynccontextmanager
async def serving(data: Path) -> AsyncIterator[tuple[Server, scanner.Client]]:
    """Serve a data directory on a real port, with a client of it that tries nothing twice."""
    # Background work would move what a case looks at: what it does is for the tests of retention and of checkpoints.
    config = ScannerConfig(checkpoint_interval_s=0, retention_interval_s=86400.0)
    async with (
        bare(open_server(data, _HOST, config=config)) as server,
        bare(scanner.connect(f"{_HOST}:{server.port}", retries=0)) as client,
    ):
        yield server, client


async def read_bucket(table: Table, key: str, bucket: int, model: str) -> Reading:
    """All rows of a bucket in one model.

    Raises:
        WrongAnswer: A key comes twice.
        ScannerError: What the server said.
    """
    scan = table.new_scan().bucket(bucket).with_mode(model).with_page_bytes(_PAGE_BYTES)
    return await _read(scan, key)


async def read_mark(table: Table, key: str, mark: Mark) -> Reading:
    """A bucket as of a mark."""
    histories = {mark.bucket: mark.history}
    return await _read(table.new_scan().bucket(mark.bucket).as_of({mark.bucket: mark.offset}, histories), key)


async def read_lease(table: Table, key: str, bucket: int, lease_id: str) -> Reading:
    """What a lease keeps of a bucket."""
    return await _read(table.new_scan().bucket(bucket).with_lease(lease_id), key)


async def _read(scan: Any, key: str) -> Reading:
    found: list[Row] = []
    async with bare(scan.execute()) as batches:
        async for batch in batches:
            found += map(plain, batch.to_pylist())
        statistics = batches.statistics()
    (told,) = statistics.buckets
    if told.reason != "EXHAUSTED" or told.rows != len(found):
        raise WrongAnswer(f"a scan ended with {told.reason} after {told.rows} rows, and gave {len(found)}")
    return Reading(by_key(found, key), told.log_offset, told.history)


def by_key(found: list[Row], key: str) -> Rows:
    """Rows by their key.

    Raises:
        WrongAnswer: A key comes twice.
    """
    rows: dict[Key, Row] = {row[key]: row for row in found}
    if len(rows) != len(found):
        raise WrongAnswer(f"{len(found)} rows have {len(rows)} keys")
    return rows


async def write_rows(table: Table, rows: list[dict[str, object]]) -> list[tuple[int, int, int]]:
    """Write rows, and return bucket, first offset and end of each range of changes that was acknowledged."""
    result = await table.write(pa.Table.from_pylist(rows, schema=table.schema))
    return [(each.bucket, each.start_offset, each.end_offset) for each in result.ranges]


async def take_tokens(server: Server, name: str, bucket: int) -> list[TakenToken]:
    """The tokens of a scan of small batches, each with the rows that are still to come behind it."""
    batches = await _raw_scan(server, name, bucket, b"")
    taken: list[TakenToken] = []
    rows = [row for _, part in batches for row in part]
    ordinal = 0
    for token, part in batches:
        ordinal += len(part)
        taken.append(
            TakenToken(table=name, bucket=bucket, token=token, ordinal=ordinal, rows=tuple(rows[ordinal:]))
        )
    return taken


async def resume(server: Server, taken: TakenToken) -> tuple[Row, ...]:
    """The rows behind a token."""
    batches = await _raw_scan(server, taken.table, taken.bucket, taken.token)
    return tuple(row for _, part in batches for row in part)


async def _raw_scan(server: Server, name: str, bucket: int, token: bytes) -> list[tuple[bytes, list[Row]]]:
    """One push scan without credit; its batches, each with the token behind it."""
    try:
        async with (
            bare(transport.connect(_HOST, server.port)) as client,
            client.open_stream(methods.SCAN) as stream,
        ):
            opening = pb.ScanOpen(
                source=pb.SCAN_SOURCE_LIVE_KV,
                query=pb.ScanQuery(table=name, bucket=bucket),
                batch_rows_max=_BATCH_ROWS,
                resume_token=token,
            )
            await stream.send(pb.ScanRequest(open=opening).SerializeToString())
            await stream.send_end()
            return await _receive_all(stream)
    except transport.TransportError as error:
        raise as_scanner_error(error, "the scan") from error


async def _receive_all(stream: transport.Stream) -> list[tuple[bytes, list[Row]]]:
    batches: list[tuple[bytes, list[Row]]] = []
    schema: pa.Schema | None = None
    ended = False
    while (message := await stream.receive()) is not None:
        response = decode_scan_response(message)
        if isinstance(response, RowBatch):
            if schema is None:
                raise BenchFailed("rows came before the start of the scan")
            verify_payload(response.payload, response.crc32c)
            rows = decode_batch(response.payload, schema).to_pylist()
            batches.append((response.resume_token, list(map(plain, rows))))
        elif response.HasField("started"):
            schema = decode_schema(response.started.arrow_schema)
        elif response.HasField("end"):
            ended = True
    if not ended:
        raise WrongAnswer("a scan ended without its explicit end")
    return batches
