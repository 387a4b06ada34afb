"""What a client proves itself with, and that nothing of it is to be seen anywhere."""

from __future__ import annotations

import functools
import logging
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import scanner
import scanner.sync
from scanner.client.credentials import CallCredentials, is_loopback, read_token, tls
from scanner.errors import ArgumentInvalid, ScannerError, ServerUnavailable
from scanner.server.auth.principals import Credentials, make_token, token_sha256
from scanner.server.server import open_server
from scanner.storage.memory.store import MemoryStore
from tests.support.certificates import ca_file, client_tls, files, issue, server_files, server_tls
from tests.support.server import running_server
from transport.protocol.calls import RequestHead

if TYPE_CHECKING:
    import trio

SCHEMA = pa.schema([("k", pa.int64())])


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("192.168.1.1", False),
        ("localhost.example.com", False),
        ("::", False),
    ],
)
def test_loopback(host: str, loopback: bool) -> None:
    """Only addresses of this machine, and the name that always is, count as this machine."""
    assert is_loopback(host) is loopback


def test_token_over_plaintext_stays_on_this_machine() -> None:
    """A token goes to another machine over TLS, or if its owner insists; the refusal does not repeat it."""
    assert CallCredentials(None, "example.com").metadata == ()
    expected = (("authorization", "Bearer weir_hush"),)
    assert CallCredentials("weir_hush", "::1").metadata == expected
    assert CallCredentials("weir_hush", "example.com", insecure_token=True).metadata == expected
    assert CallCredentials("weir_hush", "example.com", tls()).metadata == expected
    with pytest.raises(ArgumentInvalid, match=r"not sent to example\.com in plaintext") as caught:
        CallCredentials("weir_hush", "example.com")
    assert "hush" not in str(caught.value)


def test_token_that_cannot_be_read_for_a_moment(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """While its file is being replaced the token from before stays in use; then the new one is."""
    file = tmp_path / "token"
    file.write_text("weir_hush")
    credentials = CallCredentials(functools.partial(read_token, file))
    before = credentials.metadata
    file.write_text("")
    credentials.renew()
    assert credentials.metadata == before
    assert "has to hold one token" in caplog.text
    file.write_text("weir_hushed")
    credentials.renew()
    assert credentials.metadata == (("authorization", "Bearer weir_hushed"),)


def test_token_of_a_function_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    """What it raises is the caller's at the start. Later the token from before stays in use, and nothing is quoted."""
    answers: list[str | Exception] = [OSError("weir_hush"), "weir_hush", OSError("weir_hush"), "weir_hushed"]

    def source() -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with pytest.raises(OSError, match="weir_hush"):
        CallCredentials(source)
    credentials = CallCredentials(source)
    before = credentials.metadata
    credentials.renew()
    assert credentials.metadata == before
    assert "cannot be asked for (OSError)" in caplog.text
    assert "hush" not in caplog.text
    credentials.renew()
    assert credentials.metadata == (("authorization", "Bearer weir_hushed"),)


def test_token_that_is_no_text() -> None:
    """What is no token, or a function that gives none at once, is refused by name."""
    tokens: tuple[Any, ...] = (b"weir_hush", lambda: None, lambda: 7)
    for token in tokens:
        with pytest.raises(
            ArgumentInvalid, match="a token is text, or a function that returns text at once, not "
        ):
            CallCredentials(token)


async def test_connect_refuses_before_it_connects() -> None:
    """Neither client resolves the name of a host that it would not send the token to."""
    with pytest.raises(ArgumentInvalid, match="not sent to"):
        async with scanner.connect("name.invalid", token="weir_hush"):
            pass
    with pytest.raises(ArgumentInvalid, match="not sent to"):
        scanner.sync.connect("name.invalid", token="weir_hush")
    with pytest.raises(ServerUnavailable):
        async with scanner.connect("name.invalid", token="weir_hush", insecure_token=True):
            pass


async def test_tls_is_not_left_out_of_a_connection_that_is_dialled() -> None:
    """Beside `dial`, whose connection is used as it is, `ssl_context` is refused: the token would go in plaintext."""

    async def dial() -> trio.abc.Stream:
        raise AssertionError("it is refused before anything is dialled")

    with pytest.raises(ArgumentInvalid, match="used as it is"):
        async with scanner.connect("example.com", ssl_context=tls(), token="weir_hush", dial=dial):
            pass


@pytest.mark.parametrize(
    "content", [b"", b" \n", b"hush hush", b"hush\nhush", b"\xff\xfehush", b"hush" * 4_000]
)
def test_token_files_that_hold_no_token(content: bytes, tmp_path: Path) -> None:
    """A file with anything but one token is refused by name, without a word of what is in it."""
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(ArgumentInvalid, match=rf"token file {path} ") as caught:
        read_token(path)
    assert "hush" not in str(caught.value)


def test_token_file(tmp_path: Path) -> None:
    """White space around a token is nothing of it; a missing file is named."""
    path = tmp_path / "token"
    path.write_text(" weir_x\n")
    assert scanner.read_token(path) == "weir_x"
    with pytest.raises(ArgumentInvalid, match="missing cannot be read: No such file"):
        scanner.read_token(tmp_path / "missing")


def test_tls_files_that_cannot_be_used(tmp_path: Path) -> None:
    """What cannot be used for TLS is an argument error that names the file."""
    with pytest.raises(ArgumentInvalid, match=r"no\.pem cannot be read"):
        scanner.tls(tmp_path / "no.pem")
    with pytest.raises(ArgumentInvalid, match="without its certificate"):
        scanner.tls(ca_file(tmp_path), key=tmp_path / "a.key")


@pytest.mark.socket
@pytest.mark.rocks
def test_blocking_client_with_everything(tmp_path: Path) -> None:
    """The blocking client does TLS, shows its certificate and sends its token as the trio client does."""
    token = make_token()
    credentials = Credentials.parse(
        f'[principals.x]\ntoken_sha256 = ["{token_sha256(token)}"]\nread = ["*"]\nwrite = ["*"]\n'
    )
    own = files(tmp_path, "own", issue("test", "own.example"))
    context = scanner.tls(ca_file(tmp_path), own.certificate, own.key)
    with running_server(
        tmp_path / "data", tls=server_tls(tmp_path, client_ca="test"), credentials=credentials
    ) as server:
        with scanner.sync.connect(server.endpoint, ssl_context=context, token=token) as client:
            table = client.create_table("t", SCHEMA, ["k"])
            table.write(pa.table({"k": list(range(5_000))}, schema=SCHEMA))
            for mode in ("push", "session"):
                assert table.new_scan().with_mode(mode).to_arrow().num_rows == 5_000
        with scanner.sync.connect(server.endpoint, ssl_context=context, token="weir_wrong") as client:
            with pytest.raises(scanner.Unauthenticated):
                client.tables()


@pytest.mark.socket
async def test_no_secret_is_to_be_seen(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """No log line at any level, repr, statistic, error or pickle of an error has a token, a hash or a key."""
    caplog.set_level(logging.DEBUG)
    token, wrong = make_token(), make_token()
    text = f'[principals.x]\ntoken_sha256 = ["{token_sha256(token)}"]\nread = ["*"]\nwrite = ["*"]\nadmin = true\n'
    seen: list[object] = []
    made = server_files(tmp_path)
    tls_of_server = server_tls(tmp_path)
    credentials = Credentials.parse(text)
    async with open_server(MemoryStore(), ssl_context=tls_of_server, credentials=credentials) as server:
        endpoint = f"127.0.0.1:{server.port}"
        for each in (token, wrong):
            async with scanner.connect(endpoint, ssl_context=client_tls(tmp_path), token=each) as client:
                try:
                    table = await client.create_table("t", SCHEMA, ["k"])
                    await table.write(pa.table({"k": [1, 2]}, schema=SCHEMA))
                    scan = table.new_scan()
                    async with scan.execute() as batches:
                        seen += [batch async for batch in batches]
                    seen += [table, scan, scan.plan, batches, batches.statistics(), vars(scan)]
                except ScannerError as error:
                    seen += [error, error.__cause__, vars(error), pickle.dumps(error)]
                seen += [client, vars(client), vars(client._connection)]
        seen += [server.statistics(), server, tls_of_server, credentials]
        with pytest.raises(ArgumentInvalid, match="speaks TLS") as caught:
            async with scanner.connect(endpoint, token=token) as client:  # plaintext to TLS
                await client.tables()
        seen += [caught.value, caught.value.__cause__]
    seen.append(RequestHead(path="/x", timeout_s=None, metadata=(("authorization", token),)))
    shown = "\n".join(map(repr, seen)) + "\n".join(map(str, seen)) + caplog.text
    key_line = made.key.read_text().splitlines()[1]
    for secret in (token, wrong, token_sha256(token), token_sha256(wrong), key_line):
        assert secret not in shown
    assert "weir_" not in caplog.text


def test_a_number_is_no_file(tmp_path: Path) -> None:
    """The number of an open file is refused, and the file behind it, such as standard output, stays open."""
    with (tmp_path / "open").open("wb") as file:
        number: Any = file.fileno()
        with pytest.raises(TypeError, match="not int"):
            scanner.tls(number)
        with pytest.raises(TypeError, match="not int"):
            scanner.read_token(number)
        file.write(b"still open")
