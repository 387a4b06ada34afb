"""What a client proves itself with, and where it may be sent: TLS from files, and bearer tokens.

Both may be replaced while the client runs: each connection takes those of the moment.

A token is a secret: no message, log or repr shows it, and it goes over plaintext to this machine only, unless the
caller insists.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from scanner.errors import ArgumentInvalid
from transport import FileWatch, TlsFailed, TlsFileInvalid, client_tls

if TYPE_CHECKING:
    from transport import Metadata

TokenSource: TypeAlias = str | Callable[[], str] | None
"""A bearer token, or what returns the one of the moment, at once; None: nothing is proven."""
TlsSource: TypeAlias = ssl.SSLContext | Callable[[], ssl.SSLContext] | None
"""TLS, or what returns that of the moment, at once; None: plaintext."""

_logger = logging.getLogger(__name__)

_TOKEN_FILE_BYTES_MAX: Final = 8192
"""Of a token file; a longer one is something else."""


def tls(
    ca: str | os.PathLike[str] | None = None,
    certificate: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
) -> ssl.SSLContext:
    """Make the `ssl_context` of `connect`. The server's certificate and name are always verified.

    It has what the files are now. For a client that follows them give `connect` a function that calls this.

    Args:
        ca: PEM file: the CAs whose servers are trusted. None: those that the system trusts.
        certificate: PEM file: the client's own certificate, for mutual TLS.
        key: PEM file: its private key, not encrypted. None: it is in `certificate`, too.

    Raises:
        ArgumentInvalid: A file cannot be used; the message names it.

    Example:
        >>> scanner.connect("weir.example.com:9123", ssl_context=scanner.tls("ca.pem"), token=token)
        >>> scanner.connect("weir.example.com:9123", ssl_context=functools.partial(scanner.tls, "ca.pem"), token=token)
    """
    try:
        return client_tls(ca, certificate, key)
    except TlsFileInvalid as error:
        raise ArgumentInvalid(str(error)) from error


class TlsFiles:
    """Returns what `tls` makes of the same files now; they are read when they have changed, or could not be used.

    To make it anew takes 50 ms where it has the CAs of a system, and a tail of many buckets has many connections.
    """

    def __init__(
        self,
        ca: str | os.PathLike[str] | None = None,
        certificate: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
    ) -> None:
        self._files = (ca, certificate, key)
        system = ssl.get_default_verify_paths()
        cas = (system.cafile, system.capath) if ca is None else (ca,)
        self._watch = FileWatch(path for path in (*cas, certificate, key) if path is not None)
        self._context: ssl.SSLContext | None = None

    def __call__(self) -> ssl.SSLContext:
        """See `tls`."""
        if self._watch.changed():  # Before they are read: a change in between is found the next time.
            self._context = None
        if self._context is None:
            self._context = tls(*self._files)
        return self._context


class ConnectionTls:
    """TLS of a client's connections, which may be replaced while the client runs.

    Args:
        source: TLS, or what returns it, and has been asked when this returns.

    Raises:
        ArgumentInvalid: It is none; or what `source` raises.
    """

    def __init__(self, source: TlsSource) -> None:
        self._source = source
        self._for_the_first = self._ask()

    def context(self) -> ssl.SSLContext | None:
        """That of a connection that is made now; None: plaintext.

        Raises:
            TlsFailed: There is none at the moment, as while files are replaced: the attempt has failed.
        """
        context, self._for_the_first = self._for_the_first, None
        if context is not None:
            return context
        try:
            return self._ask()
        except ArgumentInvalid as error:
            raise TlsFailed(f"no TLS at the moment: {error.message}") from error
        except Exception as error:  # Of the caller's function.
            raise TlsFailed(f"ssl_context cannot be asked for: {type(error).__name__}: {error}") from error

    def _ask(self) -> ssl.SSLContext | None:
        context = self._source() if callable(self._source) else self._source
        if context is None and self._source is None:
            return None
        if not isinstance(context, ssl.SSLContext):
            raise ArgumentInvalid(
                "ssl_context is an ssl.SSLContext, which weir.tls makes, or a function that returns one at once, not"
                f" {type(context).__name__}"
            )
        if context.protocol is ssl.PROTOCOL_TLS_SERVER:
            raise ArgumentInvalid(
                "ssl_context is that of a server (PROTOCOL_TLS_SERVER); weir.tls makes a client's"
            )
        return context


def read_token(path: str | os.PathLike[str]) -> str:
    """Read a bearer token from a file, such as `weir token` writes; white space around it is dropped.

    Raises:
        ArgumentInvalid: The file cannot be read, or has no token. Nothing of it is quoted.
    """
    name = os.fsdecode(path)
    try:
        with Path(name).open("rb") as file:
            content = file.read(_TOKEN_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ArgumentInvalid(f"the token file {name} cannot be read: {error.strerror}") from error
    token = content.decode("ascii", "replace").strip()
    if len(content) > _TOKEN_FILE_BYTES_MAX or not _is_token(token):
        raise ArgumentInvalid(f"the token file {name} has to hold one token and nothing else")
    return token


class CallCredentials:
    """What proves, in every call of a client, who calls: a token that may be replaced while the client runs.

    Args:
        token: The token, or what returns it, and has been asked when this returns.
        host: Where it goes.
        ssl_context: Of the connection; None: plaintext.
        insecure_token: Send it in plaintext to other machines, too.

    Raises:
        ArgumentInvalid: It is no token, or would be sent where others can read it; or what `token` raises.
    """

    def __init__(
        self,
        token: TokenSource = None,
        host: str = "localhost",
        ssl_context: TlsSource = None,
        *,
        insecure_token: bool = False,
    ) -> None:
        if token is not None and ssl_context is None and not insecure_token and not is_loopback(host):
            raise ArgumentInvalid(
                f"a token is not sent to {host} in plaintext, where everybody on the way can read it; connect with TLS"
            )
        self._source = token
        self.metadata: Metadata = self._ask()
        """The fields of a call that begins now."""

    def renew(self) -> None:
        """Ask for the token again. If there is none at the moment, as while its file is replaced, the old one stays."""
        if not callable(self._source):
            return
        try:
            self.metadata = self._ask()
        except ArgumentInvalid as error:
            _logger.warning("%s; the token from before stays in use", error)
        except Exception as error:  # Of the caller's function. What it says may quote the token.
            _logger.warning(
                "the token cannot be asked for (%s); the one from before stays in use", type(error).__name__
            )

    def _ask(self) -> Metadata:
        token = self._source() if callable(self._source) else self._source
        if token is None and self._source is None:
            return ()
        if not isinstance(token, str):
            raise ArgumentInvalid(
                f"a token is text, or a function that returns text at once, not {type(token).__name__}"
            )
        return (("authorization", bearer(token)),)


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, by what it is called."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bearer(token: str) -> str:
    """The value of `authorization` that proves a token.

    Raises:
        ArgumentInvalid: It has characters that a header field cannot have. The token is not quoted.
    """
    if not _is_token(token):
        raise ArgumentInvalid("a token is of visible ASCII characters, without spaces or line ends")
    return f"Bearer {token}"


def _is_token(text: str) -> bool:
    return text != "" and all("!" <= each <= "~" for each in text)
