"""The drawing of the house in docs/architecture.md is that of the imports."""

from tools.draw_house import PAGE, drawn_into


def test_the_house_is_drawn_as_it_is() -> None:
    """`python -m tools.draw_house` would change nothing."""
    page = PAGE.read_text(encoding="utf-8")
    assert drawn_into(page) == page
