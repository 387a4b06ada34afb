"""Resume tokens: what was minted is what is read, and nothing else is read at all."""

from __future__ import annotations

import dataclasses
import json
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st

from scanner.data.filters import Operator, Predicate
from scanner.data.keys import KEY_BYTES_MAX, KeyRange
from scanner.data.position import Position
from scanner.errors import ResumeTokenInvalid
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.server.scan.token_keys import TokenKeys
from scanner.server.scan.tokens import MODEL_PUSH, TOKEN_OVERHEAD_BYTES, Tokens, TokenState, fingerprint
from scanner.wire.queries import ScanQuery, query_from_proto
from tests.support.predicates import PREDICATES

GOLDEN = Path(__file__).parent / "golden" / "tokens.json"
SECRETS = [bytes([index]) * 32 for index in range(3)]


def at_once() -> float:
    """A time at which no key has expired."""
    return 0.0


def keys_of(secret: bytes = SECRETS[0]) -> TokenKeys:
    """One key that is the same every time."""
    return TokenKeys.create(now_s=0, random=lambda _: secret)


def unsigned(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, 2**bits - 1)


QUERIES = st.builds(
    ScanQuery,
    table=st.text(min_size=1, max_size=5),
    bucket=unsigned(32),
    columns=st.lists(st.text(max_size=5), max_size=3).map(tuple),
    predicates=st.lists(PREDICATES, max_size=3).map(tuple),
    row_limit=st.none() | unsigned(64),
    range=st.builds(KeyRange, st.binary(max_size=9), st.binary(max_size=9)),
)
POSITIONS = st.builds(Position, st.binary(max_size=200), unsigned(64), unsigned(32))


@st.composite
def cases(draw: st.DrawFn) -> tuple[TokenState, ScanQuery, str]:
    """A state, the query that it is of, and whose it is."""
    query = draw(QUERIES)
    state = TokenState(
        table_id=draw(unsigned(64)),
        bucket=query.bucket,
        source=draw(unsigned(8)),
        model=draw(unsigned(8)),
        log_offset=draw(unsigned(64)),
        position=draw(POSITIONS),
        epoch=draw(unsigned(32)),
        next_offset=draw(unsigned(64)),
        snapshot_id=draw(unsigned(64)),
    )
    return state, query, draw(st.text(max_size=10))


QUERY = ScanQuery(
    table="items",
    bucket=2,
    columns=("a", "b"),
    predicates=(Predicate("a", Operator.IN, (1, "x")), Predicate("b", Operator.IS_NULL)),
    row_limit=10,
    range=KeyRange(b"\x80", b"\x90"),
)
STATE = TokenState(
    table_id=5,
    bucket=2,
    source=pb.SCAN_SOURCE_LIVE_KV,
    model=MODEL_PUSH,
    log_offset=1234,
    position=Position(b"\x85key", 77, 0xDEADBEEF),
    epoch=3,
    next_offset=4,
    snapshot_id=6,
)
TOKENS = Tokens(keys_of(), at_once)
TOKEN = TOKENS.mint_of(QUERY, "reader").token(STATE)


def refused(token: bytes, query: ScanQuery = QUERY, principal: str = "reader") -> str:
    """What a refusal says; there must be one, and it must say what to do."""
    with pytest.raises(ResumeTokenInvalid) as caught:
        TOKENS.read(token, query, principal)
    assert "start a new scan" in caught.value.message or "its own" in caught.value.message
    return caught.value.message


@given(case=cases())
def test_a_token_is_read_as_it_was_minted(case: tuple[TokenState, ScanQuery, str]) -> None:
    """Whatever the state, the query and the principal, the token gives the state back, and is small."""
    state, query, principal = case
    token = TOKENS.mint_of(query, principal).token(state)
    assert TOKENS.read(token, query, principal) == state
    assert len(token) == TOKEN_OVERHEAD_BYTES + len(state.position.last_key)
    assert TOKEN_OVERHEAD_BYTES <= 1024


@given(case=cases(), other=cases())
def test_a_token_is_of_one_query_and_one_principal(
    case: tuple[TokenState, ScanQuery, str], other: tuple[TokenState, ScanQuery, str]
) -> None:
    """Another principal reads nothing, and another query fits only if it asks for the same."""
    state, query, principal = case
    _, other_query, other_principal = other
    token = TOKENS.mint_of(query, principal).token(state)
    if other_principal != principal:
        refused(token, query, other_principal)
    # Names of tables are checked by their ids, which are in the state.
    if dataclasses.replace(other_query, table=query.table) != query:
        refused(token, other_query, principal)


@given(token=st.binary(max_size=400))
def test_no_octets_but_a_token_are_read(token: bytes) -> None:
    """Octets that nobody minted are refused, whatever they are."""
    refused(token)
    refused(TOKEN[:1] + token)
    refused(TOKEN[:5] + token)


def test_every_bit_counts() -> None:
    """A token with any one of its bits flipped is refused."""
    for index in range(8 * len(TOKEN)):
        damaged = bytearray(TOKEN)
        damaged[index // 8] ^= 1 << index % 8
        refused(bytes(damaged))


def test_every_octet_counts() -> None:
    """A token cut short anywhere, or with anything added, in front, inside or behind, is refused."""
    for index in range(len(TOKEN)):
        refused(TOKEN[:index])
        refused(TOKEN[index + 1 :])
        refused(TOKEN[:index] + TOKEN[index + 1 :])
        refused(TOKEN[:index] + b"\x00" + TOKEN[index:])
    refused(TOKEN + b"\x00")
    refused(TOKEN + TOKEN)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"bucket": 1}, "bucket 2, not 1"),
        ({"columns": ("b", "a")}, "another query"),
        ({"columns": ("ab",)}, "another query"),
        ({"columns": ()}, "another query"),
        ({"predicates": QUERY.predicates[:1]}, "another query"),
        ({"predicates": QUERY.predicates[::-1]}, "another query"),
        (
            {"predicates": (Predicate("a", Operator.IN, (True, "x")), QUERY.predicates[1])},
            "another query",
        ),
        (
            {"predicates": (Predicate("a", Operator.IN, (1.0, "x")), QUERY.predicates[1])},
            "another query",
        ),
        (
            {"predicates": (Predicate("a", Operator.IN, (1, b"x")), QUERY.predicates[1])},
            "another query",
        ),
        (
            {"predicates": (Predicate("a", Operator.IN, (Decimal(1), "x")), QUERY.predicates[1])},
            "another query",
        ),
        ({"predicates": (Predicate("", Operator.AND, (), QUERY.predicates),)}, "another query"),
        ({"predicates": (Predicate("", Operator.OR, (), QUERY.predicates),)}, "another query"),
        (
            {"predicates": (QUERY.predicates[0], Predicate("", Operator.NOT, (), QUERY.predicates[1:]))},
            "another query",
        ),
        ({"row_limit": None}, "another query"),
        ({"row_limit": 0}, "another query"),
        ({"range": KeyRange(b"\x80")}, "another query"),
        ({"range": KeyRange(b"", b"\x80\x90")}, "another query"),
    ],
    ids=str,
)
def test_another_query_is_refused(changes: dict[str, Any], says: str) -> None:
    """A token fits its query alone: columns and their order, predicates, literals and their types, limit, range."""
    assert says in refused(TOKEN, dataclasses.replace(QUERY, **changes))


@pytest.mark.parametrize("principal", ["", "Reader", "reader ", "reade", "other"])
def test_another_principal_is_refused(principal: str) -> None:
    """A token that another principal brings is refused."""
    assert "another principal" in refused(TOKEN, principal=principal)


def test_octets_cannot_move_between_key_and_principal() -> None:
    """Octets of the principal do not pass for octets of the key, nor the other way."""
    state = dataclasses.replace(STATE, position=Position(b"kr", 1, 2))
    mac = TOKENS.mint_of(QUERY, "eader").token(state)[-16:]
    shorter = dataclasses.replace(state, position=Position(b"k", 1, 2))
    refused(TOKENS.mint_of(QUERY, "reader").token(shorter)[:-16] + mac)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"table_id": 6}, "of another table, or .* dropped since"),
        ({"source": pb.SCAN_SOURCE_SNAPSHOT}, "source 1, not 2"),
        ({"model": pb.PAGE_MODEL_ASOF}, "by a push scan, not by page model 3"),
    ],
)
def test_another_scan_is_refused(changes: dict[str, int], says: str) -> None:
    """A token continues no scan of a later table of the same name, of another source or of another model."""
    of_scan = {"table_id": STATE.table_id, "source": STATE.source, "model": STATE.model}
    STATE.require(**of_scan)
    with pytest.raises(ResumeTokenInvalid, match=says):
        STATE.require(**{**of_scan, **changes})


def test_an_unknown_version_is_refused() -> None:
    """A token of a version that is not known is refused by that version, even if its MAC were right."""
    assert "version 3" in refused(b"\x03" + TOKEN[1:])
    assert "version 1, which names no history" in refused(b"\x01" + TOKEN[1:])
    assert "version 0" in refused(b"\x00" + TOKEN[1:])


def test_an_unknown_key_is_refused() -> None:
    """A token that names a key which is not accepted is refused; so is one by another server's key of that id."""
    assert "key that this server does not accept" in refused(TOKEN[:1] + struct.pack(">I", 9) + TOKEN[5:])
    elsewhere = Tokens(keys_of(SECRETS[1]), at_once)
    assert "damaged" in refused(elsewhere.mint_of(QUERY, "reader").token(STATE))


def test_the_longest_key_fits() -> None:
    """A token carries the longest key that can be stored, and no longer one is looked at."""
    state = dataclasses.replace(STATE, position=Position(b"\xff" * KEY_BYTES_MAX, 1, 2))
    token = TOKENS.mint_of(QUERY, "reader").token(state)
    assert TOKENS.read(token, QUERY, "reader") == state
    assert "no resume token has" in refused(token + b"\x00")


def test_tokens_outlive_a_rotation() -> None:
    """After a rotation old tokens are read and new ones signed by the new key; once the overlap is over, only these."""
    old = keys_of()
    new = old.rotate(now_s=100, overlap_s=50, random=lambda _: SECRETS[1])
    assert Tokens(new, at_once).read(TOKEN, QUERY, "reader") == STATE
    fresh = Tokens(new, at_once).mint_of(QUERY, "reader").token(STATE)
    refused(fresh)
    assert Tokens(new, lambda: 149.9).read(TOKEN, QUERY, "reader") == STATE
    for later in (Tokens(new, lambda: 150), Tokens(new.without_expired(now_s=150), at_once)):
        assert later.read(fresh, QUERY, "reader") == STATE
        with pytest.raises(ResumeTokenInvalid, match="not any more"):
            later.read(TOKEN, QUERY, "reader")


def test_the_table_name_is_no_part_of_the_fingerprint() -> None:
    """What differs by table or bucket is told apart by the state, with words of its own."""
    assert fingerprint(dataclasses.replace(QUERY, table="other", bucket=9)) == fingerprint(QUERY)


def test_golden_tokens_stay_readable() -> None:
    """Tokens of released versions are read, and those of this version are made, byte for byte; version 1 is refused."""
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    keys = TokenKeys.from_document(json.dumps(golden["keys"]).encode())
    read = 0
    for case in golden["tokens"]:
        message = json_format.ParseDict(case["query"], pb.ScanQuery())
        query = query_from_proto(message, predicates_max=64, literals_max=100)
        said = dict(case["state"])
        token = bytes.fromhex(case["token"])
        if token[0] == 1:
            with pytest.raises(ResumeTokenInvalid, match="version 1, which names no history"):
                Tokens(keys, at_once).read(token, query, case["principal"])
            continue
        position = Position(
            bytes.fromhex(said.pop("last_key")),
            said.pop("rows"),
            said.pop("digest"),
            said.pop("stored_bytes"),
        )
        state = TokenState(position=position, history=bytes.fromhex(said.pop("history")), **said)
        read += 1
        assert Tokens(keys, at_once).read(token, query, case["principal"]) == state, case["name"]

        key_id = struct.unpack_from(">I", token, 1)[0]
        signer = TokenKeys(tuple(key for key in keys.accepted if key.key_id <= key_id))
        assert Tokens(signer, at_once).mint_of(query, case["principal"]).token(state) == token, case["name"]
    assert read >= 8
