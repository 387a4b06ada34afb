"""Octets that are no message are refused alike by each of protobuf's implementations."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

READ = r"""
from google.protobuf.internal import api_implementation

from scanner.proto.weir.v1 import tables_pb2 as pb
from scanner.wire.answers import parse_answer
from scanner.wire.queries import parse_request
from scanner.wire.statuses import from_call_failed
from transport import CallFailed, StatusCode
from transport.health import parse
from transport.proto.grpc.health.v1 import health_pb2

print(api_implementation.Type())
for octets in (b"\x0a\x02\xff\xfe", b"\x0a\x7f"):
    for read in (
        lambda: parse_request(pb.DropTableRequest, memoryview(octets)),
        lambda: parse_answer(pb.DropTableRequest, memoryview(octets), "it"),
        lambda: parse(health_pb2.HealthCheckRequest, octets),
    ):
        try:
            read()
        except Exception as error:
            print(type(error).__name__)
    print(type(from_call_failed(CallFailed(StatusCode.NOT_FOUND, "no", b"\x12\x02\xff\xfe"))).__name__)
"""


@pytest.mark.parametrize("implementation", ["upb", "python"])
def test_text_that_is_no_utf_8_is_refused_as_a_cut_message_is(implementation: str) -> None:
    """With protobuf in pure Python, too, where there is no wheel of it in C for a machine."""
    done = subprocess.run(
        [sys.executable, "-c", READ],
        env={**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": implementation},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    name, *errors = done.stdout.splitlines()
    assert name == implementation
    assert errors[:4] == errors[4:]
    assert errors[:3] == ["ArgumentInvalid", "DataCorrupted", "CallFailed"]
