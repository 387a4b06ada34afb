"""Both folds of `bench tail-kills`: what is right gives the table, and what is not is said."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from bench.tailing.folds import BatchFold, LineFold, Rows
from bench.tailing.readers import same

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("version", pa.int64()),
        ("text", pa.string()),
        ("_change_type", pa.string()),
        ("_log_offset", pa.int64()),
    ]
)
Change = tuple[int, int, str, str, int | None]
STREAM: list[Change] = [
    (1, 0, "one", "insert", None),
    (2, 0, "two", "insert", None),
    (1, 0, "one", "update_preimage", 7),
    (1, 1, "uno", "update_postimage", 8),
    (2, 0, "two", "delete", 9),
    (3, 1, "tre", "insert", 10),
]
TABLE: Rows = {1: (1, 1, "uno"), 3: (3, 1, "tre")}


def batch(changes: list[Change]) -> pa.RecordBatch:
    """As a scan hands it out."""
    return pa.RecordBatch.from_arrays(
        [
            pa.array(column, field.type)
            for column, field in zip(zip(*changes, strict=True), SCHEMA, strict=True)
        ],
        schema=SCHEMA,
    )


def folded(changes: list[Change]) -> BatchFold:
    """Everything in two batches, of which the first ends behind the snapshot."""
    fold = BatchFold(1)
    fold.take(0, batch(changes[:2]), {}, {})
    fold.take(0, batch(changes[2:]), {0: 11}, {0: 7})
    return fold


def printed(changes: list[Change]) -> LineFold:
    """The same as lines."""
    fold = LineFold()
    for change in changes:
        line: dict[str, Any] = dict(zip(SCHEMA.names, change, strict=True))
        fold.take(json.dumps(line | {"_bucket": 0}))
    return fold


def test_what_is_right() -> None:
    """Both folds give the table, and have nothing to say."""
    batches, lines = folded(STREAM), printed(STREAM)
    assert batches.committed() == ({0: 11}, TABLE)
    assert same(TABLE, lines.table)
    assert batches.wrong == lines.wrong == []


def test_what_is_behind_a_position_waits() -> None:
    """The rows as of a position do not show the beginning of the next commit."""
    fold = BatchFold(1)
    fold.take(0, batch(STREAM[:2]), {}, {})
    assert fold.committed() is None
    assert fold.in_snapshot
    fold.take(0, batch(STREAM[2:5]), {0: 9}, {0: 7})
    assert fold.committed() == ({0: 9}, {1: (1, 1, "uno"), 2: (2, 0, "two")})
    assert not fold.in_snapshot


@pytest.mark.parametrize(
    ("harmed", "says"),
    [
        (STREAM[:3] + STREAM[4:], "9"),
        ([*STREAM[:4], *STREAM[3:]], "8"),
        ([*STREAM[:2], STREAM[4], *STREAM[2:4]], "7"),
        ([STREAM[0], STREAM[0], *STREAM[2:]], "insert"),
    ],
    ids=["lost", "repeated", "moved", "twice in the snapshot"],
)
def test_what_is_wrong(harmed: list[Change], says: str) -> None:
    """A change that is lost, repeated or moved, and a row that comes twice, are seen by both."""
    for fold in (folded(harmed), printed(harmed)):
        assert says in fold.wrong[0]
