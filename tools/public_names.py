"""What is public in `weir`, `weir.sync` and `weir.spark`, read from the sources by griffe, as mkdocstrings does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import griffe

from tools.write_reference import FACES, REPOSITORY

_PACKAGES: Final = ("transport", "scanner", "spark_source")


def undocumented() -> list[str]:
    """Public names and members that nothing is said of.

    A function, class, method or property needs a docstring of its own. A data attribute needs one, or its name in the
    docstring of the class that has it.
    """
    loader = griffe.GriffeLoader(search_paths=[REPOSITORY])
    for package in _PACKAGES:
        loader.load(package)
    loader.resolve_aliases(implicit=False, external=False)
    silent = []
    for face, module in FACES.items():
        exported = loader.modules_collection[module]
        for name in exported.exports or ():
            value = _target(exported[str(name)])
            silent += [f"{face}.{name}{member}" for member in _silent(value)]
    return silent


def _silent(value: Any) -> Iterator[str]:
    if not value.has_docstring:
        yield ""
    if not value.is_class:
        return
    for name, found in value.all_members.items():
        member = _target(found)
        if name.startswith("_") or member.has_docstring or _documented_above(value, name):
            continue
        owner = member.parent.docstring
        if not (member.is_attribute and owner and re.search(rf"\b{name}\b", owner.value)):
            yield f".{name}"


def _documented_above(value: Any, name: str) -> bool:
    return any(name in base.members and base.members[name].has_docstring for base in value.mro())


def _target(found: Any) -> Any:
    return found.final_target if found.is_alias else found
