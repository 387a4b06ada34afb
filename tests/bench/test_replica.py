"""What `bench replica` and the demo reduce a micro-batch to, and what the comparison finds."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from bench.replica.changes import last_changes

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64())])
CHANGES = pa.schema([*SCHEMA, pa.field("_change_type", pa.string()), pa.field("_log_offset", pa.int64())])
_PUTS = {"insert", "update_postimage"}


@st.composite
def changes(draw: st.DrawFn) -> list[dict[str, object]]:
    """Changes of some keys in the order of the log, and rows of the table in front of them."""
    kinds = draw(st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.integers(0, 9)), max_size=20))
    rows: dict[int, int] = draw(st.dictionaries(st.integers(0, 5), st.integers(0, 9)))
    found: list[dict[str, object]] = [_change(key, value, "insert", None) for key, value in rows.items()]
    for key, put, value in kinds:
        offset = len(found)
        if put and key in rows:
            found.append(_change(key, rows[key], "update_preimage", offset))
            found.append(_change(key, value, "update_postimage", offset + 1))
        elif put:
            found.append(_change(key, value, "insert", offset))
        elif key in rows:
            found.append(_change(key, rows[key], "delete", offset))
        if put:
            rows[key] = value
        else:
            rows.pop(key, None)
    return found


def _change(key: int, value: int, kind: str, offset: int | None) -> dict[str, object]:
    return {"id": key, "v": value, "_change_type": kind, "_log_offset": offset}


@given(changes(), st.randoms())
def test_the_last_change_of_each_key_is_what_counts(found: list[dict[str, object]], rng: object) -> None:
    """In whatever order they come: the puts and the deletes are the state of the keys that changed."""
    expected = {row["id"]: row["v"] if row["_change_type"] in _PUTS else None for row in found}
    rng.shuffle(found)  # type: ignore[attr-defined]
    puts, deletes = last_changes(pa.Table.from_pylist(found, CHANGES), SCHEMA, ["id"])
    assert puts.schema == SCHEMA
    assert deletes.column_names == ["id"]
    state = dict(zip(puts.column("id").to_pylist(), puts.column("v").to_pylist(), strict=True))
    gone = deletes.column("id").to_pylist()
    assert state | dict.fromkeys(gone) == expected
    assert len(state) + len(gone) == len(expected)
