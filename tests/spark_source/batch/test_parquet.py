"""Parquet as Spark writes it, loaded with `weir load` and read back in Spark: not a row more, not a row less."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from scanner.cli.app import weir
from tests.spark_source.frames import read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.support.server import RunningServer

pytestmark = [pytest.mark.spark, pytest.mark.rocks, pytest.mark.socket]

_ROWS = """
    SELECT * FROM VALUES
    (1, TIMESTAMP '9999-12-31 23:59:59.999999Z', TIMESTAMP_NTZ '9999-12-31 23:59:59.999999', DATE '9999-12-31',
        CAST(1.5 AS DOUBLE), CAST('NaN' AS FLOAT), CAST(12345678901234567890.12 AS DECIMAL(22, 2)), 'ü', X'00ff', true),
    (2, TIMESTAMP '0001-01-01 00:00:00Z', TIMESTAMP_NTZ '0001-01-01 00:00:00', DATE '0001-01-01',
        CAST('-Infinity' AS DOUBLE), CAST(-0.0 AS FLOAT), CAST(-0.01 AS DECIMAL(22, 2)), '', X'', false),
    (3, TIMESTAMP '1969-12-31 23:59:59.999999Z', TIMESTAMP_NTZ '1582-10-04 12:00:00', DATE '1582-10-15',
        CAST('NaN' AS DOUBLE), CAST('Infinity' AS FLOAT), CAST(0 AS DECIMAL(22, 2)), 'a\\tb', X'7f', null),
    (4, null, null, null, null, null, null, null, null, null)
    AS rows(id, instant, local, day, big, small, amount, text, octets, flag)
"""


@pytest.mark.parametrize(
    ("kind", "zone"),
    [
        ("INT96", "America/Los_Angeles"),
        ("TIMESTAMP_MICROS", "UTC"),
        ("TIMESTAMP_MICROS", "America/Los_Angeles"),
        ("TIMESTAMP_MILLIS", "UTC"),
    ],
)
def test_parquet_of_spark_comes_back_the_same(
    spark: SparkSession, server: RunningServer, tmp_path: Path, kind: str, zone: str
) -> None:
    """With each of the forms that Spark has for an instant, in a session of any zone."""
    settings = {
        "spark.sql.parquet.outputTimestampType": kind,
        "spark.sql.session.timeZone": zone,
        "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
        "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
        "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
        "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    }
    before = {name: str(spark.conf.get(name)) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        path = str(tmp_path / "rows.parquet")
        spark.sql(_ROWS).coalesce(1).write.parquet(path)
        written = spark.read.parquet(path)
        (file,) = Path(path).glob("*.parquet")
        table = f"{kind}_{zone[:3]}"
        loaded = CliRunner().invoke(
            weir, ["load", str(file), "--table", table, "--primary-key", "id", "--endpoint", server.endpoint]
        )
        assert loaded.exit_code == 0, loaded.output
        found = read(spark, server, table)
        assert found.count() == written.count() == 4
        assert differing(written, found) == differing(found, written) == []
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def differing(one: DataFrame, other: DataFrame) -> list[object]:
    """Rows of one that the other has not as often."""
    return list(one.exceptAll(other.select(*one.columns)).collect())
