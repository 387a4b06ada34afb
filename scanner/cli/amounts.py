"""Times and sizes as options take them: a number, or a number and a unit."""

from __future__ import annotations

import math
import re
from typing import Any, Final

import click

_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SIZES: Final = "KMGT"
"""Powers of 1024, as `short_bytes` has them."""


class Seconds(click.FloatRange):
    """A time: `90`, `90s`, `10m`, `12h`, `7d`; `inf` is one, unless there is a maximum."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read it, in seconds."""
        number, factor = value, 1
        if isinstance(value, str) and value[-1:] in _UNITS_S:
            number, factor = value[:-1], _UNITS_S[value[-1:]]
        try:
            seconds = float(number) * factor
        except ValueError:
            seconds = math.nan
        if math.isnan(seconds):
            # It is neither below the minimum nor above the maximum, and so within any range.
            self.fail(f"{value!r} is no time; times are such as 90 (seconds), 90s, 10m, 12h, 7d.", param, ctx)
        return super().convert(seconds, param, ctx)


class Bytes(click.IntRange):
    """A size: `65536`, `64K`, `64KiB`, `512M`, `10G`, `1T`; a K is 1024 bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read it, in bytes."""
        if isinstance(value, str):
            found = re.fullmatch(rf"([0-9]+)(?:([{_SIZES}])(?:iB)?)?", value)
            if found is None:
                self.fail(
                    f"{value!r} is no size; sizes are such as 65536 (bytes), 64K, 512M, 10G.", param, ctx
                )
            unit = found[2]
            value = int(found[1]) * (1024 ** (_SIZES.index(unit) + 1) if unit else 1)
        return super().convert(value, param, ctx)
