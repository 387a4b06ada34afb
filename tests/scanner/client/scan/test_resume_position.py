"""Positions of scans as text: what is written is read, old ones stay readable, and nothing else is taken for one."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner import ArgumentInvalid, ResumeTokenInvalid, col
from scanner.client.scan.builder import ScanBuilder
from scanner.client.scan.plan import ScanPlan
from scanner.client.scan.resume_position import BucketPosition, ResumePosition, position_of, read_position
from scanner.data.digest import checksum
from scanner.data.table import TableDescription

GOLDEN: Final = json.loads((Path(__file__).parent / "golden" / "positions.json").read_text())
TABLE: Final = TableDescription(
    name="orders",
    schema=pa.schema(
        [pa.field("id", pa.int64(), nullable=False), ("item", pa.string()), ("price", pa.decimal128(9, 2))]
    ),
    primary_key=("id",),
    buckets=3,
)
U64: Final = st.integers(0, 2**64 - 1)
BUCKETS: Final = st.builds(
    BucketPosition,
    log_offset=U64,
    history=st.binary(min_size=16, max_size=16).filter(any) | st.just(b""),
    token=st.binary(max_size=200),
    rows=U64,
    changes_end=U64,
    behind_snapshot=st.booleans(),
    commit_end=st.none() | U64,
    commit_time_floor_us=st.none() | st.integers(-(2**63), 2**63 - 1),
    reason=st.sampled_from([None, "EXHAUSTED", "LIMIT", "STOP_OFFSET"]),
    digest=st.integers(0, 2**32 - 1),
    stored_bytes=U64,
)
POSITIONS: Final = st.builds(
    ResumePosition,
    table_id=st.none() | U64,
    columns=st.integers(0, 4096),
    parts=st.tuples(*[st.binary(min_size=8, max_size=8)] * 12),
    buckets=st.lists(st.tuples(st.integers(0, 1023), BUCKETS), max_size=3).map(tuple),
)


class Described(ScanBuilder):
    """A scan that is described and not run."""

    def _derive(self, plan: ScanPlan) -> Described:
        return Described(plan)


SCAN: Final = Described(ScanPlan(table=TABLE, table_id=7))
SCANS: Final = {
    "everything": SCAN,
    "all that can be asked for": SCAN.with_table_id(2**64 - 1)
    .with_mode("asof")
    .select("price", "id")
    .where(
        (col("price") > Decimal("1.50")) | col("item").is_null(),
        col("item").isin(["boat", "stra\u00dfe"]),
        col("id") < 2**40,
    )
    .key_range((-5,), (99,))
    .limit(2**40)
    .bucket(2)
    .as_of({2: 77}),
    "a lease": SCAN.with_lease("nightly"),
    "rows and changes": SCAN.with_source("hybrid").as_of(3).stop_at({0: 5, 1: 2**40, 2: 9}),
    "rows and whole commits": SCAN.with_source("hybrid").with_whole_commits(),
}
"""Those of the golden positions."""


def golden(name: str) -> tuple[str, dict[int, BucketPosition]]:
    """A golden position: its text, and what it says of the buckets."""
    found = GOLDEN["positions"][name]
    octets = ("history", "token")
    buckets = {}
    for bucket, said in found["buckets"].items():
        fields: dict[str, Any] = {
            key: bytes.fromhex(value) if key in octets else value for key, value in said.items()
        }
        buckets[int(bucket)] = BucketPosition(**fields)
    return found["text"], buckets


@pytest.mark.parametrize("name", SCANS)
def test_golden_positions_stay_readable(name: str) -> None:
    """Also by a client that is newer: text, fields, and what must be asked for again."""
    plan = SCANS[name].plan
    text, buckets = golden(name)
    position = read_position(text)
    assert position == position_of(plan, buckets)
    assert position.text() == text
    position.require_of(plan)
    assert SCANS[name].resume_at(text).plan.resume_at == position
    for other, scan in SCANS.items():
        if other != name:
            with pytest.raises(ResumeTokenInvalid):
                position.require_of(scan.plan)


@given(POSITIONS)
def test_what_is_written_is_read(position: ResumePosition) -> None:
    """Whatever there is to say; and as short as the page on clients says."""
    text = position.text()
    assert read_position(text) == position
    assert json.loads(json.dumps(text)) == text
    octets = sum(100 + len(each.token) for _, each in position.buckets)
    assert len(text) < 200 + 4 / 3 * octets


def test_every_change_is_noticed() -> None:
    """One character changed, left out or put in, anywhere; and every end that is cut off."""
    text, _ = golden("rows and changes")
    for at in range(len(text)):
        other = "A" if text[at] != "A" else "B"
        for changed in (
            text[:at],
            text[:at] + other + text[at + 1 :],
            text[:at] + text[at + 1 :],
            text[:at] + "A" + text[at:],
        ):
            if changed != text:
                with pytest.raises(ResumeTokenInvalid):
                    read_position(changed)


@given(st.text(max_size=50), st.binary(max_size=400))
def test_nothing_else_is_taken_for_one(text: str, octets: bytes) -> None:
    """Whatever stands there, with a checksum that is right, too, the error is ours."""
    beginning = "weir-position-1:"
    whole = octets + checksum(beginning.encode() + octets).to_bytes(4, "big")
    forged = beginning + base64.urlsafe_b64encode(whole).rstrip(b"=").decode()
    for each in (text, beginning + text, forged):
        try:
            read_position(each)
        except ResumeTokenInvalid:
            continue
        assert each == forged


def test_refusals_say_what_to_do() -> None:
    """What it is, and which version; octets, as of an error's token, are no position."""
    text, _ = golden("everything")
    refused = {
        "is no position of a scan": "orders",
        "is of version 2, and this client reads version 1": text.replace("position-1", "position-2"),
        "changed or cut off": text[:-1],
    }
    for why, given_text in refused.items():
        with pytest.raises(ResumeTokenInvalid, match=why):
            SCAN.resume_at(given_text)
    wrong: tuple[Any, ...] = (b"token", None, 5)
    for octets in wrong:
        with pytest.raises(ArgumentInvalid, match="takes the text that resume_position"):
            SCAN.resume_at(octets)


def test_a_plan_that_names_no_table_id_gets_the_positions() -> None:
    """So buckets that had not begun are not those of another table either."""
    text, _ = golden("everything")
    unnamed = Described(replace(SCAN.plan, table_id=None))
    assert unnamed.resume_at(text).plan.table_id == 7


class InOrder(AbstractSet[object]):
    """A set that has its values in this order: Python's own have another one in each process."""

    def __init__(self, *values: object) -> None:
        self._values = values

    def __contains__(self, value: object) -> bool:
        return value in self._values

    def __iter__(self) -> Iterator[object]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def test_a_position_of_a_resumed_scan_has_the_columns_of_the_first_one() -> None:
    """A column that was added since is none of the scan: whoever knows the table as it was may go on with it."""
    first = position_of(SCAN.plan, {})
    grown = replace(TABLE, schema=TABLE.schema.append(pa.field("more", pa.string())))
    second = position_of(replace(SCAN.plan, table=grown, resume_at=first), {})
    assert (first.columns, second.columns) == (3, 3)
    assert position_of(replace(SCAN.plan, table=grown), {}).columns == 4
    second.require_of(SCAN.plan)


def test_a_set_of_values_is_the_same_in_every_process() -> None:
    """A scan with a set in `isin` goes on in another process; the values of a list have the order of the list."""

    def described(*values: object) -> Described:
        return Described(SCAN.plan).where(col("item").isin(InOrder(*values)))

    position = read_position(position_of(described("oar", "boat", "sail").plan, {}).text())
    position.require_of(described("sail", "oar", "boat").plan)
    assert col("id").isin({3, 1, 2}).predicates == col("id").isin([1, 2, 3]).predicates
    with pytest.raises(ResumeTokenInvalid, match="what differs: conditions"):
        position.require_of(described("oar", "boat").plan)
