"""`ScanPage` of `weir.v1.Scanner`: one call, one page, from where the token of the page before says.

What the pages of a scan show is the model's:

    TOKEN   the snapshot of the first page, which the server keeps (`scanner.server.pull.page_snapshots`), no other
    CURSOR  the state of now, each time
    ASOF    the state of the first page, from any of `scanner.server.scan.read_sources`; the server keeps nothing

Invariants:

1. A page leaves nothing behind but what TOKEN keeps. A call may be made any number of times, also at once, and changes
   nothing for any other; the same token gives the same rows (CURSOR: of the state of now).
2. TOKEN never stands in a rebuilt state for its snapshot: when that is gone, the scan is (SNAPSHOT_LOST).
3. What a first page of TOKEN leaves is freed if the client is gone before it can have the page.

Pages are made in `scanner.server.pull.pages`.
"""

from __future__ import annotations

import functools
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from scanner.data.position import START
from scanner.errors import ArgumentInvalid, SnapshotLost, TooManyScans
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.server.auth.access import Right, authorize, principal_of
from scanner.server.counters import HolderKind
from scanner.server.pull.lifetimes import send_first
from scanner.server.pull.page_snapshots import PageSnapshots, lost
from scanner.server.pull.pages import Page, make_page, sealed
from scanner.server.scan.read_sources import ReadSource
from scanner.server.scan.resumes import offset_to_resume, parse_resumable, require_history
from scanner.server.services.scans import holder_of
from scanner.wire.arrow_ipc import encode_schema
from transport import StallReason, only_request

if TYPE_CHECKING:
    from scanner.server.config import ScannerConfig
    from scanner.server.pull.kept import Kept, KeptRegistry
    from scanner.server.scan.kv_scan import KvScan
    from scanner.server.scan.opener import ScanOpener
    from scanner.server.scan.resumes import TokenReader
    from scanner.server.scan.tokens import TokenState
    from scanner.server.tables.open_scan import OpenScan
    from scanner.sources.kv import KvSource
    from scanner.wire.queries import ScanQuery
    from transport import ServerStream

_SOURCE: Final = pb.SCAN_SOURCE_LIVE_KV
_ID_END: Final = 2**64
_GONE: Final = "it was closed, or is over"


@dataclass(frozen=True, slots=True)
class _Call:
    """One call, as far as it has been read."""

    stream: ServerStream
    request: pb.ScanPageRequest
    query: ScanQuery
    state: TokenState | None
    """Where to go on; None: the first page."""

    @property
    def principal(self) -> str:
        return principal_of(self.stream).name


class PageService:
    """Serves `ScanPage`.

    Args:
        opener: Opens scans of buckets.
        tokens: Reads the tokens that clients bring.
        config: Caps, TTL, page bounds.
    """

    def __init__(self, opener: ScanOpener, tokens: TokenReader, config: ScannerConfig) -> None:
        self._opener = opener
        self._tokens = tokens
        self._config = config
        self._making = 0
        self._snapshots: PageSnapshots[OpenScan[KvSource]] = PageSnapshots(
            config, lambda: 1 + secrets.randbelow(_ID_END - 1)
        )

    @property
    def kept(self) -> KeptRegistry[int, Kept[int, OpenScan[KvSource]]]:
        """Scans by token that are between two pages: each holds a snapshot."""
        return self._snapshots.kept

    async def call(self, stream: ServerStream) -> None:
        """Handle one call: a page or a close.

        Raises:
            ScannerError: The call was refused, or the page failed.
            TransportError: The stream or the connection is gone.
        """
        message = await only_request(stream)
        request = parse_resumable(
            pb.ScanPageRequest,
            message,
            self._config.unary_request_bytes_max,
            lambda request: request.resume_token,
        )
        _check(request)
        query = self._opener.read_query(request.query)
        if request.close:
            await self._close(stream, request, query)
            return
        authorize(stream, Right.READ, query.table)
        if self._making >= self._config.scans_max:
            raise TooManyScans(
                f"{self._making} pages are being made on this server, and no more are allowed; try again later"
            )
        self._making += 1
        try:
            await self._make_and_send(stream, request, query)
        finally:
            self._making -= 1

    async def _close(self, stream: ServerStream, request: pb.ScanPageRequest, query: ScanQuery) -> None:
        # By the token alone: whatever has become of table and rights, there is nothing to complain about.
        state = await self._tokens.read_alone(
            request.resume_token, query, principal_of(stream).name, source=_SOURCE, model=request.model
        )
        self._snapshots.close(state.snapshot_id)
        await stream.send(pb.ScanPageResponse(log_offset=state.log_offset).SerializeToString())

    async def _make_and_send(
        self, stream: ServerStream, request: pb.ScanPageRequest, query: ScanQuery
    ) -> None:
        state = None
        if request.resume_token:
            state, query = await self._tokens.read(
                request.resume_token,
                query,
                principal_of(stream).name,
                source=_SOURCE,
                model=request.model,
            )
        call = _Call(stream, request, query, state)
        if request.model != pb.PAGE_MODEL_TOKEN:
            page = await self._make_stateless(call)
        elif state is None:
            await self._begin_token(call)
            return
        else:
            try:
                page = await self._continue_token(call, state)
            except SnapshotLost as error:
                oldest = await self._opener.log_start(query)
                raise SnapshotLost(error.message, oldest_offset=oldest) from error
        await stream.send(*page.parts)

    async def _make_stateless(self, call: _Call) -> Page:
        request, state = call.request, call.state
        as_of = request.as_of if request.HasField("as_of") else None
        if request.model == pb.PAGE_MODEL_CURSOR:
            log_offset = None
        else:
            log_offset = as_of if state is None else offset_to_resume(state, as_of)
        opened = await self._open(call, log_offset)
        try:
            return await self._make(call, opened)
        finally:
            opened.scan.close()

    async def _begin_token(self, call: _Call) -> None:
        """Make the first page of a scan by token, and send it."""
        self._end_lost()
        reservation = self._snapshots.kept.reserve((call.query.table, call.query.bucket))
        kept_id = self._snapshots.kept.new_id()
        kept: Kept[int, OpenScan[KvSource]] | None = None
        try:
            opened = await self._open(call, None)
            try:
                opened.snapshot_id = kept_id
                page = await self._make(call, opened)
                if not page.last:
                    # Its snapshot stays open; what was decoded beyond the page does not.
                    opened.scan.source.close()
                    kept = self._snapshots.keep(reservation, kept_id, opened.scan, trio.current_time())
                    opened.scan.when_ended(functools.partial(self._snapshots.end, kept))
            finally:
                if kept is None:
                    opened.scan.close()
        finally:
            self._snapshots.kept.release(reservation)
        await send_first(call.stream, page, self.kept, kept, self._config.snapshot_linger_s)

    def _end_lost(self) -> None:
        """Free the slots of scans whose snapshots went when storage was opened anew: they hold nothing any more."""
        for kept in self.kept.all():
            if kept.resource.parked:
                self._snapshots.end(kept, lost(_GONE))

    async def _continue_token(self, call: _Call, state: TokenState) -> Page:
        kept = self._snapshots.enter(state.snapshot_id, trio.current_time())
        page: Page | None = None
        try:
            with call.stream.blocked_on(StallReason.STORAGE):
                opened = await self._opener.open_held(
                    call.query, call.principal, log_offset=state.log_offset, position=state.position
                )
            if opened is None:
                raise lost(_GONE)
            # Its own would go on from another read source. With none, a park would drop the last rows that were
            # decoded, and the page say that there are none.
            opened.scan.reopener = _refuse_snapshot
            opened.scan.holder = holder_of(call.stream, HolderKind.PAGE)
            opened.snapshot_id = state.snapshot_id
            try:
                page = await self._make(call, opened)
            finally:
                opened.scan.close(linger=kept is None)
        finally:
            if kept is not None:
                self._snapshots.leave(kept, trio.current_time(), made=page is not None)
        if kept is not None and page.last:
            self._snapshots.finish(kept)
        return page

    async def _open(self, call: _Call, log_offset: int | None) -> KvScan:
        state = call.state
        with call.stream.blocked_on(StallReason.STORAGE):
            opened = await self._opener.open(
                call.query,
                call.principal,
                log_offset=log_offset,
                history=(call.request.as_of_history or None) if state is None else state.history,
                position=START if state is None else state.position,
                # Only a state that is being rebuilt needs the log, and only until the page is made.
                pin_log=call.request.model == pb.PAGE_MODEL_ASOF,
                source=_SOURCE,
                model=call.request.model,
            )
        opened.scan.holder = holder_of(call.stream, HolderKind.PAGE)
        return opened

    async def _make(self, call: _Call, opened: KvScan) -> Page:
        source = opened.scan.source
        fields = pb.ScanPageResponse(log_offset=source.log_offset, history=opened.history)
        if opened.read_source is ReadSource.IMAGE:
            fields.read_source = pb.READ_SOURCE_IMAGE
        if call.state is None:
            fields.arrow_schema = encode_schema(source.schema)
            fields.scanned.CopyFrom(opened.scanned())
        with call.stream.blocked_on(StallReason.STORAGE):
            payload = await make_page(
                self._config, opened.scan, fields, call.request.batch_size_bytes, keeps_rest=False
            )
        if fields.has_more_results:
            fields.resume_token = opened.token()
        return sealed(fields, payload)


async def _refuse_snapshot() -> None:
    """Reopen nothing: a page by token is read from its snapshot only."""
    raise lost(_GONE)


def _check(request: pb.ScanPageRequest) -> None:
    """Refuse what makes no sense.

    Raises:
        ArgumentInvalid: It does not.
    """
    if request.model not in (pb.PAGE_MODEL_TOKEN, pb.PAGE_MODEL_CURSOR, pb.PAGE_MODEL_ASOF):
        raise ArgumentInvalid("a page needs a model: PAGE_MODEL_TOKEN, PAGE_MODEL_CURSOR or PAGE_MODEL_ASOF")
    if request.close:
        if not request.resume_token:
            raise ArgumentInvalid("a close needs the resume_token of the scan")
    elif not request.batch_size_bytes:
        raise ArgumentInvalid("batch_size_bytes must be above 0")
    require_history(request.as_of_history, of_offset=request.HasField("as_of"))
    if request.HasField("as_of") and request.model != pb.PAGE_MODEL_ASOF:
        raise ArgumentInvalid("only pages of PAGE_MODEL_ASOF show the bucket as of an earlier offset")
