"""The tables of TPC-H as temporary views, of a session of their own for each place they are read from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bench.tpch.data import parquet_file
from spark_source import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def parquet_views(spark: SparkSession, directory: Path, tables: Iterable[str]) -> SparkSession:
    """A new session whose views are the Parquet files."""
    session = spark.newSession()
    for table in tables:
        session.read.parquet(str(parquet_file(directory, table))).createOrReplaceTempView(table)
    return session


def weir_views(
    spark: SparkSession,
    endpoint: str,
    tables: Iterable[str],
    options: Mapping[str, str],
    as_of: Mapping[str, Mapping[int, int]] | None = None,
) -> SparkSession:
    """A new session whose views are the tables of a server, each one load: one state, whatever is asked of it.

    Args:
        spark: Of the same application.
        endpoint: HOST:PORT of the server.
        tables: Which.
        options: Of each load.
        as_of: By table and bucket, the log offset that is read as of; None: as it is when Spark plans the first query.
    """
    session = spark.newSession()
    register(session)
    for table in tables:
        reader = session.read.format("weir").options(endpoint=endpoint, table=table, **options)
        if as_of is not None:
            reader = reader.option("asOf", ",".join(f"{bucket}:{at}" for bucket, at in as_of[table].items()))
        reader.load().createOrReplaceTempView(table)
    return session
