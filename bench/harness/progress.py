"""How far a bench is that asks several questions: a bar for each, on a terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

Advance = Callable[[str, int], Callable[[], None]]
"""Begins the bar of a question that takes so many steps; returns what is to be called behind each step."""


@contextmanager
def question_bars(console: Console) -> Iterator[Advance]:
    """Bars for the length of a block; none where the console is no terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:

        def advance(question: str, steps: int) -> Callable[[], None]:
            task = progress.add_task(question, total=steps)
            return lambda: progress.advance(task)

        yield advance
