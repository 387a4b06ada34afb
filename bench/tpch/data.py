"""The eight tables of TPC-H: generated as Parquet by tpchgen-cli, and loaded into weir."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from bench.harness.errors import BenchFailed

if TYPE_CHECKING:
    import scanner.sync

PRIMARY_KEYS: Final[Mapping[str, Sequence[str]]] = {
    "region": ("r_regionkey",),
    "nation": ("n_nationkey",),
    "supplier": ("s_suppkey",),
    "part": ("p_partkey",),
    "partsupp": ("ps_partkey", "ps_suppkey"),
    "customer": ("c_custkey",),
    "orders": ("o_orderkey",),
    "lineitem": ("l_orderkey", "l_linenumber"),
}
TABLES: Final = tuple(PRIMARY_KEYS)
WRITE_ROWS: Final = 200_000
_SMALL: Final = frozenset({"region", "nation"})


def generate(directory: Path, scale: float, tables: Iterable[str] = TABLES) -> None:
    """Make the tables, each a Parquet file ``TABLE.parquet``; the same scale gives the same rows.

    Args:
        directory: Where the files go; made if it is missing.
        scale: The scale factor: 1 has 6 million rows of lineitem.
        tables: Which.

    Raises:
        BenchFailed: tpchgen-cli is not installed, or failed.
    """
    command = [
        str(Path(sys.executable).with_name("tpchgen-cli")),
        *("parquet", "--scale-factor", str(scale), "--output-dir", str(directory)),
        *("--tables", ",".join(tables), "--no-progress", "--quiet"),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise BenchFailed(f"{command[0]} is not there: run `make install`") from error
    if done.returncode != 0:
        raise BenchFailed(f"tpchgen-cli ended with status {done.returncode}: {done.stderr.strip()}")


def parquet_file(directory: Path, table: str) -> Path:
    """Where `generate` puts a table."""
    return directory / f"{table}.parquet"


def row_count(directory: Path, table: str) -> int:
    """Rows of a generated table."""
    return int(pq.read_metadata(parquet_file(directory, table)).num_rows)


def table_schema(directory: Path, table: str) -> pa.Schema:
    """The schema of a generated table in weir: the same columns and types, and only the key is not nullable."""
    fields = pq.read_schema(parquet_file(directory, table))
    key = PRIMARY_KEYS[table]
    return pa.schema(
        [pa.field(each.name, _stored(each.type), nullable=each.name not in key) for each in fields]
    )


def read_rows(directory: Path, table: str, rows: int = WRITE_ROWS) -> Iterator[pa.Table]:
    """A generated table in its schema in weir, at most so many rows at a time."""
    schema = table_schema(directory, table)
    for batch in pq.ParquetFile(parquet_file(directory, table)).iter_batches(rows):
        yield pa.Table.from_batches([batch]).cast(schema)


def load(client: scanner.sync.Client, directory: Path, table: str, buckets: int) -> Iterator[int]:
    """Create a table and write its rows.

    Args:
        client: Of the server.
        directory: Where the files are.
        table: Which.
        buckets: Of the table; those of a few rows have one.

    Yields:
        The rows that have been written so far.
    """
    created = client.create_table(
        table,
        table_schema(directory, table),
        primary_key=list(PRIMARY_KEYS[table]),
        buckets=1 if table in _SMALL else buckets,
    )
    written = 0
    for rows in read_rows(directory, table):
        created.write(rows)
        written += rows.num_rows
        yield written


def _stored(kind: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_string_view(kind) else kind
