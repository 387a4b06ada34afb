"""What a failed transport means to a user of tables and scans. The one place where the client translates it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from scanner.errors import (
    ArgumentInvalid,
    InternalError,
    ScanIncomplete,
    ScannerError,
    ServerUnavailable,
    Unauthenticated,
)
from scanner.wire.statuses import from_call_failed
from transport import (
    AnswerCut,
    AnswerRefused,
    CallFailed,
    ConnectionLost,
    NotGrpc,
    StatusCode,
    StreamRefused,
    StreamReset,
    TransportError,
    certificate_refused,
)

OF_CREDENTIALS = (StatusCode.UNAUTHENTICATED, StatusCode.PERMISSION_DENIED)
"""A server, and a proxy that asks for credentials, refuses a caller by these."""


def as_scanner_error(error: TransportError, what: str) -> ScannerError:
    """The error to raise instead of `error`.

    Args:
        error: What the transport raised; chain it with `from`.
        what: What was going on, e.g. `the scan of orders bucket 2`.
    """
    if isinstance(error, CallFailed) and _is_too_large(error):
        # Sent again it is as large; of a write, other requests would come first, and be refused where it was.
        return ArgumentInvalid(
            f"{what} is more than a proxy on the way takes: {error.message}; have it take calls of any length (nginx:"
            " client_max_body_size 0; Envoy: no buffer filter)"
        )
    if isinstance(error, NotGrpc) and error.status is StatusCode.UNAVAILABLE:
        # As nginx says it, too, of what it has passed on, if the server is lost before it answers.
        return ServerUnavailable(
            f"{what} was answered by a proxy: {error.message}; nothing of it was done, unless by a server behind that"
        )
    if isinstance(error, NotGrpc) and error.status not in OF_CREDENTIALS:
        return ServerUnavailable(
            f"{what} was not answered by a weir server: {error.message}; check the endpoint, and the proxies on the way"
        )
    if isinstance(error, AnswerCut):
        return ScanIncomplete(f"{what} was cut off: {error.message}")
    if isinstance(error, AnswerRefused):
        return InternalError(f"the answer to {what} cannot be taken: {error.message}")
    if isinstance(error, CallFailed) and error.status is StatusCode.RESOURCE_EXHAUSTED and not error.details:
        return ArgumentInvalid(
            f"{what} is over a limit of the server, or of a proxy on the way: {error.message or 'no message'};"
            " if that is one of size, shorten its longest row or key, or the token"
        )
    if isinstance(error, CallFailed):
        return from_call_failed(error)
    if certificate_refused(error):
        return Unauthenticated(f"the server wants another certificate of this client: {error}")
    if isinstance(error, ConnectionLost):
        return ServerUnavailable(
            f"the connection to the server was lost during {what}: {error or 'no reason given'}"
        )
    if isinstance(error, StreamRefused):
        # HAProxy resets so, too, what it has passed on, if the server is lost before it answers.
        return ServerUnavailable(
            f"{what} was refused: {error}; nothing of it was done, unless by a server behind a proxy"
        )
    if isinstance(error, StreamReset):
        return ScanIncomplete(f"{what} was cut off: {error}")
    return InternalError(f"{what} failed in the transport: {error}")


def _is_too_large(error: CallFailed) -> bool:
    """Whether a proxy says HTTP 413. Envoy's buffer filter has words for it alone, and the status of anything else."""
    if isinstance(error, NotGrpc):
        return error.status is StatusCode.RESOURCE_EXHAUSTED
    return (error.status, error.message) == (StatusCode.UNKNOWN, "Payload Too Large")


def as_write_error(error: TransportError, what: str) -> ScannerError:
    """As `as_scanner_error`, of a call that writes: what was cut off is known to have been done by its answer alone."""
    failure = as_scanner_error(error, what)
    return ServerUnavailable(failure.message) if isinstance(failure, ScanIncomplete) else failure


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Let only `ScannerError` out of a block that uses the transport.

    Raises:
        ScannerError: Instead of any `TransportError`, which it has as its cause.
    """
    try:
        yield
    except TransportError as error:
        raise as_scanner_error(error, what) from error
