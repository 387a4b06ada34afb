"""The blocking twin against a real server in another thread."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

import pyarrow as pa
import pytest
import trio

import scanner
import scanner.sync
from scanner import LeaseState, LeaseTarget, col
from scanner.sync.portal import _Call
from tests.support.client import SCHEMA, rows
from tests.support.interrupts import Patient, interrupted_after
from tests.support.server import RunningServer, running_server

pytestmark = [pytest.mark.socket, pytest.mark.rocks]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server in a thread of its own, with a table of 20 000 rows, about 10 MB."""
    with running_server(tmp_path_factory.mktemp("client") / "data") as running:
        with scanner.sync.connect(running.endpoint) as client:
            client.create_table("items", SCHEMA, ["k"], buckets=3).write(rows(20_000, width=500))
        yield running


@pytest.fixture
def table(client: scanner.sync.Client) -> scanner.sync.Table:
    """Its table, which has as many rows after each test."""
    return client.table("items")


def threads() -> list[str]:
    """Names of the clients' threads that are alive."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("weir client")]


def wait_released(server: RunningServer) -> None:
    """Return when the server holds no scan any more."""
    server.wait_until(lambda it: it.statistics().iterators_open == 0)


@pytest.mark.parametrize("mode", ["push", "session"])
def test_scan_in_every_shape(table: scanner.sync.Table, mode: str) -> None:
    """A scan gives an Arrow table, a data frame and batches, all with the same rows."""
    scan = table.new_scan().with_mode(mode).where(col("k") < 100).select("k", "number")
    arrow = scan.to_arrow()
    assert sorted(arrow["k"].to_pylist()) == list(range(100))
    assert arrow.schema == scan.schema
    assert sorted(scan.to_pandas()["k"]) == list(range(100))
    assert sum(batch.num_rows for batch in scan.to_batches()) == 100


def test_pandas_gets_every_digit_of_integers_beside_nulls(server: RunningServer) -> None:
    """A column is of floats, as pandas makes it, unless that could round a number of it."""
    columns = {
        "id": [1, 2],
        "small": [7, None],
        "large": [2**53 + 1, None],
        "low": [None, -(2**63)],
        "none": [None, None],
    }
    rows = pa.table(columns, pa.schema([(name, pa.int64()) for name in columns]))
    with scanner.sync.connect(server.endpoint) as client:
        table = client.create_table("large", rows.schema, ["id"], 1)
        table.write(rows)
        frame = table.new_scan().to_pandas()
    types = [str(kind) for kind in frame.dtypes]
    assert types == ["int64", "float64", "Int64", "Int64", "float64"]
    assert frame["large"].tolist()[0] == 2**53 + 1
    assert frame["low"].tolist()[1] == -(2**63)
    assert frame.isna().sum().tolist() == [0, 1, 1, 1, 2]


def test_statistics_outlive_the_scan(server: RunningServer) -> None:
    """What a scan did can be asked for after the scan and the client are gone."""
    with scanner.sync.connect(server.endpoint) as client:
        table = client.create_table("outlived", SCHEMA, ["k"])
        assert table.write(rows(10)).rows == 10
        with table.new_scan().execute() as batches:
            assert sum(batch.num_rows for batch in batches) == 10
            with pytest.raises(StopIteration):
                next(batches)
    assert batches.statistics().rows == 10
    assert batches.statistics().digest is not None


def test_errors_come_to_the_caller_as_they_are(client: scanner.sync.Client) -> None:
    """A failure is raised where the call was made, with its class and its cause."""
    with pytest.raises(scanner.TableNotFound) as failure:
        client.table("nope")
    assert failure.value.__cause__ is not None
    with pytest.raises(scanner.ColumnNotFound):
        client.create_table("t", SCHEMA, ["key"])


def test_nobody_answers_and_no_thread_is_left() -> None:
    """A connection that fails leaves nothing behind."""
    before = threads()
    with pytest.raises(scanner.ServerUnavailable):
        scanner.sync.connect("127.0.0.1:1")
    assert threads() == before


def test_closing_ends_the_thread_and_refuses_further_calls(server: RunningServer) -> None:
    """After close, which is idempotent, the thread is gone and calls say so."""
    before = threads()
    client = scanner.sync.connect(server.endpoint)
    table = client.create_table("t", SCHEMA, ["k"])
    table.write(rows(1_000))
    with table.new_scan().execute() as batches:
        client.close()
        client.close()
        with pytest.raises(trio.ClosedResourceError):
            next(batches)
    with pytest.raises(trio.ClosedResourceError):
        client.tables()
    assert threads() == before


def test_closing_says_to_the_server_what_blocks_say_at_their_end(
    server: RunningServer, client: scanner.sync.Client, table: scanner.sync.Table
) -> None:
    """Blocks that are open, as in other threads, keep no lease, no session and no place in a group."""

    def held() -> tuple[list[str], bool, tuple[str, ...]]:
        return (
            [each.lease_id for each in client.list_leases()],
            "session" in [each.holder for each in client.list_snapshots("items")],
            table.group("readers").members,
        )

    other = scanner.sync.connect(server.endpoint)
    scan = other.table("items").new_scan()
    with ExitStack() as blocks:
        lease = blocks.enter_context(other.acquire_lease(LeaseTarget("items", state=LeaseState.LOG)))
        pages = scan.with_mode("session").with_page_bytes(1000).with_page_depth(0)
        next(blocks.enter_context(pages.execute()))
        changes = blocks.enter_context(scan.with_source("log").in_group("readers").execute())
        next(changes)
        assert held() == ([lease.id], True, (changes.member,))
        other.close()
        assert held() == ([], False, ())


def test_reader_dropped_early_frees_the_server(server: RunningServer, table: scanner.sync.Table) -> None:
    """Dropping an unfinished reader of batches ends the scan at the server."""
    batches = table.new_scan().with_credit(300_000).to_batches()
    next(batches)
    del batches
    wait_released(server)
    for _ in table.new_scan().with_credit(300_000).to_batches():
        break
    wait_released(server)


def test_reader_in_a_cycle_frees_the_server(server: RunningServer, table: scanner.sync.Table) -> None:
    """An unfinished reader may be found by the garbage collector, which runs in any thread: also in the client's."""

    def collect(_: int) -> None:
        gc.collect()

    batches = table.new_scan().with_credit(300_000).to_batches()
    next(batches)
    cycle: list[object] = [batches]
    cycle.append(cycle)
    gc.disable()
    try:
        del batches, cycle
        table.write(rows(1), collect)
    finally:
        gc.enable()
    server.wait_until(lambda it: it.statistics().push_scans_open == 0)
    assert table.new_scan().limit(5).to_arrow().num_rows == 5


def test_interrupt_between_attempts_leaves_the_scan(tmp_path: Path) -> None:
    """Ctrl-C while a scan waits for a server that is gone: the delay ends at once, and so does the client."""
    patient = Patient()
    with running_server(tmp_path) as gone:
        client = scanner.sync.connect(gone.endpoint, rng=patient)
        scan = client.create_table("t", SCHEMA, ["k"]).new_scan()
    with client, pytest.raises(KeyboardInterrupt), interrupted_after(patient.drawn.wait):
        scan.to_arrow()
    assert all(gone.endpoint not in name for name in threads())


def test_holds_no_more_than_the_credit(table: scanner.sync.Table) -> None:
    """While the caller is busy, at most the credit, and a row per bucket, waits in the client."""
    with table.new_scan().with_credit(300_000).execute() as batches:
        assert sum(batch.num_rows for batch in batches) == 20_000
    assert batches.statistics().held_bytes_max <= 300_000 + 3 * 2_000


def test_many_threads_share_a_client(table: scanner.sync.Table) -> None:
    """Threads may scan at once over one connection."""
    counts: list[int] = []

    def count() -> None:
        counts.append(table.new_scan().to_arrow().num_rows)

    workers = [threading.Thread(target=count) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert counts == [20_000] * 4


@pytest.mark.parametrize("receiver", ["waiting thread", "another thread"])
def test_interrupt_cancels_the_call_and_frees_the_server(
    server: RunningServer, table: scanner.sync.Table, monkeypatch: pytest.MonkeyPatch, receiver: str
) -> None:
    """Ctrl-C while waiting leaves the scan in good order, and the client goes on; whichever thread the system tells."""
    held = threading.Event()

    def never(*_: object) -> None:
        held.set()
        raise trio.WouldBlock

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    def press() -> None:
        held.wait(30)
        signal.pthread_kill(main if receiver == "waiting thread" else threading.get_ident(), signal.SIGINT)

    main = threading.get_ident()
    previous = signal.signal(signal.SIGINT, interrupt)
    presser = threading.Thread(target=press)
    try:
        with pytest.raises(KeyboardInterrupt):
            with table.new_scan().with_credit(300_000).execute() as batches:
                next(batches)
                monkeypatch.setattr(scanner.Batches, "next_nowait", never)
                presser.start()
                next(batches)
    finally:
        signal.signal(signal.SIGINT, previous)
        presser.join(30)
        monkeypatch.undo()
    wait_released(server)
    assert table.new_scan().limit(5).to_arrow().num_rows == 5


def interrupt_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an interrupt come in the very moment at which the next call has its result."""
    wait = _Call.wait

    def wait_and_interrupt(call: _Call) -> object:
        monkeypatch.setattr(_Call, "wait", wait)
        wait(call)
        raise KeyboardInterrupt

    monkeypatch.setattr(_Call, "wait", wait_and_interrupt)


def test_interrupt_loses_no_batch(table: scanner.sync.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that is there when Ctrl-C comes is the next one for who goes on, and not gone."""
    with table.new_scan().with_credit(300_000).execute() as batches:
        count = next(batches).num_rows
        interrupt_once(monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        count += sum(batch.num_rows for batch in batches)
    assert count == 20_000


def test_interrupt_after_the_opening_frees_the_server(
    server: RunningServer, table: scanner.sync.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scan that is open when Ctrl-C comes, and that nobody was given, is ended."""
    scan = table.new_scan().with_credit(300_000)
    interrupt_once(monkeypatch)
    with pytest.raises(KeyboardInterrupt), scan.execute():
        pass
    count = table.new_scan().limit(5).to_arrow().num_rows
    server.wait_until(lambda it: it.statistics().push_scans_open == 0)
    assert count == 5


def test_callback_cannot_call_its_own_client(client: scanner.sync.Client, table: scanner.sync.Table) -> None:
    """A callback runs in the client's thread; calling the client from it would wait for ever, so it is refused."""

    def call(_: int) -> None:
        client.tables()

    with pytest.raises(RuntimeError, match="callback"):
        table.write(rows(10), call)


def test_writer_abandoned_by_an_exception(table: scanner.sync.Table) -> None:
    """An exception of the block leaves the writer as it is."""
    with pytest.raises(KeyError):
        with table.open_writer() as writer:
            writer.write(rows(10))
            raise KeyError
    with table.open_writer() as writer:
        writer.write(rows(10).to_batches()[0])
    assert writer.result.rows == 10


def test_a_writer_that_outlives_its_client(server: RunningServer, table: scanner.sync.Table) -> None:
    """The end of its block says that not everything is known to be durable, and never that it is."""
    other = scanner.sync.connect(server.endpoint)
    with pytest.raises(trio.ClosedResourceError, match="may not be there"):
        with other.table("items").open_writer() as writer:
            writer.write(rows(10))
            other.close()
    assert writer.result.rows == 0
    with scanner.sync.connect(server.endpoint) as closed:
        load = closed.table("items").transaction("load", 1)
        with pytest.raises(trio.ClosedResourceError, match="may not be there"):
            with load.part(0, 0) as part:
                part.upsert(rows(10))
                closed.close()
    assert [each.stages for each in table.transactions()] in ([], [0])


def test_deletes_and_offsets(client: scanner.sync.Client) -> None:
    """The blocking twin deletes and tells offsets like its sibling."""
    table = client.create_table("deleted", SCHEMA, ["k"], buckets=3)
    table.write(rows(10))
    assert table.delete([(1,), (2,)]).rows == 2
    assert sum(each.end_offset for each in table.offsets()) == 10 + 2
