"""Who did what, in the log and the metrics of a real `weir serve`; and certificates that run out."""

from __future__ import annotations

import errno
import io
import itertools
import json
import logging
import os
import pty
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pyarrow as pa
import pytest

import scanner
import scanner.sync
from scanner.cli.logs import JsonFormatter, LogHandler, TextFormatter
from scanner.cli.waiting import PatientFile, takes_more
from scanner.server.auth.principals import make_token, token_sha256
from scanner.server.log_fields import Fields
from tests.support.certificates import files, issue
from tests.support.processes import TIMEOUT_S, WEIR, serving

pytestmark = [pytest.mark.socket, pytest.mark.rocks]

TOKENS = {name: make_token() for name in ("admin", "anna")}
CREDENTIALS = f"""
[principals.admin]
token_sha256 = "{token_sha256(TOKENS["admin"])}"
write = "*"
admin = true
[principals.anna]
token_sha256 = "{token_sha256(TOKENS["anna"])}"
read = "orders"
"""
FORGED = "x\n2026-01-01 00:00:00,000 INFO weir.audit: audit event=table_dropped\x1b[2J principal=anna"
ORDERS = pa.schema([("id", pa.int64())])


def act(endpoint: str) -> None:
    """Do something of each kind that is audited, and something that is not allowed."""
    with scanner.sync.connect(endpoint, token="weir_wrong") as client:
        with pytest.raises(scanner.Unauthenticated):
            client.tables()
    with scanner.sync.connect(endpoint, token=TOKENS["admin"]) as admin:
        admin.create_table("orders", ORDERS, ["id"], buckets=1)
        admin.checkpoint("orders")
        load = admin.table("orders").transaction("load", 7)
        load.stage(pa.table({"id": [1]}), part=0, attempt=0)
        assert load.abort() > load.abort() == 0
        load.stage(pa.table({"id": [1]}), part=0, attempt=0)
        assert [load.publish({0: 0}).decided for _ in range(2)] == [True, False]
        with scanner.sync.connect(endpoint, token=TOKENS["anna"]) as anna:
            with pytest.raises(scanner.PermissionDenied):
                anna.drop_table(FORGED)
            anna.acquire_lease("orders", lease_id="nightly")
        assert admin.leases.drop("nightly", "anna")
        admin.drop_table("orders")


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_audit_trail(log_format: str, tmp_path: Path) -> None:
    """Each act leaves one line with who, from where and what, and a count; nothing that a client says forges a line."""
    credentials = tmp_path / "credentials.toml"
    credentials.write_text(CREDENTIALS)
    options = f"--metrics-port 0 --log-level info --log-format {log_format} --credentials".split()
    with serving(tmp_path / "data", *options, credentials) as (process, endpoint):
        assert process.stderr is not None
        url = next(line for line in process.stderr if line.startswith("weir: metrics at ")).split()[-1]
        act(endpoint)
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            metrics = answer.read().decode()
        process.send_signal(signal.SIGHUP)
        reloaded = [process.stderr.readline()]
        while "event=credentials_reloaded" not in reloaded[-1] and '"credentials_rel' not in reloaded[-1]:
            reloaded.append(process.stderr.readline())
        process.terminate()
        log = "".join(reloaded) + process.stderr.read()
    lines = [line for line in log.splitlines() if not line.startswith("weir: ")]
    if log_format == "json":
        said = [each for each in map(json.loads, lines) if each["logger"] == "weir.audit"]
        assert all(each["message"] == "audit" and each["level"] == "info" for each in said)
        events = [(each["event"], each.get("principal", "")) for each in said]
        denied = next(each for each in said if each["event"] == "call_denied")
        assert FORGED.replace("\n", "\\n") in denied["reason"].replace("\\x1b", "\x1b")
        assert denied["peer"].startswith("127.0.0.1:")
    else:
        assert "\x1b" not in log
        found = (
            re.search(r" INFO weir.audit: audit event=(\w+)(?: principal=(\S+))?", line) for line in lines
        )
        events = [(each[1], each[2] or "") for each in found if each is not None]
        assert all(re.match(r"\d{4}-\d\d-\d\d ", line) for line in lines)
        assert any(" peer=127.0.0.1:" in line and "call=/weir.v1.Leases/DropLease" in line for line in lines)
    assert events == [
        ("authentication_failed", "-"),
        ("table_created", "admin"),
        ("checkpoint_made", "admin"),
        ("transaction_aborted", "admin"),
        ("transaction_published", "admin"),
        ("call_denied", "anna"),
        ("lease_dropped_by_admin", "admin"),
        ("table_dropped", "admin"),
        ("credentials_reloaded", ""),
    ]
    for sample in (
        "weir_auth_failures_total 1.0",
        "weir_denied_calls_total 1.0",
        'weir_audit_events_total{event="table_dropped"} 1.0',
    ):
        assert sample in metrics
    for secret in (*TOKENS.values(), "weir_wrong", *map(token_sha256, TOKENS.values())):
        assert secret not in log


def test_formats() -> None:
    """A line of text is one line whatever is in it, a traceback is indented, and values with blanks are quoted."""
    try:
        raise ValueError("first\n2026-01-01 a forged line\x1b[31m")
    except ValueError:
        record = logging.makeLogRecord(
            {
                "name": "n",
                "levelname": "ERROR",
                "msg": "%s failed",
                "args": ("x\ny\x1b",),
                "exc_info": sys.exc_info(),
            }
        )
    first, *trace = TextFormatter().format(record).split("\n")
    assert first.endswith(r"ERROR n: x\ny\x1b failed")
    assert all(line.startswith("  ") for line in trace)
    assert "\x1b" not in "".join(trace)
    told = json.loads(JsonFormatter().format(record))
    assert (told["level"], told["message"]) == ("error", "x\ny\x1b failed")
    assert "forged" in told["traceback"]
    fields = Fields(table='a b" principal=root', rows=3)
    assert str(fields) == r'table="a b\" principal=root" rows=3'
    record = logging.makeLogRecord({"msg": "scan ended %s", "args": fields, "levelname": "INFO"})
    assert json.loads(JsonFormatter().format(record)) | {"time": ""} == {
        "time": "",
        "level": "info",
        "logger": None,
        "message": "scan ended",
        "table": 'a b" principal=root',
        "rows": 3,
    }


class _Disk(io.StringIO):
    """A file on a disk that takes so many characters more."""

    room = 10**6

    def write(self, text: str, /) -> int:
        fits = text[: self.room]
        self.room -= len(fits)
        super().write(fits)
        if fits != text:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return len(text)


def test_the_log_says_what_a_full_disk_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it has room again; and no line goes on behind a part of another one."""
    disk = _Disk()
    handler = LogHandler(disk)
    monkeypatch.setattr(logging.getLogger("scanner.cli.logs"), "handlers", [handler])
    log = logging.Logger("test")
    log.addHandler(handler)
    log.info("a")
    disk.room = 3
    log.info("before the disk is full")
    log.info("missing")
    disk.room = 10**6
    log.info("b")
    log.info("c")
    told = "the log has a gap before the line above: lines that were refused, missing or cut off: 2"
    assert disk.getvalue() == f"a\nbef\nb\n{told}\nc\n"


def test_the_log_says_what_nobody_has_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe that is full holds nothing up, and what it has not taken never comes later; a long line is cut off."""
    reading, writing = os.pipe()
    with open(reading, "rb") as pipe, open(writing, "wb"):
        output = io.TextIOWrapper(PatientFile(writing, patience_s=0.0), write_through=True)
        handler = LogHandler(output)
        monkeypatch.setattr(logging.getLogger("scanner.cli.logs"), "handlers", [handler])
        log = logging.Logger("test")
        log.addHandler(handler)
        log.info("a")
        log.info("much" * (1 << 20))
        log.info("missing")
        os.set_blocking(reading, False)
        assert pipe.read().startswith(b"a\nmuchmuch")
        log.info("b")
        log.info("c")
        told = "the log has a gap before the line above: lines that were refused, missing or cut off: 2"
        assert pipe.read().decode() == f"\nb\n{told}\nc\n"


def test_a_terminal_that_hangs_takes_what_fits() -> None:
    """Its window reads nothing: lines are refused as soon as there is no room, and never waited for."""
    window, terminal = pty.openpty()
    with open(window, "rb", buffering=0) as reader, open(terminal, "wb"):
        with PatientFile(terminal, 0.0) as output, pytest.raises(TimeoutError):
            for number in itertools.count():
                output.write(b"%d of many lines\n" % number)
        assert os.get_blocking(terminal)
        os.set_blocking(window, False)
        read = b""
        while (part := reader.read(1 << 16)) or not takes_more(terminal, 0.01):
            read += part or b""
        os.set_blocking(window, True)
        with PatientFile(terminal) as output:
            output.write(b"and one more\n")
            while not read.endswith(b"and one more\r\n"):
                read += reader.read(1 << 16)
        assert read.startswith(b"0 of many lines\r\n1 of many lines\r\n")


@pytest.mark.parametrize(("days_left", "says"), [(-1, "expired at"), (5, "expires at"), (50, "")])
def test_certificates_that_run_out(days_left: int, says: str, tmp_path: Path) -> None:
    """An expired certificate is an error at the start, one about to expire a warning, and its time is a metric."""
    made = files(tmp_path, "server", issue("test", "127.0.0.1", days_left=days_left))
    command = [*WEIR, "serve", "--data", str(tmp_path / "data"), "--port", "0"]
    command += ["--metrics-port", "0", "--tls-cert", str(made.certificate), "--tls-key", str(made.key)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "TZ": "UTC"}
    ) as process:
        try:
            assert process.stdout is not None
            started = process.stdout.readline()
            if days_left < 0:
                _, err = process.communicate(timeout=TIMEOUT_S)
                assert (started, process.returncode) == ("", 1)
                *_, last = err.splitlines()  # A machine that allows few files is told so before.
                assert re.search(
                    r"server\.pem expired at \d{4}-.* UTC \(this machine's clock says .* UTC\); replace it",
                    last,
                )
                assert "Traceback" not in err
                return
            process.terminate()
            _, err = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
    assert ("WARNING weir.transport: the TLS certificate" in err and says in err) == (days_left < 10)
