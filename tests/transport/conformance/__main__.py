"""Run every case against a server: `python -m tests.transport.conformance HOST:PORT [--ca FILE]`."""

from __future__ import annotations

import argparse
import functools
import sys
from pathlib import Path

import transport
from tests.transport.conformance.run import CASES, PREFACES, connect, run_case

PATIENCE_S = 2.0
"""As long as suites wait."""


def main() -> int:
    """Run them, print those that fail and a count; 0 if none has."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("endpoint", help="HOST:PORT")
    parser.add_argument("--ca", type=Path, help="speak TLS, and trust this file's certificates")
    arguments = parser.parse_args()
    context = None if arguments.ca is None else transport.client_tls(arguments.ca)
    dial = functools.partial(connect, arguments.endpoint, PATIENCE_S, context)
    failed = 0
    for name in [*CASES, *PREFACES]:
        try:
            run_case(name, dial)
        except (AssertionError, OSError) as error:
            failed += 1
            print(f"FAILED {name}: {type(error).__name__}: {error}")
    print(f"{len(CASES) + len(PREFACES) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
