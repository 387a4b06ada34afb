"""What finds a server that is away for a moment: tasks, commits and plans."""

import random
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

import scanner.sync
from scanner import ArgumentInvalid, Draining, ScanIncomplete, ScannerError, ServerUnavailable
from scanner.client.connection import Connection
from spark_source import WeirDataSource
from spark_source.connection import ask, open_client_again
from spark_source.options import SourceOptions
from tests.support.certificates import ca_file, server_tls
from tests.support.server import running_server

pytestmark = [pytest.mark.rocks, pytest.mark.socket]


def test_a_server_that_comes_back(tmp_path: Path, kept_port: int) -> None:
    """Connecting goes on until the server is there."""
    options = SourceOptions(endpoint=f"127.0.0.1:{kept_port}", table="t")
    pauses: list[float] = []
    with ExitStack() as stack:

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 3:
                stack.enter_context(running_server(tmp_path, port=kept_port))

        with open_client_again(options, pause) as client:
            assert client.tables() == []
    assert len(pauses) == 3


@pytest.mark.parametrize("kind", [{}, {"readChanges": "true"}], ids=str)
def test_a_server_that_is_away_behind_a_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: dict[str, str]
) -> None:
    """What takes connections in its place, and answers at once, is waited for by plans, by tasks and by nobody else."""
    monkeypatch.setattr(random, "uniform", lambda least, most: 0.0)
    rows = pa.table({"k": range(20)})
    call, away = Connection.call, [0]

    async def unless_away(connection: Connection, *args: Any, **options: Any) -> Any:
        if away[0]:
            away[0] -= 1
            raise ServerUnavailable("answered by a proxy")
        return await call(connection, *args, **options)

    with running_server(tmp_path) as server, scanner.sync.connect(server.endpoint) as client:
        client.create_table("t", rows.schema, primary_key=["k"], buckets=1).write(rows)
        monkeypatch.setattr(Connection, "call", unless_away)
        source = WeirDataSource({"endpoint": server.endpoint, "table": "t", **kind})
        reader = source.reader(source.schema())
        away[0] = 4
        (partition,) = reader.partitions()
        assert away == [0]
        away[0] = 4
        assert sum(batch.num_rows for batch in reader.read(partition)) == 20
        assert away == [0]
        away[0] = 4
        with pytest.raises(ServerUnavailable, match="answered by a proxy"):
            WeirDataSource({"endpoint": server.endpoint, "table": "t", **kind}).schema()
        assert away == [2]


def test_a_task_that_reads_waits_for_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that begins while the server is away reads when it is back: rows, changes, and rows as changes."""
    monkeypatch.setattr(random, "uniform", lambda least, most: 0.0)
    rows = pa.table({"k": range(20)})
    connect = scanner.sync.connect
    failures: list[str] = []

    def refuse_once(endpoint: str, **options: Any) -> scanner.sync.Client:
        if not failures:
            failures.append(endpoint)
            raise ServerUnavailable("nobody answers")
        return connect(endpoint, **options)

    with running_server(tmp_path) as server, connect(server.endpoint) as client:
        client.create_table("t", rows.schema, primary_key=["k"], buckets=1).write(rows)
        given = {"endpoint": server.endpoint, "table": "t"}
        for more in ({}, {"readChanges": "true"}):
            source = WeirDataSource(given | more)
            reader = source.reader(source.schema())
            (partition,) = reader.partitions()
            with monkeypatch.context() as patch:
                patch.setattr(scanner.sync, "connect", refuse_once)
                assert sum(batch.num_rows for batch in reader.read(partition)) == 20
            assert failures.pop() == server.endpoint


@pytest.mark.parametrize("kind", ["rows", "changes", "stream"])
def test_a_load_that_has_begun_waits_for_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Where Spark has its schema from the server; a load that was given one may have a wrong endpoint."""
    monkeypatch.setattr(random, "uniform", lambda least, most: 0.0)
    rows = pa.table({"k": range(20)})
    connect = scanner.sync.connect
    refused: list[str] = []

    def refuse_twice(endpoint: str, **options: Any) -> scanner.sync.Client:
        refused.append(endpoint)
        if len(refused) <= 2:
            raise ServerUnavailable("nobody answers")
        return connect(endpoint, **options)

    def plan(source: WeirDataSource, schema: StructType) -> None:
        if kind == "stream":
            reader = source.streamReader(schema)
            assert reader.initialOffset() == {"phase": "initial", "version": 1}
            reader.stop()
        else:
            assert len(source.reader(schema).partitions()) == 1

    with running_server(tmp_path) as server, connect(server.endpoint) as client:
        client.create_table("t", rows.schema, primary_key=["k"], buckets=1).write(rows)
        given = {"endpoint": server.endpoint, "table": "t", "readChanges": str(kind != "rows").lower()}
        source = WeirDataSource(given)
        schema = source.schema()
        monkeypatch.setattr(scanner.sync, "connect", refuse_twice)
        plan(source, schema)
        assert len(refused) == 3
        refused.clear()
        with pytest.raises(ServerUnavailable, match="nobody answers"):
            plan(WeirDataSource(given), schema)


@pytest.mark.parametrize("kind", [Draining, ScanIncomplete])
def test_a_server_that_goes_away_twice(tmp_path: Path, kind: type[ScannerError]) -> None:
    """What it was asked is asked over two connections, and then the error is its own; behind a proxy, too."""
    asked: list[scanner.sync.Client] = []

    def question(client: scanner.sync.Client) -> None:
        asked.append(client)
        raise kind(f"for the {len(asked)}. time")

    with running_server(tmp_path) as server:
        with pytest.raises(kind, match=r"for the 2\. time"):
            ask(SourceOptions(endpoint=server.endpoint, table="t"), question)
    assert len(set(map(id, asked))) == 2


def test_a_server_that_a_client_has_waited_for(tmp_path: Path) -> None:
    """Who has used up the client's attempts is told so, and does not wait as long once more."""
    asked: list[scanner.sync.Client] = []

    def question(client: scanner.sync.Client) -> None:
        asked.append(client)
        raise ServerUnavailable("it says nothing (after 17 attempts)", metadata={"attempts": "17"})

    with running_server(tmp_path) as server, pytest.raises(ServerUnavailable, match="after 17 attempts"):
        ask(SourceOptions(endpoint=server.endpoint, table="t"), question)
    assert len(asked) == 1


def test_a_file_that_is_being_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked at again, a few times, and by the client that is made of it for each of its connections."""
    ca, token = tmp_path / "test-ca.pem", tmp_path / "token"
    token.touch()
    pauses: list[float] = []
    connect, given = scanner.sync.connect, {}

    def noted(endpoint: str, **arguments: Any) -> scanner.sync.Client:
        given.update(arguments)
        return connect(endpoint, **arguments)

    monkeypatch.setattr(scanner.sync, "connect", noted)
    with running_server(tmp_path / "data", tls=server_tls(tmp_path)) as server:
        options = SourceOptions(endpoint=server.endpoint, table="t", tls_ca=str(ca), token_file=str(token))

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 2:
                ca_file(tmp_path)
            if len(pauses) == 4:
                token.write_text("weir_x")

        with open_client_again(options, pause) as client:
            assert client.tables() == []
        assert len(pauses) == 4
        ca.unlink()
        with pytest.raises(ArgumentInvalid, match=r"test-ca\.pem cannot be read"):
            given["ssl_context"]()
        pauses.clear()
        with pytest.raises(ArgumentInvalid, match=r"test-ca\.pem cannot be read"):
            open_client_again(options, pauses.append)
        assert len(pauses) == 4


def test_a_server_that_stays_away(kept_port: int) -> None:
    """After some attempts, ever further apart, the error is the usual one."""
    options = SourceOptions(endpoint=f"127.0.0.1:{kept_port}", table="t")
    pauses: list[float] = []
    with pytest.raises(ServerUnavailable):
        open_client_again(options, pauses.append)
    assert len(pauses) == 15
    assert min(pauses) >= 0.0
    assert max(pauses) <= 5.0
