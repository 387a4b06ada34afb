"""How calls share the event loop, and how the steps of a scan grow."""

from __future__ import annotations

import trio

from scanner.server.fairness import SlowStart, page_step_bytes, pass_turn

KIB = 1024


def test_steps_double_from_64_kib_up_to_a_bound() -> None:
    """A consumer that goes on taking gets larger steps; after a stall they begin anew."""
    slow_start = SlowStart()
    assert [slow_start.next_step_bytes(1) for _ in range(4)] == [64 * KIB, 128 * KIB, 256 * KIB, 512 * KIB]
    for _ in range(40):
        largest = slow_start.next_step_bytes(1)
    assert largest == 1 << 30
    slow_start.restart()
    assert slow_start.next_step_bytes(1) == 64 * KIB


def test_a_step_is_as_large_as_the_credit() -> None:
    """What the consumer has room for is read at once, also in the first step."""
    assert SlowStart().next_step_bytes(1 << 40) == 1 << 40


def test_a_step_for_a_page_reads_what_is_missing() -> None:
    """But at least an eighth of the page, and at least a byte."""
    assert page_step_bytes(8000, 0) == 8000
    assert page_step_bytes(8000, 5000) == 3000
    assert page_step_bytes(8000, 7999) == 1000
    assert page_step_bytes(1, 1) == 1


async def test_every_other_task_has_its_turns() -> None:
    """A task that passes its turn n times lets another one run as often, or once less: rounds have no order."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        await pass_turn()
        before = turns
        await pass_turn(8)
        assert turns - before >= 7
        nursery.cancel_scope.cancel()
