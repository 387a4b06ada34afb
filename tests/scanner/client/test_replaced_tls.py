"""Certificates and CAs that are replaced while a client runs: each connection is made with what the files are then."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import scanner
import transport
from scanner.client.credentials import ConnectionTls, TlsFiles, tls
from scanner.server.server import open_server
from scanner.storage.memory.store import MemoryStore
from tests.support.certificates import Files, ca_file, files, issue

if TYPE_CHECKING:
    from scanner.client.table import Table

SCHEMA = pa.schema([("k", pa.int64())])


class AtOnce(Random):
    """Draws no delay between attempts."""

    def uniform(self, a: float, b: float) -> float:
        return 0.0


class Place:
    """A client's and a server's files, both of mutual TLS, and a table of that server.

    Args:
        directory: For the files.
    """

    def __init__(self, directory: Path) -> None:
        self.ca = directory / "ca.pem"
        self.own = files(directory, "own", issue("test", "own.example"))
        self.served = files(directory, "server", issue("test", "127.0.0.1"))
        self.ca_of_clients = directory / "clients.pem"
        self.trust("test")
        self.trust_clients("test")
        self.asked = 0
        self.on_ask: dict[int, Callable[[], object]] = {}
        """What happens when the TLS of a connection is asked for the so-manieth time, before it is made."""

    def trust(self, *names: str) -> None:
        """Let the client trust these CAs."""
        self.ca.write_text("".join(ca_file(self.ca.parent, name).read_text() for name in names))

    def trust_clients(self, *names: str) -> None:
        """Let the server trust these CAs."""
        self.ca_of_clients.write_text("".join(ca_file(self.ca.parent, name).read_text() for name in names))

    def tls(self) -> ssl.SSLContext:
        """The client's TLS of the moment."""
        self.asked += 1
        self.on_ask.get(self.asked, bool)()
        return tls(self.ca, self.own.certificate, self.own.key)

    @asynccontextmanager
    async def table(self, retries: int = 8) -> AsyncIterator[Table]:
        """A table of one bucket."""
        served = transport.ServerTls(self.served.certificate, self.served.key, client_ca=self.ca_of_clients)
        async with (
            open_server(MemoryStore(), ssl_context=served) as server,
            scanner.connect(
                f"127.0.0.1:{server.port}", ssl_context=self.tls, retries=retries, rng=AtOnce()
            ) as client,
        ):
            yield await client.create_table("t", SCHEMA, ["k"], buckets=1)


def lose(table: Table) -> None:
    """Lose the connection under whatever runs on it."""
    link = table._connection._link
    assert link is not None
    link.client.give_up("lost")


def rows(*keys: int) -> pa.Table:
    return pa.table({"k": keys}, schema=SCHEMA)


@pytest.mark.socket
async def test_calls_go_on_when_both_ends_are_replaced(tmp_path: Path) -> None:
    """A tail and a writer that run go on over new connections, whose CAs and certificates are other ones."""
    place = Place(tmp_path)
    async with place.table() as table, table.open_writer() as writer:
        async with table.new_scan().with_source("log").execute() as batches:
            await writer.write(rows(1))
            assert (await anext(batches)).column("k").to_pylist() == [1]
            place.trust("test", "other")
            place.served.replace(issue("other", "127.0.0.1"))
            place.trust_clients("test", "other")
            place.own.replace(issue("other", "own.example"))
            lose(table)
            await writer.write(rows(2))
            assert (await anext(batches)).column("k").to_pylist() == [2]
            place.trust("other")
            place.trust_clients("other")
            lose(table)
            await writer.write(rows(3))
            assert (await anext(batches)).column("k").to_pylist() == [3]
    assert place.asked == 3


def _half_a_ca(place: Place) -> None:
    place.ca.write_text(place.ca.read_text()[:200])


def _another_key(place: Place) -> None:
    place.own.replace(issue("other", "own.example"))
    place.own.replace(issue("test", "own.example"), key_too=False)


WRONG: dict[str, Callable[[Place], object]] = {
    "half a CA": _half_a_ca,
    "no CA": lambda place: place.ca.unlink(),
    "another key": _another_key,
    "the server first": lambda place: place.served.replace(issue("other", "127.0.0.1")),
    "a certificate of others": lambda place: place.own.replace(issue("other", "own.example")),
    "an expired certificate": lambda place: place.own.replace(issue("test", "own.example", days_left=-1)),
}


@pytest.mark.socket
@pytest.mark.parametrize("wrong", WRONG)
async def test_what_is_wrong_for_a_moment_ends_nothing(wrong: str, tmp_path: Path) -> None:
    """Files that are being replaced, and those that the other end does not take, are tried again like a lost server."""
    place = Place(tmp_path)

    def put_right() -> None:
        place.trust("test", "other")
        place.own.replace(issue("test", "own.example"))

    async with place.table() as table, table.open_writer() as writer:
        async with table.new_scan().with_source("log").execute() as batches:
            await writer.write(rows(1))
            assert (await anext(batches)).column("k").to_pylist() == [1]
            WRONG[wrong](place)
            place.on_ask[4] = put_right
            lose(table)
            await writer.write(rows(2))
            assert (await anext(batches)).column("k").to_pylist() == [2]
    assert place.asked == 4


@pytest.mark.socket
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("no CA", r"no TLS at the moment: .*ca\.pem cannot be read: No such file .* \(after 4 attempts"),
        ("another key", r"own\.pem and .*own\.key do not belong together .*after 4 attempts"),
        (
            "a certificate of others",
            r"wants another certificate of this client .*tlsCert\): .*the peer says: unknown ca .*after 4 attempts",
        ),
    ],
)
async def test_what_stays_wrong_is_said(wrong: str, says: str, tmp_path: Path) -> None:
    """At the end of the attempts the error names the file, or says what the server does not take."""
    place = Place(tmp_path)
    async with place.table(retries=3) as table:
        WRONG[wrong](place)
        lose(table)
        with pytest.raises(scanner.ServerUnavailable, match=says) as caught:
            await table.new_scan().to_arrow()
    assert caught.type is scanner.ServerUnavailable
    assert place.asked == 5


@pytest.mark.socket
@pytest.mark.parametrize("wrong", ["no CA", "another key"])
async def test_what_is_wrong_at_the_start_is_refused_at_once(wrong: str, tmp_path: Path) -> None:
    """Nothing is tried again before there is a client."""
    place = Place(tmp_path)
    WRONG[wrong](place)
    with pytest.raises(scanner.ArgumentInvalid, match=r"\.pem .*(cannot be read|do not belong)"):
        async with place.table():
            pass
    assert place.asked == 1


def test_what_a_function_may_do() -> None:
    """What it raises first is the caller's; later an attempt has failed. None is no TLS, and no plaintext either."""
    answers: list[Any] = [
        OSError("no vault"),
        None,
        tls(),
        OSError("no vault"),
        None,
        tls(),
        KeyboardInterrupt(),
    ]

    def source() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    with pytest.raises(OSError, match="no vault"):
        ConnectionTls(source)
    with pytest.raises(scanner.ArgumentInvalid, match="not NoneType"):
        ConnectionTls(source)
    first = answers[0]
    made = ConnectionTls(source)
    assert made.context() is first
    with pytest.raises(transport.TlsFailed, match="cannot be asked for: OSError: no vault"):
        made.context()
    with pytest.raises(transport.TlsFailed, match="not NoneType"):
        made.context()
    assert isinstance(made.context(), ssl.SSLContext)
    with pytest.raises(KeyboardInterrupt):
        made.context()
    always = tls()
    made = ConnectionTls(always)
    assert made.context() is made.context() is always
    assert ConnectionTls(None).context() is None


def test_files_that_have_not_changed_are_not_read(tmp_path: Path) -> None:
    """A file that is replaced is read, one behind a link too; what could not be used is read again."""
    for version in ("1", "2"):
        (tmp_path / version).mkdir()
        ca_file(tmp_path / version)
    (tmp_path / "data").symlink_to("1")
    own = files(tmp_path, "own", issue("test", "own.example"))
    source = TlsFiles(tmp_path / "data" / "test-ca.pem", own.certificate, own.key)
    first = source()
    assert source() is first
    (tmp_path / "new").symlink_to("2")
    (tmp_path / "new").replace(tmp_path / "data")
    second = source()
    assert second is not first
    own.replace(issue("test", "other.example"), key_too=False)
    for _ in range(2):
        with pytest.raises(scanner.ArgumentInvalid, match="do not belong together"):
            source()
    own.replace(issue("test", "other.example"))
    assert source() is not second
    assert source() is source()


def test_cas_of_the_system_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system's CAs are trusted, a change of their file reaches the next connection."""
    bundle = ca_file(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    source = TlsFiles()
    first = source()
    assert [each["subject"] for each in first.get_ca_certs()] == [
        each["subject"] for each in tls(bundle).get_ca_certs()
    ]
    assert source() is first
    Files(bundle, bundle).replace(issue("other", "a.example"))
    assert source() is not first
