"""Which files can flake8-async object to? `python -m tools.cancellation FILE...` prints their names.

By the rules on cancellation, ASYNC101 to 104. flake8-async takes a quarter of a second for a file, and few have what
one of these rules looks at: an `await` where a task may be cancelled already, a handler of cancellations, a `yield` in
a block that opens a nursery or a cancel scope.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_CANCELLATIONS: Final = ("BaseException", "Cancelled", "get_cancelled_exc_class")
_SCOPES: Final = (
    "nursery",
    "CancelScope",
    "move_on",
    "fail_at",
    "fail_after",
    "task_group",
    "TaskGroup",
    "timeout",
)


def can_be_objected_to(source: str) -> bool:
    """Whether a rule has something to look at; that it then objects is not said."""
    return any(map(_is_looked_at, ast.walk(ast.parse(source))))


def _is_looked_at(node: ast.AST) -> bool:
    match node:
        case ast.Try() | ast.TryStar():
            return _has(node.finalbody, ast.Await, ast.AsyncFor, ast.AsyncWith)
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return node.name == "__aexit__" or (
                not _is_context(node) and any(map(_yields_in_scope, ast.walk(node)))
            )
        case ast.ExceptHandler():
            return node.type is None or _names(node.type, _CANCELLATIONS)
        case ast.alias():  # Behind another name it would not be seen.
            return node.asname is not None and _names(node, (*_CANCELLATIONS, *_SCOPES))
        case _:
            return False


def _is_context(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """It has a decorator that makes a `yield` in a scope harmless."""
    names = (ast.unparse(each).partition("(")[0].rpartition(".")[2] for each in function.decorator_list)
    return any(name in {"contextmanager", "asynccontextmanager", "fixture"} for name in names)


def _yields_in_scope(node: ast.AST) -> bool:
    match node:
        case ast.With() | ast.AsyncWith():
            return _has(node.body, ast.Yield) and any(_names(each, _SCOPES) for each in node.items)
        case _:
            return False


def _has(body: Iterable[ast.stmt], *kinds: type[ast.AST]) -> bool:
    return any(isinstance(node, kinds) for statement in body for node in ast.walk(statement))


def _names(node: ast.AST, words: Iterable[str]) -> bool:
    text = ast.unparse(node)
    return any(word in text for word in words)


def main() -> None:
    """Print the names of such files, each on a line."""
    for name in sys.argv[1:]:
        if can_be_objected_to(Path(name).read_text(encoding="utf-8")):
            print(name)


if __name__ == "__main__":
    main()
