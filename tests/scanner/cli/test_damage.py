"""What a client is told of a server whose files are damaged, and what the server's log has."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

import scanner.sync
from tests.support.processes import TIMEOUT_S, serving
from tests.support.storage_damage import file_with, flip

pytestmark = [pytest.mark.socket, pytest.mark.rocks]


def test_a_damaged_file_is_named_in_the_log_alone(tmp_path: Path) -> None:
    """DATA_CORRUPTED tells a client no path of the server's; the log has it, under the client's reference."""
    data = tmp_path / "a secret place"
    with serving(data) as (process, endpoint), scanner.sync.connect(endpoint) as client:
        table = client.create_table(
            "t", pa.schema([("k", pa.int64()), ("text", pa.string())]), ["k"], buckets=1
        )
        table.write(pa.table({"k": [1], "text": ["needle in the rows"]}))
        client.checkpoint("t")
        process.terminate()
        process.communicate(timeout=TIMEOUT_S)
    flip(*file_with(data, b"needle in the rows"))
    with serving(data) as (process, endpoint), scanner.sync.connect(endpoint) as client:
        with pytest.raises(scanner.DataCorrupted) as caught:
            client.table("t").new_scan().to_arrow()
        process.terminate()
        _, log = process.communicate(timeout=TIMEOUT_S)
    said = caught.value.message
    assert "/" not in said
    assert "secret" not in said
    reference = re.search(r"reference (\w{8})", said)
    assert reference is not None
    (line,) = [line for line in log.splitlines() if reference[1] in line]
    assert str(data) in line
