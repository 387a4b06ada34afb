"""A version is decided only with the rows that its publisher knows of: none goes missing unseen, or is asked for twice.

Stages that are gone are played by another process that aborts the version: for whoever publishes, that is the same as a
restore or an expiry.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Literal, NamedTuple

import pytest
import trio
from hypothesis import example, given
from hypothesis import strategies as st

import scanner
from scanner.client.transactions import PartWriter
from scanner.errors import ArgumentInvalid, ServerUnavailable, StageNotFound, VersionSuperseded
from scanner.server.transactions import registry
from scanner.server.transactions.stage_writer import StageWriter
from scanner.server.transactions.verification import Chosen, Verification
from scanner.storage.memory.store import MemoryStore
from tests.support.client import open_client
from tests.support.transactions import BEFORE, contents, keys, make_table, rows

if TYPE_CHECKING:
    from scanner.server.server import Server
    from scanner.server.transactions.names import VersionKey
    from scanner.storage.transactions import TransactionFiles

pytestmark = [pytest.mark.socket]

TEN = rows(dict.fromkeys(range(100, 110), "ten"))
FIVE = rows(dict.fromkeys(range(200, 205), "five"))
Stage = Callable[[scanner.Transaction], Awaitable[None]]


class World(NamedTuple):
    """A table, and one version of a transaction in two processes."""

    server: Server
    table: scanner.Table
    mine: scanner.Transaction
    theirs: scanner.Transaction


@asynccontextmanager
async def worlds() -> AsyncIterator[World]:
    """One, with `BEFORE` in the table."""
    async with open_client(MemoryStore()) as (client, server):
        table = await make_table(client)
        async with scanner.connect(client.endpoint) as other:
            theirs = (await other.table("t")).transaction("load", 1)
            yield World(server, table, table.transaction("load", 1), theirs)


async def stage_in_part(transaction: scanner.Transaction) -> None:
    """Ten rows and keys, batch by batch; closed twice."""
    async with transaction.part(0, 0) as writer:
        await writer.upsert(TEN.slice(0, 6))
        await writer.delete(keys([1, 2, 3, 4]))
        await writer.close()
    assert (await writer.close()).rows == 10


async def stage_at_once(transaction: scanner.Transaction) -> None:
    """Ten rows."""
    await transaction.stage(TEN, part=0, attempt=0)


@pytest.mark.parametrize("stage", [stage_at_once, stage_in_part])
async def test_rows_that_are_gone_are_missed(stage: Stage) -> None:
    """Ten rows were staged and went, five came after: nothing is decided, and a new attempt is published."""
    async with worlds() as world:
        await stage(world.mine)
        await world.theirs.abort()
        await world.mine.stage(FIVE, part=0, attempt=0)
        with pytest.raises(StageNotFound) as refused:
            await world.mine.publish({0: 0})
        assert refused.value.message == (
            "of part 0, attempt 0, of version 1 of transaction 'load' of table 't' at least 15 rows and keys were"
            " staged, and 5 are there: stages have expired, were aborted, or were lost when the server's data was"
            " restored; nothing was decided: stage all rows of the part in a new attempt"
        )
        assert not refused.value.retriable
        assert await contents(world.table) == BEFORE
        assert [each.decided_version for each in await world.table.transactions()] == [None]
        await world.mine.stage(TEN, part=0, attempt=1)
        await world.mine.stage(FIVE, part=0, attempt=1)
        assert (await world.mine.publish({0: 1})).decided
        assert len(await contents(world.table)) == 20 + 15


@pytest.mark.parametrize("stage", [stage_at_once, stage_in_part])
async def test_rows_that_are_there_are_enough(stage: Stage) -> None:
    """Each stage counts once, whatever was done to make it, and however it was closed."""
    async with worlds() as world:
        await stage(world.mine)
        await world.mine.stage(FIVE, part=0, attempt=0)
        assert (await world.mine.publish({0: 0})).decided


async def test_what_other_processes_staged_is_told() -> None:
    """The larger of what `rows` says and of what was counted has to be there, part by part."""
    async with worlds() as world:
        await world.theirs.stage(TEN, part=0, attempt=0)
        await world.mine.stage(FIVE, part=1, attempt=0)
        attempts = {0: 0, 1: 0}
        for told, message in (
            ({0: 11}, "part 0, attempt 0, .* at least 11 rows and keys were staged, and 10 are there"),
            ({0: 10, 1: 6}, "part 1, attempt 0, .* at least 6 rows and keys were staged, and 5 are there"),
        ):
            with pytest.raises(StageNotFound, match=message):
                await world.mine.publish(attempts, rows=told)
        assert await contents(world.table) == BEFORE
        assert (await world.mine.publish(attempts, rows={0: 10, 1: 0})).decided


@pytest.mark.parametrize("told", [{}, {0: 0}, None])
async def test_who_knows_nothing_is_asked_for_nothing(told: dict[int, int] | None) -> None:
    """As every client did before: the attempt is published with what there is."""
    async with worlds() as world:
        await world.mine.stage(TEN, part=0, attempt=0)
        await world.theirs.abort()
        await world.mine.stage(FIVE, part=0, attempt=0)
        assert (await world.theirs.publish({0: 0}, rows=told)).decided
        assert len(await contents(world.table)) == 20 + 5


@pytest.mark.parametrize("told", [{1: 5}, {0: -1}, {0: 2**63}, {0: 2.0}, {0: True}])
async def test_rows_that_cannot_be(told: dict[int, int]) -> None:
    """One line says what may be, and nothing is decided."""
    async with worlds() as world:
        await world.mine.stage(FIVE, part=0, attempt=0)
        with pytest.raises(ArgumentInvalid, match=r"rows names part 1|a transaction's number of rows is"):
            await world.mine.publish({0: 0}, rows=told)
        assert await contents(world.table) == BEFORE
        assert (await world.mine.publish({0: 0}, rows={0: 5})).decided


@pytest.mark.parametrize("keys_max", [1_000_000, 3])
async def test_rows_count_once_however_often_they_are_read(
    monkeypatch: pytest.MonkeyPatch, keys_max: int
) -> None:
    """Stages with more keys than are compared at once are read several times."""
    made: list[Verification] = []

    def verification(
        files: TransactionFiles, chosen: Chosen, describe_key: Callable[[bytes], str]
    ) -> Verification:
        made.append(Verification(files, chosen, describe_key, keys_max))
        return made[-1]

    monkeypatch.setattr(registry, "Verification", verification)
    async with worlds() as world:
        await world.mine.stage(TEN, part=0, attempt=0)
        await world.mine.stage(FIVE, part=1, attempt=0)
        with pytest.raises(StageNotFound, match="at least 11 rows and keys were staged, and 10 are there"):
            await world.mine.publish({0: 0, 1: 0}, rows={0: 11})
        assert (await world.mine.publish({0: 0, 1: 0})).decided
    assert all((each.passes > 1) == (keys_max == 3) for each in made)


async def test_a_version_that_is_decided_is_answered_whatever_is_missing() -> None:
    """Its stages are gone with the decision; what was staged afterwards was not kept. A newer version supersedes it."""
    async with worlds() as world:
        await world.mine.stage(TEN, part=0, attempt=0)
        first = await world.mine.publish({0: 0})
        for late in (FIVE, TEN):
            assert (await world.mine.stage(late, part=0, attempt=0)).decided
        for again in (
            world.mine.publish({0: 0}),
            world.mine.publish({0: 0}, rows={0: 1000}),
            world.mine.publish({0: 7}, rows={0: 1000}),
            world.theirs.publish({0: 0, 1: 0}, rows={1: 5}),
            world.mine.publish({}),
        ):
            published = await again
            assert (published.decided, published.attempts, published.ranges) == (False, {0: 0}, first.ranges)
        await world.table.transaction("load", 2).publish({})
        with pytest.raises(VersionSuperseded):
            await world.mine.publish({0: 0}, rows={0: 1000})


async def test_a_stage_that_was_sent_again_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer was lost, or read before the connection was: it is there once, and asked for once."""
    async with worlds() as world:
        lost = ServerUnavailable("the answer was lost")
        with monkeypatch.context() as patch:
            _fail_once_behind(patch, StageWriter, "finish", lost)
            await world.mine.stage(TEN, part=0, attempt=0)
        with monkeypatch.context() as patch:
            _fail_once_behind(patch, PartWriter, "close", lost)
            await world.mine.stage(FIVE, part=0, attempt=0)
        assert [each.stages for each in await world.table.transactions()] == [2]
        assert (await world.mine.publish({0: 0})).decided


async def test_a_stage_whose_answer_never_came_may_be_there() -> None:
    """Then there is more than was counted, which is fine, as often as it was staged."""
    async with worlds() as world:
        with pytest.MonkeyPatch.context() as patch:
            _fail_once_behind(patch, StageWriter, "finish", ArgumentInvalid("not made again"))
            with pytest.raises(ArgumentInvalid):
                await world.mine.stage(TEN, part=0, attempt=0)
        await world.mine.stage(TEN, part=0, attempt=0)
        assert [each.stages for each in await world.table.transactions()] == [2]
        assert (await world.mine.publish({0: 0})).decided
        assert len(await contents(world.table)) == 30


async def test_a_close_that_was_cancelled_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stage is there, and called again `close` says so; leaving the block does that, too. Nothing can be added."""
    async with worlds() as world:
        real, cancelled = StageWriter.finish, trio.Event()

        async def finish(self: StageWriter) -> tuple[int, bool]:
            finished = await real(self)
            closing.cancel()
            await cancelled.wait()
            return finished

        monkeypatch.setattr(StageWriter, "finish", finish)
        async with world.mine.part(0, 0) as writer:
            await writer.upsert(TEN)
            with trio.CancelScope() as closing:
                await writer.close()
            cancelled.set()
            assert closing.cancelled_caught
            with pytest.raises(ArgumentInvalid, match="closed"):
                await writer.upsert(FIVE)
        assert (await writer.close()).rows == TEN.num_rows
        await world.theirs.abort()
        with pytest.raises(StageNotFound):
            await world.mine.publish({0: 0})


def _fail_once_behind(patch: pytest.MonkeyPatch, kind: type[object], method: str, error: Exception) -> None:
    """Have a method do its work and then fail, once."""
    real = getattr(kind, method)
    failures = [error]

    async def act(self: object) -> object:
        result = await real(self)
        if failures:
            raise failures.pop()
        return result

    patch.setattr(kind, method, act)


async def test_aborted_rows_are_missed_by_nobody() -> None:
    """After an abort the same object stages in the same attempt as if nothing had been."""
    async with worlds() as world:
        await world.mine.stage(TEN, part=0, attempt=0)
        await world.mine.abort()
        await world.mine.stage(FIVE, part=0, attempt=0)
        assert (await world.mine.publish({0: 0})).decided
        assert len(await contents(world.table)) == 20 + 5


async def test_an_abort_that_failed_frees_nobody_from_what_was_staged() -> None:
    """Some stages may be gone, so publishing is refused where they are; aborted again, the attempt begins anew."""
    async with worlds() as world:
        await world.mine.stage(TEN, part=0, attempt=0)
        with pytest.MonkeyPatch.context() as patch:
            real = registry.Transactions.abort

            async def abort(self: registry.Transactions, key: VersionKey) -> int:
                await real(self, key)
                raise ArgumentInvalid("not made again")

            patch.setattr(registry.Transactions, "abort", abort)
            with pytest.raises(ArgumentInvalid):
                await world.mine.abort()
        await world.mine.stage(FIVE, part=0, attempt=0)
        with pytest.raises(StageNotFound):
            await world.mine.publish({0: 0})
        await world.mine.abort()
        await world.mine.stage(FIVE, part=0, attempt=0)
        assert (await world.mine.publish({0: 0})).decided


@pytest.mark.parametrize("stage", [stage_at_once, stage_in_part])
async def test_a_stage_during_an_abort_is_not_counted(monkeypatch: pytest.MonkeyPatch, stage: Stage) -> None:
    """Whether it was freed nobody knows, so it is not asked for."""
    async with worlds() as world:
        real = StageWriter.finish

        async def finish(self: StageWriter) -> tuple[int, bool]:
            finished = await real(self)
            monkeypatch.undo()
            await world.mine.abort()
            return finished

        monkeypatch.setattr(StageWriter, "finish", finish)
        await stage(world.mine)
        await world.mine.stage(FIVE, part=0, attempt=0)
        assert (await world.mine.publish({0: 0})).decided


Act = tuple[Literal["stage", "part"], int, int] | Literal["abort", "lose"]
STAGED = st.tuples(st.sampled_from(["stage", "part"]), st.sampled_from([0, 0, 1]), st.integers(0, 4))
ACTS = st.lists(st.one_of(STAGED, st.sampled_from(["abort", "lose"])), min_size=1, max_size=8)


@given(acts=ACTS, attempt=st.sampled_from([0, 0, 1]))
@example(acts=[("stage", 0, 4), "lose", ("part", 0, 3)], attempt=0)
@example(acts=[("part", 0, 4), "lose", "abort", ("stage", 0, 1), ("stage", 1, 1)], attempt=0)
def test_published_if_nothing_is_missing(acts: list[Act], attempt: int) -> None:
    """Whatever was staged, aborted and lost: refused if rows are gone that were not aborted, and only then."""
    trio.run(_publish_after, acts, attempt)


async def _publish_after(acts: list[Act], attempt: int) -> None:
    async with worlds() as world:
        staged, there = [0, 0], [0, 0]
        stages = [0, 0]
        for number, act in enumerate(acts):
            if act == "lose":
                await world.theirs.abort()
                there, stages = [0, 0], [0, 0]
            elif act == "abort":
                await world.mine.abort()
                staged, there, stages = [0, 0], [0, 0], [0, 0]
            else:
                how, to, count = act
                batch = rows(dict.fromkeys(range(100 * number, 100 * number + count), "x"))
                if how == "stage":
                    await world.mine.stage(batch, part=0, attempt=to)
                else:
                    async with world.mine.part(0, to) as writer:
                        await writer.upsert(batch)
                staged[to] += count
                there[to] += count
                stages[to] += 1
        if stages[attempt] and there[attempt] == staged[attempt]:
            assert (await world.mine.publish({0: attempt})).decided
        else:
            with pytest.raises(StageNotFound):
                await world.mine.publish({0: attempt})
            assert await contents(world.table) == BEFORE
