"""The page of evidence says what the benches' files say."""

from tools.write_evidence import PAGE, RESULTS, command_of, written_into


def test_the_evidence_is_that_of_the_results() -> None:
    """`python -m tools.write_evidence` would change nothing."""
    page = PAGE.read_text(encoding="utf-8")
    assert page == written_into(page)


def test_every_result_has_the_command_of_a_bench() -> None:
    """The files are called as their bench is, or say which one it is."""
    from bench.__main__ import main

    for result in RESULTS.glob("*.json"):
        bench = command_of(result).split()[3]
        assert bench in main.commands
