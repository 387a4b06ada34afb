"""Writes docs/reference: the command line from click's own help, the Python API from the docstrings.

    python -m tools.write_reference

The pages are committed, so that they can be read on a code host; `tests/test_docs.py` compares them with the code.
`tools/build_site.py` adds to the pages of the API what mkdocstrings makes of every name: signatures, members, errors.
"""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from scanner.cli import weir as weir_command

REPOSITORY: Final = Path(__file__).resolve().parent.parent
REFERENCE: Final = REPOSITORY / "docs" / "reference"
FACES: Final = {"weir": "scanner", "weir.sync": "scanner.sync", "weir.spark": "spark_source"}
"""The modules that users import, and where mkdocstrings finds their names without running anything."""
_WRITTEN: Final = "<!-- Written by `python -m tools.write_reference`; edit the {source} instead. -->"
_EXAMPLE: Final = re.compile(r"(?:^    .*\n?|^\n(?=    ))+", re.MULTILINE)
_COLUMNS: Final = 80
"""A terminal's, for which the help is laid out."""


def pages() -> dict[str, str]:
    """Every page of docs/reference by file name."""
    return {"cli.md": command_line_page()} | {page_name(face): api_page(face) for face in FACES}


def page_name(face: str) -> str:
    """Of the page of a module: `weir-sync.md`."""
    return face.replace(".", "-") + ".md"


def api_page(face: str) -> str:
    """The page of a public module: its docstring, and its names with the first line of theirs."""
    module = importlib.import_module(face)
    described = module if face == "weir" else importlib.import_module(FACES[face])
    parts = [f"# {face}", _WRITTEN.format(source="docstrings"), _as_markdown(inspect.getdoc(described) or "")]
    for title, names in _by_kind(module).items():
        rows = [f"| `{name}` | {_first_line(getattr(module, name))} |" for name in names]
        parts.append("\n".join([f"## {title}", "", "| name | what it is |", "|---|---|", *rows]))
    parts.append(
        f"Signatures and members: `python -m pydoc {FACES[face]}`, or this page on the site that `make docs` builds."
    )
    return "\n\n".join(parts) + "\n"


def _by_kind(module: Any) -> dict[str, list[str]]:
    kinds: dict[str, list[str]] = {"Functions": [], "Classes": [], "Errors": []}
    for name in sorted(module.__all__, key=str.lower):
        value = getattr(module, name)
        if not inspect.isclass(value):
            kinds["Functions"].append(name)
        else:
            kinds["Errors" if issubclass(value, Exception) else "Classes"].append(name)
    return {title: names for title, names in kinds.items() if names}


def _first_line(value: Any) -> str:
    return (inspect.getdoc(value) or "").split("\n\n")[0].replace("\n", " ")


def _as_markdown(docstring: str) -> str:
    """A docstring whose indented examples are blocks of code."""
    return _EXAMPLE.sub(lambda found: f"\n```python\n{textwrap.dedent(found[0]).strip()}\n```\n", docstring)


def command_line_page() -> str:
    """What `weir COMMAND --help` prints, of every command."""
    parts = [
        "# The command line",
        _WRITTEN.format(source="commands in `scanner/cli`"),
        "Exit codes: 0 for success, 1 for a failure (one line on standard error), 2 for a command that cannot be read,"
        " 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP, 141 if nobody reads the output any more.",
    ]
    for path, text in _help(
        weir_command, click.Context(weir_command, info_name="weir", help_option_names=["-h", "--help"])
    ):
        parts += [f"## {path}", f"```text\n{text}\n```"]
    return "\n\n".join(parts) + "\n"


def _help(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    """The path and the help of a command and of all below it."""
    context.terminal_width = context.max_content_width = _COLUMNS
    yield context.command_path, command.get_help(context).rstrip()
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None  # It was listed.
            yield from _help(child, click.Context(child, info_name=name, parent=context))


def main() -> None:
    """Write the pages."""
    REFERENCE.mkdir(exist_ok=True)
    for name, text in pages().items():
        (REFERENCE / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
