"""What the driver asks the server about a table before it plans a read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import scanner.sync

if TYPE_CHECKING:
    from scanner import TableDescription
    from spark_source.options import SourceOptions


def describe_table(options: SourceOptions) -> TableDescription:
    """Ask the server for a table's columns and buckets, over a connection of its own.

    Raises:
        TableNotFound: There is no such table; the message lists those there are.
        ServerUnavailable: Nobody answers at the endpoint.

    Waits: For the connection and one call.
    """
    with scanner.sync.connect(options.endpoint) as client:
        return client.table(options.table).description
