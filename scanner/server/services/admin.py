"""`weir.v1.Admin`: what the server is doing now, and the beginning of its end.

Every call needs the right to administer the server. What is answered names tables, peers and principals, and sizes and
times; never an id that a session or a scan could be taken over with.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import trio

from scanner.proto.weir.v1 import admin_pb2 as pb
from scanner.server.auth.access import Caller, Right, audit_call, authorize
from scanner.server.auth.audit import AuditEvent
from scanner.server.counters import HolderKind
from scanner.wire.queries import parse_request
from transport import StallReason

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from scanner.server.tables.bucket import ServedBucket
    from scanner.server.tables.catalog import Catalog
    from scanner.server.tables.open_scan import OpenScan
    from scanner.server.tables.snapshots import SharedSnapshot
    from transport import ServerStream, StallTimes

_HOLDERS = {
    HolderKind.STREAM: pb.SnapshotInfo.HOLDER_STREAM,
    HolderKind.SESSION: pb.SnapshotInfo.HOLDER_SESSION,
    HolderKind.PAGE: pb.SnapshotInfo.HOLDER_PAGE,
}
_REASONS = {reason: f"STALL_REASON_{reason.name}" for reason in StallReason}


class AdministeredServer(Protocol):
    """What this service asks of the server that it is part of."""

    def running(self) -> list[ServerStream]:
        """Every call that runs, in no order."""

    async def drain(self, timeout_s: float | None = None) -> bool:
        """Take no new calls, and wait for those that run."""


class AdminService:
    """Serves the calls of `weir.v1.Admin`.

    Args:
        catalog: Table catalog.
        nursery: Runs the drain; ends with the server.
    """

    def __init__(self, catalog: Catalog, nursery: trio.Nursery) -> None:
        self._catalog = catalog
        self._nursery = nursery
        self._server: AdministeredServer | None = None
        self.drain_begun = trio.Event()
        """Set when the drain begins."""

    def serve(self, server: AdministeredServer) -> None:
        """Name the server, which there is only once its services are."""
        self._server = server

    def calls(self) -> Mapping[str, Callable[[Buffer, ServerStream], Awaitable[bytes]]]:
        """The call of each method."""
        return {"ListStreams": self.list_streams, "ListSnapshots": self.list_snapshots, "Drain": self.drain}

    async def list_streams(self, request: Buffer, stream: ServerStream) -> bytes:
        """Answer with every call that runs.

        Raises:
            PermissionDenied: The caller may not administer the server.
        """
        authorize(stream, Right.ADMIN)
        parse_request(pb.ListStreamsRequest, request)
        scans = {}
        for table, index, bucket, scan in self._catalog.open_scans():
            if scan.holder is not None and scan.holder.kind is HolderKind.STREAM:
                at = (scan.holder.connection_id, scan.holder.stream_id)
                scans[at] = _scan_info(table, index, bucket, scan)
        streams = [_stream_info(each) for each in self._running()]
        streams.sort(key=lambda each: (each.connection_id, each.stream_id))
        for each in streams:
            if found := scans.get((each.connection_id, each.stream_id)):
                each.scan.CopyFrom(found)
        return pb.ListStreamsResponse(streams=streams).SerializeToString()

    async def list_snapshots(self, request: Buffer, stream: ServerStream) -> bytes:
        """Answer with every scan that holds a snapshot, and with the snapshots that linger; not with scans of changes.

        Raises:
            PermissionDenied: The caller may not administer the server.
        """
        authorize(stream, Right.ADMIN)
        wanted = parse_request(pb.ListSnapshotsRequest, request).table
        found = [
            _snapshot_info(table, index, bucket, scan)
            for table, index, bucket, scan in self._catalog.open_scans()
            if wanted in {"", table} and scan.holds_iterator
        ]
        found += [
            _lingering_info(table, index, bucket, lingering)
            for table, index, bucket in self._catalog.open_buckets()
            if wanted in {"", table}
            for lingering in bucket.snapshots.lingering
        ]
        found.sort(key=lambda each: (each.scan.table, each.scan.bucket, each.scan.log_offset))
        return pb.ListSnapshotsResponse(snapshots=found).SerializeToString()

    async def drain(self, request: Buffer, stream: ServerStream) -> bytes:
        """Begin the drain, and answer at once.

        Raises:
            PermissionDenied: The caller may not administer the server.
        """
        authorize(stream, Right.ADMIN)
        message = parse_request(pb.DrainRequest, request)
        assert self._server is not None
        draining = self.drain_begun.is_set()
        response = pb.DrainResponse(streams=len(self._running()), already_draining=draining)
        if not draining:
            audit_call(self._catalog.activity, AuditEvent.DRAIN_BEGUN, stream)
            timeout_s = message.timeout_ms / 1000 if message.HasField("timeout_ms") else None
            self._nursery.start_soon(functools.partial(self._server.drain, timeout_s))
        return response.SerializeToString()

    def _running(self) -> list[ServerStream]:
        return [] if self._server is None else self._server.running()


def _stream_info(stream: ServerStream) -> pb.StreamInfo:
    now = stream.statistics()
    return pb.StreamInfo(
        connection_id=now.connection_id,
        stream_id=now.stream_id,
        peer=now.peer,
        principal=stream.caller.principal.name if isinstance(stream.caller, Caller) else "",
        path=now.path,
        age_ms=round(now.age_s * 1000),
        messages_sent=now.messages_sent,
        messages_received=now.messages_received,
        bytes_sent=now.bytes_sent,
        bytes_received=now.bytes_received,
        unsent_bytes=now.unsent_bytes,
        buffered_bytes=now.buffered_bytes,
        credit_limit=now.credit_limit,
        credit_sent=now.credit_sent,
        send_window=now.send_window,
        connection_send_window=now.connection_send_window,
        receive_window=now.receive_window,
        stall=_REASONS[now.stall],
        stalls=_stall_times(now.stalls),
    )


def _stall_times(times: StallTimes) -> list[pb.StallTime]:
    return [
        pb.StallTime(reason=_REASONS[reason], nanoseconds=count)
        for reason, count in zip(StallReason, times.nanoseconds, strict=True)
        if count
    ]


def _scan_info(table: str, index: int, bucket: ServedBucket, scan: OpenScan[Any]) -> pb.ScanInfo:
    source = scan.source
    # The pin of a scan of changes moves with it; that of a state stays where the state is.
    log_offset = source.log_offset if scan.pin is None else scan.pin.offset
    return pb.ScanInfo(
        table=table,
        bucket=index,
        source="" if scan.holder is None else scan.holder.source,
        rows=source.rows,
        log_offset=log_offset,
        log_behind=max(0, bucket.storage.log_end - log_offset),
        iterator_open=scan.holds_iterator,
        pinned_ms=_age_ms(scan.opened_at) if scan.holds_iterator else 0,
        parked=scan.parked,
    )


def _age_ms(since: float) -> int:
    return round((trio.current_time() - since) * 1000)


def _lingering_info(
    table: str, index: int, bucket: ServedBucket, lingering: SharedSnapshot
) -> pb.SnapshotInfo:
    log_offset = lingering.snapshot.log_offset
    scan = pb.ScanInfo(
        table=table,
        bucket=index,
        log_offset=log_offset,
        log_behind=max(0, bucket.storage.log_end - log_offset),
        iterator_open=True,
        pinned_ms=_age_ms(lingering.opened_at),
    )
    return pb.SnapshotInfo(scan=scan, holder=pb.SnapshotInfo.HOLDER_LINGERING)


def _snapshot_info(table: str, index: int, bucket: ServedBucket, scan: OpenScan[Any]) -> pb.SnapshotInfo:
    info = pb.SnapshotInfo(scan=_scan_info(table, index, bucket, scan))
    if scan.holder is not None:
        info.holder = _HOLDERS[scan.holder.kind]
        info.connection_id = scan.holder.connection_id
        info.stream_id = scan.holder.stream_id
        info.peer = scan.holder.peer
        info.principal = scan.holder.principal
    return info
