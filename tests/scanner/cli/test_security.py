"""TLS, tokens and rights on the command line."""

from __future__ import annotations

import os
import re
import signal
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

import scanner.sync
from scanner.cli import run
from scanner.server.auth.principals import Credentials, make_token, token_sha256
from tests.support.certificates import ca_file, files, issue, server_files, server_tls
from tests.support.processes import TIMEOUT_S, serving
from tests.support.server import RunningServer, running_server

pytestmark = [pytest.mark.socket, pytest.mark.rocks]

TOKEN = make_token()
CREDENTIALS = f"""
[principals.everything]
token_sha256 = ["{token_sha256(TOKEN)}"]
read = ["*"]
write = ["*"]
"""
Weir = Callable[..., tuple[int, str, str]]


@pytest.fixture
def weir(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Weir:
    """Runs one command in this process; returns its exit code, output and error lines."""
    monkeypatch.delenv("WEIR_TOKEN", raising=False)

    def execute(*words: object) -> tuple[int, str, str]:
        code = run([*map(str, words)])
        captured = capfdbinary.readouterr()
        return code, captured.out.decode(), captured.err.decode()

    return execute


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For certificates."""
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def server(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that wants certificates and tokens."""
    tls = server_tls(directory, client_ca="test")
    with running_server(
        tmp_path_factory.mktemp("data"), tls=tls, credentials=Credentials.parse(CREDENTIALS)
    ) as running:
        yield running


def test_client_options(
    weir: Weir, server: RunningServer, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With CA, certificate and token commands work; without one of them they fail in one line that says so."""
    own = files(directory, "own", issue("test", "own.example"))
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "wrong").write_text("weir_wrong")
    (tmp_path / "t.csv").write_text("id,name\n1,a\n2,b\n")
    where = ("-e", server.endpoint)
    tls = ("--tls-ca", ca_file(directory), "--tls-cert", own.certificate, "--tls-key", own.key)
    token = ("--token-file", tmp_path / "token")

    assert weir("load", tmp_path / "t.csv", "-k", "id", *where, *tls, *token)[0] == 0
    assert weir("scan", "t", "--format", "none", *where, *tls, *token) == (0, "2 rows\n", "")
    for words, problem in (
        ((*tls, "--token-file", tmp_path / "wrong"), "the bearer token is not known"),
        (tls, "send a bearer token or a client certificate|no principal of this server"),
        ((*tls[:2], *token), "wants another certificate of this client"),
        (("--tls-ca", ca_file(directory, "other"), *token), "the certificate cannot be trusted"),
        (("--tls-key", own.key, *token), "of no use without its certificate"),
    ):
        code, out, err = weir("tables", *where, *words)
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert re.search(problem, err)
        assert "weir serve" not in err
    monkeypatch.setenv("WEIR_TOKEN", TOKEN)
    assert weir("scan", "t", "--format", "none", *where, *tls) == (0, "2 rows\n", "")
    assert "not known" in weir("tables", *where, *tls, "--token-file", tmp_path / "wrong")[2]


def test_tls_is_of_the_files_of_the_moment(
    weir: Weir, server: RunningServer, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command asks its files again for each connection; what a pipe has is kept."""
    ca, own = ca_file(tmp_path), files(tmp_path, "own", issue("test", "own.example"))
    connect, asked = scanner.sync.connect, []

    def noted(endpoint: str, **arguments: Any) -> scanner.sync.Client:
        asked.append(arguments["ssl_context"])
        return connect(endpoint, **arguments)

    monkeypatch.setattr(scanner.sync, "connect", noted)
    monkeypatch.setenv("WEIR_TOKEN", TOKEN)
    words = ("tables", "-e", server.endpoint, "--tls-cert", own.certificate, "--tls-key", own.key, "--tls-ca")
    assert weir(*words, ca)[0] == 0
    (source,) = asked
    before = source()
    assert source() is before
    own.replace(issue("test", "other.example"))
    assert source() is not before
    reading, writing = os.pipe()
    os.write(writing, ca.read_bytes())
    os.close(writing)
    assert weir(*words, f"/dev/fd/{reading}")[0] == 0
    os.close(reading)
    assert isinstance(asked[1], ssl.SSLContext)


def test_token_from_the_environment_stays_secret(weir: Weir, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token that would go out in plaintext, or cannot go out at all, is refused without being repeated."""
    monkeypatch.setenv("WEIR_TOKEN", "weir_hush")
    code, _, err = weir("tables", "-e", "example.com:1")
    assert (code, err.count("\n")) == (1, 1)
    assert "not sent to example.com in plaintext" in err
    monkeypatch.setenv("WEIR_TOKEN", "weir_hush hush")
    code, _, more = weir("tables", "-e", "127.0.0.1:1")
    assert (code, "visible ASCII" in more) == (1, True)
    assert "hush" not in err + more


def test_plaintext_to_a_tls_port_is_told_at_once(weir: Weir, server: RunningServer) -> None:
    """A server that answers plaintext in TLS is named after one attempt, with what to do."""
    code, out, err = weir("tables", "-e", server.endpoint)
    assert (code, out) == (1, "")
    assert f"the server at {server.endpoint} speaks TLS" in err
    assert "--tls-ca" in err
    assert "attempts" not in err


def test_token_command(weir: Weir, tmp_path: Path) -> None:
    """`weir token` shows the token and its hash; with -o the token goes to a new file that its owner alone reads."""
    code, out, err = weir("token")
    token, line = out.splitlines()
    assert (code, err) == (0, "")
    assert line == f'token_sha256 = ["{token_sha256(token)}"]'
    path = tmp_path / "token"
    code, out, err = weir("token", "-o", path)
    made = scanner.read_token(path)
    assert (code, out, err) == (0, f'token_sha256 = ["{token_sha256(made)}"]\n', "")
    assert path.stat().st_mode & 0o777 == 0o600
    code, _, err = weir("token", "-o", path)
    assert (code, err.count("\n")) == (1, 1)
    assert scanner.read_token(path) == made


@pytest.mark.parametrize("where", ["builtins.open", "scanner.cli.security.click.echo"])
def test_a_token_that_nobody_was_told_of_is_gone(
    weir: Weir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Ctrl-C before it is written, or before its hash is shown: the next `weir token` would take it for one in use."""

    def interrupted(*_: object, **_options: object) -> NoReturn:
        raise KeyboardInterrupt

    path = tmp_path / "token"
    with monkeypatch.context() as patch:
        patch.setattr("scanner.cli._complain", lambda _: None)
        patch.setattr(where, interrupted)
        code = weir("token", "-o", path)[0]
    assert (code, path.exists()) == (130, False)


def test_serve_options_that_make_no_sense(weir: Weir, directory: Path, tmp_path: Path) -> None:
    """Options that leave a door open, or that contradict each other, are refused in one line, and nothing is served."""
    made = server_files(directory)
    tls = ("--tls-cert", made.certificate, "--tls-key", made.key)
    ca = ("--tls-client-ca", ca_file(directory))
    credentials = tmp_path / "credentials.toml"
    credentials.write_text("[principals.x]\ntoken = 'weir_hush'\n")
    anywhere = ("--host", "0.0.0.0")
    for words, problem in (
        (anywhere, "not encrypted"),
        ((*anywhere, "--credentials", credentials), "principal x: a key is none of"),
        ((*anywhere, *tls), "everyone there could do everything"),
        (ca, "need --tls-cert"),
        (("--tls-key", made.key), "need --tls-cert"),
        ((*tls, "--tls-client-optional"), "needs --tls-client-ca and --credentials"),
        ((*tls, *ca, "--tls-client-optional"), "needs --tls-client-ca and --credentials"),
        (("--tls-cert", made.certificate), "has no unencrypted key in PEM beside the certificate"),
        ((*tls, "--credentials", credentials), "principal x: a key is none of"),
    ):
        code, out, err = weir("serve", "--data", tmp_path / "data", "--port", 0, *words)
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert problem in err
        assert "hush" not in err
    assert not (tmp_path / "data").exists()


@pytest.mark.slow
def test_serve_follows_its_files(directory: Path, tmp_path: Path) -> None:
    """A served process takes a new certificate and new credentials on SIGHUP, keeps them if the next are broken, and
    serves on; its log has no secret.
    """
    made = files(tmp_path, "served", issue("test", "127.0.0.1"))
    credentials = tmp_path / "credentials.toml"
    credentials.write_text(CREDENTIALS)
    old, new = scanner.tls(ca_file(directory)), scanner.tls(ca_file(directory, "next"))
    words = ("--tls-cert", made.certificate, "--tls-key", made.key, "--credentials", credentials)
    with serving(tmp_path / "data", "--host", "0.0.0.0", *words) as (process, listening):
        endpoint = listening.replace("0.0.0.0", "127.0.0.1")
        with scanner.sync.connect(endpoint, ssl_context=old, token=TOKEN) as client:
            assert client.tables() == []
            made.replace(issue("next", "127.0.0.1"))
            replaced = make_token()
            credentials.write_text(CREDENTIALS.replace(token_sha256(TOKEN), token_sha256(replaced)))
            process.send_signal(signal.SIGHUP)
            with scanner.sync.connect(endpoint, ssl_context=new, token=replaced) as later:
                assert later.tables() == []
            with pytest.raises(scanner.Unauthenticated):
                client.tables()  # the old token, on a connection with the old certificate
            made.key.write_text("weir_hush")
            credentials.write_text(f"token = '{TOKEN}'")
            process.send_signal(signal.SIGHUP)
            with scanner.sync.connect(endpoint, ssl_context=new, token=replaced) as later:
                assert later.tables() == []
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0
        assert "the old one goes on" in err
        assert "the old ones go on" in err
        for secret in (TOKEN, replaced, token_sha256(TOKEN), token_sha256(replaced), "hush"):
            assert secret not in err


def test_help_names_the_variable(weir: Weir) -> None:
    """Every command that connects says how a token is given."""
    for name in ("load", "tables", "describe", "scan", "delete", "drop"):
        code, out, _ = weir(name, "--help")
        assert code == 0
        assert "WEIR_TOKEN" in " ".join(out.split())
        assert "--tls-ca" in out
    assert "WEIR_TOKEN" not in os.environ
