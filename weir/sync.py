"""The blocking client; see `scanner.sync`."""

from scanner import sync as _sync
from scanner.sync import *  # noqa: F403

__all__ = _sync.__all__
