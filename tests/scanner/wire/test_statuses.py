"""Errors as gRPC statuses, and back."""

from __future__ import annotations

import copy
import logging
import pickle
from typing import NoReturn

import pytest
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from scanner.errors import (
    ERRORS,
    RETRY_AFTER_MS,
    ArgumentInvalid,
    DiskFull,
    ErrorRow,
    InternalError,
    ScannerError,
    ServerUnavailable,
    TableNotFound,
)
from scanner.wire.statuses import DOMAIN, errors_as_statuses, from_call_failed, to_call_failed
from transport import CallFailed, ConnectionLost, StatusCode
from transport.protocol.calls import parse_trailers, trailers


@pytest.mark.parametrize("row", ERRORS, ids=lambda row: row.reason)
def test_every_error_round_trips(row: ErrorRow) -> None:
    """An error arrives as the class it was raised as, with all that it carried."""
    error = row.exception("what happened", resume_token=b"t", oldest_offset=0, metadata={"bucket": "3"})

    failure = to_call_failed(error)
    again = from_call_failed(failure)

    assert failure.status is StatusCode[row.status]
    assert type(again) is row.exception
    assert (again.message, again.resume_token, again.oldest_offset, again.metadata) == (
        "what happened",
        b"t",
        0,
        {"bucket": "3"},
    )


@pytest.mark.parametrize("row", ERRORS, ids=lambda row: row.reason)
def test_every_error_is_sent_to_another_process(row: ErrorRow) -> None:
    """`multiprocessing` and Spark pickle errors: all that one carries arrives, and so do notes that a program adds."""
    error = row.exception("what happened", resume_token=b"t", oldest_offset=0, metadata={"bucket": "3"})
    error.add_note("of part 7")

    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is row.exception
        assert str(again) == "what happened"
        assert vars(again) == vars(error)
        assert again.__notes__ == ["of part 7"]


def test_the_log_has_what_the_disk_said(caplog: pytest.LogCaptureFixture) -> None:
    """Of a disk that is full though bytes are free, without inodes or by a quota; not of what the reserve refuses."""
    refused = DiskFull("the disk of /d has 3 bytes free")
    refused_later = DiskFull("/d takes no writes, since one failed")
    refused_later.__cause__ = refused
    failed = DiskFull("/d/000001.creating: No space left on device")
    failed.__cause__ = OSError("No space left on device")

    said = [str(to_call_failed(error)) for error in (refused, refused_later, failed)]

    assert not any("/d" in each for each in said)
    assert [("under reference" in each) for each in said] == [False, False, True]
    (line,) = caplog.messages
    assert line.endswith("DISK_FULL: /d/000001.creating: No space left on device")


def test_absent_extras_stay_absent() -> None:
    """No token and no offset come back as None, not as empty ones."""
    again = from_call_failed(to_call_failed(TableNotFound("gone")))

    assert (again.resume_token, again.oldest_offset, again.metadata) == (None, None, {})


def test_tools_find_googles_error_info() -> None:
    """The details hold an ErrorInfo with reason and domain, for those who know nothing of weir."""
    status = status_pb2.Status.FromString(to_call_failed(TableNotFound("gone")).details)
    info = error_details_pb2.ErrorInfo()

    assert any(detail.Unpack(info) for detail in status.details)
    assert (info.reason, info.domain, status.code) == ("TABLE_NOT_FOUND", DOMAIN, StatusCode.NOT_FOUND)


def test_a_message_is_one_line_whatever_it_names() -> None:
    """What stands in it of a peer, or of a column, begins no line of a log and does nothing to a terminal."""
    error = from_call_failed(CallFailed(StatusCode.UNAVAILABLE, "gone\n\x1b[2JERROR"))

    assert str(error) == error.message == "the call failed with UNAVAILABLE: gone\\n\\x1b[2JERROR"
    assert str(error.reworded(f"retried: {error}")) == f"retried: {error}"


def test_a_long_message_is_cut_to_fit_trailers() -> None:
    """However long the message, the trailers stay within what proxies let through."""
    failure = to_call_failed(TableNotFound("ä" * 100_000))

    assert len(failure.message.encode()) <= 1500
    assert len(failure.details) < 4096


@pytest.mark.parametrize("row", ERRORS, ids=lambda row: row.reason)
def test_an_error_keeps_its_kind_however_long_its_token_is(row: ErrorRow) -> None:
    """A token of a huge key is left out where it would not fit: the client has the one of its last batch."""
    carried = set()
    for size in (*range(0, 4_200, 25), 70_000):
        token = bytes(size)
        error = row.exception("m" * 2_000, resume_token=token, metadata={"rows": "17", RETRY_AFTER_MS: "500"})
        failure = to_call_failed(error)
        received = parse_trailers(trailers(failure.status, failure.message, failure.details))
        assert received is not None
        again = from_call_failed(received)
        assert (type(again), again.metadata) == (row.exception, error.metadata)
        assert again.resume_token in {token or None, None}
        carried.add(len(again.resume_token or b""))
    assert max(carried) > 1_000


@pytest.mark.parametrize("details", [b"", b"\xff\xff garbage"])
@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (StatusCode.UNAVAILABLE, ServerUnavailable),
        (StatusCode.RESOURCE_EXHAUSTED, ArgumentInvalid),
        (StatusCode.UNKNOWN, ServerUnavailable),
        (StatusCode.INTERNAL, InternalError),
    ],
)
def test_a_failure_without_our_details_is_told_by_its_status(
    status: StatusCode, kind: type[ScannerError], details: bytes
) -> None:
    """A proxy's failure, or a damaged one, becomes the nearest error and keeps its words."""
    error = from_call_failed(CallFailed(status, "no healthy upstream", details))

    assert type(error) is kind
    assert "no healthy upstream" in error.message


async def test_an_unforeseen_exception_is_logged_and_told_as_internal(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The peer learns that the server failed, not how; the log has the traceback."""

    async def broken() -> NoReturn:
        raise ZeroDivisionError("secret")

    with caplog.at_level(logging.ERROR), pytest.raises(CallFailed) as caught:
        await errors_as_statuses(broken, "the test")

    assert caught.value.status is StatusCode.INTERNAL
    assert "secret" not in caught.value.message
    assert "ZeroDivisionError: secret" in caplog.text


async def test_transport_errors_pass_as_they_are() -> None:
    """The stream's own end is nobody's failure to be told."""

    async def cut() -> NoReturn:
        raise ConnectionLost("gone")

    with pytest.raises(ConnectionLost):
        await errors_as_statuses(cut, "the test")
