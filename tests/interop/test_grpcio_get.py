"""A point read by stock grpcio: one unary call with a batch of keys, directly and through each proxy."""

from __future__ import annotations

from typing import Any

import grpc
import pyarrow as pa
import pytest

from scanner.proto.weir.v1 import tables_pb2 as pb
from tests.interop.blobs import ROWS, TABLE

pytestmark = [pytest.mark.socket, pytest.mark.rocks, pytest.mark.slow]


def get(channel: grpc.Channel, **fields: Any) -> pb.GetResponse:
    """The call, as generated code makes it."""
    method = channel.unary_unary(
        "/weir.v1.Tables/Get",
        request_serializer=pb.GetRequest.SerializeToString,
        response_deserializer=pb.GetResponse.FromString,
    )
    response: pb.GetResponse = method(pb.GetRequest(table=TABLE, **fields), timeout=100)
    return response


def keys(ids: list[int]) -> bytes:
    """Keys as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    batch = pa.record_batch([pa.array(ids, pa.int64())], ["id"])
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    stream: bytes = sink.getvalue().to_pybytes()
    return stream


def test_rows_by_their_keys(endpoint: str) -> None:
    """Rows in the order asked for, which keys are there, and the state, which a second call reads again."""
    with grpc.insecure_channel(endpoint) as channel:
        first = get(channel, keys=keys([5, ROWS, 0, 5]), columns=["id"])
        again = get(channel, keys=keys([5, ROWS, 0, 5]), columns=["id"], as_of=first.states)
    rows = pa.ipc.open_stream(first.arrow_stream).read_all()
    assert rows.column("id").to_pylist() == [5, 0, 5]
    assert list(first.found) == [True, False, True, True]
    assert (again.arrow_stream, list(again.found)) == (first.arrow_stream, list(first.found))
    assert list(again.states) == list(first.states)


def test_what_is_allowed_fits_a_stock_client(endpoint: str) -> None:
    """A channel takes messages of 4 MiB: a call is answered within that, or refused with what to do about it."""
    with grpc.insecure_channel(endpoint) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            get(channel, keys=keys(list(range(ROWS))))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "ask for fewer keys" in str(caught.value.details())
        assert sum(get(channel, keys=keys(list(range(ROWS))), columns=["id"]).found) == ROWS
