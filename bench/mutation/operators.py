"""What can be changed in a module: one place at a time, with everything else left as it is written.

Invariants:

1. A mutation is a replacement of the text of one syntax node, so its diff is one place, and no line before it moves.
2. The same source gives the same mutations, in the same order.

Not changed: annotations, docstrings, messages (f-strings, what is raised with, what is logged), assertions and
`TYPE_CHECKING` blocks: no guarantee rests on them.
"""

from __future__ import annotations

import ast
import copy
import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

_COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
}
_SWAPPED_CALLS: Final = {"min": "max", "max": "min"}
_LOGGERS: Final = ("_logger", "logger", "warnings")


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change of one module."""

    operator: str
    """What kind of change it is."""
    line: int
    """Where the changed text begins, from 1."""
    start: int
    """Of the changed text in the encoded source, in bytes."""
    end: int
    text: str
    """What is there instead."""

    def apply(self, source: str) -> str:
        """The module with this change."""
        encoded = source.encode()
        return (encoded[: self.start] + self.text.encode() + encoded[self.end :]).decode()

    def changes(self, source: str) -> bool:
        """Whether the module compiles with this change, and is another one than before."""
        try:
            return ast.dump(ast.parse(self.apply(source))) != ast.dump(ast.parse(source))
        except SyntaxError:
            return False

    def diff(self, source: str) -> list[str]:
        """The change, as the lines of a diff without its head."""
        lines = difflib.unified_diff(source.splitlines(), self.apply(source).splitlines(), lineterm="", n=0)
        return [line for line in lines if not line.startswith(("---", "+++", "@@"))]


def executed_lines(source: str, mutation: Mutation) -> tuple[set[int], set[int]] | None:
    """The lines that are executed where something is changed, if they are by a function.

    Args:
        source: Of the module, without the change.
        mutation: One of its mutations.

    Returns:
        Of the innermost statement around the change: its own lines, and those with the statements in it. None if it is
        executed when the module is imported.
    """
    starts = _line_starts(source)
    innermost: ast.stmt | None = None
    is_in_function, is_function = False, False
    for node in ast.walk(ast.parse(source)):  # Outer ones first.
        if isinstance(node, ast.stmt):
            start, end = _span(node, starts)
            if start <= mutation.start and mutation.end <= end:
                innermost = node
                is_in_function |= is_function  # What a function is defined with runs where it stands.
                is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    if innermost is None or not is_in_function:
        return None
    everything = _lines(innermost)
    inner = (
        _lines(each) for each in ast.walk(innermost) if isinstance(each, ast.stmt) and each is not innermost
    )
    return everything.difference(*inner) | {innermost.lineno}, everything


def find_mutations(source: str) -> list[Mutation]:
    """Everything that can be changed in a module, in the order of its text; look at `changes` before one is used.

    Args:
        source: Of the module; it compiles.
    """
    starts = _line_starts(source)
    found = set()
    for operator, node, text in _changes_below(ast.parse(source)):
        start, end = _span(node, starts)
        found.add(Mutation(operator, node.lineno, start, end, text))
    return sorted(found, key=lambda each: (each.start, each.end, each.operator, each.text))


def _line_starts(source: str) -> list[int]:
    """Where each line begins in the encoded source."""
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts


def _span(node: ast.expr | ast.stmt, starts: list[int]) -> tuple[int, int]:
    """Where a node begins and ends in the encoded source."""
    end_line = node.end_lineno or node.lineno
    return starts[node.lineno - 1] + node.col_offset, starts[end_line - 1] + (node.end_col_offset or 0)


def _lines(node: ast.stmt) -> set[int]:
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))


_Change = tuple[str, ast.expr | ast.stmt, str]


def _changes_below(node: ast.AST) -> Iterator[_Change]:
    for child in _children(node):
        if not _is_left_alone(child):
            yield from _changes_of(child)
            yield from _changes_below(child)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a node that code runs, without what is only said."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        if isinstance(node, ast.Raise) and name in ("exc", "cause"):
            continue
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, ast.AST):
                yield each


def _is_left_alone(node: ast.AST) -> bool:
    if isinstance(node, ast.Expr):
        value = node.value
        if isinstance(value, ast.Constant):
            return True  # A docstring, or what is said of an attribute.
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            owner = value.func.value
            return isinstance(owner, ast.Name) and owner.id in _LOGGERS
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.unparse(node.test)
    if isinstance(node, ast.FunctionDef):
        return node.name in ("__repr__", "__str__")
    return isinstance(node, ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom)


def _changes_of(node: ast.AST) -> Iterator[_Change]:
    for change in _CHANGES.get(type(node), ()):
        yield from change(node)


# What is rewritten stands in brackets: nothing is known of how tightly the text around it binds.


def _comparison(node: ast.Compare) -> Iterator[_Change]:
    for index, operator in enumerate(node.ops):
        changed = copy.deepcopy(node)
        changed.ops[index] = _COMPARISONS[type(operator)]()
        yield "comparison", node, f"({ast.unparse(changed)})"


def _negation(node: ast.UnaryOp) -> Iterator[_Change]:
    if isinstance(node.op, ast.Not):
        yield "negation", node, f"({ast.unparse(node.operand)})"


def _condition(node: ast.If | ast.IfExp) -> Iterator[_Change]:
    if not isinstance(node.test, ast.Compare | ast.UnaryOp):  # These have their own.
        yield "negation", node.test, f"(not ({ast.unparse(node.test)}))"


def _arithmetic(node: ast.BinOp) -> Iterator[_Change]:
    operator = _ARITHMETIC.get(type(node.op))
    if operator is not None:
        changed = copy.deepcopy(node)
        changed.op = operator()
        yield "arithmetic", node, f"({ast.unparse(changed)})"


def _constant(node: ast.Constant) -> Iterator[_Change]:
    if isinstance(node.value, bool):
        yield "constant", node, repr(not node.value)
    elif isinstance(node.value, int):
        yield "constant", node, repr(node.value + 1)
    elif isinstance(node.value, float):
        yield "constant", node, repr(2 * node.value + 1)


def _boolean(node: ast.BoolOp) -> Iterator[_Change]:
    changed = copy.deepcopy(node)
    changed.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    yield "and, or", node, f"({ast.unparse(changed)})"


def _call(node: ast.Call) -> Iterator[_Change]:
    if isinstance(node.func, ast.Name) and node.func.id in _SWAPPED_CALLS and len(node.args) > 1:
        yield "min, max", node.func, _SWAPPED_CALLS[node.func.id]
    looks_up = isinstance(node.func, ast.Attribute) and node.func.attr in ("get", "pop")
    if looks_up and len(node.args) == 2 and ast.unparse(node.args[1]) != "None":
        yield "default", node.args[1], "None"


def _return(node: ast.Return) -> Iterator[_Change]:
    if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
        yield "return", node, "return None"


def _statement(node: ast.stmt) -> Iterator[_Change]:
    yield "statement", node, "pass"


def _assignment(node: ast.Assign) -> Iterator[_Change]:
    # Without a local name, or what a constructor is given, nothing runs at all: that would prove little.
    if not isinstance(node.value, ast.Name) and all(
        isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets
    ):
        yield "statement", node, "pass"


def _slice(node: ast.Slice) -> Iterator[_Change]:
    for name in ("lower", "upper"):
        bound = getattr(node, name)
        if bound is not None:
            yield "slice", node, _slice_without(node, name)
            yield "slice", bound, f"({ast.unparse(bound)}) + 1"


def _slice_without(node: ast.Slice, name: str) -> str:
    changed = copy.deepcopy(node)
    setattr(changed, name, None)
    return ast.unparse(changed)


def _defaults(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[_Change]:
    for default in (*node.args.defaults, *node.args.kw_defaults):
        if isinstance(default, ast.Constant) and default.value is None:
            yield "default", default, "0"


def _context(node: ast.With | ast.AsyncWith) -> Iterator[_Change]:
    """Run a block without its lock, or whatever it is in."""
    if all(item.optional_vars is None for item in node.items):
        # The whole statement is written anew: the text between its head and its block is no node.
        block = ast.If(test=ast.Constant(value=True), body=node.body, orelse=[])
        indent = " " * node.col_offset
        yield "context", node, ast.unparse(block).replace("\n", "\n" + indent)


_CHANGES: Final[dict[type[ast.AST], tuple[Callable[..., Iterator[_Change]], ...]]] = {
    ast.Compare: (_comparison,),
    ast.UnaryOp: (_negation,),
    ast.If: (_condition,),
    ast.IfExp: (_condition,),
    ast.BinOp: (_arithmetic,),
    ast.Constant: (_constant,),
    ast.BoolOp: (_boolean,),
    ast.Call: (_call,),
    ast.Return: (_return,),
    ast.Raise: (_statement,),
    ast.Expr: (_statement,),
    ast.AugAssign: (_statement,),
    ast.Delete: (_statement,),
    ast.Break: (_statement,),
    ast.Continue: (_statement,),
    ast.Assign: (_assignment,),
    ast.Slice: (_slice,),
    ast.With: (_context,),
    ast.AsyncWith: (_context,),
    ast.FunctionDef: (_defaults,),
    ast.AsyncFunctionDef: (_defaults,),
}
