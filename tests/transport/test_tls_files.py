"""The files of TLS: what is made of them, what is said of those that cannot be used, when they have changed."""

from __future__ import annotations

import datetime
import errno
import logging
import os
import ssl
import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

import transport
from tests.support.certificates import ca_file, files, issue, server_files
from transport import FileWatch, PeerCertificate, TlsFileInvalid
from transport.tls import tls_failure

DAY_S = 86_400.0


def test_reload_on_demand(tmp_path: Path) -> None:
    """`reload` makes a new context at once and tells whether it could; connections have the old one."""
    made = server_files(tmp_path)
    tls = transport.ServerTls(made.certificate, made.key)
    before = tls.context()
    assert tls.context() is before
    assert tls.reload()
    after = tls.context()
    assert after is not before
    made.key.unlink()
    assert not tls.reload()
    assert tls.context() is after


def test_the_expiry_that_is_told_is_that_of_the_files(tmp_path: Path) -> None:
    """A certificate that was replaced is told of as soon as somebody asks, though nobody has connected since."""
    made = files(tmp_path, "served", issue("test", "127.0.0.1", days_left=5))
    tls = transport.ServerTls(made.certificate, made.key)
    assert tls.expires_at < time.time() + 6 * DAY_S
    made.replace(issue("test", "127.0.0.1", days_left=90))
    assert tls.expires_at > time.time() + 80 * DAY_S


def test_files_that_could_not_be_read_for_want_of_descriptors_are_read_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They do not change any more, and the new certificate is used all the same, also where the clock was set back."""
    made, now = server_files(tmp_path), time.monotonic()
    tls = transport.ServerTls(made.certificate, made.key)
    before = tls.context()
    made.replace(issue("test", "127.0.0.1", days_left=90))

    def none_left(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as shortage:
        shortage.setattr("builtins.open", none_left)
        assert tls.context() is before
    assert tls.context() is before  # not at every handshake: each would log a line
    monkeypatch.setattr(time, "monotonic", lambda: now + 20)
    assert tls.context() is not before


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    """A file that is missing, is no PEM, is encrypted or belongs to another one is named, without its contents."""
    made = server_files(tmp_path)
    other = files(tmp_path, "other", issue("test", "other.example"))
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("secret nonsense")
    encrypted = tmp_path / "encrypted.key"
    encrypted.write_text(
        made.key.read_text().replace(
            "-----\n", "-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\n", 1
        )
    )
    for certificate, key, problem in (
        (tmp_path / "missing.pem", made.key, "missing.pem cannot be read: No such file"),
        (made.certificate, other.key, "do not belong together"),
        (nonsense, made.key, r"nonsense\.pem has no certificates in PEM"),
        (made.key, made.certificate, r"server\.key has no certificates in PEM"),
        (made.certificate, nonsense, r"nonsense\.pem has no unencrypted key in PEM$"),
        (made.certificate, encrypted, r"encrypted\.key has no unencrypted key in PEM$"),
        (made.certificate, made.certificate, r"server\.pem has no unencrypted key .* name the key's file"),
    ):
        with pytest.raises(TlsFileInvalid, match=problem) as caught:
            transport.ServerTls(certificate, key)
        assert "secret" not in str(caught.value)
        with pytest.raises(TlsFileInvalid, match=problem):
            transport.client_tls(ca_file(tmp_path), certificate, key)
    cut = tmp_path / "cut.pem"
    cut.write_text(ca_file(tmp_path).read_text() * 2)
    os.truncate(cut, cut.stat().st_size - 100)
    for ca in (nonsense, cut):
        with pytest.raises(TlsFileInvalid, match=rf"{ca.name} has no certificates in PEM, or part of one"):
            transport.client_tls(ca)
    with pytest.raises(TlsFileInvalid, match="of no use without its certificate"):
        transport.client_tls(ca_file(tmp_path), key=made.key)


@pytest.mark.parametrize(
    ("reason", "says"),
    [
        ("TLSV1_ALERT_PROTOCOL_VERSION", "the peer takes no version of TLS that we do: 1.2 or newer"),
        ("UNSUPPORTED_PROTOCOL", "the peer takes no version of TLS that we do: 1.2 or newer"),
        ("SSLV3_ALERT_CERTIFICATE_EXPIRED", "the peer says: certificate expired"),
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "the peer says: certificate required"),
        ("WRONG_VERSION_NUMBER", "the peer does not speak TLS"),
        ("DATA_LENGTH_TOO_LONG", "data length too long"),
    ],
)
def test_why_tls_failed(reason: str, says: str) -> None:
    """What the peer has said is told as that, without the version of SSL that knew the alert first."""
    error = ssl.SSLError()
    error.reason = reason
    assert tls_failure(error) == says


@pytest.mark.parametrize(
    ("code", "message", "says"),
    [
        (
            20,
            "unable to get local issuer certificate",
            "; it is of none of the CAs that are trusted here, or its owner's file lacks the intermediate",
        ),
        (
            18,
            "self-signed certificate",
            ": self-signed certificate; it is of none of the CAs that are trusted here",
        ),
        (
            64,
            "IP address mismatch, certificate is not valid for '::1'.",
            "'::1'; connect by a name that it has",
        ),
        (24, "invalid CA certificate", ": invalid CA certificate"),
    ],
)
def test_why_a_certificate_is_not_trusted(code: int, message: str, says: str) -> None:
    """OpenSSL's words, and where they do not say it, what is to be done."""
    error = ssl.SSLCertVerificationError()
    error.verify_code, error.verify_message = code, message
    assert says in tls_failure(error)
    assert tls_failure(error).startswith("the certificate cannot be trusted: ")


def test_why_a_good_file_cannot_be_used(tmp_path: Path) -> None:
    """A key of another kind is another certificate's, and a short one too short: neither is told as what is no PEM."""
    made, short = server_files(tmp_path), rsa.generate_private_key(65537, 1024)
    name, now = x509.Name([]), datetime.datetime.now(datetime.UTC)
    weak = (
        x509.CertificateBuilder(name, name, short.public_key(), x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(short, hashes.SHA256())
    )
    certificate, key = tmp_path / "weak.pem", tmp_path / "weak.key"
    certificate.write_bytes(weak.public_bytes(serialization.Encoding.PEM))
    key.write_bytes(
        short.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    with pytest.raises(TlsFileInvalid, match="do not belong together"):
        transport.ServerTls(made.certificate, key)
    with pytest.raises(TlsFileInvalid, match="OpenSSL takes: ee key too small"):
        transport.ServerTls(certificate, key)


def test_a_certificate_that_is_not_valid_yet_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is an error at the start, costs a line at a reload, and is used from its first second on."""
    made, now = server_files(tmp_path), time.time()
    tls = transport.ServerTls(made.certificate, made.key)
    before = tls.context()
    made.replace(issue("test", "127.0.0.1", days_left=101))  # of a hundred, so it begins tomorrow
    with pytest.raises(
        TlsFileInvalid, match=r"server\.pem is not valid before \d{4}-.* UTC; use another one"
    ):
        transport.ServerTls(made.certificate, made.key)
    for _ in range(3):
        assert tls.context() is before
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert tls.expires_at > now + 102 * DAY_S
    monkeypatch.setattr(time, "time", lambda: now + 1.5 * DAY_S)
    after = tls.context()
    assert after is not before
    assert tls.context() is after
    assert tls.expires_at < now + 102 * DAY_S


def test_cas_that_have_all_expired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A file by which nobody can be trusted any more is named: a client refuses it, and a server logs a warning."""
    context = transport.client_tls(ca_file(tmp_path))
    expiry = ssl.cert_time_to_seconds(str(context.get_ca_certs()[0]["notAfter"]))
    days_left = round((expiry - time.time()) / DAY_S) + 50
    made = files(tmp_path, "server", issue("test", "127.0.0.1", days_left=days_left))
    ca = ca_file(tmp_path)
    monkeypatch.setattr(time, "time", lambda: expiry)
    transport.ServerTls(made.certificate, made.key, client_ca=ca)
    assert f"every CA in {ca} has expired" in caplog.text
    with pytest.raises(TlsFileInvalid, match=r"test-ca\.pem has expired \(.* clock says .*\); replace it"):
        transport.client_tls(ca)
    # A certificate that is no CA's may be there to be trusted for itself.
    ca.write_bytes(ca.read_bytes() + made.certificate.read_bytes())
    transport.client_tls(ca)


def test_system_cas_are_the_default() -> None:
    """Without a CA file a client trusts what the system trusts, and still verifies name and certificate."""
    context = transport.client_tls()
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_file_watch_tells_each_change_once(tmp_path: Path) -> None:
    """Making, replacing and removing a file are changes; looking at it is none."""
    path = tmp_path / "file"
    watch = FileWatch([path])
    assert not watch.changed()
    path.write_text("one")
    assert watch.changed()
    assert not watch.changed()
    path.read_text()
    assert not watch.changed()
    replacement = tmp_path / "replacement"
    replacement.write_text("two")
    os.replace(replacement, path)
    assert watch.changed()
    path.unlink()
    assert watch.changed()
    assert not watch.changed()


@pytest.mark.parametrize("made_anew", [False, True])
def test_file_watch_tells_a_file_of_the_same_length_and_time(tmp_path: Path, made_anew: bool) -> None:
    """A copy that keeps the times, over the file or in its place, where it may get the number of the removed one."""
    path = tmp_path / "file"
    path.write_text("one")
    os.utime(path, (1, 1))
    before = path.stat()
    watch = FileWatch([path])
    while path.stat().st_ctime_ns == before.st_ctime_ns:  # The file system's clock has a tick of its own.
        if made_anew:
            path.unlink()
        path.write_text("two")
        os.utime(path, (1, 1))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert watch.changed()
    assert not watch.changed()


def test_names_of_a_certificate() -> None:
    """Names that can name a client are kept with their kinds, in the order of kinds; others are left out."""
    fields = {
        "subject": ((("organizationName", "weir"),), (("commonName", "loader"),)),
        "subjectAltName": (
            ("DNS", "a.example"),
            ("DirName", "something"),
            ("URI", "spiffe://example/loader"),
            ("IP Address", "10.0.0.1"),
            ("email", "a@example.com"),
        ),
    }
    assert PeerCertificate.of(fields) == PeerCertificate(
        ("uri:spiffe://example/loader", "dns:a.example", "ip:10.0.0.1", "email:a@example.com", "cn:loader")
    )
    assert PeerCertificate.of({}) is None
    assert PeerCertificate.of(None) is None
