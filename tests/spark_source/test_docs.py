"""What the documentation tells a user of Spark to type works, all of it, in order."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.server import RunningServer, running_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REPOSITORY = Path(__file__).resolve().parents[2]
SNIPPET = re.compile(r"^```(?P<language>python|sql)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
ENDPOINT = "127.0.0.1:9123"


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server without tables."""
    with running_server(tmp_path_factory.mktemp("weir")) as running:
        yield running


def snippets(page: str) -> list[tuple[str, str]]:
    """Language and code of every snippet of a page."""
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    return [(match["language"], match["code"]) for match in SNIPPET.finditer(text)]


def run(spark: SparkSession, server: RunningServer, page: str) -> dict[str, Any]:
    """Run the snippets of a page, one after another in one namespace, as a notebook does."""
    namespace: dict[str, Any] = {}
    for language, code in snippets(page):
        code = code.replace(ENDPOINT, server.endpoint)
        if language == "sql":
            spark.sql(code).collect()
        else:
            exec(compile(code, page, "exec"), namespace)
    return namespace


def test_pandas_is_one_that_spark_supports() -> None:
    """Spark and its pandas API are imported without an error and without a warning."""
    command = "import pyspark.pandas, pyspark.sql, pyspark.testing.utils"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", command], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.spark
@pytest.mark.rocks
@pytest.mark.socket
@pytest.mark.slow
def test_every_snippet_runs(
    spark: SparkSession, own_server: RunningServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """README makes a table and shows it in Spark; the Spark page then reads it in every way that it has."""
    run(spark, own_server, "README.md")
    assert "boat" in capsys.readouterr().out
    page = run(spark, own_server, "docs/spark.md")
    assert {row.item for row in page["named"].collect()} == {"boat", "oar"}
    assert [row.id for row in page["middle"].collect()] == [2]
    assert page["orders"].count() == 2
    assert spark.sql("SELECT * FROM orders").count() == 2
    assert page["comparison"].equal
