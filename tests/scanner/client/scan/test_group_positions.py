"""How far a reader was handed its buckets: what is owed, what is lost, and by which epoch a position was told."""

from __future__ import annotations

from scanner.client.scan.group_positions import GroupPositions, Handed


def _handed_out(*, rows: bool = True) -> GroupPositions:
    """Bucket 0, by epoch 1 up to offset 10."""
    positions = GroupPositions()
    if rows:
        positions.take_rows(0)
    positions.take_position(0, epoch=1, position=10)
    return positions


def test_what_the_filter_passes_over_is_owed_only_behind_rows_that_are_not_stored() -> None:
    """A position without rows before it may be stored by itself, and one behind rows that are stored."""
    assert _handed_out(rows=False).passed_over == {0: Handed(1, 10, owed=False)}
    positions = _handed_out()
    assert not positions.passed_over
    positions.take_position(0, epoch=1, position=12)
    assert not positions.passed_over
    positions.take_stored(0, positions.not_stored[0])
    assert positions.is_stored(0)
    positions.take_position(0, epoch=1, position=14)
    assert positions.passed_over == {0: Handed(1, 14, owed=False)}


def test_what_an_epoch_leaves_behind_is_lost_once() -> None:
    """A reader is told of rows that it has and that another one gets, and not of what it has stored."""
    positions = _handed_out()
    positions.begin_epoch(0)
    assert positions.lost((), all_meant=False) == ()
    assert positions.lost((), all_meant=True) == (0,)
    assert positions.lost((), all_meant=True) == ()
    stored = _handed_out()
    stored.take_stored(0, stored.not_stored[0])
    stored.begin_epoch(0)
    assert stored.lost((), all_meant=True) == ()


def test_an_answer_that_comes_when_the_epoch_is_over_still_counts() -> None:
    """The position was on its way while the bucket was given to this reader anew."""
    positions = _handed_out()
    on_its_way = positions.not_stored[0]
    positions.begin_epoch(0)
    positions.take_stored(0, on_its_way)
    assert positions.lost((), all_meant=True) == ()


def test_an_answer_counts_for_the_position_that_was_sent() -> None:
    """What was handed out while that was on its way is to be stored still."""
    positions = _handed_out()
    on_its_way = positions.not_stored[0]
    positions.take_rows(0)
    positions.take_position(0, epoch=1, position=20)
    positions.take_stored(0, on_its_way)
    assert positions.not_stored == {0: Handed(1, 20, owed=True)}
    assert not positions.all_stored


def test_a_refusal_of_an_old_epoch_leaves_the_new_one() -> None:
    """What is handed out by now is of an epoch that the server has not refused."""
    positions = _handed_out()
    old = positions.not_stored[0]
    positions.begin_epoch(0)
    positions.take_rows(0)
    positions.take_position(0, epoch=2, position=12)
    positions.take_stale(0, old)
    assert positions.ends == {0: 12}
    positions.take_stale(0, positions.not_stored[0])
    assert positions.ends == {}


def test_a_position_has_the_epoch_that_told_it() -> None:
    """One of an earlier epoch is not passed for the present one, as which the server would take it."""
    positions = _handed_out()
    assert positions.epoch_of(0, 10, assigned=1) == 1
    assert positions.epoch_of(1, 10, assigned=None) is None
    assert positions.epoch_of(1, 10, assigned=3) == 3
    positions.begin_epoch(0)
    assert positions.epoch_of(0, 10, assigned=2) == 1
    positions.take_position(0, epoch=2, position=12)
    assert positions.epoch_of(0, 10, assigned=2) == 2
    assert positions.was_told_before(0, 10)
    assert not positions.was_told_before(0, 12)


def test_what_an_epoch_began_is_not_owed_by_the_next() -> None:
    """The rows come again behind the stored position; what the filter passes over before them may be stored."""
    positions = GroupPositions()
    positions.take_rows(0)
    positions.begin_epoch(0)
    positions.take_position(0, epoch=2, position=12)
    assert positions.passed_over == {0: Handed(2, 12, owed=False)}


def test_what_an_earlier_epoch_told_is_stored_by_that_epoch() -> None:
    """The server refuses it then: by the present one it would go past changes that nobody was given."""
    positions = _handed_out()
    positions.begin_epoch(0)
    positions.take_position(0, epoch=2, position=6)
    assert [positions.epoch_of(0, position, 2) for position in (6, 8, 10, 12)] == [2, 1, 1, 2]
    positions.begin_epoch(0)
    assert [positions.was_told_before(0, position) for position in (6, 10, 12)] == [True, True, False]
