"""gRPC over HTTP/2: the header and trailer fields of a call, made and read (gRPC "PROTOCOL-HTTP2").

Text in, fields out, and back; nothing here knows of streams or frames.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_to_bytes

from transport.errors import CallFailed, StatusCode

MetadataValue = str | bytes
Metadata = tuple[tuple[str, MetadataValue], ...]
"""Custom fields: lower-case names; those that end in "-bin" have bytes, the others printable ASCII."""
Headers = list[tuple[bytes, bytes]]

_RESERVED: Final = frozenset({"te", "content-type", "user-agent", "content-length"})
_TIMEOUT_UNITS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_MESSAGE_PLAIN: Final = frozenset(range(0x20, 0x7F)) - {0x25}
# gRPC "HTTP2 response to status": what a status without grpc-status means.
_STATUS_OF_HTTP: Final = {
    400: StatusCode.INTERNAL,
    401: StatusCode.UNAUTHENTICATED,
    403: StatusCode.PERMISSION_DENIED,
    404: StatusCode.UNIMPLEMENTED,
    429: StatusCode.UNAVAILABLE,
    502: StatusCode.UNAVAILABLE,
    503: StatusCode.UNAVAILABLE,
    504: StatusCode.UNAVAILABLE,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestHead:
    """What a client asked for."""

    path: str
    """/package.Service/Method"""
    authority: str
    timeout_s: float | None
    """Seconds that the client gives the call; None: for ever."""
    metadata: Metadata


class RequestUnsupported(Exception):
    """A request that is HTTP but not gRPC, or not gRPC as spoken here.

    Args:
        headers: The answer's fields; it ends the stream.
    """

    def __init__(self, headers: Headers) -> None:
        super().__init__(headers)
        self.headers = headers


def request_headers(
    path: str,
    authority: str,
    *,
    scheme: str,
    timeout_s: float | None,
    metadata: Iterable[tuple[str, MetadataValue]],
) -> Headers:
    """The fields that open a call."""
    headers: Headers = [
        (b":method", b"POST"),
        (b":scheme", scheme.encode()),
        (b":path", path.encode()),
        (b":authority", authority.encode()),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc+proto"),
        (b"user-agent", b"weir"),
    ]
    if timeout_s is not None:
        headers.append((b"grpc-timeout", _encode_timeout(timeout_s)))
    return headers + _encode_metadata(metadata)


def response_headers() -> Headers:
    """The fields that start an answer."""
    return [
        (b":status", b"200"),
        (b"content-type", b"application/grpc+proto"),
        (b"grpc-accept-encoding", b"identity"),
    ]


def trailers(status: StatusCode, message: str = "", details: bytes = b"") -> Headers:
    """The fields that end an answer."""
    fields: Headers = [(b"grpc-status", str(int(status)).encode())]
    if message:
        fields.append((b"grpc-message", _encode_message(message)))
    if details:
        fields.append((b"grpc-status-details-bin", _encode_binary(details)))
    return fields


def parse_request(headers: Sequence[tuple[bytes, bytes]]) -> RequestHead:
    """Read the fields that open a call.

    Raises:
        RequestUnsupported: Not a gRPC call; the exception has the answer.
    """
    fields = {name: value for name, value in headers if name.startswith(b":") or name in _READ_ONCE}
    method, content_type = fields.get(b":method", b""), fields.get(b"content-type", b"")
    if method != b"POST":
        raise RequestUnsupported([(b":status", b"405"), (b"allow", b"POST")])
    if not _is_grpc(content_type):
        raise RequestUnsupported([(b":status", b"415"), (b"accept", b"application/grpc+proto")])
    encoding = fields.get(b"grpc-encoding", b"identity")
    if encoding != b"identity":
        message = f"grpc-encoding {encoding.decode('ascii', 'replace')} is not supported; use identity"
        raise RequestUnsupported(response_headers() + trailers(StatusCode.UNIMPLEMENTED, message))
    try:
        timeout_s = _decode_timeout(fields[b"grpc-timeout"]) if b"grpc-timeout" in fields else None
        metadata = _decode_metadata(headers)
    except ValueError as error:
        raise RequestUnsupported(response_headers() + trailers(StatusCode.INTERNAL, str(error))) from error
    return RequestHead(
        path=fields.get(b":path", b"").decode("ascii", "replace"),
        authority=fields.get(b":authority", b"").decode("ascii", "replace"),
        timeout_s=timeout_s,
        metadata=metadata,
    )


def parse_response(headers: Sequence[tuple[bytes, bytes]]) -> CallFailed | None:
    """Read the fields that start an answer; an answer that is not gRPC's is a failure."""
    fields = dict(headers)
    http_status = _integer(fields.get(b":status", b""))
    if http_status == 200 and _is_grpc(fields.get(b"content-type", b"")):
        encoding = fields.get(b"grpc-encoding", b"identity")
        if encoding == b"identity":
            return None
        return CallFailed(
            StatusCode.INTERNAL, f"answer in grpc-encoding {encoding!r}, which was not accepted"
        )
    if b"grpc-status" in fields:
        return parse_trailers(headers)
    status = _STATUS_OF_HTTP.get(http_status or 0, StatusCode.UNKNOWN)
    return CallFailed(status, f"HTTP status {http_status}, content-type {fields.get(b'content-type', b'')!r}")


def parse_trailers(headers: Sequence[tuple[bytes, bytes]]) -> CallFailed | None:
    """Read the fields that end an answer; None if the status is OK."""
    fields = dict(headers)
    code = _integer(fields.get(b"grpc-status", b""))
    if code == 0:
        return None
    message = unquote_to_bytes(fields.get(b"grpc-message", b"")).decode("utf-8", "replace")
    if code is None:
        return CallFailed(StatusCode.UNKNOWN, "the answer ended without grpc-status")
    try:
        status = StatusCode(code)
    except ValueError:
        status = StatusCode.UNKNOWN
    try:
        details = _decode_binary(fields.get(b"grpc-status-details-bin", b""))
    except ValueError:
        details = b""
    return CallFailed(status, message, details)


def content_length(headers: Sequence[tuple[bytes, bytes]]) -> int | None:
    """The announced length of the body in octets; None if there is none. h2 has refused contradictory ones."""
    for name, value in headers:
        if name == b"content-length":
            return _integer(value)
    return None


_READ_ONCE: Final = frozenset({b"content-type", b"grpc-encoding", b"grpc-timeout"})


def _is_grpc(content_type: bytes) -> bool:
    kind = content_type.split(b";", 1)[0].strip().lower()
    return kind in {b"application/grpc", b"application/grpc+proto"}


def _integer(text: bytes) -> int | None:
    return int(text) if text.isdigit() and len(text) <= 19 else None


def _encode_metadata(metadata: Iterable[tuple[str, MetadataValue]]) -> Headers:
    fields: Headers = []
    for name, value in metadata:
        if name != name.lower() or name.startswith((":", "grpc-")) or name in _RESERVED:
            raise ValueError(f"metadata name {name!r} is reserved or not in lower case")
        if name.endswith("-bin"):
            if not isinstance(value, bytes):
                raise ValueError(f"metadata {name!r} must be bytes")
            fields.append((name.encode("ascii"), _encode_binary(value)))
        elif isinstance(value, str) and value.isascii() and value.isprintable():
            fields.append((name.encode("ascii"), value.strip().encode("ascii")))
        else:
            raise ValueError(f"metadata {name!r} must be printable ASCII, or its name must end in -bin")
    return fields


def _decode_metadata(headers: Sequence[tuple[bytes, bytes]]) -> Metadata:
    found: list[tuple[str, MetadataValue]] = []
    for raw_name, raw_value in headers:
        name = raw_name.decode("ascii", "replace")
        if name.startswith((":", "grpc-")) or name in _RESERVED:
            continue
        if name.endswith("-bin"):
            # Several values may have been joined by an intermediary.
            found += [(name, _decode_binary(part.strip())) for part in raw_value.split(b",")]
        else:
            found.append((name, raw_value.decode("latin-1")))
    return tuple(found)


def _encode_binary(value: bytes) -> bytes:
    return base64.b64encode(value).rstrip(b"=")


def _decode_binary(value: bytes) -> bytes:
    try:
        return base64.b64decode(value + b"=" * (-len(value) % 4), validate=True)
    except binascii.Error as error:
        raise ValueError(f"binary metadata is not base64: {error}") from error


def _encode_message(message: str) -> bytes:
    return b"".join(
        bytes((octet,)) if octet in _MESSAGE_PLAIN else b"%%%02X" % octet for octet in message.encode("utf-8")
    )


def _encode_timeout(timeout_s: float) -> bytes:
    """At most 8 digits and a unit, in the finest unit that fits."""
    for unit in "numSMH":
        count = int(max(timeout_s, 0.0) / _TIMEOUT_UNITS[unit])
        if count < 10**8:
            return b"%d%s" % (count, unit.encode())
    return b"99999999H"


def _decode_timeout(text: bytes) -> float:
    digits, unit = text[:-1], text[-1:].decode("latin-1")
    if not digits.isdigit() or len(digits) > 8 or unit not in _TIMEOUT_UNITS:
        raise ValueError(f"grpc-timeout {text!r} is not 1-8 digits and a unit")
    return int(digits) * _TIMEOUT_UNITS[unit]
