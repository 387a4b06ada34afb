"""Resumes: what a resume token that a client brought continues.

Invariants:

1. A token is checked by itself before anything of storage is looked at. Only for one of ours whose query names no
   columns is the table asked which ones it had.
2. A scan delivers the columns that it began with, however often it is resumed, and whatever is added to its table.

This module opens nothing, and knows no stream.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from google.protobuf.message import Message

from scanner.errors import ArgumentInvalid, ResumeTokenInvalid
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.server.fairness import pass_turn
from scanner.server.scan.tokens import TOKEN_BYTES_MAX
from scanner.storage.lineage import HISTORY_BYTES
from scanner.wire.queries import parse_request, require_short

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

    from scanner.server.scan.tokens import Tokens, TokenState
    from scanner.server.tables.catalog import Catalog, ServedTable
    from scanner.wire.queries import ScanQuery


_Request = TypeVar("_Request", bound=Message)
_FIELD_BYTES: Final = 16
"""What a token's field takes beside it, and the lengths of the messages around it."""

OF_CHANGES: Final = (pb.SCAN_SOURCE_LOG, pb.SCAN_SOURCE_HYBRID)
"""Numbers of the wire's ScanSource whose rows are changes."""


class TokenReader:
    """Reads the tokens that clients bring.

    Args:
        catalog: Table catalog of the server.
        tokens: Of the data directory.
    """

    def __init__(self, catalog: Catalog, tokens: Tokens) -> None:
        self._catalog = catalog
        self._tokens = tokens

    async def read(
        self, token: bytes, query: ScanQuery, principal: str, *, source: int, model: int
    ) -> tuple[TokenState, ScanQuery]:
        """Read a token that a client brought.

        Args:
            token: From the peer.
            query: What the peer asks for now.
            principal: Name of the peer.
            source: Number of the wire's ScanSource that it asks for.
            model: `MODEL_PUSH`, or the number of the wire's PageModel that it asks for.

        Returns:
            What the token says; and the query with the columns that the scan began with.

        Raises:
            ResumeTokenInvalid: It is damaged, or was made for another query, bucket, table, source, model or principal.
            SnapshotLost: It is right, and of another history of the bucket.
            TableNotFound: It is right, and the table is gone.

        Waits:
            For the catalog and the bucket, once the token has been found to be one of ours.
        """
        try:
            state = self._tokens.read(token, query, principal)
        except ResumeTokenInvalid:
            if query.columns or not self._tokens.made(token, principal):
                raise
            table = await self._catalog.table(query.table, query.table_id)
            state, query = await self._read_older(
                token, query, principal, table, changes=source in OF_CHANGES
            )
        table = await self._catalog.table(query.table, query.table_id)
        state.require(table_id=table.table_id, source=source, model=model)
        storage = (await self._catalog.bucket(table, state.bucket)).storage
        newest = max(state.log_offset, state.next_offset)
        storage.lineage.require(state.history, newest, storage.log_end, "the resume token")
        return state, query if query.columns else replace(query, columns=table.schema.first_columns)

    async def read_alone(
        self, token: bytes, query: ScanQuery, principal: str, *, source: int, model: int
    ) -> TokenState:
        """Read a token without asking what has become of its table, where the token alone is enough.

        Args:
            token: From the peer.
            query: What the peer asks for now.
            principal: Name of the peer.
            source: As in `read`.
            model: As in `read`.

        Raises:
            ResumeTokenInvalid: As `read`, but for another table of the same name.
            SnapshotLost, TableNotFound: As `read`, where the query names no columns and columns were added.

        Waits:
            As `read`, in that case alone.
        """
        try:
            state = self._tokens.read(token, query, principal)
        except ResumeTokenInvalid:
            state, _ = await self.read(token, query, principal, source=source, model=model)
        state.require(table_id=state.table_id, source=source, model=model)
        return state

    async def _read_older(
        self, token: bytes, query: ScanQuery, principal: str, table: ServedTable, *, changes: bool
    ) -> tuple[TokenState, ScanQuery]:
        """Read the token of a scan of all columns, when the table has had columns added, or the rows are changes."""
        refusal: ResumeTokenInvalid | None = None
        for resolved in table.schema.resolutions(query, changes=changes):
            try:
                return self._tokens.read(token, resolved, principal), resolved
            except ResumeTokenInvalid as error:
                refusal = error
            await pass_turn()  # There may be thousands, and each looks at thousands of literals.
        assert refusal is not None  # There is one resolution at least.
        raise refusal


def parse_resumable(
    kind: type[_Request], message: Buffer | None, bytes_max: int, token_of: Callable[[_Request], bytes]
) -> _Request:
    """Read a request that opens a scan or goes on with one; what just fits when it opens one can go on.

    Args:
        kind: What it is to be.
        message: From the peer; None: it has ended its side without one.
        bytes_max: Octets at most; with a resume token as many more as one can take.
        token_of: Its resume token.

    Raises:
        ArgumentInvalid: There is none, or the bytes are not that message, or too many.
    """
    request = parse_request(kind, message, bytes_max + TOKEN_BYTES_MAX + _FIELD_BYTES)
    if message is not None and not token_of(request):
        require_short(message, bytes_max)
    return request


def require_history(history: bytes, *, of_offset: bool = True) -> None:
    """Check the history that a peer names; empty: none.

    Args:
        history: From the peer.
        of_offset: Whether the peer also names the offset that it is of.

    Raises:
        ArgumentInvalid: It is none, or there is no offset that it could be of.
    """
    if history and len(history) != HISTORY_BYTES:
        raise ArgumentInvalid(f"a history has {HISTORY_BYTES} bytes, not {len(history)}")
    if history and not of_offset:
        raise ArgumentInvalid("as_of_history goes with as_of")


def offset_to_resume(state: TokenState, as_of: int | None) -> int:
    """The offset that a token names, if it is also the one that was asked for.

    Raises:
        ArgumentInvalid: Another one was asked for.
    """
    if as_of is not None and as_of != state.log_offset:
        raise ArgumentInvalid(
            f"the resume token is of a scan as of {state.log_offset}, not {as_of}; leave as_of away"
        )
    return state.log_offset
