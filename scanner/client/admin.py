"""What `weir.v1.Admin` tells, as frozen records. Pure; `scanner.client.client` asks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from scanner.data.images import ImageInfo, ImageState
from scanner.proto.weir.v1 import admin_pb2 as pb
from transport import StallReason, StallTimes

_HOLDERS: Final = {
    pb.SnapshotInfo.HOLDER_STREAM: "stream",
    pb.SnapshotInfo.HOLDER_SESSION: "session",
    pb.SnapshotInfo.HOLDER_PAGE: "page",
    pb.SnapshotInfo.HOLDER_LINGERING: "lingering",
}
_REASONS: Final = len(StallReason)


@dataclass(frozen=True, kw_only=True, slots=True)
class ScanInfo:
    """What a stream or a session reads, and what it pins."""

    table: str
    """Its name."""
    bucket: int
    """Its number, from 0."""
    source: str
    """`LIVE_KV`, ..."""
    rows: int
    """Delivered so far."""
    log_offset: int
    """The state that is pinned: the changes with a smaller offset. Of a scan of changes: the oldest one kept."""
    log_behind: int
    """Changes of the bucket since then."""
    iterator_open: bool
    """Whether a RocksDB iterator and snapshot are held now; never so for a scan of changes."""
    pinned_s: float
    """For how long they have been held; 0: they are not."""
    parked: bool = False
    """The scan could send nothing for a while and gave them up; it goes on when it can."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamInfo:
    """A call that runs at the server."""

    connection_id: int
    """Number of its connection at the server, from 1."""
    stream_id: int
    """Number of its HTTP/2 stream on that connection."""
    peer: str
    """Who is at the other end, HOST:PORT."""
    principal: str
    """Who makes the call; `anonymous` where the server asks nobody."""
    path: str
    """/package.Service/Method"""
    age_s: float
    """Seconds since it began."""
    messages_sent: int
    """By the server."""
    messages_received: int
    """By the server."""
    bytes_sent: int
    """Octets of messages that it has queued to be sent, prefixes excluded; `unsent_bytes` of them still wait."""
    bytes_received: int
    """Octets of messages received, prefixes excluded."""
    unsent_bytes: int
    """Queued at the server, and not handed to the socket."""
    buffered_bytes: int
    """Received by the server, and not taken by its handler."""
    credit_limit: int | None
    """Octets of counted messages that the client allows, in all; None: HTTP/2's windows alone."""
    credit_sent: int
    """Octets of counted messages sent."""
    send_window: int
    """What the client's window lets out on the stream now; may be negative."""
    connection_send_window: int
    """What it lets out on the connection now."""
    receive_window: int
    """What the server lets the client send on the stream now."""
    stall: StallReason
    """What holds the stream up now, as seen from the server."""
    stalls: StallTimes
    """Where its time went; adds up to its age."""
    scan: ScanInfo | None
    """Of a push scan."""

    @property
    def method(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def credit_left(self) -> int | None:
        """Octets that may be sent now, negative after an overrun; None: no limit but the windows."""
        return None if self.credit_limit is None else self.credit_limit - self.credit_sent


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotInfo:
    """A scan that pins a state of a bucket."""

    scan: ScanInfo
    holder: str
    """`stream`, `session` or `page`; empty while it is being opened; `lingering`: who held it may come back for it."""
    connection_id: int
    """Of the call that opened it, as `stream_id`, `peer` and `principal` are."""
    stream_id: int
    """Number of its HTTP/2 stream on that connection."""
    peer: str
    """Who is at the other end, HOST:PORT."""
    principal: str
    """Who made the call."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointInfo:
    """A state of a bucket that is kept on the server's disk."""

    bucket: int
    """Its number, from 0."""
    checkpoint_id: int
    """Counts a bucket's checkpoints."""
    log_offset: int
    """The state: the changes with a smaller offset, and no other."""
    timestamp_us: int
    """When it was made, in microseconds since 1970 UTC."""
    leases: int
    """How many leases keep it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogPinInfo:
    """What keeps a changelog from an offset on."""

    what: str
    """For people: `scan of the changelog`, `lease NAME`."""
    principal: str
    """Whose it is."""
    offset: int
    """The oldest change that it needs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CompactedLog:
    """The changelog of a bucket after it was cut off."""

    bucket: int
    """Its number, from 0."""
    start_offset: int
    """Offset of its oldest change now."""
    end_offset: int
    """One past its newest."""
    changes_dropped: int
    """How many changes went."""
    changes_pinned: int
    """How many would have gone, too, and are kept by `pins`."""
    pins: tuple[LogPinInfo, ...]
    """What keeps them; the one that keeps the most first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DrainBegun:
    """The answer to a request to drain."""

    streams: int
    """Calls that ran then, the request itself included."""
    already_draining: bool
    """Whether the drain had begun before."""


def stream_from_proto(info: pb.StreamInfo) -> StreamInfo:
    """Read one stream; a stall reason that this version does not know counts as RUNNING."""
    return StreamInfo(
        connection_id=info.connection_id,
        stream_id=info.stream_id,
        peer=info.peer,
        principal=info.principal,
        path=info.path,
        age_s=info.age_ms / 1000,
        messages_sent=info.messages_sent,
        messages_received=info.messages_received,
        bytes_sent=info.bytes_sent,
        bytes_received=info.bytes_received,
        unsent_bytes=info.unsent_bytes,
        buffered_bytes=info.buffered_bytes,
        credit_limit=info.credit_limit if info.HasField("credit_limit") else None,
        credit_sent=info.credit_sent,
        send_window=info.send_window,
        connection_send_window=info.connection_send_window,
        receive_window=info.receive_window,
        stall=_reason(info.stall),
        stalls=_times(info),
        scan=_scan_from_proto(info.scan) if info.HasField("scan") else None,
    )


def snapshot_from_proto(info: pb.SnapshotInfo) -> SnapshotInfo:
    """Read one pinned state."""
    return SnapshotInfo(
        scan=_scan_from_proto(info.scan),
        holder=_HOLDERS.get(info.holder, ""),
        connection_id=info.connection_id,
        stream_id=info.stream_id,
        peer=info.peer,
        principal=info.principal,
    )


def checkpoint_from_proto(info: pb.CheckpointInfo) -> CheckpointInfo:
    """Read one checkpoint."""
    return CheckpointInfo(
        bucket=info.bucket,
        checkpoint_id=info.checkpoint_id,
        log_offset=info.log_offset,
        timestamp_us=info.timestamp_us,
        leases=info.leases,
    )


def image_from_proto(info: pb.ImageInfo) -> ImageInfo:
    """Read what a server says of an image."""
    return ImageInfo(
        bucket=info.bucket,
        log_offset=info.log_offset,
        log_behind=info.log_behind,
        rows=info.rows,
        disk_bytes=info.disk_bytes,
        memory_bytes=info.memory_bytes,
    )


def image_states_from_proto(reply: pb.ListImagesResponse) -> list[ImageState]:
    """Read what a server says of the buckets of a table, by bucket."""
    images = {info.bucket: image_from_proto(info) for info in reply.images}
    reasons = {reason.bucket: reason.why for reason in reply.reasons}
    return [
        ImageState(bucket=bucket, image=images.get(bucket), why=reasons.get(bucket, ""))
        for bucket in sorted(images.keys() | reasons.keys())
    ]


def compacted_from_proto(info: pb.CompactedLog) -> CompactedLog:
    """Read what became of one changelog."""
    return CompactedLog(
        bucket=info.bucket,
        start_offset=info.start_offset,
        end_offset=info.end_offset,
        changes_dropped=info.changes_dropped,
        changes_pinned=info.changes_pinned,
        pins=tuple(
            LogPinInfo(what=pin.what, principal=pin.principal, offset=pin.offset) for pin in info.pins
        ),
    )


def _reason(number: int) -> StallReason:
    return StallReason(number) if 0 <= number < _REASONS else StallReason.RUNNING


def _times(info: pb.StreamInfo) -> StallTimes:
    nanoseconds = [0] * _REASONS
    for each in info.stalls:
        nanoseconds[_reason(each.reason)] += each.nanoseconds
    return StallTimes(tuple(nanoseconds))


def _scan_from_proto(info: pb.ScanInfo) -> ScanInfo:
    return ScanInfo(
        table=info.table,
        bucket=info.bucket,
        source=info.source,
        rows=info.rows,
        log_offset=info.log_offset,
        log_behind=info.log_behind,
        iterator_open=info.iterator_open,
        pinned_s=info.pinned_ms / 1000,
        parked=info.parked,
    )
