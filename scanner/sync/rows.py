"""Rows and keys that a caller hands over, read in the caller's thread: reading them may call the client."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from scanner.client.arrow_input import is_rows, to_arrow
from scanner.sync.scan import Batches, Scan

if TYPE_CHECKING:
    from scanner.client.arrow_input import ArrowRows, Rows
    from scanner.client.table import Keys


def read_rows(rows: Rows) -> ArrowRows:
    """As `to_arrow`, but what ends the reading of a scan is raised as it is.

    A stream in C keeps its message alone, so that an interrupt would be an error of pyarrow's.

    Raises:
        ArgumentInvalid: They are a scan that is endless, or the batches of one.
        Exception: As of `to_arrow`, and what the scan raises.
    """
    if isinstance(rows, Scan | Batches):
        rows.plan.require_end("this call")
    if isinstance(rows, Scan):
        return rows.to_arrow()
    if isinstance(rows, Batches):
        return pa.Table.from_batches(rows, schema=rows.schema)
    return to_arrow(rows)


def read_keys(keys: Keys) -> Keys:
    """As `read_rows`, where the keys are rows."""
    return read_rows(keys) if is_rows(keys) else keys
