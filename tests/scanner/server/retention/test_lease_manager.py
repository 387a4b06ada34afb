"""What leases keep is held when it counts: at the start, while the disk refuses, and when there is no room."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from scanner.errors import (
    ArgumentInvalid,
    LeaseNotFound,
    OffsetOutOfRange,
    ScannerError,
    SlowConsumer,
    SnapshotLost,
    StoreFailed,
    TooManyScans,
)
from scanner.server.config import ScannerConfig
from scanner.server.retention.lease_registry import LEASES_DOCUMENT, LeasedState, LeaseKey, LeaseRegistry
from scanner.server.retention.lease_targets import Choice, FoundStates, HeldState
from scanner.storage.memory.store import MemoryStore
from scanner.storage.rocksdb.store import RocksStore
from scanner.wire.queries import ScanQuery
from tests.support.maintenance import WALL_S, churn, lease_of, open_maintenance, refuse, target
from tests.support.scans import description

if TYPE_CHECKING:
    from scanner.storage.interface import Store

pytestmark = pytest.mark.rocks

BUCKETS = 3
REPORT = lease_of("anna", "report")


@pytest.fixture(params=["memory", "rocks"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store with table `items` of three buckets."""
    store: MemoryStore | RocksStore
    store = MemoryStore() if request.param == "memory" else RocksStore.open(tmp_path / "data")
    store.create_table(description(buckets=BUCKETS))
    yield store
    store.close()


async def test_a_full_lease_table_is_told(store: Store) -> None:
    """One lease or bucket more than allowed is refused, and nothing stays held; what is there can still be moved."""
    async with open_maintenance(store, ScannerConfig(leases_max=1, lease_buckets_max=2)) as kept:
        for index in range(2):
            await kept.acquire("one", target(Choice.LOG, index))
        for lease_id, buckets in (("two", (0,)), ("one", (0, 2))):
            with pytest.raises(TooManyScans):
                await kept.acquire(lease_id, target(Choice.LOG, *buckets))
        await kept.acquire("one", target(Choice.NEW, 0, 1))
        assert [len((await kept.bucket(index)).pins) for index in range(BUCKETS)] == [1, 1, 0]


async def test_a_request_that_names_too_many_buckets_is_refused(store: Store) -> None:
    """However often it names the same one, or tables as a whole; nothing stays held, and no checkpoint was made."""
    async with open_maintenance(store, ScannerConfig(lease_buckets_max=5)) as kept:
        for choice in (Choice.LOG, Choice.NEWEST, Choice.NEW):
            for targets in ([target(choice, *[0] * 6)], [target(choice)] * 2):
                with pytest.raises(ArgumentInvalid, match="at most 5 buckets; lease them in parts"):
                    await kept.acquire("one", *targets)
        assert [list(await kept.checkpoints(index)) for index in range(BUCKETS)] == [[]] * BUCKETS
        assert [len((await kept.bucket(index)).pins) for index in range(BUCKETS)] == [0, 0, 0]
        await kept.acquire("one", target(Choice.LOG, *[0] * 5))


@pytest.mark.parametrize(("choice", "looks"), [(Choice.LOG, 1), (Choice.NEWEST, 2)])
async def test_others_have_a_turn_for_each_bucket_that_is_leased(
    store: Store, choice: Choice, looks: int
) -> None:
    """A request that names many does not hold them up, nor one of which each is first asked for its checkpoint."""
    turns = 0

    async def run() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with open_maintenance(store, ScannerConfig()) as kept, trio.open_nursery() as nursery:
        await kept.acquire("one", target(choice, 0))
        nursery.start_soon(run)
        await kept.acquire("one", target(choice, *[0] * 500))
        nursery.cancel_scope.cancel()
    assert turns >= looks * 500


async def test_one_principal_leaves_room_for_others(store: Store) -> None:
    """Leases and leased buckets are capped by principal, too: who leases without end is refused, others are not."""
    config = ScannerConfig(leases_per_principal_max=2, lease_buckets_per_principal_max=4)
    async with open_maintenance(store, config) as kept:
        await kept.acquire("one", target(Choice.LOG, 0, 1))
        await kept.acquire("two", target(Choice.LOG, 0))
        with pytest.raises(TooManyScans, match=r"3 leases of anna .* 2 are allowed") as caught:
            await kept.acquire("three", target(Choice.LOG, 2))
        assert caught.value.retriable
        with pytest.raises(TooManyScans, match=r"5 leased buckets of anna .* 4 are allowed"):
            await kept.acquire("two", target(Choice.LOG, 1, 2))
        await kept.acquire("three", target(Choice.LOG, 0, 1, 2), principal="bert")
        assert [len((await kept.bucket(index)).pins) for index in range(BUCKETS)] == [3, 2, 1]
        await kept.maintenance.leases.drop(lease_of("anna", "one"))
        await kept.acquire("three", target(Choice.LOG, 0, 1, 2))


async def test_nothing_is_let_go_before_that_is_written_down(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the document promises is held, also when the call that would end it failed; a sweep tries again."""
    async with open_maintenance(store) as kept:
        await kept.write(range(10))
        lease, _ = await kept.acquire("report", target(Choice.NEWEST, 0))
        assert lease is not None
        (state,) = lease.sorted_states()
        await churn(kept)
        bucket = await kept.bucket()
        with monkeypatch.context() as patch:
            patch.setattr(store, "write_document", refuse)
            with pytest.raises(StoreFailed):
                await kept.maintenance.leases.drop(REPORT)
            assert len(bucket.pins) == 1
            await churn(kept)
            assert state.checkpoint_id in await kept.ids()
        await kept.maintenance.leases.sweep()
        assert len(bucket.pins) == 0
        assert state.checkpoint_id not in await kept.ids()


async def test_a_renewal_looks_at_no_states(store: Store) -> None:
    """Of other leases, which may keep many: what they keep is as it was."""

    class Registry(LeaseRegistry):
        looks = 0

        def states(self) -> Iterator[tuple[LeaseKey, LeasedState]]:
            Registry.looks += 1
            return super().states()

    async with open_maintenance(store) as kept:
        leases = kept.maintenance.leases
        leases._registry = Registry()
        await kept.acquire("report", target(Choice.LOG, 0, 1, 2))
        assert Registry.looks
        Registry.looks = 0
        renewed = await leases.renew(REPORT, 10**6)
        assert not Registry.looks
        document = store.read_document(LEASES_DOCUMENT)
        (written,) = LeaseRegistry.from_document(document, 0).frozen()
        assert (written.ttl_ms, written.states) == (10**6, renewed.states)
        await leases.drop(REPORT)
        assert [len((await kept.bucket(index)).pins) for index in range(BUCKETS)] == [0, 0, 0]


@pytest.mark.parametrize("how", ["drop", "release"])
async def test_a_lease_that_is_gone_is_no_answer_before_that_is_written_down(
    store: Store, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A call that is made again, since the disk refused, is answered when no restart brings the lease back."""
    async with open_maintenance(store) as kept:
        leases = kept.maintenance.leases

        async def end() -> object:
            return await (leases.drop(REPORT) if how == "drop" else leases.release(REPORT, [("items", ())]))

        await kept.write(range(10))
        await kept.acquire("report", target(Choice.LOG, 0))
        with monkeypatch.context() as patch:
            patch.setattr(store, "write_document", refuse)
            for _ in range(2):
                with pytest.raises(StoreFailed):
                    await end()
        assert not await end()
        assert not LeaseRegistry.from_document(store.read_document(LEASES_DOCUMENT), 0).frozen()


async def test_if_absent_changes_nothing_of_a_lease(store: Store) -> None:
    """The answer is the lease as it was, whatever is asked for; another principal's of that id is none."""
    async with open_maintenance(store) as kept:
        await kept.write(range(10))
        first, _ = await kept.acquire("report", target(Choice.LOG, 0), if_absent=True)
        await kept.write(range(20))
        for wanted in (
            target(Choice.LOG, 0),
            target(Choice.LOG, 1),
            target(Choice.NEW, 7),
            target(table="none"),
        ):
            assert await kept.acquire("report", wanted, if_absent=True) == (first, [])
        other, _ = await kept.acquire("report", target(Choice.LOG, 0), if_absent=True, principal="bert")
        assert other is not None
        assert first is not None
        assert other.sorted_states()[0].log_offset > first.sorted_states()[0].log_offset


async def test_one_of_many_at_once_makes_the_lease(store: Store) -> None:
    """All are answered with its state, though each found another one, and nothing else stays held."""
    async with open_maintenance(store) as kept:
        found: list[object] = []
        await kept.write(range(10))

        async def acquire(number: int) -> None:
            await kept.write([number])
            found.append(await kept.acquire("report", target(Choice.NEW, 0, 1), if_absent=True))

        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(acquire, number)
        assert len(found) == 5
        assert all(each == (kept.maintenance.leases.get(REPORT), []) for each in found)
        assert [len((await kept.bucket(index)).pins) for index in range(BUCKETS)] == [1, 1, 0]


async def test_if_absent_answers_when_the_lease_is_written_down(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease that is not on the disk yet is no answer: it fails like the call that made it."""
    async with open_maintenance(store) as kept:
        with monkeypatch.context() as patch:
            patch.setattr(store, "write_document", refuse)
            for _ in range(2):
                with pytest.raises(StoreFailed):
                    await kept.acquire("report", target(Choice.LOG, 0), if_absent=True)
        lease, _ = await kept.acquire("report", target(Choice.LOG, 1), if_absent=True)
        assert lease is not None
        assert b"report" in (store.read_document(LEASES_DOCUMENT) or b"")


async def test_if_absent_finds_no_lease_of_a_dropped_table(store: Store) -> None:
    """It ended with its table; the table of that name is another one, and leased anew."""
    async with open_maintenance(store) as kept:
        await kept.write(range(10))
        await kept.acquire("report", target(Choice.LOG, 0))
        await kept.catalog.drop("items")
        store.create_table(description(buckets=BUCKETS))
        lease, _ = await kept.acquire("report", target(Choice.LOG, 0), if_absent=True)
        assert lease is not None
        assert [state.log_offset for state in lease.sorted_states()] == [0]


async def test_an_id_that_was_made_up_for_a_lease_names_no_other(store: Store) -> None:
    """Found while it lives, refused when it has ended, also by the next server, and for a table of the name."""
    async with open_maintenance(store) as kept:
        await kept.write(range(10))
        first, _ = await kept.acquire("report", target(Choice.LOG, 0), if_absent=True, id_age_ms=50)
        again = await kept.acquire("report", target(Choice.LOG, 0), if_absent=True, id_age_ms=60)
        assert again == (first, [])
        await kept.acquire("other", target(Choice.LOG, 0), if_absent=True, id_age_ms=0)
        await kept.maintenance.leases.drop(REPORT)
        with pytest.raises(LeaseNotFound, match="lease 'report' has ended"):
            await kept.acquire("report", target(Choice.LOG, 0), if_absent=True, id_age_ms=70)
    async with open_maintenance(store) as kept:
        with pytest.raises(LeaseNotFound, match="lease 'report' has ended"):
            await kept.acquire("report", target(Choice.LOG, 0), if_absent=True, id_age_ms=80)
        await kept.catalog.drop("items")
        store.create_table(description(buckets=BUCKETS))
        with pytest.raises(LeaseNotFound, match="lease 'other' has ended"):
            await kept.acquire("other", target(Choice.LOG, 0), if_absent=True, id_age_ms=80)
        with pytest.raises(LeaseNotFound, match="lease 'old' may have ended"):
            await kept.acquire("old", target(Choice.LOG, 0), id_age_ms=10**15)
        assert await kept.acquire("report", target(Choice.LOG, 0), if_absent=True) != (None, [])
        assert len((await kept.bucket()).pins) == 1


async def test_a_lease_that_expired_between_starts_is_not_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused by a server that started late, it is refused by the next one, too, whose clock was set back."""
    async with open_maintenance(store) as kept:
        await kept.acquire("report", target(Choice.LOG, 0))
    with monkeypatch.context() as patch:  # Starts all the same; a sweep writes it down, or the next start.
        patch.setattr(store, "write_document", refuse)
        async with open_maintenance(store, wall_s=WALL_S + 10**8) as kept:
            assert kept.maintenance.leases.get(REPORT) is None
    for wall_s in (WALL_S + 10**8, WALL_S):
        async with open_maintenance(store, wall_s=wall_s) as kept:
            with pytest.raises(LeaseNotFound):
                await kept.maintenance.leases.renew(REPORT)


async def test_a_lease_of_a_dropped_table_cannot_be_renewed(store: Store) -> None:
    """It has ended with its table, whether or not somebody has swept; a table of the same name is another one."""
    async with open_maintenance(store) as kept:
        await kept.write(range(10))
        await kept.acquire("report", target(Choice.NEWEST, 0))
        await kept.catalog.drop("items")
        store.create_table(description())
        with pytest.raises(LeaseNotFound, match="its table was dropped"):
            await kept.maintenance.leases.renew(REPORT)


async def test_a_lease_of_a_dropped_table_is_neither_listed_nor_stored(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the drop on, without a sweep: also of a lease that an earlier server made; a full disk fails no drop."""
    async with open_maintenance(store) as kept:
        await kept.write(range(10))
        await kept.acquire("report", target(Choice.LOG, 0))
    async with open_maintenance(store) as kept:
        with monkeypatch.context() as patch:
            patch.setattr(store, "write_document", refuse)
            await kept.catalog.drop("items")
        assert kept.maintenance.leases.leases() == []
        store.create_table(description(buckets=BUCKETS))
        await kept.write(range(10))
        await kept.acquire("other", target(Choice.LOG, 0))
        await kept.catalog.drop("items")
        assert kept.maintenance.leases.leases() == []
        registry = LeaseRegistry.from_document(store.read_document(LEASES_DOCUMENT), now_ms=0)
        assert len(registry) == 0


async def test_what_cannot_be_held_at_the_start_is_not_dropped(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A bucket that cannot be opened when the leases are read keeps its leased checkpoint; a sweep holds it."""
    async with open_maintenance(store) as kept:
        await kept.write(range(10))
        await kept.acquire("report", target(Choice.NEWEST, 0))
    with monkeypatch.context() as patch:
        patch.setattr(store, "bucket", refuse)
        async with open_maintenance(store) as kept:
            patch.undo()
            assert "cannot be held for lease report now" in caplog.text
            await churn(kept)
            assert await kept.snapshot_ids("report") == list(range(10))
            assert len((await kept.bucket()).pins) == 0
            await kept.maintenance.leases.sweep()
            assert len((await kept.bucket()).pins) == 1


async def test_what_cannot_be_held_at_the_start_is_not_cut(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its changelog is not cut either, also if that is asked for before the next sweep."""
    async with open_maintenance(store) as kept:
        await kept.write(range(5))
        await kept.acquire("report", target(Choice.LOG, 0))
        await kept.write(range(5, 10))
    with monkeypatch.context() as patch:
        patch.setattr(store, "bucket", refuse)
        async with open_maintenance(store) as kept:
            patch.undo()
            bucket = await kept.bucket()
            patch.setattr(store, "checkpoints", refuse)
            with pytest.raises(StoreFailed, match=r"a lease keeps the changelog of items\[0\]"):
                await kept.maintenance.retention.cut("items", 0, bucket, 10)
            patch.undo()
            cut = await kept.maintenance.retention.cut("items", 0, bucket, 10)
            assert (cut.start, cut.pinned) == (5, 5)
            assert [pin.what for pin in cut.pins] == ["lease"]


@pytest.mark.parametrize("dropped", [False, True])
async def test_what_cannot_be_held_while_its_table_is_dropped(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, dropped: bool
) -> None:
    """A table whose drop fails is served again, and its lease keeps what it kept; else the lease ends with it."""
    async with open_maintenance(store) as kept:
        await kept.write(range(10))
        lease, _ = await kept.acquire("report", target(Choice.NEWEST, 0))
    with monkeypatch.context() as patch:
        patch.setattr(store, "bucket", refuse)
        async with open_maintenance(store) as kept, trio.open_nursery() as nursery:
            patch.undo()
            caplog.clear()
            opened = await kept.opener.open(ScanQuery(table="items"), "anna")
            ended = trio.Event()

            async def drop() -> None:
                with nullcontext() if dropped else pytest.raises(StoreFailed):
                    await kept.catalog.drop("items")
                ended.set()

            if not dropped:
                patch.setattr(store, "drop_table", refuse)
            nursery.start_soon(drop)
            await trio.testing.wait_all_tasks_blocked()  # Until the scan is closed, it goes no further.
            await kept.maintenance.leases.sweep()
            opened.scan.close()
            await ended.wait()
            await kept.maintenance.leases.sweep()
            found = kept.maintenance.leases.get(REPORT)
            assert (found and found.states) == (None if dropped else lease and lease.states)
            assert len(opened.bucket.pins) == (not dropped)
            assert "lost" not in caplog.text


@pytest.mark.parametrize("acquired_again", [False, True])
async def test_a_lease_that_changes_while_it_is_held_again(
    monkeypatch: pytest.MonkeyPatch, acquired_again: bool
) -> None:
    """Dropped, or acquired anew, while a sweep holds what it keeps: nothing is held without it, and nothing twice."""
    store = MemoryStore()
    store.create_table(description())

    async with open_maintenance(store) as kept:
        await kept.write(range(10))
        await kept.acquire("report", target(Choice.NEW))
    with monkeypatch.context() as patch:
        patch.setattr(store, "bucket", refuse)
        async with open_maintenance(store) as kept, trio.open_nursery() as nursery:
            patch.undo()
            leases, gate = kept.maintenance.leases, trio.Event()
            hold_again = leases._finder.hold_again

            async def hold_slowly(*arguments: Any) -> HeldState:
                held = await hold_again(*arguments)
                await gate.wait()
                return held

            monkeypatch.setattr(leases._finder, "hold_again", hold_slowly)
            nursery.start_soon(leases.sweep)
            await trio.testing.wait_all_tasks_blocked()
            if acquired_again:
                await kept.acquire("report", target(Choice.CHECKPOINT, 0, number=0))
            else:
                await leases.drop(REPORT)
            gate.set()
            await trio.testing.wait_all_tasks_blocked()
            assert len((await kept.bucket()).pins) == acquired_again
            await leases.drop(REPORT)
            await churn(kept)
            assert len((await kept.bucket()).pins) == 0
            assert 0 not in await kept.ids()


@pytest.mark.parametrize("moved", [False, True])
async def test_a_lease_outlives_a_log_that_it_does_not_keep(
    monkeypatch: pytest.MonkeyPatch, moved: bool
) -> None:
    """Retention takes the log of a state that is to be leased, or was until now: the lease stays as it is."""
    store = MemoryStore()
    store.create_table(description())
    slow = SlowConsumer("too much for the test")
    async with open_maintenance(store) as kept:
        leases = kept.maintenance.leases
        await kept.acquire("report", target(Choice.LOG))
        await kept.write(range(10))
        pins = (await kept.bucket()).pins
        if moved:  # Until that is written down, the state before is held, too.
            write = store.write_document

            def end_and_write(name: str, content: bytes) -> None:
                (before,) = (pin for pin in pins if pin.offset == 0)
                before.end(slow)
                write(name, content)

            with monkeypatch.context() as patch:
                patch.setattr(store, "write_document", end_and_write)
                await kept.acquire("report", target(Choice.LOG))
        else:
            hold_all = leases._finder.hold_all

            async def hold_and_end(*arguments: Any) -> FoundStates:
                found = await hold_all(*arguments)
                found.held[0].pin.end(slow)
                return found

            monkeypatch.setattr(leases._finder, "hold_all", hold_and_end)
            _, (refused,) = await kept.acquire("report", target(Choice.OFFSET, 0, number=5))
            assert isinstance(refused.error, SlowConsumer)
        lease = await leases.renew(REPORT)
        offset = 10 if moved else 0
        assert [state.log_offset for state in lease.states.values()] == [offset]
        assert [pin.offset for pin in pins] == [offset]


@pytest.mark.parametrize("error", [SnapshotLost, OffsetOutOfRange])
async def test_a_lease_that_is_acquired_while_its_state_before_is_found_lost(
    monkeypatch: pytest.MonkeyPatch, error: type[ScannerError]
) -> None:
    """What a sweep finds lost is the state before: the new one stays leased."""
    store = MemoryStore()
    store.create_table(description())

    async with open_maintenance(store) as kept:
        await kept.acquire("report", target(Choice.LOG))
        await kept.write(range(10))
    with monkeypatch.context() as patch:
        patch.setattr(store, "bucket", refuse)
        async with open_maintenance(store) as kept:
            patch.undo()

            async def lose(*_: object) -> HeldState:
                await kept.acquire("report", target(Choice.LOG))
                raise error("gone", oldest_offset=0)

            leases = kept.maintenance.leases
            monkeypatch.setattr(leases._finder, "hold_again", lose)
            await leases.sweep()
            lease = await leases.renew(REPORT)
            assert [state.log_offset for state in lease.states.values()] == [10]


async def test_a_sweep_looks_for_nothing_that_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would open every leased bucket again and again, idle ones too."""
    store = MemoryStore()
    store.create_table(description())

    async def look(*_: object) -> HeldState:
        raise AssertionError("it is held")

    async with open_maintenance(store) as kept:
        await kept.acquire("report", target(Choice.NEW))
        monkeypatch.setattr(kept.maintenance.leases._finder, "hold_again", look)
        await kept.maintenance.leases.sweep()


async def test_a_state_that_is_gone_at_the_start_leaves_its_lease(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """A checkpoint that somebody deleted is told to the log; the other buckets stay leased."""
    async with open_maintenance(store) as kept:
        lease, _ = await kept.acquire("report", target(Choice.NEWEST, 0, 1))
        assert lease is not None
        lost = lease.sorted_states()[0]
    assert lost.checkpoint_id is not None
    store.drop_checkpoint("items", 0, lost.checkpoint_id)
    async with open_maintenance(store) as kept:
        assert "lease report lost items[0]" in caplog.text
        left = kept.maintenance.leases.get(REPORT)
        assert left is not None
        assert [state.bucket for state in left.sorted_states()] == [1]
        with pytest.raises(LeaseNotFound, match="keeps nothing of bucket 0"):
            await kept.snapshot_ids("report")


async def test_a_lease_that_goes_while_another_is_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """The document under way still promises it, so it is held until the next one is written."""
    store = MemoryStore()
    store.create_table(description())
    async with open_maintenance(store) as kept, trio.open_nursery() as nursery:
        await kept.write(range(10))
        await kept.acquire("first", target(Choice.LOG))
        leases, pins = kept.maintenance.leases, (await kept.bucket()).pins
        gate, held_at_writes = trio.Event(), []

        async def run_blocking(function: Callable[[], object]) -> object:
            await gate.wait()
            held_at_writes.append(len(pins))
            return function()

        monkeypatch.setattr(leases, "_run_blocking", run_blocking)
        nursery.start_soon(kept.acquire, "second", target(Choice.LOG))
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(leases.drop, lease_of("anna", "first"))
        await trio.testing.wait_all_tasks_blocked()
        gate.set()
        await trio.testing.wait_all_tasks_blocked()
        assert (held_at_writes, len(pins)) == ([2, 2], 1)


async def test_a_checkpoint_whose_log_is_gone_is_not_leased() -> None:
    """A lease keeps state and log: the newest checkpoint without its log is as good as none, and no other will do."""
    store = MemoryStore(clock=lambda: 1)
    store.create_table(description())
    async with open_maintenance(store, ScannerConfig(log_retention_s=0.001)) as kept:
        await kept.write(range(10))
        old = await (await kept.checkpoints()).create()
        await kept.write(range(10, 20))
        await kept.maintenance.retention.sweep()
        for choice, error in ((Choice.NEWEST_EXISTING, SnapshotLost), (Choice.CHECKPOINT, OffsetOutOfRange)):
            lease, missing = await kept.acquire("report", target(choice, 0, number=old.checkpoint_id))
            assert (lease, [type(each.error) for each in missing]) == (None, [error])
        lease, missing = await kept.acquire("report", target(Choice.NEWEST))
        assert (lease is not None, missing) == (True, [])
        assert await kept.snapshot_ids("report") == list(range(20))


async def test_a_lease_of_another_offset_than_its_checkpoint_is_not_kept(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """Leases and checkpoints of different copies of a data directory: the lease ends, and shows no other state."""
    async with open_maintenance(store) as kept:
        await kept.write(range(5))
        await kept.acquire("report", target(Choice.NEW, 0))
    content = store.read_document(LEASES_DOCUMENT)
    assert content is not None
    store.write_document(LEASES_DOCUMENT, content.replace(b'"log_offset": 5', b'"log_offset": 4'))
    async with open_maintenance(store) as kept:
        assert kept.maintenance.leases.get(REPORT) is None
        assert "is as of offset 5, and the lease of 4" in caplog.text
        assert [len((await kept.bucket(index)).pins) for index in range(BUCKETS)] == [0, 0, 0]


@pytest.mark.parametrize("choice", [Choice.LOG, Choice.NEW])
async def test_a_lease_of_another_history_is_not_kept(
    store: Store, choice: Choice, caplog: pytest.LogCaptureFixture
) -> None:
    """A bucket was put back from a copy that was written to: at the offset of the lease it has other rows."""
    async with open_maintenance(store) as kept:
        await kept.write(range(5))
        await kept.acquire("report", target(choice, 0))
        history = (await kept.bucket(0)).storage.lineage.newest.hex().encode()
    content = store.read_document(LEASES_DOCUMENT)
    assert content is not None
    assert history in content
    store.write_document(LEASES_DOCUMENT, content.replace(history, b"ab" * 16))
    async with open_maintenance(store) as kept:
        assert kept.maintenance.leases.get(REPORT) is None
        assert "what the lease keeps is as of 5 of another history" in caplog.text
        assert len((await kept.bucket(0)).pins) == 0
