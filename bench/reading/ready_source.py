"""The ceiling of a Python source in Spark: it yields one Arrow batch, which is ready in memory, again and again.

It imports nothing of weir, which its Python processes would have to load.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.ipc
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def keep(batch: pa.RecordBatch, path: Path) -> None:
    """Write the batch that the source yields to a file, from which each task takes it before its first row."""
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)


class ReadySource(DataSource):
    """Rows from memory.

    Options
    -------
    path : str
        Where `keep` wrote the batch.
    rows : int
        Of all tasks together.
    tasks : int
        How many share them.
    """  # As in Spark's own reference.

    @classmethod
    def name(cls) -> str:
        """``ready``."""
        return "ready"

    def schema(self) -> StructType:
        """That of the batch."""
        return from_arrow_schema(_batch(self.options["path"]).schema)

    def reader(self, schema: StructType) -> ReadyReader:
        """A reader of so many rows."""
        return ReadyReader(self.options["path"], int(self.options["rows"]), int(self.options["tasks"]))


@dataclass(frozen=True)
class ReadyRows(InputPartition):
    """Rows of one task."""

    rows: int


class ReadyReader(DataSourceReader):
    """Yields the batch until there are rows enough.

    Args:
        path: Where the batch is.
        rows: Of all tasks together.
        tasks: How many share them.
    """

    def __init__(self, path: str, rows: int, tasks: int) -> None:
        self._path = path
        self._rows = rows
        self._tasks = tasks

    def partitions(self) -> list[ReadyRows]:
        """One for each task."""
        share, rest = divmod(self._rows, self._tasks)
        return [ReadyRows(share + (task < rest)) for task in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batch, again and again, and a part of it at the end."""
        assert isinstance(partition, ReadyRows)
        batch, left = _batch(self._path), partition.rows
        while left > 0:
            yield batch if batch.num_rows <= left else batch.slice(0, left)
            left -= batch.num_rows


def _batch(path: str) -> pa.RecordBatch:
    with pa.OSFile(path, "rb") as file:
        batch: pa.RecordBatch = pa.ipc.open_file(file).get_batch(0)
    return batch
