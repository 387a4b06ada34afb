"""Conditions as text: the part of SQL's conditions that a scan can evaluate, read by sqlglot.

sqlglot reads far more SQL than this, and more than one way of writing the same. So its tree is not trusted to hold
only what is expected: each node is one of the types below, with no other property set, or the whole text is refused.
Nothing is left out, guessed or taken for something else.

Only the client reads text; the tree travels. Import this module where it is needed: sqlglot takes its time to load.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import ClassVar, Final, NoReturn

import sqlglot
from sqlglot import Token, TokenType, exp
from sqlglot.errors import ErrorLevel, ParseError, TokenError

from scanner.client.scan.expressions import Condition
from scanner.data.filters import LiteralValue, Operator, Predicate
from scanner.data.literals import Temporal, decimal_literal, literal
from scanner.errors import ArgumentInvalid

TEXT_CHARACTERS_MAX: Final = 1 << 18
"""Longer than any filter that a server accepts."""
_ALLOWED: Final = (
    "a condition is made of COLUMN =, !=, <, <=, > or >= VALUE, [not] in (...), [not] between ... and ...,"
    " [not] like 'prefix%', is [not] null, joined by and, or, not and parentheses;"
    " text is in single quotes, a column's name in none or in double quotes"
)
_NESTING_MAX: Final = 100
"""Parentheses and their like in one another. A compiled sqlglot (`sqlglot[c]`) knows no RecursionError: it crashes."""
_OPENING: Final = frozenset({TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE, TokenType.CASE})
_CLOSING: Final = frozenset({TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE})
_HOLDING: Final = sqlglot.Parser.NESTED_TYPE_TOKENS
_SHOWN_CHARACTERS_MAX: Final = 60
_INTEGER: Final = re.compile(r"[0-9]+")
_COMPARISONS: Final[dict[type[exp.Expr], tuple[Operator, Operator]]] = {
    exp.EQ: (Operator.EQUAL, Operator.EQUAL),
    exp.NEQ: (Operator.NOT_EQUAL, Operator.NOT_EQUAL),
    exp.LT: (Operator.LESS, Operator.GREATER),
    exp.LTE: (Operator.LESS_OR_EQUAL, Operator.GREATER_OR_EQUAL),
    exp.GT: (Operator.GREATER, Operator.LESS),
    exp.GTE: (Operator.GREATER_OR_EQUAL, Operator.LESS_OR_EQUAL),
}
"""With the column on the left, and with it on the right."""
_NEVER_NEXT: Final = frozenset(
    {
        (TokenType.L_PAREN, TokenType.COMMA),
        (TokenType.L_BRACKET, TokenType.COMMA),
        *itertools.product(
            (TokenType.COMMA, TokenType.PLUS), (TokenType.COMMA, TokenType.R_PAREN, TokenType.R_BRACKET)
        ),
        (TokenType.NOT, TokenType.IS),
    }
)
"""Words that sqlglot reads one behind the other, and SQL does not."""


class _Where(sqlglot.Dialect):
    """SQL with X'..', and without comments: what is written behind one would be left out.

    The parser is sqlglot's own: where sqlglot is compiled (`sqlglot[c]`), one of a derived class cannot be made.
    """

    class Tokenizer(sqlglot.Tokenizer):
        """What the words are."""

        COMMENTS: ClassVar = []
        HINT_START = ""
        HEX_STRINGS: ClassVar = [("x'", "'"), ("X'", "'")]


def parse(text: str) -> Condition:
    """Read a condition; `scanner.parse_where` says more.

    Raises:
        ArgumentInvalid: It cannot be read in full.
    """
    if len(text) > TEXT_CHARACTERS_MAX:
        raise ArgumentInvalid(
            f"a condition of {len(text)} characters is too long; {TEXT_CHARACTERS_MAX} are allowed"
        )
    try:
        tokens = _Where().tokenize(text)
        _require_flat(tokens)
        if tokens and tokens[0].token_type is TokenType.VAR and tokens[0].text.upper() == "IF":
            _refuse(_shown(text))  # sqlglot would take it for a command, and log that.
        if any(each.token_type is TokenType.SEMICOLON for each in tokens):
            _refuse("';'")  # One at the end it would leave out.
        tree = sqlglot.parse_one(text, dialect=_Where, into=exp.Condition)
        _require_as_read(text, tokens, tree)
        return Condition(_joined(tree, exp.And, Operator.AND))
    except TokenError:
        raise _refusal(
            f"{_shown(text)}, where a quote is not closed, or a character makes no sense"
        ) from None
    except ParseError as error:
        raise _refusal(_place(error, text)) from None
    except RecursionError:
        raise ArgumentInvalid(
            f"the condition {_shown(text)} is nested too deeply; write it flatter"
        ) from None


def _predicate(node: exp.Expr) -> Predicate:
    """The predicate that a node of the tree is."""
    node = _unwrapped(node)
    match node:
        case exp.And() | exp.Or():
            operator = Operator.AND if isinstance(node, exp.And) else Operator.OR
            return Predicate("", operator, (), _joined(node, type(node), operator))
        case exp.Not():
            return _negated(_predicate(_child(node)))
        case exp.Is():
            return _is_null(node)
        case exp.In():
            return _in(node)
        case exp.Between():
            _require_only(node, "this", "low", "high")
            column = _column(node.this, node)
            low = Predicate(column, Operator.GREATER_OR_EQUAL, (_value(node.args["low"], node),))
            high = Predicate(column, Operator.LESS_OR_EQUAL, (_value(node.args["high"], node),))
            return Predicate("", Operator.AND, (), (low, high))
        case exp.Like():
            return _like(node)
        case exp.Column():
            name = _shortened(_column(node, node))
            _refuse(f"{name!r} alone, which is no condition", f"if it is a bool column, write {name} = true")
    if type(node) in _COMPARISONS:
        return _comparison(node)
    _refuse(_shown(node))


def _joined(node: exp.Expr, kind: type[exp.Expr], operator: Operator) -> tuple[Predicate, ...]:
    """The predicates that `kind` joins in a node, those of a joined one among them: as flat as can be."""
    found: list[Predicate] = []
    for each in _operands(node, kind):
        predicate = _predicate(each)
        found += predicate.operands if predicate.operator is operator else (predicate,)
    return tuple(found)


def _operands(node: exp.Expr, kind: type[exp.Expr]) -> list[exp.Expr]:
    """What `kind` joins: `a and b and c` is a tree that leans to the left, as deep as it is long."""
    operands = []
    while type(node) is kind:
        _require_only(node, "this", "expression")
        operands.append(node.expression)
        node = node.this
    return [node, *reversed(operands)]


def _negated(predicate: Predicate) -> Predicate:
    match predicate.operator:
        case Operator.IS_NULL:
            return Predicate(predicate.column, Operator.IS_NOT_NULL)
        case Operator.IS_NOT_NULL:
            return Predicate(predicate.column, Operator.IS_NULL)
        case Operator.NOT:
            return predicate.operands[0]
        case _:
            return Predicate("", Operator.NOT, (), (predicate,))


def _is_null(node: exp.Expr) -> Predicate:
    _require_only(node, "this", "expression")
    if type(node.expression) is not exp.Null:
        _refuse(_shown(node), "is goes with null or not null; compare with =")
    return Predicate(_column(node.this, node), Operator.IS_NULL)


def _in(node: exp.Expr) -> Predicate:
    _require_only(node, "this", "expressions")
    values = tuple(_value(each, node) for each in node.expressions)
    if not values:
        _refuse(_shown(node), "in needs a list of values")
    return Predicate(_column(node.this, node), Operator.IN, values)


def _like(node: exp.Expr) -> Predicate:
    _require_only(node, "this", "expression", "negate")
    pattern = _value(node.expression, node)
    prefix = pattern[:-1] if isinstance(pattern, str) and pattern.endswith("%") else None
    if not isinstance(prefix, str) or set(prefix) & set("%_\\"):
        _refuse(
            _shown(node),
            "like takes a prefix with one % behind it, and no other %, _ or \\; use = for whole text",
        )
    found = Predicate(_column(node.this, node), Operator.STARTS_WITH, (prefix,))
    return _negated(found) if node.args.get("negate") else found


def _comparison(node: exp.Expr) -> Predicate:
    _require_only(node, "this", "expression")
    as_written, swapped = _COMPARISONS[type(node)]
    left, right = _unwrapped(node.this), _unwrapped(node.expression)
    if isinstance(left, exp.Column):
        return Predicate(_column(left, node), as_written, (_value(right, node),))
    if isinstance(right, exp.Column):
        return Predicate(_column(right, node), swapped, (_value(left, node),))
    _refuse(_shown(node), "a column is compared with a value")


def _column(node: exp.Expr, within: exp.Expr) -> str:
    node = _unwrapped(node)
    if type(node) is not exp.Column:
        _refuse(_shown(within), "a column stands on the left")
    if set(_present(node)) != {"this"}:
        _refuse(
            _shown(node), f'if this is one column, put its name in double quotes: "{_shortened(_sql(node))}"'
        )
    name = node.this
    if type(name) is not exp.Identifier:
        _refuse(_shown(node))
    return str(name.this)


def _value(node: exp.Expr, within: exp.Expr) -> LiteralValue:
    node = _unwrapped(node)
    match node:
        case exp.Literal():
            return literal(str(node.this)) if node.is_string else _number(str(node.this))
        case exp.Neg() if isinstance(node.this, exp.Literal) and not node.this.is_string:
            return _number(f"-{node.this.this}")
        case exp.Boolean():
            return bool(node.this)
        case exp.HexString():
            return _octets(node, within)
        case exp.Cast() if type(node) is exp.Cast:
            return _temporal(node, within)
        case exp.Null():
            _refuse(_shown(within), "nothing is equal to null; use is null or is not null")
        case exp.Column() if isinstance(node.this, exp.Identifier) and not node.this.quoted:
            word = _shortened(_sql(node))
            _refuse(_shown(within), f"{word} on this side is no value; if it is text, quote it: '{word}'")
        case exp.Column():
            _refuse(_shown(within), "columns are not compared with each other; text is in single quotes")
    _refuse(_shown(within), f"{_shown(node)} is no value")


def _number(text: str) -> LiteralValue:
    if _INTEGER.fullmatch(text.removeprefix("-")) and len(text) < 4_000:
        return literal(int(text))
    return decimal_literal(text)


def _octets(node: exp.Expr, within: exp.Expr) -> bytes:
    _require_only(node, "this", "is_integer")
    try:
        return bytes.fromhex(str(node.this))
    except ValueError:
        _refuse(_shown(within), "X'..' holds an even number of hexadecimal digits")


def _require_flat(tokens: Sequence[Token]) -> None:
    # A type that holds others opens, too, as in array<array<: no condition has one.
    depths = itertools.accumulate(
        (each.token_type in _OPENING or (each.token_type is TokenType.LT and before.token_type in _HOLDING))
        - (each.token_type in _CLOSING)
        for before, each in itertools.pairwise([*tokens[:1], *tokens])
    )
    if max(depths, default=0) > _NESTING_MAX:
        raise RecursionError


def _require_as_read(text: str, tokens: Sequence[Token], tree: exp.Expr) -> None:
    """Refuse what sqlglot takes for something that is not written: 0x1f for X'1f', `in (1,,2)`, `between 1 2`, `!`."""
    for token, behind in itertools.zip_longest(tokens, tokens[1:]):
        written, kind = text[token.start : token.end + 1], token.token_type
        if kind is TokenType.HEX_STRING and written[0] not in "xX":
            _refuse(_shown(written), "write numbers with decimal digits, and octets as X'..'")
        if kind is TokenType.NOT and written == "!":
            _refuse(_shown(written), "write not")
        if behind is not None and (kind, behind.token_type) in _NEVER_NEXT:
            _refuse(_shown(text[token.start : behind.end + 1]))
    ands = sum(token.token_type is TokenType.AND for token in tokens)
    if ands != sum(1 for _ in tree.find_all(exp.And, exp.Between)):
        _refuse(_shown(text), "between goes with and: COLUMN between LOW and HIGH")


def _temporal(node: exp.Expr, within: exp.Expr) -> Temporal:
    """DATE '..' or TIMESTAMP '..', which sqlglot reads as a cast."""
    _require_only(node, "this", "to")
    kind, text = node.args["to"], _unwrapped(node.this)
    kinds = (exp.DType.DATE, exp.DType.TIMESTAMP, exp.DType.TIMESTAMPTZ)
    _require_only(kind, "this")
    if kind.this not in kinds or not isinstance(text, exp.Literal) or not text.is_string:
        _refuse(_shown(within), f"{_shown(node)} is no value; there are DATE '..' and TIMESTAMP '..'")
    found = Temporal(str(text.this))
    if kind.this is exp.DType.DATE and not found.read()[2]:
        _refuse(_shown(within), f"{found.text!r} is no date alone; write TIMESTAMP")
    return found


def _unwrapped(node: exp.Expr) -> exp.Expr:
    while isinstance(node, exp.Paren):
        node = _child(node)
    return node


def _child(node: exp.Expr) -> exp.Expr:
    _require_only(node, "this")
    child: exp.Expr = node.this
    return child


def _present(node: exp.Expr) -> Iterator[str]:
    return (name for name, value in node.args.items() if value not in (None, False, []))


def _require_only(node: exp.Expr, *names: str) -> None:
    """Refuse a node that says more than what is looked at."""
    if not set(_present(node)) <= set(names):
        _refuse(_shown(node))


def _place(error: ParseError, text: str) -> str:
    """Where a text stopped making sense."""
    found = [each for each in error.errors if each.get("highlight")]
    if not found:
        return _shown(text) if text.strip() else "an empty condition"
    before, word = found[0].get("start_context") or "", _shortened(found[0]["highlight"])
    return f"{word!r} behind {_shortened(before.strip(), from_end=True)!r}" if before.strip() else repr(word)


def _shown(what: exp.Expr | str) -> str:
    return repr(_shortened(what if isinstance(what, str) else _sql(what)))


def _sql(node: exp.Expr) -> str:
    return node.sql(dialect=_Where, unsupported_level=ErrorLevel.IGNORE)


def _shortened(text: str, *, from_end: bool = False) -> str:
    if len(text) <= _SHOWN_CHARACTERS_MAX:
        return text
    return f"...{text[-_SHOWN_CHARACTERS_MAX:]}" if from_end else f"{text[:_SHOWN_CHARACTERS_MAX]}..."


def _refusal(what: str, hint: str = _ALLOWED) -> ArgumentInvalid:
    return ArgumentInvalid(f"cannot read the condition: did not understand {what}; {hint}")


def _refuse(what: str, hint: str = _ALLOWED) -> NoReturn:
    raise _refusal(what, hint)
