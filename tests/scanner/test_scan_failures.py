"""Push scans that do not come to their end: damaged, refused, stuck and dropped; the rest every model must do."""

from __future__ import annotations

import pytest
import trio

import transport
from scanner.errors import (
    ArgumentInvalid,
    BucketNotFound,
    ColumnNotFound,
    CreditInvalid,
    DataCorrupted,
    ResumeTokenInvalid,
    ScannerError,
    SourceUnsupported,
    TableNotFound,
)
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.proto.weir.v1 import tables_pb2
from scanner.server.server import open_server
from scanner.storage.interface import Mutation
from tests.support.scans import (
    SCAN,
    SMALL,
    TABLES,
    RawScan,
    failure,
    filled_store,
    open_scan,
    serving,
)
from transport import TransportConfig

pytestmark = pytest.mark.socket

ROWS = 3000


async def test_a_read_error_fails_the_scan() -> None:
    """A block that cannot be decoded is DATA_CORRUPTED for its scan, never a short scan."""
    store = filled_store(0)
    store.bucket("items", 0).commit([[Mutation(b"\x80" + bytes(7), b"not a row")]])
    async with serving(store) as (_, client):
        async with open_scan(client, window_only=True) as scan:
            error = await failure(scan.receive_all)

    assert isinstance(error, DataCorrupted)
    assert scan.end is None


def opening(**changes: object) -> bytes:
    """An open of the sample table, with something else about it."""
    fields: dict[str, object] = {
        "source": pb.SCAN_SOURCE_LIVE_KV,
        "query": pb.ScanQuery(table="items"),
        **changes,
    }
    return pb.ScanRequest(open=pb.ScanOpen(**fields)).SerializeToString()  # type: ignore[arg-type]


DEMAND = pb.ScanRequest(demand=pb.Demand(bytes_limit=1)).SerializeToString()


AND, OR, NOT = pb.Predicate.OPERATOR_AND, pb.Predicate.OPERATOR_OR, pb.Predicate.OPERATOR_NOT
IS_NULL = pb.Predicate(column="id", operator=pb.Predicate.OPERATOR_IS_NULL)


def filtering(*predicates: pb.Predicate) -> bytes:
    """A scan with a filter."""
    return opening(query=pb.ScanQuery(table="items", filter=predicates))


def either(operands: list[pb.Predicate]) -> pb.Predicate:
    """One of several predicates."""
    return pb.Predicate(operator=OR, operands=operands)


def one_of(count: int) -> pb.Predicate:
    """A comparison with so many literals."""
    literals = [pb.Literal(integer=number) for number in range(count)]
    return pb.Predicate(column="id", operator=pb.Predicate.OPERATOR_IN, literals=literals)


def less(than: pb.Literal) -> pb.Predicate:
    """A comparison with a literal."""
    return pb.Predicate(column="id", operator=pb.Predicate.OPERATOR_LESS, literals=[than])


def nested(levels: int) -> pb.Predicate:
    """The opposite of the opposite, so many times."""
    predicate = IS_NULL
    for _ in range(levels):
        predicate = pb.Predicate(operator=NOT, operands=[predicate])
    return predicate


def opening_with_depth(levels: int) -> bytes:
    """A filter that is nested deeper than protobuf itself writes."""
    octets = IS_NULL.SerializeToString()
    for _ in range(levels):
        octets = b"\x10" + bytes([NOT]) + b"\x22" + _length(octets) + octets
    query = b"\x0a\x05items\x22" + _length(octets) + octets
    scan_open = b"\x1a" + _length(query) + query
    return b"\x0a" + _length(scan_open) + scan_open


def _length(octets: bytes) -> bytes:
    count, found = len(octets), bytearray()
    while count > 127:
        found.append(count & 127 | 128)
        count >>= 7
    return bytes([*found, count])


@pytest.mark.parametrize(
    ("messages", "kind", "says"),
    [
        ([], ArgumentInvalid, "before its scan was opened"),
        ([b""], ArgumentInvalid, "first message"),
        ([DEMAND], ArgumentInvalid, "first message of a scan is its open, not demand"),
        ([b"\xff\xff\xff"], ArgumentInvalid, "not a ScanRequest"),
        ([opening(), opening()], ArgumentInvalid, "another stream"),
        ([opening(), b""], ArgumentInvalid, "neither"),
        ([opening(), b"\xff\xff\xff"], ArgumentInvalid, "not a ScanRequest"),
        (
            [opening(), pb.ScanRequest(demand=pb.Demand(bytes_limit=2**63)).SerializeToString()],
            CreditInvalid,
            "9223372036854775808",
        ),
        ([opening(source=pb.SCAN_SOURCE_UNSPECIFIED)], ArgumentInvalid, "no source"),
        ([opening(source=pb.SCAN_SOURCE_LOG, group="readers")], ArgumentInvalid, "go together"),
        ([opening(stop_at_end=True)], ArgumentInvalid, "SCAN_SOURCE_LOG"),
        ([opening(source=99)], SourceUnsupported, "99"),
        ([opening(query=pb.ScanQuery())], ArgumentInvalid, "no table"),
        ([opening(query=pb.ScanQuery(table="nothing"))], TableNotFound, "items"),
        ([opening(query=pb.ScanQuery(table="items", bucket=1))], BucketNotFound, "bucket 1"),
        (
            [opening(query=pb.ScanQuery(table="items", columns=["colour"]))],
            ColumnNotFound,
            "id, name, price, sold",
        ),
        ([opening(query=pb.ScanQuery(table="items", columns=["id", "id"]))], ArgumentInvalid, "'id'"),
        (
            [opening(query=pb.ScanQuery(table="items", filter=[pb.Predicate(column="id")] * 65))],
            ArgumentInvalid,
            "65",
        ),
        ([filtering(nested(32))], ArgumentInvalid, "32 levels"),
        ([opening_with_depth(3000)], ArgumentInvalid, "not a ScanRequest"),
        ([filtering(either([pb.Predicate(column="id")] * 64))], ArgumentInvalid, "65 predicates"),
        ([filtering(either([one_of(5000), one_of(5001)]))], ArgumentInvalid, "10001 literals"),
        (
            [filtering(pb.Predicate(operator=AND, operands=[IS_NULL]))],
            ArgumentInvalid,
            "two operands or more",
        ),
        (
            [filtering(pb.Predicate(operator=NOT, column="id", operands=[IS_NULL]))],
            ArgumentInvalid,
            "operands only",
        ),
        ([filtering(pb.Predicate(operator=NOT, operands=[IS_NULL] * 2))], ArgumentInvalid, "one operand"),
        (
            [
                filtering(
                    pb.Predicate(operator=pb.Predicate.OPERATOR_IS_NULL, column="id", operands=[IS_NULL])
                )
            ],
            ArgumentInvalid,
            "no operands",
        ),
        (
            [filtering(pb.Predicate(operator=NOT, operands=[pb.Predicate(column="id", operator=99)]))],  # type: ignore[arg-type]
            ArgumentInvalid,
            "operator 99",
        ),
        ([filtering(less(pb.Literal(decimal="1e999999999")))], ArgumentInvalid, "four digits of exponent"),
        ([filtering(less(pb.Literal(temporal="soon")))], ArgumentInvalid, "no date or timestamp"),
        ([filtering(less(pb.Literal(text="5")))], ArgumentInvalid, "it is a number"),
        (
            [filtering(either([IS_NULL, pb.Predicate(column="ids", operator=pb.Predicate.OPERATOR_EQUAL)]))],
            ArgumentInvalid,
            "one literal",
        ),
        (
            [
                filtering(
                    either([IS_NULL, pb.Predicate(column="ids", operator=pb.Predicate.OPERATOR_IS_NULL)])
                )
            ],
            ColumnNotFound,
            "'ids'",
        ),
        ([opening(resume_token=b"token")], ResumeTokenInvalid, "token"),
        ([opening(stream_id=bytes(65))], ArgumentInvalid, "stream id"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_bad_requests_are_refused_and_the_server_lives_on(
    messages: list[bytes], kind: type[ScannerError], says: str
) -> None:
    """Every request that breaks the rules gets its own error, on its own stream."""
    async with serving(filled_store(ROWS)) as (_, client):
        async with client.open_stream(SCAN) as stream:
            for message in messages:
                await stream.send(message)
            if not messages:
                await stream.send_end()
            error = await failure(RawScan(stream).receive_all)
        async with open_scan(client, window_only=True) as scan:
            await scan.receive_all()

    assert type(error) is kind
    assert says in error.message
    assert scan.rows == ROWS


async def test_a_scan_stuck_in_a_closed_window_can_be_dropped_and_left() -> None:
    """A client that reads nothing holds up neither the drop of its table nor the other calls."""
    tight = TransportConfig(send_buffer_bytes=1000)
    with trio.fail_after(100):
        async with (
            open_server(filled_store(ROWS), config=SMALL, transport_config=tight) as server,
            transport.connect(server.host, server.port) as client,
            transport.connect(
                server.host, server.port, config=TransportConfig(stream_window_bytes=1000)
            ) as slow,
            open_scan(slow, window_only=True) as scan,
        ):
            await scan.receive()
            request = tables_pb2.DropTableRequest(table="items").SerializeToString()
            await client.call(TABLES + "DropTable", request)
            assert server.statistics().iterators_open == 0
            error = await failure(scan.receive_all)

    assert isinstance(error, TableNotFound)
    assert scan.rows < ROWS
