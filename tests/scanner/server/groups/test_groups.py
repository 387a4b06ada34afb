"""Reader groups, from the wire to the client: shared, moved, killed, restarted; broken coordinators are found out.

In memory and on a virtual clock; the records of the readers are checked by `bench.simulation.group_validators`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import trio
import trio.testing

from bench.simulation.network import Fault
from scanner.client.groups import GroupBucket
from scanner.errors import GroupEpochStale, SnapshotLost, TableNotFound
from scanner.proto.weir.v1 import groups_pb2 as pb
from scanner.proto.weir.v1.scanner_pb2 import SCAN_SOURCE_LOG
from scanner.storage.interface import GroupState
from scanner.wire import methods
from tests.support.broken_groups import accept_stale_epochs, end_no_scan
from tests.support.groups import CONFIG, GROUP, commit, group_world, join_request, pass_time, refusal, until
from tests.support.scans import open_scan, sample

if TYPE_CHECKING:
    import scanner


async def owners(table: scanner.Table) -> list[str | None]:
    """Who has each bucket."""
    return [each.member for each in (await table.group(GROUP)).buckets]


async def wait_owners(table: scanner.Table, *members: str) -> None:
    """Wait until exactly these have all buckets, and each of them some."""

    async def there() -> bool:
        return set(await owners(table)) == set(members)

    await until(there)


@pytest.mark.parametrize(("position", "lag"), [(None, 60), (10, 60), (40, 60), (70, 30), (100, 0)])
def test_what_is_cut_is_no_lag(position: int | None, lag: int) -> None:
    """Of what is behind a position counts what there is to read."""
    bucket = GroupBucket(bucket=0, member=None, epoch=0, position=position, log_start=40, log_end=100)
    assert bucket.lag == lag


async def test_readers_share_what_there_is_and_nothing_is_lost(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """One, then three, then two: every change once for each epoch, each bucket with one reader, all of it stored."""
    async with group_world(buckets=5) as world, world.client() as client, trio.open_nursery() as readers:
        table = await client.table("items")
        await world.write(table, 30)
        scopes: dict[str, trio.CancelScope] = {}

        async def start(name: str) -> None:
            scopes[name] = trio.CancelScope()

            async def run(*, task_status: trio.TaskStatus[Any]) -> None:
                with scopes[name]:
                    await world.run_reader(name, task_status=task_status)

            await readers.start(run)
            await world.write(table, 30)

        for name in ("a", "b", "c"):
            await start(name)
        await wait_owners(table, "a", "b", "c")
        shares = await owners(table)
        assert sorted(shares.count(name) for name in "abc") == [1, 2, 2]
        await world.write(table, 50)
        scopes["b"].cancel()
        await wait_owners(table, "a", "c")
        await world.write(table, 20)
        await world.wait_read()
        assert world.violations() == []
        assert {each.reader for each in world.history.delivered} == {"a", "b", "c"}
        assert not any(each.accepted is False for each in world.history.stored)
        described = await table.group(GROUP)
        assert described.members == ("a", "c")
        assert [each.lag for each in described.buckets] == [0] * 5
        readers.cancel_scope.cancel()


@pytest.mark.parametrize("streams_max", [1, 2, 4])
async def test_a_reader_of_more_buckets_than_a_connection_may_have_calls(
    autojump_clock: trio.testing.MockClock, streams_max: int
) -> None:
    """It reads all of them, over further connections, and its commits wait for no tail that never ends."""
    async with group_world(buckets=7, streams_max=streams_max) as world, world.client() as client:
        table = await client.table("items")
        async with trio.open_nursery() as readers:
            await readers.start(world.run_reader, "a")
            for _ in range(3):
                await world.write(table, 50)
                await world.wait_read()
            await readers.start(world.run_reader, "b")
            await world.write(table, 50)
            await world.wait_read()
            assert world.violations() == []
            readers.cancel_scope.cancel()
        assert [each.lag for each in (await table.group(GROUP)).buckets] == [0] * 7


async def test_a_planned_move_repeats_nothing(autojump_clock: trio.testing.MockClock) -> None:
    """The old reader commits what it was handed, then gives the bucket back: the next one begins behind it."""
    async with group_world() as world, world.client() as client, trio.open_nursery() as readers:
        table = await client.table("items")
        await readers.start(world.run_reader, "a")
        await world.write(table, 40)
        await world.wait_read()
        await readers.start(world.run_reader, "b")
        await world.write(table, 40)
        await world.wait_read()
        given = [each for part in world.history.delivered for each in range(part.start, part.end)]
        assert len(given) == sum(world.log_ends().values())
        assert world.violations() == []
        readers.cancel_scope.cancel()


async def test_a_reader_keeps_its_columns_in_buckets_that_come_to_it_later(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A column is added, and a bucket moves: what is read of it has the columns that the reader began with."""
    async with group_world() as world, world.client() as client, trio.open_nursery() as readers:
        table = await client.table("items")
        leaving = trio.CancelScope()

        async def leave_later(*, task_status: trio.TaskStatus[Any]) -> None:
            with leaving:
                await world.run_reader("b", task_status=task_status)

        await readers.start(world.run_reader, "a")
        await readers.start(leave_later)
        await wait_owners(table, "a", "b")
        await world.write(table, 40)
        await world.wait_read()
        await (await client.table("items")).add_column(pa.field("later", pa.int64()))
        leaving.cancel()
        await wait_owners(table, "a")
        moved = await client.table("items")
        rows = sample(range(1_000, 1_040))
        await moved.write(rows.append_column("later", pa.nulls(len(rows), pa.int64())))
        await world.wait_read()
        assert world.violations() == []
        readers.cancel_scope.cancel()


@pytest.mark.parametrize("fault", [Fault.RESET, Fault.CUT, Fault.SILENCE])
async def test_a_reader_whose_connection_dies_is_replaced_and_comes_again(
    autojump_clock: trio.testing.MockClock, fault: Fault
) -> None:
    """At once if that is seen, within the session's time and a tenth if not; then it joins again by itself."""
    async with group_world() as world, world.client() as client, trio.open_nursery() as readers:
        table = await client.table("items")
        await readers.start(world.run_reader, "a")
        await readers.start(world.run_reader, "b")
        await wait_owners(table, "a", "b")
        await world.write(table, 40)
        at = trio.current_time()
        world.connections("b")[-1].strike(fault)
        if fault is Fault.SILENCE:
            await wait_owners(table, "a")
            assert trio.current_time() - at <= CONFIG.group_session_timeout_s * 1.1 + 1
        await world.write(table, 40)
        await wait_owners(table, "a", "b")
        await world.write(table, 40)
        await world.wait_read()
        assert world.violations() == []
        readers.cancel_scope.cancel()


async def test_a_restart_keeps_positions_and_never_repeats_an_epoch(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Killed and started again, twice: readers go on by themselves; also where the clock has gone back to zero."""
    async with group_world() as world, world.client() as client, trio.open_nursery() as readers:
        table = await client.table("items")
        await world.write(table, 40)
        for name in ("a", "b"):
            await readers.start(world.run_reader, name)
        for stands in (False, True):
            await world.wait_read()
            await world.kill()
            world.clock_stands = stands
            await world.start()
            await world.write(table, 40)
            await wait_owners(table, "a", "b")
        await world.write(table, 40)
        await world.wait_read()
        assert world.violations() == []
        readers.cancel_scope.cancel()


async def test_a_drain_waits_for_no_reader_that_goes_on_for_ever(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Memberships end with their scans, at once and together: no bucket moves; the next server has them all."""
    async with group_world() as world, world.client() as client:
        table = await client.table("items")
        for name in ("a", "b"):
            await world.nursery.start(world.run_reader, name)
        await world.write(table, 30)
        await world.wait_read()
        epochs = [each.epoch for each in (await table.group(GROUP)).buckets]
        began_at = trio.current_time()
        assert await world.server.drain(20)
        assert trio.current_time() - began_at < 1
        states = [each.group_states[GROUP] for each in world.disk.tables["items"].buckets]
        assert [each.epoch for each in states] == epochs
        await world.kill()
        await world.start()
        await world.write(table, 30)
        await world.wait_read()
        assert world.violations() == []


async def test_a_drain_lets_a_reader_come_to_its_end(autojump_clock: trio.testing.MockClock) -> None:
    """One with a scan that has an end keeps its membership meanwhile; one that is just joining does not get one."""
    async with group_world(buckets=1) as world, world.client() as client, world.raw() as raw:
        await world.write(await client.table("items"), 30)
        async with raw.open_stream(methods.JOIN) as membership, trio.open_nursery() as nursery:
            await membership.send(join_request("a"))
            assigned: list[pb.AssignedBucket] = []
            while not assigned:
                response = pb.JoinResponse.FromString(bytes(await membership.receive()))
                assigned = list(response.assignment.buckets)
            async with open_scan(
                raw, source=SCAN_SOURCE_LOG, stop_at_end=True, group=GROUP, group_epoch=assigned[0].epoch
            ) as scan:
                await scan.receive()
                services = world.server._services
                changing = services.groups.changing(await services.catalog.table("items"))
                await changing.acquire()
                late: list[str] = []

                async def join_late() -> None:
                    late.append((await refusal(raw, join_request("b"))).reason)

                nursery.start_soon(join_late)
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(world.server.drain, 20)
                await trio.testing.wait_all_tasks_blocked()
                changing.release()
                await scan.demand(1 << 20)
                await scan.receive_all()
            assert scan.rows == 30
            await membership.send_end()
            while await membership.receive() is not None:
                pass
        assert late == ["DRAINING"]


async def test_a_reader_that_gives_nothing_back_is_cut_off(autojump_clock: trio.testing.MockClock) -> None:
    """After the time that it had: its scans have ended, and each position of before is refused."""
    async with group_world() as world:
        await world.run_rudely()
        assert world.violations() == []
        refused = [each for each in world.history.stored if each.reader == "rude"]
        assert len(refused) == 2
        assert not any(each.accepted for each in refused)


@pytest.mark.parametrize(
    ("break_it", "found"),
    [(end_no_scan, "alone"), (accept_stale_epochs, "fenced")],
)
async def test_a_broken_coordinator_is_found_out(
    autojump_clock: trio.testing.MockClock,
    break_it: Callable[[pytest.MonkeyPatch], None],
    found: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that ends no scan, and one that takes every position, by the same run that the right one passes."""
    break_it(monkeypatch)
    async with group_world() as world:
        await world.run_rudely()
        assert found in {name for name, _ in world.violations()}


async def test_a_coordinator_that_forgets_its_epochs_is_found_out(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A restart that hands out the same ones again: two readers have read by one epoch."""
    async with group_world() as world, world.client() as client:
        table = await client.table("items")
        world.clock_stands = True
        await world.write(table, 40)
        for name in ("a", "b"):
            await world.kill()
            for bucket in world.disk.tables["items"].buckets:
                for group, state in bucket.group_states.items():
                    bucket.group_states[group] = state._replace(epoch=0)
            await world.start()
            async with trio.open_nursery() as readers:
                await readers.start(world.run_reader, name)
                await world.write(table, 40)
                await world.wait_read()
                readers.cancel_scope.cancel()
        assert any(
            "was given to ['a', 'b']" in detail for name, detail in world.violations() if name == "owned"
        )


async def test_what_begins_with_the_next_commit_begins_there_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The place is stored when it is first read: a reader that dies before its first commit leaves nothing out."""
    async with group_world() as world, world.client() as client:
        table = await client.table("items")
        await world.write(table, 40)
        scan = table.new_scan().with_source("log").start_at("latest").in_group(GROUP)
        ends = world.log_ends()
        async with scan.execute():
            await until(lambda: world.stored() == ends)
        await world.write(table, 40)
        found: list[int] = []
        async with scan.stop_at("end").execute() as batches:
            async for batch in batches:
                found += batch["id"].to_pylist()
        assert sorted(found) == list(range(40, 80))


async def test_positions_are_stored_by_themselves_where_that_is_asked_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """What was handed out counts as dealt with when the next batch is asked for, or the block ends well; else not."""
    async with group_world() as world, world.client() as client:
        table = await client.table("items")
        await world.write(table, 40)
        scan = table.new_scan().with_source("log").in_group(GROUP, auto_commit=True)
        with pytest.raises(ZeroDivisionError):
            async with scan.execute() as batches:
                await anext(batches)
                raise ZeroDivisionError
        assert set(world.stored().values()) <= {0, None}
        async with scan.stop_at("end").execute() as batches:
            found = [each async for batch in batches for each in batch["id"].to_pylist()]
        assert sorted(found) == list(range(40))
        assert world.stored() == world.log_ends()


async def test_a_reader_that_stops_waits_for_buckets_that_are_on_their_way(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """One that is given out late, since its bucket is written to, is not left out."""
    async with group_world() as world, world.client() as client:
        table = await client.table("items")
        await world.write(table, 40)
        busy = next(
            bucket for _, index, bucket in world.server._services.catalog.open_buckets() if index == 1
        )

        async def write_for_long(*, task_status: trio.TaskStatus[None]) -> None:
            async with busy.between_commits():
                task_status.started()
                await pass_time(3)

        async with trio.open_nursery() as nursery:
            await nursery.start(write_for_long)
            scan = table.new_scan().with_source("log").stop_at("end")
            async with scan.in_group(GROUP).execute() as batches:
                found = [each async for batch in batches for each in batch["id"].to_pylist()]
        assert sorted(found) == list(range(40))


async def test_a_bucket_that_is_given_out_late_keeps_no_other_from_its_reader(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """One whose bucket is written to for long, as by a share of a transaction: readers come and go meanwhile."""
    async with group_world(buckets=3) as world, world.client() as client:
        table = await client.table("items")
        await world.write(table, 30)
        busy = next(
            bucket for _, index, bucket in world.server._services.catalog.open_buckets() if index == 0
        )
        async with trio.open_nursery() as readers:
            first = trio.CancelScope()

            async def leaving(*, task_status: trio.TaskStatus[Any]) -> None:
                with first:
                    await world.run_reader("a", task_status=task_status)

            async def owned_by_b() -> bool:
                return await owners(table) == [None, "b", "b"]

            async with busy.between_commits():
                await readers.start(leaving)
                readers.start_soon(world.run_reader, "b")
                first.cancel()
                with trio.fail_after(60):
                    await until(owned_by_b)
            await wait_owners(table, "b")
            await world.wait_read()
            assert world.violations() == []
            readers.cancel_scope.cancel()


async def test_a_group_that_is_deleted_keeps_no_reader_from_a_group_of_another_table(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """However long that takes, as where a share of a transaction is applied to a bucket."""
    async with group_world(buckets=1) as world, world.client() as client, world.raw() as raw:
        table = await client.table("items")
        await world.write(table, 10)
        async with trio.open_nursery() as readers:
            await readers.start(world.run_reader, "a")
            await world.wait_read()
            readers.cancel_scope.cancel()
        other = await client.create_table("others", table.schema, primary_key=["id"], buckets=1)
        ((_, _, busy),) = world.server._services.catalog.open_buckets()
        async with trio.open_nursery() as nursery:
            async with busy.between_commits():
                nursery.start_soon(table.delete_group, GROUP)
                await trio.testing.wait_all_tasks_blocked()
                with trio.fail_after(60):
                    async with raw.open_stream(methods.JOIN) as membership:
                        await membership.send(join_request("b", table="others"))
                        await membership.receive()
                    assert [each.name for each in await other.groups()] == [GROUP]
        assert await table.groups() == []


async def test_a_reader_that_stops_hands_out_what_a_restart_took_from_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Everything up to the stop has come, and most of it waits; then the membership is lost: it comes anew."""
    async with group_world(buckets=2) as world, world.client() as client:
        table = await client.table("items")
        for _ in range(5):
            await world.write(table, 40)
        scan = table.new_scan().with_source("log").in_group(GROUP).stop_at("end")
        async with scan.execute() as batches:
            found = (await anext(batches))["id"].to_pylist()
            assert await batches.commit() == ()
            await pass_time(1)
            await world.kill()
            await world.start()
            await until(lambda: len(batches.assigned) == 2)
            async for batch in batches:
                found += batch["id"].to_pylist()
                await batches.commit()
        assert sorted(set(found)) == list(range(200))
        assert world.stored() == world.log_ends()


async def test_a_limit_stores_no_more_than_was_handed_out(autojump_clock: trio.testing.MockClock) -> None:
    """A batch that the limit cuts comes again."""
    async with group_world(buckets=1) as world, world.client() as client:
        table = await client.table("items")
        await world.write(table, 10)
        await world.write(table, 10)
        scan = table.new_scan().with_source("log").in_group(GROUP, auto_commit=True)
        async with scan.limit(15).execute() as batches:
            found = [each async for batch in batches for each in batch["id"].to_pylist()]
        assert found == list(range(15))
        assert world.stored() == {0: 10}


async def test_a_position_of_another_history_is_no_beginning(autojump_clock: trio.testing.MockClock) -> None:
    """A restored copy, or lost commits: SNAPSHOT_LOST, and not a place that means something else here."""
    async with group_world(buckets=1) as world, world.client() as client:
        table = await client.table("items")
        await world.write(table, 10)
        (bucket,) = world.disk.tables["items"].buckets
        for state in (GroupState(7, 10, b"x" * 16), GroupState(7, 99, bucket.lineage.history_of(10))):
            await world.kill()
            bucket.group_states[GROUP] = state
            await world.start()
            async with table.new_scan().with_source("log").in_group(GROUP).execute() as batches:
                with pytest.raises(SnapshotLost, match="position of reader group billing"):
                    await anext(batches)


async def test_an_old_epoch_stores_nothing_that_was_written_since(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A reader that read the original on stores in a restored copy what both have, and nothing behind that."""
    async with group_world(buckets=1) as world, world.client() as client:
        table = await client.table("items")
        await world.write(table, 10)
        async with table.new_scan().with_source("log").in_group(GROUP).execute() as batches:
            await until(lambda: bool(batches.assigned))
            epoch = batches.assigned[0]
            assert await batches.commit({0: 0}) == ()
        backup = copy.deepcopy(world.disk.tables["items"].buckets[0])
        await world.write(table, 10)
        await world.kill()
        world.disk.tables["items"].buckets[0] = backup
        for _ in range(2):  # Also where the log was past the reader's place when the server began.
            await world.start()
            await world.write(table, 10)
            async with world.raw() as raw:
                refused = await commit(raw, 0, epoch, 20)
                assert refused is not None
                assert refused.reason == GroupEpochStale.reason
                assert "an earlier server's" in refused.message
                assert "behind 10" in refused.message
                assert world.stored() == {0: 0}
            await world.kill()
        await world.start()
        async with world.raw() as raw:
            assert await commit(raw, 0, epoch, 10) is None
        assert world.stored() == {0: 10}


async def test_a_dropped_table_ends_its_readers(autojump_clock: trio.testing.MockClock) -> None:
    """With TABLE_NOT_FOUND; a table of the same name has no group."""
    async with group_world() as world, world.client() as client:
        table = await client.table("items")
        async with table.new_scan().with_source("log").in_group(GROUP).execute() as batches:
            await until(lambda: bool(batches.assigned))
            await client.drop_table("items")
            with pytest.raises(TableNotFound):
                await anext(batches)
        again = await client.create_table("items", table.schema, ["id"], 2)
        assert await again.groups() == []


async def test_a_reader_that_comes_while_its_group_is_deleted_joins_the_next(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """And shares the buckets with all that come later: two groups of one name would read everything twice."""
    async with group_world(1) as world, world.client() as client:
        table = await client.table("items")
        await world.write(table, 10)
        scan = table.new_scan().with_source("log")
        async with scan.in_group(GROUP, member="a").execute() as batches:
            await anext(batches)
            await batches.commit()
        ((_, _, bucket),) = world.server._services.catalog.open_buckets()
        async with trio.open_nursery() as nursery, AsyncExitStack() as first:
            async with bucket.between_commits():
                nursery.start_soon(table.delete_group, GROUP)
                await pass_time(1)
                one = await first.enter_async_context(scan.in_group(GROUP, member="b").execute())
                await pass_time(1)
            await pass_time(3)
            async with scan.in_group(GROUP, member="c").execute() as other:
                await pass_time(3)
                assert [*one.assigned, *other.assigned] == [0]
            assert [(each.name, each.members) for each in await table.groups()] == [(GROUP, 1)]


async def test_a_group_that_is_deleted_stays_deleted(autojump_clock: trio.testing.MockClock) -> None:
    """What was on its way to the disk is there before, or never: a position, the epoch of a reader that left."""
    async with group_world(1) as world, world.client() as client, world.raw() as raw:
        table = await client.table("items")
        await world.write(table, 10)
        async with table.new_scan().with_source("log").in_group(GROUP, member="a").execute() as batches:
            await until(lambda: bool(batches.assigned))
            epoch = batches.assigned[0]
        ((_, _, bucket),) = world.server._services.catalog.open_buckets()
        async with trio.open_nursery() as nursery:
            async with bucket.between_commits():
                nursery.start_soon(commit, raw, 0, epoch, 10)
                await pass_time(1)
                async with raw.open_stream(methods.JOIN) as joining:
                    await joining.send(join_request("b"))
                    await pass_time(1)
                await pass_time(1)
                nursery.start_soon(table.delete_group, GROUP)
                await pass_time(1)
        assert await table.groups() == []
        assert world.stored() == {0: None}
        async with table.new_scan().with_source("log").in_group(GROUP, member="a").execute() as batches:
            batch = await anext(batches)
            assert batch["_log_offset"].to_pylist() == list(range(10))


async def test_no_epoch_is_repeated_after_a_group_was_deleted(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where who deletes it does not wait for that, and another group is deleted next; the clock stands still."""
    async with group_world(1) as world:
        await world.kill()
        world.clock_stands = True
        await world.start()
        async with world.client() as client:
            table = await client.table("items")

            async def epoch_of(group: str) -> int:
                async with table.new_scan().with_source("log").in_group(group).execute() as batches:
                    await until(lambda: bool(batches.assigned))
                    return batches.assigned[0]

            assert [await epoch_of(group) for group in ("other", GROUP, GROUP)] == [1, 1, 2]
            ((_, _, bucket),) = world.server._services.catalog.open_buckets()
            submit, submitted, patience = bucket.submit, trio.Event(), trio.CancelScope()

            def submit_and_tell(*arguments: Any, **named: Any) -> Any:
                submitted.set()
                return submit(*arguments, **named)

            async def delete_impatiently() -> None:
                with patience:
                    await table.delete_group(GROUP)

            monkeypatch.setattr(bucket, "submit", submit_and_tell)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(delete_impatiently)
                await submitted.wait()
                async with bucket.between_commits():
                    patience.cancel()
                    await pass_time(1)
                    nursery.start_soon(table.delete_group, "other")
                    await pass_time(1)
            assert await table.groups() == []
            assert await epoch_of(GROUP) == 3


async def test_a_reader_of_the_same_name_takes_the_place(autojump_clock: trio.testing.MockClock) -> None:
    """The one that was there is told, and does not come back to fight for it."""
    async with group_world() as world, world.client() as client:
        table = await client.table("items")
        scan = table.new_scan().with_source("log").in_group(GROUP, member="only")
        async with scan.execute() as first:
            await until(lambda: len(first.assigned) == 4)
            async with scan.execute() as second:
                await until(lambda: len(second.assigned) == 4)
                with pytest.raises(GroupEpochStale, match="another reader has joined"):
                    await anext(first)
                assert min(second.assigned.values()) > 0


async def test_a_reader_may_deal_with_a_batch_for_longer_than_it_is_kept(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Retention passes what was handed out, and what waits: the position is stored, and the reader goes on."""
    async with group_world(1) as world, world.client() as client, world.raw() as raw:
        table = await client.table("items")

        async def passed() -> bool:
            await client.compact_log("items", before=30, bucket=0)
            return [each.start_offset for each in await table.offsets()] == [30]

        async with table.new_scan().with_source("log").in_group(GROUP).execute() as batches:
            for end in (10, 20):
                assert await batches.commit() == ()
                await world.write(table, 10)
                await anext(batches)
                assert batches.positions == {0: end}
            await world.write(table, 10)
            await until(passed)
            assert await batches.commit() == ()
            assert world.stored() == {0: 20}
            refused = await commit(raw, 0, batches.assigned[0], 10)
            assert refused is not None
            assert refused.reason == "OFFSET_OUT_OF_RANGE"  # There is nothing left to go back to.
            await anext(batches)
            assert await batches.commit() == ()
        assert world.stored() == {0: 30}
