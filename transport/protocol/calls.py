"""gRPC over HTTP/2: the header and trailer fields of a call, made and read (gRPC "PROTOCOL-HTTP2").

Text in, fields out, and back; nothing here knows of streams or frames.
"""

from __future__ import annotations

import base64
import binascii
import functools
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote_to_bytes

from hpack import NeverIndexedHeaderTuple

from transport.errors import AnswerCut, CallFailed, NotGrpc, StatusCode
from transport.protocol.stalls import StallTimes

MetadataValue = str | bytes
Metadata = tuple[tuple[str, MetadataValue], ...]
"""Custom fields: lower-case names; those that end in "-bin" have bytes, the others printable ASCII."""
Headers = list[tuple[bytes, bytes]]

STALLS_FIELD: Final = b"weir-stalls"
"""Trailer with the server's account of where the call's time went; see docs/protocol.md."""
_RESERVED: Final = frozenset({"te", "content-type", "user-agent", "content-length"})
_NAME: Final = re.compile(r"[0-9a-z_.-]+")
_HOP_BY_HOP: Final = frozenset(
    {"connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade", "host"}
)
_SENSITIVE: Final = frozenset({"authorization", "proxy-authorization", "cookie"})
"""Not for the dynamic table, from whose size an attacker may learn them (RFC 7541 section 7.1)."""
_PATH: Final = re.compile(r"/[!-~]*")
_AUTHORITY: Final = re.compile(r"[!-~]+")
_OF_STREAMS: Final = (b"application/grpc+", b"application/grpc-web", b"application/connect+")
"""How content-types begin whose requests may be streams, and wait for an answer before they end."""
_JOINED_MAX: Final = 100
"""Commas in the binary metadata of a request: each makes a value of its own, which takes fifty times its octet."""
_MESSAGE_BYTES_MAX: Final = 2_048
DETAILS_BYTES_MAX: Final = 4_096
"""Octets of a status's details; more are not sent. Longer trailers could be over the peer's header list limit (8 KiB is
common), and that would end the connection."""
_FIELD_OVERHEAD_BYTES: Final = 32
_TIMEOUT_UNITS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_GREETING: Final = (
    "This is weir, and it speaks gRPC: POST to /package.Service/Method, with content-type application/grpc.\n"
    "grpc.reflection.v1 lists its services, and grpc.health.v1 says whether they are up.\n"
)
_MESSAGE_PLAIN: Final = frozenset(bytes((octet,)) for octet in range(0x20, 0x7F)) - {b"%"}
# gRPC "HTTP2 response to status": what a status without grpc-status means.
_STATUS_OF_HTTP: Final = {
    400: StatusCode.INTERNAL,
    401: StatusCode.UNAUTHENTICATED,
    403: StatusCode.PERMISSION_DENIED,
    404: StatusCode.UNIMPLEMENTED,
    413: StatusCode.RESOURCE_EXHAUSTED,
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
    timeout_s: float | None
    """Deadline of the call, seconds from its start; None: none."""
    metadata: Metadata = field(repr=False)
    """The other fields. Credentials may be among them: no log or message shows them."""


class RequestUnsupported(Exception):
    """A request that is HTTP but not gRPC, or not gRPC as spoken here.

    Args:
        headers: The answer's fields.
        body: The answer's octets; empty: the fields end the stream.
        at_once: Answer now; else when the request is complete, as its client expects. A gRPC call may never be.
    """

    def __init__(self, headers: Headers, body: bytes = b"", *, at_once: bool = True) -> None:
        super().__init__(headers, body)
        self.headers = headers
        self.body = body
        self.at_once = at_once


def request_headers(
    path: str,
    authority: str,
    *,
    scheme: str,
    timeout_s: float | None,
    metadata: Iterable[tuple[str, MetadataValue]],
) -> Headers:
    """The fields that open a call.

    Raises:
        ValueError: Something in them cannot be a header field. It is found here, because the HPACK encoder's state
            cannot be rolled back.
    """
    headers: Headers = [*_opening(path, authority, scheme)]
    if timeout_s is None:
        return headers + _encode_metadata(metadata)
    timeout = (b"grpc-timeout", _encode_timeout(timeout_s))
    if float(timeout_s * 1000).is_integer():
        return [*headers, timeout, *_encode_metadata(metadata)]
    # What is left of a deadline is another time with each call: in HPACK's table it would push out what repeats.
    return [*headers, *_encode_metadata(metadata), NeverIndexedHeaderTuple(*timeout)]


@functools.lru_cache(256)
def _opening(path: str, authority: str, scheme: str) -> tuple[tuple[bytes, bytes], ...]:
    """The fields that every call of a method has."""
    if not _PATH.fullmatch(path):
        raise ValueError(f"path {path!r} does not start with / or is not visible ASCII")
    if not _AUTHORITY.fullmatch(authority):
        raise ValueError(f"authority {authority!r} is not visible ASCII")
    return (
        (b":method", b"POST"),
        (b":scheme", scheme.encode()),
        (b":path", path.encode()),
        (b":authority", authority.encode()),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc+proto"),
        (b"user-agent", b"weir"),
    )


def response_headers() -> Headers:
    """The fields that start an answer."""
    return [
        (b":status", b"200"),
        (b"content-type", b"application/grpc+proto"),
        (b"grpc-accept-encoding", b"identity"),
    ]


def trailers(status: StatusCode, message: str = "", details: bytes = b"") -> Headers:
    """The fields that end an answer; a message that is too long is cut, and details that are too long are left out."""
    fields: Headers = [(b"grpc-status", str(int(status)).encode())]
    if message:
        fields.append((b"grpc-message", _encode_message(message)))
    if 0 < len(details) <= DETAILS_BYTES_MAX:
        fields.append((b"grpc-status-details-bin", _encode_binary(details)))
    return fields


def parse_request(headers: Sequence[tuple[bytes, bytes]], *, list_bytes_max: float = math.inf) -> RequestHead:
    """Read the fields that open a call.

    Args:
        headers: The fields.
        list_bytes_max: The longest list that is taken, in octets as HTTP/2 counts them.

    Raises:
        RequestUnsupported: Not a gRPC call; the exception has the answer.
    """
    fields = {name: value for name, value in headers if name.startswith(b":") or name in _READ_ONCE}
    method, content_type = fields.get(b":method", b""), fields.get(b"content-type", b"")
    if (size := header_list_bytes(headers)) > list_bytes_max:
        raise _too_long(size, list_bytes_max, method, grpc=_is_grpc(content_type))
    if method != b"POST":
        if method in {b"GET", b"HEAD"} and fields.get(b":path") == b"/":
            raise _in_plain_http(method, 200, _GREETING)
        raise _in_plain_http(method, 405, "gRPC calls are made by POST\n", (b"allow", b"POST"))
    if not _is_grpc(content_type):
        text = "the content-type of gRPC calls is application/grpc or application/grpc+proto\n"
        refusal = _in_plain_http(method, 415, text, (b"accept", b"application/grpc+proto"))
        refusal.at_once = content_type.startswith(_OF_STREAMS)
        raise refusal
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
        timeout_s=timeout_s,
        metadata=metadata,
    )


def parse_response(headers: Sequence[tuple[bytes, bytes]]) -> CallFailed | None:
    """Read the fields that start an answer; an answer that is not gRPC's is a failure.

    A `grpc-encoding` is none: which messages have it, they say themselves (`MessageAssembler`), and the status counts.
    """
    fields = dict(headers)
    http_status = _integer(fields.get(b":status", b""))
    if http_status == 200 and _is_grpc(fields.get(b"content-type", b"")):
        # A proxy may end an answer of trailers alone by an empty DATA frame behind them.
        return parse_trailers(headers) if b"grpc-status" in fields else None
    if b"grpc-status" in fields:
        return parse_trailers(headers)
    status = _STATUS_OF_HTTP.get(http_status or 0, StatusCode.UNKNOWN)
    kind = fields.get(b"content-type", b"").decode("ascii", "backslashreplace")
    return NotGrpc(
        status, f"what answered is no gRPC server: HTTP status {http_status}, content-type {kind!r}"
    )


def parse_trailers(headers: Sequence[tuple[bytes, bytes]]) -> CallFailed | None:
    """Read the fields that end an answer; None if the status is OK."""
    fields = dict(headers)
    code = _integer(fields.get(b"grpc-status", b""))
    if len(fields) < len(headers) and len({value for name, value in headers if name == b"grpc-status"}) > 1:
        return AnswerCut(StatusCode.UNKNOWN, "the answer ended with more than one grpc-status")
    if code == 0:
        return None
    message = unquote_to_bytes(fields.get(b"grpc-message", b"")).decode("utf-8", "replace")
    if code is None:
        return AnswerCut(StatusCode.UNKNOWN, "the answer ended without grpc-status")
    try:
        status = StatusCode(code)
    except ValueError:
        status = StatusCode.UNKNOWN
    try:
        details = _decode_binary(fields.get(b"grpc-status-details-bin", b""))
    except ValueError:
        details = b""
    return CallFailed(status, message, details)


def parse_stalls(headers: Sequence[tuple[bytes, bytes]]) -> StallTimes | None:
    """Read the server's account of a call's time from its trailers; None if it sent none."""
    for name, value in headers:
        if name == STALLS_FIELD:
            return StallTimes.decode_untrusted(value)
    return None


def content_length(headers: Sequence[tuple[bytes, bytes]]) -> int | None:
    """The announced length of the body in octets; None: none. `HeaderRules` has refused contradictory ones."""
    for name, value in headers:
        if name == b"content-length":
            return _integer(value.lstrip(b"0") or b"0")
    return None


def header_list_bytes(headers: Sequence[tuple[bytes, bytes]]) -> int:
    """The length of a header list as SETTINGS_MAX_HEADER_LIST_SIZE counts it, RFC 9113 section 6.5.2."""
    return sum(len(name) + len(value) for name, value in headers) + _FIELD_OVERHEAD_BYTES * len(headers)


def header_list_too_long(size: int, list_bytes_max: float) -> str:
    """The message about a header list of `size` octets."""
    return f"header list of {size} octets is over the limit of {list_bytes_max}"


_READ_ONCE: Final = frozenset({b"content-type", b"grpc-encoding", b"grpc-timeout"})


def _too_long(size: int, list_bytes_max: float, method: bytes, *, grpc: bool) -> RequestUnsupported:
    text = header_list_too_long(size, list_bytes_max)
    if grpc:
        return RequestUnsupported(response_headers() + trailers(StatusCode.RESOURCE_EXHAUSTED, text))
    return _in_plain_http(method, 431, text + "\n")


def _in_plain_http(method: bytes, status: int, text: str, *fields: tuple[bytes, bytes]) -> RequestUnsupported:
    body = text.encode()
    headers = [
        (b":status", b"%d" % status),
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", b"%d" % len(body)),
        *fields,
    ]
    return RequestUnsupported(headers, b"" if method == b"HEAD" else body, at_once=False)


def _is_grpc(content_type: bytes) -> bool:
    kind = content_type.split(b";", 1)[0].strip().lower()
    return kind in {b"application/grpc", b"application/grpc+proto"}


def _integer(text: bytes) -> int | None:
    return int(text) if text.isdigit() and len(text) <= 19 else None


def _encode_metadata(metadata: Iterable[tuple[str, MetadataValue]]) -> Headers:
    fields: Headers = []
    for name, value in metadata:
        if not _NAME.fullmatch(name):
            raise ValueError(f"metadata name {name!r} is not of 0-9 a-z _ . -")
        if name.startswith("grpc-") or name in _RESERVED or name in _HOP_BY_HOP:
            raise ValueError(f"metadata name {name!r} is reserved")
        if name.endswith("-bin"):
            if not isinstance(value, bytes):
                raise ValueError(f"metadata {name!r} must be bytes")
            fields.append((name.encode("ascii"), _encode_binary(value)))
        elif isinstance(value, str) and value.isascii() and value.isprintable():
            plain = name.encode("ascii"), value.strip().encode("ascii")
            fields.append(NeverIndexedHeaderTuple(*plain) if name in _SENSITIVE else plain)
        else:
            raise ValueError(f"metadata {name!r} must be printable ASCII, or its name must end in -bin")
    return fields


def _decode_metadata(headers: Sequence[tuple[bytes, bytes]]) -> Metadata:
    found: list[tuple[str, MetadataValue]] = []
    joined = sum(value.count(b",") for name, value in headers if name.endswith(b"-bin"))
    if joined > _JOINED_MAX:
        raise ValueError(f"binary metadata has {joined} commas, and {_JOINED_MAX} are allowed")
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
    inside = range(1, len(message) - 1)  # a space at an end makes a field unlawful (RFC 9113 section 8.2.1)
    encoded, size = [], 0
    for at, character in enumerate(message):
        octets = character.encode("utf-8", "replace")
        plain = octets in _MESSAGE_PLAIN and (octets != b" " or at in inside)
        one = octets if plain else b"".join(b"%%%02X" % octet for octet in octets)
        size += len(one)
        if size > _MESSAGE_BYTES_MAX:
            break  # a whole character: with a part of one, some receivers decode nothing of the message
        encoded.append(one)
    return b"".join(encoded).rstrip(b" ")  # where it was cut, a space inside may be the last


def _encode_timeout(timeout_s: float) -> bytes:
    """At most 8 digits and a unit, in the finest unit that fits."""
    for unit in "numSMH":
        count = max(timeout_s, 0.0) / _TIMEOUT_UNITS[unit]
        if count < 10**8:
            return b"%d%s" % (int(count), unit.encode())
    return b"99999999H"


def _decode_timeout(text: bytes) -> float:
    digits, unit = text[:-1], text[-1:].decode("latin-1")
    if not digits.isdigit() or len(digits) > 8 or unit not in _TIMEOUT_UNITS:
        raise ValueError(f"grpc-timeout {text!r} is not 1-8 digits and a unit")
    return int(digits) * _TIMEOUT_UNITS[unit]
