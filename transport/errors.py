"""What transport raises, by who must act: our caller, the peer, or the world.

`CallFailed` is the application's own failure, carried by a gRPC status. The others are the
transport's. `OSError` and trio's `BrokenResourceError` never escape: they become `ConnectionLost`.
`trio.ClosedResourceError` and `trio.BusyResourceError` are raised as themselves: they mean our use
of our own object.
"""

from __future__ import annotations

import enum


class ErrorCode(enum.IntEnum):
    """HTTP/2 error codes, RFC 9113 section 7."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD


def error_code_name(code: int) -> str:
    """The RFC's name of a code, or its number if it is not one of the RFC's."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"0x{code:x}"


class StatusCode(enum.IntEnum):
    """gRPC status codes."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class TransportError(Exception):
    """Base of everything that transport raises."""


class ProtocolError(TransportError):
    """A rule of HTTP/2, of gRPC or of the credit was broken.

    Args:
        message: What happened, with the numbers.
        code: The HTTP/2 error code to go on the wire.
        stream_id: The stream concerned; None for the connection.
    """

    def __init__(
        self, message: str, code: ErrorCode = ErrorCode.PROTOCOL_ERROR, stream_id: int | None = None
    ) -> None:
        super().__init__(message, code, stream_id)
        self.message = message
        self.code = code
        self.stream_id = stream_id

    def __str__(self) -> str:
        where = "connection" if self.stream_id is None else f"stream {self.stream_id}"
        return f"{self.message} ({self.code.name}, {where})"


class LocalProtocolError(ProtocolError):
    """Our side asked for something illegal; nothing has changed; the caller's code needs a fix."""


class RemoteProtocolError(ProtocolError):
    """The peer broke a rule; the stream, or without one the connection, is gone."""


class FlowControlViolation(RemoteProtocolError):
    """The peer sent past a window or past the credit, or granted more than there can be."""

    def __init__(
        self, message: str, code: ErrorCode = ErrorCode.FLOW_CONTROL_ERROR, stream_id: int | None = None
    ) -> None:
        super().__init__(message, code, stream_id)


class MessageRefused(RemoteProtocolError):
    """A gRPC message that cannot be taken; the stream ends with `status`, the connection goes on."""

    def __init__(self, message: str, status: StatusCode) -> None:
        super().__init__(message, ErrorCode.CANCEL)
        self.args = (message, status)
        self.status = status


class StreamReset(TransportError):
    """The stream ended by RST_STREAM; messages that were received before are delivered first.

    Args:
        code: The HTTP/2 error code of the reset.
        by_peer: False if our side reset it.
    """

    def __init__(self, code: int, by_peer: bool = True) -> None:
        super().__init__(code, by_peer)
        self.code = code
        self.by_peer = by_peer

    def __str__(self) -> str:
        return f"stream reset by {'the peer' if self.by_peer else 'us'}: {error_code_name(self.code)}"


class StreamRefused(TransportError):
    """The peer has processed nothing of the request; it can be sent again on another connection.

    HAProxy says so of requests that it has passed on, when their server is lost before it answers.
    """


class StreamUnprocessed(StreamRefused):
    """The peer's GOAWAY says so, which is to be believed (RFC 9113 section 8.7): the connection takes no more calls."""


class ConnectionLost(TransportError):
    """The connection is gone; the cause, if there is one, is chained."""


class NeverAnswered(ConnectionLost):
    """At a client: the peer took the connection, and not one octet has come from it in time."""


class TlsFailed(ConnectionLost):
    """TLS was not agreed on: one end does not trust, or does not understand, the other."""


class NoCommonTls(ConnectionLost):
    """The server takes no version and no cipher of TLS that this end offers."""


class NotHttp2(ConnectionLost):
    """The peer's first octets are text, those of an answer in HTTP/1 say: it does not speak HTTP/2."""


class TlsExpected(ConnectionLost):
    """The peer answered plaintext with a TLS alert: it speaks TLS, and nothing else."""


class CallFailed(TransportError):
    """A call that ended with a gRPC status other than OK. Raised by handlers, and by clients.

    Args:
        status: The gRPC status.
        message: One line for a person.
        details: Serialised google.rpc.Status, or empty.
    """

    def __init__(self, status: StatusCode, message: str = "", details: bytes = b"") -> None:
        super().__init__(status, message, details)
        self.status = status
        self.message = message
        self.details = details

    def __str__(self) -> str:
        return f"{self.status.name}: {self.message}" if self.message else self.status.name


class AnswerUnusable(CallFailed):
    """At a client: what answered gave no status of gRPC, and ours stands for it."""


class NotGrpc(AnswerUnusable):
    """The answer is one of plain HTTP: a proxy's, or of a server of another kind."""


class AnswerCut(AnswerUnusable):
    """The answer ended too early: before its status, in a message, or without its reply; or it is malformed."""


class AnswerRefused(AnswerUnusable):
    """The answer has a message or fields that we do not take: too long, or compressed."""


def causes(error: BaseException) -> list[BaseException]:
    """The error, what it was raised from, what that was raised from, and so on."""
    found: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in found:
        found.append(cause)
        cause = cause.__cause__
    return found


def caused_by(error: BaseException, kind: type[TransportError]) -> bool:
    """Whether an error is of that kind, or was raised from one that is, directly or not."""
    return any(isinstance(each, kind) for each in causes(error))
