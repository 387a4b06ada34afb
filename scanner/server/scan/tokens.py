"""Resume tokens: where a scan stands, in bytes that the client keeps and cannot change.

A token names a log offset and a position, and nothing that the server keeps: it may be used any number of times, after
a restart, or at another server that has the data and its token keys. Version 2, big-endian:

    octets  0        version, 2
            1-4      id of the key that signed it
            5-12     table id
            13-16    bucket
            17       source, as in the wire's ScanSource
            18       model: 0 for push, else as in the wire's PageModel
            19-26    log offset that the scan is as of
            27-34    next offset, for sources that read the log
            35-42    rows delivered
            43-46    digest so far
            47-54    stored bytes that the digest covers
            55-70    history that the offset is of (`scanner.storage.lineage`)
            71-78    epoch of the reader group's assignment; 0
            79-86   TOKEN pages: snapshot id; sources that read the log: the stop offset and 1; else 0
            87-102   fingerprint of the query
            103-     encoded key of the last stored row covered; may be empty
            last 16  HMAC-SHA256, truncated, over all octets before it, then the principal and the principal's
                     length in 4 octets

Version 1 named no history: its tokens could be taken for those of a copy that was written on, and are refused.

Invariants:

1. What `read` returns is what a `TokenMint` was given, by a holder of the keys, for this query and this principal.
   Everything else is ResumeTokenInvalid, and no field is looked at before the MAC is right.
2. A token is `TOKEN_OVERHEAD_BYTES` longer than its key.
3. Tokens of every version that was ever released stay readable, or are refused by their version octet. Golden tokens
   in the tests hold that in place.

This module knows no storage, no clock and no random.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from scanner.data.keys import KEY_BYTES_MAX
from scanner.data.literals import Temporal
from scanner.data.position import Position
from scanner.errors import ResumeTokenInvalid
from scanner.storage.lineage import NO_HISTORY

if TYPE_CHECKING:
    from scanner.data.filters import LiteralValue, Predicate
    from scanner.server.scan.token_keys import TokenKeys
    from scanner.wire.queries import ScanQuery

VERSION: Final = 2
MODEL_PUSH: Final = 0
"""The model of a push scan's tokens."""

_FIELDS: Final = struct.Struct(">BIQIBBQQQIQ16sQQ16s")
_MAC_BYTES: Final = 16
_FINGERPRINT_BYTES: Final = 16
_LENGTH: Final = struct.Struct(">I")
_INTEGER: Final = struct.Struct(">q")
_NUMBER: Final = struct.Struct(">d")

TOKEN_OVERHEAD_BYTES: Final = _FIELDS.size + _MAC_BYTES
"""What a token is longer than the key that it carries."""
TOKEN_BYTES_MAX: Final = TOKEN_OVERHEAD_BYTES + KEY_BYTES_MAX

_ADVICE: Final = "start a new scan, without a token"


@dataclass(frozen=True, slots=True)
class TokenState:
    """What a token says."""

    table_id: int
    """Of the table, and of no other of the same name."""
    bucket: int
    source: int
    """Number of the wire's ScanSource."""
    model: int
    """`MODEL_PUSH`, or a number of the wire's PageModel."""
    log_offset: int
    """What the scan is as of."""
    position: Position
    history: bytes = NO_HISTORY
    """The history of the bucket that `log_offset` is of."""
    epoch: int = 0
    """Of the reader group's assignment."""
    next_offset: int = 0
    """Sources that read the log: the first offset that was not delivered."""
    snapshot_id: int = 0
    """TOKEN pages: names the snapshot that the server keeps between them; 0: it keeps nothing. Sources that read the
    log have their `stop_offset` here."""

    @property
    def stop_offset(self) -> int | None:
        """Sources that read the log: where the scan ends; None: nowhere."""
        return stop_of(self.snapshot_id)

    def require(self, *, table_id: int, source: int, model: int) -> None:
        """Check that the token is of the scan that it is to continue; `Tokens.read` has checked all the rest.

        Raises:
            ResumeTokenInvalid: It is of another.
        """
        if self.table_id != table_id:
            raise ResumeTokenInvalid(
                f"the resume token is of another table, or of one of this name that was dropped since; {_ADVICE}"
            )
        if self.source != source:
            raise ResumeTokenInvalid(
                f"the resume token is of a scan of source {self.source}, not {source};"
                f" ask for the same source again, or {_ADVICE}"
            )
        if self.model != model:
            raise ResumeTokenInvalid(
                f"the resume token was made by {_model_name(self.model)}, not by {_model_name(model)};"
                f" continue as the scan began, or {_ADVICE}"
            )


def stop_id(stop_offset: int | None) -> int:
    """What a token of a source that reads the log has for a snapshot id."""
    return 0 if stop_offset is None else stop_offset + 1


def stop_of(snapshot_id: int) -> int | None:
    """The stop offset that `stop_id` was made of."""
    return snapshot_id - 1 if snapshot_id else None


class Tokens:
    """Makes and reads tokens. Holds no state but the keys.

    Args:
        keys: Of the data directory.
        now_s: Tells the seconds since 1970 UTC; keys expire by it.
    """

    def __init__(self, keys: TokenKeys, now_s: Callable[[], float]) -> None:
        self._keys = keys
        self._now_s = now_s

    def mint_of(self, query: ScanQuery, principal: str) -> TokenMint:
        """What makes the tokens of one scan, one per batch."""
        current = self._keys.current
        return TokenMint(current.key_id, current.secret, fingerprint(query), _principal_octets(principal))

    def read(self, token: bytes, query: ScanQuery, principal: str) -> TokenState:
        """Read a token that a client brought.

        Args:
            token: From the peer.
            query: What the peer asks for now.
            principal: Who the peer is.

        Raises:
            ResumeTokenInvalid: It was changed on its way, or was made for another query or principal, or by a
                version or with a key that is not accepted (any more).
        """
        fields, last_key = self._opened(token, principal)
        return _state(fields, last_key, query)

    def made(self, token: bytes, principal: str) -> bool:
        """Whether a token is one that this server made for a principal, whatever query it is of."""
        try:
            self._opened(token, principal)
        except ResumeTokenInvalid:
            return False
        return True

    def _opened(self, token: bytes, principal: str) -> tuple[tuple[Any, ...], bytes]:
        """The fields and the key of a token that was not changed."""
        if not token:
            raise ResumeTokenInvalid(f"the resume token is empty; {_ADVICE}")
        if token[0] != VERSION:
            why = "which names no history of its bucket, " if token[0] == 1 else ""
            raise ResumeTokenInvalid(
                f"the resume token is of version {token[0]}, {why}and this server reads version {VERSION}; {_ADVICE}"
            )
        if not TOKEN_OVERHEAD_BYTES <= len(token) <= TOKEN_BYTES_MAX:
            raise ResumeTokenInvalid(f"no resume token has {len(token)} bytes; {_ADVICE}")
        fields = _FIELDS.unpack_from(token)
        secret = self._keys.secret_of(fields[1], self._now_s())
        if secret is None:
            raise ResumeTokenInvalid(
                "the resume token was made with a key that this server does not accept, or not any more, as after it"
                f" was restored from a backup; {_ADVICE}"
            )
        signed, mac = token[:-_MAC_BYTES], token[-_MAC_BYTES:]
        if not hmac.compare_digest(mac, _mac(secret, signed, _principal_octets(principal))):
            raise ResumeTokenInvalid(
                "the resume token is damaged, of another server or of this one before it was restored from a backup, or"
                f" was made for another principal; bring it as it came, or {_ADVICE}"
            )
        return fields, signed[_FIELDS.size :]


class TokenMint:
    """Makes the tokens of one scan. Made by `Tokens.mint_of`.

    Args:
        key_id: Of the key.
        secret: Of the key.
        query_fingerprint: Of the scan's query.
        principal: What is signed of it.
    """

    __slots__ = ("_fingerprint", "_key_id", "_principal", "_secret")

    def __init__(self, key_id: int, secret: bytes, query_fingerprint: bytes, principal: bytes) -> None:
        self._key_id = key_id
        self._secret = secret
        self._fingerprint = query_fingerprint
        self._principal = principal

    def token(self, state: TokenState) -> bytes:
        """Make a token; `TOKEN_OVERHEAD_BYTES` longer than the position's key. Takes a few microseconds."""
        position = state.position
        fields = _FIELDS.pack(
            VERSION,
            self._key_id,
            state.table_id,
            state.bucket,
            state.source,
            state.model,
            state.log_offset,
            state.next_offset,
            position.rows,
            position.digest,
            position.stored_bytes,
            state.history,
            state.epoch,
            state.snapshot_id,
            self._fingerprint,
        )
        signed = fields + position.last_key
        return signed + _mac(self._secret, signed, self._principal)


def fingerprint(query: ScanQuery) -> bytes:
    """16 bytes that differ between queries whose rows may differ: columns, predicates, range and limit.

    Table and bucket are no part of it; a token holds them in the clear.
    """
    digest = hashlib.sha256()
    for part in _parts(query):
        digest.update(_LENGTH.pack(len(part)))
        digest.update(part)
    return digest.digest()[:_FINGERPRINT_BYTES]


def _parts(query: ScanQuery) -> Iterator[bytes]:
    """The query as a sequence that can be read back, so that no two queries have the same."""
    yield _LENGTH.pack(len(query.columns))
    for column in query.columns:
        yield column.encode()
    yield query.range.start
    yield query.range.end
    yield b"" if query.row_limit is None else b"%d" % query.row_limit
    for predicate in query.predicates:
        yield from _predicate_parts(predicate)


def _predicate_parts(predicate: Predicate) -> Iterator[bytes]:
    yield predicate.column.encode()
    yield b"%d" % predicate.operator.value
    if predicate.operands:  # Only combinations have them, so the operator says which count comes next.
        yield _LENGTH.pack(len(predicate.operands))
        for each in predicate.operands:
            yield from _predicate_parts(each)
        return
    yield _LENGTH.pack(len(predicate.literals))
    yield from map(_literal_octets, predicate.literals)


def _literal_octets(value: LiteralValue) -> bytes:
    match value:
        case bool():
            return b"b1" if value else b"b0"
        case int():
            return b"i" + _INTEGER.pack(value)
        case float():
            return b"n" + _NUMBER.pack(value)
        case str():
            return b"t" + value.encode()
        case bytes():
            return b"y" + value
        case Decimal():
            return b"d" + str(value).encode()
        case Temporal():
            return b"m" + value.text.encode()


def _principal_octets(principal: str) -> bytes:
    octets = principal.encode()
    return octets + _LENGTH.pack(len(octets))


def _mac(secret: bytes, signed: bytes, principal: bytes) -> bytes:
    return hmac.digest(secret, signed + principal, "sha256")[:_MAC_BYTES]


def _state(fields: tuple[Any, ...], last_key: bytes, query: ScanQuery) -> TokenState:
    """The state in a token whose MAC is right, if it is one of this query."""
    _, _, table_id, bucket, source, model, log_offset, next_offset, *rest = fields
    rows, digest, stored_bytes, history, epoch, snapshot_id, made_for = rest
    if bucket != query.bucket:
        raise ResumeTokenInvalid(
            f"the resume token is of bucket {bucket}, not {query.bucket}; each bucket has its own"
        )
    if made_for != fingerprint(query):
        raise ResumeTokenInvalid(
            "the resume token was made for another query; ask for the same columns, filter, range and limit as"
            f" before, or {_ADVICE}"
        )
    return TokenState(
        table_id=table_id,
        bucket=bucket,
        source=source,
        model=model,
        log_offset=log_offset,
        position=Position(last_key, rows, digest, stored_bytes),
        history=history,
        epoch=epoch,
        next_offset=next_offset,
        snapshot_id=snapshot_id,
    )


def _model_name(model: int) -> str:
    return "a push scan" if model == MODEL_PUSH else f"page model {model}"
