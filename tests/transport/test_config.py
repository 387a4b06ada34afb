"""Bounds are checked where they are made, and the errors that cross processes survive it."""

from __future__ import annotations

import dataclasses
import pickle
import types

import pytest

import transport
from tests.support.configs import TINY
from transport import CallFailed, ErrorCode, StatusCode, TransportConfig, TransportError
from transport.errors import MessageRefused, error_code_name


@pytest.mark.parametrize(
    "changes",
    [
        {"stream_window_bytes": 0}, {"stream_window_bytes": 2**31}, {"connection_window_bytes": 65_534},
        {"inbound_frame_bytes_max": 16_383}, {"inbound_frame_bytes_max": 2**24}, {"outbound_frame_bytes_max": 0},
        {"control_frame_bytes_max": 1_023}, {"message_bytes_max": 0}, {"message_bytes_max": 2**32},
        {"send_buffer_bytes": 0}, {"write_bytes_max": 0}, {"receive_buffer_bytes": 1_023}, {"streams_max": 0},
        {"header_list_bytes_max": 1_023}, {"control_backlog_bytes_max": 0}, {"handshake_timeout_s": 0.0},
        {"ping_timeout_s": -1.0}, {"ping_interval_s": -1.0}, {"send_timeout_s": float("nan")},
        {"drain_timeout_s": float("nan")}, {"idle_timeout_s": -1.0}, {"receive_buffer_bytes": 16 * 1024 + 9},
        {"control_frame_bytes_max": 200_000, "inbound_frame_bytes_max": 100_000},
        {"streams_max": "5"}, {"streams_max": 5.5}, {"streams_max": True}, {"idle_timeout_s": "5"},
        {"idle_timeout_s": None},
    ],
)  # fmt: skip
def test_fields_out_of_range_are_named(changes: dict[str, object]) -> None:
    """A value or a pair of values that cannot work is refused by name."""
    with pytest.raises(ValueError, match=next(iter(changes))):
        TransportConfig(**changes)  # type: ignore[arg-type]


def test_config_is_frozen() -> None:
    """A config is a value."""
    config = TINY
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.streams_max = 3  # type: ignore[misc]
    assert dataclasses.replace(config, streams_max=3).streams_max == 3


ERRORS = [
    CallFailed(StatusCode.ABORTED, "why", b"\0"),
    MessageRefused("too long", StatusCode.RESOURCE_EXHAUSTED),
    transport.FlowControlViolation("past it", stream_id=5),
    transport.LocalProtocolError("misuse", ErrorCode.STREAM_CLOSED, 7),
    transport.RemoteProtocolError("abuse"),
    transport.StreamReset(8, by_peer=False),
    transport.StreamRefused("draining"),
    transport.ConnectionLost("gone"),
]


@pytest.mark.parametrize("error", ERRORS, ids=[type(error).__name__ for error in ERRORS])
def test_errors_survive_pickling(error: TransportError) -> None:
    """Every error comes back from another process with its text and its attributes."""
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_codes_have_names() -> None:
    """Codes of the RFC are named, others are numbers."""
    assert error_code_name(11) == "ENHANCE_YOUR_CALM"
    assert error_code_name(0xBEEF) == "0xbeef"


def test_public_names_exist_and_are_documented() -> None:
    """What is exported is there, sorted, and says what it is."""
    assert sorted(transport.__all__, key=str.lower) == sorted(set(transport.__all__), key=str.lower)
    for name in transport.__all__:
        exported = getattr(transport, name)
        if isinstance(exported, type | types.FunctionType):
            assert exported.__doc__, name
