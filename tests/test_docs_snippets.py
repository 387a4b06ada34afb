"""Every block of code in the documentation is run, here or by the test that is named here."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Final

import click
import pyarrow as pa
import pytest

import scanner.sync
from bench.__main__ import main as bench
from scanner.cli import weir
from scanner.client.scan.expressions import parse_where
from scanner.server.auth.principals import Credentials
from tests.support import certificates
from tests.support.server import running_server
from tests.support.snippets import PAGES, REPOSITORY, Snippet, session, snippets

TYPED: Final = {"console", "python"}
ELSEWHERE: Final = {
    "docs/clients.md": "tests/scanner/test_client_docs.py",
    "docs/quickstart.md": "tests/test_clean_install.py, with every other Python there is",
    "docs/spark.md": "tests/spark_source/test_docs.py",
    "docs/tail.md": "tests/scanner/test_tail_docs.py",
    "docs/reference/weir-spark.md": "tests/spark_source/test_docs.py",
}
"""Pages whose blocks another test runs; that of Spark runs those of README, too."""
NOT_RUN: Final = {
    ("README.md", "make install"): "tests/test_clean_install.py installs",
    ("README.md", "make demo"): "takes minutes; the tests of bench run its parts",
    (
        "docs/operating.md",
        "docker build",
    ): "needs a Docker engine; tests/test_deployment.py compares the Dockerfile",
    ("docs/quickstart.md", "make install"): "tests/test_clean_install.py installs",
    (
        "docs/interop.md",
        "$ python -m bench credit",
    ): "takes minutes; tests/bench/test_credit.py tests its bars",
    (
        "docs/operating.md",
        "$ weir doctor",
    ): "needs a damaged disk; tests/scanner/cli/test_doctor.py damages one",
}
"""By page and beginning: why nobody types it."""
ALL: Final = [snippet for page in PAGES for snippet in snippets(page)]


def reason_not_to_run(snippet: Snippet) -> str | None:
    """Why a block is not run; None if it is."""
    found = [
        why for (page, start), why in NOT_RUN.items()
        if snippet.page == page and snippet.code.startswith(start)
    ]  # fmt: skip
    return found[0] if found else None


def typed(page: str) -> list[Snippet]:
    """The blocks of a page that this module types."""
    return [
        each
        for each in snippets(page)
        if each.language in TYPED
        and page not in ELSEWHERE
        and "pyspark" not in each.code
        and reason_not_to_run(each) is None
    ]


def test_every_block_says_what_it_is() -> None:
    """Commands are in blocks that are run, and what is left out is still there and has its reason."""
    looks_typed = re.compile(r"^(?:\$ |weir [a-z]|make |python |pip )", re.MULTILINE)
    runnable = TYPED | {"sql", "toml"}
    unlabelled = [
        f"{each.page}:{each.line}"
        for each in ALL
        if each.language not in runnable
        and reason_not_to_run(each) is None
        and (each.language == "sh" or (looks_typed.search(each.code) and "reference/" not in each.page))
    ]
    assert unlabelled == []
    assert {why for each in ALL if (why := reason_not_to_run(each))} == set(NOT_RUN.values())


@pytest.mark.slow
@pytest.mark.socket
@pytest.mark.rocks
@pytest.mark.parametrize("page", [page for page in PAGES if typed(page)])
def test_a_reader_can_type_the_page(page: str, tmp_path: Path) -> None:
    """Every command of a page, in order, prints what the page says, and every program runs."""
    blocks = typed(page)
    with session(tmp_path) as shell:
        if not any("weir load" in each.code or "create_table" in each.code for each in blocks):
            _prepare(tmp_path)
        if "--tls-cert" in blocks[0].code:
            _prepare_tls(tmp_path)
        if not any("$ weir serve" in each.code for each in blocks):
            shell.serve("weir serve --data ./data", [])
        for block in blocks:
            shell.run(block)


def _prepare(directory: Path) -> None:
    """The table of README, in the directories that pages serve."""
    rows = pa.table({"id": [1, 2], "item": ["boat", "oar"], "price": [900.0, 20.5]})
    for name in ("data", "weir-data"):
        with running_server(directory / name) as running, scanner.sync.connect(running.endpoint) as client:
            client.create_table("orders", rows.schema, primary_key=["id"]).write(rows)


def _prepare_tls(directory: Path) -> None:
    issued = certificates.files(
        directory, "server", certificates.issue("test", "127.0.0.1", "weir.example.com")
    )
    issued.certificate.rename(directory / "server.pem")
    issued.key.rename(directory / "server.key")
    certificates.ca_file(directory).rename(directory / "ca.pem")


def test_conditions_of_the_filters_page_are_understood() -> None:
    """Each line of its first block is a condition."""
    (block,) = [each for each in snippets("docs/filters.md") if each.language == "sql"]
    assert len([parse_where(line) for line in block.code.splitlines()]) == 3


def test_credentials_of_the_security_page_are_read() -> None:
    """The file of examples is one, but for the token's hash, which it leaves out."""
    (block,) = [each for each in snippets("docs/security.md") if each.language == "toml"]
    assert Credentials.parse(block.code.replace('"..."', f'"{"0" * 64}"'))


COMMAND = re.compile(r"`(weir [a-z][^`]*)`")
"""A command in the middle of a sentence."""


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_sentences_exist(page: str) -> None:
    """A command that is named has this name, and the options that it is named with."""
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    unknown = [found for found in COMMAND.findall(text.replace("\n", " ")) if not _exists(found)]
    assert unknown == []


def _exists(command: str) -> bool:
    words = iter(shlex.split(command)[1:])
    found: click.Command | None = weir
    options: set[str] = set()
    for word in words:
        if word.startswith("-"):
            options.add(word.partition("=")[0])
        elif isinstance(found, click.Group) and (child := found.get_command(click.Context(found), word)):
            found = child
        elif isinstance(found, click.Group) and not getattr(found, "invoke_without_command", False):
            return word.isupper()
    assert found is not None
    known = {name for parameter in found.params for name in parameter.opts} | {"--help", "-h"}
    return options <= known


@pytest.mark.parametrize("page", PAGES)
def test_other_commands_in_sentences_exist(page: str) -> None:
    """So have `make TARGET` and `python -m MODULE`."""
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z]+)", text)) <= targets
    modules = {
        name.replace(".", "/") for name in re.findall(r"python -m ((?:bench|tests|tools)[.\w]*)", text)
    }
    assert {
        name for name in modules
        if not (REPOSITORY / f"{name}.py").exists() and not (REPOSITORY / name / "__main__.py").exists()
    } == set()  # fmt: skip
    benches = set(re.findall(r"python -m bench ([a-z-]+)", text)) - {"NAME"}
    assert benches <= set(bench.commands)
