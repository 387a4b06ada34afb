"""Token keys: kept in a document, replaced with overlap, never guessed at."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.errors import DataCorrupted
from scanner.server.scan.token_keys import (
    OVERLAP_S_DEFAULT,
    OVERLAP_S_MAX,
    SECRET_BYTES,
    TOKEN_KEYS_DOCUMENT,
    TokenKey,
    TokenKeys,
    load_token_keys,
    rotate_token_keys,
)


class Drawer:
    """Keeps documents in memory."""

    def __init__(self) -> None:
        self.documents: dict[str, bytes] = {}

    def read_document(self, name: str) -> bytes | None:
        return self.documents.get(name)

    def write_document(self, name: str, content: bytes) -> None:
        self.documents[name] = content


def key(key_id: int) -> TokenKey:
    return TokenKey(key_id=key_id, secret=bytes(SECRET_BYTES), created_at_s=0)


def test_the_first_load_makes_a_key_and_later_ones_find_it() -> None:
    """A new data directory gets one random key, which is the same after a restart."""
    drawer = Drawer()
    first = load_token_keys(drawer, now_s=lambda: 1000.5)
    assert (first.current.key_id, first.current.created_at_s) == (1, 1000)
    assert load_token_keys(drawer).accepted == first.accepted
    assert load_token_keys(Drawer()).current.secret != first.current.secret


def test_rotation_overlaps() -> None:
    """The new key signs, the old one is accepted until the overlap is over, and no id comes again."""
    drawer = Drawer()
    load_token_keys(drawer, now_s=lambda: 0)
    for now_s in (100.0, 200.0, 300.0):
        keys = rotate_token_keys(drawer, overlap_s=150, now_s=lambda: now_s)  # noqa: B023
    assert keys.current.key_id == 4
    assert [each.key_id for each in keys.accepted] == [2, 3, 4]
    assert keys.secret_of(1, 300) is None
    assert keys.secret_of(3, 449.9) == keys.accepted[1].secret
    assert keys.secret_of(3, 450) is None
    assert [each.retired_at_s for each in keys.accepted] == [200, 300, None]
    assert [each.expires_at_s for each in keys.accepted] == [350, 450, None]
    assert load_token_keys(drawer, now_s=lambda: 300).accepted == keys.accepted


@pytest.mark.parametrize("overlap_s", [-1.0, OVERLAP_S_MAX + 1, float("inf"), float("nan")])
def test_an_overlap_out_of_range_changes_nothing(overlap_s: float) -> None:
    """It is refused, and the keys are what they were."""
    drawer = Drawer()
    keys = load_token_keys(drawer, now_s=lambda: 0)
    with pytest.raises(ValueError, match="overlap_s must be 0 to"):
        rotate_token_keys(drawer, overlap_s=overlap_s, now_s=lambda: 0)
    assert load_token_keys(drawer, now_s=lambda: 0).accepted == keys.accepted


def test_expired_keys_are_not_loaded() -> None:
    """A key that was retired too long ago is not accepted after a restart; the current one always is."""
    drawer = Drawer()
    load_token_keys(drawer, now_s=lambda: 0)
    rotate_token_keys(drawer, now_s=lambda: 10)
    for now_s, accepted in ((10 + OVERLAP_S_DEFAULT - 1, [1, 2]), (10 + OVERLAP_S_DEFAULT, [2])):
        loaded = load_token_keys(drawer, now_s=lambda: now_s)  # noqa: B023
        assert [each.key_id for each in loaded.accepted] == accepted


@given(secrets=st.lists(st.binary(min_size=SECRET_BYTES, max_size=SECRET_BYTES), min_size=1, max_size=5))
def test_the_document_holds_the_keys(secrets: list[bytes]) -> None:
    """Writing and reading the document gives the same keys."""
    keys = TokenKeys.create(now_s=0, random=lambda _: secrets[0])
    for index, secret in enumerate(secrets[1:]):
        keys = keys.rotate(now_s=index, random=lambda _, secret=secret: secret)  # type: ignore[misc]
    assert TokenKeys.from_document(keys.to_document()).accepted == keys.accepted


def test_secrets_are_not_shown() -> None:
    """Neither a key nor the set of keys shows a secret where it is printed."""
    keys = TokenKeys.create(now_s=0, random=lambda _: b"S" * SECRET_BYTES)
    assert "SSS" not in f"{keys!r} {keys.current!r} {keys.accepted}"


def good() -> dict[str, object]:
    return {
        "id": 1,
        "secret": "00" * SECRET_BYTES,
        "created_at_s": 0,
        "retired_at_s": None,
        "expires_at_s": None,
    }


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        json.dumps({"keys": []}).encode(),
        json.dumps({"keys": [{"id": 1}]}).encode(),
        json.dumps({"keys": [good(), good()]}).encode(),
        json.dumps({"keys": [{**good(), "id": 0}]}).encode(),
        json.dumps({"keys": [{**good(), "id": "1"}]}).encode(),
        json.dumps({"keys": [{**good(), "secret": "00"}]}).encode(),
        json.dumps({"keys": [{**good(), "secret": "zz"}]}).encode(),
        json.dumps({"keys": [{**good(), "retired_at_s": 5}]}).encode(),
        json.dumps({"keys": [{**good(), "expires_at_s": 0.5}]}).encode(),
    ],
)
def test_a_document_that_cannot_be_read_is_no_new_one(content: bytes) -> None:
    """A damaged document fails the start, and says what to do, instead of making every token invalid silently."""
    drawer = Drawer()
    drawer.documents[TOKEN_KEYS_DOCUMENT] = content
    with pytest.raises(DataCorrupted, match="restore it from a copy, or remove it"):
        load_token_keys(drawer)
    assert drawer.documents[TOKEN_KEYS_DOCUMENT] == content


@pytest.mark.parametrize("keys", [(), (key(2), key(1)), (key(1), key(1)), (key(0),), (key(1 << 32),)])
def test_ids_ascend(keys: tuple[TokenKey, ...]) -> None:
    """Keys without order, without a current one or with an impossible id are refused."""
    with pytest.raises(ValueError, match="token key"):
        TokenKeys(keys)
