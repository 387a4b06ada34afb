"""What a reader group refuses: each time one typed error in one line, and nothing is lost or changed."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from scanner.errors import (
    ArgumentInvalid,
    DiskFull,
    GroupEpochStale,
    GroupNotEmpty,
    GroupNotFound,
    OffsetOutOfRange,
    ScannerError,
    SourceUnsupported,
    TableNotFound,
    TooManyGroups,
    TooManyScans,
)
from scanner.proto.weir.v1 import groups_pb2 as pb
from scanner.proto.weir.v1 import scanner_pb2
from scanner.server.groups.coordinator import _Seat
from scanner.wire import methods
from tests.support.groups import (
    CONFIG,
    GROUP,
    GroupWorld,
    commit,
    group_world,
    join_request,
    refusal,
    until,
)
from tests.support.hosts import settle
from tests.support.scans import failure, open_scan

if TYPE_CHECKING:
    import scanner
    import transport
    from scanner.storage.interface import GroupState

LOG = scanner_pb2.SCAN_SOURCE_LOG
ALIVE = pb.JoinRequest(alive=pb.Alive()).SerializeToString()
TWO_RELEASED = pb.JoinRequest(release=pb.Release(buckets=[pb.HeldBucket()] * 2)).SerializeToString()
"""Of a table that has one bucket."""


def _release(bucket: int, epoch: int) -> bytes:
    held = pb.HeldBucket(bucket=bucket, epoch=epoch)
    return pb.JoinRequest(release=pb.Release(buckets=[held])).SerializeToString()


@dataclass(frozen=True, slots=True)
class Reading:
    """A reader that has the only bucket, and has stored 10 of 20."""

    world: GroupWorld
    table: scanner.Table
    raw: transport.Client
    epoch: int


@asynccontextmanager
async def reading(**limits: Any) -> AsyncIterator[Reading]:
    """Leaving checks that the position is what it was, and that what is behind it comes."""
    async with (
        group_world(1, replace(CONFIG, **limits)) as world,
        world.client() as client,
        world.raw() as raw,
    ):
        table = await client.table("items")
        await world.write(table, 10)
        await world.write(table, 10)
        scan = table.new_scan().with_source("log").in_group(GROUP, member="a")
        async with scan.execute() as batches:
            await until(lambda: bool(batches.assigned))
            await batches.commit({0: 10})
            yield Reading(world, table, raw, batches.assigned[0])
        assert world.stored() == {0: 10}
        async with scan.stop_at("end").execute() as batches:
            found = [each async for batch in batches for each in batch["_log_offset"].to_pylist()]
        assert found == list(range(10, 20))


def one_line(error: ScannerError, *words: str) -> None:
    """See that an error says these words in one line."""
    assert "\n" not in error.message
    assert all(word in error.message for word in words), error.message


async def test_positions_that_are_none(autojump_clock: trio.testing.MockClock) -> None:
    """Inside a commit, past the end, of an old epoch or a later one, of no bucket, of no group, of another table."""
    async with reading() as at:
        cases: list[tuple[int, int, int, type[ScannerError], str]] = [
            (0, at.epoch, 5, ArgumentInvalid, "inside the commit [0, 10)"),
            (0, at.epoch, 21, OffsetOutOfRange, "[0, 20)"),
            (0, at.epoch - 1, 20, GroupEpochStale, f"epoch {at.epoch - 1}"),
            (0, at.epoch + 1, 20, GroupEpochStale, f"epoch {at.epoch + 1}"),
            (0, 0, 20, GroupEpochStale, "epoch 0"),
            (7, at.epoch, 20, ArgumentInvalid, "buckets 0..0"),
        ]
        for bucket, epoch, position, kind, words in cases:
            refused = await commit(at.raw, bucket, epoch, position)
            assert refused is not None
            expected = "BUCKET_NOT_FOUND" if bucket else kind.reason
            assert (refused.bucket, refused.reason) == (bucket, expected)
            one_line(ScannerError(refused.message), words)
        # Each would be a task, and a line of the answer: a request of 3 MB took the whole server half a minute.
        many = [pb.BucketPosition(bucket=bucket, epoch=at.epoch, position=20) for bucket in range(2)]
        request = pb.CommitPositionsRequest(table="items", group=GROUP, positions=many).SerializeToString()
        refusal = await failure(lambda: at.raw.call(methods.GROUPS + "CommitPositions", request))
        assert isinstance(refusal, ArgumentInvalid)
        one_line(refusal, "names 2 buckets", "table has 1")
        with pytest.raises(GroupNotFound) as missing:
            await commit(at.raw, 0, at.epoch, 20, group="nobody")
        one_line(missing.value, "nobody")
        with pytest.raises(TableNotFound):
            await commit(at.raw, 0, at.epoch, 20, table="nothing")


async def test_a_position_that_goes_forward_only_takes_nothing_back(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its request comes late, or twice; one that does not say so goes back."""
    async with reading() as at:
        refused = await commit(at.raw, 0, at.epoch, 0, forward_only=True)
        assert refused is not None
        assert refused.reason == ArgumentInvalid.reason
        one_line(ScannerError(refused.message), "position 10 of bucket 0 is stored", "and 0, which")
        assert at.world.stored() == {0: 10}
        assert await commit(at.raw, 0, at.epoch, 0) is None
        assert at.world.stored() == {0: 0}
        for _ in range(2):
            assert await commit(at.raw, 0, at.epoch, 10, forward_only=True) is None


async def test_of_a_readers_own_commits_the_later_one_counts(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Also where it is of an earlier position, or did not wait for the one before."""
    async with group_world(1) as world, world.client() as client:
        table = await client.table("items")
        for _ in range(2):
            await world.write(table, 10)
        async with table.new_scan().with_source("log").in_group(GROUP).execute() as batches:
            await anext(batches)
            for positions in ((0, 10), (20, 10), (0,), (20,), (20, 0)):
                async with trio.open_nursery() as nursery:
                    for position in positions:
                        nursery.start_soon(batches.commit, {0: position})
                        await trio.testing.wait_all_tasks_blocked()
                assert world.stored() == {0: positions[-1]}


async def test_a_table_of_a_name_that_was_dropped_leaves_the_new_ones_groups_alone(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A stale table object neither joins the new table's group, nor stores in it, describes, lists or deletes it."""
    async with group_world(1) as world, world.client() as client, world.raw() as raw:
        stale = await client.table("items")
        described = stale.description
        await client.drop_table("items")
        table = await client.create_table("items", described.schema, described.primary_key, described.buckets)
        await world.write(table, 10)
        async with table.new_scan().with_source("log").in_group(GROUP, member="a").execute() as batches:
            await until(lambda: bool(batches.assigned))
            joining = stale.new_scan().with_source("log").in_group(GROUP, member="b")
            async with joining.execute() as none:
                with pytest.raises(TableNotFound, match="created anew"), trio.fail_after(30):
                    await anext(none)
            assert batches.assigned  # Of the reader that is there nothing was taken.
            assert (await table.group(GROUP)).members == ("a",)
            with pytest.raises(TableNotFound, match="created anew"):
                await commit(raw, 0, batches.assigned[0], 10, table_id=stale.table_id)
        with pytest.raises(TableNotFound, match="created anew"):
            await stale.delete_group(GROUP)
        with pytest.raises(TableNotFound, match="created anew"):
            await stale.group(GROUP)
        with pytest.raises(TableNotFound, match="created anew"):
            await stale.groups()
        assert [each.name for each in await table.groups()] == [GROUP]
        assert world.stored() == {0: 0}


async def test_a_client_is_told_of_a_position_that_is_none(autojump_clock: trio.testing.MockClock) -> None:
    """By an exception where it is the program's mistake."""
    async with reading() as at:
        scan = at.table.new_scan().with_source("log").in_group(GROUP, member="b")
        async with scan.execute() as other:
            assert await other.commit({0: 20}) == (0,)
        for group, member in (("\udcff", "b"), (GROUP, "\udcff")):
            with pytest.raises(ArgumentInvalid, match="no Unicode text"):
                at.table.new_scan().with_source("log").in_group(group, member=member)
        scan = at.table.new_scan().with_source("log").in_group("second")
        async with scan.execute() as batches:
            await until(lambda: bool(batches.assigned))
            for position, kind in ((5, ArgumentInvalid), (99, OffsetOutOfRange)):
                with pytest.raises(kind):
                    await batches.commit({0: position})


async def test_scans_that_are_not_admitted(autojump_clock: trio.testing.MockClock) -> None:
    """Of an old epoch, of no group, of a group of another table, of a source without changes, or with half of it."""
    async with reading() as at:
        cases: list[tuple[dict[str, Any], type[ScannerError]]] = [
            ({"group": GROUP, "group_epoch": at.epoch - 1}, GroupEpochStale),
            ({"group": GROUP, "group_epoch": at.epoch + 1}, GroupEpochStale),
            ({"group": "nobody", "group_epoch": at.epoch}, GroupNotFound),
            ({"group": GROUP}, ArgumentInvalid),
            ({"group_epoch": at.epoch}, ArgumentInvalid),
            (
                {"group": GROUP, "group_epoch": at.epoch, "source": scanner_pb2.SCAN_SOURCE_HYBRID},
                ArgumentInvalid,
            ),
        ]
        for words, kind in cases:
            async with open_scan(at.raw, **{"source": LOG, **words}) as scan:
                error = await failure(scan.receive_all)
            assert type(error) is kind
            one_line(error)
        async with at.world.client() as client:
            other = await client.create_table("other", at.table.schema, ["id"], 1)
            with pytest.raises(GroupNotFound, match="'other' has no reader group 'billing'"):
                await other.group(GROUP)
            await client.drop_table("other")


async def test_a_newer_scan_of_a_bucket_takes_the_place_of_the_one_before(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Whoever has lost a connection goes on over another one, and does not wait until the server has missed it."""
    async with group_world(1) as world, world.client() as client, world.raw() as raw:
        await world.write(await client.table("items"), 10)
        async with raw.open_stream(methods.JOIN) as membership:
            await membership.send(join_request("a"))
            assigned: list[pb.AssignedBucket] = []
            while not assigned:
                answer = pb.JoinResponse.FromString(bytes(await membership.receive()))
                assigned = list(answer.assignment.buckets)
            words: Any = {"group": GROUP, "group_epoch": assigned[0].epoch, "credit": 1 << 20}
            start = scanner_pb2.LogStart(offset=0)
            async with open_scan(raw, source=LOG, log_start=start, **words) as before:
                while not before.batches:
                    await before.receive()
                async with open_scan(raw, source=LOG, log_start=start, stop_at_end=True, **words) as after:
                    ended = await failure(before.receive_all)
                    assert ended.reason == "SCAN_INCOMPLETE"
                    one_line(ended, "replaced by a newer one of the same member")
                    await after.receive_all()
                    assert after.rows == 10


async def test_a_member_that_has_left_reads_no_further(autojump_clock: trio.testing.MockClock) -> None:
    """What it has read it may still store. Refusals are counted, and how often a bucket was given to a member."""
    async with group_world(1) as world, world.client() as client, world.raw() as raw:
        table = await client.table("items")
        await world.write(table, 10)
        async with table.new_scan().with_source("log").in_group(GROUP).execute() as batches:
            await until(lambda: bool(batches.assigned))
            epoch = batches.assigned[0]
        async with open_scan(raw, source=LOG, group=GROUP, group_epoch=epoch) as scan:
            assert isinstance(await failure(scan.receive_all), GroupEpochStale)
        assert await commit(raw, 0, epoch, 10) is None
        assert await commit(raw, 0, epoch - 1, 10) is not None
        activity = world.server.statistics().activity
        assert (activity.group_assignments, activity.group_refusals) == (1, 2)


async def test_a_member_gives_back_nothing_but_its_own(autojump_clock: trio.testing.MockClock) -> None:
    """Not before it is to move, not the bucket that it waits for, nor by an old epoch, nor one that there is not."""
    async with (
        group_world(2) as world,
        world.client() as client,
        world.raw() as raw,
        raw.open_stream(methods.JOIN) as first,
        raw.open_stream(methods.JOIN) as second,
    ):
        table, assigned = await client.table("items"), list[pb.AssignedBucket]()

        async def owners() -> list[str | None]:
            return [each.member for each in (await table.group(GROUP)).buckets]

        await first.send(join_request("a"))
        while len(assigned) < 2:
            assigned = list(pb.JoinResponse.FromString(bytes(await first.receive())).assignment.buckets)
        for each in assigned:
            await first.send(_release(each.bucket, each.epoch))
        await settle()
        began_at = trio.current_time()
        await second.send(join_request("b"))
        while not any(each.moving for each in assigned):
            assigned = list(pb.JoinResponse.FromString(bytes(await first.receive())).assignment.buckets)
        bucket, epoch = next((each.bucket, each.epoch) for each in assigned if each.moving)
        for stream, *given in ((second, bucket, epoch), (first, bucket, epoch - 1), (first, 7, epoch)):
            await stream.send(_release(*given))
            await settle()
            assert await owners() == ["a", "a"]
        await first.send(_release(bucket, epoch))
        await settle()
        assert sorted(map(str, await owners())) == ["a", "b"]
        while len(assigned) == 2:  # It is told, too.
            assigned = list(pb.JoinResponse.FromString(bytes(await first.receive())).assignment.buckets)
        assert trio.current_time() - began_at < CONFIG.group_handover_s


async def test_memberships_that_are_none(autojump_clock: trio.testing.MockClock) -> None:
    """Without a join, with a bad name or instance, a second join, of no table; one too many; one that says nothing."""
    async with reading(group_members_max=1) as at:
        cases: list[tuple[tuple[bytes, ...], type[ScannerError]]] = [
            ((ALIVE,), ArgumentInvalid),
            ((b"\xff",), ArgumentInvalid),
            ((join_request("no space"),), ArgumentInvalid),
            ((join_request("", group="g"),), ArgumentInvalid),
            ((join_request("b", group="x" * 101),), ArgumentInvalid),
            ((join_request("b", instance=b"short"),), ArgumentInvalid),
            ((join_request("b", table="nothing"),), TableNotFound),
            ((join_request("b"),), TooManyScans),
            ((join_request("b", group="g"), join_request("b", group="g")), ArgumentInvalid),
            # Half a million fit into a request, and the whole server waits until each was looked at.
            ((join_request("b", group="g"), TWO_RELEASED), ArgumentInvalid),
        ]
        for messages, kind in cases:
            error = await refusal(at.raw, *messages)
            assert type(error) is kind
            one_line(error)
        began = trio.current_time()
        error = await refusal(at.raw, join_request("silent", group="g"))
        assert error.reason == "GROUP_MEMBER_EXPIRED"
        assert (
            CONFIG.group_session_timeout_s <= trio.current_time() - began < 2 * CONFIG.group_session_timeout_s
        )


async def test_groups_are_listed_and_deleted(autojump_clock: trio.testing.MockClock) -> None:
    """Not with members in; the next of its name has higher epochs; and there are no more than allowed."""
    async with reading(groups_per_table_max=2) as at:
        with pytest.raises(GroupNotEmpty, match="has members: "):
            await at.table.delete_group(GROUP)
        with pytest.raises(GroupNotFound):
            await at.table.delete_group("nobody")
        scan = at.table.new_scan().with_source("log")
        epochs = []
        for _ in range(2):
            async with scan.in_group("second").execute() as batches:
                await anext(batches)
                epochs.append(batches.epoch or 0)
                assert {each.name: each.members for each in await at.table.groups()} == {
                    GROUP: 1,
                    "second": 1,
                }
                async with scan.in_group("third").execute() as third:
                    at_third = third
                    with pytest.raises(TooManyGroups, match="2 reader groups"):
                        await _first(at_third)
            await at.table.delete_group("second")
        assert epochs == sorted(set(epochs))
        assert [each.name for each in await at.table.groups()] == [GROUP]


async def _first(batches: Any) -> None:
    await anext(batches)


async def test_a_group_of_which_nothing_was_stored_takes_no_place(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reader has left while storage took nothing, as a full disk does: nobody could see or delete it."""

    async def refuse(_seat: _Seat, _state: GroupState) -> None:
        raise DiskFull("no room")

    async with group_world(config=replace(CONFIG, groups_per_table_max=2)) as world, world.raw() as raw:
        with monkeypatch.context() as patch:
            patch.setattr(_Seat, "write", refuse)
            for name in ("first", "second"):
                async with raw.open_stream(methods.JOIN) as stream:
                    await stream.send(join_request("reader", group=name))
                    await stream.receive()
        async with world.client() as client:
            table = await client.table("items")
            await world.write(table, 10)
            for name in ("third", "fourth"):
                scan = table.new_scan().with_source("log").in_group(name).stop_at("end")
                async with scan.execute() as batches:
                    assert sum([len(batch) async for batch in batches]) == 10
            assert [each.name for each in await table.groups()] == ["fourth", "third"]


async def test_what_a_group_does_not_read(autojump_clock: trio.testing.MockClock) -> None:
    """A state, of now or of an offset, and a part of the buckets are refused before anything is asked."""
    async with reading() as at:
        for source in ("live_kv", "hybrid"):
            with pytest.raises(SourceUnsupported, match="with_source"):
                async with at.table.new_scan().with_source(source).in_group("g").execute():
                    pass
        for described, why in (
            (at.table.new_scan().with_source("log").bucket(0), "all buckets"),
            (at.table.new_scan().with_source("log").as_of(0), "LOG begins where start_at says"),
        ):
            with pytest.raises(ArgumentInvalid, match=why):
                async with described.in_group("g").execute():
                    pass


async def test_a_member_that_may_be_silent_for_ever_is_told_a_long_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A time that does not fit into the answer refuses nobody: the longest that does is told."""
    async with reading(group_session_timeout_s=math.inf) as read:
        assert read.epoch > 0
        async with read.raw.open_stream(methods.JOIN) as stream:
            await stream.send(join_request("other"))
            joined = pb.JoinResponse.FromString(bytes(await stream.receive()))
        assert joined.joined.session_timeout_ms == 4_000_000_000
