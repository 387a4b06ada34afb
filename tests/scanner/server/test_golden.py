"""What servers of older versions have left is gone on with: leases, groups, and versions of transactions."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

import weir.sync
from scanner.server.config import ScannerConfig
from tests.scanner.server.golden.make import HERE, LONG_S, rows
from tests.support.server import running_server

CONFIG = ScannerConfig(
    lease_ttl_max_s=LONG_S,
    log_retention_s=LONG_S,
    transaction_stage_ttl_s=LONG_S,
    transaction_name_ttl_s=LONG_S,
)


def folded(changes: list[dict[str, Any]]) -> dict[int, str]:
    """The rows that changes make, by hand."""
    table: dict[int, str] = {}
    for change in changes:
        if change["_change_type"] in {"delete", "update_preimage"}:
            assert table.pop(change["id"]) == change["text"]
        else:
            assert change["id"] not in table
            table[change["id"]] = change["text"]
    return table


@pytest.mark.parametrize("archive", sorted(HERE.glob("*.tar.xz")), ids=lambda path: path.name)
def test_what_an_older_server_left_is_gone_on_with(tmp_path: Path, archive: Path) -> None:
    """Rows, lease, group, the decided version and the staged one: twice the same, then each goes on."""
    with tarfile.open(archive) as file:
        file.extractall(tmp_path, filter="data")
    expected = json.loads((tmp_path / "expected.json").read_text())
    now = {row["id"]: row["text"] for row in expected["rows"]}
    for _ in range(2):
        with (
            running_server(tmp_path / "data", CONFIG) as server,
            weir.sync.connect(server.endpoint) as client,
        ):
            items = client.table("items")
            assert items.new_scan().to_arrow().sort_by("id").to_pylist() == expected["rows"]
            changes = items.new_scan().with_source("log").stop_at("end").to_arrow().to_pylist()
            assert len(changes) == expected["log_end"]
            assert folded(changes) == now
            kept = items.new_scan().with_lease("kept").to_arrow().to_pylist()
            assert {row["id"]: row["text"] for row in kept} == folded(changes[: expected["leased"]])
            assert [bucket.position for bucket in items.group("readers").buckets] == [expected["position"]]
            published = items.transaction("load", 1).publish({0: 0})
            assert (published.decided, published.attempts) == (False, {0: 3})
    with running_server(tmp_path / "data", CONFIG) as server, weir.sync.connect(server.endpoint) as client:
        items = client.table("items")
        assert items.transaction("load", 2).publish({0: 0}, rows={0: 15}, previous_version=1).decided
        now |= dict.fromkeys(range(105, 120), "staged")
        items.write(rows(range(200, 203), "later"))
        now |= dict.fromkeys(range(200, 203), "later")
        with items.new_scan().with_source("log").stop_at("end").in_group("readers").execute() as group:
            behind = [change for batch in group for change in batch.to_pylist()]
        assert [change["_log_offset"] for change in behind] == list(
            range(expected["position"], items.offsets()[0].end_offset)
        )
        assert folded(changes[: expected["position"]] + behind) == now
        assert {row["id"]: row["text"] for row in items.new_scan().to_arrow().to_pylist()} == now
