"""Tests of `spark_source.writing`."""
