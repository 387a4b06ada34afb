"""Make what a server leaves: `python -m tests.scanner.server.golden.make DATE`, by the version of that date.

Run with the sources of that day, once; what it wrote is never changed. The archive holds the directory `data`, as of a
server that was killed, and `expected.json`.
"""

from __future__ import annotations

import json
import os
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa

import weir
import weir.sync
from scanner.server.config import ScannerConfig
from tests.support.server import running_server

HERE = Path(__file__).parent
LONG_S = 4e9
"""Leases that are to be found by tests of later years."""
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])


def rows(ids: range, text: str) -> pa.Table:
    """Rows of the table."""
    return pa.table({"id": list(ids), "text": [text] * len(ids)}, SCHEMA)


def fill(client: weir.sync.Client) -> dict[str, Any]:
    """Leave a lease, a group, a version that is decided and one that is not; return what is expected of them."""
    items = client.create_table("items", SCHEMA, primary_key=["id"], buckets=1)
    items.write(rows(range(40), "first"))
    target = weir.LeaseTarget("items", state="new")
    leased = client.acquire_lease(target, lease_id="kept", ttl_s=LONG_S).offsets("items")
    items.write(rows(range(10, 20), "second"))
    items.delete([(number,) for number in range(5)])
    with items.new_scan().with_source("log").in_group("readers", member="m").execute() as group:
        next(group)
        group.commit()
        position = group.positions[0]
    version = items.transaction("load", 1)
    version.stage(rows(range(100, 110), "decided"), part=0, attempt=3)
    version.publish({0: 3})
    items.transaction("load", 2).stage(rows(range(105, 120), "staged"), part=0, attempt=0)
    items.write(rows(range(30, 45), "last"))
    (log,) = items.offsets()
    return {
        "leased": leased[0],
        "position": position,
        "log_end": log.end_offset,
        "rows": items.new_scan().to_arrow().sort_by("id").to_pylist(),
    }


def without_what_is_made_anew(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out what holds a place on the disk, and RocksDB's own log."""
    name = Path(entry.name).name
    return None if name == "BALLAST" or name.startswith("LOG") else entry


def main() -> None:
    """Write the archive, and end as if killed."""
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch) / "data"
        config = ScannerConfig(lease_ttl_max_s=LONG_S)
        with running_server(data, config) as server, weir.sync.connect(server.endpoint) as client:
            (Path(scratch) / "expected.json").write_text(json.dumps(fill(client)))
            with tarfile.open(HERE / f"{sys.argv[1]}.tar.xz", "x:xz") as file:
                for name in ("expected.json", "data"):
                    file.add(Path(scratch) / name, name, filter=without_what_is_made_anew)
            os._exit(0)


if __name__ == "__main__":
    main()
