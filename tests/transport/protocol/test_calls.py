"""The fields of calls: what is made is read back, and what a stranger makes is refused or borne."""

from __future__ import annotations

import string
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from transport.errors import AnswerCut, CallFailed, StatusCode
from transport.protocol import calls
from transport.protocol.header_blocks import HeaderRules

names = st.text("abcxyz019_.-", min_size=1, max_size=10).filter(
    lambda name: not name.startswith("grpc-") and not name.endswith("-bin") and name != "te"
)
printable = st.text(st.sampled_from(string.ascii_letters + string.digits + " !#~%=,;"), max_size=20).map(
    str.strip
)
metadata = st.lists(
    st.one_of(
        st.tuples(names, printable), st.tuples(names.map(lambda name: name + "-bin"), st.binary(max_size=40))
    )
).map(tuple)


def read(fields: calls.Headers, **changes: str | None) -> calls.RequestHead:
    """Parse a good request with some fields changed, or taken away by None."""
    named = {name.replace("_", "-").encode(): value for name, value in changes.items()}
    kept = [(name, value) for name, value in fields if name not in named]
    return calls.parse_request(kept + [(n, v.encode()) for n, v in named.items() if v is not None])


GOOD = calls.request_headers("/a.B/C", "host:1", scheme="http", timeout_s=None, metadata=())


@given(metadata, st.one_of(st.none(), st.floats(0, 1e9)))
def test_request_round_trip(custom: calls.Metadata, timeout_s: float | None) -> None:
    """Metadata comes back as it was, and a timeout within 1 in 100 000, for its eight digits."""
    head = calls.parse_request(
        calls.request_headers("/a.B/C", "host:1", scheme="http", timeout_s=timeout_s, metadata=custom)
    )
    assert head.metadata == custom
    assert head.path == "/a.B/C"
    if timeout_s is None:
        assert head.timeout_s is None
    else:
        assert head.timeout_s == pytest.approx(timeout_s, rel=1e-5, abs=1e-9)


@given(st.sampled_from(StatusCode), st.text(max_size=100), st.binary(max_size=200))
def test_trailers_round_trip(status: StatusCode, message: str, details: bytes) -> None:
    """Status, message in any language and details come back as they were; what cannot be UTF-8 becomes '?'."""
    failed = calls.parse_trailers(calls.trailers(status, message, details))
    if status is StatusCode.OK:
        assert failed is None
        return
    assert failed is not None
    assert failed.status is status
    assert failed.message == message.encode("utf-8", "replace").decode("utf-8")
    assert failed.details == details


def test_trailers_are_bounded() -> None:
    """An endless message is cut, endless details are left out: longer trailers would end the connection."""
    fields = calls.trailers(StatusCode.INTERNAL, "é" * 100_000, bytes(100_000))
    assert sum(len(name) + len(value) for name, value in fields) < 4_096
    failed = calls.parse_trailers(fields)
    assert failed is not None
    assert failed.message.startswith("ééé")


@pytest.mark.parametrize("letters", range(12))
def test_a_message_that_is_cut_is_lawful(letters: int) -> None:
    """Wherever a message is cut, in front of a word say, its field is one that receivers take."""
    fields = calls.trailers(StatusCode.INVALID_ARGUMENT, "a" * letters + "\u00e9   " * 2_000)
    HeaderRules(client=True).check_untrusted(fields, trailers=True)
    failed = calls.parse_trailers(fields)
    assert failed is not None
    assert len(failed.message) > 600


@pytest.mark.parametrize("letters", range(9))
def test_a_message_is_cut_between_characters(letters: int) -> None:
    """Half a character at the end, and grpcio, grpc-js and Connect decode nothing of the message."""
    message = "a" * letters + "\u65e5\U0001f608" * 200
    failed = calls.parse_trailers(calls.trailers(StatusCode.NOT_FOUND, message))
    assert failed is not None
    assert len(failed.message) > 190
    assert message.startswith(failed.message)


@pytest.mark.parametrize(("first", "second"), [(b"13", b"0"), (b"0", b"13"), (b"5", b"13"), (b"0", b"")])
def test_statuses_that_contradict_each_other_are_none(first: bytes, second: bytes) -> None:
    """A call that failed is none that went well because somebody on the way has added his own status; nor another."""
    failed = calls.parse_trailers([(b"grpc-status", first), (b"grpc-status", second)])
    assert isinstance(failed, AnswerCut)
    assert calls.parse_trailers([(b"grpc-status", b"0"), (b"x", b"1"), (b"grpc-status", b"0")]) is None


@given(st.binary(max_size=30), st.binary(max_size=30), st.binary(max_size=30))
@example(b"14", b"", b"not base64")
def test_any_trailers_are_read(status: bytes, message: bytes, details: bytes) -> None:
    """Trailers of any octets give a status."""
    fields = [(b"grpc-status", status), (b"grpc-message", message), (b"grpc-status-details-bin", details)]
    failed = calls.parse_trailers(fields)
    assert failed is None or isinstance(failed, CallFailed)


@given(st.lists(st.tuples(st.binary(max_size=15), st.binary(max_size=15))))
def test_any_request_is_read_or_refused(fields: list[tuple[bytes, bytes]]) -> None:
    """Fields of any octets give a request, or an answer that refuses it."""
    answers: list[bytes] = []
    for start in ([], GOOD):
        try:
            calls.parse_request([*start, *fields])
        except calls.RequestUnsupported as refusal:
            answers.append(refusal.headers[0][0])
        calls.parse_response([*start, *fields])
        calls.content_length(fields)
    assert set(answers) <= {b":status"}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1H", 3600.0), ("2M", 120.0), ("3S", 3.0), ("4m", 0.004), ("5u", 5e-6), ("6n", 6e-9), ("0S", 0.0)],
)
def test_timeout_units(text: str, seconds: float) -> None:
    """Each unit of grpc-timeout is understood."""
    assert read(GOOD, grpc_timeout=text).timeout_s == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "S", "1", "1s", "-1S", "1.5S", "123456789S", "+1S", " 1S", "1S ", "٣S"])
def test_timeouts_that_are_none(text: str) -> None:
    """A malformed grpc-timeout is answered with INTERNAL, as gRPC's own servers do."""
    with pytest.raises(calls.RequestUnsupported) as caught:
        read(GOOD, grpc_timeout=text)
    assert (b"grpc-status", b"13") in caught.value.headers


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.099_999_999, b"99999999n"), (0.1, b"100000u"), (99.999_999, b"99999999u"), (100.0, b"100000m")],
)
def test_timeouts_have_eight_digits_at_most(seconds: float, text: bytes) -> None:
    """In the finest unit whose count has no more."""
    fields = calls.request_headers("/a.B/C", "host:1", scheme="http", timeout_s=seconds, metadata=())
    assert dict(fields)[b"grpc-timeout"] == text


def test_timeout_beyond_all_digits() -> None:
    """Infinity and the largest times are told as the longest that the wire can say."""
    for endless in (float("inf"), 1e30, sys.float_info.max):
        fields = calls.request_headers("/a", "h", scheme="http", timeout_s=endless, metadata=())
        assert (b"grpc-timeout", b"99999999H") in fields
    fields = calls.request_headers("/a", "h", scheme="http", timeout_s=-1.0, metadata=())
    assert (b"grpc-timeout", b"0n") in fields


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({":method": "GET"}, (b":status", b"405")),
        ({"content_type": "text/plain"}, (b":status", b"415")),
        ({"content_type": None}, (b":status", b"415")),
        ({"content_type": "application/grpc+json"}, (b":status", b"415")),
        ({"grpc_encoding": "gzip"}, (b"grpc-status", b"12")),
        ({"x_bin": "***"}, (b"grpc-status", b"13")),
    ],
)
def test_what_is_not_grpc_is_refused(changes: dict[str, str | None], field: tuple[bytes, bytes]) -> None:
    """HTTP that is not gRPC gets an HTTP status, gRPC that is not spoken here a gRPC status."""
    with pytest.raises(calls.RequestUnsupported) as caught:
        read(GOOD, **changes)
    assert field in caught.value.headers


@pytest.mark.parametrize(
    "kind", ["application/grpc", "application/grpc+proto", "Application/GRPC; charset=x"]
)
def test_content_types_of_grpc(kind: str) -> None:
    """The content types that other implementations send are taken."""
    assert read(GOOD, content_type=kind).path == "/a.B/C"


def test_binary_metadata_joined_by_a_proxy() -> None:
    """Values of one name that were joined by a comma are several values; padding is optional."""
    assert read(GOOD, x_bin="AAE=, AAE,").metadata == (("x-bin", b"\0\1"), ("x-bin", b"\0\1"), ("x-bin", b""))


def test_joined_binary_metadata_are_bounded() -> None:
    """A value takes fifty times the memory of its comma, and a table of HPACK's repeats thousands by an octet."""
    assert len(read(GOOD, x_bin="," * 60, y_bin="," * 40).metadata) == 102
    with pytest.raises(calls.RequestUnsupported) as refused:
        read(GOOD, x_bin="," * 60, y_bin="," * 41)
    assert b"101 commas" in dict(refused.value.headers)[b"grpc-message"]


@pytest.mark.parametrize(
    "entry",
    [
        ("Upper", "x"), (":pseudo", "x"), ("grpc-status", "x"), ("te", "x"), ("connection", "x"), ("", "x"),
        ("spa ce", "x"), ("new\nline", "x"), ("ünicode", "x"), ("a", "new\nline"), ("a", "ü"), ("a", b"bytes"),
        ("a-bin", "text"), ("transfer-encoding", "x"), ("content-length", "3"), ("host", "x"),
    ],
)  # fmt: skip
def test_metadata_that_cannot_be_sent(entry: tuple[str, str | bytes]) -> None:
    """What HTTP/2 forbids is found before the header encoder has seen any of it."""
    with pytest.raises(ValueError, match="metadata"):
        calls.request_headers("/a", "h", scheme="http", timeout_s=None, metadata=[("fine", "x"), entry])


@pytest.mark.parametrize(
    ("path", "authority"), [("a", "h"), ("/a b", "h"), ("/\n", "h"), ("/a", "h h"), ("/a", "")]
)
def test_paths_that_cannot_be_sent(path: str, authority: str) -> None:
    """A path or an authority that is no header value is refused."""
    with pytest.raises(ValueError, match="visible ASCII"):
        calls.request_headers(path, authority, scheme="http", timeout_s=None, metadata=())


def test_an_encoding_that_was_not_accepted_hides_no_status() -> None:
    """A server names it also where it compresses nothing, as in an answer of trailers alone."""
    fields = [(b":status", b"200"), (b"content-type", b"application/grpc"), (b"grpc-encoding", b"gzip")]
    assert calls.parse_response(fields) is None
    failed = calls.parse_response([*fields, (b"grpc-status", b"5"), (b"grpc-message", b"no table")])
    assert failed is not None
    assert (failed.status, failed.message) == (StatusCode.NOT_FOUND, "no table")
    assert calls.parse_response([*fields, (b"grpc-status", b"0")]) is None


@pytest.mark.parametrize(
    ("http", "status"),
    [("401", StatusCode.UNAUTHENTICATED), ("404", StatusCode.UNIMPLEMENTED), ("503", StatusCode.UNAVAILABLE),
     ("418", StatusCode.UNKNOWN), ("", StatusCode.UNKNOWN)],
)  # fmt: skip
def test_http_statuses_have_meanings(http: str, status: StatusCode) -> None:
    """An HTTP answer without a gRPC status is given the status that gRPC's table names."""
    failed = calls.parse_response([(b":status", http.encode())])
    assert failed is not None
    assert failed.status is status
