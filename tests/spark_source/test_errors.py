"""What a user of Spark gets to see of a failure."""

from __future__ import annotations

import gc
import logging
import threading
import traceback
import weakref

import pytest

from scanner import ServerUnavailable
from spark_source.errors import PlainErrors


def _fail_deep_down() -> None:
    try:
        raise OSError("a socket deep down")
    except OSError as error:
        raise ServerUnavailable("nobody answers") from error


def test_a_failure_is_shown_without_its_origins_and_logged_with_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Spark prints every frame and cause of what is raised; the log, level debug, has all of them."""
    with (
        caplog.at_level(logging.DEBUG, "weir.spark"),
        pytest.raises(ServerUnavailable) as raised,
        PlainErrors(),
    ):
        _fail_deep_down()
    shown = "".join(traceback.format_exception(raised.value))
    assert shown.count("\n  File ") == 1
    assert "a socket deep down" not in shown
    assert "_fail_deep_down" in caplog.text
    assert "a socket deep down" in caplog.text


def test_what_failed_is_freed_at_once() -> None:
    """Spark keeps the error; the connection and the batches of the frames that it came from go without a collection."""
    held: list[weakref.ref[object]] = []

    def fail() -> None:
        client = threading.Event()  # Stands for what a frame holds.
        held.append(weakref.ref(client))
        raise ServerUnavailable("nobody answers")

    gc.disable()
    try:
        with pytest.raises(ServerUnavailable) as raised, PlainErrors():
            fail()
        assert raised.value.message == "nobody answers"
        assert held[0]() is None
    finally:
        gc.enable()


def test_a_defect_keeps_where_it_is_from() -> None:
    """What the source does not raise on purpose passes as it is."""
    with pytest.raises(ZeroDivisionError) as raised, PlainErrors():
        raise ZeroDivisionError from OSError("why")
    assert isinstance(raised.value.__cause__, OSError)
