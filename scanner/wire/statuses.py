"""Errors as gRPC statuses, and back.

A `ScannerError` travels as a status code, a message, and a `google.rpc.Status` in
`grpc-status-details-bin` that holds a `google.rpc.ErrorInfo` (reason, domain `weir.v1`), for tools
that know Google's error model, and a `weir.v1.ErrorDetail`, with everything the exception carries.
Which status belongs to which error stands in `scanner.errors.ERRORS` and nowhere else.

A failed call without our details, from a proxy or from the transport, is read by its status code.
"""

from __future__ import annotations

import functools
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import TypeVar

from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from scanner.errors import (
    ArgumentInvalid,
    DataCorrupted,
    DiskFull,
    InternalError,
    PermissionDenied,
    ScannerError,
    ServerUnavailable,
    SourceUnsupported,
    StoreClosed,
    StoreFailed,
    StoreLocked,
    TooManyFiles,
    Unauthenticated,
    error_row,
    error_row_of_reason,
)
from scanner.proto.weir.v1 import errors_pb2, scanner_pb2
from transport import DETAILS_BYTES_MAX, CallFailed, ServerStream, StatusCode, TransportError

DOMAIN = "weir.v1"
"""Of the reasons in ErrorInfo."""

_MESSAGE_BYTES_MAX = 1500
"""Of a message on the wire. It travels in trailers, where proxies allow 8 to 16 KiB in all."""
_METADATA_CHARACTERS_MAX = 200
"""Of one value of the metadata."""

_WITHOUT_DETAILS: dict[StatusCode, type[ScannerError]] = {
    StatusCode.INVALID_ARGUMENT: ArgumentInvalid,
    StatusCode.UNIMPLEMENTED: SourceUnsupported,
    # A message over a limit, as a rule: a repetition would be, too.
    StatusCode.RESOURCE_EXHAUSTED: ArgumentInvalid,
    StatusCode.UNAVAILABLE: ServerUnavailable,
    # No server of ours says so. Envoy does, where it answers HTTP 408 or 500: a call was silent for too long.
    StatusCode.UNKNOWN: ServerUnavailable,
    StatusCode.CANCELLED: ServerUnavailable,
    StatusCode.DEADLINE_EXCEEDED: ServerUnavailable,
    StatusCode.UNAUTHENTICATED: Unauthenticated,
    StatusCode.PERMISSION_DENIED: PermissionDenied,
}

_DISK_FULL = "the server's disk is full; it takes writes again when there is room"
_SAID_OF_STORAGE: dict[type[ScannerError], str] = {
    DataCorrupted: "stored data fail their check",
    StoreFailed: "the server's disk refused",
    DiskFull: _DISK_FULL,
    TooManyFiles: "the server has used up its file descriptors",
    StoreLocked: "another process has the data directory open",
    StoreClosed: "the store was closed meanwhile",
}

_logger = logging.getLogger(__name__)
_Reply = TypeVar("_Reply")


def for_peers(error: ScannerError) -> ScannerError:
    """The error as a peer may see it: what storage says of the server's files goes to the server's log instead.

    Args:
        error: The error.

    Returns:
        The error itself, unless it names a file; then one of its kind with a reference to the line in the log.
    """
    said = _SAID_OF_STORAGE.get(type(error))
    if said is None or not any(separator in error.message for separator in "/\\"):
        return error
    if isinstance(error, DiskFull) and isinstance(error.__cause__, ScannerError | None):
        # Refused without asking the disk: every writer gets this at each attempt, and the log has said it once.
        return error.reworded(said)
    reference = secrets.token_hex(4)
    _logger.error("reference %s: %s: %s", reference, error.reason, error.message)
    words = f"{said}; the server's log has the details under reference {reference}"
    return error.reworded(words, reference=reference)


def to_call_failed(error: ScannerError) -> CallFailed:
    """The failed call that tells a peer of this error."""
    message, detail = message_and_detail(error)
    code = StatusCode[error_row(type(error)).status]
    details = _to_details(code, message, detail)
    if len(details) > DETAILS_BYTES_MAX:
        # Details that are too long are not sent at all, and without them the error is not known again. The token of a
        # table with huge keys can go: the client has the one of the last batch.
        detail.ClearField("resume_token")
        details = _to_details(code, message, detail)
    return CallFailed(code, message, details)


def message_and_detail(error: ScannerError) -> tuple[str, errors_pb2.ErrorDetail]:
    """What a peer is told of an error, as `for_peers` has it, whether in a status or in an answer."""
    error = for_peers(error)
    return _shorten(error.message), errors_pb2.ErrorDetail(
        reason=error_row(type(error)).reason,
        resume_token=error.resume_token or b"",
        oldest_offset=error.oldest_offset,
        metadata={key: value[:_METADATA_CHARACTERS_MAX] for key, value in error.metadata.items()},
    )


def from_call_failed(failure: CallFailed) -> ScannerError:
    """The error that a peer sent; one that this version does not know becomes the nearest it does know."""
    detail = _detail_of(failure.details)
    if detail is not None and error_row_of_reason(detail.reason) is not None:
        return from_detail(failure.message, detail)
    kind = _WITHOUT_DETAILS.get(failure.status, InternalError)
    return kind(f"the call failed with {failure.status.name}: {failure.message or 'no message'}")


def from_detail(message: str, detail: errors_pb2.ErrorDetail | scanner_pb2.FetchError) -> ScannerError:
    """The error that `message_and_detail` told of; an internal one if this version does not know it."""
    row = error_row_of_reason(detail.reason)
    kind = InternalError if row is None else row.exception
    token = detail.resume_token if isinstance(detail, errors_pb2.ErrorDetail) else b""
    return kind(
        message,
        resume_token=token or None,
        oldest_offset=detail.oldest_offset if detail.HasField("oldest_offset") else None,
        metadata=detail.metadata,
    )


async def errors_as_statuses(handle: Callable[[], Awaitable[_Reply]], what: str) -> _Reply:
    """Run a handler so that only transport's exceptions leave it.

    Args:
        handle: The handler, its arguments bound.
        what: Names the call in the log.

    Raises:
        CallFailed: For every `ScannerError`, with its status; for anything unforeseen, as INTERNAL, and
            then the traceback is logged.
        TransportError: As it is: the stream or the connection is gone.
    """
    try:
        return await handle()
    except ScannerError as error:
        raise to_call_failed(error) from error
    except TransportError:
        raise
    except Exception as error:
        _logger.exception("%s failed in an unforeseen way", what)
        raise to_call_failed(
            InternalError(f"the server failed in {what} ({type(error).__name__}); its log has the details")
        ) from error


def streaming(
    handler: Callable[[ServerStream], Awaitable[None]],
) -> Callable[[ServerStream], Awaitable[None]]:
    """Make a stream handler that raises `ScannerError` one for `transport.serve`."""

    async def handle(stream: ServerStream) -> None:
        await errors_as_statuses(functools.partial(handler, stream), stream.path)

    return handle


def _to_details(code: StatusCode, message: str, detail: errors_pb2.ErrorDetail) -> bytes:
    status = status_pb2.Status(code=code.value, message=message)
    status.details.add().Pack(
        error_details_pb2.ErrorInfo(reason=detail.reason, domain=DOMAIN, metadata=detail.metadata)
    )
    status.details.add().Pack(detail)
    details: bytes = status.SerializeToString()
    return details


def _detail_of(details: bytes) -> errors_pb2.ErrorDetail | None:
    try:
        status = status_pb2.Status.FromString(details)
        detail = errors_pb2.ErrorDetail()
        if any(each.Unpack(detail) for each in status.details):
            return detail
    except (DecodeError, UnicodeDecodeError):  # The latter for text, by protobuf in pure Python.
        pass  # Details of someone else, or damaged: the status code has to do.
    return None


def _shorten(message: str) -> str:
    encoded = message.encode()
    if len(encoded) <= _MESSAGE_BYTES_MAX:
        return message
    return encoded[: _MESSAGE_BYTES_MAX - 3].decode(errors="ignore") + ".."
