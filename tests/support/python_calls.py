"""How many functions in Python something calls: its cost where there are many, by no clock."""

from __future__ import annotations

import sys
from collections.abc import Callable


def counted_calls(function: Callable[[], object]) -> int:
    """Run `function`, and count the functions in Python that are called meanwhile, in this thread."""
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return calls
