"""How much of a campaign is run: a part of it by `make test`, the whole where HYPOTHESIS_PROFILE=nightly."""

from __future__ import annotations

import os
from typing import Final, TypeVar

T = TypeVar("T")

NIGHTLY: Final = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"


def everyday(part: T, *, nightly: T) -> T:
    """The part of a campaign that every change runs; at night the whole: more seeds, sizes or combinations of it."""
    return nightly if NIGHTLY else part
