"""A process that does without pandas.

pyarrow looks for pandas the first time that it makes an array of Python objects, and imports it if it is there, for as
long as the process lives. No command has a use for it.
"""

from __future__ import annotations

from typing import Final


class _NoPandas:
    """Says that pandas is not installed: what is in `sys.meta_path` needs no class of its own to be derived from."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        """Refuse pandas, and leave the rest to others."""
        if fullname == "pandas":
            raise ModuleNotFoundError("this process does without pandas", name=fullname)


NO_PANDAS: Final = _NoPandas()
"""For the front of `sys.meta_path`."""
