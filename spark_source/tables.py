"""What the driver asks the server about a table before it plans a read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_source.connection import open_client

if TYPE_CHECKING:
    from scanner import TableDescription
    from spark_source.options import SourceOptions


def describe_table(options: SourceOptions) -> TableDescription:
    """Ask the server for a table's columns and buckets, over a connection of its own.

    Raises:
        TableNotFound: There is no such table; the message lists those there are.
        ServerUnavailable: Nobody answers at the endpoint, or TLS failed.
        Unauthenticated, PermissionDenied: The server does not know who reads, or does not let them.

    Waits: For the connection and one call.
    """
    with open_client(options) as client:
        return client.table(options.table).description
