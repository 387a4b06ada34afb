"""What scans by token keep between their pages: caps, TTL, and who lets go of what when."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from scanner.errors import SnapshotLost, TableNotFound, TooManyScans
from scanner.server.config import ScannerConfig
from scanner.server.pull.page_snapshots import PageSnapshots

if TYPE_CHECKING:
    from scanner.server.pull.kept import Kept

TTL_S = 60.0
CONFIG = ScannerConfig(
    page_snapshots_per_bucket_max=2,
    page_snapshots_max=3,
    page_snapshot_ttl_s=TTL_S,
    session_sweep_interval_s=10.0,
)


@dataclass(eq=False)
class Resource:
    """Remembers how it was closed, each time."""

    closed: list[bool] = field(default_factory=list)

    def close(self, *, linger: bool = False) -> None:
        """Let go."""
        self.closed.append(linger)


Snapshots = PageSnapshots[Resource]


@pytest.fixture
def snapshots() -> Snapshots:
    """A registry with small caps and predictable ids."""
    return PageSnapshots(CONFIG, itertools.count(1).__next__)


def keep(snapshots: Snapshots, bucket: str = "a", now: float = 0.0) -> tuple[int, Resource]:
    """What the first page of a scan leaves."""
    reservation = snapshots.kept.reserve(bucket)
    resource, kept_id = Resource(), snapshots.kept.new_id()
    snapshots.keep(reservation, kept_id, resource, now)
    snapshots.kept.release(reservation)
    return kept_id, resource


def enter(snapshots: Snapshots, kept_id: int, now: float = 0.0) -> Kept[int, Resource]:
    """Begin a page of a scan that has not finished."""
    kept = snapshots.enter(kept_id, now)
    assert kept is not None
    return kept


def kept_of(snapshots: Snapshots, kept_id: int) -> Kept[int, Resource]:
    """What is kept under an id."""
    kept = snapshots.kept.get(kept_id)
    assert kept is not None
    return kept


def give_up(snapshots: Snapshots, kept_id: int, now: float, grace_s: float) -> None:
    """The first page may not have arrived."""
    snapshots.kept.give_up(kept_of(snapshots, kept_id), now, grace_s)


def test_any_number_of_pages_at_once(snapshots: Snapshots) -> None:
    """Pages of one token may be made at the same time; each is begun and ended by itself."""
    kept_id, resource = keep(snapshots)
    pages = [enter(snapshots, kept_id) for _ in range(3)]
    for page in pages:
        snapshots.leave(page, 1.0, made=True)

    assert enter(snapshots, kept_id, 2.0) is pages[0]
    assert not resource.closed


def test_last_page_finishes_and_can_be_repeated(snapshots: Snapshots) -> None:
    """The last page gives back slot and snapshot, which may linger; a repetition is told so, and is not lost."""
    kept_id, resource = keep(snapshots)
    twice = [enter(snapshots, kept_id) for _ in range(2)]
    for page in twice:
        snapshots.leave(page, 0.0, made=True)
        snapshots.finish(page)

    assert (resource.closed, len(snapshots.kept)) == ([True], 0)
    assert snapshots.enter(kept_id, 1000.0) is None
    assert [keep(snapshots)[0] for _ in range(2)]


def test_idle_snapshot_is_lost(snapshots: Snapshots) -> None:
    """Past its TTL it is gone, swept or not, and nothing lingers."""
    swept, found = keep(snapshots, "a"), keep(snapshots, "b")

    assert snapshots.kept.sweep(TTL_S - 0.1) == 0
    with pytest.raises(SnapshotLost, match="60 s"):
        snapshots.enter(found[0], TTL_S)
    assert snapshots.kept.sweep(TTL_S) == 1
    with pytest.raises(SnapshotLost):
        snapshots.enter(swept[0], TTL_S)
    assert (swept[1].closed, found[1].closed, len(snapshots.kept)) == ([False], [False], 0)


def test_only_made_pages_extend_a_life(snapshots: Snapshots) -> None:
    """A page that was made does, one that failed or was asked for and refused does not."""
    kept_id, _ = keep(snapshots)
    snapshots.leave(enter(snapshots, kept_id, 50.0), 50.0, made=True)
    snapshots.leave(enter(snapshots, kept_id, 100.0), 100.0, made=False)

    assert snapshots.kept.sweep(109.0) == 0
    assert snapshots.kept.sweep(110.0) == 1


def test_page_that_is_being_made_outlasts_the_ttl(snapshots: Snapshots) -> None:
    """However long it takes, what it is made of stays; its time starts over with the page."""
    kept_id, _ = keep(snapshots)
    page = enter(snapshots, kept_id)

    assert snapshots.kept.sweep(1000.0) == 0
    snapshots.leave(page, 1000.0, made=True)
    assert snapshots.kept.sweep(1059.0) == 0


def test_close_is_idempotent(snapshots: Snapshots) -> None:
    """Closing lets go once, without lingering; closing again, or what never was, is no error."""
    kept_id, resource = keep(snapshots)
    page = enter(snapshots, kept_id)
    for each in (kept_id, kept_id, 999):
        snapshots.close(each)
    snapshots.leave(page, 0.0, made=True)
    snapshots.finish(page)

    assert (resource.closed, len(snapshots.kept)) == ([False], 0)
    with pytest.raises(SnapshotLost):
        snapshots.enter(kept_id, 0.0)


@pytest.mark.parametrize("continued", [False, True])
@pytest.mark.parametrize("grace_s", [0.0, 10.0])
def test_lost_first_page(snapshots: Snapshots, continued: bool, grace_s: float) -> None:
    """A first page that may not have arrived leaves nothing, unless its token came back, or comes in time."""
    kept_id, resource = keep(snapshots)
    if continued:
        snapshots.leave(enter(snapshots, kept_id), 0.0, made=False)
    give_up(snapshots, kept_id, 1.0, grace_s)
    snapshots.kept.sweep(10.9)
    assert len(snapshots.kept) == int(continued or grace_s > 0)
    snapshots.kept.sweep(11.0)

    assert resource.closed == ([] if continued else [False])


def test_grace_is_over_when_the_scan_goes_on(snapshots: Snapshots) -> None:
    """A client that comes back with its token in time has its whole TTL again; whose time was over stays over."""
    kept_id, _ = keep(snapshots)
    give_up(snapshots, kept_id, 1.0, 10.0)
    snapshots.leave(enter(snapshots, kept_id, 10.0), 10.0, made=True)

    assert snapshots.kept.sweep(69.0) == 0
    assert snapshots.kept.sweep(70.0) == 1


def test_caps_refuse_and_leave_the_count_unchanged(snapshots: Snapshots) -> None:
    """The one too many on a bucket, and on the server, is refused; a freed slot can be taken again."""
    first, _ = keep(snapshots, "a")
    keep(snapshots, "a")
    for _ in range(3):
        with pytest.raises(TooManyScans, match="2 scans by token are open on this bucket"):
            snapshots.kept.reserve("a")
    keep(snapshots, "b")
    for _ in range(3):
        with pytest.raises(TooManyScans, match="3 scans by token are open on this server"):
            snapshots.kept.reserve("c")
    snapshots.close(first)

    keep(snapshots, "a")


def test_lost_first_page_makes_room(snapshots: Snapshots) -> None:
    """At a cap, a snapshot that nobody has come back to goes; one of another bucket does not help a full one."""
    lost, resource = keep(snapshots, "a")
    elsewhere, untouched = keep(snapshots, "b")
    give_up(snapshots, lost, 0.0, 10.0)
    give_up(snapshots, elsewhere, 0.0, 10.0)
    keep(snapshots, "a")
    keep(snapshots, "a")

    assert (resource.closed, untouched.closed) == ([False], [])


def test_first_page_that_is_the_last_holds_no_slot(snapshots: Snapshots) -> None:
    """A reservation that is not used is given back, once."""
    for _ in range(5):
        reservation = snapshots.kept.reserve("a")
        snapshots.kept.release(reservation)
        snapshots.kept.release(reservation)

    assert len(snapshots.kept) == 0


def test_end_of_the_bucket_is_told(snapshots: Snapshots) -> None:
    """A page after it fails with what ended the scan, not with a time that was not over; again, and among many."""
    kept_id, resource = keep(snapshots)
    snapshots.end(kept_of(snapshots, kept_id), TableNotFound("table 'a' was dropped"))
    assert resource.closed == [False]
    for _ in range(2):
        with pytest.raises(TableNotFound, match="table 'a' was dropped"):
            snapshots.enter(kept_id, 0.0)
    snapshots.close(kept_id)
    for _ in range(10_000):
        other, _ = keep(snapshots)
        snapshots.end(kept_of(snapshots, other), TableNotFound("table 'a' was dropped"))
    with pytest.raises(SnapshotLost):
        snapshots.enter(kept_id, 0.0)


def test_end_of_the_server_closes_all(snapshots: Snapshots) -> None:
    """Everything is let go of, and nothing lingers."""
    resources = [keep(snapshots, bucket)[1] for bucket in "ab"]
    snapshots.kept.close_all()

    assert [each.closed for each in resources] == [[False], [False]]
