"""Header blocks and header lists that repeat, whatever else changes the tables: as if nothing were remembered.

Blocks are made octet by octet, so that every representation of RFC 7541 section 6 occurs, also those that no encoder of
ours would choose. A case draws a few blocks and repeats them in any order: what was remembered is used, or must not be.
"""

from __future__ import annotations

import contextlib
from typing import Any, Final, TypeVar

import h2.exceptions
import hpack
import pytest
from h2.utilities import HeaderValidationFlags, validate_headers
from hpack.hpack import encode_integer
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support import wire
from tests.support.pair import Peer
from transport.errors import RemoteProtocolError, StatusCode
from transport.protocol.events import RequestReceived
from transport.protocol.header_blocks import BlockDecoder, BlockEncoder, HeaderRules

_HUFFMAN: Final = hpack.Encoder().huffman_coder
_INDEXED, _INCREMENTAL, _WITHOUT, _NEVER, _RESIZE = (0x80, 7), (0x40, 6), (0x00, 4), (0x10, 4), (0x20, 5)
"""The first octets of the representations, and how many of their bits belong to the number."""
_SIZES: Final = st.sampled_from([0, 33, 64, 100, 4096])
_T = TypeVar("_T")


def _number(kind: tuple[int, int], value: int) -> bytes:
    octets = encode_integer(value, kind[1])
    octets[0] |= kind[0]
    return bytes(octets)


def _text(octets: bytes, *, huffman: bool) -> bytes:
    coded = _HUFFMAN.encode(octets) if huffman else octets
    return _number((0x80 if huffman else 0, 7), len(coded)) + coded


def _few_repeated(of: st.SearchStrategy[_T]) -> st.SearchStrategy[list[_T]]:
    pools = st.lists(of, min_size=1, max_size=4)
    return pools.flatmap(lambda pool: st.lists(st.sampled_from(pool), min_size=2, max_size=24))


_OCTETS: Final = st.sampled_from([b"", b"x", b"other", b"v" * 30, b"v" * 300])
_TEXTS: Final = st.builds(_text, _OCTETS, huffman=st.booleans())
_LITERALS: Final = st.sampled_from([_INCREMENTAL, _WITHOUT, _NEVER])
_INDEXES: Final = st.one_of(st.sampled_from([2, 8, 23, 32]), st.integers(62, 66))
"""Of static entries, credentials among them, and of dynamic ones, where there are so many."""
_REPRESENTATIONS: Final = st.one_of(
    st.builds(_number, st.just(_INDEXED), _INDEXES),
    st.builds(lambda kind, name, value: _number(kind, 0) + name + value, _LITERALS, _TEXTS, _TEXTS),
    st.builds(lambda kind, index, value: _number(kind, index) + value, _LITERALS, _INDEXES, _TEXTS),
)
_RESIZES: Final[st.SearchStrategy[list[int]]] = st.one_of(st.just([]), st.lists(_SIZES, max_size=2))
_BLOCKS: Final = st.builds(
    lambda resizes, fields: b"".join(_number(_RESIZE, size) for size in resizes) + b"".join(fields),
    _RESIZES,
    st.lists(_REPRESENTATIONS, max_size=4),
)


def _decoded(decoder: hpack.Decoder, block: bytes) -> Any:
    """The fields, each with whether it may be indexed; or what is wrong."""
    try:
        fields = list(decoder.decode(block, raw=True))
    except hpack.HPACKError as error:
        return type(error)
    return [(name, value, field.indexable) for field in fields for name, value in [field]]


_EMPTIED: Final = [bytes.fromhex(block) for block in ("2082", "4001780179", "3fe11f82", "4001780179", "be")]
"""A block that is too large for an empty table, and fits into it later."""


@example(_EMPTIED)
@given(_few_repeated(_BLOCKS))
def test_blocks_are_decoded_as_if_for_the_first_time(blocks: list[bytes]) -> None:
    """Whatever was decoded before: the fields, the errors and the table of a plain decoder."""
    ours, plain = BlockDecoder(1 << 10), hpack.Decoder(1 << 10)
    for block in blocks:
        expected = _decoded(plain, block)
        assert _decoded(ours, block) == expected
        if isinstance(expected, type):
            return  # such a connection is over
        assert ours.header_table.dynamic_entries == plain.header_table.dynamic_entries
        assert ours.header_table_size == plain.header_table_size


_HEADERS: Final = st.lists(
    st.builds(
        lambda name, value, sensitive: (hpack.NeverIndexedHeaderTuple if sensitive else hpack.HeaderTuple)(
            name, value
        ),
        st.sampled_from([b":path", b"content-type", b"x-a", b"authorization"]),
        _OCTETS,
        st.booleans(),
    ),
    max_size=4,
)


@example([0, [(b"x", b"y")], [(b"x", b"y")], 4096, [], [(b"x", b"y")], [(b"x", b"y")]])
@example([64, 64, [(b"x", b"y")]])
@given(_few_repeated(st.one_of(_HEADERS, _SIZES)))
def test_lists_are_encoded_for_any_table_of_the_peer(steps: list[Any]) -> None:
    """A peer that insists on its table's size reads every list, and has the same table, after any SETTINGS."""
    encoder, peer = BlockEncoder(), hpack.Decoder()
    for step in steps:
        if isinstance(step, int):
            encoder.header_table_size = peer.max_allowed_table_size = step
            continue
        assert list(peer.decode(encoder.encode(step), raw=True)) == step
        assert peer.header_table.dynamic_entries == encoder.header_table.dynamic_entries
        assert peer.header_table_size == encoder.header_table_size


def test_changes_of_the_table_are_told_in_two_steps() -> None:
    """However often the peer changes its mind between two answers: the least size, and the last (section 4.2)."""
    encoder = BlockEncoder()
    encoder.encode([(b"x", b"y")])
    for size in (100, 300, 0, 200, 64, 64):
        encoder.header_table_size = size
    assert encoder.encode([(b":path", b"/")]) == _number(_RESIZE, 0) + _number(_RESIZE, 64) + b"\x84"
    assert encoder.encode([(b":path", b"/")]) == b"\x84"


def _request(stream_id: int, block: bytes) -> bytes:
    return wire.frame(wire.HEADERS, stream_id, block, wire.END_HEADERS)


def test_a_table_that_grows_again_keeps_the_connection() -> None:
    """A client may empty its table and let it grow: what its requests put into it afterwards is in ours as well."""
    peer, request = Peer(), wire.encode(wire.REQUEST)
    field = bytes.fromhex("4001780179")
    blocks = [b"\x20" + request, request + field, request + field, b"\x3f\xe1\x1f" + request, request + field]
    for number, block in enumerate([*blocks, request + b"\xbe"]):
        peer.send(_request(2 * number + 1, block))
    assert not peer.failed
    requests = [event.head for event in peer.events if isinstance(event, RequestReceived)]
    assert [head.metadata for head in requests] == [(), *2 * [(("x", "y"),)], (), *2 * [(("x", "y"),)]]


def test_settings_that_repeat_are_answered() -> None:
    """A client that asks twice for an empty table gets the change of size in the next header block (section 4.2)."""
    peer = Peer()
    for _ in range(2):
        peer.send(wire.settings((wire.HEADER_TABLE_SIZE, 0)))
    decoder = hpack.Decoder()
    decoder.max_allowed_table_size = 0
    stream = peer.request()
    peer.core.outbound.end_call(stream, StatusCode.OK)
    block = wire.only(peer.send(), wire.HEADERS, 1)[0].payload
    assert (b"grpc-status", b"0") in list(decoder.decode(block, raw=True))


def test_settings_that_name_the_table_twice_are_answered() -> None:
    """A client that empties its table and lets it grow, in one frame, gets both sizes in the next header block."""
    peer = Peer()
    peer.send(wire.settings((wire.HEADER_TABLE_SIZE, 0), (wire.HEADER_TABLE_SIZE, 4_096)))
    stream = peer.request()
    peer.core.outbound.end_call(stream, StatusCode.OK)
    block = wire.only(peer.send(), wire.HEADERS, 1)[0].payload
    assert block.startswith(_number(_RESIZE, 0) + _number(_RESIZE, 4_096))
    assert (b"grpc-status", b"0") in list(hpack.Decoder().decode(block, raw=True))


_SECRET: Final = b"Bearer 6c1f"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (b"authorization", _INCREMENTAL),
        (b"authorization", _WITHOUT),
        (b"proxy-authorization", _WITHOUT),
        (b"cookie", _WITHOUT),
        (b"x-api-key", _NEVER),
    ],
)
def test_secrets_are_not_remembered(name: bytes, kind: tuple[int, int]) -> None:
    """A list with a credential, or with a field that its sender says is sensitive, is decoded and checked anew."""
    decoder, rules = BlockDecoder(1 << 16), HeaderRules(client=False)
    secret = _number(kind, 0) + _text(name, huffman=False) + _text(_SECRET, huffman=False)
    for _ in range(3):
        headers = decoder.decode(wire.encode(wire.REQUEST) + secret, raw=True)
        rules.check_untrusted(headers)
        assert headers[-1] == (name, _SECRET)
    assert not decoder._known._answers
    assert not rules._request._answers


def test_a_short_block_that_means_much_is_not_remembered() -> None:
    """A field of the table is one octet of a block, and may be kilobytes of a list."""
    decoder = BlockDecoder(1 << 16)
    decoder.decode(_number(_INCREMENTAL, 0) + _text(b"x", huffman=False) + _text(bytes(1000), huffman=False))
    for _ in range(2):
        assert len(decoder.decode(b"\xbe", raw=True)) == 1
        assert len(decoder.decode(b"\x82" * 100, raw=True)) == 100
    assert not decoder._known._answers


_REQUEST: Final = [hpack.HeaderTuple(name.encode(), value.encode()) for name, value in wire.REQUEST]
_RESPONSE: Final = [hpack.HeaderTuple(name.encode(), value.encode()) for name, value in wire.RESPONSE]
_RULED: Final = st.lists(
    st.builds(
        lambda field, sensitive: (hpack.NeverIndexedHeaderTuple if sensitive else hpack.HeaderTuple)(*field),
        st.one_of(
            st.sampled_from(
                [(name.encode(), value.encode()) for name, value in (*wire.REQUEST, *wire.RESPONSE)]
            ),
            st.tuples(
                st.sampled_from(
                    [b"x-a", b"cookie", b"te", b"host", b"connection", b"X", b"x:y", b"", b":path"]
                ),
                st.sampled_from([b"", b"test", b"a b", b" a", b"a\n", b"\xc3\xa9"]),
            ),
        ),
        st.booleans(),
    ),
    max_size=4,
).flatmap(lambda extra: st.sampled_from([extra, [*_REQUEST, *extra], [*_RESPONSE, *extra]]))


def _lawful(headers: list[hpack.HeaderTuple], *, response: bool, trailers: bool) -> bool:
    """As h2 has it, which remembers nothing."""
    flags = HeaderValidationFlags(
        is_client=False, is_trailer=trailers, is_response_header=response, is_push_promise=False
    )
    try:
        return all(True for _ in validate_headers(headers, flags))
    except h2.exceptions.ProtocolError:
        return False


@given(_few_repeated(st.tuples(_RULED, st.sampled_from([(False, False), (True, False), (False, True)]))))
def test_lists_are_checked_as_if_for_the_first_time(
    steps: list[tuple[list[hpack.HeaderTuple], tuple[bool, bool]]],
) -> None:
    """Whatever was lawful before, with other sensitive fields behind it or as something else."""
    rules = HeaderRules(client=False)
    for headers, (response, trailers) in steps:
        lawful = _lawful(headers, response=response, trailers=trailers)
        with contextlib.nullcontext() if lawful else pytest.raises(RemoteProtocolError):
            rules.check_untrusted(headers, response=response, trailers=trailers)


@pytest.mark.parametrize("field", [(b"content-length", b"1"), (b"connection", b"close"), (b"x", b"a\nb")])
def test_a_sensitive_field_is_held_to_the_rules(field: tuple[bytes, bytes]) -> None:
    """One behind a list that is known to be lawful makes it unlawful."""
    rules = HeaderRules(client=False)
    rules.check_untrusted([*_REQUEST, hpack.HeaderTuple(b"content-length", b"2")])
    with pytest.raises(RemoteProtocolError):
        rules.check_untrusted(
            [*_REQUEST, hpack.HeaderTuple(b"content-length", b"2"), hpack.NeverIndexedHeaderTuple(*field)]
        )


def test_a_list_that_is_too_long_is_not_read_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of very many short fields costs what fits into the limit, not what it names."""
    decoder = BlockDecoder(1_000)
    looked_up = list[int]()
    look_up = decoder.header_table.get_by_index

    def counted(index: int) -> tuple[bytes, bytes]:
        looked_up.append(index)
        return look_up(index)

    monkeypatch.setattr(decoder.header_table, "get_by_index", counted)
    with pytest.raises(hpack.OversizedHeaderListError):
        decoder.decode(b"\x82" * 16_000, raw=True)
    assert len(looked_up) < 100


@pytest.mark.parametrize("length", [1, 126, 127, 254, 255, 5_000])
def test_long_credentials_are_read(length: int) -> None:
    """A token of any length is never indexed, and comes out as it went in."""
    encoder, decoder = BlockEncoder(), BlockDecoder(1 << 16)
    fields = [*_REQUEST, hpack.NeverIndexedHeaderTuple(b"authorization", b"t" * length)]
    for _ in range(3):
        read = decoder.decode(encoder.encode(fields), raw=True)
        assert read == fields
        assert not read[-1].indexable
