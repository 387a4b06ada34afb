"""The secrets that make resume tokens unforgeable, and their rotation with overlap.

They live in one small document of the data directory, so that tokens outlive the server's process, and go with the
data to the next server of the directory.

Invariants:

1. Tokens are made with the current key: the newest. Tokens of every key in the set are accepted.
2. A key that a rotation replaces stays accepted until it expires, as that rotation says. Then its tokens are refused,
   also by a server that runs; the key goes at the next start or rotation.
3. A key id is never given twice.

This module knows no tokens, and of storage only that it keeps documents.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from scanner.errors import DataCorrupted

TOKEN_KEYS_DOCUMENT: Final = "token_keys.json"
OVERLAP_S_DEFAULT: Final = 7 * 24 * 3600.0
"""Longer than any scan is expected to pause."""
OVERLAP_S_MAX: Final = 10 * 365 * 24 * 3600.0
SECRET_BYTES: Final = 32
KEY_ID_END: Final = 1 << 32
"""Above every key id."""


class Documents(Protocol):
    """Keeps small documents, durably: a store does."""

    def read_document(self, name: str) -> bytes | None:
        """The document's content; None if there is none."""

    def write_document(self, name: str, content: bytes) -> None:
        """Replace the document as a whole."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenKey:
    """One secret."""

    key_id: int
    """Named in each token that it signs, 1 to 2**32 - 1."""
    secret: bytes = field(repr=False)
    """`SECRET_BYTES` random bytes."""
    created_at_s: int
    """Seconds since 1970 UTC."""
    retired_at_s: int | None = None
    """When a newer key took its place; None: it is the current one."""
    expires_at_s: int | None = None
    """From when on its tokens are refused; None: not decided before it is retired."""

    def is_over(self, now_s: float) -> bool:
        """Whether its tokens are refused at a time."""
        return self.expires_at_s is not None and self.expires_at_s <= now_s


class TokenKeys:
    """A current key, and those whose tokens are accepted besides. Immutable.

    Args:
        keys: At least one, ascending by id; the last one is the current key.
    """

    def __init__(self, keys: tuple[TokenKey, ...]) -> None:
        if not keys:
            raise ValueError("there must be one token key at least")
        ids = [key.key_id for key in keys]
        if ids != sorted(set(ids)) or not 0 < ids[0] <= ids[-1] < KEY_ID_END:
            raise ValueError(f"token keys must have ascending ids in 1..{KEY_ID_END - 1}, not {ids}")
        if any(len(key.secret) != SECRET_BYTES for key in keys):
            raise ValueError(f"the secret of a token key has {SECRET_BYTES} bytes")
        self.accepted = keys
        """The keys whose tokens are accepted, oldest first; the current one is among them."""
        self._by_id = {key.key_id: key for key in keys}

    def __repr__(self) -> str:
        return f"<TokenKeys: current {self.current.key_id}, accepted {sorted(self._by_id)}>"

    @classmethod
    def create(cls, *, now_s: float, random: Callable[[int], bytes] = secrets.token_bytes) -> TokenKeys:
        """The first key of a data directory.

        Args:
            now_s: Seconds since 1970 UTC.
            random: Makes that many unpredictable bytes.
        """
        return cls((TokenKey(key_id=1, secret=random(SECRET_BYTES), created_at_s=int(now_s)),))

    @property
    def current(self) -> TokenKey:
        """The key that new tokens are made with."""
        return self.accepted[-1]

    def secret_of(self, key_id: int, now_s: float) -> bytes | None:
        """The secret of an accepted key; None if no such key is accepted, or not any more."""
        key = self._by_id.get(key_id)
        return None if key is None or key.is_over(now_s) else key.secret

    def rotate(
        self,
        *,
        now_s: float,
        overlap_s: float = OVERLAP_S_DEFAULT,
        random: Callable[[int], bytes] = secrets.token_bytes,
    ) -> TokenKeys:
        """The keys after a new one has taken over.

        Args:
            now_s: Seconds since 1970 UTC.
            overlap_s: How long the tokens of the key that it replaces are accepted, seconds, 0 to `OVERLAP_S_MAX`.
            random: Makes that many unpredictable bytes.

        Raises:
            ValueError: `overlap_s` is out of its range.
        """
        if not 0 <= overlap_s <= OVERLAP_S_MAX:
            raise ValueError(f"overlap_s must be 0 to {OVERLAP_S_MAX:.0f}, not {overlap_s}")
        current = self.current
        retired = TokenKey(
            key_id=current.key_id,
            secret=current.secret,
            created_at_s=current.created_at_s,
            retired_at_s=int(now_s),
            expires_at_s=int(now_s + overlap_s),
        )
        fresh = TokenKey(key_id=current.key_id + 1, secret=random(SECRET_BYTES), created_at_s=int(now_s))
        return TokenKeys((*self.accepted[:-1], retired, fresh)).without_expired(now_s=now_s)

    def without_expired(self, *, now_s: float) -> TokenKeys:
        """The keys without those that have expired; the current one always stays."""
        return TokenKeys(tuple(key for key in self.accepted if not key.is_over(now_s)))

    def to_document(self) -> bytes:
        """What is kept in the data directory."""
        keys = [
            {
                "id": key.key_id,
                "secret": key.secret.hex(),
                "created_at_s": key.created_at_s,
                "retired_at_s": key.retired_at_s,
                "expires_at_s": key.expires_at_s,
            }
            for key in self.accepted
        ]
        return json.dumps({"keys": keys}, indent=1).encode() + b"\n"

    @classmethod
    def from_document(cls, content: bytes) -> TokenKeys:
        """Read what `to_document` wrote.

        Raises:
            DataCorrupted: It cannot be read.
        """
        try:
            keys = cls(tuple(map(_key_from_json, json.loads(content)["keys"])))
            if keys.current.retired_at_s is not None:
                raise ValueError(f"its newest key, {keys.current.key_id}, is retired")
        except (ValueError, KeyError, TypeError) as error:
            raise _unreadable(error) from error
        return keys


def load_token_keys(store: Documents, *, now_s: Callable[[], float] = time.time) -> TokenKeys:
    """The keys of a data directory: those that it holds and that have not expired, or, the first time, a new one.

    Args:
        store: Holds the document.
        now_s: Tells the seconds since 1970 UTC.

    Raises:
        DataCorrupted: The document cannot be read; the message says what to do.
        StoreFailed: The disk refused it.

    Waits:
        For the disk, blocking.
    """
    try:
        content = store.read_document(TOKEN_KEYS_DOCUMENT)
    except DataCorrupted as error:
        raise _unreadable(error) from error
    if content is None:
        keys = TokenKeys.create(now_s=now_s())
        store.write_document(TOKEN_KEYS_DOCUMENT, keys.to_document())
        return keys
    return TokenKeys.from_document(content).without_expired(now_s=now_s())


def rotate_token_keys(
    store: Documents,
    *,
    overlap_s: float = OVERLAP_S_DEFAULT,
    now_s: Callable[[], float] = time.time,
) -> TokenKeys:
    """Give a data directory a new current key; the one before stays accepted for `overlap_s`.

    A server that has read the keys before goes on with those until it is started again.

    Raises:
        DataCorrupted, StoreFailed: As `load_token_keys`; nothing has changed.
        ValueError: As `TokenKeys.rotate`; nothing has changed.
    """
    keys = load_token_keys(store, now_s=now_s)
    rotated = keys.rotate(now_s=now_s(), overlap_s=overlap_s)
    store.write_document(TOKEN_KEYS_DOCUMENT, rotated.to_document())
    return rotated


def _unreadable(error: Exception) -> DataCorrupted:
    return DataCorrupted(
        f"{TOKEN_KEYS_DOCUMENT} in the data directory cannot be read ({error}): restore it from a copy, or remove it,"
        " which makes every resume token invalid that was made with it"
    )


def _key_from_json(fields: dict[str, object]) -> TokenKey:
    key_id, secret = fields["id"], fields["secret"]
    created_at_s, retired_at_s, expires_at_s = (
        fields[name] for name in ("created_at_s", "retired_at_s", "expires_at_s")
    )
    if not (
        isinstance(key_id, int)
        and isinstance(secret, str)
        and isinstance(created_at_s, int)
        and isinstance(retired_at_s, int | None)
        and isinstance(expires_at_s, int | None)
    ):
        raise TypeError(f"key {key_id} has a field of another type")
    return TokenKey(
        key_id=key_id,
        secret=bytes.fromhex(secret),
        created_at_s=created_at_s,
        retired_at_s=retired_at_s,
        expires_at_s=expires_at_s,
    )
