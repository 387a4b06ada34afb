"""The comparison of a changelog with the rows, over plain tuples."""

from __future__ import annotations

import random

import pytest

from scanner.storage.records import ChangeKind
from scanner.storage.rocksdb.folding import Disagreements, compare

INSERT, BEFORE, AFTER, DELETE = ChangeKind

Change = tuple[int, int, bytes, bytes]


def history(seed: int, keys: int, writes: int) -> tuple[list[Change], dict[bytes, bytes]]:
    """Random writes to some keys: the changelog, and the rows that it leads to."""
    rng = random.Random(seed)
    rows: dict[bytes, bytes] = {}
    changes: list[Change] = []
    for number in range(writes):
        key, row = b"key %d" % rng.randrange(keys), b"row %d" % number
        kinds: list[tuple[int, bytes]]
        if key not in rows:
            kinds = [(INSERT, row)]
        elif rng.random() < 0.3:
            kinds = [(DELETE, rows.pop(key))]
        else:
            kinds = [(BEFORE, rows[key]), (AFTER, row)]
        if kinds[-1][0] != DELETE:
            rows[key] = row
        for kind, image in kinds:
            changes.append((len(changes), kind, key, image))
    return changes, rows


def found(
    changes: list[Change], rows: dict[bytes, bytes], start: int = 0, keys_max: int = 1000
) -> Disagreements:
    """What a comparison finds."""
    return compare(start, lambda: changes, lambda: sorted(rows.items()), keys_max)


@pytest.mark.parametrize("keys_max", [1, 7, 1000])
@pytest.mark.parametrize("seed", range(5))
def test_what_was_written_agrees(seed: int, keys_max: int) -> None:
    """A log and its rows agree, however few keys are kept in memory, and also after the log was truncated anywhere."""
    changes, rows = history(seed, 40, 300)
    passes = 0

    def read_log() -> list[Change]:
        nonlocal passes
        passes += 1
        return changes

    assert compare(0, read_log, lambda: sorted(rows.items()), keys_max) == Disagreements()
    assert (passes > 1) == (keys_max < 1000)
    for start in range(0, len(changes), 13):
        if changes[start][1] != AFTER:
            assert not found(changes[start:], rows, start, keys_max)


@pytest.mark.parametrize("keys_max", [3, 1000])
def test_rows_that_are_not_the_logs(keys_max: int) -> None:
    """A row that is gone, another one and one too many are counted once each, with the log whole or truncated."""
    changes, rows = history(1, 40, 300)
    gone, other = (key for _, _, key, _ in changes[-1:-4:-2] if key in rows)
    del rows[gone]
    rows[other] = b"something else"
    rows[b"nobody wrote this"] = b""
    disagreements = found(changes, rows, keys_max=keys_max)
    assert (disagreements.missing, disagreements.other, disagreements.unexplained) == (1, 1, 1)
    assert disagreements.first_key in (gone, other, b"nobody wrote this")
    truncated = found(changes[10:], rows, 10, keys_max)
    assert (truncated.missing, truncated.other, truncated.unexplained) == (1, 1, 0)


@pytest.mark.parametrize("keys_max", [1, 1000])
@pytest.mark.parametrize(
    ("kinds", "offsets"),
    [
        ([(INSERT, b"k", b"1"), (INSERT, b"k", b"2")], {1}),
        ([(DELETE, b"k", b"1")], {0}),
        ([(INSERT, b"k", b"1"), (BEFORE, b"k", b"x"), (AFTER, b"k", b"2")], {1}),
        ([(INSERT, b"k", b"1"), (AFTER, b"k", b"2")], {1}),
        ([(INSERT, b"k", b"1"), (BEFORE, b"k", b"1")], {1}),
        ([(INSERT, b"k", b"1"), (BEFORE, b"k", b"1"), (INSERT, b"j", b""), (AFTER, b"k", b"2")], {1, 3}),
    ],
)
def test_changes_that_contradict(
    kinds: list[tuple[int, bytes, bytes]], offsets: set[int], keys_max: int
) -> None:
    """A change that cannot follow from those before it is found at its offset."""
    changes = [(offset, *each) for offset, each in enumerate(kinds)]
    rows = {key: row for kind, key, row in kinds if kind != BEFORE}
    assert found(changes, rows, keys_max=keys_max).contradictions == offsets


def test_a_truncated_log_still_binds_its_first_change() -> None:
    """Without the past any first change of a key is possible, and all that follow it are compared."""
    changes: list[Change] = [(5, DELETE, b"k", b"1"), (6, DELETE, b"k", b"1"), (7, INSERT, b"j", b"2")]
    assert found(changes, {b"j": b"2", b"untouched": b""}, 5).contradictions == {6}
