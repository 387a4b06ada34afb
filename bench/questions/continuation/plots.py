"""The comparison as pictures, drawn from its JSON alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt

from bench.questions.continuation.report import speed_of
from bench.questions.continuation.scanning import MODELS
from bench.questions.continuation.speed import PACED_ROWS_PER_S, ROUND_TRIP_S
from bench.questions.continuation.stalled import NOBODY

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Document = Mapping[str, Any]

COLOURS: Final = {
    "push": "#1b6ca8", "session": "#c44536", "token": "#e09f3e", "cursor": "#8d99ae", "asof": "#3a7d44",
    "nobody": "#999999",
}  # fmt: skip
_DPI: Final = 90


def draw(document: Document, folder: Path) -> None:
    """Draw every picture.

    Args:
        document: The JSON of the comparison.
        folder: Where the pictures go; made if it is missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pictures: dict[str, Callable[[Document, list[Axes]], None]] = {
        "continuation-speed": _speed,
        "continuation-cuts": _cuts,
        "continuation-stalled": _stalled,
        "continuation-crossover": _crossover,
    }
    for name, picture in pictures.items():
        figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.6), layout="constrained")
        picture(document, list(axes))
        for each in axes:
            each.spines[["top", "right"]].set_visible(False)
        figure.savefig(folder / f"{name}.png", dpi=_DPI, metadata={"Software": None})
        plt.close(figure)


def _bars(axes: Axes, groups: Mapping[str, Mapping[str, float]]) -> None:
    """Groups of bars, one bar a model."""
    width = 0.8 / len(MODELS)
    for place, model in enumerate(MODELS):
        at = [group + (place - (len(MODELS) - 1) / 2) * width for group in range(len(groups))]
        heights = [values.get(model, 0.0) for values in groups.values()]
        axes.bar(at, heights, width, color=COLOURS[model], label=model)
    axes.set_xticks(range(len(groups)), list(groups), fontsize=8)


def _speeds(document: Document, table: str, writer: float | None = 0.0, **way: Any) -> dict[str, float]:
    found = {model: speed_of(document, table, model, writer, **way) for model in MODELS}
    return {model: median["rows_per_s"] / 1e6 for model, median in found.items() if median}


def _speed(document: Document, axes: list[Axes]) -> None:
    paced = f"{PACED_ROWS_PER_S:.0f} rows/s\nasked for"
    _bars(
        axes[0],
        {
            "no writer": _speeds(document, "medium"),
            paced: _speeds(document, "medium", PACED_ROWS_PER_S),
            "as fast as\nit goes": _speeds(document, "medium", None),
        },
    )
    axes[0].set_title("beside a writer", fontsize=10)
    axes[0].set_ylabel("million rows a second")
    far = f"{ROUND_TRIP_S * 1000:.0f} ms round trip"
    _bars(
        axes[1],
        {
            "loopback": _speeds(document, "large"),
            far: _speeds(document, "large", round_trip_s=ROUND_TRIP_S),
        },
    )
    axes[1].set_title("over a long line, one bucket, pages of 4 MiB, one ahead", fontsize=10)
    axes[1].legend(fontsize=8, frameon=False)


def _cuts(document: Document, axes: list[Axes]) -> None:
    groups: dict[str, dict[str, float]] = {}
    for each in document["cuts"]:
        every = each["every_bytes"]
        name = "no cut" if every is None else f"every {every / 1e6:.0f} MB"
        groups.setdefault(name, {})[each["model"]] = each["seconds"]
    _bars(axes[0], groups)
    axes[0].set_title("a line that is cut", fontsize=10)
    axes[0].set_ylabel("seconds of a whole scan")
    again: dict[str, list[float]] = {}
    for each in document["losses"]:
        again.setdefault(each["model"], []).append(each["rows_again"])
    heights = [sum(counts) / len(counts) / 1000 for counts in again.values()]
    axes[1].bar(list(again), heights, color=[COLOURS[model] for model in again])
    axes[1].set_title("a server that is killed in the middle", fontsize=10)
    axes[1].set_ylabel("thousand rows read again")
    axes[0].legend(fontsize=8, frameon=False)


def _stalled(document: Document, axes: list[Axes]) -> None:
    for place, each in enumerate(document["stalls"]):
        model, samples = each["model"], each["samples"]
        at = [sample["at_s"] for sample in samples]
        if model != NOBODY:
            # Lines that lie on each other are shifted a little, so that each is seen.
            pinned = [sample["snapshots"] + 0.02 * place for sample in samples]
            axes[0].step(at, pinned, where="post", color=COLOURS[model], label=model)
        grown = [(sample["table_file_bytes"] - samples[0]["table_file_bytes"]) / 1e6 for sample in samples]
        label = f"{model}: {each['kept_bytes'] / 1e6:.1f} MB freed with it"
        axes[1].plot(at, grown, color=COLOURS[model], label=label)
    axes[0].axvline(document["stalls"][0]["park_after_s"], color=COLOURS[NOBODY], linestyle=":")
    axes[0].set_title("snapshots pinned for a consumer that does not read", fontsize=10)
    axes[0].set_yticks([0, 1])
    axes[1].set_title("growth of the table files under a writer, MB", fontsize=10)
    for each in axes:
        each.set_xlabel("seconds")
        each.legend(fontsize=7, frameon=False)


def _crossover(document: Document, axes: list[Axes]) -> None:
    steps = [step for step in document["crossover"]["steps"] if step["changes"]]
    changes = [step["changes"] for step in steps]
    lines = (
        (axes[0], "pinned_page_ms", "from the pinned snapshot", COLOURS["token"]),
        (axes[0], "rebuilt_page_ms", "rebuilt for the page", COLOURS["asof"]),
        (axes[1], "pinned_scan_s", "from the pinned snapshot", COLOURS["token"]),
        (axes[1], "rebuilt_scan_s", "rebuilt once", COLOURS["push"]),
        (axes[1], "live_scan_s", "as of now", COLOURS["nobody"]),
    )
    for on, name, label, colour in lines:
        on.plot(changes, [step[name] for step in steps], marker="o", markersize=3, color=colour, label=label)
    for each, title in zip(axes, ("one page, ms", "a whole push scan, s"), strict=True):
        each.set_xscale("log")
        each.set_yscale("log")
        each.set_title(title, fontsize=10)
        each.set_xlabel(f"changes since, table of {document['crossover']['rows']:,} rows")
        each.legend(fontsize=8, frameon=False)
