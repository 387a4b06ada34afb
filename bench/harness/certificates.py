"""A certificate of the loopback interface, as files, for benches of TLS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import trustme

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files."""

    certificate: Path
    key: Path
    ca: Path
    """Whom a client trusts."""


def make_certificates(directory: Path) -> Certificates:
    """Write a certificate for `localhost` and 127.0.0.1, its key, and its CA into a directory."""
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    made = Certificates(directory / "server.pem", directory / "server.key", directory / "ca.pem")
    issued.cert_chain_pems[0].write_to_path(made.certificate)
    issued.private_key_pem.write_to_path(made.key)
    authority.cert_pem.write_to_path(made.ca)
    return made
