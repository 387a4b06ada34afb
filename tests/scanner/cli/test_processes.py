"""The command line as users run it: processes, signals and pipes."""

from __future__ import annotations

import ast
import contextlib
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import pyarrow as pa
import pytest

import scanner.sync as weir_sync
from scanner.cli import run
from scanner.errors import ScannerError
from tests.support.file_limit import file_size_limit
from tests.support.processes import TIMEOUT_S, WEIR, served_by, serving, weir
from tests.support.server import running_server

if TYPE_CHECKING:
    from tests.scanner.cli.conftest import Weir

pytestmark = [pytest.mark.socket, pytest.mark.rocks, pytest.mark.slow]


def told_beside(output: TextIO | int, words: Sequence[str], **environment: str) -> tuple[int, str]:
    """The exit code of a command that writes there, and what it says on standard error."""
    done = subprocess.run(
        [*WEIR, *words],
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT_S,
        env=os.environ | environment,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.fixture(scope="module")
def csv_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of a few MB."""
    path = tmp_path_factory.mktemp("files") / "items.csv"
    path.write_text("id,text\n" + "".join(f"{i},{'x' * 200}\n" for i in range(20_000)))
    return path


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory, csv_file: Path) -> Iterator[str]:
    """The address of a server that has this table in one bucket, for commands that only read."""
    with serving(tmp_path_factory.mktemp("served") / "data") as (_, endpoint):
        assert run(["load", str(csv_file), "--primary-key", "id", "--buckets", "1", "-e", endpoint]) == 0
        yield endpoint


def test_load_scan_and_end(tmp_path: Path, csv_file: Path, weir_here: Weir) -> None:
    """What is loaded is scanned, survives SIGTERM and a restart, and both servers end with exit code 0."""
    with serving(tmp_path / "data") as (server, endpoint):
        loaded = weir("load", csv_file, "--primary-key", "id", "-e", endpoint)
        assert (loaded.returncode, loaded.stderr.count("\n")) == (0, 1)
        assert loaded.stderr.startswith("types found: id int64, text string;")
        scanned = weir_here("scan", "items", "--format", "json", "-c", "id", "-e", endpoint)
        assert sorted(json.loads(line)["id"] for line in scanned.stdout.splitlines()) == list(range(20_000))
        locked = weir_here("serve", "--data", tmp_path / "data", "--port", 0)
        assert (locked.returncode, locked.stdout, locked.stderr.count("\n")) == (1, "", 1)
        in_use = weir_here("serve", "--data", tmp_path / "other", "--port", endpoint.rpartition(":")[2])
        assert (in_use.returncode, in_use.stderr.count("\n")) == (1, 1)
        assert "in use" in in_use.stderr
        server.send_signal(signal.SIGTERM)
        assert server.wait(TIMEOUT_S) == 0
    with serving(tmp_path / "data") as (server, endpoint):
        assert weir_here("scan", "items", "--format", "none", "-e", endpoint).stdout == "20000 rows\n"
        server.send_signal(signal.SIGINT)
        assert server.wait(TIMEOUT_S) == 0


def test_a_second_signal_ends_the_drain(tmp_path: Path, csv_file: Path, weir_here: Weir) -> None:
    """It does not wait for the call that runs, and says so: one line, and an exit code that is not 0."""
    ends = (
        (signal.SIGINT, 130, "interrupted"),
        (signal.SIGTERM, 143, "terminated"),
        (signal.SIGHUP, 129, "hung up"),
    )
    ended: list[int] = []
    for number, code, says in ends:
        with serving(tmp_path / "data", "--drain-timeout", 3600) as (server, endpoint):
            assert server.stderr is not None
            if code == 130:
                weir_here("load", csv_file, "--primary-key", "id", "-e", endpoint)
            with weir_sync.connect(endpoint) as client:
                scan = client.table("items").new_scan().with_credit(1000)
                with contextlib.suppress(ScannerError), scan.execute() as batches:
                    next(iter(batches))
                    server.send_signal(signal.SIGTERM)
                    assert "running calls may finish" in server.stderr.readline()
                    server.send_signal(number)
                    assert server.wait(TIMEOUT_S) == code
                    assert server.stderr.read() == f"weir: {says}\n"
                    ended.append(code)
    assert ended == [130, 143, 129]  # Else a scan has failed before its server was told to end.
    checked = weir_here("doctor", tmp_path / "data")
    assert (checked.returncode, checked.stdout.count(" 20000 rows")) == (0, 1), checked.stdout


@pytest.mark.parametrize("pid", [1, 2])
def test_the_first_process_of_a_container_leaves_no_zombies(tmp_path: Path, pid: int) -> None:
    """Whoever loses its parent there becomes its child, and nobody else would wait for it."""
    program = f"""
import os
from scanner.cli import main

os.getpid = lambda: {pid}
main(["serve", "--port", "0", "--data", {str(tmp_path / "data")!r}])
"""
    with served_by(sys.executable, "-c", program) as (server, _):
        status = Path(f"/proc/{server.pid}/status").read_text()
        ignored = int(status.partition("SigIgn:")[2].split()[0], 16)
        assert bool(ignored >> (signal.SIGCHLD - 1) & 1) == (pid == 1)
        server.send_signal(signal.SIGTERM)
        assert server.wait(TIMEOUT_S) == 0


@pytest.mark.parametrize(
    ("number", "code", "says"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_a_second_signal_ends_a_server_whose_storage_does_not_close(
    tmp_path: Path, number: signal.Signals, code: int, says: str
) -> None:
    """A disk may keep it for ever. What was acknowledged is durable all the same."""
    program = f"""
import threading
from scanner.cli import main
from scanner.storage.rocksdb.store import RocksStore

def close(self):
    print("closing", flush=True)
    threading.Event().wait()

RocksStore.close = close
main(["serve", "--port", "0", "--data", {str(tmp_path / "data")!r}])
"""
    with served_by(sys.executable, "-c", program) as (server, _):
        assert server.stdout is not None
        assert server.stderr is not None
        server.send_signal(signal.SIGTERM)
        assert server.stdout.readline() == "closing\n"
        server.send_signal(number)
        assert server.wait(TIMEOUT_S) == code
        assert server.stderr.read() == f"weir: ending; running calls may finish\nweir: {says}\n"


@pytest.mark.parametrize("closes", [True, False])
def test_a_signal_ends_a_server_that_has_not_started(tmp_path: Path, closes: bool) -> None:
    """A start can take long, as where leases keep many buckets. A second signal waits for storage no more, either."""
    program = f"""
import threading
import trio
from scanner.cli import main
from scanner.server.maintenance import Maintenance
from scanner.storage.rocksdb.store import RocksStore

async def load(*_):
    print("starting", flush=True)
    await trio.sleep_forever()

def close(self):
    print("closing", flush=True)
    threading.Event().wait()

Maintenance.load = load
if not {closes}:
    RocksStore.close = close
main(["serve", "--port", "0", "--data", {str(tmp_path / "data")!r}])
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stderr is not None
            assert server.stdout.readline() == "starting\n"
            server.send_signal(signal.SIGTERM)
            if not closes:
                assert server.stdout.readline() == "closing\n"
                server.send_signal(signal.SIGINT)
            assert server.wait(TIMEOUT_S) == (0 if closes else 130)
            assert server.stdout.read() == ""
            assert server.stderr.read() == (
                "weir: ending; it had not started to serve\n" + ("" if closes else "weir: interrupted\n")
            )
        finally:
            server.kill()
    with serving(tmp_path / "data"):
        pass


def test_signals_end_a_server_whose_start_has_failed(tmp_path: Path) -> None:
    """Behind the opening of storage, too, as for a port of metrics; the second one does not wait for storage."""
    program = f"""
import socket
import threading
from scanner.cli import main
from scanner.storage.rocksdb.store import RocksStore

def close(self):
    print("closing", flush=True)
    threading.Event().wait()

RocksStore.close = close
taken = socket.create_server(("127.0.0.1", 0))
port = str(taken.getsockname()[1])
main(["serve", "--port", "0", "--metrics-port", port, "--data", {str(tmp_path / "data")!r}])
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == "closing\n"
            server.send_signal(signal.SIGTERM)
            server.send_signal(signal.SIGINT)
            assert server.wait(TIMEOUT_S) in (130, 143)  # The system may deliver either first.
        finally:
            server.kill()


def test_interrupted_and_cut_off_scans(loaded: str, weir_here: Weir) -> None:
    """A signal is one line and its exit code; a reader that leaves early is no complaint; no half file stays."""
    command = [*WEIR, "scan", "items", "--format", "json", "-e", loaded]
    ends = (
        (signal.SIGINT, 130, "interrupted"),
        (signal.SIGTERM, 143, "terminated"),
        (signal.SIGHUP, 129, "hung up"),
    )
    for number, code, says in ends:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as scan:
            assert scan.stdout is not None
            assert scan.stderr is not None
            scan.stdout.readline()  # The rest is more than a pipe holds: the command waits for us.
            scan.send_signal(number)
            assert scan.wait(TIMEOUT_S) == code
            assert scan.stderr.read() == f"weir: {says}\n"
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as scan:
        assert scan.stdout is not None
        assert scan.stderr is not None
        scan.stdout.readline()
        scan.stdout.close()
        assert scan.wait(TIMEOUT_S) == 141
        assert scan.stderr.read() == ""
    for kind in ("csv", "json", "arrow", "parquet"):  # Into a device that is full, instead.
        full = weir_here("scan", "items", "--format", kind, "-o", "/dev/full", "-e", loaded)
        assert (full.returncode, full.stderr) == (
            1,
            "weir: cannot write /dev/full: No space left on device\n",
        ), kind
    with Path("/dev/full").open("w") as output:  # Of every format: the test below.
        full = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True, check=False)
    assert (full.returncode, full.stderr) == (
        1,
        "weir: cannot write standard output: No space left on device\n",
    )


@pytest.mark.parametrize("kind", ["csv", "json", "arrow", "parquet", "table"])
def test_output_that_python_does_not_buffer(tmp_path: Path, loaded: str, kind: str) -> None:
    """A disk that becomes full within the last write is a failure all the same, and not a file that is cut off."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    command = [*WEIR, "scan", "items", "--limit", "100", "--format", kind, "-e", loaded]
    whole = subprocess.run(command, capture_output=True, env=environment, check=True).stdout
    with (tmp_path / "rows").open("w") as output, file_size_limit(len(whole) - 1):
        full = subprocess.run(
            command, stdout=output, stderr=subprocess.PIPE, text=True, env=environment, check=False
        )
    assert (full.returncode, full.stderr) == (1, "weir: cannot write standard output: File too large\n")


@pytest.mark.parametrize("words", [(), ("-o", "/dev/stdout"), ("-o", "/dev/stderr")])
@pytest.mark.parametrize("kind", ["csv", "arrow", "table"])
def test_output_that_does_not_block(loaded: str, kind: str, words: tuple[str, ...]) -> None:
    """All of it goes through a small pipe that another process has made non-blocking."""
    command = [*WEIR, "scan", "items", "--limit", "2000", "--format", kind, "-e", loaded, *words]
    whole = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True).stdout
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(writer, False)
    with (
        subprocess.Popen(command, stdout=writer, stderr=writer) as scan,
        os.fdopen(reader, "rb") as output,
    ):
        os.close(writer)
        assert output.read() == whole
    assert scan.returncode == 0


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_output_that_cannot_be_written(loaded: str, unbuffered: str) -> None:
    """One that is open for reading alone is a failure with the exit code of one."""
    for words in (["--help"], ["tables", "-e", loaded]):
        with Path("/dev/null").open() as output:
            told = told_beside(output, words, PYTHONUNBUFFERED=unbuffered)
        assert told == (1, "weir: [Errno 9] Bad file descriptor\n")


@pytest.mark.parametrize("module", ["scanner.cli.tables", "scanner.sync"])
def test_ended_at_the_beginning(tmp_path: Path, module: str) -> None:
    """SIGTERM while a command, or the client, is being imported is one line and exit code 143.

    Also within text that is executed, as a dataclass's methods are made: `python -m` would end as by SIGINT.
    """
    # The import of a module that takes its time. Not signal.pause: a signal that comes just before it ends no wait.
    (tmp_path / "slow.py").write_text(
        "import sys; from scanner.cli import app, main\n"
        "class Finder:\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name == {module!r}:\n"
        "            exec('print(\"importing\", flush=True)\\nwhile True: pass')\n"
        "sys.meta_path.insert(0, Finder()); main(['tables'])\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{Path.cwd()}"}
    with subprocess.Popen(
        [sys.executable, "-m", "slow"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGTERM)
        assert (process.wait(TIMEOUT_S), process.stderr.read()) == (143, "weir: terminated\n")


@pytest.mark.parametrize(
    "where",
    [
        "app.LazyGroup.parse_args = lambda *_: signal.raise_signal(signal.SIGINT)",
        "atexit.register(signal.raise_signal, signal.SIGINT)",
    ],
    ids=["while the arguments are read", "while the process ends"],
)
def test_interrupted_around_a_command(where: str) -> None:
    """Ctrl-C there is one line as well: no empty one in front of it, as click prints, and no traceback."""
    code = f"import atexit, signal\nfrom scanner.cli import app, main\n{where}\nmain(['token'])\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=TIMEOUT_S, text=True)
    assert (done.returncode, done.stderr) == (130, "weir: interrupted\n")


def test_interrupted_where_nobody_hears_it(tmp_path: Path) -> None:
    """While a server prepares itself, also within a finalizer, which Python lets raise nothing."""
    code = f"""
import signal
from scanner.cli import main, serve

class Finalized:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

def warm_up():
    Finalized()

serve.warm_up = warm_up
main(["serve", "--port", "0", "--data", {str(tmp_path / "data")!r}])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=TIMEOUT_S, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "weir: interrupted\n")
    assert not (tmp_path / "data").exists()


def test_standard_output_that_is_closed() -> None:
    """Without a standard output there is one line and no traceback; without a standard error there is none."""
    for redirection, expected in (
        (">&-", "weir: standard output is closed; send it to /dev/null if nobody wants it\n"),
        ("2>&-", ""),
        ("<&-", ""),
    ):
        command = f'"$0" -m scanner.cli --version {redirection}'
        done = subprocess.run(
            ["sh", "-c", command, sys.executable],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert (done.returncode, done.stderr) == (int(bool(expected)), expected), redirection


def test_standard_output_that_nobody_reads(loaded: str) -> None:
    """Exit code 141 and not a word, also of what click and rich print themselves."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as output:
        for words in (["--version"], ["top", "--once", "-e", loaded]):
            assert told_beside(output, words) == (141, ""), words


def test_a_drain_that_a_hangup_began_and_ctrl_c_cuts_short(tmp_path: Path) -> None:
    """Another hangup changes nothing; the exit code is that of Ctrl-C."""
    with serving(tmp_path / "data", "--drain-timeout", 3600) as (server, endpoint):
        assert server.stderr is not None
        with weir_sync.connect(endpoint, retries=0) as client:
            table = client.create_table("items", pa.schema([("id", pa.int64())]), ["id"], 1)
            table.write(pa.table({"id": range(1000)}))
            with pytest.raises(ScannerError), table.new_scan().with_credit(1000).execute() as batches:
                next(batches)
                server.send_signal(signal.SIGHUP)
                assert "running calls may finish" in server.stderr.readline()
                server.send_signal(signal.SIGHUP)
                next(batches)
                server.send_signal(signal.SIGINT)
                assert server.wait(TIMEOUT_S) == 130
                list(batches)
        assert "weir: interrupted" in server.stderr.read()


def test_sighup_ends_no_drain_of_a_server_that_reads_files_again(tmp_path: Path) -> None:
    """It asks for files alone, also then: the call that runs finishes, and the exit code is 0."""
    (tmp_path / "credentials.toml").write_text('[anonymous]\nread = "*"\nwrite = "*"\n')
    words = ("--drain-timeout", 3600, "--credentials", tmp_path / "credentials.toml")
    with serving(tmp_path / "data", *words) as (server, endpoint):
        assert server.stderr is not None
        with weir_sync.connect(endpoint, retries=0) as client:
            table = client.create_table("items", pa.schema([("id", pa.int64())]), ["id"], 1)
            table.write(pa.table({"id": range(1000)}))
            with table.new_scan().with_credit(1000).execute() as batches:
                rows = next(batches).num_rows
                server.send_signal(signal.SIGTERM)
                assert "running calls may finish" in server.stderr.readline()
                server.send_signal(signal.SIGHUP)
                rows += sum(batch.num_rows for batch in batches)
        assert (rows, server.wait(TIMEOUT_S)) == (1000, 0)


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("metrics", [[], ["--metrics-port", "0"]])
def test_a_standard_error_that_is_full_ends_no_server(
    tmp_path: Path, metrics: list[str], unbuffered: str
) -> None:
    """It starts, a drain lets the scan that runs finish, and its exit code is 0."""
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    command = [*WEIR, "serve", "--data", str(tmp_path / "data"), "--port", "0", *metrics]
    command += ["--drain-timeout", "3600"]
    with (
        Path("/dev/full").open("w") as full,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=full, text=True, env=environment) as server,
    ):
        try:
            assert server.stdout is not None
            endpoint = server.stdout.readline().split()[-1]
            with weir_sync.connect(endpoint) as client:
                table = client.create_table("items", pa.schema([("id", pa.int64())]), ["id"], 1)
                table.write(pa.table({"id": range(1000)}))
                with table.new_scan().with_credit(1000).execute() as batches:
                    rows = next(batches).num_rows
                    server.send_signal(signal.SIGTERM)
                    rows += sum(batch.num_rows for batch in batches)
            assert (rows, server.wait(TIMEOUT_S)) == (1000, 0)
        finally:
            server.kill()


def test_a_standard_error_that_is_full_holds_up_no_end() -> None:
    """What ends a process at once ends it with its exit code, whether it can say so or not."""
    program = "from scanner.cli.signals import end_now; end_now(15)"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-c", program], stderr=full, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 143


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_standard_error_that_nobody_reads_holds_up_no_server(tmp_path: Path, unbuffered: str) -> None:
    """A pipe that is full, as where a collector of logs is stopped: it serves, drains, and heeds a second signal."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, b"x")
    os.set_blocking(writing, True)
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    command = [*WEIR, "serve", "--data", str(tmp_path / "data"), "--port", "0", "--log-level", "info"]
    command += ["--drain-timeout", "3600"]
    with (
        open(reading, "rb"),
        open(writing, "wb") as full,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=full, text=True, env=environment) as server,
    ):
        try:
            assert server.stdout is not None
            endpoint = server.stdout.readline().split()[-1]
            with weir_sync.connect(endpoint, retries=0) as client:
                table = client.create_table("items", pa.schema([("id", pa.int64())]), ["id"], 1)
                table.write(pa.table({"id": range(1000)}))
                assert table.new_scan().to_arrow().num_rows == 1000
                with (
                    contextlib.suppress(ScannerError),
                    table.new_scan().with_credit(1000).execute() as batches,
                ):
                    next(batches)
                    with (
                        pytest.raises(ScannerError, match="is going down"),
                        table.new_scan().with_source("log").execute() as changes,
                    ):
                        next(changes)
                        server.send_signal(signal.SIGTERM)
                        next(changes)
                    server.send_signal(signal.SIGTERM)
                    assert server.wait(TIMEOUT_S) == 143
            assert server.returncode == 143  # Else the scan has failed before that.
        finally:
            server.kill()


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(("words", "code"), [(["get"], 2), (["get", "items", "1", "-e", "127.0.0.1:1"], 1)])
def test_a_standard_error_that_is_full_changes_no_exit_code(
    words: list[str], code: int, unbuffered: str
) -> None:
    """The message is lost; Python's own exit code for that, 120, would say nothing of the command."""
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*WEIR, *words], stderr=full, timeout=TIMEOUT_S, env=environment, check=False)
    assert done.returncode == code


def test_a_note_that_standard_error_does_not_take_changes_no_exit_code(loaded: str) -> None:
    """The rows are all printed; and where both standard files take nothing, the command fails as any other does."""
    with Path("/dev/full").open("w") as full:
        command = [*WEIR, "scan", "items", "-e", loaded]  # It notes that these are the first rows.
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=full, timeout=TIMEOUT_S, check=False)
        command = ["sh", "-c", '"$@" >&-', "sh", *WEIR, "tables", "-e", loaded]
        closed = subprocess.run(command, stderr=full, timeout=TIMEOUT_S, check=False)
    assert (done.returncode, done.stdout[-1:], closed.returncode) == (0, b"\n", 1)


def test_what_was_done_is_told_though_the_output_is_full(tmp_path: Path, loaded: str) -> None:
    """The rows are loaded, and deleted, whoever takes the line that says so."""
    path = tmp_path / "more.csv"
    path.write_text("id\n1\n")
    for words, says in (
        (("load", str(path), "-k", "id"), r"types found: .*\nloaded 1 row into more in \S+ s"),
        (("delete", "more", "1"), "deleted 1 row of more"),
    ):
        with Path("/dev/full").open("w") as full:
            code, told = told_beside(full, [*words, "-e", loaded])
        assert code == 1
        assert re.fullmatch(f"{says}\nweir: cannot write standard output: No space left on device\n", told)


def test_a_server_that_cannot_say_where_it_listens(tmp_path: Path) -> None:
    """It ends as any other command does whose standard output takes nothing: in one line, or without one."""
    reader, writer = os.pipe()
    os.close(reader)
    full = os.open("/dev/full", os.O_WRONLY)
    for output, code, says in (
        (full, 1, "weir: cannot write standard output: No space left on device\n"),
        (writer, 141, ""),
    ):
        told = told_beside(output, ["serve", "--data", str(tmp_path / "data"), "--port", "0"])
        os.close(output)
        assert told == (code, says)


def test_a_token_that_cannot_be_written(tmp_path: Path, weir_here: Weir) -> None:
    """The error names the file, and nothing is left that passes for a token in use."""
    path = tmp_path / "loader.token"
    with file_size_limit(0):
        full = weir("token", "-o", path)
    assert (full.returncode, full.stderr) == (1, f"weir: cannot write {path}: File too large\n")
    assert weir_here("token", "-o", path).returncode == 0


def test_a_current_directory_that_is_gone(tmp_path: Path) -> None:
    """One line says so, where a command needs to know what it is called."""
    command = 'mkdir "$1" && cd "$1" && rmdir "$1" && exec "$0" -m scanner.cli serve --port 0'
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(
        ["sh", "-c", command, sys.executable, str(tmp_path / "gone")],
        capture_output=True, text=True, env=environment, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (
        1,
        "weir: the current directory is gone; change to another one\n",
    )


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["nonsense"]])
def test_answers_that_need_no_arrow(words: list[str]) -> None:
    """What needs no server imports nothing that takes time."""
    look = "import sys; from scanner.cli import run; run(sys.argv[1:]); print(sorted(sys.modules), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", look, *words], capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    )
    heavy = {"pyarrow", "numpy", "trio", "rich", "h2", "google.protobuf", "rocksdict", "ssl", "transport"}
    if words != ["--version"]:
        heavy |= {"importlib.metadata", "importlib.resources"}
    imported = set(ast.literal_eval(done.stderr.splitlines()[-1]))
    assert heavy & imported == set()


def test_the_example_of_the_readme_runs_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a new user copies first prints the same again."""
    text = (Path(__file__).resolve().parents[3] / "README.md").read_text(encoding="utf-8")
    (example,) = [part for part in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "sync" in part]
    with running_server(tmp_path / "data") as running:
        code = compile(example.replace("127.0.0.1:9123", running.endpoint), "README.md", "exec")
        for _ in range(2):
            exec(code, {})
            said = capsys.readouterr()
            assert (said.out.splitlines()[-1], said.err) == ("2 rows", "")


def test_servers_that_are_not_weir(weir_here: Weir) -> None:
    """One line says that what answers is something else."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.recv(65536)
                        connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        done = weir_here("tables", "-e", f"127.0.0.1:{port}")
        listener.shutdown(socket.SHUT_RDWR)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert f"what answers at 127.0.0.1:{port} does not speak HTTP/2" in done.stderr
    assert "'HTTP/1.1 400 Bad Request'" in done.stderr
    done = weir_here("tables", "-e", "http://127.0.0.1:9123")
    assert (done.returncode, done.stderr) == (
        1,
        "weir: endpoint 'http://127.0.0.1:9123' is a URL; write 127.0.0.1:9123\n",
    )


def test_an_output_that_is_not_unicode(loaded: str) -> None:
    """What it lacks is written out, and lines are drawn with what it has. Rows of `scan` are UTF-8 everywhere."""
    with weir_sync.connect(loaded) as client:
        client.create_table("names", pa.schema([("id", pa.int64()), ("né_日本", pa.string())]), ["id"], 1)
    for encoding, words, shown in (
        ("ascii", ["describe", "names"], "né_日本"),
        ("latin-1", ["describe", "names"], "né_日本"),
        ("latin-1", ["streams"], ""),
    ):
        environment = os.environ | {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
        done = subprocess.run(
            [*WEIR, *words, "-e", loaded],
            capture_output=True, env=environment, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, b"")
        text = done.stdout.decode(encoding)
        assert "----" in text
        assert shown.encode(encoding, "backslashreplace").decode(encoding) in text


def test_a_data_directory_whose_name_is_no_text(tmp_path: Path, weir_here: Weir) -> None:
    """A server refuses it when it starts, instead of every table later, and makes nothing."""
    done = weir_here("serve", "--port", 0, "--data", tmp_path / "caf\udce9")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "caf\\udce9 is no text in UTF-8" in done.stderr
    assert not any(tmp_path.iterdir())


def test_an_argument_that_is_no_text(loaded: str, weir_here: Weir) -> None:
    """One line names it."""
    word = os.fsdecode(b"x\xff")
    done = weir("describe", word, "-e", loaded)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "weir: the name of a table, 'x\\udcff', is no Unicode text\n"
    for words in (
        ("sql", f"SELECT {word}"),
        ("sql", f"SELECT {word}", "--explain"),
        ("tail", "items", "--group", word),
        ("scan", "items", "--lease", word),
    ):
        done = weir_here(*words, "-e", loaded)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
        assert "x\\udcff" in done.stderr
