"""Offsets of streams: what is written is read back, what was released stays readable, the rest is refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_source import SourceError
from spark_source.stream.offsets import INITIAL, Position, StreamOffset

if TYPE_CHECKING:
    from collections.abc import Mapping

GOLDEN = Path(__file__).parents[2] / "golden" / "spark_offsets"


def _golden() -> list[dict[str, Any]]:
    return [offset for path in sorted(GOLDEN.glob("v*.json")) for offset in json.loads(path.read_text())]


@st.composite
def offsets(draw: st.DrawFn) -> StreamOffset:
    """Any offset that a stream may have."""
    phase = draw(st.sampled_from(["initial", "full", "log"]))
    if phase == "initial":
        return INITIAL
    buckets = draw(st.integers(1, 12))
    position = st.builds(Position, st.integers(0, 2**64 - 1), st.binary(min_size=16, max_size=16))
    positions = st.lists(position, min_size=buckets, max_size=buckets).map(lambda each: dict(enumerate(each)))
    return StreamOffset(
        phase=phase,
        table_id=draw(st.integers(0, 2**64 - 1)),
        lease_id=draw(st.text("abcdef0123456789-", max_size=20)),
        buckets=draw(positions),
        first=draw(st.none() | positions) if phase == "log" else None,
    )


@given(offsets())
def test_what_is_written_is_read_back(offset: StreamOffset) -> None:
    """Through JSON, to the same text: Spark compares texts."""
    text = json.dumps(offset.to_json())
    read = StreamOffset.from_json(json.loads(text))
    assert read == offset
    assert json.dumps(read.to_json()) == text
    assert text == json.dumps(json.loads(text), sort_keys=True)


@pytest.mark.parametrize("golden", _golden(), ids=lambda offset: offset["phase"])
def test_what_was_released_stays_readable(golden: dict[str, Any]) -> None:
    """Offsets of checkpoints of every version, and of this one they are what would be written."""
    assert StreamOffset.from_json(golden).to_json() == golden


@pytest.mark.parametrize("version", [0, 2, 99])
def test_another_version_is_refused_by_name(version: int) -> None:
    """A checkpoint of a newer release says which version it is of."""
    with pytest.raises(SourceError, match=f"version {version}, and this release of weir reads version 1"):
        StreamOffset.from_json({"version": version, "anything": 1})


def _damaged(path: tuple[str, ...], value: object) -> Mapping[str, Any]:
    damaged = copy.deepcopy(_golden()[2])
    inner = damaged
    for name in path[:-1]:
        inner = inner[name]
    if value is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return damaged


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("phase",), "other"),
        (("phase",), "full"),  # It has no `first`.
        (("version",), None),
        (("version",), "1"),
        (("buckets",), None),
        (("buckets", "0", "offset"), -1),
        (("buckets", "0", "offset"), "12"),
        (("buckets", "0", "offset"), True),
        (("buckets", "0", "history"), "ab"),
        (("buckets", "0", "more"), 1),
        (("buckets", "2"), {"history": "0" * 32, "offset": 0}),
        (("buckets", "x"), {"history": "0" * 32, "offset": 0}),
        (("first", "0"), 3),
        (("lease",), 3),
        (("table_id",), 1.5),
        (("unknown",), 1),
    ],
)
def test_what_is_no_offset_is_refused(path: tuple[str, ...], value: object) -> None:
    """A key too many or too few, a value of another type: refused in one line."""
    with pytest.raises(SourceError, match=r"did not write|reads version") as caught:
        StreamOffset.from_json(_damaged(path, value))
    assert "\n" not in str(caught.value)
