"""The tables of TPC-H as temporary views, of a session of their own for each place they are read from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bench.tpch.data import parquet_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def parquet_views(spark: SparkSession, directory: Path, tables: Iterable[str]) -> SparkSession:
    """A new session whose views are the Parquet files."""
    session = spark.newSession()
    for table in tables:
        session.read.parquet(str(parquet_file(directory, table))).createOrReplaceTempView(table)
    return session


def weir_views(
    spark: SparkSession, endpoint: str, tables: Iterable[str], options: Mapping[str, str]
) -> SparkSession:
    """A new session whose views are the tables of a server, each one load: one state, whatever is asked of it.

    Args:
        spark: Of the same application.
        endpoint: HOST:PORT of the server.
        tables: Which.
        options: Of each load.
    """
    session = spark.newSession()
    for table in tables:
        reader = session.read.format("weir").options(endpoint=endpoint, table=table, **options)
        reader.load().createOrReplaceTempView(table)
    return session
