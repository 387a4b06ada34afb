"""What hypothesis is told in `conftest.py`."""

import os
import subprocess
import sys

TWICE = """
from hypothesis import given, settings, strategies as st

import tests.conftest

def examples():
    found = []

    @settings(max_examples=100)
    @given(st.integers(), st.text())
    def find(number, text):
        found.append((number, text))

    find()
    return found

before = examples()
import scanner.server.server
assert examples() == before
"""


def test_the_same_examples_every_time() -> None:
    """In CI, and for mutants: whatever modules the tests that came before have loaded."""
    environment = {**os.environ, "HYPOTHESIS_PROFILE": "ci"}
    subprocess.run([sys.executable, "-c", TWICE], env=environment, check=True)
