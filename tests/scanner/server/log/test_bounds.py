"""What a changelog still has, by the times of its commits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from scanner.server.log.bounds import keeps_since

if TYPE_CHECKING:
    from scanner.storage.interface import Bucket


@pytest.mark.parametrize(
    ("start", "truncated_us", "times_us", "time_us", "kept"),
    [
        (0, None, (300, 500), 0, True),  # Nothing was cut.
        (10, 100, (300, 500), 100, False),  # The commit of this very time was.
        (10, 100, (300, 500), 101, True),
        (10, None, (300, 500), 101, False),  # Nothing tells.
        (10, None, (500,), 500, False),
        (10, None, (500,), 600, True),  # None is as young.
        (10, None, (300, 500), 301, True),  # One that is older is there.
    ],
)
def test_what_is_kept_since_a_time(
    start: int, truncated_us: int | None, times_us: tuple[int, ...], time_us: int, kept: bool
) -> None:
    """A log of commits of some times, in front of which some may have been cut."""
    storage = SimpleNamespace(log_start=start, truncated_commit_us=truncated_us, newest_commit_us=500)
    offset = start + sum(each < time_us for each in times_us)
    assert keeps_since(cast("Bucket", storage), offset, time_us) is kept
