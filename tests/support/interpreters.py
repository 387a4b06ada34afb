"""The Pythons of this machine that weir runs on, beside the one that runs the tests."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

VERSIONS = ("3.11", "3.12", "3.13", "3.14")
"""All that weir supports."""


@functools.cache
def interpreters() -> dict[str, str]:
    """One interpreter of each version that is there: from PATH, or as pyenv and uv keep them."""
    found = {f"{sys.version_info.major}.{sys.version_info.minor}": sys.executable}
    for version in VERSIONS:
        for candidate in _candidates(version):
            # A name on PATH may be a shim without an interpreter behind it, so ask.
            if version not in found and _version(candidate) == version:
                found[version] = candidate
    return dict(sorted(found.items()))


def _candidates(version: str) -> Iterator[str]:
    on_path = shutil.which(f"python{version}")
    if on_path is not None:
        yield on_path
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    yield from map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python")))
    uv = Path("~/.local/share/uv/python").expanduser()
    yield from map(str, sorted(uv.glob(f"cpython-{version}.*/bin/python")))


def _version(python: str) -> str | None:
    ask = "import sys, ensurepip, venv; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([python, "-c", ask], capture_output=True, text=True, timeout=100, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
