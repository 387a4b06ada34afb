"""The `session` pull model of `weir.v1.Scanner`: `ScanSession` calls on live iterators.

Thin: the rules are the registry's (`scanner.server.pull.sessions`), the rows the source's. Pages are made
in `scanner.server.pull.pages`. What is here is giving back what a call holds on every way out of it.
"""

from __future__ import annotations

import functools
import secrets
from typing import TYPE_CHECKING, cast

import trio

from scanner.errors import ArgumentInvalid, ScannerError, SequenceInvalid
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.server.auth.access import Right, authorize, principal_of
from scanner.server.counters import Activity, HolderKind
from scanner.server.pull.lifetimes import send_first
from scanner.server.pull.pages import Page, make_page, sealed
from scanner.server.pull.sessions import Repeat, Session, SessionRegistry
from scanner.server.services.scans import holder_of
from scanner.wire.arrow_ipc import encode_schema
from scanner.wire.queries import parse_request
from transport import StallReason, only_request

if TYPE_CHECKING:
    from scanner.server.config import ScannerConfig
    from scanner.server.pull.kept import KeptRegistry
    from scanner.server.scan.opener import ScanOpener
    from scanner.server.tables.open_scan import OpenScan
    from scanner.sources.kv import KvSource
    from transport import ServerStream

_SESSION_ID_BYTES = 16


class SessionService:
    """Serves `ScanSession`.

    Args:
        opener: Makes the sources.
        config: Caps, TTL, page bounds.
        activity: Counts the sessions.
    """

    def __init__(self, opener: ScanOpener, config: ScannerConfig, activity: Activity) -> None:
        self._opener = opener
        self._activity = activity
        self._config = config
        self._registry: SessionRegistry[OpenScan[KvSource], Page] = SessionRegistry(
            config, lambda: secrets.token_bytes(_SESSION_ID_BYTES)
        )

    @property
    def kept(self) -> KeptRegistry[bytes, Session[OpenScan[KvSource], Page]]:
        """The sessions: each holds an iterator and a snapshot."""
        return self._registry.kept

    async def call(self, stream: ServerStream) -> None:
        """Handle one call: an open, a continuation or a close.

        Raises:
            ScannerError: The call was refused, or the scan failed.
            TransportError: The stream or the connection is gone.
        """
        message = await only_request(stream)
        request = parse_request(pb.ScanSessionRequest, message, self._config.unary_request_bytes_max)
        is_open = request.HasField("query")
        if is_open == bool(request.scanner_id):
            raise ArgumentInvalid(
                "a request has either a query, to open a session, or a scanner_id, to go on with it"
            )
        if request.close:
            await self._close(stream, request)
        elif not request.batch_size_bytes:
            raise ArgumentInvalid("batch_size_bytes must be above 0")
        elif is_open:
            await self._open(stream, request)
        else:
            await self._continue(stream, request)

    async def _close(self, stream: ServerStream, request: pb.ScanSessionRequest) -> None:
        if not request.scanner_id:
            raise ArgumentInvalid("a close needs the scanner_id of the session")
        self._registry.close(_key(request.scanner_id, stream))
        await stream.send(pb.ScanSessionResponse(scanner_id=request.scanner_id).SerializeToString())

    async def _open(self, stream: ServerStream, request: pb.ScanSessionRequest) -> None:
        if request.call_seq_id:
            raise SequenceInvalid(f"an open is call 0 of its session, not {request.call_seq_id}")
        query = self._opener.read_query(request.query)
        authorize(stream, Right.READ, query.table)
        reservation = self._registry.kept.reserve((query.table, query.bucket))
        try:
            with stream.blocked_on(StallReason.STORAGE):
                # The log would be of no use to a session: what it loses is lost.
                opened = await self._opener.open(query, principal_of(stream).name, pin_log=False)
            scan = opened.scan
            scan.holder = holder_of(stream, HolderKind.SESSION)
            session: Session[OpenScan[KvSource], Page] | None = None
            try:
                fields = pb.ScanSessionResponse(
                    scanner_id=self._registry.kept.new_id(),
                    log_offset=scan.source.log_offset,
                    history=opened.history,
                    read_source=opened.read_source.on_wire,
                    arrow_schema=encode_schema(scan.source.schema),
                    scanned=opened.scanned(),
                )
                with stream.blocked_on(StallReason.STORAGE):
                    page = await self._make_page(scan, fields, request.batch_size_bytes)
                if not page.last:
                    session = self._registry.admit(
                        reservation, _key(fields.scanner_id, stream), scan, page, trio.current_time()
                    )
                    scan.when_ended(functools.partial(self._registry.terminate, session))
                    self._activity.sessions_opened += 1
            finally:
                if session is None:
                    scan.close()
        finally:
            self._registry.kept.release(reservation)
        await send_first(stream, page, self.kept, session, self._config.snapshot_linger_s)

    async def _continue(self, stream: ServerStream, request: pb.ScanSessionRequest) -> None:
        session_id = _key(request.scanner_id, stream)
        claimed = self._registry.claim(session_id, request.call_seq_id, trio.current_time())
        if isinstance(claimed, Repeat):
            self._authorize_again(stream, session_id, claimed.bucket)
            await stream.send(*claimed.page.parts)
            return
        try:
            self._authorize_again(stream, session_id, claimed.bucket)
            fields = pb.ScanSessionResponse(scanner_id=request.scanner_id)
            with stream.blocked_on(StallReason.STORAGE):
                page = await self._make_page(claimed.resource, fields, request.batch_size_bytes)
        except ScannerError as error:
            # One for which there is no room now stays parked, and goes on when the call is made again.
            if not (error.retriable and claimed.resource.parked):
                self._registry.terminate(claimed, error)
            self._registry.abandon(claimed)
            raise
        except BaseException:
            self._registry.abandon(claimed)
            raise
        self._registry.complete(claimed, page, trio.current_time(), last=page.last)
        await stream.send(*page.parts)

    def _authorize_again(self, stream: ServerStream, session_id: bytes, bucket: object) -> None:
        """See that the caller may still read what a session reads; else the session ends, whatever was asked of it.

        Raises:
            PermissionDenied: The right was taken away since.
        """
        try:
            authorize(stream, Right.READ, _table_of(bucket))
        except ScannerError as error:
            session = self._registry.kept.get(session_id)
            assert session is not None  # It was claimed, or its page is to be repeated.
            self._registry.terminate(session, error)
            raise

    async def _make_page(
        self, scan: OpenScan[KvSource], fields: pb.ScanSessionResponse, size_bytes: int
    ) -> Page:
        return sealed(fields, await make_page(self._config, scan, fields, size_bytes, keeps_rest=True))


def _table_of(bucket: object) -> str:
    table, _ = cast("tuple[str, int]", bucket)
    return table


def _key(scanner_id: bytes, stream: ServerStream) -> bytes:
    """The session's id in the registry: to anybody but its principal it does not exist."""
    return scanner_id + b":" + principal_of(stream).name.encode()
