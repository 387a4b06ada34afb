"""Batches on the wire: protobuf to everyone, uncopied and aligned to us."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scanner.data.changes import ChangeRange
from scanner.errors import DataCorrupted
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.wire.arrow_ipc import EncodedRows
from scanner.wire.batches import (
    FetchedBatch,
    RowBatch,
    decode_fetched,
    decode_scan_page,
    decode_scan_response,
    decode_session_page,
    encode_fetched,
    encode_page,
    encode_row_batch,
    row_batch_overhead,
)

uint64 = st.integers(0, 2**64 - 1)
uint32 = st.integers(0, 2**32 - 1)
row_counts = st.integers(1, 2**32 - 1)


@given(uint64, row_counts, uint32, st.binary(max_size=300), st.binary(max_size=40))
def test_a_row_batch_is_ordinary_protobuf(
    ordinal: int, count: int, crc32c: int, payload: bytes, token: bytes
) -> None:
    """What is encoded here, protobuf reads as a ScanResponse with the same fields, and says the same of its size.

    A stock client has no other way to count its credit.
    """
    message = b"".join(encode_row_batch(ordinal, count, crc32c, payload, token))

    response = pb.ScanResponse.FromString(message)
    assert response.ByteSize() == len(message)
    response.batch.ClearField("padding")
    assert response == pb.ScanResponse(
        batch=pb.RowBatch(
            row_ordinal=ordinal, row_count=count, crc32c=crc32c, resume_token=token, arrow_batch=payload
        )
    )


@given(uint64, row_counts, uint32, st.binary(max_size=300), st.binary(max_size=40))
def test_a_row_batch_of_protobuf_is_read(
    ordinal: int, count: int, crc32c: int, payload: bytes, token: bytes
) -> None:
    """What any protobuf library writes is read here, and the size counted is the message's."""
    message = pb.ScanResponse(
        batch=pb.RowBatch(
            row_ordinal=ordinal, row_count=count, crc32c=crc32c, resume_token=token, arrow_batch=payload
        )
    ).SerializeToString()

    batch = decode_scan_response(message)

    assert isinstance(batch, RowBatch)
    assert (batch.row_ordinal, batch.row_count, batch.crc32c) == (ordinal, count, crc32c)
    assert (batch.resume_token, bytes(batch.payload)) == (token, payload)
    assert batch.message_bytes == len(message)


@given(uint64, st.integers(1, 100_000), uint32, st.integers(0, 70_000))
@example(2**64 - 1, 1, 3, 98)  # A shorter number, and more padding.
def test_the_payload_is_aligned_and_the_overhead_known(
    ordinal: int, count: int, crc32c: int, size: int
) -> None:
    """The payload starts at a multiple of 8, and the overhead is bounded by what was said before."""
    prefix, payload = encode_row_batch(ordinal, count, crc32c, bytes(size))

    assert len(prefix) % 8 == 0
    assert len(payload) == size
    assert len(prefix) <= row_batch_overhead(100_000, 70_000)


def test_the_payload_is_a_view_of_the_message() -> None:
    """Decoding copies nothing: the payload shares the message's memory."""
    message = bytearray(b"".join(encode_row_batch(1, 2, 3, b"payload")))

    batch = decode_scan_response(message)
    message[-1:] = b"D"

    assert isinstance(batch, RowBatch)
    assert bytes(batch.payload) == b"payloaD"


def test_fields_in_another_order_are_read() -> None:
    """A receiver does not rely on the payload being last."""
    inner = b"\x7a\x03abc\x10\x02\x1d\x01\x00\x00\x00"

    batch = decode_scan_response(b"\x12" + bytes([len(inner)]) + inner)

    assert isinstance(batch, RowBatch)
    assert (batch.row_count, batch.crc32c, bytes(batch.payload)) == (2, 1, b"abc")


def test_a_batch_beside_fields_that_are_not_known_is_the_same() -> None:
    """A newer server may say more in a response; its octets count for the credit."""
    changes = ChangeRange(5, 7, commit_end=True)
    message = b"".join(encode_row_batch(1, 2, 3, b"payload", b"token", changes, 4))
    expected = decode_scan_response(message)
    assert isinstance(expected, RowBatch)
    unknown = b"\xf8\x07\x01"  # Field 127.
    for response in (message + unknown, unknown + message):
        batch = decode_scan_response(response)
        assert batch == replace(expected, message_bytes=len(response))


def test_other_responses_are_read() -> None:
    """A response that is no batch comes out as it is."""
    end = pb.ScanResponse(end=pb.ScanEnd(reason=pb.ScanEnd.REASON_LIMIT, rows=3, digest=4))

    assert decode_scan_response(end.SerializeToString()) == end


@given(st.binary(max_size=64))
def test_random_bytes_parse_or_raise_one_error(data: bytes) -> None:
    """Bytes of a broken server raise DataCorrupted and nothing else."""
    for decode in (decode_scan_response, decode_session_page, decode_scan_page, decode_fetched):
        try:
            decode(data)
        except DataCorrupted:
            continue


@given(st.binary(max_size=60), st.integers(0, 200))
def test_a_cut_batch_raises(payload: bytes, cut: int) -> None:
    """A batch that lacks its last bytes is never taken for a whole one."""
    message = b"".join(encode_row_batch(5, 6, 7, payload))
    cut = 1 + cut % (len(message) - 1)

    with pytest.raises(DataCorrupted):
        decode_scan_response(message[:-cut])


PAGE = {
    "has_more_results": st.booleans(),
    "arrow_schema": st.binary(max_size=20),
    "row_ordinal": uint64,
    "row_count": st.integers(1, 2**21 - 1),
    "crc32c": uint32,
    "rows": st.none() | uint64,
    "digest": st.none() | uint32,
}
SESSION_PAGES = st.builds(
    pb.ScanSessionResponse, scanner_id=st.binary(max_size=20), log_offset=st.none() | uint64, **PAGE
)
SCAN_PAGES = st.builds(pb.ScanPageResponse, resume_token=st.binary(max_size=200), log_offset=uint64, **PAGE)


@pytest.mark.parametrize(
    ("pages", "decode"), [(SESSION_PAGES, decode_session_page), (SCAN_PAGES, decode_scan_page)]
)
@given(data=st.data(), payload=st.binary(min_size=1, max_size=200))
def test_a_page_round_trips(pages: Any, decode: Any, data: st.DataObject, payload: bytes) -> None:
    """A page is ordinary protobuf, aligned, and comes back the same."""
    fields = data.draw(pages)
    prefix, view = encode_page(fields, payload)
    message = bytes(prefix) + bytes(view)
    whole = type(fields).FromString(message)
    page = decode(message)

    assert whole.SerializeToString(deterministic=True) == message  # no varint is longer than it must be
    assert whole.arrow_batch == payload
    for each in (whole, page.fields):
        each.ClearField("padding")
    whole.ClearField("arrow_batch")
    assert whole == fields == page.fields
    assert bytes(page.payload) == payload
    assert len(prefix) % 8 == 0


@given(
    st.lists(
        st.tuples(
            st.builds(
                pb.FetchedBucket,
                bucket=uint32,
                position=uint64,
                bookmark=uint64,
                history=st.binary(max_size=20),
                error=st.none() | st.builds(pb.FetchError, message=st.text(max_size=20)),
            ),
            st.lists(st.tuples(st.integers(0, 2**32 - 1), st.binary(min_size=1, max_size=200)), max_size=3),
        ),
        max_size=4,
    ),
    st.binary(max_size=20),
)
def test_a_fetch_round_trips(
    buckets: list[tuple[pb.FetchedBucket, list[tuple[int, bytes]]]], schema: bytes
) -> None:
    """The answer to a fetch is ordinary protobuf, each payload in it is aligned, and all comes back the same."""
    changes = ChangeRange(7, 9, commit_end=True)
    answer = pb.FetchLogResponse(arrow_schema=schema, table_id=3)
    parts = encode_fetched(
        answer,
        [
            (fields, [FetchedBatch(count, EncodedRows(payload, 5), changes) for count, payload in batches])
            for fields, batches in buckets
        ],
    )
    message = b"".join(parts)
    whole = pb.FetchLogResponse.FromString(message)
    found_answer, found = decode_fetched(message)

    assert found_answer == answer
    assert (whole.arrow_schema, whole.table_id) == (schema, 3)
    for (fields, batches), each, received in zip(buckets, whole.buckets, found, strict=True):
        assert [(one.row_count, one.arrow_batch) for one in each.batches] == batches
        assert [(one.row_count, bytes(one.payload), one.changes) for one in received.batches] == [
            (*batch, changes) for batch in batches
        ]
        assert [one.message_bytes for one in received.batches] == [one.ByteSize() for one in each.batches]
        each.ClearField("batches")
        assert each == fields == received.fields
    at = 0
    for part in parts:
        assert isinstance(part, bytes) or at % 8 == 0
        at += len(part)
