"""The paths of the methods are those of the services in the .proto files."""

from __future__ import annotations

from types import ModuleType

from scanner.proto.weir.v1 import admin_pb2, groups_pb2, leases_pb2, scanner_pb2, tables_pb2, transactions_pb2
from scanner.wire import methods

MODULES: tuple[ModuleType, ...] = (
    admin_pb2,
    groups_pb2,
    leases_pb2,
    scanner_pb2,
    tables_pb2,
    transactions_pb2,
)


def test_every_path_is_one_of_a_service() -> None:
    """A path names a service, which ends with a slash and has a constant, or a method of one. So does each read."""
    services = {}
    for module in MODULES:
        for service in module.DESCRIPTOR.services_by_name.values():
            services[f"/{service.full_name}/"] = {method.name for method in service.methods}
    paths = {value for name, value in vars(methods).items() if name.isupper() and name != "READS"}
    assert {path for path in paths if path.endswith("/")} == services.keys()
    for path in paths - services.keys():
        prefix, _, method = path.rpartition("/")
        assert method in services[f"{prefix}/"], path
    assert set().union(*services.values()) >= methods.READS
