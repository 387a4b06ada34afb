"""The Python that Spark starts for its workers: that of the tests, which has imported before it forks.

Spark forks a process for each `load()`, each plan and each task that finds no idle one. Each of them imports pyspark,
pyarrow and weir anew: most of what a query of a few rows costs. A Python that has imported nothing is a test of
test_pickling.py; `make demo` runs Spark as a user does.
"""

from __future__ import annotations

import importlib
import os
import runpy
import sys
from pathlib import Path
from typing import Final

DAEMON: Final = ["-m", "pyspark.daemon"]
IMPORTED: Final = (
    "importlib.metadata",
    "pandas",
    "pyarrow.compute",
    "pyspark.sql.pandas.serializers",
    "pyspark.worker",
    "spark_source.batch.reader",
)


def write_python(directory: Path) -> Path:
    """Write a script into a directory that is this Python, for PYSPARK_PYTHON."""
    script = directory / "python"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -P {__file__} "$@"\n')
    script.chmod(0o755)
    return script


def main() -> None:
    """Do as `python` does with these arguments."""
    arguments = sys.argv[1:]
    if arguments[:2] != DAEMON:
        # Such as the planner of a stream, which has to be there within ten seconds: from the installed package it
        # imports in a third of the time that Spark's archive of sources takes.
        paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        installed = os.pathsep.join(path for path in paths if not path.endswith(".zip"))
        os.execve(sys.executable, [sys.executable, *arguments], {**os.environ, "PYTHONPATH": installed})
    # The working directory, as `-m` does. And none of Spark's archives: where all is imported, Python 3.13 has
    # forgotten what is in them when Spark looks for data sources, and none is found.
    sys.path[:] = [os.getcwd(), *(path for path in sys.path if not os.path.isfile(path))]
    for name in (*IMPORTED, *arguments[2:]):
        importlib.import_module(name)
    sys.argv = arguments[1:]
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
