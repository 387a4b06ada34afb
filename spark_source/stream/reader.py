"""The streaming reader that is not there yet, and says so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from spark_source.errors import SourceUnsupportedError


class UnsupportedStreamReader(DataSourceStreamReader):
    """Refuses at the first question that Spark asks.

    `DataSource.streamReader` cannot refuse: Spark reports whatever it raises as an UnboundLocalError of its own.
    """

    def initialOffset(self) -> NoReturn:
        """Refuse.

        Raises:
            SourceUnsupportedError: Always.
        """
        raise SourceUnsupportedError(
            "weir is not a streaming source yet: read a state with spark.read.format('weir')"
        )

    def latestOffset(self) -> NoReturn:  # type: ignore[override]
        """As `initialOffset`."""
        self.initialOffset()

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> NoReturn:
        """As `initialOffset`."""
        self.initialOffset()

    def read(self, partition: InputPartition) -> Iterator[NoReturn]:
        """As `initialOffset`."""
        self.initialOffset()
