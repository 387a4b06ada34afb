"""Remembered header blocks mean what they would mean if nothing were remembered."""

from __future__ import annotations

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport.errors import RemoteProtocolError, StatusCode
from transport.protocol import calls
from transport.protocol.header_blocks import BlockDecoder, BlockEncoder, HeaderRules

_NAMES = st.sampled_from([b":path", b"content-type", b"x-a", b"x-b", b"grpc-status", b"authorization"])
_VALUES = st.sampled_from([b"", b"0", b"application/grpc", b"/a.B/C", b"v" * 300, b"other"])
_FIELDS = st.builds(
    lambda name, value, sensitive: hpack.NeverIndexedHeaderTuple(name, value) if sensitive else (name, value),
    _NAMES,
    _VALUES,
    st.booleans(),
)
_LISTS = st.lists(_FIELDS, max_size=6)
_STEPS = st.lists(st.one_of(_LISTS, st.sampled_from([0, 64, 200, 4096])), max_size=30)
"""Header lists to code, and sizes that the dynamic table is given in between."""


@given(_STEPS)
def test_blocks_mean_what_they_say(steps: list[list[tuple[bytes, bytes]] | int]) -> None:
    """Whatever is repeated, evicted or resized: two plain decoders, and ours, read what was encoded."""
    encoder, ours, plain = BlockEncoder(), BlockDecoder(1 << 16), hpack.Decoder()
    for step in steps:
        if isinstance(step, int):
            if step != encoder.header_table_size:  # hpack does not announce a size that is given twice
                encoder.header_table_size = step
            continue
        block = encoder.encode(step)
        assert ours.decode(block, raw=True) == [tuple(field) for field in step]
        assert list(plain.decode(block, raw=True)) == [tuple(field) for field in step]
        assert ours.header_table.dynamic_entries == plain.header_table.dynamic_entries
        assert ours.header_table.dynamic_entries == encoder.header_table.dynamic_entries


@given(_STEPS)
def test_blocks_of_other_encoders_are_read(steps: list[list[tuple[bytes, bytes]] | int]) -> None:
    """As hpack's own encoder makes them, Huffman codes and all."""
    encoder, ours = hpack.Encoder(), BlockDecoder(1 << 16)
    for step in steps:
        if isinstance(step, int):
            if step != encoder.header_table_size:
                encoder.header_table_size = step
        else:
            assert ours.decode(encoder.encode(step), raw=True) == [tuple(field) for field in step]


def test_what_repeats_is_coded_once() -> None:
    """From the second time on a call's fields are a few octets, the same object each time."""
    encoder = BlockEncoder()
    fields = calls.response_headers()
    encoder.encode(fields)
    assert encoder.encode(fields) is encoder.encode(fields)


def test_what_is_left_of_a_deadline_is_not_indexed() -> None:
    """Timeouts that are another one each time push nothing out of the table; a round one is coded once."""

    def opening(timeout_s: float) -> calls.Headers:
        return calls.request_headers(
            "/a.B/C", "host", scheme="http", timeout_s=timeout_s, metadata=[("x", "y")]
        )

    encoder, decoder = BlockEncoder(), BlockDecoder(1 << 16)
    encoder.encode(opening(30))
    entries = list(encoder.header_table.dynamic_entries)
    assert encoder.encode(opening(30)) is encoder.encode(opening(30.0))
    for number in range(200):
        encoder.encode(opening(30 - number * 0.001_01))
    assert len(encoder.header_table.dynamic_entries) <= len(entries) + 2  # one in a hundred of these is round
    plain = BlockEncoder()
    read = decoder.decode(plain.encode(opening(29.998_99)), raw=True)
    assert calls.parse_request(read).timeout_s == pytest.approx(29.998_99)


def test_sensitive_fields_stay_sensitive() -> None:
    """A credential is never indexed, however often it is sent, and never remembered for another field."""
    encoder, decoder = BlockEncoder(), BlockDecoder(1 << 16)
    fields = calls.request_headers(
        "/a.B/C", "host", scheme="http", timeout_s=None, metadata=[("authorization", "Bearer secret")]
    )
    for _ in range(3):
        last = decoder.decode(encoder.encode(fields), raw=True)[-1]
        assert last == (b"authorization", b"Bearer secret")
        assert not last.indexable
    assert all(b"secret" not in value for _, value in encoder.header_table.dynamic_entries)


def test_a_bound_on_lists_holds_for_what_is_remembered() -> None:
    """A list that is too long is refused the second time as well."""
    encoder, decoder = hpack.Encoder(), BlockDecoder(100)
    block = encoder.encode([(b"x-a", b"v" * 300)])
    again = encoder.encode([(b"x-a", b"v" * 300)])
    for octets in (block, again, again):
        with pytest.raises(hpack.OversizedHeaderListError):
            decoder.decode(octets, raw=True)


def test_what_is_remembered_is_bounded() -> None:
    """A peer that sends ever new blocks makes neither coder nor rules grow."""
    encoder, decoder, rules = BlockEncoder(), BlockDecoder(1 << 16), HeaderRules(client=True)
    for number in range(1000):
        stalls = hpack.NeverIndexedHeaderTuple(b"weir-stalls", b"%d" % number)
        fields = [*calls.trailers(StatusCode.OK), stalls]
        headers = decoder.decode(encoder.encode(fields), raw=True)
        rules.check_untrusted(headers, trailers=True)
    assert len(decoder._known._answers) <= 32
    assert len(encoder._known._answers) <= 32
    assert len(rules._trailers._answers) <= 32


@pytest.mark.parametrize(
    "headers",
    [
        [(b":status", b"200"), (b"Upper", b"x")],
        [(b":status", b"200"), (b"connection", b"close")],
        [(b":status", b"200"), (b"x", b"a\nb")],
        [(b"x", b"a"), (b":status", b"200")],
        [(b":path", b"/")],
    ],
)
def test_forbidden_lists_are_refused_each_time(headers: list[tuple[bytes, bytes]]) -> None:
    """What is forbidden is not remembered as lawful."""
    rules = HeaderRules(client=True)
    for _ in range(2):
        with pytest.raises(RemoteProtocolError):
            rules.check_untrusted(headers, response=True)


def test_a_lawful_answer_is_no_lawful_trailer() -> None:
    """What a list is allowed as is remembered with it."""
    rules = HeaderRules(client=True)
    headers = [(b":status", b"200"), (b"content-type", b"application/grpc")]
    rules.check_untrusted(headers, response=True)
    with pytest.raises(RemoteProtocolError):
        rules.check_untrusted(headers, trailers=True)
