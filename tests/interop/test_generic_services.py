"""Health and reflection, as the stock clients of grpcio ask for them, beside what `weir serve` serves."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
import trio
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

import scanner.sync
from scanner.proto.weir.v1 import scanner_pb2
from tests.support.server import RunningServer, running_server
from transport.proto.grpc.reflection.v1 import reflection_pb2 as reflection_v1_pb2

if TYPE_CHECKING:
    from tests.interop.blobs import Served

pytestmark = [pytest.mark.socket, pytest.mark.rocks]

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
WEIR = {"weir.v1.Scanner", "weir.v1.Tables"}
GENERIC = {
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
}


def request(service: str) -> health_pb2.HealthCheckRequest:
    return health_pb2.HealthCheckRequest(service=service)


def test_health_is_told(endpoint: str) -> None:
    """The server and each service are SERVING, through proxies too; one that is not there is NOT_FOUND."""
    with grpc.insecure_channel(endpoint) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for service in {"", *WEIR}:
            assert stub.Check(request(service), timeout=100).status == SERVING
        statuses = stub.List(health_pb2.HealthListRequest(), timeout=100).statuses
        assert set(statuses) >= {"", *WEIR}
        with pytest.raises(grpc.RpcError) as caught:
            stub.Check(request("weir.v1.None"), timeout=100)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_watchers_are_told_of_a_drain(tmp_path: Path) -> None:
    """A drain tells watchers NOT_SERVING and ends their calls, so that they do not hold it up."""

    def drain(server: RunningServer, done: list[bool]) -> None:
        done.append(trio.from_thread.run(server.server.drain, 1000.0, trio_token=server.token))

    with running_server(tmp_path) as server, grpc.insecure_channel(server.endpoint) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        watches = [stub.Watch(request(service), timeout=100) for service in ("", "weir.v1.Scanner", "none")]
        assert [next(watch).status for watch in watches] == [
            SERVING,
            SERVING,
            health_pb2.HealthCheckResponse.SERVICE_UNKNOWN,
        ]
        drained: list[bool] = []
        thread = threading.Thread(target=drain, args=(server, drained))
        thread.start()
        assert [next(watch).status for watch in watches[:2]] == [NOT_SERVING, NOT_SERVING]
        for watch in watches:
            with pytest.raises(grpc.RpcError) as caught:
                next(watch)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        thread.join(100)
        assert drained == [True]


def test_stock_tools_learn_everything_by_reflection(endpoint: str) -> None:
    """A pool that is fed by v1alpha reflection alone knows every service and message; a call made with it works."""
    with grpc.insecure_channel(endpoint) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        services = set(database.get_services())
        assert services >= WEIR | GENERIC
        pool = DescriptorPool(database)
        for service in services:
            assert pool.FindServiceByName(service).methods
        learned = pool.FindMessageTypeByName("weir.v1.ScanResponse")
        assert [field.name for field in learned.fields] == [
            field.name for field in scanner_pb2.ScanResponse.DESCRIPTOR.fields
        ]


def test_reflection_v1(blobs: Served) -> None:
    """V1 answers each request of a stream in order: files once, errors as errors."""
    pb = reflection_v1_pb2
    asked = [
        pb.ServerReflectionRequest(host="h", file_containing_symbol="weir.v1.Scanner.Scan"),
        pb.ServerReflectionRequest(file_by_filename="weir/v1/scanner.proto"),
        pb.ServerReflectionRequest(file_containing_symbol="weir.v1.Nothing"),
        pb.ServerReflectionRequest(list_services=""),
        pb.ServerReflectionRequest(all_extension_numbers_of_type="weir.v1.Demand"),
        pb.ServerReflectionRequest(
            file_containing_extension=pb.ExtensionRequest(
                containing_type="weir.v1.Demand", extension_number=7
            )
        ),
        pb.ServerReflectionRequest(),
    ]
    with grpc.insecure_channel(blobs.endpoint) as channel:
        call = channel.stream_stream(
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            request_serializer=pb.ServerReflectionRequest.SerializeToString,
            response_deserializer=pb.ServerReflectionResponse.FromString,
        )
        by_symbol, by_name, unknown, services, numbers, extension, empty = call(iter(asked), timeout=100)

    assert (by_symbol.valid_host, by_symbol.original_request) == ("h", asked[0])
    (file,) = by_symbol.file_descriptor_response.file_descriptor_proto
    assert file == scanner_pb2.DESCRIPTOR.serialized_pb
    assert by_name.file_descriptor_response == by_symbol.file_descriptor_response
    assert unknown.error_response.error_code == extension.error_response.error_code == 5
    assert {each.name for each in services.list_services_response.service} >= WEIR | GENERIC
    assert numbers.all_extension_numbers_response.base_type_name == "weir.v1.Demand"
    assert empty.error_response.error_code == 3


def test_reflection_of_nothing_is_answered(blobs: Served) -> None:
    """A request that asks for nothing gets an answer, and the call goes on to its end."""
    with grpc.insecure_channel(blobs.endpoint) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        assert list(stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest()]), timeout=100))


@pytest.mark.parametrize(
    "path",
    [
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/Watch",
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        "/weir.v1.Scanner/Scan",
        "/weir.v1.Scanner/ScanPage",
        "/weir.v1.Tables/ListTables",
        "/weir.v1.Tables/Write",
    ],
)
def test_octets_that_are_no_request(blobs: Served, path: str) -> None:
    """Octets that are no message of the method's type end the call with INVALID_ARGUMENT, whatever the service."""
    with grpc.insecure_channel(blobs.endpoint) as channel:
        call: Any = channel.stream_stream(path)
        with pytest.raises(grpc.RpcError) as caught:
            list(call(iter([b"\xff\xff"]), timeout=100))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_weirs_own_client_beside_them(blobs: Served) -> None:
    """The generic types of ours and those of grpcio's packages live in one process."""
    with scanner.sync.connect(blobs.endpoint) as client:
        assert client.tables()
