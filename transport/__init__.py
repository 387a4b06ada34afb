"""A streaming transport: gRPC over HTTP/2 on trio, with exact, credit-based flow control. It knows no tables.

`serve` answers calls, `connect` makes them; a `Stream` is one call. Flow control is in three layers: the peer's HTTP/2
windows hop by hop, the send buffer of each stream, and an application's own credit from end to end (`SendCredit`,
`ReceiveCredit`). The protocol core in `transport.protocol` does no I/O.
"""

from transport.client import Client, ClientStatistics, connect, connect_stream
from transport.config import TransportConfig
from transport.errors import (
    CallFailed,
    ConnectionLost,
    ErrorCode,
    FlowControlViolation,
    LocalProtocolError,
    MessageRefused,
    ProtocolError,
    RemoteProtocolError,
    StatusCode,
    StreamRefused,
    StreamReset,
    TransportError,
)
from transport.protocol.calls import Metadata
from transport.protocol.credit import CREDIT_BYTES_MAX, ReceiveCredit, SendCredit
from transport.protocol.stream import Buffer
from transport.server import Handler, Server, ServerStatistics, serve, unary
from transport.stream import ServerStream, Stream

__all__ = [
    "CREDIT_BYTES_MAX",
    "Buffer",
    "CallFailed",
    "Client",
    "ClientStatistics",
    "ConnectionLost",
    "ErrorCode",
    "FlowControlViolation",
    "Handler",
    "LocalProtocolError",
    "MessageRefused",
    "Metadata",
    "ProtocolError",
    "ReceiveCredit",
    "RemoteProtocolError",
    "SendCredit",
    "Server",
    "ServerStatistics",
    "ServerStream",
    "StatusCode",
    "Stream",
    "StreamRefused",
    "StreamReset",
    "TransportConfig",
    "TransportError",
    "connect",
    "connect_stream",
    "serve",
    "unary",
]
