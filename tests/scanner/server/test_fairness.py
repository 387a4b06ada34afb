"""How calls share the event loop, and how the steps of a scan grow."""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from scanner.proto.weir.v1 import scanner_pb2, tables_pb2
from scanner.server.config import ScannerConfig
from scanner.server.fairness import (
    DEMAND_TURNS,
    DemandTurns,
    SlowStart,
    StepTurns,
    WholeBlocks,
    page_step_bytes,
    pass_turn,
)
from scanner.server.tables.catalog import Catalog
from scanner.storage.memory.store import MemoryStore
from scanner.wire import methods
from tests.support.rounds import counted_rounds
from tests.support.scans import create_table, description, filled_store, open_scan, serving
from transport import TransportConfig

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from scanner.server.tables.bucket import ServedBucket
    from scanner.server.tables.catalog import ServedTable

KIB = 1024
BUCKETS = range(40)


def test_steps_double_from_48_kib_up_to_a_bound() -> None:
    """A consumer that goes on taking gets larger steps; after a stall they begin anew."""
    slow_start = SlowStart()
    assert [slow_start.next_step_bytes(1) for _ in range(4)] == [48 * KIB, 96 * KIB, 192 * KIB, 384 * KIB]
    for _ in range(40):
        largest = slow_start.next_step_bytes(1)
    assert largest == 1 << 30
    slow_start.restart()
    assert slow_start.next_step_bytes(1) == 48 * KIB


def test_a_step_is_as_large_as_the_credit_up_to_four_times_the_one_before() -> None:
    """What the consumer has room for is read from the fourth step on: of two steps a connection takes all at once."""
    slow_start = SlowStart()
    for credit, sizes in ((1 << 40, [48, 192, 768, 3072]), (100 * KIB, [48, 100, 200, 400])):
        steps = [(slow_start.first, slow_start.next_step_bytes(credit)) for _ in sizes]
        assert steps == [(size == 48, size * KIB) for size in sizes]
        slow_start.restart()


async def test_the_second_batch_goes_out_before_the_third_step() -> None:
    """However much the consumer has room for: one of 2 MiB would wait behind the next step, and rows with it."""
    at_once = TransportConfig().near_send_buffer_bytes
    async with (
        serving(filled_store(40_000), ScannerConfig()) as (_, client),
        open_scan(client, credit=1 << 40) as scan,
    ):
        await scan.receive_all()
    first, second, third, *_ = scan.batch_sizes
    assert first < second < 0.75 * at_once < third


def test_a_step_for_a_page_reads_what_is_missing() -> None:
    """But at least an eighth of the page, and at least a byte."""
    assert page_step_bytes(8000, 0) == 8000
    assert page_step_bytes(8000, 5000) == 3000
    assert page_step_bytes(8000, 7999) == 1000
    assert page_step_bytes(1, 1) == 1


def test_demands_are_earned_by_what_is_sent() -> None:
    """A demand costs no turns once for each 64 KiB that were sent, and eight otherwise; what is earned is not saved."""
    turns = DemandTurns()
    sent = [0, 0, 65_535, 65_536, 65_536, 100_000, 131_071, 131_072, 10_000_000, 10_000_000, 10_065_535]
    free = [False, False, False, True, False, False, False, True, True, False, False]
    assert [turns.after(each) for each in sent] == [0 if each else DEMAND_TURNS for each in free]


async def test_every_other_task_has_its_turns() -> None:
    """A task that passes its turn n times lets another one run as often, or once less: rounds have no order."""
    async with counted_rounds() as rounds:
        await pass_turn()
        before = rounds.count
        await pass_turn(8)
        assert rounds.count - before >= 7


def test_a_block_waits_where_two_were_granted() -> None:
    """For twenty milliseconds; who has granted less than two at a time, or as much as it needs, gets it sent."""
    blocks = WholeBlocks()
    blocks.granted(199)
    assert not blocks.wait(100, 99, now=1.0)
    blocks.granted(200)
    assert not blocks.wait(100, 100, now=1.0)
    assert not blocks.wait(0, 0, now=1.0)
    assert [blocks.wait(100, 99, now) for now in (1.0, 1.019, 1.0201, 2.0)] == [True, True, False, False]


def test_a_consumer_that_keeps_blocks_waiting_gets_them_cut() -> None:
    """After each that waited in vain twice as many and one are cut at once; each that got its credit halves that."""
    blocks, now, waits = WholeBlocks(), 0.0, ""
    blocks.granted(1000)
    for _ in range(20):
        waited = blocks.wait(100, 1, now)
        waits += "w" if waited else "c"
        now += 1.0
        blocks.sent(now)
    assert waits == "wcwcccwcccccccwccccc"
    for _ in range(20):
        while not blocks.wait(100, 1, now):
            blocks.sent(now)
        blocks.sent(now + 0.001)
    assert blocks.wait(100, 1, now)


@pytest.mark.parametrize("tasks", [1, 2, 7])
async def test_a_pass_of_the_loop_has_one_step(tasks: int) -> None:
    """Whoever steps, every other task has had its turn since the step before; and the turns go round."""
    turns, steps = StepTurns(), []

    async def step_often(number: int) -> None:
        for _ in range(20):
            await turns.take(1, first=False)
            steps.append((number, passes.count))
            await turns.pass_on(1)

    async with counted_rounds() as passes, trio.open_nursery() as stepping:
        for number in range(tasks):
            stepping.start_soon(step_often, number)

    # The order within a pass is open, so of three steps two have a count between them.
    at = [passed for _, passed in steps]
    assert all(later > earlier for earlier, later in zip(at, at[2:], strict=False))
    order = [number for number, _ in steps]
    assert order == order[:tasks] * 20


async def test_eight_first_steps_come_to_one_further() -> None:
    """While both wait; then whichever do, in the order in which they came."""
    turns, order = StepTurns(), ""

    async def step(name: str, first: bool) -> None:
        nonlocal order
        await turns.take(1, first=first)
        order += name
        await turns.pass_on(1)

    await turns.take(1, first=False)
    async with trio.open_nursery() as nursery:
        for name in "abcd":
            nursery.start_soon(step, name, False)
            await trio.testing.wait_all_tasks_blocked()
        for name in "0123456789":
            nursery.start_soon(step, name, True)
            await trio.testing.wait_all_tasks_blocked()
        await turns.pass_on(1)

    assert order == "01234567a89bcd"


@pytest.mark.parametrize(
    ("scans", "step_bytes"),
    [(1, 1 << 30), (2, 2048 * KIB), (4, 1024 * KIB), (6, 704 * KIB), (64, 704 * KIB)],
)
async def test_steps_are_smaller_the_more_scans_take_turns(scans: int, step_bytes: int) -> None:
    """So that a round of all of them takes no longer; down to what pays for a step."""
    turns = StepTurns()
    await turns.take(1, first=False)
    async with trio.open_nursery() as nursery:
        for number in range(scans - 1):
            nursery.start_soon(functools.partial(turns.take, number, first=number % 2 == 0))
        await trio.testing.wait_all_tasks_blocked()

        assert turns.step_bytes == step_bytes

        nursery.cancel_scope.cancel()
    assert turns.step_bytes == 1 << 30


@pytest.mark.parametrize(
    ("connections", "rounds"), [((1, 1), (6, 9)), ((1, 2), (0, 3))], ids=["one connection", "two connections"]
)
async def test_rounds_without_a_step(connections: tuple[int, ...], rounds: tuple[int, int]) -> None:
    """Who passes its turn on after several rounds lets every other task have as many turns before the next step.

    But no scan of another connection waits for them.
    """
    turns, at = StepTurns(), []

    async def step_often(connection_id: int) -> None:
        for _ in range(3):
            await turns.take(connection_id, first=False)
            at.append(passes.count)
            await turns.pass_on(connection_id, 7)

    async with counted_rounds() as passes, trio.open_nursery() as stepping:
        for connection_id in connections:
            stepping.start_soon(step_often, connection_id)
    # The order within a round is open, so one more or less may be counted. Nobody waits any more at the last step.
    least, most = rounds
    assert all(least <= later - earlier <= most for earlier, later in itertools.pairwise(at[:-1])), at


async def test_who_is_cancelled_keeps_no_turn() -> None:
    """Neither while it waits, nor when it has just been given one, nor while it passes one on."""
    turns, stepped = StepTurns(), 0

    async def step() -> None:
        nonlocal stepped
        await turns.take(1, first=False)
        stepped += 1
        await turns.pass_on(1)

    await turns.take(1, first=False)
    async with trio.open_nursery() as nursery:
        scopes = [trio.CancelScope() for _ in range(3)]

        async def step_in(scope: trio.CancelScope) -> None:
            with scope:
                await step()

        for scope in scopes:
            nursery.start_soon(step_in, scope)
            await trio.testing.wait_all_tasks_blocked()
        scopes[1].cancel()  # It waits.
        await trio.testing.wait_all_tasks_blocked()
        scopes[0].cancel()  # It is given its turn before it has heard of that.
        turns.give_back()
    with trio.CancelScope() as cancelled:
        cancelled.cancel()
        await step()

    assert stepped == 2  # The third one, and the one that was cancelled after its step.
    with trio.fail_after(60):
        await step()


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        (methods.LIST_OFFSETS, tables_pb2.ListOffsetsRequest(table="items")),
        (
            methods.MEASURE_LOG,
            tables_pb2.MeasureLogRequest(
                table="items", positions=[tables_pb2.MeasurePosition(bucket=each) for each in BUCKETS]
            ),
        ),
        (
            methods.FETCH_LOG,
            scanner_pb2.FetchLogRequest(
                query=scanner_pb2.ScanQuery(table="items"),
                positions=[scanner_pb2.FetchPosition(bucket=each) for each in BUCKETS],
                max_wait_ms=0,
            ),
        ),
    ],
    ids=["offsets", "measures", "fetch"],
)
async def test_a_call_on_many_buckets_lets_others_have_their_turns(
    monkeypatch: pytest.MonkeyPatch, path: str, asked: Message
) -> None:
    """Of a thousand buckets it would hold up all others for some tenths of a second."""
    looked_at: list[int] = []
    find = Catalog.bucket

    async def bucket(catalog: Catalog, table: ServedTable, index: int) -> ServedBucket:
        looked_at.append(rounds.count)
        return await find(catalog, table, index)

    async with serving(MemoryStore(), ScannerConfig()) as (_, client):
        await create_table(client, description(buckets=len(BUCKETS)))
        await client.call(
            methods.LIST_OFFSETS, tables_pb2.ListOffsetsRequest(table="items").SerializeToString()
        )
        monkeypatch.setattr(Catalog, "bucket", bucket)
        async with counted_rounds() as rounds:
            await client.call(path, asked.SerializeToString())
    assert len(looked_at) == len(BUCKETS)
    # Sixteen in each pass of the loop; those of two passes, where this task has its turn in front of the call's.
    assert max(len(list(each)) for _, each in itertools.groupby(looked_at)) <= 32
