"""Lines of the log that people and machines read: an event, and fields with names.

What a client said may be in a field or a message. `escaped` and the quotes of `Fields` see that it can neither begin a
line of its own, nor pass for another field, nor do anything to a terminal.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

_PLAIN: Final = re.compile(r"[A-Za-z0-9_.,:;/@*+()\[\]-]+")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def escaped(text: str, *, keep: str = "") -> str:
    r"""A text with its control characters written out, `\n` or `\x1b` or `\u202e`.

    Args:
        text: From anybody.
        keep: Control characters that stay.
    """
    return _CONTROL.sub(
        lambda found: found[0] if found[0] in keep else found[0].encode("unicode_escape").decode(), text
    )


class Fields(dict[str, Any]):
    """The fields of one line; as text `name=value name="a value with blanks"`."""

    def __str__(self) -> str:
        return " ".join(f"{name}={_shown(value)}" for name, value in self.items())


def _shown(value: object) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
