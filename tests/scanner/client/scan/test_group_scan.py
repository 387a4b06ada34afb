"""A reader of a group, at a server that plays what it is told."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
import trio
import trio.testing

from scanner.client.groups import delete_group, describe_group
from scanner.client.retries import RETRIES_DEFAULT
from scanner.client.scan.group_positions import Handed
from scanner.client.table import Table
from scanner.data.changes import CHANGE_COLUMNS, ChangeRange
from scanner.data.table import TableDescription
from scanner.errors import ArgumentInvalid, DataCorrupted, GroupEpochStale, ServerUnavailable, StoreFailed
from scanner.proto.weir.v1 import groups_pb2, scanner_pb2
from scanner.wire import methods
from scanner.wire.statuses import to_call_failed
from tests.support.groups import CONFIG, GROUP, group_world, pass_time, until
from tests.support.hosts import connected_to, memory_host, settle
from tests.support.push_messages import SCHEMA, rows, started
from tests.support.scans import sample
from tests.support.seals import unsealed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from scanner.client.scan.group_scan import GroupBatches
    from tests.support.groups import GroupWorld
    from transport import ServerStream
    from transport.server import Handler


def _assignment(**epochs: int) -> bytes:
    buckets = [
        groups_pb2.AssignedBucket(bucket=int(bucket[1:]), epoch=epoch, position=0)
        for bucket, epoch in epochs.items()
    ]
    return groups_pb2.JoinResponse(assignment=groups_pb2.Assignment(buckets=buckets)).SerializeToString()


def _for_epoch(batch: bytes, epoch: int) -> bytes:
    response = scanner_pb2.ScanResponse.FromString(batch)
    response.batch.group_epoch = epoch
    return response.SerializeToString()


def _end(total: int) -> bytes:
    message = scanner_pb2.ScanEnd(reason=scanner_pb2.ScanEnd.REASON_STOP_OFFSET, rows=total, end_offset=total)
    return scanner_pb2.ScanResponse(end=message).SerializeToString()


@asynccontextmanager
async def _begun(buckets: int, rows: int) -> AsyncIterator[tuple[GroupWorld, GroupBatches]]:
    """A table with rows, and a reader of a group that has taken its first batch."""
    async with group_world(buckets=buckets) as world, world.client("reader") as client:
        table = await client.table("items")
        await world.write(table, rows)
        async with table.new_scan().with_source("log").in_group(GROUP).execute() as batches:
            await anext(batches)
            yield world, batches


async def _read_to_stop(handlers: Mapping[str, Handler], buckets: int, after_s: float = 0) -> list[int]:
    """The keys that a reader of a group gets of a host that plays these calls, and begins to take after a while."""
    async with memory_host(handlers) as host, connected_to(host) as connection:
        table = Table(connection, TableDescription("t", SCHEMA, ("k",), buckets), 0)
        changes = table.new_scan().with_source("log").select("k").stop_at("end").in_group("g")
        async with changes.execute() as batches:
            await pass_time(after_s)
            return [key async for batch in batches for key in batch["k"].to_pylist()]


async def test_a_reader_with_a_stop_is_not_through_while_a_bucket_was_taken_from_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A scan is refused before the assignment says why, then the last other bucket comes to its stop."""
    taken, through = trio.Event(), trio.Event()

    async def join(stream: ServerStream) -> None:
        await stream.receive()
        joined = groups_pb2.Joined(session_timeout_ms=30_000)
        await stream.send(groups_pb2.JoinResponse(joined=joined).SerializeToString())
        await stream.send(_assignment(b0=1, b1=1))
        await through.wait()
        await settle()
        await stream.send(_assignment(b0=1, b1=2))
        while await stream.receive() is not None:
            pass

    async def scan(stream: ServerStream) -> None:
        asked = scanner_pb2.ScanRequest.FromString(bytes(await stream.receive())).open
        if (asked.query.bucket, asked.group_epoch) == (1, 1):
            taken.set()
            raise to_call_failed(GroupEpochStale("bucket 1 was taken from this reader"))
        await stream.send(started(log_offset=0))
        if asked.query.bucket == 0:
            await taken.wait()
            await settle()
            await stream.send(_end(0))
            through.set()
        else:
            batch = rows(0, [7], changes=ChangeRange(0, 1, commit_end=True))
            await stream.send(_for_epoch(batch, asked.group_epoch))
            await stream.send(_end(1))

    assert await _read_to_stop({methods.SCAN: scan, methods.JOIN: join}, buckets=2) == [7]


@pytest.mark.parametrize("taken_away", [False, True])
async def test_a_bucket_that_comes_while_rows_wait_is_read(
    autojump_clock: trio.testing.MockClock, taken_away: bool
) -> None:
    """A reader at its stop takes over from another one before it is through, whatever becomes of its first bucket."""

    async def join(stream: ServerStream) -> None:
        await stream.receive()
        joined = groups_pb2.Joined(session_timeout_ms=30_000)
        await stream.send(groups_pb2.JoinResponse(joined=joined).SerializeToString())
        await stream.send(_assignment(b0=1))
        await settle()
        await stream.send(_assignment(b0=1, b1=1))
        if taken_away:
            await stream.send(_assignment(b1=1))
        while await stream.receive() is not None:
            pass

    async def scan(stream: ServerStream) -> None:
        asked = scanner_pb2.ScanRequest.FromString(bytes(await stream.receive())).open
        await stream.send(started(log_offset=0))
        batch = rows(0, [asked.query.bucket], changes=ChangeRange(0, 1, commit_end=True))
        await stream.send(_for_epoch(batch, asked.group_epoch))
        await stream.send(_end(1))

    handlers = {methods.SCAN: scan, methods.JOIN: join}
    found = await _read_to_stop(handlers, buckets=2, after_s=10)
    assert sorted(found) == ([1] if taken_away else [0, 1])


async def test_a_bucket_that_is_to_move_is_given_back_once(autojump_clock: trio.testing.MockClock) -> None:
    """Readers come and go, so the server says again what is to move, before it is told that it was given back."""
    held: list[int] = []
    heard = trio.Event()

    async def join(stream: ServerStream) -> None:
        await stream.receive()
        joined = groups_pb2.Joined(session_timeout_ms=30_000)
        await stream.send(groups_pb2.JoinResponse(joined=joined).SerializeToString())
        moving = groups_pb2.AssignedBucket(bucket=0, epoch=1, position=0, moving=True)
        assignment = groups_pb2.JoinResponse(assignment=groups_pb2.Assignment(buckets=[moving]))
        async with trio.open_nursery() as nursery:
            for _ in range(9):
                nursery.start_soon(stream.send, assignment.SerializeToString())
        while (message := await stream.receive()) is not None:
            request = groups_pb2.JoinRequest.FromString(bytes(message))
            held.append(len(request.release.buckets))
            heard.set()

    async with memory_host({methods.JOIN: join}) as host, connected_to(host) as connection:
        table = Table(connection, TableDescription("t", SCHEMA, ("k",), 1), 0)
        async with table.new_scan().with_source("log").in_group("g").execute():
            await heard.wait()
            await settle()
    assert max(held) == 1


async def test_a_bucket_moves_when_what_was_handed_out_of_it_is_stored(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Not before: the next reader would get it again, and this one's position would be refused."""
    async with group_world(buckets=2) as world, world.client("a") as one, world.client("b") as other:
        table = await one.table("items")
        await world.write(table, 40)
        ends = world.log_ends()
        scan = table.new_scan().with_source("log").in_group(GROUP, member="a")
        async with scan.execute() as old:
            while old.positions != ends:
                await anext(old)
            scan = (await other.table("items")).new_scan().with_source("log").in_group(GROUP, member="b")
            async with scan.execute() as new:
                await until(lambda: len(old.assigned) == 1)
                with trio.move_on_after(CONFIG.group_handover_s / 2):
                    await anext(new)
                assert new.assigned == {}
                assert (await old.commit(), world.stored()) == ((), ends)
                await until(lambda: len(new.assigned) == 1)
                (moved,) = new.assigned
                assert old.assigned.keys() == {0, 1} - {moved}
                await world.write(table, 40)
                assert (await anext(new))["_log_offset"][0].as_py() == ends[moved]


async def test_a_commit_goes_back_behind_one_whose_answer_was_lost(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one may be stored: the second is not taken for a late one, which must move nothing back."""
    async with group_world(buckets=1) as world, world.client("reader") as client:
        table = await client.table("items")
        ends = []
        async with table.new_scan().with_source("log").in_group(GROUP).execute() as batches:
            for _ in range(3):
                await world.write(table, 3)
                await anext(batches)
                ends.append(batches.positions[0])
            assert await batches.commit({0: ends[0]}) == ()
            connection, call = batches._connection, batches._connection.call

            async def unanswered(*words: Any, **options: Any) -> Any:
                await call(*words, **options)
                raise StoreFailed("nobody knows whether that was stored")

            with monkeypatch.context() as patched, pytest.raises(StoreFailed):
                patched.setattr(connection, "call", unanswered)
                await batches.commit({0: ends[2]})
            assert world.stored() == {0: ends[2]}
            assert (await batches.commit({0: ends[1]}), world.stored()) == ((), {0: ends[1]})


async def test_a_position_of_nothing_that_was_handed_out_is_not_told_as_lost(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The filter passed over it; who is told would look for rows that were dealt with twice."""
    async with group_world(buckets=1) as world, world.client("reader") as client:
        scan = (await client.table("items")).new_scan().with_source("log").in_group(GROUP)
        async with scan.execute() as batches:
            stale = groups_pb2.CommitPositionsResponse()
            stale.refused.add(bucket=0, reason=GroupEpochStale.reason)
            for owed in False, True:
                lost = batches._take_answer({0: Handed(1, 3, owed=owed)}, stale)
                assert lost == ([0] if owed else [])


async def test_a_reader_without_a_bucket_outlives_any_number_of_cuts(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Of each membership the server has kept it, though there was no bucket for it."""
    joins = 0

    async def join(stream: ServerStream) -> None:
        nonlocal joins
        joins += 1
        await stream.receive()
        joined = groups_pb2.Joined(session_timeout_ms=30_000)
        await stream.send(groups_pb2.JoinResponse(joined=joined).SerializeToString())
        await stream.send(_assignment())
        await stream.receive()
        await stream.send(groups_pb2.JoinResponse(alive=groups_pb2.Alive()).SerializeToString())
        if joins > 2 * RETRIES_DEFAULT:
            await stream.send(_assignment(b0=1))
            while await stream.receive() is not None:
                pass

    async def scan(stream: ServerStream) -> None:
        await stream.receive()
        await stream.send(started(log_offset=0))
        batch = rows(0, [7], changes=ChangeRange(0, 1, commit_end=True))
        await stream.send(_for_epoch(batch, 1))
        await stream.send(_end(1))

    assert await _read_to_stop({methods.SCAN: scan, methods.JOIN: join}, buckets=1) == [7]


async def test_what_was_not_stored_before_a_reader_joined_anew_is_told(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its first commit behind a cut stores nothing of what it has, and says of which bucket."""
    async with _begun(buckets=1, rows=3) as (world, batches):
        before = batches.assigned
        world.network.reset_all()
        await until(lambda: batches.assigned.keys() == {0} and batches.assigned != before)
        assert (await batches.commit(), world.stored()) == ((0,), {0: 0})
        assert (await anext(batches)).num_rows == 3
        assert (await batches.commit(), world.stored()) == ((), {0: 3})


async def test_what_the_filter_drops_is_stored_without_being_said(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """While the reader waits and when it is through; but not behind what was handed out and is not stored."""
    async with group_world(buckets=1) as world, world.client("reader") as client:
        table = await client.table("items")
        filtered = table.new_scan().with_source("log").where("id < 3").in_group(GROUP)
        await world.write(table, 3)
        async with filtered.execute() as batches:
            await anext(batches)
            await world.write(table, 3)
            with trio.move_on_after(5):
                await anext(batches)
            assert (batches.positions, world.stored()) == ({0: 6}, {0: 0})
            assert (await batches.commit(), world.stored()) == ((), {0: 6})
            await world.write(table, 3)
            with trio.move_on_after(5):
                await anext(batches)
            assert world.stored() == {0: 9}
        await world.write(table, 3)
        async with filtered.stop_at("end").execute() as batches:
            assert [batch async for batch in batches] == []
        assert world.stored() == {0: 12}


async def test_what_the_filter_drops_does_not_undo_a_commit_that_goes_back(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Such a commit is on its way to the server when what was passed over could be stored."""
    async with group_world(buckets=1) as world, world.client("reader", 2) as far, world.client() as near:
        table = await near.table("items")
        filtered = (await far.table("items")).new_scan().with_source("log").where("id < 3").in_group(GROUP)
        await world.write(table, 3)
        async with filtered.execute() as batches, trio.open_nursery() as nursery:
            await anext(batches)
            assert await batches.commit() == ()
            await world.write(table, 3)
            nursery.start_soon(batches.commit, {0: 0})
            with trio.move_on_after(20):
                await anext(batches)
            assert (batches.positions, world.stored()) == ({0: 6}, {0: 0})
        async with filtered.execute() as batches:
            assert (await anext(batches))["id"].to_pylist() == [0, 1, 2]


async def test_a_position_that_cannot_be_stored_is_tried_again_at_leisure(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a second, while the reader waits: the program has not asked for it, so it is not told."""
    async with group_world(buckets=1) as world, world.client("reader") as client:
        table = await client.table("items")
        filtered = table.new_scan().with_source("log").where("id < 0").in_group(GROUP)
        async with filtered.execute() as batches:
            tries = 0

            async def refuse(*_: object, **__: object) -> list[int]:
                nonlocal tries
                tries += 1
                raise ServerUnavailable("the server is away")

            with monkeypatch.context() as patched, trio.move_on_after(10):
                patched.setattr(batches, "_store", refuse)
                await world.write(table, 3)
                await anext(batches)
            assert 5 <= tries <= 10
            with trio.move_on_after(5):
                await anext(batches)
            assert world.stored() == {0: 3}


async def test_the_answer_to_another_commit_stores_nothing(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names other buckets than were committed: what was not refused in it is not known to be stored."""
    async with _begun(buckets=1, rows=3) as (world, batches):
        connection, call = batches._connection, batches._connection.call

        async def of_nothing(path: str, request: bytes, **options: Any) -> Any:
            asked = groups_pb2.CommitPositionsRequest.FromString(unsealed(request))
            del asked.positions[:]
            return await call(path, asked.SerializeToString(), **options)

        monkeypatch.setattr(connection, "call", of_nothing)
        with pytest.raises(DataCorrupted, match="CommitPositions was asked about"):
            await batches.commit()
        monkeypatch.undo()
        assert await batches.commit() == ()
        assert world.stored() == {0: 3}


async def test_the_membership_of_another_reader_is_none(autojump_clock: trio.testing.MockClock) -> None:
    """Two readers that are given one membership would read the same buckets."""

    async def join(stream: ServerStream) -> None:
        joined = groups_pb2.Joined(session_timeout_ms=6000, instance=b"another reader")
        await stream.send(groups_pb2.JoinResponse(joined=joined).SerializeToString())
        await trio.sleep_forever()

    async with memory_host({methods.JOIN: join}) as host, connected_to(host) as connection:
        table = Table(connection, TableDescription("t", SCHEMA, ("k",), 1), 0)
        async with table.new_scan().with_source("log").in_group("g").execute() as batches:
            with pytest.raises(DataCorrupted, match="Join was asked about"):
                await anext(batches)


async def test_what_is_told_of_another_group_is_no_answer() -> None:
    """Its positions would be taken for those of the group that was asked for, or that for deleted."""
    name = groups_pb2.GroupName(table_id=0, group="other")

    async def describe(stream: ServerStream) -> None:
        await stream.receive()
        await stream.send(groups_pb2.DescribeGroupResponse(group=name).SerializeToString())

    async def delete(stream: ServerStream) -> None:
        await stream.receive()
        await stream.send(groups_pb2.DeleteGroupResponse(group=name).SerializeToString())

    handlers = {methods.GROUPS + "DescribeGroup": describe, methods.GROUPS + "DeleteGroup": delete}
    async with memory_host(handlers) as host, connected_to(host) as connection:
        with pytest.raises(DataCorrupted, match="DescribeGroup was asked about"):
            await describe_group(connection, "t", 0, "g")
        with pytest.raises(DataCorrupted, match="DeleteGroup was asked about"):
            await delete_group(connection, "t", 0, "g")


class _LosesBuckets:
    """The progress of a bucket, during the look at which another thread takes all buckets away."""

    def __init__(self, seats: dict[int, Any]) -> None:
        self._seats = seats

    @property
    def schema_outdated(self) -> bool:
        self._seats.clear()
        return False


async def test_whether_there_are_new_columns_can_be_asked_while_buckets_go(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The blocking client asks it in another thread than the one that the buckets change in."""
    async with group_world(buckets=2) as world, world.client("reader") as client:
        table = await client.table("items")
        async with table.new_scan().with_source("log").in_group(GROUP).execute() as batches:
            await until(lambda: len(batches.assigned) == 2)
            for seat in batches._seats.values():
                seat.progress = cast("Any", _LosesBuckets(batches._seats))
            assert not batches.schema_outdated


async def test_a_reader_tells_of_columns_that_are_new(autojump_clock: trio.testing.MockClock) -> None:
    """As its scans were told, also when the bucket has gone to another reader since."""
    async with group_world(buckets=1) as world, world.client("reader") as client:
        table = await client.table("items")
        await world.write(table, 10)
        scan = table.new_scan().with_source("log").in_group(GROUP, member="only")
        async with scan.execute() as batches:
            await anext(batches)
            told = [batches.schema_outdated]
            await table.add_column(pa.field("fresh", pa.int64()))
            await table.write(sample(range(10, 20)).append_column("fresh", pa.nulls(10, pa.int64())))
            await anext(batches)
            told.append(batches.schema_outdated)
            async with scan.execute() as second:
                await until(lambda: bool(second.assigned))
                await until(lambda: not batches.assigned)
                told.append(batches.schema_outdated)
    assert told == [False, True, True]


async def test_columns_that_were_selected_are_never_outdated(autojump_clock: trio.testing.MockClock) -> None:
    """Not by a reader nor by a tail, also where they are all that the table had once: the next one has the same."""
    async with group_world(buckets=1) as world, world.client("reader") as client:
        table = await client.table("items")
        await world.write(table, 10)
        once = [*table.schema.names, *(each.name for each in CHANGE_COLUMNS)]
        await table.add_column(pa.field("fresh", pa.int64()))
        scan = table.new_scan().with_source("log").select(*once)
        async with scan.execute() as tail, scan.in_group(GROUP).execute() as batches:
            await anext(tail)
            await anext(batches)
            (seat,) = batches._seats.values()
            await until(lambda: tail._progress[0].schema_outdated and seat.progress.schema_outdated)
            assert not tail.schema_outdated
            assert not batches.schema_outdated


@pytest.mark.parametrize("bucket", [-1, 2])
async def test_a_position_of_a_bucket_that_there_is_not_is_refused(
    autojump_clock: trio.testing.MockClock, bucket: int
) -> None:
    """It is the program's mistake, and not a bucket that another reader has; nothing beside it is stored."""
    async with _begun(buckets=2, rows=20) as (world, batches):
        with pytest.raises(ArgumentInvalid, match=rf"a whole number, 0\.\.1, not {bucket}$"):
            await batches.commit({**batches.positions, bucket: 0})
        assert not any(world.stored().values())


async def test_a_position_that_is_a_scalar_of_pyarrow_is_stored_and_not_called_lost(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Positions that were kept in a table come out of it so, and no such scalar equals a number."""
    async with _begun(buckets=1, rows=3) as (world, batches):
        assert (await batches.commit({pa.scalar(0): pa.scalar(3)}), world.stored()) == ((), {0: 3})


@pytest.mark.parametrize("auto_commit", [False, True])
async def test_at_its_limit_a_reader_goes_no_further(
    autojump_clock: trio.testing.MockClock, auto_commit: bool
) -> None:
    """It drops what waits; what its filter passes over behind that is no position to store."""
    async with group_world(buckets=3) as world, world.client("reader") as client:
        table = await client.table("items")
        changes = table.new_scan().with_source("log").where("id < 40").limit(20)
        await world.write(table, 40)
        async with changes.in_group(GROUP, auto_commit=auto_commit).execute() as batches:
            found = [key for _ in range(2) for key in (await anext(batches))["id"].to_pylist()]
            assert (len(found), await batches.commit()) == (20, ())
            at_limit = batches.positions
            for _ in range(5):
                await world.write(table, 40)
                autojump_clock.jump(1)
                await settle()
                assert [batch async for batch in batches] == []
                assert batches.positions == at_limit
        assert world.stored() == {0: 0, 1: 0, 2: 0} | at_limit
        async with changes.limit(2**64 - 1).stop_at("end").in_group(GROUP).execute() as batches:
            found += [key async for batch in batches for key in batch["id"].to_pylist()]
        assert set(found) == set(range(40))


async def test_at_its_limit_a_reader_ends_its_scans_and_has_ended_well(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Nothing is sent to it any more; and when another one takes its place, that is no failure of what it read."""
    async with group_world(buckets=3) as world, world.client("reader") as client:
        table = await client.table("items")
        await world.write(table, 40)
        scan = table.new_scan().with_source("log").in_group(GROUP, member="only")
        catalog = world.server._services.catalog
        async with scan.limit(20).execute() as batches:
            assert sum([(await anext(batches)).num_rows for _ in range(2)]) == 20
            with trio.fail_after(10):
                await until(lambda: not list(catalog.open_scans()))
            assert len(batches.assigned) == 3
            async with scan.execute() as second:
                await until(lambda: len(second.assigned) == 3)
                await settle()
                assert [batch async for batch in batches] == []


@pytest.mark.parametrize("auto_commit", [True, False])
async def test_polls_that_are_shorter_than_a_call_hold_up_no_move(
    autojump_clock: trio.testing.MockClock, auto_commit: bool
) -> None:
    """What a poll has stored, or the filter has passed over, is known to be stored though the poll is over by then."""
    async with group_world(buckets=2) as world, world.client("far", 0.2) as far, world.client() as near:
        table = await near.table("items")
        await world.write(table, 40)
        changes = (await far.table("items")).new_scan().with_source("log")
        if not auto_commit:
            changes = changes.where("id < 0")
        async with (
            changes.in_group(GROUP, auto_commit=auto_commit).execute() as batches,
            trio.open_nursery() as nursery,
        ):

            async def poll() -> None:
                while True:
                    with trio.move_on_after(0.1):
                        await anext(batches)

            nursery.start_soon(poll)
            await until(lambda: batches.positions == world.log_ends())
            began = trio.current_time()
            async with table.new_scan().with_source("log").in_group(GROUP).execute() as other:
                await until(lambda: len(other.assigned) == 1)
                assert trio.current_time() - began < CONFIG.group_handover_s / 2
            nursery.cancel_scope.cancel()
        with pytest.raises(trio.ClosedResourceError):
            await anext(batches)


async def test_a_poll_is_told_what_became_of_the_positions_of_the_one_before(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one before was cancelled while they were on their way; they are not stored."""

    async def refuse(*_: object, **__: object) -> list[int]:
        await pass_time(1)
        raise ServerUnavailable("the server is away")

    async with group_world(buckets=1) as world, world.client() as client:
        table = await client.table("items")
        await world.write(table, 3)
        changes = table.new_scan().with_source("log").in_group(GROUP, auto_commit=True)
        async with changes.execute() as batches:
            await anext(batches)
            with monkeypatch.context() as patched:
                patched.setattr(batches, "_store", refuse)
                with trio.move_on_after(0.1):
                    await anext(batches)
                with pytest.raises(ServerUnavailable, match="the server is away"):
                    await anext(batches)
        assert world.stored() == {0: 3}
