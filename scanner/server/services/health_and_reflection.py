"""The services that every gRPC tool knows, for weir's own services: health and reflection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import transport
from scanner.proto.weir.v1 import (
    admin_pb2,
    errors_pb2,
    groups_pb2,
    leases_pb2,
    scanner_pb2,
    tables_pb2,
    transactions_pb2,
)

_FILES: Final = tuple(
    module.DESCRIPTOR.serialized_pb
    for module in (admin_pb2, errors_pb2, groups_pb2, leases_pb2, scanner_pb2, tables_pb2, transactions_pb2)
)


def add_generic_services(
    handlers: Mapping[str, transport.Handler],
) -> tuple[dict[str, transport.Handler], transport.Health]:
    """Make the handlers of health and reflection, and put them beside the others.

    Args:
        handlers: Those of weir's services, by path.

    Returns:
        All handlers, and the health service, which is to be told of a drain.
    """
    health = transport.Health(sorted({path.split("/")[1] for path in handlers}))
    served = {**handlers, **health.handlers()}
    return {**served, **transport.reflection_handlers(served, _FILES)}, health
