"""What a running server still holds: asked of the server itself by its Admin service, and of the system."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import psutil

from scanner.proto.weir.v1 import admin_pb2
from scanner.wire import methods

if TYPE_CHECKING:
    import transport


_LIST_STREAMS: Final = methods.ADMIN + "ListStreams"


@dataclass(frozen=True, kw_only=True, slots=True)
class Holdings:
    """What a server holds, the connection that asks left out."""

    streams: int
    """Calls that run; each has one task of the server."""
    buffered_bytes: int
    """Octets queued for peers, or received and not taken by a handler."""
    snapshots: int
    """Iterators with their RocksDB snapshots, held by push scans and sessions."""
    sessions: int
    """Of those, sessions of the pull model."""
    connections: int
    """Sockets of the server that are not listening, in whatever state."""
    descriptors: int
    """All file descriptors, files of RocksDB among them."""

    @property
    def nothing(self) -> bool:
        """Whether everything that a client can make a server hold is gone."""
        return not (
            self.streams or self.buffered_bytes or self.snapshots or self.sessions or self.connections
        )


async def ask_holdings(client: transport.Client, process: psutil.Process) -> Holdings:
    """Ask a server what it holds.

    Args:
        client: The only connection that is not counted.
        process: The server's.
    """
    request = admin_pb2.ListStreamsRequest().SerializeToString()
    streams = admin_pb2.ListStreamsResponse.FromString(bytes(await client.call(_LIST_STREAMS, request)))
    request = admin_pb2.ListSnapshotsRequest().SerializeToString()
    snapshots = admin_pb2.ListSnapshotsResponse.FromString(
        bytes(await client.call(methods.ADMIN + "ListSnapshots", request))
    )
    others = [stream for stream in streams.streams if stream.path != _LIST_STREAMS]
    sockets = [each for each in process.net_connections("tcp") if each.status != psutil.CONN_LISTEN]
    return Holdings(
        streams=len(others),
        buffered_bytes=sum(stream.unsent_bytes + stream.buffered_bytes for stream in others),
        snapshots=len(snapshots.snapshots),
        sessions=sum(each.holder == admin_pb2.SnapshotInfo.HOLDER_SESSION for each in snapshots.snapshots),
        connections=len(sockets) - 1,
        descriptors=process.num_fds(),
    )
