"""Transactions of the blocking client: what it staged has to be there when it publishes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import scanner.sync
from scanner.errors import ArgumentInvalid, StageNotFound, VersionGap
from tests.support.server import running_server
from tests.support.transactions import SCHEMA, keys, rows

pytestmark = [pytest.mark.socket, pytest.mark.rocks]

TEN = rows(dict.fromkeys(range(10), "ten"))


@pytest.fixture
def table(tmp_path: Path) -> Iterator[scanner.sync.Table]:
    """An empty table."""
    with running_server(tmp_path) as server, scanner.sync.connect(server.endpoint) as client:
        yield client.create_table("t", SCHEMA, ["id"], buckets=2)


def stage(version: scanner.sync.Transaction) -> None:
    """Ten rows and two keys in attempt 0 of part 0, in both ways."""
    version.stage(TEN, part=0, attempt=0)
    with version.part(0, 0) as writer:
        writer.delete(keys([8, 9]))
        writer.close()
    assert writer.close().rows == 2


def test_rows_that_are_gone_are_missed(table: scanner.sync.Table) -> None:
    """What another process has aborted is asked for; what this one has aborted is not."""
    version = table.transaction("load", 1)
    stage(version)
    table.transaction("load", 1).abort()
    stage(version)
    with pytest.raises(StageNotFound, match="at least 24 rows and keys were staged, and 12 are there"):
        version.publish({0: 0})
    version.abort()
    stage(version)
    assert version.publish({0: 0}).decided
    assert table.new_scan().to_arrow().num_rows == 8


def test_what_other_processes_staged_is_told(table: scanner.sync.Table) -> None:
    """`rows` is the least that has to be there, and names parts that are published."""
    stage(table.transaction("load", 1))
    version = table.transaction("load", 1)
    with pytest.raises(StageNotFound, match="at least 13 rows and keys were staged, and 12 are there"):
        version.publish({0: 0}, rows={0: 13})
    for told in ({1: 12}, {0: -1}):
        with pytest.raises(ArgumentInvalid):
            version.publish({0: 0}, rows=told)
    assert version.publish({0: 0}, overwrite=True, rows={0: 12}).decided
    assert not version.publish({0: 0}, rows={0: 13}).decided


def test_rows_behind_a_decision_that_was_lost_are_missed(tmp_path: Path, kept_port: int) -> None:
    """They were not kept, as the version was decided; a restored server does not know that, and has a part of them."""
    with ExitStack() as stack:
        with running_server(tmp_path, port=kept_port) as server:
            client = stack.enter_context(scanner.sync.connect(server.endpoint))
            table = client.create_table("t", SCHEMA, ["id"], buckets=2)
            version = table.transaction("load", 1)
            table.transaction("load", 1).publish({})
            assert version.stage(TEN, part=0, attempt=0).decided
        [decision] = tmp_path.rglob("decision.json")
        decision.unlink()
        with running_server(tmp_path, port=kept_port):
            assert not version.stage(TEN.slice(5), part=0, attempt=0).decided
            with pytest.raises(StageNotFound, match="at least 15 rows and keys were staged, and 5 are there"):
                version.publish({0: 0})
            assert table.new_scan().to_arrow().num_rows == 0


def test_a_version_before_is_named(table: scanner.sync.Table) -> None:
    """A version is decided behind the one that it names, and behind no other."""
    table.transaction("load", 0).publish({})
    with pytest.raises(VersionGap):
        table.transaction("load", 2).publish({}, previous_version=1)
    assert table.transaction("load", 1).publish({}, previous_version=0).decided
    assert not table.transaction("load", 1).publish({}, previous_version=0).previous_unknown
