"""The pictures of `python -m bench tail`, drawn from its JSON alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt

if TYPE_CHECKING:
    from pathlib import Path

COLOURS: Final = {"push": "#1b6ca8", "fetch": "#c44536"}
NAMES: Final = {"push": "push", "fetch": "long poll"}
STYLES: Final = {"p50_ms": "-", "p99_ms": "--", "p99_9_ms": ":"}
_DPI: Final = 90
_LEAST_MS: Final = 0.05
"""What came before the acknowledgement is drawn here: an axis of logarithms has no place for it."""


def draw(document: Mapping[str, Any], folder: Path) -> None:
    """Draw how soon commits reached the tails, a picture for each distance.

    Args:
        document: The JSON of the bench.
        folder: Where the picture goes; made if it is missing.
    """
    latency: Sequence[Mapping[str, Any]] = document["latency"]
    distances = sorted({each["round_trip_ms"] for each in latency})
    if not distances:
        return
    folder.mkdir(parents=True, exist_ok=True)
    figure, all_axes = plt.subplots(
        1, len(distances), figsize=(4.8 * len(distances), 3.6), layout="constrained", squeeze=False
    )
    for axes, distance in zip(all_axes[0], distances, strict=True):
        for mode in COLOURS:
            points = [each for each in latency if each["mode"] == mode and each["round_trip_ms"] == distance]
            for name, style in STYLES.items():
                label = f"{NAMES[mode]}, {name.removesuffix('_ms').replace('_', '.')}"
                heights = [max(_LEAST_MS, each[name]) for each in points]
                tails = [each["tails"] for each in points]
                axes.plot(tails, heights, style, color=COLOURS[mode], marker="o", markersize=3, label=label)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_title(f"{distance:g} ms round trip", fontsize=10)
        axes.set_xlabel("tails")
        axes.spines[["top", "right"]].set_visible(False)
    all_axes[0][0].set_ylabel("ms from acknowledgement to hand")
    all_axes[0][-1].legend(fontsize=7, frameon=False)
    figure.savefig(folder / "tail-latency.png", dpi=_DPI, metadata={"Software": None})
    plt.close(figure)
