"""A table of figures, for a terminal and for a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table


@dataclass(frozen=True, slots=True)
class Sheet:
    """Headings and rows of text; the first column names what the others measure."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]

    def rich(self) -> Table:
        """For a terminal."""
        table = Table(title=self.title, padding=0)
        for number, heading in enumerate(self.headings):
            table.add_column(heading, justify="right" if number else "left")
        for row in self.rows:
            table.add_row(*row)
        return table

    def markdown(self) -> str:
        """For a page, with its title above it."""
        lines = [self.headings, ["---", *["---:"] * (len(self.headings) - 1)], *self.rows]
        drawn = ("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
        return f"**{self.title}**\n\n" + "\n".join(drawn) + "\n"
