"""Which room imports which: `python -m tools.draw_house` writes the table of rooms into docs/architecture.md.

Read from the imports themselves (grimp, which import-linter stands on), so that it cannot say what is not so. Imports
that only type checkers see count, those inside functions do too.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import grimp

REPOSITORY: Final = Path(__file__).resolve().parent.parent
PAGE: Final = REPOSITORY / "docs" / "architecture.md"
PACKAGES: Final = ("weir", "transport", "scanner", "spark_source", "pyspark_weir", "bench")
OPENED: Final = ("transport", "scanner", "scanner.client", "scanner.server", "scanner.storage", "bench")
"""Packages that are drawn room by room; the others are one room each."""
_MARKED: Final = re.compile(
    r"(?<=<!-- drawn by tools.draw_house -->\n).*?(?=<!-- end of the drawing -->)", re.DOTALL
)


def room_of(module: str, packages: set[str]) -> str:
    """The room of a module: the innermost package that is drawn by itself."""
    parts = module.split(".")
    for length in range(1, len(parts)):
        name = ".".join(parts[:length])
        if name not in OPENED:
            return name
    return module if module in packages else ".".join(parts[:-1]) or module


def draw() -> str:
    """The table, as Markdown: each room, how many modules it has, and which rooms those import."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    packages = {module for module in graph.modules if graph.find_children(module)}
    seen: dict[str, set[str]] = {}
    sizes: dict[str, int] = {}
    for module in sorted(graph.modules):
        room = room_of(module, packages)
        sizes[room] = sizes.get(room, 0) + (module not in packages)
        imported = {room_of(each, packages) for each in graph.find_modules_directly_imported_by(module)}
        seen.setdefault(room, set()).update(imported - {room})
    lines = ["| room | modules | imports |", "|---|---:|---|"]
    for room in sorted(seen, key=lambda each: (PACKAGES.index(each.split(".")[0]), each)):
        if sizes[room] or seen[room]:
            names = ", ".join(f"`{each}`" for each in sorted(seen[room]))
            lines.append(f"| `{room}` | {sizes[room]} | {names or 'nothing of ours'} |")
    return "\n".join(lines) + "\n"


def drawn_into(page: str) -> str:
    """A page with the table of now between its marks."""
    table = draw()
    return _MARKED.sub(lambda _: table, page)


def main() -> None:
    """Write the page."""
    PAGE.write_text(drawn_into(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
