"""How commands prove who they are: TLS and the token.

Options take files. The one secret that may come otherwise is the token, out of the environment variable WEIR_TOKEN,
and that is read here and nowhere else.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypedDict, TypeVar

import click

from scanner.client.credentials import TlsFiles, TlsSource, TokenSource, read_token, tls

TOKEN_VARIABLE: Final = "WEIR_TOKEN"
SYSTEM_CAS: Final = "system"
META: Final = "weir.security."
"""Stands before the names of options whose values are kept in the context's `meta`."""

_CA_HELP: Final = f"Use TLS, and trust these CAs; '{SYSTEM_CAS}': those that the system trusts."
_TOKEN_HELP: Final = (
    f"File with the caller's bearer token. Default: the token in the variable {TOKEN_VARIABLE}."
)

_F = TypeVar("_F", bound=Callable[..., Any])


class ConnectionArguments(TypedDict):
    """Arguments of `scanner.sync.connect`."""

    ssl_context: TlsSource
    token: TokenSource
    insecure_token: bool


def client_security_options(command: _F) -> _F:
    """The options of a command that connects; `connection_arguments` reads them."""
    return with_options(
        command,
        remembered("--tls-ca", type=file_path(exists=False), metavar="FILE", help=_CA_HELP),
        remembered("--tls-cert", type=file_path(), metavar="FILE", help="Client certificate for TLS."),
        remembered(
            "--tls-key",
            type=file_path(),
            metavar="FILE",
            help="Key of --tls-cert, if that file does not have it.",
        ),
        remembered("--token-file", type=file_path(), metavar="FILE", help=_TOKEN_HELP),
        remembered(
            "--insecure-token", is_flag=True, help="Send the token even over plaintext to another machine."
        ),
    )


def connection_arguments() -> ConnectionArguments:
    """What the options and the environment say to the running command.

    Raises:
        ArgumentInvalid: A file cannot be used.
    """
    ca, certificate, key, token_file, insecure = (
        click.get_current_context().meta.get(META + name)
        for name in ("tls_ca", "tls_cert", "tls_key", "token_file", "insecure_token")
    )
    context: TlsSource = None
    if ca is not None or certificate is not None or key is not None:
        context = _tls_of(None if ca is None or str(ca) == SYSTEM_CAS else ca, certificate, key)
    token = (
        _token_of(token_file)
        if token_file is not None
        else os.environ.get(TOKEN_VARIABLE, "").strip() or None
    )
    return ConnectionArguments(ssl_context=context, token=token, insecure_token=bool(insecure))


def _tls_of(ca: Path | None, certificate: Path | None, key: Path | None) -> TlsSource:
    """TLS of files, which are read again for a connection when they have changed, unless one is a pipe."""
    given = [path for path in (ca, certificate, key) if path is not None]
    whole = all(path.is_file() for path in given)
    return TlsFiles(ca, certificate, key) if whole else tls(ca, certificate, key)


def _token_of(path: Path) -> TokenSource:
    """The token of a file, which is read again when the client asks, unless it is a pipe."""
    return functools.partial(read_token, path) if path.is_file() else read_token(path)


def file_path(*, exists: bool = True) -> click.Path:
    """A file, as an option takes it."""
    return click.Path(path_type=Path, exists=exists, dir_okay=False)


def remembered(name: str, **options: Any) -> Callable[[_F], _F]:
    """An option whose value is kept with the command, which need not take it as an argument; see `META`."""
    return click.option(name, expose_value=False, callback=_remember, **options)


def with_options(command: _F, *options: Callable[[_F], _F]) -> _F:
    """Give a command options, shown in their order."""
    for option in reversed(options):
        command = option(command)
    return command


def _remember(context: click.Context, parameter: click.Parameter, value: object) -> None:
    context.meta[META + str(parameter.name)] = value
