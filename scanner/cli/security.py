"""How `weir serve` finds out who calls, and `weir token`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from scanner.cli.app import example, fail
from scanner.cli.connection import META, file_path, remembered, with_options
from scanner.client.credentials import is_loopback
from scanner.server.auth.access import CredentialsFile
from scanner.server.auth.principals import make_token, token_sha256
from transport import ServerTls, TlsFileInvalid

_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class ServerSecurity:
    """What `weir serve` is told."""

    tls: ServerTls | None
    credentials: CredentialsFile | None

    @property
    def reloads(self) -> bool:
        """Whether there are files to read again: then that is what SIGHUP is for."""
        return self.tls is not None or self.credentials is not None

    def reload(self) -> None:
        """Read every file again; one that cannot be used is logged, and what was known goes on."""
        for each in (self.tls, self.credentials):
            if each is not None:
                each.reload()


def server_security_options(command: _F) -> _F:
    """The options of `weir serve`; `server_security` reads them."""
    return with_options(
        command,
        remembered(
            "--tls-cert", type=file_path(), metavar="FILE", help="TLS, with this certificate (chain)."
        ),
        remembered(
            "--tls-key", type=file_path(), metavar="FILE", help="The key of --tls-cert, not encrypted."
        ),
        remembered(
            "--tls-client-ca",
            type=file_path(),
            metavar="FILE",
            help="Mutual TLS: clients need a certificate of these CAs.",
        ),
        remembered(
            "--tls-client-optional",
            is_flag=True,
            help="Clients without a certificate are let in, to send a token.",
        ),
        remembered(
            "--credentials",
            type=file_path(),
            metavar="FILE",
            help="Who may call and do what (TOML); default: everyone, everything.",
        ),
    )


def server_security(host: str, insecure_bind_any: bool) -> ServerSecurity:
    """What the options say, if it makes sense together.

    Args:
        host: Address to listen on.
        insecure_bind_any: Do without what is asked for beyond this machine.

    Raises:
        ArgumentInvalid: The credentials cannot be used.
        Failure: Something else cannot, or too little is asked of who can connect.
    """
    certificate, key, client_ca, optional, credentials_file = (
        click.get_current_context().meta.get(META + name)
        for name in ("tls_cert", "tls_key", "tls_client_ca", "tls_client_optional", "credentials")
    )
    if certificate is None and (key is not None or client_ca is not None):
        fail("--tls-key and --tls-client-ca need --tls-cert")
    if optional and (client_ca is None or credentials_file is None):
        fail("--tls-client-optional needs --tls-client-ca and --credentials: else anyone could do anything")
    server_tls = None
    if certificate is not None:
        try:
            server_tls = ServerTls(
                certificate, key or certificate, client_ca=client_ca, client_certificate_required=not optional
            )
        except TlsFileInvalid as error:
            fail(str(error))
    credentials = None if credentials_file is None else CredentialsFile(credentials_file)
    if not insecure_bind_any and not is_loopback(host):
        if server_tls is None:
            fail(
                f"{host} can be reached from other machines and the connection is not encrypted;"
                " listen on 127.0.0.1, give --tls-cert and --tls-key, or say --insecure-bind-any"
            )
        if credentials is None and client_ca is None:
            fail(
                f"{host} can be reached from other machines and everyone there could do everything;"
                " give --credentials or --tls-client-ca, or say --insecure-bind-any"
            )
    return ServerSecurity(server_tls, credentials)


@click.command(
    epilog=example(
        "weir token -o loader.token  the token in the file, its hash on the terminal",
        "weir token                  both on the terminal",
    )
)
@click.option(
    "--output",
    "-o",
    type=file_path(exists=False),
    metavar="FILE",
    help="Write the token to this file, readable by this user only.",
)
def token(output: Path | None) -> None:
    """Make a bearer token, and print the line of the credentials file that admits it.

    The server keeps only the hash: a lost token is replaced, not recovered.
    """
    made = make_token()
    admits = f'token_sha256 = ["{token_sha256(made)}"]'
    if output is None:
        click.echo(made)
        click.echo(admits)
        return
    try:
        handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        fail(f"{output} exists; a token in use is not overwritten")
    try:
        try:
            with open(handle, "w", encoding="ascii") as file:
                file.write(made + "\n")
        except OSError as error:
            fail(f"cannot write {output}: {error.strerror}")
        click.echo(admits)
    except BaseException:
        output.unlink(missing_ok=True)  # Left there, whole or not, it would pass for a token in use.
        raise
