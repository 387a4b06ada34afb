"""What a server imports, it imports before it listens: an import takes the event loop, and with it every stream."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import scanner.sync
from scanner.cli import run
from scanner.errors import ScannerError
from scanner.server.auth.principals import make_token, token_sha256
from tests.support.certificates import ca_file, server_files

pytestmark = [pytest.mark.socket, pytest.mark.rocks, pytest.mark.slow]

TIMEOUT_S = 500
"""Far longer than anything takes: only what will never come takes it."""
RECORDING = """
import sys
class Recorder:
    listening = False
    def find_spec(self, name, path, target=None):
        if self.listening: print("imported", name, file=sys.__stderr__, flush=True)
import click
from scanner.cli import main
recorder, echo = Recorder(), click.echo
def say(message=None, *arguments, **options):
    recorder.listening = recorder.listening or str(message).startswith("listening on")
    echo(message, *arguments, **options)
click.echo = say
sys.meta_path.insert(0, recorder)
try:
    main(sys.argv[1:])
finally:
    if "pandas" in sys.modules: print("imported pandas", file=sys.__stderr__)
"""
COMMAND = """
import sys
from scanner.cli import main
try:
    main(["--version"])
finally:
    import pyarrow as pa
    print(pa.array([0]).to_pylist(), "pandas" in sys.modules)
"""
COLLECTED = """
import gc
from scanner.cli import main
try:
    main(["tables", "--endpoint", "127.0.0.1:1"])
finally:
    print(gc.isenabled(), len(gc.get_objects()) < gc.get_freeze_count())
"""
THREADS = """
import sys
from pathlib import Path
from scanner.cli import main
try:
    main(["tables", "--endpoint", "http://that.is.refused/before/a/client/has/its/thread"])
finally:
    names = [each.joinpath("comm").read_text() for each in Path("/proc/self/task").iterdir()]
    print("numpy" in sys.modules, names.count(Path("/proc/self/comm").read_text()))
"""
PRINCIPALS = """
[principals.all]
token_sha256 = ["{}"]
read = ["*"]
write = ["*"]
admin = true
"""
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("text", pa.string()),
        ("float", pa.float64()),
        ("at", pa.timestamp("us", "UTC")),
        ("price", pa.decimal128(10, 2)),
        ("day", pa.date32()),
        ("flag", pa.bool_()),
    ]
)
ROWS = pa.Table.from_pylist([{"id": number, "text": str(number)} for number in range(100)], SCHEMA)
WHERE = (
    "text = '5' and float > 0.5",
    "price > 1 and day < '2030-01-01'",
    "flag = true or at is null",
    "id in (1, 2)",
)


def _use(client: scanner.sync.Client) -> None:
    """The first of everything that a client may ask for."""
    table = client.create_table("t", SCHEMA, ["id"], buckets=2)
    table.write(ROWS)
    scan = table.new_scan()
    for mode in ("push", "session", "token", "cursor"):
        assert scan.with_mode(mode).to_arrow().num_rows == len(ROWS)
    for source in ("log", "hybrid"):
        assert scan.with_source(source).stop_at("end").to_arrow().num_rows == len(ROWS)
    for condition in WHERE:
        scan.where(condition).to_arrow()
    scan.select("id").limit(3).to_arrow()
    scan.bucket(0).as_of(0).to_arrow()
    table.get(ROWS.select(["id"]).slice(0, 3))
    table.delete(ROWS.select(["id"]).slice(0, 1))
    table.split(0, splits=2)
    table.add_column(pa.field("more", pa.string()))
    client.acquire_lease("t")
    client.checkpoint("t")
    client.make_images("t")
    client.list_streams()
    mistakes: list[Callable[[], Any]] = [
        lambda: client.create_table("t", SCHEMA, ["id"], buckets=2),
        lambda: client.table("none"),
        lambda: scan.bucket(0).as_of(10**9).to_arrow(),
        lambda: table.write(ROWS),
    ]
    for mistake in mistakes:
        with pytest.raises(ScannerError):
            mistake()
    client.drop_table("t")


@pytest.mark.parametrize("secured", [False, True], ids=["plain", "secured"])
def test_nothing_is_imported_after_listening(tmp_path: Path, secured: bool) -> None:
    """Not for the first scans, calls, errors, scrape, nor for the end; pandas, which pyarrow looks for, not before."""
    token = make_token()
    words: list[object] = []
    options: dict[str, Any] = {}
    if secured:
        credentials = tmp_path / "credentials.toml"
        credentials.write_text(PRINCIPALS.format(token_sha256(token)))
        made = server_files(tmp_path)
        words = ["--tls-cert", made.certificate, "--tls-key", made.key, "--credentials", credentials]
        options = {"ssl_context": scanner.tls(ca_file(tmp_path)), "token": token}
    ports = ("--port", 0, "--metrics-port", 0)
    command = [sys.executable, "-c", RECORDING, "serve", "--data", tmp_path / "data", *ports, *words]
    with subprocess.Popen(
        [*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            endpoint = process.stdout.readline().split()[-1]
            metrics = process.stderr.readline().split()[-1]
            with urllib.request.urlopen(metrics) as answer:
                assert b"weir_build_info" in answer.read()
            with scanner.sync.connect(endpoint, **options) as client:
                _use(client)
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
    assert [line for line in errors.splitlines() if line.startswith("imported")] == []
    assert process.returncode == 0


def test_commands_do_without_pandas() -> None:
    """Arrow finds none in the process of a command, and makes arrays of Python objects all the same."""
    done = subprocess.run(
        [sys.executable, "-c", COMMAND], capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    )
    assert done.stdout.splitlines()[-1] == "[0] False"


def test_what_a_command_has_imported_is_not_looked_at_again() -> None:
    """The garbage collector of its process looks at what the command makes, and leaves out what was imported before."""
    done = subprocess.run(
        [sys.executable, "-c", COLLECTED], capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.stdout == "True True\n", done.stderr
    assert done.returncode == 1


def test_a_command_has_no_threads_to_multiply_matrices_with() -> None:
    """Numpy would start one for each processor but one; they have the name of the process."""
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", THREADS], capture_output=True, text=True, timeout=TIMEOUT_S, env=environment
    )
    assert done.stdout == "True 1\n", done.stderr


def test_a_command_in_a_process_of_others_leaves_their_objects_alone() -> None:
    """What else is in the process is collected as before."""
    frozen = gc.get_freeze_count()
    assert run(["tables", "--endpoint", "127.0.0.1:1"]) == 1
    assert gc.isenabled()
    assert gc.get_freeze_count() <= frozen  # Less where some of it has gone.
