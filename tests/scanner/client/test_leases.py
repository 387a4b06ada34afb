"""Leases in the client: renewed in the background, dropped at the end, and what happens when they are lost."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np
import pyarrow as pa
import pytest
import trio
import trio.testing

import scanner
import scanner.sync
import transport
from scanner.client.leases import Leases, _asked_for
from scanner.proto.weir.v1 import leases_pb2 as pb
from scanner.server.config import ScannerConfig
from scanner.storage.memory.store import MemoryStore
from scanner.sync.portal import _Call
from scanner.wire import methods
from tests.support.conformance import open_items, open_virtual_items
from tests.support.hosts import connected_to, memory_host
from tests.support.interrupts import interrupted_behind
from tests.support.scans import sample
from tests.support.seals import unsealed
from tests.support.server import RunningServer, running_server

T = TypeVar("T")
CONFIG = ScannerConfig(lease_ttl_s=60, checkpoint_interval_s=0)


async def test_a_block_keeps_its_lease_alive(autojump_clock: trio.testing.MockClock) -> None:
    """It is renewed for as long as the block runs, however long that is, and dropped at its end."""
    async with open_virtual_items(50, config=CONFIG) as items:
        async with await items.client.acquire_lease("items") as lease:
            assert lease.info.ttl_s == 60
            with trio.move_on_after(1000):
                await trio.sleep_forever()
            assert [each.lease_id for each in await items.client.list_leases()] == [lease.id]
            assert (await items.table.new_scan().with_lease(lease).to_arrow()).num_rows == 50
        assert await items.client.list_leases() == []


async def test_a_block_keeps_a_lease_that_was_given_less_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It is renewed by the time that it has now, and not by that with which its block began."""
    async with (
        open_virtual_items(50, config=CONFIG) as items,
        await items.client.acquire_lease("items") as lease,
    ):
        await lease.renew(ttl_s=3)
        with trio.move_on_after(100):
            await trio.sleep_forever()
        assert [each.ttl_s for each in await items.client.list_leases()] == [3]


async def test_a_time_in_a_short_type_of_numpy_is_as_long_as_it_says() -> None:
    """70 s of `int16` are more milliseconds than it holds; numpy begins anew where they end."""
    age_s: Any = np.int8(1)
    times_s: list[Any] = [np.uint8(200), np.int32(86_400), np.int16(70)]
    async with open_virtual_items(1, config=CONFIG) as items:
        for time_s in times_s:
            lease = await items.client.acquire_lease("items", ttl_s=time_s, lease_id="mine", id_age_s=age_s)
            assert lease.info.ttl_s == time_s
        assert not (await items.client.drain(times_s[-1])).already_draining


async def test_an_id_grows_older_while_the_server_is_away(autojump_clock: trio.testing.MockClock) -> None:
    """A younger one would begin a lease of another state, at a server that was restored meanwhile."""
    ages_ms: list[int] = []

    async def acquire(stream: transport.ServerStream) -> None:
        request = pb.AcquireLeaseRequest.FromString(bytes(await stream.receive()))
        ages_ms.append(request.id_age_ms)
        lease = pb.LeaseInfo(lease_id=request.lease_id)
        await stream.send(pb.AcquireLeaseResponse(lease=lease).SerializeToString())

    async with (
        memory_host({methods.LEASES + "AcquireLease": acquire}) as host,
        connected_to(host) as connection,
    ):
        host.vanish(refusals=4)
        await trio.testing.wait_all_tasks_blocked()
        begun = trio.current_time()
        await Leases(connection).acquire("job", ["items"], None, partial=False, id_age_s=3)
        waited_ms = 1000 * (trio.current_time() - begun)
        assert waited_ms > 100
        assert ages_ms == [pytest.approx(3000 + waited_ms, abs=1)]


async def test_a_lease_has_one_block(autojump_clock: trio.testing.MockClock) -> None:
    """To enter it again, within its block or behind it, is refused, and does the block and the loop no harm."""
    async with open_virtual_items(50, config=CONFIG) as items:
        async with await items.client.acquire_lease("items") as lease:
            with pytest.raises(scanner.ArgumentInvalid, match="has had its block"):
                async with lease:
                    pass
            assert (await items.table.new_scan().with_lease(lease).to_arrow()).num_rows == 50
        with pytest.raises(scanner.ArgumentInvalid, match="has had its block"):
            async with lease:
                pass
        assert await items.client.list_leases() == []


async def test_without_a_block_it_ends_with_its_time(autojump_clock: trio.testing.MockClock) -> None:
    """Renewed in time it lives; not renewed it is gone."""
    async with open_virtual_items(50, config=CONFIG) as items:
        lease = await items.client.acquire_lease("items", lease_id="mine", ttl_s=10)
        for _ in range(3):
            with trio.move_on_after(8):
                await trio.sleep_forever()
            await lease.renew()
        with trio.move_on_after(11):
            await trio.sleep_forever()
        with pytest.raises(scanner.LeaseNotFound):
            await lease.renew()
        with pytest.raises(scanner.LeaseNotFound):
            await items.table.new_scan().with_lease(lease).to_arrow()
        await lease.drop()


async def test_an_absent_lease_is_made_once(autojump_clock: trio.testing.MockClock) -> None:
    """Whoever comes second has the first one's states, and renews it for the time that it has left."""
    async with open_virtual_items(50, config=CONFIG) as items:
        client = items.client
        first = await client.acquire_lease("items", lease_id="shared", if_absent=True)
        await items.table.write(sample([1000]))
        with trio.move_on_after(50):
            await trio.sleep_forever()
        async with await client.acquire_lease("items", lease_id="shared", ttl_s=9, if_absent=True) as second:
            assert second.buckets == first.buckets
            assert (second.info.ttl_s, second.info.remaining_s) == (60, 10)
            with trio.move_on_after(50):
                await trio.sleep_forever()
            assert (await items.table.new_scan().with_lease(second).to_arrow()).num_rows == 50
        with pytest.raises(scanner.ArgumentInvalid, match="if_absent needs a lease_id"):
            await client.acquire_lease("items", if_absent=True)


async def test_an_empty_id_is_none_that_a_lease_can_have() -> None:
    """Not a wish for one that is made up, which another process would not find: it may come of an unset variable."""
    async with open_virtual_items(5, config=CONFIG) as items:
        for options in ({}, {"if_absent": True}, {"if_absent": True, "id_age_s": 3.0}):
            with pytest.raises(scanner.ArgumentInvalid, match="the id of a lease is 1 to 100"):
                await items.client.acquire_lease("items", lease_id="", **options)
        assert await items.client.list_leases() == []


async def test_the_answer_about_another_lease_is_none(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its states would be read, and it would be renewed and dropped in place of the one that was asked for."""
    async with open_virtual_items(5, config=CONFIG) as items:
        leases, connection = items.client.leases, items.client._connection
        await items.client.acquire_lease("items", lease_id="other")
        call = connection.call

        async def about_the_other(path: str, request: bytes | Callable[[], bytes], **options: Any) -> Any:
            encoded = request() if callable(request) else request
            return await call(path, unsealed(encoded).replace(b"mine!", b"other"), **options)

        monkeypatch.setattr(connection, "call", about_the_other)
        for ask in (
            items.client.acquire_lease("items", lease_id="mine!"),
            leases.renew("mine!", None),
        ):
            with pytest.raises(
                scanner.DataCorrupted, match="asked about lease 'mine!', and answers about 'other'"
            ):
                await ask
        for let_go in (
            leases.release("mine!", "nothing", ()),
            leases.release("mine!", "items", ()),
            leases.drop("mine!"),
        ):
            with pytest.raises(scanner.DataCorrupted, match=r"Lease was asked about mine!, .* about other"):
                await let_go
        monkeypatch.undo()
        with pytest.raises(scanner.DataCorrupted, match="asked about lease 'other' of 'you'"):
            _asked_for("other", "you", pb.LeaseInfo(lease_id="other", principal="me"))


async def test_an_acquisition_that_is_cancelled_leaves_no_lease(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """At whatever moment: nobody knows the id that was made up, so nobody else would let go of it."""
    async with open_virtual_items(5, config=CONFIG) as items:
        leases_seen = set()
        for checkpoints in itertools.count():
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(items.client.acquire_lease, "items")
                    for _ in range(checkpoints):
                        await trio.lowlevel.checkpoint()
                    leases_seen.add(items.server.statistics().leases)
                    scope.cancel()
            if not scope.cancelled_caught:
                break  # It was answered before.
            assert await items.client.list_leases() == []
        assert leases_seen == {0, 1}


def replace_answers(
    monkeypatch: pytest.MonkeyPatch,
    client: scanner.Client,
    method: str,
    replace: Callable[[Any], Awaitable[Any]],
) -> None:
    """Have the client get what `replace` makes of each answer of a method, which the server has given all the same."""
    call = client._connection.call

    async def replacing(path: str, request: bytes, **options: Any) -> Any:
        answer = await call(path, request, **options)
        return await replace(answer) if path.endswith(f"/{method}") else answer

    monkeypatch.setattr(client._connection, "call", replacing)


@pytest.mark.parametrize("damaged", [False, True], ids=["cut", "damaged"])
async def test_an_acquisition_whose_answer_is_lost_leaves_no_lease(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, damaged: bool
) -> None:
    """One under an id that was made up is dropped; one under the caller's id may be shared, and stays."""
    async with open_virtual_items(5, config=CONFIG) as items:

        async def lose(_: Any) -> bytes:
            if damaged:
                return b"\xff"
            raise transport.ConnectionLost("cut")

        replace_answers(monkeypatch, items.client, "AcquireLease", lose)
        expected = scanner.DataCorrupted if damaged else scanner.ServerUnavailable
        with pytest.raises(expected):
            await items.client.acquire_lease("items")
        assert await items.client.list_leases() == []
        with pytest.raises(expected):
            await items.client.acquire_lease("items", lease_id="mine")
        assert [each.lease_id for each in await items.client.list_leases()] == ["mine"]


async def test_a_lost_lease_ends_the_block(autojump_clock: trio.testing.MockClock) -> None:
    """Somebody drops it: the block is cancelled at the next renewal, and LEASE_NOT_FOUND raised."""
    async with open_virtual_items(50, config=CONFIG) as items:
        with pytest.raises(scanner.LeaseNotFound):
            async with await items.client.acquire_lease("items") as lease:
                await items.client.leases.drop(lease.id)
                await trio.sleep_forever()


@pytest.mark.parametrize("dropped", [False, True], ids=["moved", "dropped"])
@pytest.mark.parametrize("block_s", [1, 1000], ids=["at its end", "at a renewal"])
async def test_a_lease_that_somebody_else_has_moved_is_lost(
    autojump_clock: trio.testing.MockClock, dropped: bool, block_s: float
) -> None:
    """Scans of its id are of another state from then on. The other one's lease is not dropped."""
    log = scanner.LeaseTarget("items", state="log")
    async with open_virtual_items(50, config=CONFIG) as items:
        with pytest.raises(scanner.LeaseNotFound, match="as of 60 now, and no more as of 50"):
            async with await items.client.acquire_lease(log, lease_id="nightly") as lease:
                await items.write(range(50, 60))
                if dropped:
                    await items.client.leases.drop("nightly")
                other = await items.client.acquire_lease(log, lease_id="nightly", ttl_s=3600)
                with trio.move_on_after(block_s):
                    await trio.sleep_forever()
                assert block_s == 1
        assert lease.offsets("items") == {0: 50}
        with pytest.raises(scanner.LeaseNotFound, match="an id of its own"):
            await lease.renew()
        await other.renew()


@pytest.mark.parametrize("cancelled", [False, True], ids=["an error", "cancelled"])
async def test_a_block_that_fails_leaves_a_lease_that_was_moved_to_the_other_one(
    autojump_clock: trio.testing.MockClock, cancelled: bool
) -> None:
    """As the first of two runs of a job does that has an error while the second one reads."""
    log = scanner.LeaseTarget("items", state="log")
    async with open_virtual_items(50, config=CONFIG) as items:
        with trio.CancelScope() as scope, suppress(ZeroDivisionError):
            async with await items.client.acquire_lease(log, lease_id="nightly"):
                await items.write(range(50, 60))
                other = await items.client.acquire_lease(log, lease_id="nightly")
                if not cancelled:
                    raise ZeroDivisionError
                scope.cancel()
                await trio.sleep_forever()
        await other.renew()


@pytest.mark.parametrize("call", ["renew", "acquire"])
async def test_a_call_that_finds_a_lease_moved_leaves_it_to_the_other_one(
    autojump_clock: trio.testing.MockClock, call: str
) -> None:
    """Whether it renews it or adds a table to it; the end of the block, by that error, does not drop it."""
    log = scanner.LeaseTarget("items", state="log")
    async with open_virtual_items(50, config=CONFIG) as items:
        client = items.client
        await client.create_table("more", pa.schema([("id", pa.int64())]), ["id"])
        with pytest.raises(scanner.LeaseNotFound, match="as of 60 now, and no more as of 50"):
            async with await client.acquire_lease(log, lease_id="nightly") as lease:
                await items.write(range(50, 60))
                other = await client.acquire_lease(log, lease_id="nightly")
                await (lease.renew() if call == "renew" else lease.acquire("more"))
        await other.renew()


async def test_a_lease_that_is_moved_back_is_dropped_at_the_end_of_its_block(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It is this program's again; else its states would be kept for as long as the lease has time."""
    log = scanner.LeaseTarget("items", state="log")
    async with open_virtual_items(50, config=CONFIG) as items:
        async with await items.client.acquire_lease(log, lease_id="nightly", ttl_s=3600) as lease:
            await items.write(range(50, 60))
            await items.client.acquire_lease(log, lease_id="nightly", ttl_s=3600)
            with pytest.raises(scanner.LeaseNotFound):
                await lease.renew()
            await lease.acquire(log)
        assert await items.client.list_leases() == []


async def test_a_lease_that_keeps_the_same_offset_of_another_history_is_lost(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a copy that was restored meanwhile: it is another state of the bucket."""
    async with open_virtual_items(50, config=CONFIG) as items:
        lease = await items.client.acquire_lease("items", lease_id="nightly")
        buckets = tuple(replace(each, history=b"of a restored copy") for each in lease.buckets)
        told = replace(lease.info, buckets=buckets)

        async def renewed(*_: object) -> scanner.LeaseInfo:
            return told

        monkeypatch.setattr(lease._leases, "renew", renewed)
        with pytest.raises(scanner.LeaseNotFound, match="somebody else has acquired"):
            await lease.renew()


async def test_the_time_of_a_lease_begins_when_its_renewal_was_asked_for(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server may have begun it then, however late the answer comes: the block does not outlive the lease."""
    async with open_virtual_items(50, config=CONFIG) as items:
        with pytest.raises(scanner.LeaseNotFound, match="could not be renewed in time"):
            async with await items.client.acquire_lease("items", ttl_s=30) as lease:
                renew = lease._leases.renew

                async def late(lease_id: str, ttl_s: float | None, principal: str = "") -> scanner.LeaseInfo:
                    info = await renew(lease_id, ttl_s, principal)
                    with trio.move_on_after(8):
                        await trio.sleep_forever()
                    return info

                async def away(*_: object) -> scanner.LeaseInfo:
                    raise scanner.ServerUnavailable("away")

                monkeypatch.setattr(lease._leases, "renew", late)
                asked_at = trio.current_time()
                await lease.renew()
                monkeypatch.setattr(lease._leases, "renew", away)
                await trio.sleep_forever()
        assert trio.current_time() - asked_at == pytest.approx(30)


async def test_a_refused_acquisition_moves_nothing(autojump_clock: trio.testing.MockClock) -> None:
    """So a lease that somebody else moves behind one is lost all the same."""
    log = scanner.LeaseTarget("items", state="log")
    async with open_virtual_items(50, config=CONFIG) as items:
        with pytest.raises(scanner.LeaseNotFound, match="as of 60 now, and no more as of 50"):
            async with await items.client.acquire_lease(log, lease_id="nightly") as lease:
                with pytest.raises(scanner.TableNotFound):
                    await lease.acquire("nothing")
                await items.write(range(50, 60))
                await items.client.acquire_lease(log, lease_id="nightly")


async def test_a_lease_that_is_shared_or_that_its_own_program_moves_is_not_lost(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the program does not learn that it has moved it."""
    log = scanner.LeaseTarget("items", state="log")
    async with open_virtual_items(50, config=CONFIG) as items:

        async def lose(_: Any) -> NoReturn:
            raise transport.ConnectionLost("cut")

        async with await items.client.acquire_lease(log, lease_id="nightly", ttl_s=3) as lease:
            await items.write(range(50, 60))
            await lease.acquire(log)
            await items.client.acquire_lease(log, lease_id="nightly", if_absent=True)
            with trio.move_on_after(10):
                await trio.sleep_forever()
            assert lease.offsets("items") == {0: 60}
            await items.write(range(60, 70))
            replace_answers(monkeypatch, items.client, "AcquireLease", lose)
            with pytest.raises(scanner.ServerUnavailable):
                await lease.acquire(log)
            with trio.move_on_after(10):
                await trio.sleep_forever()
            assert lease.offsets("items") == {0: 70}
        assert await items.client.list_leases() == []


@pytest.mark.parametrize("late", ["RenewLease", "AcquireLease"])
async def test_answers_may_overtake_one_another(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    """A program that acquires more while its lease is renewed, or twice at once, has not lost it to somebody else."""
    log = scanner.LeaseTarget("items", state="log")
    async with open_virtual_items(50, config=CONFIG) as items:
        made, let_come = trio.Event(), trio.Event()

        async def delay(answer: Any) -> Any:
            monkeypatch.undo()
            made.set()
            await let_come.wait()
            return answer

        async with await items.client.acquire_lease(log, lease_id="nightly", ttl_s=30) as lease:
            await items.write(range(50, 60))
            replace_answers(monkeypatch, items.client, late, delay)
            async with trio.open_nursery() as nursery:
                if late == "RenewLease":
                    nursery.start_soon(lease.renew)
                else:
                    nursery.start_soon(lease.acquire, log)
                await made.wait()
                await items.write(range(60, 70))
                await lease.acquire(log)
                assert lease.offsets("items") == {0: 70}
                let_come.set()
            with trio.move_on_after(100):
                await trio.sleep_forever()
            assert lease.offsets("items") == {0: 70}


async def test_a_lease_that_somebody_else_has_moved_and_dropped_is_lost(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """As where the second run of a job is the shorter one: the first has read two states meanwhile."""
    log = scanner.LeaseTarget("items", state="log")
    async with open_virtual_items(50, config=CONFIG) as items:
        scan = items.table.new_scan().with_lease("nightly")
        with pytest.raises(scanner.LeaseNotFound, match="there is no lease 'nightly'"):
            async with await items.client.acquire_lease(log, lease_id="nightly"):
                await items.write(range(50, 60))
                async with await items.client.acquire_lease(log, lease_id="nightly"):
                    assert (await scan.to_arrow()).num_rows == 60


async def test_leaving_a_block_takes_no_longer_where_an_id_is_known(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Of a server that does not answer: the look for whether it was moved, and the drop, have one time."""
    async with open_virtual_items(50, config=CONFIG) as items:
        times_s: list[float] = []
        for lease_id in (None, "nightly"):
            lease = await items.client.acquire_lease("items", lease_id=lease_id)
            with pytest.MonkeyPatch.context() as patched:
                async with lease:
                    patched.setattr(items.client._connection, "call", _never)
                    left_at = trio.current_time()
                times_s.append(trio.current_time() - left_at)
        assert times_s[0] > 0
        assert times_s[1] == times_s[0]


async def _never(*_args: object, **_options: object) -> None:
    await trio.sleep_forever()


@pytest.mark.parametrize("released", ["items", "other"])
async def test_a_lease_that_had_ended_is_lost_also_for_who_lets_go_of_a_part(
    autojump_clock: trio.testing.MockClock, released: str
) -> None:
    """Nothing is left of it, though something should be: the block still relies on that."""
    async with open_virtual_items(50, config=CONFIG) as items:
        await items.client.create_table("other", items.table.schema, items.table.primary_key)
        with pytest.raises(scanner.LeaseNotFound):
            async with await items.client.acquire_lease("items", "other") as lease:
                await items.client.leases.drop(lease.id)
                await lease.release(released)
                with trio.move_on_after(1_000):
                    await trio.sleep_forever()
        async with await items.client.acquire_lease("items", "other") as lease:
            await lease.release("items")
            await lease.release("other", *pa.array([0, 1]), 2, 3)
            await lease.release("other", 1)  # Once more.
            with trio.move_on_after(1_000):
                await trio.sleep_forever()


async def test_a_server_that_is_away_for_a_while(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Renewals are tried again until the lease's time is over; only then is it lost."""
    async with open_virtual_items(50, config=CONFIG) as items:
        async with await items.client.acquire_lease("items", ttl_s=60) as lease:
            away = []

            async def refuse(*_: object) -> scanner.LeaseInfo:
                away.append(trio.current_time())
                raise scanner.ServerUnavailable("it is away")

            with monkeypatch.context() as patch:
                patch.setattr(lease._leases, "renew", refuse)
                with trio.move_on_after(50):
                    await trio.sleep_forever()
            assert len(away) > 3
            with trio.move_on_after(200):
                await trio.sleep_forever()
            assert await items.client.list_leases()
        with pytest.raises(scanner.LeaseNotFound, match="could not be renewed in time: it is away"):
            async with await items.client.acquire_lease("items") as lost:
                monkeypatch.setattr(lost._leases, "renew", refuse)
                await trio.sleep_forever()


async def test_a_program_that_stood_still_lost_its_lease_itself(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """As after a stop of an hour: the server was not asked, and is not said to be silent."""
    async with open_virtual_items(50, config=CONFIG) as items:
        with pytest.raises(scanner.LeaseNotFound, match="the program, or its event loop, stood still"):
            async with await items.client.acquire_lease("items", ttl_s=60):
                autojump_clock.jump(61)
                await trio.sleep_forever()


async def test_an_error_of_the_block_leaves_it_as_it_is(autojump_clock: trio.testing.MockClock) -> None:
    """No group around it, and the lease is dropped all the same; also when the block is cancelled."""
    async with open_virtual_items(50, config=CONFIG) as items:
        with pytest.raises(KeyError):
            async with await items.client.acquire_lease("items"):
                raise KeyError("of the block")
        with trio.move_on_after(1):
            async with await items.client.acquire_lease("items"):
                await trio.sleep_forever()
        assert await items.client.list_leases() == []


async def test_a_drop_that_is_cut_is_tried_again(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end of a block and of a cancelled acquisition: a call that was refused or cut off did nothing."""
    drop, cuts = Leases.drop, 0

    async def cut_once(leases: Leases, lease_id: str, principal: str = "") -> bool:
        nonlocal cuts
        if cuts == 0:
            cuts += 1
            raise scanner.ServerUnavailable("the connection was lost")
        return await drop(leases, lease_id, principal)

    monkeypatch.setattr(Leases, "drop", cut_once)
    async with open_virtual_items(5, config=CONFIG) as items:
        async with await items.client.acquire_lease("items"):
            pass
        assert (cuts, await items.client.list_leases()) == (1, [])
        cuts = 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(items.client.acquire_lease, "items")
            while not items.server.statistics().leases:
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        assert (cuts, await items.client.list_leases()) == (1, [])


@pytest.mark.socket
async def test_a_client_that_is_cancelled_drops_its_leases() -> None:
    """By its connection, which is there until its blocks are left."""
    async with open_items(MemoryStore(), 5, config=CONFIG) as items:
        with trio.CancelScope() as scope:
            async with (
                scanner.connect(f"127.0.0.1:{items.server.port}") as client,
                await client.acquire_lease("items"),
            ):
                assert items.server.statistics().leases == 1
                scope.cancel()
                await trio.sleep_forever()
        assert items.server.statistics().leases == 0


@pytest.mark.socket
async def test_a_block_that_is_cancelled_behind_its_client_raises_nothing() -> None:
    """As where both are tasks of one nursery, of which the one with the client ends first."""
    async with open_items(MemoryStore(), 5, config=CONFIG) as items:
        held = trio.Event()

        async def keep(client: scanner.Client) -> None:
            async with await client.acquire_lease("items"):
                held.set()
                await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            async with scanner.connect(f"127.0.0.1:{items.server.port}") as client:
                nursery.start_soon(keep, client)
                await held.wait()
            nursery.cancel_scope.cancel()
        (lease,) = await items.client.list_leases()  # nobody could drop it
        await items.client.leases.drop(lease.lease_id)


async def test_buckets_are_added_moved_and_released(autojump_clock: trio.testing.MockClock) -> None:
    """What the object knows is what the server said last; an acquisition after the end is told."""
    async with open_virtual_items(50, config=CONFIG) as items:
        lease = await items.client.acquire_lease(scanner.LeaseTarget("items", state=scanner.LeaseState.LOG))
        assert [(each.bucket, each.log_offset, each.checkpoint_id) for each in lease.buckets] == [
            (0, 50, None)
        ]
        await items.write(range(50, 60))
        await lease.acquire(scanner.LeaseTarget("items", state="new"))
        assert [(each.log_offset, each.checkpoint_id is None) for each in lease.buckets] == [(60, False)]
        assert repr(lease) == f"<Lease {lease.id}: 1 buckets, 60 s>"
        await lease.release("items")
        assert await items.client.list_leases() == []
        await items.client.create_table("more", pa.schema([("k", pa.int64())]), "k", 1)
        await lease.acquire("items")
        await items.client.leases.drop(lease.id)
        with pytest.raises(scanner.LeaseNotFound, match="ended before this acquisition"):
            await lease.acquire("more")


async def test_a_block_goes_on_behind_an_acquisition_that_took_long(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer than the lease lives: it was renewed meanwhile."""
    acquire = Leases.acquire

    async def slowly(*arguments: Any, **options: Any) -> object:
        with trio.move_on_after(100):
            await trio.sleep_forever()
        return await acquire(*arguments, **options)

    async with open_virtual_items(50, config=CONFIG) as items:
        async with await items.client.acquire_lease("items") as lease:
            monkeypatch.setattr(Leases, "acquire", slowly)
            await lease.acquire("items")
            with trio.move_on_after(1000):
                await trio.sleep_forever()
            assert [each.lease_id for each in await items.client.list_leases()] == [lease.id]


async def test_what_was_given_up_is_not_lost(autojump_clock: trio.testing.MockClock) -> None:
    """A block whose lease its own code has released or dropped goes on, and can acquire again."""
    async with open_virtual_items(50, config=CONFIG) as items:
        async with await items.client.acquire_lease("items") as lease:
            for released in (True, False):
                await (lease.release("items") if released else lease.drop())
                with trio.move_on_after(300):
                    await trio.sleep_forever()
                assert await items.client.list_leases() == []
                await lease.acquire("items")
                with trio.move_on_after(300):
                    await trio.sleep_forever()
                assert [each.lease_id for each in await items.client.list_leases()] == [lease.id]
        assert await items.client.list_leases() == []


async def test_a_lease_that_is_dropped_while_it_is_renewed_is_not_lost(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The renewal finds it gone, as the program wanted; the block goes on."""
    renewals = 0
    async with open_virtual_items(50, config=CONFIG) as items:
        async with await items.client.acquire_lease("items") as lease:
            renew, asked = lease._leases.renew, trio.Event()

            async def slowly(*words: Any) -> scanner.LeaseInfo:
                nonlocal renewals
                renewals += 1
                asked.set()
                with trio.move_on_after(5):
                    await trio.sleep_forever()
                return await renew(*words)

            monkeypatch.setattr(lease._leases, "renew", slowly)
            await asked.wait()
            await lease.drop()
            with trio.move_on_after(200):
                await trio.sleep_forever()
        assert renewals == 1


@pytest.mark.parametrize("cancelled", [False, True], ids=["cut", "cancelled"])
async def test_a_release_of_everything_that_was_not_answered_is_no_loss(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, cancelled: bool
) -> None:
    """The block goes on, since its own code wanted that, and can acquire again."""
    async with open_virtual_items(50, config=CONFIG) as items:

        async def lose(_: Any) -> None:
            if not cancelled:
                raise transport.ConnectionLost("cut")
            await trio.sleep_forever()

        replace_answers(monkeypatch, items.client, "ReleaseLease", lose)
        async with await items.client.acquire_lease("items") as lease:
            with suppress(scanner.ServerUnavailable), trio.move_on_after(1):
                await lease.release("items")
            assert await items.client.list_leases() == []
            with trio.move_on_after(300):
                await trio.sleep_forever()
            await lease.acquire("items")
            with trio.move_on_after(300):
                await trio.sleep_forever()
            assert [each.lease_id for each in await items.client.list_leases()] == [lease.id]


async def test_arguments_that_make_no_sense(autojump_clock: trio.testing.MockClock) -> None:
    """Refused before anything is sent, or by the server; an error each time."""
    async with open_virtual_items(1, config=CONFIG) as items:
        acquire = items.client.acquire_lease
        no_lists: list[tuple[str, Any]] = [("items", 0), ("items", np.array(0))]
        for target in (
            scanner.LeaseTarget("items", state="oldest"),
            scanner.LeaseTarget("items", [-1]),
            *itertools.starmap(scanner.LeaseTarget, no_lists),
            scanner.LeaseTarget("items", [0], checkpoint_id=-1),
        ):
            with pytest.raises(scanner.ArgumentInvalid):
                await acquire(target)
        for arguments in ({"ttl_s": 0}, {"ttl_s": -1}, {"ttl_s": 1e30}, {"lease_id": "no spaces"}):
            with pytest.raises(scanner.ArgumentInvalid):
                await acquire("items", **arguments)
        with pytest.raises(scanner.ArgumentInvalid):
            await acquire()
        with pytest.raises(scanner.ArgumentInvalid):
            items.table.new_scan().with_lease("")
        scan = items.table.new_scan().with_lease("x")
        assert (scan.plan.source, scan.plan.lease_id) == (scanner.ScanSource.SNAPSHOT, "x")
        assert scan.with_source("live_kv").plan.lease_id == ""


@pytest.mark.socket
@pytest.mark.rocks
def test_the_blocking_twin(tmp_path: Path) -> None:
    """The same calls, and a block that is renewed in the client's thread and dropped at its end."""
    with running_server(tmp_path / "data", CONFIG) as server:
        with scanner.sync.connect(server.endpoint) as client:
            table = client.create_table("items", pa.schema([("id", pa.int64())]), "id", 2)
            table.write(pa.table({"id": range(100)}))
            with client.acquire_lease("items", lease_id="mine", ttl_s=30) as lease:
                assert client.acquire_lease("items", lease_id="mine", if_absent=True).buckets == lease.buckets
                table.write(pa.table({"id": range(200)}))
                client.checkpoint("items")
                assert 0 < client.list_leases()[0].remaining_s <= 30
                assert table.new_scan().with_lease(lease).to_arrow().num_rows == 100
                lease.acquire(scanner.LeaseTarget("items", [0], "new"))
                lease.release("items", 1)
                lease.renew(60)
                assert [each.bucket for each in lease.buckets] == [0]
                assert (lease.not_leased, lease.info.ttl_s) == ((), 60)
                assert lease.id in repr(lease)
            assert client.list_leases() == []
            with pytest.raises(scanner.LeaseNotFound):
                with client.acquire_lease("items", ttl_s=0.05) as lost:
                    client.leases.drop(lost.id)
                    server.wait_until(lambda _: lost._held is not None and lost._held.finished)
            assert client.leases.release("unknown", "items") is None
            with pytest.raises(scanner.LeaseNotFound):
                client.leases.renew("unknown")
            assert [each.leases for each in client.list_checkpoints("items")] == [0, 0, 0, 0]


async def test_a_lease_that_ends_before_its_answer(autojump_clock: trio.testing.MockClock) -> None:
    """A lease whose time is over while the server writes it down is LEASE_NOT_FOUND to who acquired it."""
    delay_s = 0.0

    async def slow_disk(function: Callable[[], T]) -> T:
        with trio.move_on_after(delay_s):
            await trio.sleep_forever()
        return function()

    async with open_virtual_items(50, config=CONFIG, run_blocking=slow_disk) as items:
        lease = await items.client.acquire_lease("items", ttl_s=0.5)
        delay_s = 1.0
        with pytest.raises(scanner.LeaseNotFound, match="before its acquisition was answered"):
            await items.client.acquire_lease("items", ttl_s=0.5)
        with pytest.raises(scanner.LeaseNotFound, match="before its acquisition was answered"):
            await lease.acquire("items")


def interrupted(server: RunningServer, client: scanner.sync.Client, call: int) -> bool:
    """Interrupt a block with a lease behind a call of the portal into C; whether there were so many calls."""
    with (
        suppress(KeyboardInterrupt),
        interrupted_behind(call, "scanner.sync.portal") as came,
        client.acquire_lease(scanner.LeaseTarget("items", state="log")),
    ):
        pass
    server.wait_until(lambda it: it.statistics().leases == 0)
    return bool(came)


@pytest.mark.socket
@pytest.mark.rocks
def test_wherever_a_blocking_caller_is_interrupted_no_lease_stays(tmp_path: Path) -> None:
    """Also behind an acquisition that has its answer, and before the block is entered."""
    with running_server(tmp_path) as server, scanner.sync.connect(server.endpoint) as client:
        client.create_table("items", pa.schema([("id", pa.int64())]), ["id"], 1)
        calls = 0
        while interrupted(server, client, calls + 1):
            calls += 1
        assert calls > 0


@pytest.mark.socket
@pytest.mark.parametrize("end", [scanner.sync.Client.close, lambda client: client._portal._give_up()])
def test_a_client_that_another_thread_closes_before_the_caller_has_its_lease_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: Callable[[scanner.sync.Client], None]
) -> None:
    """The acquisition has its answer, and its caller does not run yet; whether the client is closed then or closes."""
    wait = _Call.wait

    def wait_and_end(call: _Call) -> object:
        monkeypatch.undo()
        answer = wait(call)
        end(other)
        return answer

    with running_server(tmp_path) as server, scanner.sync.connect(server.endpoint) as client:
        client.create_table("items", pa.schema([("id", pa.int64())]), ["id"], 1)
        with scanner.sync.connect(server.endpoint) as other:
            monkeypatch.setattr(_Call, "wait", wait_and_end)
            with pytest.raises(trio.ClosedResourceError):
                other.acquire_lease("items")
        assert client.list_leases() == []


@pytest.mark.socket
def test_a_second_block_of_a_blocking_caller_leaves_the_first_its_lease(tmp_path: Path) -> None:
    """It is refused, as in the client for trio, and drops nothing."""
    with running_server(tmp_path) as server, scanner.sync.connect(server.endpoint) as client:
        client.create_table("items", pa.schema([("id", pa.int64())]), ["id"], 1)
        with client.acquire_lease("items") as lease:
            for _ in range(2):
                with pytest.raises(scanner.ArgumentInvalid, match="has had its block"), lease:
                    pass
            assert [each.lease_id for each in client.list_leases()] == [lease.id]
        assert client.list_leases() == []
