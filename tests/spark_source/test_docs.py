"""What the documentation tells a user of Spark to type works, all of it, in order."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.server import RunningServer, running_server
from tests.support.snippets import snippets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENDPOINT = "127.0.0.1:9123"


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server without tables."""
    with running_server(tmp_path_factory.mktemp("weir")) as running:
        yield running


def run(spark: SparkSession, server: RunningServer, page: str) -> dict[str, Any]:
    """Run the snippets of a page, one after another in one namespace, as a notebook does."""
    namespace: dict[str, Any] = {"spark": spark}
    for snippet in snippets(page):
        code = snippet.code.replace(ENDPOINT, server.endpoint)
        if snippet.language == "sql":
            spark.sql(code).collect()
        elif snippet.language == "python":
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
    assert run(spark, own_server, "docs/reference/weir-spark.md")["orders"].count() == 2
    page = run(spark, own_server, "docs/spark.md")
    assert {row.item for row in page["named"].collect()} == {"boat", "oar"}
    assert [row.id for row in page["middle"].collect()] == [2]
    assert page["orders"].count() == 2
    assert [row.id for row in page["dear"].collect()] == [1]
    assert [row.item for row in page["names"].collect()] == ["boat", "oar"]
    assert page["cut"].count() == 2
    assert spark.sql("SELECT * FROM orders").count() == 2
    assert page["comparison"].equal
