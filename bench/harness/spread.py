"""Figures of all rounds: what is kept of them, and how two ways are compared."""

from __future__ import annotations

import statistics
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from _typeshed import DataclassInstance


def spread(rounds: Sequence[float]) -> dict[str, Any]:
    """Median, least and most of the rounds, and all of them."""
    if not rounds:
        return {}
    return {
        "median": round(statistics.median(rounds), 6),
        "min": min(rounds),
        "max": max(rounds),
        "rounds": [*rounds],
    }


def as_document(measured: DataclassInstance) -> dict[str, Any]:
    """For the JSON: each list of rounds is its `spread`."""
    return {
        name: spread(value) if isinstance(value, list) else value for name, value in asdict(measured).items()
    }


def ratio(mine: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of the rounds' ratios: each round's ways ran one after the other."""
    return statistics.median([a / b for a, b in zip(mine, theirs, strict=True)])


def exponent(times: Mapping[float, Sequence[float]]) -> float | None:
    """The power of a size by which the medians of times grow, fitted to all sizes; None: of one size nothing follows.

    Args:
        times: Seconds of the rounds, by size.
    """
    if len(times) < 2:
        return None
    medians = [statistics.median(rounds) for rounds in times.values()]
    return round(float(np.polyfit(np.log([*times]), np.log(medians), 1)[0]), 2)
