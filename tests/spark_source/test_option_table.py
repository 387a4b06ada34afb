"""The one table of options says what the code takes: docs/spark.md, and the docstring that Spark's users read."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Final

import pytest

from spark_source import WeirDataSource
from spark_source.options import OPTION_NAMES, SourceOptions

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "spark.md"
USES: Final = {"read": OPTION_NAMES}
"""What options are given to, as the column `for` names it, and the options that it takes."""


def rows() -> list[dict[str, str]]:
    """The rows of the table by heading, the option without its backticks."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    begin = next(number for number, line in enumerate(lines) if line.startswith("| option |"))
    heading = cells(lines[begin])
    found = []
    for line in lines[begin + 2 :]:
        if not re.match(r"\| `\w+` \|", line) or len(cells(line)) != len(heading):
            break
        found.append(dict(zip(heading, cells(line), strict=True)))
    return [row | {"option": row["option"].strip("`")} for row in found]


def cells(line: str) -> list[str]:
    """The cells of a row."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


@pytest.mark.parametrize("use", USES)
def test_every_option_is_in_the_table_once(use: str) -> None:
    """The table has the options that the code takes, in the same order and spelling, and no other."""
    found = [row["option"] for row in rows() if use in re.split(r",\s*", row["for"])]
    assert found == list(USES[use])


def test_nothing_else_takes_options() -> None:
    """Whatever the table says an option is for is compared with the code."""
    assert {use for row in rows() for use in re.split(r",\s*", row["for"])} == set(USES)


def test_defaults() -> None:
    """A default that the code has is the one that the table names; the others are said in words."""
    fields = {field.name: field.default for field in dataclasses.fields(SourceOptions)}
    named = {row["option"]: row["default"].strip("`") for row in rows() if "read" in row["for"]}
    assert named["endpoint"] == named["table"] == "required"
    assert named["mode"] == fields["mode"]
    assert named["leaseTtl"] == str(fields["lease_ttl_s"])
    assert named["statistics"] == str(fields["statistics"]).lower()


def test_the_docstring_has_them_all() -> None:
    """`help(WeirDataSource)` has a line for each option, in the order of the table."""
    text = (WeirDataSource.__doc__ or "").partition("Examples")[0]
    found = [
        name
        for line in re.findall(r"^    ((?:\w+, )*\w+) : ", text, re.MULTILINE)
        for name in line.split(", ")
    ]
    assert found == list(OPTION_NAMES)
