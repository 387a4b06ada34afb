"""A seal shows whatever was changed before it, and is no hindrance to who does not know it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.errors import ArgumentInvalid, DataCorrupted
from scanner.proto.weir.v1 import tables_pb2 as pb
from scanner.wire.answers import parse_answer
from scanner.wire.queries import parse_request
from scanner.wire.seals import SEAL_BYTES, sealed, sealed_like

REQUEST = pb.SplitBucketRequest(table="items", bucket=1, splits=4, key_start=b"\x14", key_end=b"\x3c")
OCTETS = REQUEST.SerializeToString()


@pytest.mark.parametrize("octets", [OCTETS, b""], ids=["fields", "empty"])
def test_any_protobuf_library_reads_a_sealed_message(octets: bytes) -> None:
    """It has the fields of the message, and one that is not known."""
    message = sealed(octets)
    assert len(message) == len(octets) + SEAL_BYTES
    read = pb.SplitBucketRequest.FromString(message)
    read.DiscardUnknownFields()
    assert read.SerializeToString() == octets


@pytest.mark.parametrize("read", [bytes, bytearray, memoryview])
def test_what_arrives_as_it_was_sent_is_taken(read: type) -> None:
    """With a seal or without one, whatever it arrives in."""
    for octets in (OCTETS, sealed(OCTETS)):
        assert parse_request(pb.SplitBucketRequest, read(octets)).key_end == REQUEST.key_end
        assert parse_answer(pb.SplitBucketRequest, read(octets), "it").key_end == REQUEST.key_end


def test_each_bit_that_is_turned_is_found() -> None:
    """Also where the message can still be read; in the seal's own mark it harms nothing, and is not found."""
    message = sealed(OCTETS)
    for bit in range(8 * len(message)):
        changed = bytearray(message)
        changed[bit // 8] ^= 1 << bit % 8
        if len(OCTETS) <= bit // 8 < len(message) - 4:
            read = pb.SplitBucketRequest()
            try:
                read = parse_request(pb.SplitBucketRequest, changed)
            except ArgumentInvalid:
                continue
            read.DiscardUnknownFields()
            assert read.SerializeToString() == OCTETS
            continue
        with pytest.raises(ArgumentInvalid, match="changed on its way"):
            parse_request(pb.SplitBucketRequest, changed)
        with pytest.raises(DataCorrupted, match="changed on its way"):
            parse_answer(pb.SplitBucketRequest, changed, "it")


@given(st.binary(max_size=200), st.data())
def test_octets_that_are_lost_or_come_twice_are_found(octets: bytes, data: st.DataObject) -> None:
    """A piece that is cut out, or repeated, before the seal."""
    message = sealed(octets)
    start = data.draw(st.integers(0, len(octets)))
    end = data.draw(st.integers(start, len(octets)))
    for changed in (message[:start] + message[end:], message[:end] + message[start:]):
        if changed != message:
            with pytest.raises(DataCorrupted, match="changed on its way"):
                parse_answer(pb.SplitBucketRequest, changed, "it")


def test_answers_are_sealed_if_their_request_is() -> None:
    """A client that knows no seals gets none."""
    assert sealed_like(sealed(OCTETS))(b"answer") == sealed(b"answer")
    for request in (OCTETS, b"", None):
        assert sealed_like(request)(b"answer") == b"answer"
