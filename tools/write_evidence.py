"""What was measured, beside what must be so: `python -m tools.write_evidence` writes it into docs/evidence/README.md.

Read from the JSON of the benches in bench/results, so that the page cannot say what was not measured.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

REPOSITORY: Final = Path(__file__).resolve().parent.parent
PAGE: Final = REPOSITORY / "docs" / "evidence" / "README.md"
RESULTS: Final = REPOSITORY / "bench" / "results"
PLOTS: Final = REPOSITORY / "docs" / "plots"
_BENCHES: Final = {
    "spark_image": "spark --image",
    "tail_idle": "tail --part idle",
    "tail_slow": "tail --part slow",
}
"""The files that are not called as their bench is."""
_VALUE_CHARACTERS_MAX: Final = 80
_MARKED: Final = re.compile(
    r"(?<=<!-- written by tools.write_evidence -->\n).*?(?=<!-- end of what is written -->)", re.DOTALL
)


def command_of(result: Path) -> str:
    """What measured a file of results."""
    bench = _BENCHES.get(result.stem, result.stem.replace("_", "-"))
    return f"python -m bench {bench} --json bench/results/{result.name}"


def written() -> str:
    """The results, as Markdown: of each file the command, the machine, the bars, and the pictures of its bench."""
    return "".join(f"{line}\n" for path in sorted(RESULTS.glob("*.json")) for line in _section(path))


def _section(path: Path) -> Iterator[str]:
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    bars, machine = document.get("bars", []), document.get("machine", {})
    missed = sum(not bar["ok"] for bar in bars)
    yield f"## {path.stem.replace('_', ' ')}\n"
    yield f"    {command_of(path)}\n"
    met = f"{len(bars) - missed} of {len(bars)} bars are met"
    yield f"{met}; measured on {machine.get('cores', 'an unknown number of')} cores, {machine.get('processor', '')}.\n"
    yield "| what | measured | bar | |"
    yield "|---|---|---|---|"
    for bar in bars:
        value = str(bar["value"])
        if len(value) > _VALUE_CHARACTERS_MAX:
            value = value[:_VALUE_CHARACTERS_MAX] + " ..."
        cells = (bar["name"], value, bar["bar"], "" if bar["ok"] else "**missed**")
        yield "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"
    yield ""
    for picture in sorted(PLOTS.glob(f"{path.stem}-*.png")):
        yield f"![{picture.stem.replace('-', ', ')}](../plots/{picture.name})\n"


def written_into(page: str) -> str:
    """A page with the results of now between its marks."""
    results = written()
    return _MARKED.sub(lambda _: results, page)


def main() -> None:
    """Write the page."""
    PAGE.write_text(written_into(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
