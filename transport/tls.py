"""TLS for both ends: required versions and ciphers, and certificates that change while the server runs.

TLS 1.2 or newer, HTTP/2 negotiated by ALPN (RFC 9113 section 3.2), no renegotiation (section 9.2.1), ciphers with
forward secrecy and authenticated encryption only (section 9.2.2). No message and no log line contains any part of a
key: errors name files and say what is wrong with them.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import re
import ssl
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from transport.errors import NoCommonTls, TransportError, caused_by, causes

ALPN: Final = "h2"
_CIPHERS_TLS_1_2: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""The suites of TLS 1.3, and their order, are OpenSSL's: `ssl` cannot change them in the versions of Python that are
supported, and an operator's openssl.cnf can (`Ciphersuites`)."""
_KINDS: Final = {"URI": "uri", "DNS": "dns", "IP Address": "ip", "email": "email"}
"""Kinds of alternative names that identify a client, and their prefixes here; most specific first."""
HANDSHAKE_FAILURE: Final = "SSLV3_ALERT_HANDSHAKE_FAILURE"
"""By this a server of TLS 1.2 rejects the absence of a certificate, and any server what a ClientHello offers."""
_CERTIFICATE_ALERTS: Final = frozenset(
    {
        "SSLV3_ALERT_BAD_CERTIFICATE",
        "SSLV3_ALERT_CERTIFICATE_EXPIRED",
        "SSLV3_ALERT_CERTIFICATE_REVOKED",
        "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
        HANDSHAKE_FAILURE,
        "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE",
        "TLSV13_ALERT_CERTIFICATE_REQUIRED",
        "TLSV1_ALERT_ACCESS_DENIED",
        "TLSV1_ALERT_UNKNOWN_CA",
    }
)
"""OpenSSL's names of the alerts by which a server rejects a client's certificate, or its absence."""
_NOT_A_PAIR: Final = frozenset({"KEY_VALUES_MISMATCH", "NO_CERTIFICATE_ASSIGNED"})
"""OpenSSL's reasons for a key that is not the certificate's; the second one: of another kind."""
_TOO_WEAK: Final = frozenset({"CA_KEY_TOO_SMALL", "CA_MD_TOO_WEAK", "EE_KEY_TOO_SMALL"})
"""OpenSSL's reasons for a key, or a signature, that its security level does not take."""
_NO_CERTIFICATES: Final = "has no certificates in PEM, or part of one"
_SHORTAGES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO})
"""Why a file cannot be read now that does not change when it can be read again."""
_RETRY_S: Final = 10.0
_CLOCK_DECIDES: Final = frozenset({9, 10})
"""OpenSSL's numbers for a certificate that is not valid yet, and for one that has expired."""
_OF_NO_CA: Final = frozenset({18, 19, 20, 21})
"""OpenSSL's numbers for a certificate, self-signed or not, of which no CA was found."""
_WITHOUT_ISSUER: Final = frozenset({20, 21})
"""Those where the CA may be trusted, and the certificates between are missing: OpenSSL cannot tell."""
_OF_OTHER_NAMES: Final = frozenset({62, 64})
"""OpenSSL's numbers for a certificate without the host's name, and without its address."""
_ALERT: Final = re.compile("(?:SSLV3|TLSV1|TLSV13)_ALERT_")
"""How OpenSSL's names of the peer's alerts begin: by the version that introduced each, not the one that is spoken."""
_OF_VERSIONS: Final = frozenset({"TLSV1_ALERT_PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL"})
"""OpenSSL's reasons for a peer that speaks no version of TLS that we do: its alert, and its choice."""

_WARN_BEFORE_S: Final = 14 * 86_400.0
_WARN_SHARE: Final = 5
"""Of a certificate's lifetime: one that is made for a day and replaced each night needs no warning in the morning."""

_log = logging.getLogger("weir.transport")

FilePath = str | os.PathLike[str]


class TlsFileInvalid(TransportError):
    """A certificate, key or CA file cannot be used; the message names it."""


@dataclass(frozen=True, slots=True)
class PeerCertificate:
    """The names in a peer's verified certificate."""

    names: tuple[str, ...]
    """With their kinds, most specific first: `uri:...`, `dns:...`, `ip:...`, `email:...`, then `cn:...`."""

    @classmethod
    def of(cls, fields: Mapping[str, Any] | None) -> PeerCertificate | None:
        """Read what `SSLSocket.getpeercert` returns; None if the peer had none, or it was not verified."""
        if not fields:
            return None
        found: dict[str, list[str]] = {kind: [] for kind in _KINDS.values()}
        for kind, name in fields.get("subjectAltName", ()):
            if kind in _KINDS:
                found[_KINDS[kind]].append(f"{_KINDS[kind]}:{name}")
        common = [
            f"cn:{value}"
            for relative_name in fields.get("subject", ())
            for key, value in relative_name
            if key == "commonName"
        ]
        return cls((*(name for names in found.values() for name in names), *common))


class FileWatch:
    """Detects that files were changed, replaced, removed or created.

    Args:
        paths: The files.
    """

    def __init__(self, paths: Iterable[FilePath]) -> None:
        self._paths = tuple(paths)
        self._seen = self._look()
        self._again_at = math.inf
        """When they count as changed whatever is seen, seconds of a clock that nobody sets."""

    def changed(self) -> bool:
        """Whether anything is different from the last time this was asked; one stat per file."""
        before, self._seen = self._seen, self._look()
        if self._again_at <= time.monotonic():
            self._again_at = math.inf
            return True
        return self._seen != before

    def failed(self, error: Exception) -> None:
        """Say that the files could not be read. If they are not to blame, they count as changed a little later."""
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno in _SHORTAGES:
            self._again_at = time.monotonic() + _RETRY_S

    def _look(self) -> tuple[tuple[int, ...] | None, ...]:
        return tuple(map(_signature, self._paths))


class ServerTls:
    """TLS of a server, whose files are read again when they change, and by `reload`.

    Existing connections keep their certificate. Files that cannot be used (such as a new certificate whose key is not
    written yet) change nothing: the old ones stay in use, and one line is logged. A certificate that is not valid yet
    is such a file, too; it is read again once it is.

    Args:
        certificate: PEM file: the server's certificate, then the intermediate ones.
        key: PEM file: its private key, not encrypted.
        client_ca: PEM file: the CAs of clients. None: clients are not asked for a certificate.
        client_certificate_required: Whether a client without a certificate is refused; one whose certificate is not of
            `client_ca`, or expired, always is.

    Raises:
        TlsFileInvalid: A file cannot be used.
    """

    def __init__(
        self,
        certificate: FilePath,
        key: FilePath,
        *,
        client_ca: FilePath | None = None,
        client_certificate_required: bool = True,
    ) -> None:
        self._certificate = certificate
        self._key = key
        self._client_ca = client_ca
        self._verify_mode = ssl.CERT_REQUIRED if client_certificate_required else ssl.CERT_OPTIONAL
        # Before they are read: a change in between is found the next time.
        self._watch = FileWatch([path for path in (certificate, key, client_ca) if path is not None])
        self._awaited = math.inf
        """When the files are read again although they have not changed, seconds since 1970."""
        self._context, self._validity = self._load()
        self._warned = False
        self._warn_of_expiry()

    @property
    def expires_at(self) -> float:
        """When what the next handshake uses, or one of its chain in the file, expires; seconds since 1970."""
        self.context()  # This call may be the first since the files were replaced.
        return self._validity.end

    def context(self) -> ssl.SSLContext:
        """What the next handshake uses."""
        if self._watch.changed() or self._awaited <= time.time():
            self.reload()
        self._warn_of_expiry()
        return self._context

    def reload(self) -> bool:
        """Read the files now.

        Returns:
            Whether they could be used.
        """
        self._watch.changed()
        try:
            self._context, self._validity = self._load()
        except TlsFileInvalid as error:
            _log.error("the TLS certificate is not reloaded, the old one goes on: %s", error)
            self._watch.failed(error)
            return False
        self._warned = False
        _log.info("TLS certificate reloaded from %s", os.fspath(self._certificate))
        self._warn_of_expiry()
        return True

    def _warn_of_expiry(self) -> None:
        """Log once that the certificate has to be replaced soon."""
        if not self._warned and time.time() >= self._validity.warn_at:
            self._warned = True
            _log.warning(
                "the TLS certificate %s expires at %s; replace it",
                self._certificate,
                _utc(self._validity.end),
            )

    def _load(self) -> tuple[ssl.SSLContext, _Validity]:
        self._awaited = math.inf
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        _harden(context)
        _load_certificate(context, self._certificate, self._key)
        validity, now = _validity(self._certificate), time.time()
        if validity.end <= now:
            raise TlsFileInvalid(
                f"the certificate {os.fspath(self._certificate)} expired at {_utc(validity.end)}"
                f" {_clock_says()}; replace it"
            )
        if validity.chain_start > now:
            self._awaited = validity.chain_start
            raise TlsFileInvalid(
                f"the certificate {os.fspath(self._certificate)} is not valid before {_utc(validity.chain_start)};"
                " use another one until then, or set the clock"
            )
        if self._client_ca is not None:
            _load_ca(context, self._client_ca)
            if _cas_expired(context):
                # No error: there may be clients with tokens, who need the server, and its new certificate.
                _log.warning("every CA in %s has expired: no client's certificate is taken", self._client_ca)
            context.verify_mode = self._verify_mode
            # A session that is resumed shows no certificate again: with tickets an expired certificate would be let in.
            context.num_tickets = 0
            context.options |= ssl.OP_NO_TICKET
        return context, validity


def client_tls(
    ca: FilePath | None = None, certificate: FilePath | None = None, key: FilePath | None = None
) -> ssl.SSLContext:
    """Make the TLS of a client. The server's certificate and name are always verified.

    Args:
        ca: PEM file: the CAs of servers. None: those that the system trusts.
        certificate: PEM file: the client's own certificate, for mutual TLS.
        key: PEM file: its private key, not encrypted. None: it is in `certificate`, too.

    Raises:
        TlsFileInvalid: A file cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _harden(context)
    if ca is None:
        context.load_default_certs()
    else:
        _load_ca(context, ca)
        if _cas_expired(context):
            raise TlsFileInvalid(f"every CA in {os.fspath(ca)} has expired {_clock_says()}; replace it")
    if certificate is not None:
        _load_certificate(context, certificate, certificate if key is None else key)
    elif key is not None:
        raise TlsFileInvalid(f"the key {os.fspath(key)} is of no use without its certificate")
    return context


def certificate_expired(fields: Mapping[str, Any] | None) -> bool:
    """Whether the peer's certificate, as `SSLSocket.getpeercert` returns it, has expired by now."""
    return False if not fields else ssl.cert_time_to_seconds(fields["notAfter"]) <= time.time()


def tls_failure(error: ssl.SSLError) -> str:
    """Why TLS failed, in one line."""
    if isinstance(error, ssl.SSLCertVerificationError):
        more = f" {_clock_says()}" if error.verify_code in _CLOCK_DECIDES else ""
        if error.verify_code in _OF_OTHER_NAMES:
            more = "; connect by a name that it has, as a subjectAltName"
        if error.verify_code in _OF_NO_CA:
            more = "; it is of none of the CAs that are trusted here"
        if error.verify_code in _WITHOUT_ISSUER:
            more += ", or its owner's file lacks the intermediate certificates, which belong behind it"
        return f"the certificate cannot be trusted: {error.verify_message.removesuffix('.')}{more}"
    reason = error.reason or ""
    if reason in {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL"}:
        return "the peer does not speak TLS"
    if reason in _OF_VERSIONS:
        return "the peer takes no version of TLS that we do: 1.2 or newer"
    if _ALERT.match(reason):
        return f"the peer says: {_words(_ALERT.sub('', reason))}"
    return _words(reason) or str(error)


def certificate_refused(error: BaseException) -> bool:
    """Whether a connection failed because the server does not accept this end's certificate, or wants one."""
    if caused_by(error, NoCommonTls):
        return False
    return any(
        isinstance(each, ssl.SSLError) and each.reason in _CERTIFICATE_ALERTS for each in causes(error)
    )


def _words(reason: str) -> str:
    """OpenSSL's name of a reason, to be read."""
    return reason.replace("_", " ").lower()


def _harden(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols([ALPN])
    context.set_ciphers(_CIPHERS_TLS_1_2)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION


def _load_certificate(context: ssl.SSLContext, certificate: FilePath, key: FilePath) -> None:
    _check_readable(certificate, key)
    try:
        # An empty password: a key that has one fails, instead of asking for it on the terminal.
        context.load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", None)
        if reason in _NOT_A_PAIR:
            problem = f"{os.fspath(certificate)} and {os.fspath(key)} do not belong together"
        elif reason in _TOO_WEAK:
            problem = f"{os.fspath(certificate)} is not what this machine's OpenSSL takes: {_words(reason)}"
        elif not _has_certificates(certificate):
            problem = f"{os.fspath(certificate)} {_NO_CERTIFICATES}"
        elif certificate == key:
            problem = (
                f"{os.fspath(key)} has no unencrypted key in PEM beside the certificate; name the key's file"
            )
        else:
            problem = f"{os.fspath(key)} has no unencrypted key in PEM"
        raise TlsFileInvalid(problem) from error


def _has_certificates(path: FilePath) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except (ssl.SSLError, OSError):
        return False
    return True


@dataclass(frozen=True, slots=True)
class _Validity:
    """Seconds since 1970, of the certificate of a file that expires first."""

    start: float
    end: float
    chain_start: float
    """When every certificate of the file is valid."""

    @property
    def warn_at(self) -> float:
        return self.end - min(_WARN_BEFORE_S, (self.end - self.start) / _WARN_SHARE)


def _validity(certificate: FilePath) -> _Validity:
    from cryptography import x509  # Servers alone need it.

    try:
        with open(certificate, "rb") as file:
            chain = x509.load_pem_x509_certificates(file.read())
    except (OSError, ValueError) as error:
        raise TlsFileInvalid(f"{os.fspath(certificate)} {_NO_CERTIFICATES}") from error
    first = min(chain, key=lambda each: each.not_valid_after_utc)
    return _Validity(
        start=first.not_valid_before_utc.timestamp(),
        end=first.not_valid_after_utc.timestamp(),
        chain_start=max(each.not_valid_before_utc.timestamp() for each in chain),
    )


def _utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def _clock_says() -> str:
    """To be said where a certificate's time decides: it may be the clock that is wrong."""
    return f"(this machine's clock says {_utc(time.time())})"


def _load_ca(context: ssl.SSLContext, ca: FilePath) -> None:
    _check_readable(ca)
    try:
        context.load_verify_locations(ca)
    except (ssl.SSLError, OSError) as error:
        raise TlsFileInvalid(f"{os.fspath(ca)} {_NO_CERTIFICATES}") from error


def _cas_expired(context: ssl.SSLContext) -> bool:
    """Whether there are CAs, and nothing by which anybody could still be trusted."""
    authorities = context.get_ca_certs()
    if len(authorities) < context.cert_store_stats()["x509"]:
        return False  # The others are no CAs, such as a server's own, self-signed: trusted for themselves.
    return bool(authorities) and all(map(certificate_expired, authorities))


def _check_readable(*paths: FilePath) -> None:
    for path in paths:
        try:
            # A number is no path: `open` takes it for an open file, and would close what is behind it.
            with open(os.fspath(path), "rb"):
                pass
        except OSError as error:
            raise TlsFileInvalid(f"{os.fspath(path)} cannot be read: {error.strerror}") from error


def _signature(path: FilePath) -> tuple[int, ...] | None:
    """What tells a file from the one that was there before; None: there is none.

    The time of modification is what a copy was given, and a file system gives the number of a removed file to the next
    one: the time of the last change, which nobody can set, tells those apart.
    """
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ctime_ns, status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev
