"""A standalone Spark cluster from the pip package: a coordinator and two workers, each a process of its own.

Executors start with each application and have one core, so as many tasks run at a time as there are workers. Each has
a host of its own (Linux has all of 127.0.0.0/8): Spark starts no second copy of a task on the first one's host.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
import pyspark

from tests.spark_source import jvm, python_of_workers
from tests.spark_source.cluster.children import Child, ended_with_block
from tests.spark_source.cluster.driver import Driver, open_driver

WORKERS: Final = 2
EXECUTOR_MIB: Final = 512
_REPOSITORY: Final = Path(__file__).resolve().parents[3]
_EXECUTOR: Final = "CoarseGrainedExecutorBackend"


@dataclass(frozen=True)
class Cluster:
    """A cluster that runs."""

    url: str
    """For `SparkSession.builder.master`."""
    workers: tuple[Child, ...]
    environment: Mapping[str, str]
    """Of its processes; that of a driver too."""

    def driver(self, **conf: object) -> contextlib.AbstractContextManager[Driver]:
        """An application of the length of a block, with an executor on every worker, in a process of its own.

        Args:
            conf: Further configuration, with `_` in place of the dots.
        """
        given = {f"spark.{name.replace('_', '.')}": str(value) for name, value in conf.items()}
        return open_driver(
            self.environment,
            {
                "spark.master": self.url,
                "spark.executor.memory": f"{EXECUTOR_MIB}m",
                "spark.executor.cores": "1",
                # No task begins before every executor has come: so both have work.
                "spark.scheduler.minRegisteredResourcesRatio": "1.0",
                "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
                **given,
            },
        )

    def executors(self) -> list[psutil.Process]:
        """The processes of the executors that there are now."""
        return [
            child
            for worker in self.workers
            for child in psutil.Process(worker.process.pid).children()
            if any(_EXECUTOR in argument for argument in child.cmdline())
        ]


@contextlib.contextmanager
def running_cluster(directory: Path) -> Iterator[Cluster]:
    """Start a cluster on free ports of the loopback interface; leaving the block ends every process of it.

    Args:
        directory: For what its workers keep.
    """
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": str(python_of_workers.write_python(directory)),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(_REPOSITORY), os.environ.get("PYTHONPATH")))),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SCALA_VERSION": "2.13",
    }
    with contextlib.ExitStack() as stack:
        coordinator = stack.enter_context(
            ended_with_block(_deploy("master.Master", "127.0.0.1", "--port", "0"), environment)
        )
        line = coordinator.wait_line("Starting Spark master at")
        found = re.search(r"spark://\S+", line)
        assert found is not None, line
        url = found.group()
        workers = []
        for number in range(WORKERS):
            host = f"127.0.0.{number + 1}"
            command = _worker(url, host, directory / host)
            workers.append(
                stack.enter_context(ended_with_block(command, environment | {"SPARK_LOCAL_IP": host}))
            )
        for worker in workers:
            worker.wait_line("Successfully registered with master")
        yield Cluster(url, tuple(workers), environment)


def _worker(url: str, host: str, directory: Path) -> list[str]:
    memory = f"{EXECUTOR_MIB}m"
    return _deploy(
        "worker.Worker", host, "--cores", "1", "--memory", memory, "--work-dir", str(directory), url
    )


def _deploy(name: str, host: str, *arguments: str) -> list[str]:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    jars = f"{Path(pyspark.__file__).parent}/jars/*"
    options = ("--host", host, "--webui-port", "0")
    command = [java, "-Xmx192m", *jvm.FLAGS, "-cp", jars, f"org.apache.spark.deploy.{name}"]
    return [*command, *options, *arguments]
