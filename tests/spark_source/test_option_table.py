"""The one table of options says what the code takes: docs/spark.md, and the docstring that Spark's users read."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Final

import pytest

from spark_source import WeirDataSource
from spark_source.options import OPTION_NAMES, WRITE_OPTION_NAMES, SourceOptions, parse_size
from spark_source.stream.options import _NOT_WITH_CHANGES, CHANGE_OPTION_NAMES, LEASE_TTL_S_DEFAULT
from spark_source.writing.options import BATCH_BYTES_DEFAULT, CHANGE_TYPE_COLUMN, CONNECTION_OPTION_NAMES

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "spark.md"
_AFTER_CHANGES: Final = OPTION_NAMES.index("tlsCa")
NAMES: Final = (
    *OPTION_NAMES[:_AFTER_CHANGES],
    *CHANGE_OPTION_NAMES,
    *OPTION_NAMES[_AFTER_CHANGES:],
    *WRITE_OPTION_NAMES,
)
"""All options, in the order of the table."""
_NOT_OF_CHANGES: Final = {*_NOT_WITH_CHANGES, *WRITE_OPTION_NAMES}
USES: Final = {
    "read": OPTION_NAMES,
    "changes": tuple(name for name in NAMES if name not in _NOT_OF_CHANGES),
    "write": (*CONNECTION_OPTION_NAMES, *WRITE_OPTION_NAMES),
}
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
    assert named["leaseTtl"] == f"{fields['lease_ttl_s']}, of changes {LEASE_TTL_S_DEFAULT}"
    written = {row["option"]: row["default"].strip("`") for row in rows() if "write" in row["for"]}
    assert written["changeTypeColumn"] == CHANGE_TYPE_COLUMN
    assert parse_size("batchBytes", written["batchBytes"]) == BATCH_BYTES_DEFAULT
    assert named["statistics"] == str(fields["statistics"]).lower()


def test_the_docstring_has_them_all() -> None:
    """`help(WeirDataSource)` has a line for each option: of reads, of changes, of connections, of writes."""
    text = (inspect.getdoc(WeirDataSource) or "").partition("Examples")[0]
    found = [
        name for line in re.findall(r"^((?:\w+, )*\w+) : ", text, re.MULTILINE) for name in line.split(", ")
    ]
    assert found == list(NAMES)
    security = OPTION_NAMES.index("tlsCa")
    of_reads = (*OPTION_NAMES[:security], *CHANGE_OPTION_NAMES, *OPTION_NAMES[security:])
    assert found == [*of_reads, *WRITE_OPTION_NAMES]
