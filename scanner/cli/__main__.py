"""`python -m scanner.cli` is `weir`."""

from scanner.cli import main

main()
