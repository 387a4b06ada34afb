"""Reading from a server with TLS and tokens: the secrets stay in their files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.streaming.datasource import ReadAllAvailable

import scanner
import scanner.sync
from scanner.server.auth.access import CredentialsFile
from scanner.server.auth.principals import Credentials, make_token, token_sha256
from spark_source import WeirDataSource
from spark_source.batch.reader import BucketReader
from tests.support.certificates import ca_file, files, issue, server_tls
from tests.support.pickling import pickled, sent_to_worker
from tests.support.server import RunningServer, running_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.socket, pytest.mark.rocks]

TOKEN, OTHER = make_token(), make_token()
CREDENTIALS = f"""
[principals.reader]
token_sha256 = ["{token_sha256(TOKEN)}"]
read = ["*"]
write = ["*"]
[principals.other]
token_sha256 = ["{token_sha256(OTHER)}"]
read = ["something.else"]
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For certificates and tokens."""
    return tmp_path_factory.mktemp("secrets")


@pytest.fixture(scope="module")
def server(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that wants certificates and tokens, with one table."""
    tls = server_tls(directory, client_ca="test")
    own = files(directory, "own", issue("test", "spark.example"))
    with running_server(
        tmp_path_factory.mktemp("data"), tls=tls, credentials=Credentials.parse(CREDENTIALS)
    ) as running:
        context = scanner.tls(ca_file(directory), own.certificate, own.key)
        with scanner.sync.connect(running.endpoint, ssl_context=context, token=TOKEN) as client:
            table = client.create_table("secret", pa.schema([("k", pa.int64())]), ["k"], buckets=2)
            table.write(pa.table({"k": list(range(1_000))}))
        yield running


@pytest.fixture
def options(server: RunningServer, directory: Path) -> dict[str, str]:
    """The options of a read that works."""
    (directory / "token").write_text(TOKEN + "\n")
    return {
        "endpoint": server.endpoint,
        "table": "secret",
        "tlsCa": str(ca_file(directory)),
        "tlsCert": str(directory / "own.pem"),
        "tlsKey": str(directory / "own.key"),
        "tokenFile": str(directory / "token"),
    }


@pytest.mark.parametrize("mode", ["push", "session"])
def test_read_with_certificate_and_token(mode: str, options: dict[str, str]) -> None:
    """Source, planning and tasks, sent to a worker as Spark does, connect with what the files hold."""
    source = WeirDataSource(options | {"mode": mode})
    reader = sent_to_worker(source.reader(source.schema()))
    rows = [
        batch.num_rows
        for partition in reader.partitions()
        for batch in reader.read(sent_to_worker(partition))
    ]
    assert sum(rows) == 1_000


def test_nothing_that_is_sent_has_a_secret(options: dict[str, str], directory: Path) -> None:
    """What Spark ships and shows of a read has the paths of the files, and nothing that is in them."""
    source = WeirDataSource(options)
    reader = source.reader(source.schema())
    assert isinstance(reader, BucketReader)
    partitions = reader.partitions()
    sent = (
        pickled(source) + pickled(reader) + pickled(partitions) + repr([vars(source), vars(reader)]).encode()
    )
    assert str(directory / "token").encode() in sent
    for name in ("token", "own.key"):
        for line in (directory / name).read_text().splitlines():
            assert line.encode() not in sent
    assert token_sha256(TOKEN).encode() not in sent


def test_principal_without_the_right(options: dict[str, str], directory: Path) -> None:
    """A token of somebody who may not read the table, and one of nobody, are told apart."""
    path = directory / "another token"
    path.write_text(OTHER)
    with pytest.raises(scanner.PermissionDenied, match="principal other"):
        WeirDataSource(options | {"tokenFile": str(path)}).schema()
    path.write_text("weir_wrong")
    with pytest.raises(scanner.Unauthenticated):
        WeirDataSource(options | {"tokenFile": str(path)}).schema()


def test_files_that_are_not_there(options: dict[str, str]) -> None:
    """A file that this machine does not have is named."""
    for name in ("tlsCa", "tlsCert", "tlsKey", "tokenFile"):
        with pytest.raises(scanner.ArgumentInvalid, match="not there cannot be read"):
            WeirDataSource(options | {name: "not there"}).schema()


def test_a_stream_whose_token_is_replaced(tmp_path: Path) -> None:
    """The planner of a query goes on with the token that the file has when the server knows the old one no more."""

    def allow(*tokens: str) -> None:
        hashes = ", ".join(f'"{token_sha256(each)}"' for each in tokens)
        path.write_text(f'[principals.reader]\ntoken_sha256 = [{hashes}]\nread = ["*"]\nwrite = ["*"]\n')

    path, token_file = tmp_path / "credentials.toml", tmp_path / "token"
    allow(TOKEN)
    token_file.write_text(TOKEN)
    credentials = CredentialsFile(path)
    rows = pa.table({"k": list(range(10))})
    with running_server(tmp_path / "data", credentials=credentials) as server:
        with scanner.sync.connect(server.endpoint, token=TOKEN) as client:
            client.create_table("t", rows.schema, ["k"], buckets=1).write(rows)
        options = {
            "endpoint": server.endpoint,
            "table": "t",
            "readChanges": "true",
            "tokenFile": str(token_file),
        }
        source = WeirDataSource(options)
        reader = source.streamReader(source.schema())
        first = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        reader.partitions(reader.initialOffset(), first)
        allow(TOKEN, OTHER)
        server.ask(lambda _: credentials.reload())
        token_file.write_text(OTHER)
        allow(OTHER)
        server.ask(lambda _: credentials.reload())
        with scanner.sync.connect(server.endpoint, token=OTHER) as client:
            client.table("t").write(pa.table({"k": list(range(10, 15))}))
            second = reader.latestOffset(first, ReadAllAvailable())
            assert second["buckets"]["0"]["offset"] == 15
            (planned,) = reader.partitions(first, second)
            assert sum(batch.num_rows for batch in reader.read(planned)) == 5
            (lease,) = client.list_leases()
            assert lease.offsets("t") == {0: 10}
            allow(TOKEN)
            server.ask(lambda _: credentials.reload())
            with pytest.raises(scanner.Unauthenticated):
                reader.latestOffset(second, ReadAllAvailable())
        reader.stop()


@pytest.mark.spark
@pytest.mark.slow
def test_spark_reads_and_tells_nothing(
    spark: SparkSession, options: dict[str, str], directory: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Spark reads over TLS with a token; neither its plan nor its error has the token or the key."""
    frame = spark.read.format("weir").options(**options).load()
    assert frame.count() == 1_000
    frame.explain(extended=True)
    (directory / "bad").write_text(OTHER)
    with pytest.raises(PySparkException, match="principal other") as caught:
        spark.read.format("weir").options(**options | {"tokenFile": str(directory / "bad")}).load()
    shown = "".join(capfd.readouterr()) + str(caught.value)
    assert "weir" in shown
    key_line = (directory / "own.key").read_text().splitlines()[1]
    for secret in (TOKEN, OTHER, token_sha256(TOKEN), key_line):
        assert secret not in shown
