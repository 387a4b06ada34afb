"""What is suspected of a changelog and rows is all that a comparison octet by octet finds, whatever the hashes are."""

from __future__ import annotations

import random
from functools import partial

import numpy as np
import pytest

from scanner.storage.records import ChangeKind
from scanner.storage.rocksdb.agreement import Agreement, among, hashes_of
from scanner.storage.rocksdb.folding import Disagreements, compare
from tests.scanner.storage.rocksdb.test_folding import AFTER, Change, history

KEYS = 40


def suspected(
    changes: list[Change], rows: dict[bytes, bytes], start: int, keys_max: int, bits: int
) -> Agreement:
    """An agreement that has seen both as often as it takes, in pieces, with hashes of some bits."""
    agreement = Agreement(keys_max, 1000)
    keep = np.int64(-1 << (64 - bits))
    while not agreement.has_ended:
        agreement.begin(complete=start == 0)
        for at in range(0, len(changes), 37):
            _, kinds, keys, images = zip(*changes[at : at + 37], strict=True)
            agreement.add_changes(np.array(kinds, np.uint8), hashes_of(keys) & keep, hashes_of(images))
        ordered = sorted(rows)
        agreement.add_rows(hashes_of(ordered) & keep, hashes_of([rows[key] for key in ordered]))
        agreement.finish()
    return agreement


def of_suspects(
    changes: list[Change], rows: dict[bytes, bytes], start: int, agreement: Agreement, bits: int
) -> Disagreements:
    """What a comparison of the suspected keys alone finds."""
    keep = np.int64(-1 << (64 - bits))
    names = sorted({change[2] for change in changes} | set(rows))
    looked_at = {
        key
        for key, is_suspected in zip(names, among(hashes_of(names) & keep, agreement.suspected), strict=True)
        if is_suspected
    }
    return compare(
        start,
        lambda: [change for change in changes if change[2] in looked_at],
        lambda: [(key, rows[key]) for key in sorted(looked_at & set(rows))],
    )


def damaged(
    rng: random.Random, changes: list[Change], rows: dict[bytes, bytes]
) -> tuple[list[Change], dict[bytes, bytes]]:
    """The same with some rows and changes that are others, gone, or too many."""
    changes, rows = list(changes), dict(rows)
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(changes))
        offset, kind, key, row = changes[at]
        other = changes[rng.randrange(len(changes))]
        changes[at] = rng.choice(
            [
                (offset, rng.choice(list(ChangeKind)), key, row),
                (offset, kind, other[2], row),
                (offset, kind, key, other[3]),
                (offset, *other[1:]),
            ]
        )
    for _ in range(rng.randrange(3)):
        key = b"key %d" % rng.randrange(KEYS + 5)
        if rng.random() < 0.5:
            rows.pop(key, None)
        else:
            rows[key] = b"row %d" % rng.randrange(300)
    return changes, rows


@pytest.mark.parametrize("keys_max", [1, 7, 1000])
@pytest.mark.parametrize("bits", [1, 4, 64])
def test_what_is_suspected_is_all_that_is_found(keys_max: int, bits: int) -> None:
    """With the log whole and truncated, in one pass and in many, also where many keys have one hash."""
    rng = random.Random(f"{keys_max} {bits}")
    some = 0
    for seed in range(12):
        changes, rows = damaged(rng, *history(seed, KEYS, 150))
        if not changes:
            continue
        start = rng.choice([0, rng.randrange(len(changes))])
        kept = changes[start:]
        found = compare(start, partial(iter, kept), partial(sorted, rows.items()))
        agreement = suspected(kept, rows, start, keys_max, bits)
        assert of_suspects(kept, rows, start, agreement, bits) == found
        some += bool(found)
    assert some > 3


@pytest.mark.parametrize("keys_max", [1, 7, 1000])
def test_nothing_is_suspected_of_what_agrees(keys_max: int) -> None:
    """Of a log that leads to its rows, whole or truncated, nothing has to be looked at octet by octet."""
    changes, rows = history(1, KEYS, 300)
    for start in range(0, len(changes), 29):
        if changes[start][1] != AFTER:
            agreement = suspected(changes[start:], rows, start, keys_max, 64)
            assert agreement.suspected is not None
            assert len(agreement.suspected) == 0
            assert (agreement.passes > 1) == (keys_max < KEYS)


def test_a_row_with_the_hash_and_the_contents_of_another_one_is_suspected() -> None:
    """The log has left one row of the two."""
    agreement = Agreement(1000, 1000)
    agreement.begin(complete=True)
    agreement.add_changes(np.array([ChangeKind.INSERT], np.uint8), np.array([7]), np.array([5]))
    agreement.add_rows(np.array([7, 7]), np.array([5, 5]))
    agreement.finish()
    assert agreement.suspected is not None
    assert agreement.suspected.tolist() == [7]


def test_too_many_suspects_are_all() -> None:
    """Then every key is looked at."""
    agreement = Agreement(1000, 3)
    agreement.begin(complete=True)
    agreement.add_rows(hashes_of([b"%d" % number for number in range(4)]), np.ones(4, np.int64))
    agreement.finish()
    assert agreement.suspected is None
    assert among(hashes_of([b"a", b"b"]), agreement.suspected).all()
