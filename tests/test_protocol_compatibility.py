"""The protocol of today understands, and is understood by, every version that was released."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tools.freeze_protocol import FROZEN, describe

Protocol = dict[str, dict[str, Any]]


def breaks(released: Protocol, now: Protocol) -> Iterator[str]:
    """What of the released protocol is gone or is something else now. Whatever is new breaks nothing."""
    for name, parts in released.items():
        if name not in now:
            yield f"{name} is gone"
            continue
        for key, part in parts.items():
            if now[name].get(key) != part:
                yield f"{name}, {key}: was {part}, is {now[name].get(key, 'gone')}"


def test_nothing_that_was_released_is_gone_or_another() -> None:
    """Fields, enum values and calls keep their numbers, names and types: a change of one is a new one."""
    assert list(breaks(json.loads(FROZEN.read_text(encoding="utf-8")), describe())) == []


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("weir.v1.ScanOpen", "2", ["origin", "weir.v1.ScanSource", "single", ""]),
        ("weir.v1.Demand", "1", ["bytes_limit", 9, "single", ""]),
        ("weir.v1.Demand", "1", ["bytes_limit", 4, "repeated", ""]),
        ("weir.v1.ScanSource", "1", "SCAN_SOURCE_LIVE"),
        ("weir.v1.Scanner.Scan", "response", ["weir.v1.ScanResponse", False]),
        ("weir.v1.ScanEnd", "3", None),
        ("weir.v1.ScanEnd", None, None),
    ],
)
def test_an_incompatible_change_is_found(name: str, key: str | None, value: Any) -> None:
    """Renamed, retyped, repeated, renumbered, or taken away: each is named."""
    now = copy.deepcopy(describe())
    if key is None:
        del now[name]
    elif value is None:
        del now[name][key]
    else:
        assert now[name][key] != value
        now[name][key] = value
    (found,) = breaks(json.loads(FROZEN.read_text(encoding="utf-8")), now)
    assert found.startswith(name)
