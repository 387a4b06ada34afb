"""Builds the documentation as a site, in build/site: `make docs`.

The pages keep the paths that they have in the repository, so a link that works on a code host works here.
The navigation is docs/README.md, section by section. Strict: a link or an anchor that leads nowhere, a page that
the map does not name and a public name without a docstring end the build.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any, Final

from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

from tools.public_names import undocumented
from tools.write_reference import FACES, REPOSITORY, api_page, page_name

PAGES: Final = REPOSITORY / "build" / "pages"
COPIED: Final = ("*.md", "docs/**/*", "bench/README.md", "tests/README.md")
MAP: Final = "docs/README.md"
_LINK: Final = re.compile(r"\[([^]]+)\]\(([^)#]+\.md)\)")


def lay_out(target: Path) -> None:
    """Copy the pages, and add to those of the API a directive for each name."""
    shutil.rmtree(target, ignore_errors=True)
    for pattern in COPIED:
        for source in REPOSITORY.glob(pattern):
            if source.is_file():
                copy = target / source.relative_to(REPOSITORY)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, copy)
    for face, module in FACES.items():
        page = target / "docs" / "reference" / page_name(face)
        page.write_text(with_directives(api_page(face), face, module), encoding="utf-8")


def with_directives(page: str, face: str, module: str) -> str:
    """A page of the API whose names are links, with all that mkdocstrings knows of each below them."""
    names = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    linked = re.sub(r"^\| `(\w+)` \|", rf"| [`\1`][{module}.\1] |", page, flags=re.MULTILINE)
    described = [
        f"::: {module}.{name}\n    options:\n      heading: {face}.{name}\n      toc_label: {name}"
        for name in names
    ]
    return linked + "\n## Signatures and members\n\n" + "\n\n".join(described) + "\n"


def navigation() -> list[Any]:
    """The pages that the map names, under its headings; those below a directory's README in a section of theirs."""
    seen = {"README.md", MAP}
    sections = re.split(r"^## ", (REPOSITORY / MAP).read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    named = [{section.splitlines()[0]: _linked(section, Path(MAP).parent, seen)} for section in sections]
    return [{"weir": ["README.md", MAP]}, *named]


def _linked(text: str, folder: Path, seen: set[str]) -> list[Any]:
    entries: list[Any] = []
    for title, link in _LINK.findall(text):
        path = os.path.normpath(folder / link)
        if path in seen:
            continue
        seen.add(path)
        page = REPOSITORY / path
        if page.name == "README.md" and page.parent.parent == REPOSITORY / "docs":
            below = _linked(page.read_text(encoding="utf-8"), Path(path).parent, seen)
            entries.append({title: [path, *below]})
        else:
            entries.append({title.strip("`"): path})
    return entries


def main() -> None:
    """Build it; the exit code is 1 if anything is wrong."""
    if silent := undocumented():
        sys.exit("no docstring: " + ", ".join(silent))
    lay_out(PAGES)
    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.WARNING)
    os.environ.setdefault("NO_MKDOCS_2_WARNING", "1")  # An advertisement, at each build.
    config = load_config(str(REPOSITORY / "mkdocs.yml"), nav=navigation())
    config.plugins.on_startup(command="build", dirty=False)
    try:
        build(config)
    except Abort as error:
        sys.exit(f"docs: {error}")
    finally:
        config.plugins.on_shutdown()


if __name__ == "__main__":
    main()
