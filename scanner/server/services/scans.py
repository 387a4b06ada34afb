"""The push side of `weir.v1.Scanner`: opens scans, or continues them, and gives each its stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from scanner.errors import ArgumentInvalid, ScanIncomplete, ScannerError, SourceUnsupported, TooManyScans
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.server.auth.access import Right, authorize, principal_of
from scanner.server.counters import Holder, HolderKind
from scanner.server.fairness import StepTurns
from scanner.server.log.bounds import Stop
from scanner.server.log.log_scan import LogScan
from scanner.server.scan.interface import BatchLimits
from scanner.server.scan.push import PushLimits, PushScan
from scanner.server.scan.resumes import OF_CHANGES, offset_to_resume, parse_resumable, require_history
from scanner.server.scan.scan_log import recorded
from scanner.server.scan.tokens import MODEL_PUSH
from scanner.wire.fields import require_few_fields
from scanner.wire.seals import sealed_like
from transport import StallReason

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from scanner.server.config import ScannerConfig
    from scanner.server.counters import Activity
    from scanner.server.groups.coordinator import GroupScan, ReaderGroup
    from scanner.server.groups.registry import ReaderGroups
    from scanner.server.log.hybrid_scan import HybridScan
    from scanner.server.log.opener import LogOpener
    from scanner.server.scan.checkpoint_scans import SnapshotScans
    from scanner.server.scan.idle_tails import IdleTails
    from scanner.server.scan.kv_scan import KvScan
    from scanner.server.scan.opener import ScanOpener
    from scanner.server.scan.park_timer import ParkTimer
    from scanner.server.scan.resumes import TokenReader
    from scanner.wire.queries import ScanQuery
    from scanner.wire.seals import Seal
    from transport import ServerStream

    OpenedScan: TypeAlias = KvScan | LogScan | HybridScan

_STREAM_ID_BYTES_MAX = 64
_SOURCES: Final = (
    pb.SCAN_SOURCE_LIVE_KV,
    pb.SCAN_SOURCE_SNAPSHOT,
    pb.SCAN_SOURCE_LOG,
    pb.SCAN_SOURCE_HYBRID,
)
_OF_AN_OFFSET: Final = (pb.SCAN_SOURCE_LIVE_KV, pb.SCAN_SOURCE_HYBRID)


def holder_of(stream: ServerStream, kind: HolderKind, source: int = pb.SCAN_SOURCE_LIVE_KV) -> Holder:
    """Who keeps a scan open.

    Args:
        stream: The call that opens it.
        kind: What keeps it open from then on.
        source: Number of the wire's ScanSource that it reads.
    """
    return Holder(
        kind,
        source_name(source).removeprefix("SCAN_SOURCE_"),
        stream.connection_id,
        stream.stream_id,
        stream.peer,
        principal_of(stream).name,
    )


def source_name(source: int) -> str:
    """Name of a number of the wire's ScanSource; the number itself if this version does not know it."""
    known = pb.ScanSource.DESCRIPTOR.values_by_number.get(source)
    return known.name if known is not None else str(source)


class ScanService:
    """Serves `Scan`.

    Args:
        opener: Opens scans of buckets.
        snapshots: Opens scans of checkpoints.
        logs: Opens scans of changelogs.
        groups: Admits those of reader groups.
        tokens: Reads the tokens that clients bring.
        config: Limits of the server.
        activity: Counts the scans.
        idle_tails: Keeps the time of those that wait for a commit.
        park_timer: And of those whose peer takes nothing.
    """

    def __init__(
        self,
        opener: ScanOpener,
        snapshots: SnapshotScans,
        logs: LogOpener,
        groups: ReaderGroups,
        tokens: TokenReader,
        config: ScannerConfig,
        activity: Activity,
        idle_tails: IdleTails,
        park_timer: ParkTimer,
    ) -> None:
        self._opener = opener
        self._snapshots = snapshots
        self._logs = logs
        self._groups = groups
        self._tokens = tokens
        self._activity = activity
        self._idle_tails = idle_tails
        self._park_timer = park_timer
        self._turns = StepTurns()
        self._config = config
        self._named: dict[tuple[str, bytes], PushScan] = {}
        """By the principal's name and the stream id."""
        self._running: dict[ServerStream, PushScan] = {}
        self._ended: set[PushScan] = set()
        """Their clients may still be reading; they take no room among the open scans."""
        self._drained_by: ScannerError | None = None
        self._opened = 0
        self._overrun_bytes = 0
        """Of those that have ended."""

    @property
    def overrun_bytes(self) -> int:
        """The furthest that a push scan was past its credit, in message bytes; one that runs included."""
        return max([self._overrun_bytes, *(stream.credit.overrun_bytes for stream in self._running)])

    @property
    def rows_running(self) -> int:
        """Rows that the push scans which run have sent."""
        return sum(push.rows for push in self._running.values())

    @property
    def scans_open(self) -> int:
        """Push scans that run, parked ones included."""
        return self._opened

    def drain(self, error: ScannerError) -> None:
        """End every scan that has no end of its own with an error and its token, those to come included."""
        self._drained_by = error
        for push in [*self._running.values(), *self._ended]:
            push.drain(error)

    def with_resume_token(self, stream: ServerStream, error: ScannerError) -> ScannerError:
        """The error that ends a call; where that is a scan, with the token that continues it."""
        push = self._running.get(stream)
        return error if push is None else push.with_resume_token(error)

    async def scan(self, stream: ServerStream) -> None:
        """Handle one call.

        Raises:
            ScannerError: The scan was refused, or failed.
            TransportError: The stream or the connection is gone.
        """
        message = await stream.receive()
        request = self._read_open(message)
        limits = self._limits(request, sealed_like(message))
        self._check(request)
        query = self._opener.read_query(request.query)
        authorize(stream, Right.READ, query.table, lasting=True)
        replaces = (principal_of(stream).name, request.stream_id) in self._named
        if self._opened - replaces >= self._config.scans_max:
            raise TooManyScans(
                f"{self._opened} scans are open on this server, and no more are allowed; try again later"
            )
        self._opened += 1
        try:
            if request.group:
                group = await self._groups.group(query.table, request.group, query.table_id)
                async with group.admitted(query.bucket, request.group_epoch) as admitted:
                    push = await self._serve(stream, request, query, limits, (group, admitted))
            else:
                push = await self._serve(stream, request, query, limits)
        finally:
            self._opened -= 1
        await self._see_off(push)

    async def _serve(
        self,
        stream: ServerStream,
        request: pb.ScanOpen,
        query: ScanQuery,
        limits: PushLimits,
        admission: tuple[ReaderGroup, GroupScan] | None = None,
    ) -> PushScan:
        """Open a scan, run and close it."""
        with stream.blocked_on(StallReason.STORAGE):
            opened = await self._open(stream, request, query)
        cut_off = True
        try:
            if admission is not None:
                group, admitted = admission
                assert isinstance(opened, LogScan)  # Else the open was refused.
                opened.group_epoch = request.group_epoch
                await group.begin(query.bucket, admitted.epoch, opened.scan.source.next_offset)
                admitted.occupy(opened.scan)
            push = await self._run(stream, request, opened, limits)
            cut_off = False
            return push
        finally:
            # A client that was cut off may come back.
            opened.scan.close(linger=cut_off)

    def _read_open(self, message: Buffer | None) -> pb.ScanOpen:
        if message is None:
            raise ArgumentInvalid("the stream ended before its scan was opened")
        # The scan keeps what is parsed, and each of these would take forty times its octets of it.
        require_few_fields(message)
        request = parse_resumable(
            pb.ScanRequest,
            message,
            self._config.unary_request_bytes_max,
            lambda request: request.open.resume_token,
        )
        kind = request.WhichOneof("request")
        if kind != "open":
            raise ArgumentInvalid(f"the first message of a scan is its open, not {kind or 'an empty one'}")
        return request.open

    @staticmethod
    def _check(request: pb.ScanOpen) -> None:
        if request.source == pb.SCAN_SOURCE_UNSPECIFIED:
            raise ArgumentInvalid("the scan names no source")
        if request.source not in _SOURCES:
            known = ", ".join(source_name(each) for each in _SOURCES)
            raise SourceUnsupported(f"this server cannot scan {source_name(request.source)}; it has {known}")
        if request.HasField("as_of") and request.source not in _OF_AN_OFFSET:
            raise ArgumentInvalid(
                "as_of goes with SCAN_SOURCE_LIVE_KV and SCAN_SOURCE_HYBRID; the others have offsets of their own"
            )
        if request.source != pb.SCAN_SOURCE_SNAPSHOT and request.lease_id:
            raise ArgumentInvalid("a lease_id goes with SCAN_SOURCE_SNAPSHOT")
        require_history(request.as_of_history, of_offset=request.HasField("as_of"))
        if request.HasField("log_start") and request.source != pb.SCAN_SOURCE_LOG:
            raise ArgumentInvalid("log_start goes with SCAN_SOURCE_LOG")
        stops = request.HasField("stop_offset") or request.stop_at_end
        if stops and request.source not in OF_CHANGES:
            raise ArgumentInvalid(
                "stop_offset and stop_at_end go with SCAN_SOURCE_LOG and SCAN_SOURCE_HYBRID"
            )
        if request.group and request.source != pb.SCAN_SOURCE_LOG:
            raise ArgumentInvalid("a reader group reads changes: group goes with SCAN_SOURCE_LOG")
        if bool(request.group) != bool(request.group_epoch):
            raise ArgumentInvalid("group and group_epoch go together: an assignment tells the epoch")
        if len(request.stream_id) > _STREAM_ID_BYTES_MAX:
            raise ArgumentInvalid(
                f"the stream id has {len(request.stream_id)} bytes; {_STREAM_ID_BYTES_MAX} are allowed"
            )

    async def _open(self, stream: ServerStream, request: pb.ScanOpen, query: ScanQuery) -> OpenedScan:
        principal = principal_of(stream).name
        if request.source in OF_CHANGES:
            return await self._open_changes(principal, request, query)
        as_of = request.as_of if request.HasField("as_of") else None
        of_snapshot = request.source == pb.SCAN_SOURCE_SNAPSHOT
        if not request.resume_token:
            if of_snapshot:
                return await self._snapshots.open(query, principal, request.lease_id)
            return await self._opener.open(
                query, principal, log_offset=as_of, history=request.as_of_history or None
            )
        state, query = await self._tokens.read(
            request.resume_token, query, principal, source=request.source, model=MODEL_PUSH
        )
        if of_snapshot:
            return await self._snapshots.resume(query, principal, state)
        return await self._opener.open(
            query,
            principal,
            log_offset=offset_to_resume(state, as_of),
            position=state.position,
            history=state.history,
        )

    async def _open_changes(
        self, principal: str, request: pb.ScanOpen, query: ScanQuery
    ) -> LogScan | HybridScan:
        as_of = request.as_of if request.HasField("as_of") else None
        stop = Stop(request.stop_offset if request.HasField("stop_offset") else None, request.stop_at_end)
        if request.resume_token:
            state, query = await self._tokens.read(
                request.resume_token, query, principal, source=request.source, model=MODEL_PUSH
            )
            stop.require(state.stop_offset)
            if request.source == pb.SCAN_SOURCE_LOG:
                return await self._logs.resume(query, principal, state)
            offset_to_resume(state, as_of)
            return await self._logs.resume_hybrid(query, principal, state)
        if request.source == pb.SCAN_SOURCE_LOG:
            return await self._logs.open(query, principal, request.log_start, stop)
        return await self._logs.open_hybrid(
            query, principal, stop, as_of=as_of, history=request.as_of_history or None
        )

    async def _run(
        self, stream: ServerStream, request: pb.ScanOpen, opened: OpenedScan, limits: PushLimits
    ) -> PushScan:
        push = PushScan(stream, opened, limits, self._idle_tails, self._park_timer, self._turns)
        name = (principal_of(stream).name, request.stream_id)
        if request.stream_id:
            dead = self._named.get(name)
            if dead is not None:
                dead.stop(ScanIncomplete("the stream was replaced by a newer one of the same stream id"))
            self._named[name] = push
        holder = opened.scan.holder = holder_of(stream, HolderKind.STREAM, request.source)
        self._running[stream] = push
        if self._drained_by is not None:
            push.drain(self._drained_by)
        try:
            with recorded(self._activity, stream, opened.query, holder, push):
                await push.run()
        finally:
            del self._running[stream]
            self._overrun_bytes = max(self._overrun_bytes, stream.credit.overrun_bytes)
            if self._named.get(name) is push:
                del self._named[name]
        return push

    async def _see_off(self, push: PushScan) -> None:
        """Keep the call of a scan that has ended open until its client has read it."""
        self._ended.add(push)
        if self._drained_by is not None:
            push.drain(self._drained_by)
        try:
            await push.wait_half_closed()
        finally:
            self._ended.discard(push)

    def _limits(self, request: pb.ScanOpen, seal: Seal) -> PushLimits:
        config = self._config
        return PushLimits(
            batch=BatchLimits(
                payload_bytes_max=min(request.batch_bytes_max or config.batch_bytes, config.batch_bytes_max),
                rows_max=min(request.batch_rows_max or config.batch_rows_max, config.batch_rows_max),
            ),
            heartbeat_interval_s=config.heartbeat_interval_s,
            idle_interval_s=(
                config.idle_interval_s if request.source in OF_CHANGES else config.heartbeat_interval_s
            ),
            park_after_s=config.park_after_s,
            seal=seal,
        )
