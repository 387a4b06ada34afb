"""How a bench says that something is not as it must be."""


class BenchFailed(Exception):
    """One line for the person who runs the bench: what was expected, what was found."""
