"""The rules of reader groups, each against records that are right and against some that it must object to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from bench.simulation.group_validators import Delivered, GroupHistory, Stored, Written

END = 6


def right() -> GroupHistory:
    """One bucket. `a` reads it up to 2 and stores that, and gets 4, which it does not store; `b` goes on at 2."""
    return GroupHistory(
        delivered=[
            Delivered(1.0, "a", 0, 10, 0, 2),
            Delivered(2.0, "a", 0, 10, 2, 4),
            Delivered(4.0, "b", 0, 11, 2, 4),
            Delivered(6.0, "b", 0, 11, 4, END),
        ],
        stored=[
            Stored(1.5, "a", 0, 10, 2, True),
            Stored(4.5, "a", 0, 10, 4, False),
            Stored(6.5, "b", 0, 11, END, True),
        ],
        written=[
            Written(0, 10, None),
            Written(0, 10, 0),
            Written(0, 10, 2),
            Written(0, 11, 2),
            Written(0, 11, END),
        ],
        ends=[(0.0, {0: 0}), (0.5, {0: 2}), (5.0, {0: 4})],
    )


def unheard() -> GroupHistory:
    """The same, and nobody has listened at storage."""
    return replace(right(), written=[])


def found(history: GroupHistory) -> set[str]:
    """Names of the rules that are broken."""
    return {name for name, _ in history.violations({0: END})}


def stored_and_refused(history: GroupHistory) -> None:
    """The position 4 of `a` was stored; its answer was lost, and the repetition was refused. `b` begins behind it."""
    del history.delivered[2]
    if history.written:
        history.written[3:4] = [Written(0, 10, 4), Written(0, 11, 4)]


def test_right_records_are_right() -> None:
    """With what storage was given and without; also where a position was stored and refused."""
    for history in (right(), unheard()):
        assert found(history) == set()
        stored_and_refused(history)
        assert found(history) == set()


def test_what_was_refused_and_not_stored_is_no_beginning() -> None:
    """Storage tells it from the position whose answer was lost; who only sees readers cannot."""
    history = right()
    del history.delivered[2]
    assert found(history) == {"continued"}


def give_to_both(history: GroupHistory) -> None:
    history.delivered[3] = replace(history.delivered[3], reader="c")


def give_smaller_epoch(history: GroupHistory) -> None:
    history.delivered.append(Delivered(7.0, "b", 0, 9, 0, 2))
    history.written.append(Written(0, 9, 0))


def leave_out(history: GroupHistory) -> None:
    history.delivered[3] = replace(history.delivered[3], start=5)


def repeat(history: GroupHistory) -> None:
    history.delivered.insert(3, history.delivered[2])


def store_stale(history: GroupHistory) -> None:
    history.stored[1] = replace(history.stored[1], accepted=True)


def go_back(history: GroupHistory) -> None:
    history.written.append(Written(0, 11, 4))


def give_new_to_old(history: GroupHistory) -> None:
    history.delivered.insert(3, Delivered(5.5, "a", 0, 10, 4, END))


def stop_early(history: GroupHistory) -> None:
    history.stored.pop()
    if history.written:
        history.written.pop()


@pytest.mark.parametrize(
    ("harm", "rules", "rules_unheard"),
    [
        (give_to_both, {"owned"}, {"owned"}),
        (give_smaller_epoch, {"ascending", "forward", "delivered"}, {"ascending"}),
        (leave_out, {"continued", "delivered"}, {"continued", "delivered"}),
        (repeat, {"continued"}, {"continued"}),
        (store_stale, {"fenced"}, {"fenced", "continued"}),
        (go_back, {"forward", "delivered"}, set()),
        (give_new_to_old, {"alone"}, {"alone"}),
        (stop_early, {"delivered"}, {"delivered"}),
    ],
    ids=lambda it: getattr(it, "__name__", ""),
)
def test_harm_has_a_name(
    harm: Callable[[GroupHistory], None], rules: set[str], rules_unheard: set[str]
) -> None:
    """Records that were harmed are objected to by the rule of that harm; what storage alone can tell, with it only."""
    history = right()
    harm(history)
    assert found(history) == rules
    history = unheard()
    harm(history)
    history.written.clear()
    assert found(history) == rules_unheard
