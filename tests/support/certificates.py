"""Certificates for tests of TLS: a CA, a server, clients, as files and as contexts."""

from __future__ import annotations

import datetime
import functools
import os
import ssl
from dataclasses import dataclass
from pathlib import Path

import trustme

import transport


@functools.cache
def authority(name: str = "test") -> trustme.CA:
    """A CA; the same one for the same name, since keys take time to make."""
    return trustme.CA(organization_name=f"weir {name}")


@functools.cache
def issue(
    ca: str, *identities: str, common_name: str | None = None, days_left: int | None = None
) -> trustme.LeafCert:
    """A certificate of a CA; with `days_left` one that lives for a hundred days, of which so many are left."""
    end = None
    if days_left is not None:
        end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days_left)
    return authority(ca).issue_cert(
        *identities,
        common_name=common_name,
        not_before=None if end is None else end - datetime.timedelta(days=100),
        not_after=end,
    )


@dataclass(frozen=True, slots=True)
class Files:
    """Where one end's certificate is."""

    certificate: Path
    key: Path

    def replace(self, issued: trustme.LeafCert, *, key_too: bool = True) -> None:
        """Put another certificate there, each file at once, as renewal tools do."""
        _write(self.certificate, b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        if key_too:
            _write(self.key, issued.private_key_pem.bytes())


def ca_file(directory: Path, ca: str = "test") -> Path:
    """The CA's certificate."""
    path = directory / f"{ca}-ca.pem"
    authority(ca).cert_pem.write_to_path(path)
    return path


def files(directory: Path, name: str, issued: trustme.LeafCert) -> Files:
    """A certificate and its key."""
    made = Files(directory / f"{name}.pem", directory / f"{name}.key")
    made.replace(issued)
    return made


def server_files(directory: Path) -> Files:
    """The certificate of a server on the loopback interface."""
    return files(directory, "server", issue("test", "127.0.0.1", "localhost"))


def server_tls(
    directory: Path, *, client_ca: str | None = None, required: bool = True
) -> transport.ServerTls:
    """TLS of a server on the loopback interface."""
    made = server_files(directory)
    return transport.ServerTls(
        made.certificate,
        made.key,
        client_ca=None if client_ca is None else ca_file(directory, client_ca),
        client_certificate_required=required,
    )


def client_tls(directory: Path, issued: trustme.LeafCert | None = None, ca: str = "test") -> ssl.SSLContext:
    """TLS of a client that trusts a CA, perhaps with a certificate of its own."""
    if issued is None:
        return transport.client_tls(ca_file(directory, ca))
    own = files(directory, f"client-{id(issued)}", issued)
    return transport.client_tls(ca_file(directory, ca), own.certificate, own.key)


def _write(path: Path, content: bytes) -> None:
    fresh = path.with_suffix(path.suffix + ".new")
    fresh.write_bytes(content)
    os.replace(fresh, path)
