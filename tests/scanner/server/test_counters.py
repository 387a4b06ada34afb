"""The counters of a server's life."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scanner.server.counters import Activity, Histogram


def test_a_bound_belongs_to_its_class() -> None:
    """Classes are closed above; what is over the last bound has a class of its own."""
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.5):
        histogram.observe(value)
    frozen = histogram.freeze()
    assert frozen.counts == (2, 2, 1)
    assert (frozen.count, frozen.total) == (5, 7.5)


@given(st.lists(st.floats(0, 100)))
def test_every_observation_is_in_one_class(values: list[float]) -> None:
    """The classes add up to the number of observations."""
    histogram = Histogram((0.1, 1.0, 10.0))
    for value in values:
        histogram.observe(value)
    assert histogram.freeze().count == len(values)


def test_a_snapshot_does_not_change() -> None:
    """What was frozen stays as it was."""
    activity = Activity()
    before = activity.freeze()
    activity.scans_ended["limit"] += 1
    activity.commits.observe(0.5)
    assert (before.scans_ended, before.commits.count) == ({}, 0)
    assert (activity.freeze().scans_ended, activity.freeze().commits.count) == ({"limit": 1}, 1)
