"""The session client's pure part: which request is next, and what a page means."""

from __future__ import annotations

import pyarrow as pa
import pytest

from scanner.client.scan.columns import as_asked
from scanner.client.scan.session_receiver import SessionReceiver
from scanner.client.scan.statistics import BucketProgress
from scanner.data.digest import checksum
from scanner.errors import DataCorrupted, ScanIncomplete
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.wire.arrow_ipc import encode_batch, encode_schema

SCHEMA = pa.schema([("k", pa.int64())])


def page(
    values: list[int],
    ordinal: int = 0,
    *,
    opened: bool = False,
    more: bool = True,
    total: int | None = None,
    **fields: object,
) -> bytes:
    """A response; `total` makes it a complete last page."""
    response = pb.ScanSessionResponse(scanner_id=b"s", has_more_results=more, row_ordinal=ordinal)
    if opened:
        response.log_offset, response.arrow_schema = 17, encode_schema(SCHEMA)
    if values:
        payload = encode_batch(pa.record_batch({"k": values}, schema=SCHEMA)).to_pybytes()
        response.arrow_batch, response.row_count, response.crc32c = payload, len(values), checksum(payload)
    if total is not None:
        response.rows, response.digest = total, 99
    for name, value in fields.items():
        setattr(response, name, value)
    return response.SerializeToString()


@pytest.fixture
def progress() -> BucketProgress:
    """Fresh counters."""
    return BucketProgress(bucket=0)


@pytest.fixture
def receiver(progress: BucketProgress) -> SessionReceiver:
    """A session that is not open."""
    return SessionReceiver("t bucket 0", pb.ScanQuery(table="t"), 1_000, SCHEMA, progress, as_asked())


def test_open_then_continuations_in_sequence(receiver: SessionReceiver, progress: BucketProgress) -> None:
    """Call 0 opens; 1, 2, 3... continue by id alone; the same call is made until its page came."""
    opening = receiver.next_request()
    assert (opening.query.table, opening.scanner_id, opening.call_seq_id) == ("t", b"", 0)
    receiver.receive(page([1, 2], opened=True))
    for sequence in (1, 2):
        request = receiver.next_request()
        assert request == receiver.next_request()
        assert (request.HasField("query"), request.scanner_id, request.call_seq_id) == (False, b"s", sequence)
        assert request.batch_size_bytes == 1_000
        receiver.receive(page([7], 1 + sequence))
    assert (receiver.is_open, receiver.ended) == (True, False)
    assert receiver.receive(page([], 4, more=False, total=4)) is None
    assert (receiver.is_open, receiver.ended) == (False, True)
    assert (progress.log_offset, progress.digest, progress.reason) == (17, 99, "EXHAUSTED")


def test_single_page_needs_no_session(receiver: SessionReceiver) -> None:
    """A scan that fits into its first page has nothing to release."""
    assert receiver.receive(page([], opened=True, more=False, total=0, scanner_id=b"")) is None
    assert receiver.ended
    assert not receiver.is_open


@pytest.mark.parametrize("rows", [[1, 2], []])
def test_limit_is_the_reason_when_it_is_reached(progress: BucketProgress, rows: list[int]) -> None:
    """A scan that ended at its limit says so."""
    query = pb.ScanQuery(table="t", row_limit=len(rows))
    receiver = SessionReceiver("t bucket 0", query, 1_000, SCHEMA, progress, as_asked())
    receiver.receive(page(rows, opened=True, more=False, total=len(rows)))
    assert progress.reason == "LIMIT"


@pytest.mark.parametrize(
    "broken",
    [
        page([1], 1),
        page([1], 3),
        page([1], 2, crc32c=1),
        page([1], 2, row_count=2),
        page([1], 2, scanner_id=b"other"),
        page([1], 2, more=False, total=4),
        b"\xff\xff",
    ],
    ids=["repeated", "gap", "checksum", "count", "other session", "total", "garbage"],
)
def test_damaged_page_is_corruption(receiver: SessionReceiver, broken: bytes) -> None:
    """A page that does not continue the scan, or is not what it says, fails it."""
    receiver.receive(page([1, 2], opened=True))
    with pytest.raises(DataCorrupted):
        receiver.receive(broken)


def test_last_page_without_a_total_is_incomplete(receiver: SessionReceiver) -> None:
    """A last page that does not prove its completeness is no end of data."""
    with pytest.raises(ScanIncomplete):
        receiver.receive(page([1], opened=True, more=False))


def test_open_without_log_offset_is_refused(receiver: SessionReceiver) -> None:
    """A session must say as of when it shows the bucket."""
    with pytest.raises(DataCorrupted, match="log offset"):
        receiver.receive(page([1]))


def test_open_without_an_id_is_refused(receiver: SessionReceiver) -> None:
    """Where there is more, nothing could be asked for."""
    with pytest.raises(DataCorrupted, match="without an id"):
        receiver.receive(page([1], opened=True, scanner_id=b""))
