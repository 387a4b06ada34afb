"""When an image is made by itself, and what people are told of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.server.config import ScannerConfig
from scanner.server.image_policy import Shown, judge
from scanner.server.tables.image_use import REST_S_MAX, REST_S_MIN, ImageUse

CONFIG = ScannerConfig(image_bytes_min=1000)
OFF = ScannerConfig(images="off", image_bytes_min=1000)
DELTA_BYTES = CONFIG.image_delta_bytes_max
FRESH = Shown(rows=1_000_000, log_behind=10_000, log_lost=False)
STALE = Shown(rows=1_000_000, log_behind=10_001, log_lost=False)


def used(*scans: int, of_image: int = 0) -> ImageUse:
    """A bucket of which scans have read so many bytes of the row store."""
    use = ImageUse()
    for size in scans:
        use.read_rows(size, size)
    for _ in range(of_image):
        use.read_image(0.0)
    return use


@pytest.mark.parametrize(
    ("use", "shown", "due", "why"),
    [
        (used(), None, False, "no scan has asked"),
        (used(999, 999, 999), None, False, "MiB of rows at most, and one is made from"),
        (used(2000), None, False, "one is made at"),
        (used(2000, 1999), None, False, "one is made at"),
        (used(2000, 2000), None, True, "to be made"),
        (used(5000, 5000), FRESH, False, "fresh enough"),
        (used(), STALE, False, "hardly a scan"),
        (used(of_image=1), STALE, False, "hardly a scan"),
        (used(of_image=2), STALE, True, "many changes"),
        (used(1000), STALE, True, "many changes"),
        (used(of_image=2), Shown(10, 1000, False), False, "fresh enough"),
        (used(of_image=2), Shown(10, 1001, False), True, "many changes"),
        (used(of_image=2), Shown(1_000_000, 1, True), True, "cut behind it"),
        (used(of_image=2), Shown(1_000_000, 1, False, DELTA_BYTES // 2), False, "fresh enough"),
        (used(of_image=2), Shown(1_000_000, 1, False, DELTA_BYTES // 2 + 1), True, "many changes"),
    ],
)
def test_an_image_is_made_when_it_is_worth_it(
    use: ImageUse, shown: Shown | None, due: bool, why: str
) -> None:
    """From the second whole scan of a large bucket on, and anew when much was changed and it is read."""
    verdict = judge(CONFIG, use, shown, 0.0)
    assert verdict.due == due
    assert why in verdict.why
    assert judge(OFF, use, shown, 0.0) == (False, "made on demand alone (--images off)")


def test_pages_of_one_scan_are_one_scan() -> None:
    """A scan that is continued page by page, or split among many, reads the bucket once however often it is opened."""
    use = ImageUse()
    for page in range(1, 11):
        use.read_rows(200, 200 * page)
    assert not judge(CONFIG, use, None, 0.0).due
    for page in range(1, 11):
        use.read_rows(200, 200 * page)
    assert judge(CONFIG, use, None, 0.0).due


def test_a_making_that_was_of_no_use_is_followed_by_a_rest() -> None:
    """Longer each time, an hour at most; one that was of use ends it."""
    use = used(2000, 2000)
    now, rests = 0.0, []
    for _ in range(9):
        use.rest(now, "the disk is slow")
        rests.append(use.rest_until - now)
        verdict = judge(CONFIG, use, None, now)
        assert not verdict.due
        assert "the disk is slow" in verdict.why
        now = use.rest_until
        assert judge(CONFIG, use, None, now).due
    assert rests[:3] == [REST_S_MIN, 2 * REST_S_MIN, 4 * REST_S_MIN]
    assert rests[-1] == REST_S_MAX
    use.rest(now, "the disk is slow")
    use.was_useful()
    assert judge(CONFIG, use, None, now).due
    use.rest(now, "the disk is slow")
    assert use.rest_until - now == REST_S_MIN


@given(
    sizes=st.lists(st.integers(0, 10_000), max_size=6),
    image_scans=st.integers(0, 3),
    shown=st.none() | st.builds(Shown, st.integers(0, 10**6), st.integers(0, 10**6), st.booleans()),
)
def test_nothing_is_made_without_being_asked_for(
    sizes: list[int], image_scans: int, shown: Shown | None
) -> None:
    """Whatever there is, a bucket that nobody reads much of gets no image; and there is always a reason."""
    use = used(*sizes, of_image=image_scans)
    verdict = judge(CONFIG, use, shown, 0.0)
    assert verdict.why
    if verdict.due:
        assert sum(sizes) >= CONFIG.image_bytes_min or image_scans >= 2
    use.begin_anew()
    assert not judge(CONFIG, use, shown, 0.0).due
