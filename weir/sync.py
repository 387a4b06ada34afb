"""The blocking client; see `scanner.sync`."""

from typing import TYPE_CHECKING

from scanner import sync as _sync
from scanner.sync import *  # noqa: F403

if not TYPE_CHECKING:  # mypy reads lists alone: after this line `import *` would bring nothing.
    __all__ = _sync.__all__
