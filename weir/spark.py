"""The data source of Spark; see `spark_source`."""

from typing import TYPE_CHECKING

import spark_source as _spark_source
from spark_source import *  # noqa: F403

if not TYPE_CHECKING:  # mypy reads lists alone: after this line `import *` would bring nothing.
    __all__ = _spark_source.__all__
