"""The overlay: first entries win wherever they lie, memory is bounded, work comes in pieces, nothing is left."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.errors import SnapshotLost, StoreFailed
from scanner.sources.overlay import Overlay, OverlayLimits
from scanner.sources.sorted_runs import ENTRY_BYTES
from tests.support.open_files import open_files

ENTRIES = st.lists(
    st.tuples(st.binary(min_size=1, max_size=2), st.none() | st.binary(max_size=8)), max_size=300
)


def add(overlay: Overlay, keys: list[bytes], rows: list[bytes | None]) -> None:
    """Add, and do the work that comes of it."""
    overlay.add(keys, rows)
    while overlay.wants_step:
        overlay.step()


def finish(overlay: Overlay) -> None:
    """Make ready for taking."""
    overlay.finish()
    while overlay.wants_step:
        overlay.step()


def take_all(overlay: Overlay, count: int = 100) -> list[tuple[bytes, bytes | None]]:
    """Take everything."""
    taken: list[tuple[bytes, bytes | None]] = []
    while overlay.next_key is not None:
        taken += zip(*overlay.take(None, count)[0], strict=True)
    return taken


@given(ENTRIES, st.sampled_from([1, 500, 5000, 1 << 20]), st.integers(1, 40), st.integers(1, 50))
def test_the_first_entry_of_a_key_counts(
    entries: list[tuple[bytes, bytes | None]], bytes_max: int, piece: int, count: int
) -> None:
    """Whatever the memory and the pieces: what comes out is what a dict and `setdefault` say, in key order."""
    overlay = Overlay(OverlayLimits(bytes_max=bytes_max))
    expected: dict[bytes, bytes | None] = {}
    for start in range(0, len(entries), piece):
        part = entries[start : start + piece]
        add(overlay, [key for key, _ in part], [row for _, row in part])
        for key, row in part:
            expected.setdefault(key, row)
    finish(overlay)
    taken = take_all(overlay, count)
    overlay.close()

    assert taken == sorted(expected.items())
    assert overlay.entries >= len(expected)
    assert (overlay.spilled_bytes > 0) == (bytes_max == 1 and len(expected) > 0) or bytes_max > 1


@pytest.mark.parametrize(("bytes_max", "total"), [(100_000, 9_000), (1_000_000, 40_000)])
def test_memory_stays_within_its_limit(bytes_max: int, total: int, tmp_path: Path) -> None:
    """At every step, with many times as many entries as fit, read and merged from disk to the last."""
    limits = OverlayLimits(bytes_max=bytes_max, directory=tmp_path)
    overlay = Overlay(limits)
    seen = 0
    for start in range(0, total, limits.add_entries_max):
        numbers = range(start, min(total, start + limits.add_entries_max))
        # A stride that is coprime to the total: every key once, in no order.
        overlay.add(
            [(number * 7919 % total).to_bytes(8, "big") for number in numbers], [b"r" * 40] * len(numbers)
        )
        seen = max(seen, overlay.memory_bytes)
        while overlay.wants_step:
            overlay.step()
            seen = max(seen, overlay.memory_bytes)
    finish(overlay)
    taken = 0
    while overlay.next_key is not None:
        entries, _ = overlay.take(None, 500)
        taken += len(entries.keys)
        seen = max(seen, overlay.memory_bytes)

    assert taken == total
    assert bytes_max // 2 < seen <= bytes_max
    assert overlay.spilled_bytes > total * 40 // 2
    assert open_files(tmp_path)
    overlay.close()
    assert open_files(tmp_path) == []


def test_hot_keys_take_no_room() -> None:
    """A key that changes a million times is one entry."""
    overlay = Overlay(OverlayLimits(bytes_max=10_000))
    for _ in range(1000):
        add(overlay, [b"a", b"b"], [b"first", None])
    assert (overlay.entries, overlay.spilled_bytes) == (2, 0)
    finish(overlay)
    assert take_all(overlay) == [(b"a", b"first"), (b"b", None)]


def test_many_runs_are_merged_into_one(tmp_path: Path) -> None:
    """However many runs are written, few are open, and the earliest entry still counts."""
    overlay = Overlay(OverlayLimits(bytes_max=1, directory=tmp_path))
    for number in range(200):
        add(overlay, [bytes([number % 50])], [str(number).encode()])
        assert len(open_files(tmp_path)) <= 1
    finish(overlay)
    # One key, and what it takes beside its byte, of each run that is open.
    assert overlay.memory_bytes <= 32 * (ENTRY_BYTES + 1)
    assert take_all(overlay) == [(bytes([number]), str(number).encode()) for number in range(50)]
    overlay.close()
    assert open_files(tmp_path) == []


def test_memory_is_what_the_entries_take() -> None:
    """Key, row and a share of each entry; one that is there already takes nothing more."""
    overlay = Overlay(OverlayLimits())
    overlay.add([b"abc", b"d"], [bytes(1_000), None])
    assert overlay.memory_bytes == 2 * ENTRY_BYTES + 3 + 1_000 + 1
    overlay.add([b"d", b"ef"], [bytes(500), bytes(20)])
    assert overlay.memory_bytes == 3 * ENTRY_BYTES + 3 + 1_000 + 1 + 2 + 20
    assert (overlay.entries, overlay.spilled_bytes, overlay.wants_step) == (3, 0, False)
    overlay.close()


def test_disk_takes_little_more_than_the_entries() -> None:
    """Small entries lie there many to a block: a few bytes each beside their keys and rows."""
    overlay = Overlay(OverlayLimits(bytes_max=1 << 18))
    while not overlay.spilled_bytes:
        add(overlay, [overlay.entries.to_bytes(4, "big")], [bytes(20)])
    assert 24 * overlay.entries < overlay.spilled_bytes < 36 * overlay.entries
    overlay.close()


def test_what_may_be_added_at_once_follows_from_the_memory() -> None:
    """A sixteenth of it, up to a mebibyte."""
    sizes = {16: 1, 1_600: 100, 16 << 20: 1 << 20, 1 << 30: 1 << 20}
    assert {size: OverlayLimits(bytes_max=size).add_bytes_max for size in sizes} == sizes


def test_without_disk_what_does_not_fit_gives_the_state_up() -> None:
    """A limit of no temporary disk is one; what fits into memory never asks for any."""
    limits = OverlayLimits(bytes_max=10_000, spill_bytes_max=0)
    overlay = Overlay(limits)
    add(overlay, [b"a"], [b"row"])
    finish(overlay)
    assert take_all(overlay) == [(b"a", b"row")]
    overlay.close()
    overlay = Overlay(limits)
    with pytest.raises(SnapshotLost, match="overlay_spill_bytes_max"):
        add(overlay, [b"a"], [bytes(10_000)])
    overlay.close()


def test_too_much_on_disk_gives_the_state_up(tmp_path: Path) -> None:
    """Past the limit of temporary disk there is one error, and closing leaves nothing."""
    overlay = Overlay(OverlayLimits(bytes_max=1, spill_bytes_max=2000, directory=tmp_path))
    with pytest.raises(SnapshotLost, match="overlay_spill_bytes_max"):
        for number in range(1000):
            add(overlay, [number.to_bytes(2, "big")], [b"row"])
    overlay.close()
    assert open_files(tmp_path) == []


def test_a_disk_that_fails_is_a_failed_store(tmp_path: Path) -> None:
    """The error is typed, and closing does not fail for it."""
    overlay = Overlay(OverlayLimits(bytes_max=1, directory=tmp_path / "nowhere"))
    with pytest.raises(StoreFailed, match="nowhere"):
        add(overlay, [b"a"], [b"row"])
    overlay.close()


@pytest.mark.parametrize("steps", [0, 1, 2, 40, 69])
def test_closing_at_any_time_leaves_nothing(steps: int, tmp_path: Path) -> None:
    """Also in the middle of sorting, writing, or merging runs, where two files are open."""
    overlay = Overlay(OverlayLimits(bytes_max=1, directory=tmp_path))
    for number in range(32):
        overlay.add([bytes([number])], [b"row"])
        while overlay.wants_step and (number < 31 or steps > 0):
            steps -= number == 31
            overlay.step()
    overlay.close()
    overlay.close()
    assert open_files(tmp_path) == []
    assert (overlay.memory_bytes, overlay.next_key, overlay.wants_step) == (0, None, False)


def test_an_empty_overlay_is_ready_at_once(tmp_path: Path) -> None:
    """Nothing added: nothing to take, and no file was made."""
    overlay = Overlay(OverlayLimits(directory=tmp_path))
    finish(overlay)
    assert overlay.finished
    assert overlay.next_key is None
    assert overlay.take(b"key", 10)[0].keys == []
    assert open_files(tmp_path) == []


@pytest.mark.parametrize("limits", [{"bytes_max": 0}, {"spill_bytes_max": -1}])
def test_limits_are_checked(limits: dict[str, int]) -> None:
    """A limit that makes no sense is refused when it is set."""
    with pytest.raises(ValueError, match=next(iter(limits))):
        OverlayLimits(**limits)  # type: ignore[arg-type]
