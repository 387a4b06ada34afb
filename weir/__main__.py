"""The command `weir`, also as `python -m weir`."""

import sys

from scanner.extras import ExtraMissing, extras_needed


def main() -> None:
    """Run one command and exit; see `scanner.cli`."""
    try:
        with extras_needed("the command weir"):
            from scanner.cli import main as run
    except ExtraMissing as error:
        sys.exit(f"weir: {error}")
    run()


if __name__ == "__main__":
    main()
