"""What `python -m bench replica` finds when it compares."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import scanner.sync
from bench.harness.errors import BenchFailed
from bench.harness.ledger import SCHEMA, rows
from bench.questions.replica import SOURCE, TARGET, Query, Replicated, Writer, compare
from tests.support.server import running_server

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.socket, pytest.mark.rocks]

KEYS = [1, 2, 3]


@pytest.fixture
def client(tmp_path: Path) -> Iterator[scanner.sync.Client]:
    """A client of a server with both tables, empty."""
    with running_server(tmp_path / "data") as server, scanner.sync.connect(server.endpoint) as client:
        client.create_table(SOURCE, SCHEMA, ["id"], 2)
        client.create_table(TARGET, SCHEMA, ["id"], 1)
        yield client


def known(version: int) -> dict[int, tuple[object, ...]]:
    """What the writer was told of all keys."""
    return {row["id"]: tuple(row.values()) for row in rows(KEYS, version).to_pylist()}


def compared(client: scanner.sync.Client, *versions: int) -> list[str]:
    """What is wrong when the source is at version 2 and the target got these, one after another."""
    client.table(SOURCE).write(rows(KEYS, 2))
    for version in versions:
        client.table(TARGET).write(rows(KEYS, version))
    result = Replicated(seed=1)
    compare(client, known(2), result)
    return result.wrong


def test_a_copy_is_right(client: scanner.sync.Client) -> None:
    """Nothing is found where each version came once, in order."""
    assert compared(client, 1, 2) == []


def test_a_version_that_comes_back_is_found(client: scanner.sync.Client) -> None:
    """A micro-batch that counts twice writes an older version over a newer one, even if all is equal at the end."""
    assert len(compared(client, 1, 2, 1, 2)) > 0


def test_rows_that_differ_are_found(client: scanner.sync.Client) -> None:
    """A micro-batch that is missing leaves other rows."""
    assert compared(client, 1) == [
        f"{TARGET}: 3 keys differ, the first {tuple(rows([1], 1).to_pylist()[0].values())} and {known(2)[1]}"
    ]


IDLE = ["sh", "-c", "sleep 600"]
"""A process that stages and decides nothing, and is killed long before its end."""


@pytest.mark.parametrize("to_end", [False, True])
def test_a_query_that_stalls_fails_the_bench(
    client: scanner.sync.Client, tmp_path: Path, to_end: bool
) -> None:
    """It is not waited for without end: neither for its next micro-batch nor for its last."""
    writer = Writer("127.0.0.1:1", "1 writes")
    stalled = Query(IDLE, tmp_path / "log", client.table(TARGET), Replicated(seed=1), writer, 0.0)
    with pytest.raises(BenchFailed, match="staged and decided nothing for 0 s"):
        stalled.run_to_end() if to_end else stalled.run_and_kill(1, 0.0)


def test_a_writer_that_fails_fails_the_bench(client: scanner.sync.Client, tmp_path: Path) -> None:
    """Without rows to copy there is no next micro-batch: what went wrong is said at once."""
    with pytest.raises(BenchFailed, match="the writer failed"), Writer("127.0.0.1:1", "1 writes") as writer:
        stalled = Query(IDLE, tmp_path / "log", client.table(TARGET), Replicated(seed=1), writer)
        stalled.run_and_kill(1, 0.0)
