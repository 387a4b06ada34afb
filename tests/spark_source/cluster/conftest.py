"""One application for all the tests on the cluster that kill no driver: its three JVMs take most of their time."""

from collections.abc import Iterator

import pytest

from tests.spark_source.cluster.driver import Driver
from tests.spark_source.cluster.processes import Cluster


@pytest.fixture(scope="package")
def driver(cluster: Cluster) -> Iterator[Driver]:
    """It runs a second copy of a task that is slower than half of the others."""
    conf = {
        "speculation": "true",
        "speculation_interval": "100ms",
        "speculation_multiplier": "1.0",
        "speculation_quantile": "0.5",
        "speculation_minTaskRuntime": "0ms",
    }
    with cluster.driver(**conf) as running:
        yield running
