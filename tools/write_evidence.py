"""What was measured, beside what must be so: `python -m tools.write_evidence` writes it into docs/evidence/README.md.

Read from the JSON of the benches in bench/results, so that the page cannot say what was not measured.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.harness.sheet import Sheet
from bench.peers import report

Document = Mapping[str, Any]

REPOSITORY: Final = Path(__file__).resolve().parent.parent
PAGE: Final = REPOSITORY / "docs" / "evidence" / "README.md"
RESULTS: Final = REPOSITORY / "bench" / "results"
PLOTS: Final = REPOSITORY / "docs" / "plots"
_BENCHES: Final = {
    "mutants": "mutants --count 300",
    "replica": "replica --kills 30",
    "spark_image": "spark --image",
    "stress": "stress --seed 3",
}
"""The files that are not called as their bench is, or of other options than it has by default."""
_FIRST: Final = ("peers", "continuation", "writes")
"""What a reader who has to choose wants first."""
_VALUE_CHARACTERS_MAX: Final = 80
_MARKED: Final = re.compile(
    r"(?<=<!-- written by tools.write_evidence -->\n).*?(?=<!-- end of what is written -->)", re.DOTALL
)


def command_of(result: Path) -> str:
    """What measured a file of results."""
    bench = _BENCHES.get(result.stem, result.stem.replace("_", "-"))
    return f"python -m bench {bench} --json bench/results/{result.name}"


def written() -> str:
    """The results, as Markdown: what was missed, and of each file command, machine, bars, tables and pictures."""
    paths = sorted(RESULTS.glob("*.json"), key=lambda path: (path.stem not in _FIRST, path.name))
    documents = {path: json.loads(path.read_text(encoding="utf-8")) for path in paths}
    lines = [*_missed(documents), *(line for each in documents.items() for line in _section(*each))]
    return "".join(f"{line}\n" for line in lines)


def _missed(documents: Mapping[Path, Document]) -> Iterator[str]:
    bars = [(path, bar) for path, document in documents.items() for bar in document.get("bars", [])]
    missed = [(path, bar) for path, bar in bars if not bar["ok"]]
    yield "## Missed\n"
    yield f"Of {len(bars)} bars {len(missed)} are missed{':' if missed else '.'}\n"
    for path, bar in missed:
        anchor = _title(path).replace(" ", "-")
        yield f"- [{_title(path)}](#{anchor}): {bar['name']} is {_value(bar)}, must be {bar['bar']}"
    yield from [""] * bool(missed)


def _title(path: Path) -> str:
    return path.stem.replace("_", " ")


def _value(bar: Document) -> str:
    value = str(bar["value"])
    return value if len(value) <= _VALUE_CHARACTERS_MAX else value[:_VALUE_CHARACTERS_MAX] + " ..."


def _section(path: Path, document: Document) -> Iterator[str]:
    bars, machine = document.get("bars", []), document.get("machine", {})
    missed = sum(not bar["ok"] for bar in bars)
    yield f"## {_title(path)}\n"
    yield f"    {command_of(path)}\n"
    met = f"{len(bars) - missed} of {len(bars)} bars are met"
    memory = f"{machine.get('memory_bytes', 0) / 2**30:.0f} GiB"
    yield f"{met}; measured on {machine.get('cores', '?')} cores, {machine.get('processor', '')}, {memory}.\n"
    yield "| what | measured | bar | |"
    yield "|---|---|---|---|"
    for bar in bars:
        cells = (bar["name"], _value(bar), bar["bar"], "" if bar["ok"] else "**missed**")
        yield "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"
    yield ""
    if path.stem in _SHEETS:
        yield from (sheet.markdown() for sheet in _SHEETS[path.stem](document))
    for picture in sorted(PLOTS.glob(f"{path.stem}-*.png")):
        yield f"![{picture.stem.replace('-', ', ')}](../plots/{picture.name})\n"


def _peers(document: Document) -> list[Sheet]:
    return [sheet for part in document["scale"]["parts"] for sheet in report.sheets(document, part)]


def _figures(rounds: Sequence[float]) -> list[str]:
    return [f"{each:,.0f}" for each in (statistics.median(rounds), min(rounds), max(rounds))]


def _writes(document: Document) -> list[Sheet]:
    rows = [
        (way, *_figures(rate["by_clock"]), *_figures(rate["by_cpu"]))
        for way, rate in document["rates"].items()
    ]
    headings = ("", "by clock", "least", "most", "by CPU", "least", "most")
    return [Sheet("rows a second; median, least and most of the rounds", headings, rows)]


_SHEETS: Final[dict[str, Callable[[Document], list[Sheet]]]] = {"peers": _peers, "writes": _writes}
"""Of files whose bench has tables beside its bars."""


def written_into(page: str) -> str:
    """A page with the results of now between its marks."""
    results = written()
    return _MARKED.sub(lambda _: results, page)


def main() -> None:
    """Write the page."""
    PAGE.write_text(written_into(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
