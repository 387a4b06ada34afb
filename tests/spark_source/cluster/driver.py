"""A Spark driver in a process of its own, which runs functions of the tests: a JVM has one SparkContext.

A request is a line of JSON on its standard input, the answer one on its standard output.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pyspark.sql import SparkSession

from tests.spark_source import jvm
from tests.spark_source.cluster.children import Child, ended_with_block


class DriverError(Exception):
    """A function raised in the driver; the text is the driver's traceback."""


class Driver:
    """The test's end of a driver. Made by `open_driver`.

    Args:
        child: The process.
    """

    def __init__(self, child: Child) -> None:
        self.child = child

    def begin(self, function: Callable[..., Any], **arguments: object) -> None:
        """Have `function(spark, **arguments)` called.

        Args:
            function: At the top of a module, known by its name.
            arguments: JSON can say them.
        """
        self._tell({"module": function.__module__, "function": function.__name__, "arguments": arguments})

    def result(self) -> Any:
        """What the function returned, as JSON says it.

        Raises:
            DriverError: It raised.
            RuntimeError: The driver ended.

        Waits: For the function.
        """
        stdout = self.child.process.stdout
        assert stdout is not None
        line = stdout.readline()
        if not line:
            raise RuntimeError(f"the driver ended:\n{self.child.said()}")
        answer = json.loads(line)
        if "error" in answer:
            raise DriverError(answer["error"])
        return answer["result"]

    def call(self, function: Callable[..., Any], **arguments: object) -> Any:
        """`begin` and `result`."""
        self.begin(function, **arguments)
        return self.result()

    def _tell(self, message: object) -> None:
        stdin = self.child.process.stdin
        assert stdin is not None
        stdin.write(json.dumps(message) + "\n")
        stdin.flush()


@contextlib.contextmanager
def open_driver(environment: Mapping[str, str], conf: Mapping[str, str]) -> Iterator[Driver]:
    """Start a driver; leaving the block ends its application.

    Args:
        environment: All of its environment.
        conf: Of Spark.
    """
    command = [sys.executable, "-m", __name__, json.dumps(dict(conf))]
    with ended_with_block(command, environment) as child:
        yield Driver(child)


def main() -> None:
    """Answer requests until there are no more."""
    builder = SparkSession.builder.appName("weir tests on a cluster")
    defaults = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": jvm.OPTIONS,
        "spark.executor.extraJavaOptions": jvm.OPTIONS,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
    }
    for name, value in {**defaults, **json.loads(sys.argv[1])}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        for line in sys.stdin:
            sys.stdout.write(json.dumps(_answer(spark, json.loads(line))) + "\n")
            sys.stdout.flush()
    finally:
        spark.stop()


def _answer(spark: SparkSession, request: Mapping[str, Any]) -> dict[str, object]:
    try:
        function = getattr(importlib.import_module(request["module"]), request["function"])
        return {"result": function(spark, **request["arguments"])}
    except Exception:
        return {"error": traceback.format_exc()}


if __name__ == "__main__":
    main()
