"""A streaming transport: gRPC over HTTP/2 on trio, with exact, credit-based flow control. It knows no tables.

`serve` answers calls, `connect` makes them; a `Stream` is one call. Flow control is in three layers: the peer's HTTP/2
windows hop by hop, the send buffer of each stream, and an application's own credit from end to end (`SendCredit`,
`ReceiveCredit`). The protocol core in `transport.protocol` does no I/O.
"""

import logging

from transport.byte_streams import host_port
from transport.client import Client, ClientStatistics, connect, connect_stream
from transport.config import TransportConfig
from transport.credit import CREDIT_BYTES_MAX, CreditPool, ReceiveCredit, SendCredit
from transport.errors import (
    AnswerCut,
    AnswerRefused,
    CallFailed,
    ConnectionLost,
    ErrorCode,
    FlowControlViolation,
    LocalProtocolError,
    MessageRefused,
    NeverAnswered,
    NotGrpc,
    NotHttp2,
    ProtocolError,
    RemoteProtocolError,
    StatusCode,
    StreamRefused,
    StreamReset,
    StreamUnprocessed,
    TlsExpected,
    TlsFailed,
    TransportError,
    caused_by,
)
from transport.health import WHOLE_SERVER, Health, check_health
from transport.presence import server_answers, watch_server
from transport.protocol.calls import DETAILS_BYTES_MAX, Metadata
from transport.protocol.stalls import StallAccount, StallReason, StallTimes
from transport.protocol.stream import Buffer
from transport.reflection import reflection_handlers
from transport.server import Handler, Server, only_request, open_listeners, serve, unary
from transport.statistics import ServerStatistics, ServerTotals, StreamStatistics
from transport.stream import ServerStream, Stream
from transport.tally import REFUSAL_KINDS
from transport.tasks import bare
from transport.tls import (
    FileWatch,
    PeerCertificate,
    ServerTls,
    TlsFileInvalid,
    certificate_refused,
    client_tls,
)

__all__ = [
    "CREDIT_BYTES_MAX",
    "DETAILS_BYTES_MAX",
    "REFUSAL_KINDS",
    "WHOLE_SERVER",
    "AnswerCut",
    "AnswerRefused",
    "Buffer",
    "CallFailed",
    "Client",
    "ClientStatistics",
    "ConnectionLost",
    "CreditPool",
    "ErrorCode",
    "FileWatch",
    "FlowControlViolation",
    "Handler",
    "Health",
    "LocalProtocolError",
    "MessageRefused",
    "Metadata",
    "NeverAnswered",
    "NotGrpc",
    "NotHttp2",
    "PeerCertificate",
    "ProtocolError",
    "ReceiveCredit",
    "RemoteProtocolError",
    "SendCredit",
    "Server",
    "ServerStatistics",
    "ServerStream",
    "ServerTls",
    "ServerTotals",
    "StallAccount",
    "StallReason",
    "StallTimes",
    "StatusCode",
    "Stream",
    "StreamRefused",
    "StreamReset",
    "StreamStatistics",
    "StreamUnprocessed",
    "TlsExpected",
    "TlsFailed",
    "TlsFileInvalid",
    "TransportConfig",
    "TransportError",
    "bare",
    "caused_by",
    "certificate_refused",
    "check_health",
    "client_tls",
    "connect",
    "connect_stream",
    "host_port",
    "only_request",
    "open_listeners",
    "reflection_handlers",
    "serve",
    "server_answers",
    "unary",
    "watch_server",
]

# At DEBUG hpack logs every header field that it decodes, and those of a call have its credentials among them.
logging.getLogger("hpack").setLevel(logging.INFO)
