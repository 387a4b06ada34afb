"""The pictures of `python -m bench peers`, drawn from its JSON alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

_DPI: Final = 90
_OURS: Final = "#1b6ca8"
_THEIRS: Final = "#b9bec4"


def draw(document: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw what was measured, a picture for each of some parts.

    Args:
        document: The JSON of the bench.
        folder: Where the pictures go; made if it is missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for part, drawing in _DRAWINGS.items():
        if part not in document:
            continue
        figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
        drawing(axes, document[part])
        axes.spines[["top", "right"]].set_visible(False)
        path = folder / f"peers-{part}.png"
        figure.savefig(path, dpi=_DPI, metadata={"Software": None})
        plt.close(figure)
        drawn.append(path)
    return drawn


def _scans(axes: Axes, scans: Any) -> None:
    """Narrow rows of one bucket, or whatever was measured first; lines from least to most."""
    first = scans[0]
    shown = [
        each for each in scans if (each["width"], each["buckets"]) == (first["width"], first["buckets"])
    ][::-1]
    rates = [each["rows_per_s"] for each in shown]
    medians, least, most = ([rate[name] / 1e6 for rate in rates] for name in ("median", "min", "max"))
    beyond = [
        [median - low for median, low in zip(medians, least, strict=True)],
        [high - median for median, high in zip(medians, most, strict=True)],
    ]
    peers = ("flight", "grpcio", "local", "parquet", "duckdb")
    colours = [_THEIRS if each["way"].startswith(peers) else _OURS for each in shown]
    axes.barh(
        [each["way"] for each in shown], medians, xerr=beyond, color=colours, error_kw={"elinewidth": 0.8}
    )
    axes.set_xlabel(f"million rows a second, {first['width']} a row, {first['buckets']} bucket(s)")
    axes.tick_params(labelsize=8)


def _concurrent(axes: Axes, part: Any) -> None:
    """How soon the first batch came, by the number of scans."""
    crowds = part["crowds"]
    for way, writing in dict.fromkeys((each["way"], each["writing"]) for each in crowds):
        points = [each for each in crowds if (each["way"], each["writing"]) == (way, writing)]
        axes.plot(
            [each["scans"] for each in points],
            [each["first_batch_ms"]["p99"] for each in points],
            marker="o",
            markersize=3,
            label=way + ", beside a writer" * writing,
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("scans at once")
    axes.set_ylabel("first batch, ms, p99")
    axes.legend(fontsize=8, frameon=False)


def _growth(axes: Axes, growth: Any) -> None:
    """Nanoseconds a row, by the rows, their bytes, and the buckets."""
    for by in ("rows", "width", "buckets"):
        points = [each for each in growth["tables"] if each["by"] == by]
        axes.plot(
            [int(each[by]) for each in points],
            [each["seconds"]["median"] / each["rows"] * 1e9 for each in points],
            marker="o",
            markersize=3,
            label=f"by {by}: time grows with power {growth['exponents'].get(by)}",
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("rows; bytes of a row; buckets")
    axes.set_ylabel("ns a row")
    axes.legend(fontsize=8, frameon=False)


_DRAWINGS: Final[dict[str, Callable[[Axes, Any], None]]] = {
    "scans": _scans,
    "concurrent": _concurrent,
    "growth": _growth,
}
