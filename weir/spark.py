"""The data source of Spark; see `spark_source`."""

import spark_source as _spark_source
from spark_source import *  # noqa: F403

__all__ = _spark_source.__all__
