"""What a query needs of each table: the columns and a condition, read from DuckDB's own plan of it.

DuckDB binds and optimizes the query over empty tables of the same columns, and tells the plan as JSON
(`json_serialize_plan`). What stands at the scans of one table there is joined by or: it holds of every row that the
query can look at. Nothing is derived from the text of the query, and what is not understood here is left out.

Invariant: a condition is never too narrow. DuckDB filters again what it gets, so one that is too wide, or missing,
costs time and nothing else. Hence:

1. An AND may lose operands, an OR none; what stands under a NOT is translated exactly or not at all.
2. A constant has the type of its column, as the binder made it; else there is a cast in the plan, and it is left out.
3. To DuckDB NaN is equal to NaN and above every number, to a server it is neither: `x > 1` is sent as `not x <= 1`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, TypeAlias

import numpy as np

from scanner.data.filters import DEPTH_MAX, LiteralValue, Operator, Predicate
from scanner.data.literals import Temporal, literal
from scanner.errors import ArgumentInvalid

PREDICATES_MAX: Final = 60
LITERALS_MAX: Final = 8_000
TEXT_CHARACTERS_MAX: Final = 1 << 18
"""A server takes 64 and 10 000 unless it is configured otherwise, in a request of 4 MiB; what is past this is left to
DuckDB. A short query may have long text: `repeat('x', 5000000)` is a constant of its plan."""

_Json: TypeAlias = Mapping[str, Any]
_COMPARISONS: Final = {
    "COMPARE_EQUAL": Operator.EQUAL,
    "COMPARE_NOTEQUAL": Operator.NOT_EQUAL,
    "COMPARE_LESSTHAN": Operator.LESS,
    "COMPARE_LESSTHANOREQUALTO": Operator.LESS_OR_EQUAL,
    "COMPARE_GREATERTHAN": Operator.GREATER,
    "COMPARE_GREATERTHANOREQUALTO": Operator.GREATER_OR_EQUAL,
}
_SWAPPED: Final = {
    Operator.EQUAL: Operator.EQUAL,
    Operator.NOT_EQUAL: Operator.NOT_EQUAL,
    Operator.LESS: Operator.GREATER,
    Operator.LESS_OR_EQUAL: Operator.GREATER_OR_EQUAL,
    Operator.GREATER: Operator.LESS,
    Operator.GREATER_OR_EQUAL: Operator.LESS_OR_EQUAL,
}
_UNLESS: Final = {Operator.GREATER: Operator.LESS_OR_EQUAL, Operator.GREATER_OR_EQUAL: Operator.LESS}
_INTEGERS: Final = frozenset({"TINYINT", "SMALLINT", "INTEGER", "BIGINT"})
_FLOATS: Final = frozenset({"FLOAT", "DOUBLE"})
_TIMES: Final = {
    "DATE": ("D", ""),
    "TIMESTAMP_S": ("s", ""),
    "TIMESTAMP_MS": ("ms", ""),
    "TIMESTAMP": ("us", ""),
    "TIMESTAMP_NS": ("ns", ""),
    "TIMESTAMP WITH TIME ZONE": ("us", "Z"),
    "TIMESTAMPTZ_NS": ("ns", "Z"),
}
"""Unit and zone of DuckDB's types of times."""


class _NotUnderstoodError(Exception):
    """A filter, or a part of one, that is left to DuckDB."""


_OF_ANOTHER_FORM: Final = (KeyError, IndexError, TypeError, AttributeError)
"""What a plan raises that is built otherwise than the ones we know."""
_LEFT_OUT: Final = (_NotUnderstoodError, ArgumentInvalid, *_OF_ANOTHER_FORM)


@dataclass(frozen=True, slots=True)
class TableUse:
    """What a query needs of a table."""

    columns: frozenset[str]
    """Those that DuckDB reads anywhere in the query."""
    condition: Predicate | None
    """True of every row that the query can look at; None: it looks at all of them."""


def table_uses(plan: str) -> dict[str, TableUse]:
    """What a plan needs, by the table's name as DuckDB has it. A table that the plan does not scan is not in it.

    Args:
        plan: What `json_serialize_plan` tells of one statement, optimized.
    """
    try:
        document = json.loads(plan)
    except ValueError:  # NaN as a constant, for one, is written as JSON does not have it.
        return {}
    found: dict[str, list[_Json]] = {}
    for scan in _scans(document):
        name = (scan.get("function_data") or {}).get("table")
        if isinstance(name, str):
            found.setdefault(name, []).append(scan)
    uses = {}
    for name, scans in found.items():
        with suppress(*_OF_ANOTHER_FORM):
            uses[name] = _use(scans)
    return uses


def text_of(predicate: Predicate) -> str:
    """A predicate as it is written in a condition, for people."""
    column, values = f'"{predicate.column}"', ", ".join(map(_literal_text, predicate.literals))
    inner = [text_of(each) for each in predicate.operands]
    match predicate.operator:
        case Operator.AND | Operator.OR:
            return "(" + f" {predicate.operator.name.lower()} ".join(inner) + ")"
        case Operator.NOT:
            return f"not {inner[0]}" if inner[0].startswith("(") else f"not ({inner[0]})"
        case Operator.IS_NULL:
            return f"{column} is null"
        case Operator.IS_NOT_NULL:
            return f"{column} is not null"
        case Operator.IN:
            return f"{column} in ({values})"
        case Operator.STARTS_WITH:
            return f"{column} starts with {values}"
        case operator:
            return f"{column} {_SYMBOLS[operator]} {values}"


_SYMBOLS: Final = {
    Operator.EQUAL: "=",
    Operator.NOT_EQUAL: "<>",
    Operator.LESS: "<",
    Operator.LESS_OR_EQUAL: "<=",
    Operator.GREATER: ">",
    Operator.GREATER_OR_EQUAL: ">=",
}


def _literal_text(value: LiteralValue) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, Temporal):
        return f"{'DATE' if value.read()[2] else 'TIMESTAMP'} '{value.text}'"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _scans(node: object) -> Iterator[_Json]:
    """The scans of tables anywhere in a plan."""
    pending = [node]
    while pending:
        each = pending.pop()
        if isinstance(each, dict):
            if each.get("type") == "LOGICAL_GET":
                yield each
            pending.extend(each.values())
        elif isinstance(each, list):
            pending.extend(each)


def _use(scans: Sequence[_Json]) -> TableUse:
    columns, alternatives = set[str](), list[Predicate]()
    everything = False
    for scan in scans:
        names = _column_names(scan)
        columns.update(name for name in names if name is not None)
        conditions = _conditions(scan, names)
        if not conditions:
            everything = True
        elif (joined := _joined(Operator.AND, conditions)) not in alternatives:
            alternatives.append(joined)
    condition = None if everything else _joined(Operator.OR, alternatives)
    return TableUse(frozenset(columns), condition if condition and _is_small(condition) else None)


def _column_names(scan: _Json) -> list[str | None]:
    """The columns that are scanned, in order; None: something else, such as the row's number."""
    names = scan["names"]
    indices = [each["index"] for each in scan["column_indexes"]]
    return [names[index] if index < len(names) else None for index in indices]


def _conditions(scan: _Json, names: Sequence[str | None]) -> list[Predicate]:
    """What all rows of a scan must fulfil, as far as it is understood."""
    filters = scan.get("table_filters") or {}
    if not scan.get("table_filters_by_projection"):
        return []
    found: list[Predicate] = []
    for each in filters.get("filters", []):
        column = names[each["key"]]
        if column is not None:
            found += _understood(_filter, each["value"], [column])
    for each in filters.get("multi_column_filters", []):
        indices = each.get("column_indexes", [])
        if all(isinstance(index, int) and index < len(names) for index in indices):
            found += _understood(_filter, each, [names[index] for index in indices])
    kept: list[Predicate] = []
    for predicate in found:
        if _is_small(_joined(Operator.AND, [*kept, predicate])):
            kept.append(predicate)
    return kept


def _understood(
    read: Callable[[_Json, Sequence[str | None]], Predicate], given: _Json, columns: Sequence[str | None]
) -> list[Predicate]:
    try:
        return [read(given, columns)]
    except _LEFT_OUT:
        return []


def _is_small(predicate: Predicate) -> bool:
    nodes, literals, pending = 0, list[LiteralValue](), [predicate]
    while pending:
        each = pending.pop()
        nodes += 1
        literals += each.literals
        pending.extend(each.operands)
    return (
        nodes <= PREDICATES_MAX
        and len(literals) <= LITERALS_MAX
        and sum(len(each) for each in literals if isinstance(each, str)) <= TEXT_CHARACTERS_MAX
        and predicate.depth < DEPTH_MAX
    )


def _joined(operator: Operator, operands: Sequence[Predicate]) -> Predicate:
    """Operands joined by AND or OR: as flat as can be."""
    flat: list[Predicate] = []
    for each in operands:
        flat += each.operands if each.operator is operator else (each,)
    return flat[0] if len(flat) == 1 else Predicate("", operator, (), tuple(flat))


def _filter(given: _Json, columns: Sequence[str | None]) -> Predicate:
    """A filter of a scan, of which the first column is the one that it is about."""
    kind = given["filter_type"]
    match kind:
        case "EXPRESSION_FILTER":
            return _expression(given["expr"], columns)
        case "LEGACY_OPTIONAL_FILTER":
            return _filter(given["child_filter"], columns)
        case "LEGACY_CONJUNCTION_AND":
            return _some_of([_understood(_filter, each, columns) for each in given["child_filters"]])
        case "LEGACY_CONJUNCTION_OR":
            return _joined(Operator.OR, [_filter(each, columns) for each in given["child_filters"]])
        case "LEGACY_CONSTANT_COMPARISON":
            return _comparison(_COMPARISONS[given["comparison_type"]], _name(columns, 0), given["constant"])
        case "LEGACY_IN_FILTER":
            return _in(_name(columns, 0), given["values"], exact=False)
        case "LEGACY_IS_NULL":
            return Predicate(_name(columns, 0), Operator.IS_NULL)
        case "LEGACY_IS_NOT_NULL":
            return Predicate(_name(columns, 0), Operator.IS_NOT_NULL)
    raise _NotUnderstoodError(kind)


def _expression(given: _Json, columns: Sequence[str | None], *, exact: bool = False) -> Predicate:
    """An expression that is true of all rows that pass: exactly of those, or of more as well."""
    kind, children = given["type"], given.get("children", [])
    if kind in _COMPARISONS:
        return _compared(_COMPARISONS[kind], children[0], children[1], columns)
    match kind:
        case "BOUND_REF" if given["return_type"]["id"] == "BOOLEAN":
            return Predicate(_column(given, columns), Operator.EQUAL, (True,))
        case "CONJUNCTION_OR":
            return _joined(Operator.OR, [_expression(each, columns, exact=exact) for each in children])
        case "CONJUNCTION_AND" if exact:
            return _joined(Operator.AND, [_expression(each, columns, exact=True) for each in children])
        case "CONJUNCTION_AND":
            return _some_of([_understood(_expression, each, columns) for each in children])
        case "OPERATOR_NOT":
            return _negated(_expression(children[0], columns, exact=True))
        case "OPERATOR_IS_NULL":
            return Predicate(_column(children[0], columns), Operator.IS_NULL)
        case "OPERATOR_IS_NOT_NULL":
            return Predicate(_column(children[0], columns), Operator.IS_NOT_NULL)
        case "COMPARE_IN" | "COMPARE_NOT_IN":
            values = [_constant(each) for each in children[1:]]
            negated = kind == "COMPARE_NOT_IN"
            found = _in(_column(children[0], columns), values, exact=exact or negated)
            return _negated(found) if negated else found
    raise _NotUnderstoodError(kind)


def _some_of(operands: Sequence[Sequence[Predicate]]) -> Predicate:
    """An AND of those operands that are understood."""
    found = [predicate for each in operands for predicate in each]
    if not found:
        raise _NotUnderstoodError
    return _joined(Operator.AND, found)


def _negated(predicate: Predicate) -> Predicate:
    if predicate.operator is Operator.NOT:
        return predicate.operands[0]
    return Predicate("", Operator.NOT, (), (predicate,))


def _compared(operator: Operator, left: _Json, right: _Json, columns: Sequence[str | None]) -> Predicate:
    if left["type"] == "BOUND_REF":
        return _comparison(operator, _column(left, columns), _constant(right))
    return _comparison(_SWAPPED[operator], _column(right, columns), _constant(left))


def _comparison(operator: Operator, column: str, constant: _Json) -> Predicate:
    value = _value(constant)
    if constant["type"]["id"] in _FLOATS and operator in _UNLESS:
        return _negated(Predicate(column, _UNLESS[operator], (value,)))
    return Predicate(column, operator, (value,))


def _in(column: str, values: Sequence[_Json], *, exact: bool) -> Predicate:
    """Equal to one of the values. A null among them makes the others unknown instead of false."""
    present = [each for each in values if not each["is_null"]]
    if not present or (exact and len(present) < len(values)):
        raise _NotUnderstoodError
    return Predicate(column, Operator.IN, tuple(_value(each) for each in present))


def _column(given: _Json, columns: Sequence[str | None]) -> str:
    if given["type"] != "BOUND_REF":
        raise _NotUnderstoodError(given["type"])
    return _name(columns, given["index"])


def _name(columns: Sequence[str | None], index: int) -> str:
    name = columns[index]
    if name is None:
        raise _NotUnderstoodError
    return name


def _constant(given: _Json) -> _Json:
    if given["type"] != "VALUE_CONSTANT":
        raise _NotUnderstoodError(given["type"])
    value: _Json = given["value"]
    return value


def _value(constant: _Json) -> LiteralValue:
    """A constant of the plan, of the type of the column that it is compared with."""
    if constant["is_null"]:
        raise _NotUnderstoodError
    kind, value = constant["type"]["id"], constant["value"]
    if kind == "BOOLEAN" and isinstance(value, bool):
        return value
    if kind == "VARCHAR" and isinstance(value, str):
        return literal(value)
    if kind in _FLOATS and isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, bool) or not isinstance(value, int):
        raise _NotUnderstoodError(kind)
    if kind in _INTEGERS:
        return literal(value)
    if kind == "DECIMAL":
        return literal(Decimal(value).scaleb(-constant["type"]["type_info"]["scale"]))
    if kind in _TIMES and abs(value) < 2**62:  # The ends are infinite, or no time.
        unit, zone = _TIMES[kind]
        return Temporal(str(np.array(value, f"datetime64[{unit}]")) + zone)
    raise _NotUnderstoodError(kind)
