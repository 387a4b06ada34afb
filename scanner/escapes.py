"""Text of others' on one line: characters that a terminal obeys, written so that it shows them; long lists. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_OBEYED: Final = r"\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
"""Control characters of ASCII and ISO 8859, line separators, what turns the direction of text, and half characters."""
_CONTROLS: Final = re.compile(f"[{_OBEYED}]")
_CONTROLS_OF_LINES: Final = re.compile(f"(?![\\t\\n])[{_OBEYED}]")
_NAMES: Final = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
_LISTED_MAX: Final = 20


def escaped(text: object) -> str:
    r"""Text on one line: a tab as `\t`, an escape as `\x1b`, and so on. A backslash stays as it is."""
    return _CONTROLS.sub(_escape, str(text))


def escaped_lines(text: str) -> str:
    """The same for text of many lines: line breaks and tabs stay."""
    return _CONTROLS_OF_LINES.sub(_escape, text)


def escaped_json(text: str) -> str:
    """A JSON document with nothing in it that a terminal obeys, and the same meaning."""
    return _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def listed(names: Iterable[str]) -> str:
    """Names as an error lists them: all, if they are few, else the first ones and how many more there are."""
    names = list(names)
    more = len(names) - _LISTED_MAX
    return ", ".join(names[:_LISTED_MAX]) + (f" and {more} more" if more > 0 else "")


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    code = ord(character)
    return _NAMES.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")
